"""A fused network is the network it was made of."""

from __future__ import annotations

import json

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluoncv.model_zoo import get_model
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.networks.test_gluoncv_families import DEVICES, OneDevice
from tests.support.gluoncv_networks import NETWORKS, Network
from tests.support.whole_batch import compare, load, train_step

BY_DEFAULT = ("FCN-resnest50-aux", "PSPNet-resnet50", "DeepLabV3-resnet50", "ICNet-resnet50")
SEGMENTATION = [
    network
    for network in NETWORKS
    if not network.impossible and not network.family.startswith(("YOLO", "Mask", "Faster"))
]


def quiet_initialize(net: gluon.Block, number: int = DEVICES) -> gluon.Block:
    net.initialize(mx.init.Xavier(), ctx=contexts(number), force_reinit=True)
    return net


@pytest.mark.parametrize("network", SEGMENTATION, ids=[network.name for network in SEGMENTATION])
def test_segmentation(network: Network, request):
    """One training step on two contexts is that of plain layers on one; inference is the same."""
    if network.name not in BY_DEFAULT and not request.config.getoption("--all-networks"):
        pytest.skip("needs --all-networks")
    one = OneDevice(network)
    expected = one.step(frozen=False)
    net = network.build(gluon_syncbn.SyncBatchNorm, DEVICES, num_devices=DEVICES)
    load(net, DEVICES, one.values)
    fused = gluon_syncbn.fuse(net)
    assert len(fused.fused) >= 0.7 * (len(fused.fused) + len(fused.left)), fused.left
    fused.hybridize(static_alloc=True)
    compare(train_step(fused, DEVICES, network.size, network.loss), expected, network.tolerance)
    x = mx.nd.random.normal(shape=(2, 3, network.size, network.size), dtype="float64")
    for ours, theirs in zip(fused(x), net(x)):
        size = np.abs(theirs.asnumpy()).max()
        np.testing.assert_allclose(ours.asnumpy(), theirs.asnumpy(), rtol=0, atol=1e-10 * size)


@pytest.mark.parametrize(("name", "sums"), [("resnet18_v1", 8), ("resnet18_v2", 0)])
def test_classification(name, sums):
    """ResNet with sums before the activation, and with sums before the norm."""
    net = quiet_initialize(get_model(name, classes=5))
    net(mx.nd.zeros((1, 3, 32, 32)))
    net.cast("float64")
    fused = gluon_syncbn.fuse(net, convert=True, num_devices=DEVICES)
    assert list(fused.fused.values()).count("sum and relu") == sums
    rng = np.random.default_rng(0)
    data = rng.standard_normal((2, 3, 3, 32, 32))
    results = []
    for each in (net, fused):
        with autograd.record():
            outs = [
                each(mx.nd.array(x, ctx=ctx, dtype="float64"))
                for x, ctx in zip(data, contexts(DEVICES))
            ]
            losses = [(out**2).sum() for out in outs]
        autograd.backward(losses)
        results.append([out.asnumpy() for out in outs])
        results[-1] += [p.list_grad()[0].asnumpy() for p in gradients_of(each)]
    for ours, theirs in zip(*results):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9 * np.abs(theirs).max())


def gradients_of(net: gluon.Block) -> list[gluon.Parameter]:
    parameters = sorted(net.collect_params().items())
    return [parameter for _, parameter in parameters if parameter.grad_req != "null"]


class Patterns(gluon.HybridBlock):
    """What can be fused, and what not."""

    def __init__(self, **norm) -> None:
        super().__init__(prefix="patterns_")
        with self.name_scope():
            for name in ("relu", "leaky", "elu", "sum", "right", "tanh", "twice", "head", "own"):
                options = {"activation": "relu"} if name == "own" else {}
                layer = gluon_syncbn.SyncBatchNorm(
                    in_channels=4, prefix=f"{name}_", **options, **norm
                )
                setattr(self, name, layer)

    def hybrid_forward(self, F, x, y):
        a = F.relu(self.relu(x))
        b = F.LeakyReLU(self.leaky(x), act_type="leaky", slope=0.1)
        c = F.LeakyReLU(self.elu(x), act_type="elu", slope=0.5)
        d = F.Activation(self.sum(a) + y, act_type="relu")
        e = F.Activation(y + self.right(self.tanh(b)), act_type="relu")
        tanh = F.tanh(self.tanh(c))
        twice = self.twice(d)
        head = self.head(e)
        return [tanh, (F.relu(twice) + twice, head), self.own(head)]


FUSED = {
    "relu": "relu",
    "leaky": "leaky",
    "elu": "elu",
    "sum": "sum and relu",
    "right": "sum and relu",
}


def patterns() -> Patterns:
    """The same values every time."""
    net = quiet_initialize(Patterns())
    rng = np.random.default_rng(1)
    for parameter in net.collect_params().values():
        parameter.set_data(mx.nd.array(rng.uniform(0.5, 1.5, parameter.shape)))
    return net


@pytest.mark.parametrize("mode", [None, {}, {"static_alloc": True}])
def test_what_is_fused(mode):
    fused = gluon_syncbn.fuse(patterns(), num_inputs=2)
    assert fused.fused == {f"patterns_{name}_fwd": what for name, what in FUSED.items()}
    assert {name.split("_")[1] for name in fused.left} == {"tanh", "twice", "head", "own"}
    if mode is not None:
        fused.hybridize(**mode)
    rng = np.random.default_rng(2)
    arrays = [[mx.nd.array(rng.normal(size=(3, 4, 5)), ctx=c) for _ in "xy"] for c in contexts(2)]
    results = []
    for net in (fused, patterns()):
        with autograd.record():
            outputs = [net(*pair) for pair in arrays]
            losses = [sum((leaf**2).sum() for leaf in leaves(each)) for each in outputs]
        autograd.backward(losses)
        assert [len(leaves(part)) for part in outputs[0]] == [1, 2, 1], "nested as before"
        found = [*leaves(outputs), *leaves(net(*arrays[0]))]
        for _, parameter in sorted(net.collect_params().items()):
            found += (
                parameter.list_data() if parameter.grad_req == "null" else parameter.list_grad()
            )
        results.append([array.asnumpy() for array in found])
    for ours, theirs in zip(*results):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def leaves(outputs):
    if isinstance(outputs, (list, tuple)):
        return [leaf for output in outputs for leaf in leaves(output)]
    return [outputs]


def small(norm=nn.BatchNorm) -> nn.HybridSequential:
    net = nn.HybridSequential(prefix="small_")
    with net.name_scope():
        net.add(nn.Conv2D(4, 3), norm(), nn.Activation("relu"), nn.Dense(2), norm())
    return net


def test_checkpoints_trainer_and_shapes_that_are_not_known_yet(tmp_path):
    net = quiet_initialize(small())
    fused = gluon_syncbn.fuse(net, convert=True)
    data = [mx.nd.random.normal(shape=(3, 3, 6, 6), ctx=c) for c in contexts(2)]
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    assert fused.collect_params().keys() == net.collect_params().keys()
    losses = []
    for _ in range(5):
        with autograd.record():
            parts = [((fused(x) - 1) ** 2).sum() for x in data]
        autograd.backward(parts)
        trainer.step(6)
        losses.append(sum(part.asscalar() for part in parts))
    assert losses[-1] < losses[0]
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


@pytest.mark.parametrize("plain", [False, True])
def test_export(tmp_path, plain):
    fused = gluon_syncbn.fuse(quiet_initialize(small()), convert=True)
    x = mx.nd.random.normal(shape=(3, 3, 6, 6))
    expected = fused(x).asnumpy()
    path = str(tmp_path / "net")
    gluon_syncbn.export(fused, path) if plain else fused.export(path)
    kinds = [node["op"] for node in json.loads((tmp_path / "net-symbol.json").read_text())["nodes"]]
    assert ("Custom" in kinds, "Activation" in kinds) == (not plain, plain)
    loaded = gluon.SymbolBlock.imports(f"{path}-symbol.json", ["data"], f"{path}-0000.params")
    np.testing.assert_allclose(loaded(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes(dtype):
    net = nn.HybridSequential()
    net.add(gluon_syncbn.SyncBatchNorm(in_channels=3), nn.Activation("relu"))
    quiet_initialize(net)
    net.cast(dtype)
    fused = gluon_syncbn.fuse(net)
    with autograd.record():
        outs = [fused(mx.nd.ones((2, 3, 4), ctx=c, dtype=dtype)) for c in contexts(2)]
    assert all(out.dtype == np.dtype(dtype) for out in outs)
    np.testing.assert_array_equal(outs[0].asnumpy(), np.zeros((2, 3, 4)))


def test_what_cannot_be_fused():
    with pytest.raises(ValueError, match="net=Sequential should be a HybridBlock"):
        gluon_syncbn.fuse(nn.Sequential())
    with pytest.raises(ValueError, match=r"num_devices=None.*not initialized"):
        gluon_syncbn.fuse(small(), convert=True)

    class LooksAtShapes(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return x.reshape(x.shape[0], -1)

    with pytest.raises(ValueError, match=r"looksatshapes0_? cannot be traced with 1 inputs"):
        gluon_syncbn.fuse(LooksAtShapes())
    with pytest.raises(ValueError, match="small cannot be traced with 2 inputs"):
        gluon_syncbn.fuse(quiet_initialize(small(gluon_syncbn.SyncBatchNorm)), num_inputs=2)
