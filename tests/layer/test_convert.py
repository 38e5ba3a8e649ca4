"""Networks made of plain layers become synchronized ones, and back, in place."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import contrib, nn

from tests.conftest import contexts
from tests.support.whole_batch import norm_layers


class Nested(gluon.HybridBlock):
    """Norm layers as attributes, in a Sequential, in a list registered by hand, and shared."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.first = nn.BatchNorm(momentum=0.7, epsilon=1e-4)
            self.body = nn.HybridSequential()
            self.body.add(nn.Dense(4, flatten=False), nn.BatchNorm(axis=-1, scale=False))
            self.listed = [nn.BatchNorm(), contrib.nn.SyncBatchNorm(num_devices=1)]
            for index, layer in enumerate(self.listed):
                self.register_child(layer, f"listed{index}")
            self.again = self.first

    def hybrid_forward(self, F, x):
        x = self.again(self.body(self.first(x)))
        for layer in self.listed:
            x = layer(x)
        return x


def train(net, ctx) -> np.ndarray:
    x = mx.nd.array(np.random.default_rng(0).standard_normal((4, 4, 4)) * 3 + 1)
    with autograd.record():
        outs = [net(part) for part in gluon.utils.split_and_load(x, ctx, even_split=False)]
    return np.concatenate([out.asnumpy() for out in outs])


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("initialized", [False, True])
def test_convert_and_revert(hybridize, initialized):
    one, many = Nested(), Nested()
    if hybridize:
        many.hybridize()
    if initialized:
        many.initialize(ctx=contexts(2))
        many(mx.nd.ones((2, 4, 4)))  # builds graphs with the plain layers in them
    parameters = dict(many.collect_params().items())
    classes = [type(layer) for layer in norm_layers(many)]
    assert gluon_syncbn.convert_sync_batchnorm(many) is many
    assert all(type(layer) is gluon_syncbn.SyncBatchNorm for layer in norm_layers(many))
    assert many.again is many.first
    assert many.listed[0] in many._children.values()
    after = many.collect_params()
    assert list(after.keys()) == list(parameters)
    assert all(after[name] is parameter for name, parameter in parameters.items())
    assert "momentum=0.7" in repr(many.first)

    one.initialize(mx.init.One())
    many.initialize(mx.init.One(), ctx=contexts(2), force_reinit=True)
    np.testing.assert_allclose(train(many, contexts(2)), train(one, contexts(1)), atol=1e-4)

    keys = [layer.key for layer in norm_layers(many)]
    gluon_syncbn.convert_sync_batchnorm(many)
    assert [layer.key for layer in norm_layers(many)] == keys, "converting again changes nothing"
    many.first._kwargs["use_global_stats"] = True
    gluon_syncbn.revert_sync_batchnorm(many)
    gluon_syncbn.revert_sync_batchnorm(many)
    assert [type(layer) for layer in norm_layers(many)] == classes
    assert many.first._kwargs["use_global_stats"] is True, "what is frozen stays that"
    many(mx.nd.ones((2, 4, 4)))


def test_layers_of_other_classes_are_left_and_named():
    class Special(nn.BatchNorm):
        pass

    net = nn.HybridSequential()
    net.add(Special(), nn.BatchNormReLU(), nn.BatchNorm())
    with pytest.warns(UserWarning, match="is no plain BatchNorm") as caught:
        gluon_syncbn.convert_sync_batchnorm(net)
    assert [str(warning.message).split(" is left")[0] for warning in caught] == [
        net[0].name,
        net[1].name,
    ]
    assert [type(layer) for layer in net] == [Special, nn.BatchNormReLU, gluon_syncbn.SyncBatchNorm]


def test_symbols_are_left_and_named(tmp_path):
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(in_channels=3), contrib.nn.SyncBatchNorm(in_channels=3, num_devices=1))
    net.initialize()
    net.hybridize()
    net(mx.nd.ones((2, 3)))
    net.export(str(tmp_path / "net"))
    traced = gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"])
    whole = nn.HybridSequential()
    whole.add(traced)
    with pytest.warns(UserWarning, match=f"{traced.name} is left as it is: 2 BatchNorm nodes"):
        gluon_syncbn.convert_sync_batchnorm(whole)


@pytest.mark.parametrize(
    "function", [gluon_syncbn.convert_sync_batchnorm, gluon_syncbn.revert_sync_batchnorm]
)
def test_what_is_no_network_is_refused(function):
    with pytest.raises(TypeError, match=r"net=3 should be a gluon\.Block"):
        function(3)


def test_what_was_done_is_logged(caplog):
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(), nn.Dense(2), nn.BatchNorm())
    with caplog.at_level("INFO", logger="gluon_syncbn"):
        gluon_syncbn.convert_sync_batchnorm(net)
    assert f"2 layers: {net[0].name}, {net[2].name}" in caplog.text


@pytest.mark.parametrize("mode", [{}, {"static_alloc": True}])
def test_a_part_of_a_network_that_has_run(mode):
    """The network's own graph still has the plain layer in it, and cannot be reached from there."""
    net = nn.HybridSequential()
    net.add(nn.HybridSequential(), nn.Activation("relu"))
    net[0].add(nn.BatchNorm(in_channels=4))
    net.initialize(ctx=contexts(2))
    other = nn.HybridSequential()
    other.add(nn.BatchNorm(in_channels=4))
    other.initialize(ctx=contexts(2))
    for each in (net, other):
        each.hybridize(**mode)
        train(each, contexts(2))
    graph = other._cached_op
    one = nn.BatchNorm(in_channels=4)
    one.initialize(ctx=contexts(1))
    expected = np.maximum(train(one, contexts(1)), 0)
    gluon_syncbn.convert_sync_batchnorm(net[0])
    np.testing.assert_allclose(train(net, contexts(2)), expected, atol=1e-5)
    assert other._cached_op is graph, "networks without these layers keep their graphs"
    gluon_syncbn.revert_sync_batchnorm(net[0])
    assert np.abs(train(net, contexts(2)) - expected).max() > 1e-2


def trained(kind: str, folder) -> gluon.Block:
    """A network that has trained on the first two contexts."""
    net = nn.HybridSequential()
    net.add(gluon_syncbn.SyncBatchNorm(in_channels=4), nn.Activation("relu"))
    net.initialize(ctx=contexts(2))
    if kind == "fused":
        net = gluon_syncbn.fuse(net)
    if kind != "imperative":
        net.hybridize()
    train(net, contexts(2))
    if kind == "imported":
        net.export(str(folder / "net"))
        files = (str(folder / "net-symbol.json"), ["data"], str(folder / "net-0000.params"))
        net = gluon.SymbolBlock.imports(*files, ctx=contexts(2))
        train(net, contexts(2))
    return net


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("kind", ["imperative", "hybridized", "fused", "imported"])
def test_other_contexts(kind, number, tmp_path):
    net = trained(kind, tmp_path)
    with autograd.record():  # outputs on the old contexts stay in use
        old = [net(mx.nd.ones((1, 4, 4), ctx=c)) for c in contexts(2)]
    moved = contexts(5)[2 : 2 + number]
    net.collect_params().reset_ctx(moved)
    if kind == "imported":
        gluon_syncbn.convert_sync_batchnorm(net)
    elif kind != "imperative":
        net.hybridize()
    one = nn.BatchNorm(in_channels=4)
    one.initialize(ctx=contexts(1))
    expected = np.maximum(train(one, contexts(1)), 0)
    np.testing.assert_allclose(train(net, moved), expected, atol=1e-5)
    assert len(old) == 2
