"""Settings that a program changes later arrive, in layers and in the nodes of symbols."""

from __future__ import annotations

from pathlib import Path

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.norms import norms_of
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import nd, only_1, reset_ctx
from tests.support.networks import import_files, sequential
from tests.support.step import MODES

X = np.random.default_rng(0).normal(5, 2, (8, 4, 3)).astype("float32")
KINDS = ["imperative", "hybridized", "imported"]


def make(norm, kind: str, folder: Path, number: int = 4) -> gluon.Block:
    net = sequential(norm)
    net.initialize(ctx=contexts(number))
    if kind == "imperative":
        return net
    net.hybridize()
    if kind == "imported":
        net(nd.array(X, ctx=contexts(1)[0]))
        net.export(str(folder / "net"))
        net = import_files(folder / "net", contexts(number))
    return net


def outputs(net, ctx) -> np.ndarray:
    parts = np.split(X, len(ctx))
    with autograd.record():
        outs = [net(nd.array(part, ctx=each)) for part, each in zip(parts, ctx)]
    return np.concatenate([out.asnumpy() for out in outs])


def check(net, number: int, groups: int = 1, epsilon: float = 1e-5) -> None:
    """A training step on so many contexts is one device for each group."""
    x = np.stack(np.split(X.astype("float64"), groups))
    mean, var = x.mean((1, 3), keepdims=True), x.var((1, 3), keepdims=True)
    expected = ((x - mean) / np.sqrt(var + epsilon)).reshape(X.shape)
    np.testing.assert_allclose(outputs(net, contexts(number)), expected, atol=1e-5)


@pytest.mark.parametrize("norm", [nn.BatchNorm, gluon_syncbn.SyncBatchNorm])
@pytest.mark.parametrize("kind", KINDS)
def test_a_conversion_sets_what_it_is_given_and_defaults(kind, norm, tmp_path):
    net = make(norm(in_channels=4), kind, tmp_path)
    gluon_syncbn.convert_sync_batchnorm(net, sync_group_size=2)
    reset_ctx(net, contexts(1))
    np.testing.assert_allclose(net(nd.array(X)).asnumpy(), X, rtol=1e-4)
    reset_ctx(net, contexts(4))
    for sizes in ([], [2], [1], [], [4], []):
        gluon_syncbn.convert_sync_batchnorm(net, None, *sizes)
        check(net, 4, groups=4 // sizes[0] if sizes else 1)
    gluon_syncbn.convert_sync_batchnorm(net, num_devices=2)
    reset_ctx(net, contexts(2))
    check(net, 2)
    with pytest.raises(ValueError, match="sync_group_size=3 should divide num_devices=2"):
        outputs(gluon_syncbn.convert_sync_batchnorm(net, sync_group_size=3), contexts(2))
    gluon_syncbn.convert_sync_batchnorm(net)
    check(net, 2)
    gluon_syncbn.convert_sync_batchnorm(net, num_devices=0)  # as many as there are GPUs
    reset_ctx(net, contexts(1))
    check(net, 1)


def symbol_block(operator=None, **attributes) -> gluon.SymbolBlock:
    """A norm that has neither shapes nor contexts."""
    operator = operator or mx.sym.Custom
    net = gluon.SymbolBlock(
        operator(mx.sym.var("data"), name="bn", **attributes), mx.sym.var("data")
    )
    for name, parameter in net.collect_params().items():
        parameter.shape = (4,)
        parameter.init = "ones" if name.endswith(("gamma", "var")) else "zeros"
    return net


OURS = {"op_type": "SyncBatchNorm", "key": "bn", "scope": "graph", "eps": 1e-5}


@only_1
def test_a_node_may_say_none():
    net = symbol_block(**OURS, sync_group_size=None, process_set=-1)
    net.initialize(ctx=contexts(4))
    gluon_syncbn.convert_sync_batchnorm(net)
    assert norms_of(net)[0].sync_group_size is None
    check(net, 4)


@only_1
@pytest.mark.parametrize(
    "attributes", [{**OURS, "num_devices": None}, {"operator": mx.sym.BatchNorm, "eps": 1e-5}]
)
def test_groups_before_there_are_contexts(attributes):
    net = symbol_block(**attributes)
    gluon_syncbn.convert_sync_batchnorm(net, sync_group_size=2)
    net.initialize(ctx=contexts(4))
    gluon_syncbn.convert_sync_batchnorm(net, sync_group_size=2)
    check(net, 4, groups=2)


@only_1
def test_a_conversion_that_fails_changes_nothing():
    net = sequential(
        symbol_block(mx.sym.BatchNorm), symbol_block(**OURS, process_set=0), nn.BatchNorm()
    )
    with pytest.raises(ValueError, match="cannot be combined with other processes"):
        gluon_syncbn.convert_sync_batchnorm(net, sync_group_size=1)
    assert [norm.kind for norm in norms_of(net)] == ["BatchNorm", "Custom", "BatchNorm"]
    assert norms_of(net)[1].sync_group_size is None


@only_1
def test_groups_that_do_not_fit_a_fused_network():
    net = sequential(
        gluon_syncbn.SyncBatchNorm(in_channels=4, sync_group_size=2), nn.Activation("relu")
    )
    net.initialize(ctx=contexts(4))
    fused = gluon_syncbn.fuse(net)
    reset_ctx(fused, contexts(3))
    with pytest.raises(ValueError, match="fwd: sync_group_size=2 should divide num_devices=3"):
        fused.hybridize()
    reset_ctx(fused, contexts(1))
    fused.hybridize()
    expected = np.maximum(X, 0)
    np.testing.assert_allclose(fused(nd.array(X)).asnumpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("norm", [nn.BatchNorm, gluon_syncbn.SyncBatchNorm])
@pytest.mark.parametrize("mode", MODES)
def test_a_layer_that_changes_within_a_network(mode, norm):
    net = sequential(sequential(norm(in_channels=4)))
    gluon_syncbn.convert_sync_batchnorm(net)
    net.initialize(ctx=contexts(2))
    net.hybridize(**MODES[mode])
    layer, other = net[0][0], nn.BatchNorm(in_channels=4)
    other.initialize()
    other.hybridize()
    other(nd.array(X))
    graph = other._cached_op
    check(net, 2)
    layer.epsilon = 100.0
    check(net, 2, epsilon=100.0)
    layer.epsilon = 1e-5
    layer.sync_group_size = 1
    check(net, 2, groups=2)
    layer.sync_group_size = None
    layer.momentum = 0.0
    check(net, 2)
    mean = layer.running_mean.data(contexts(1)[0]).asnumpy()
    np.testing.assert_allclose(mean, X.mean((0, 2)), rtol=1e-5)
    layer.running_mean.set_data(nd.zeros(4))
    layer.running_var.set_data(nd.ones(4))
    layer.use_global_stats = np.bool_(1)
    np.testing.assert_allclose(outputs(net, contexts(2)), X, rtol=1e-4)
    assert other._cached_op is graph, "networks without the layer keep their graphs"
    graph = net._cached_op
    layer.use_global_stats = True
    assert net._cached_op is graph, "so do those of a layer that does not change"
    layer.use_global_stats = False
    layer.epsilon = 3
    check(net, 2, epsilon=3)
    with pytest.raises(ValueError, match="epsilon=-1 should be a number of at least 0"):
        layer.epsilon = -1
    gluon_syncbn.revert_sync_batchnorm(net)
    assert "eps=3, momentum=0.0, fix_gamma=False, use_global_stats=False" in repr(layer)


@only_1
@pytest.mark.parametrize("plain", [False, True])
def test_files_say_nothing_of_frozen_parameters(plain, tmp_path):
    net = make(nn.BatchNorm(in_channels=4), "hybridized", tmp_path)
    gluon_syncbn.convert_sync_batchnorm(net)
    for parameter in net.collect_params().values():
        parameter.grad_req = "null"
    net(nd.array(X))
    (gluon_syncbn if plain else type(net)).export(net, str(tmp_path / "net"))
    assert "frozen" not in (tmp_path / "net-symbol.json").read_text()
