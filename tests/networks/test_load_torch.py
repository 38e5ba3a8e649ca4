"""Weights of PyTorch networks find their places here, or are refused by name."""

from __future__ import annotations

import re

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluoncv.model_zoo import get_model
from mxnet import gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import HybridBlock, nd
from tests.support.networks import sequential
from tests.support.oracle import batch_norm

RNG = np.random.default_rng(0)


def conv(name: str, outputs: int, inputs: int, size: int = 3, bias: bool = False) -> dict:
    state = {f"{name}.weight": RNG.normal(size=(outputs, inputs, size, size))}
    return {**state, f"{name}.bias": RNG.normal(size=outputs)} if bias else state


def norm(name: str, channels: int, affine: bool = True) -> dict:
    state = {}
    if affine:
        state = {f"{name}.weight": RNG.uniform(1, 2, channels)}
        state[f"{name}.bias"] = RNG.normal(size=channels)
    return {
        **state,
        f"{name}.running_mean": RNG.normal(size=channels),
        f"{name}.running_var": RNG.uniform(1, 2, channels),
        f"{name}.num_batches_tracked": np.array(7),
    }


def linear(name: str, outputs: int, inputs: int) -> dict:
    return {
        f"{name}.weight": RNG.normal(size=(outputs, inputs)),
        f"{name}.bias": RNG.normal(size=outputs),
    }


def resnet18() -> dict:
    """The state of torchvision's network, with its names in its order."""
    state = {**conv("conv1", 64, 3, 7), **norm("bn1", 64)}
    before = 64
    for stage, width in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            name = f"layer{stage}.{block}"
            state.update({**conv(f"{name}.conv1", width, before), **norm(f"{name}.bn1", width)})
            state.update({**conv(f"{name}.conv2", width, width), **norm(f"{name}.bn2", width)})
            if before != width:
                state.update(conv(f"{name}.downsample.0", width, before, 1))
                state.update(norm(f"{name}.downsample.1", width))
            before = width
    return {**state, **linear("fc", 10, 512)}


def initialized(net: gluon.Block) -> gluon.Block:
    net.initialize(ctx=contexts(2))
    return gluon_syncbn.convert_sync_batchnorm(net)


def assert_loaded(net: gluon.Block, state: dict, loaded: dict[str, str]) -> None:
    parameters = net._collect_params_with_prefix()
    assert loaded.keys() == parameters.keys()
    counts = {name for name in state if name.endswith("num_batches_tracked")}
    assert set(loaded.values()) >= state.keys() - counts
    for name, source in loaded.items():
        for array in parameters[name].list_data():
            np.testing.assert_array_equal(array.asnumpy(), state[source].astype("float32"))


@pytest.mark.parametrize("prefix", ["", "module."])
def test_by_name_and_by_order(prefix):
    """DistributedDataParallel puts a prefix before all names."""
    state = {f"{prefix}{name}": value for name, value in resnet18().items()}
    net = initialized(get_model("resnet18_v1b", classes=10))
    loaded = gluon_syncbn.load_torch(net, state)
    assert loaded["layer2.0.bn1.gamma"] == f"{prefix}layer2.0.bn1.weight"
    net(nd.ones((1, 3, 32, 32), ctx=contexts(1)[0]))
    assert_loaded(net, state, loaded)


def small(**options) -> nn.HybridSequential:
    norm = nn.BatchNorm(in_channels=4, **options)
    conv, dense = nn.Conv2D(4, 3, use_bias=False, in_channels=3), nn.Dense(2, in_units=64)
    return sequential(conv, norm, nn.Activation("relu"), nn.Flatten(), dense)


def small_state(affine: bool = True) -> dict:
    return {**conv("a", 4, 3), **norm("b", 4, affine), **linear("c", 2, 64)}


class Tensor:
    """As PyTorch's, which NumPy reads only after these calls."""

    def __init__(self, values) -> None:
        self._values, self.shape, self.calls = values, values.shape, []

    def __getattr__(self, name: str):
        def call():
            self.calls.append(name)
            return self._values if name == "numpy" else self

        return call

    def __array__(self, *_):
        raise TypeError("on another device")


def test_it_computes_what_the_other_does():
    net, state = initialized(small()), small_state()
    tensors = {name: Tensor(values) for name, values in state.items()}
    gluon_syncbn.load_torch(net, tensors)
    assert tensors["a.weight"].calls == ["detach", "cpu", "double", "numpy"]
    x = RNG.normal(size=(2, 3, 6, 6))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    y = np.einsum("nchwij,ocij->nohw", windows, state["a.weight"])
    names = ("weight", "bias", "running_mean", "running_var")
    b = (state[f"b.{name}"] for name in names)
    y = batch_norm(y, y, *b, batch_statistics=False, act_type="relu").out
    expected = y.reshape(2, -1) @ state["c.weight"].T + state["c.bias"]
    found = net(nd.array(x)).asnumpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("cls", "layout", "outer"),
    [
        (nn.Conv2D, "NHWC", (5, 3)),
        (nn.Conv3D, "NDHWC", (5, 3)),
        (nn.Conv2DTranspose, "NHWC", (3, 5)),
        (nn.Conv3DTranspose, "NDHWC", (3, 5)),
    ],
)
@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("kernel", [(3, 3, 3), (1, 2, 3)])
def test_channels_that_come_last(cls, layout, outer, deferred, kernel):
    """Kernels of 3 and 3 channels look the same in both layouts."""
    net = nn.HybridSequential()
    size = kernel[5 - len(layout) :]
    net.add(cls(5, size, layout=layout, in_channels=0 if deferred else 3))
    net.initialize(ctx=contexts(2))
    weight = RNG.normal(size=outer + size).astype("float32")
    gluon_syncbn.load_torch(net, {"a.weight": weight, "a.bias": np.ones(5)})
    expected = np.stack([weight[:, channel] for channel in range(outer[1])], axis=-1)
    net[0].weight._finish_deferred_init()  # a CPU runs no such convolution, which would do it
    for array in net[0].weight.list_data():
        np.testing.assert_array_equal(array.asnumpy(), expected)


class Anchored(HybridBlock):
    """A head with a constant, as those of GluonCV's detectors."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.anchors = self.params.get_constant("anchor_", nd.array([[1.0, 2.0]]))
            self.out = nn.Dense(3, in_units=3)


def test_constants_are_no_weights():
    net, state = initialized(Anchored()), linear("out", 3, 3)
    loaded = gluon_syncbn.load_torch(net, state)
    assert loaded == {"out.weight": "out.weight", "out.bias": "out.bias"}
    assert (net.anchors.data(contexts(2)[1]).asnumpy() == [[1, 2]]).all()
    with pytest.raises(ValueError, match=r"state_dict has anchors \(ndarray\), which is no weight"):
        gluon_syncbn.load_torch(net, {**state, "anchors": np.ones((1, 2))})


def test_norms_without_scale_and_with_a_count():
    net = sequential(
        gluon_syncbn.SyncBatchNorm(in_channels=4, momentum=None, scale=False, center=False)
    )
    net.initialize(mx.init.One(), ctx=contexts(2))
    loaded = gluon_syncbn.load_torch(net, norm("bn", 4, affine=False))
    assert loaded["0.gamma"] == loaded["0.beta"] == ""
    assert net[0].num_batches_tracked.data(contexts(2)[1]).asnumpy().item() == 7
    assert (net[0].beta.data(contexts(1)[0]).asnumpy() == 0).all()
    state = norm("bn", 4, affine=False)
    del state["bn.num_batches_tracked"]
    assert gluon_syncbn.load_torch(net, state)["0.num_batches_tracked"] == ""
    assert net[0].num_batches_tracked.data(contexts(1)[0]).asnumpy().item() == 0


def test_parts_by_name():
    """A head that comes first there and last here."""
    net = initialized(small())
    state = {**linear("head.out", 2, 64), **conv("trunk.0", 4, 3), **norm("trunk.1", 4)}
    with pytest.raises(ValueError, match=r"0\.weight of net has shape .* but head\.out\.weight"):
        gluon_syncbn.load_torch(net, state)
    loaded = gluon_syncbn.load_torch(net, state, {"4": "head.out"})
    assert_loaded(net, state, loaded)


class Named(HybridBlock):
    """Two layers of one shape, of which the names tell more than the order."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.second = nn.Dense(3, in_units=3)
            self.first = nn.Dense(3, in_units=3)
            self.last = nn.Dense(3, in_units=3)


@pytest.mark.parametrize(
    ("make", "change", "names", "message"),
    [
        (small, lambda s: s.pop("b.running_var"), None, "1.running_var of net needs b.running_var"),
        (small, lambda s: s.pop("c.bias"), None, "4.bias of net needs c.bias"),
        (small, lambda s: s.update(conv("d", 4, 4)), None, "d of state_dict is the first without"),
        (small, lambda s: s.pop("a.weight"), None, "4 of net is the first without a counterpart"),
        (small, lambda s: s.update({"a.bias": np.ones(4)}), None, "0 of net has no place for a.bi"),
        (small, lambda s: s.update({"a.weight_g": np.ones(4)}), None, "a.weight_g (ndarray)"),
        (small, lambda s: s.update(epoch=3), None, "epoch (int), which is no weight, bias or"),
        (small, lambda s: None, {"nine": "c"}, "names has 'nine', but net has no such part"),
        (lambda: small(scale=False), lambda s: None, None, "b.weight is not 1, but 1 of net has"),
        (
            Named,
            lambda s: (s.clear(), [s.update(linear(n, 3, 3)) for n in ("first", "second", "x")]),
            None,
            "second of net and first are at the same place, but both networks have a",
        ),
        (
            lambda: sequential(nn.Conv2D(5, 3, layout="NHWC", in_channels=3)),
            lambda s: (s.clear(), s.update(conv("a", 5, 4, bias=True))),
            None,
            "0.weight of net has shape (5, 3, 3, 3) with layout NHWC, but a.weight, which is at",
        ),
    ],
)
def test_what_does_not_fit_is_named(make, change, names, message):
    net, state = initialized(make()), small_state()
    change(state)
    before = [each.list_data()[1].asnumpy() for each in net.collect_params().values()]
    with pytest.raises(ValueError, match=re.escape(message)):
        gluon_syncbn.load_torch(net, state, names)
    after = [each.list_data()[1].asnumpy() for each in net.collect_params().values()]
    assert all(map(np.array_equal, after, before)), "nothing is loaded"


def test_a_network_that_is_not_initialized():
    with pytest.raises(ValueError, match=r"0\.weight is not initialized"):
        gluon_syncbn.load_torch(small(), small_state())


def test_a_part_is_not_the_beginning_of_a_name():
    net = sequential(nn.Dense(3, in_units=3), nn.Dense(3, in_units=3))
    net.initialize()
    state = {**linear("fc", 3, 3), **linear("fc_aux", 3, 3)}
    loaded = gluon_syncbn.load_torch(net, state, {"1": "fc"})
    assert (loaded["0.weight"], loaded["1.weight"]) == ("fc_aux.weight", "fc.weight")
