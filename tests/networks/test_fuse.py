"""A fused network is the network it was made of."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import HybridBlock, nd
from tests.support.gluoncv_networks import DEVICES, NETWORKS, WAYS, Network, OneDevice
from tests.support.networks import check_files, exact_leaky_relu, leaves, load, sequential
from tests.support.step import Case, train

SLOW = ("ICNet-resnet50", "FCN-resnest50-aux")  # what others have too, for half a minute
FAMILIES = [network for network in NETWORKS if len(network.impossible) < len(WAYS)]


def initialized(net: gluon.Block) -> gluon.Block:
    net.initialize(mx.init.Xavier(), ctx=contexts(DEVICES), force_reinit=True)
    return net


@pytest.mark.parametrize("network", FAMILIES, ids=[network.name for network in FAMILIES])
def test_families(network: Network, request):
    """One training step on two contexts is that of plain layers on one; inference is the same."""
    by_default = network.by_default and network.name not in SLOW
    if not by_default and not request.config.getoption("--all-networks"):
        pytest.skip("needs --all-networks")
    one = OneDevice(network)
    with exact_leaky_relu():
        one.step(frozen=False)
    net = network.converted()
    load(net, contexts(DEVICES), one.values)
    with autograd.record():  # YOLO3 takes targets in training
        fused = gluon_syncbn.fuse(net, num_inputs=7 if network.family == "YOLO3" else 1)
    # Xception has two norms in a row, or one before a convolution, for each that can be fused.
    share = 0.35 if network.backbone == "xception" else 0.7
    assert len(fused.fused) >= share * (len(fused.fused) + len(fused.left)), fused.left
    fused.hybridize(static_alloc=True)
    one.require_same(fused)
    dtype, tolerance = "float64", 1e-10
    if network.family == "YOLO3":  # itself it knows no double precision in inference
        dtype, tolerance = "float32", 1e-4
        net.cast(dtype)
        net.set_nms(nms_thresh=0)
        fused = gluon_syncbn.fuse(net)
    x = nd.random.normal(shape=(2, 3, network.size, network.size), dtype=dtype)
    with exact_leaky_relu():
        found, wanted = leaves(fused(x)), leaves(net(x))
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted):
        size = np.abs(theirs.asnumpy()).max()
        np.testing.assert_allclose(ours.asnumpy(), theirs.asnumpy(), rtol=0, atol=tolerance * size)


FUSED = {
    "relu": "relu",
    "leaky": "leaky",
    "elu": "elu",
    "sum": "sum and relu",
    "right": "sum and elu",
}
# No norm has a negative slope, or a second sum.
LEFT = ("tanh", "twice", "head", "own", "negative", "sums")


class Patterns(HybridBlock):
    """What can be fused, and what not."""

    def __init__(self, **norm) -> None:
        super().__init__(prefix="patterns_")
        with self.name_scope():
            for name in (*FUSED, *LEFT):
                options = {"own": {"activation": "relu"}, "sums": {}}.get(name, norm)
                layer = gluon_syncbn.SyncBatchNorm(in_channels=4, prefix=f"{name}_", **options)
                setattr(self, name, layer)
            self.below = nn.LeakyReLU(0.1)

    def hybrid_forward(self, F, x, y):
        a = F.relu(self.relu(x))
        b = self.below(self.leaky(x))
        c = F.LeakyReLU(self.elu(x), act_type="elu", slope=0.5)
        d = F.Activation(self.sum(a) + y, act_type="relu")
        e = F.LeakyReLU(y + self.right(self.tanh(b)), act_type="elu", slope=0.5)
        tanh = F.tanh(self.tanh(c))
        twice = self.twice(d)
        head = self.head(e)
        others = F.LeakyReLU(self.negative(x), slope=-0.5), F.relu(self.sums(x, y) + 2 * y)
        return [tanh, (F.relu(twice) + twice, head), self.own(head), *others]


def varied(net: gluon.HybridBlock) -> gluon.HybridBlock:
    """The same values every time, in double precision."""
    initialized(net).cast("float64")
    rng = np.random.default_rng(1)
    for parameter in net.collect_params().values():
        parameter.set_data(nd.array(rng.uniform(0.5, 1.5, parameter.shape), dtype="float64"))
    return net


def after_a_step(net: gluon.HybridBlock) -> tuple[list, list[np.ndarray]]:
    """Outputs on two contexts; these, gradients, running statistics and inference as arrays."""
    rng = np.random.default_rng(2)
    arrays = [
        [nd.array(rng.normal(size=(3, 4, 5)), ctx=ctx, dtype="float64") for _ in "xy"]
        for ctx in contexts(DEVICES)
    ]
    with autograd.record():
        outputs = [net(*pair) for pair in arrays]
        losses = [sum((leaf**2).sum() for leaf in leaves(each)) for each in outputs]
    autograd.backward(losses)
    found = [*leaves(outputs), *leaves(net(*arrays[0]))]
    for _, parameter in sorted(net.collect_params().items()):
        found += parameter.list_data() if parameter.grad_req == "null" else parameter.list_grad()
    return outputs, [array.asnumpy() for array in found]


def not_fused(net: gluon.HybridBlock) -> list[np.ndarray]:
    # Called one by one, two uses of one layer would update its statistics in another order.
    varied(net).hybridize()
    with exact_leaky_relu():
        return after_a_step(net)[1]


def require_equal(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs):
        np.testing.assert_allclose(mine, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mode", [{"active": False}, {}, {"static_alloc": True}])
def test_what_is_fused(mode):
    fused = gluon_syncbn.fuse(varied(Patterns()), num_inputs=2)
    assert sorted(fused.fused) == sorted((f"patterns_{name}_fwd", FUSED[name]) for name in FUSED)
    left = sorted(name.split("_")[1] for name, _ in fused.left)
    assert left == sorted((*LEFT, "tanh"))
    fused.hybridize(**mode)
    outputs, ours = after_a_step(fused)
    assert [len(leaves(part)) for part in outputs[0]] == [1, 2, 1, 1, 1], "nested as before"
    require_equal(ours, not_fused(Patterns()))


def test_in_place():
    """Norms with an activation that inverts, and no sum; others are fused as they are."""
    fused = gluon_syncbn.fuse(varied(Patterns()), num_inputs=2, inplace=True)
    expected = {**FUSED, "leaky": "leaky in place", "elu": "elu in place"}
    assert sorted(fused.fused) == sorted((f"patterns_{n}_fwd", expected[n]) for n in expected)
    fused.hybridize(static_alloc=True)
    result = not_fused(Patterns())
    require_equal(after_a_step(fused)[1], result)
    # What works in place already.
    fused = gluon_syncbn.fuse(varied(Patterns(inplace=True)), num_inputs=2)
    assert sorted(fused.fused) == [
        ("patterns_elu_fwd", "elu in place"),
        ("patterns_leaky_fwd", "leaky in place"),
    ]
    assert sum(why == "works in place, and could not if fused" for _, why in fused.left) == 3
    require_equal(after_a_step(fused)[1], result)


class Reused(HybridBlock):
    """A layer whose two uses a fusion would run in the other order."""

    def __init__(self, first: str) -> None:
        super().__init__(prefix="reused_")
        self._first = first
        with self.name_scope():
            self.inner = gluon_syncbn.SyncBatchNorm(in_channels=4, prefix="inner_")
            if first != "norm":
                self.outer = gluon_syncbn.SyncBatchNorm(in_channels=4, prefix="outer_")

    def hybrid_forward(self, F, x, y):
        if self._first == "norm":
            return F.relu(self.inner(x) + F.tanh(self.inner(y)))
        if self._first == "shortcut":
            return F.relu(F.tanh(self.inner(y)) + self.outer(F.tanh(self.inner(x))))
        return F.relu(self.outer(F.tanh(self.inner(x))) + F.tanh(self.inner(y)))


@pytest.mark.parametrize(("first", "number"), [("norm", 0), ("shortcut", 0), ("data", 1)])
def test_a_layer_used_twice_updates_its_statistics_in_order(first, number):
    fused = gluon_syncbn.fuse(varied(Reused(first)), num_inputs=2)
    assert len(fused.fused) == number
    assert sum("order" in why for _, why in fused.left) == 1 - number
    require_equal(after_a_step(fused)[1], after_a_step(varied(Reused(first)))[1])


def small(norm=nn.BatchNorm) -> nn.HybridSequential:
    net = nn.HybridSequential(prefix="small_")
    with net.name_scope():
        net.add(nn.Conv2D(4, 3), norm(), nn.Activation("relu"), nn.Dense(2), norm())
    return net


def test_files_trainer_and_shapes_that_are_not_known_yet(tmp_path):
    net = initialized(small())
    fused = gluon_syncbn.fuse(net, convert=True)
    x = np.random.default_rng(0).standard_normal((6, 3, 6, 6)).astype("float32")
    data = [nd.array(part, ctx=c) for part, c in zip(np.split(x, 2), contexts(2))]
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    assert fused.collect_params().keys() == net.collect_params().keys()
    case = Case(x, (3, 3), call=lambda net, x, _: ((net(x) - 1) ** 2).sum())
    first, last = (train(fused, case, contexts(2), trainer, n)["loss"].sum() for n in (1, 4))
    assert last < first
    assert gluon_syncbn.check_in_sync(fused) == {}
    np.testing.assert_allclose(fused(data[0]).asnumpy(), net(data[0]).asnumpy(), rtol=1e-5)

    fused.save_parameters(str(tmp_path / "fused.params"))
    plain = small()
    plain.load_parameters(str(tmp_path / "fused.params"))
    np.testing.assert_allclose(
        plain(data[0].as_in_context(mx.cpu())).asnumpy(), net(data[0]).asnumpy(), rtol=1e-4
    )
    plain.save_parameters(str(tmp_path / "plain.params"))
    fused.load_parameters(str(tmp_path / "plain.params"), ctx=contexts(2))
    np.testing.assert_allclose(fused(data[1]).asnumpy(), net(data[1]).asnumpy(), rtol=1e-5)

    fused.export(str(tmp_path / "net"))
    assert '"op": "Activation"' not in (tmp_path / "net-symbol.json").read_text()
    check_files(tmp_path / "net", data[0], fused(data[0]).asnumpy())


@pytest.mark.parametrize("cast_fused", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("momentum", [0.9, None])
def test_other_dtypes(dtype, momentum, cast_fused):
    net = sequential(
        gluon_syncbn.SyncBatchNorm(in_channels=3, momentum=momentum), nn.Activation("relu")
    )
    initialized(net)
    if not cast_fused:
        net.cast(dtype)
    fused = gluon_syncbn.fuse(net)
    if cast_fused:
        fused.cast(dtype)
    with autograd.record():
        outs = [fused(nd.ones((2, 3, 4), ctx=c, dtype=dtype)) for c in contexts(2)]
    assert all(out.dtype == np.dtype(dtype) for out in outs)
    np.testing.assert_array_equal(outs[0].asnumpy(), np.zeros((2, 3, 4)))


def test_what_cannot_be_fused():
    with pytest.raises(ValueError, match="net=Sequential should be a HybridBlock"):
        gluon_syncbn.fuse(nn.Sequential())

    class LooksAtShapes(HybridBlock):
        def hybrid_forward(self, F, x):
            return x.reshape(x.shape[0], -1)

    with pytest.raises(ValueError, match=r"looksatshapes0_? cannot be traced with 1 inputs"):
        gluon_syncbn.fuse(LooksAtShapes())
    with pytest.raises(ValueError, match="small cannot be traced with 2 inputs"):
        gluon_syncbn.fuse(initialized(small(gluon_syncbn.SyncBatchNorm)), num_inputs=2)
