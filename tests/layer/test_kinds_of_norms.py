"""A norm is a layer or a node of a symbol: every public function meets both, in any mixture."""

from __future__ import annotations

import copy
import logging
import warnings

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.mxnet_versions import IS_2, PLAIN_NORMS
from gluon_syncbn.norms import norms_of
from gluon_syncbn.statistics.gathering import Moments
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import HybridBlock, nd, only_1, reset_ctx
from tests.support.networks import check_files, import_files, sequential
from tests.support.oracle import normalize, relative_error

X = np.random.default_rng(0).normal(5, 2, (4, 4, 3, 3)).astype("float32")
SHARDS = (1, 3)


class Twice(HybridBlock):
    """Two uses of one norm, or of two norms that share their parameters."""

    def __init__(self, layers: int) -> None:
        super().__init__(prefix="")
        with self.name_scope():
            self.first = self.second = nn.BatchNorm(in_channels=4)
            if layers == 2 and IS_2:
                self.second = nn.BatchNorm(in_channels=4)
                self.second.share_parameters(self.first.collect_params())
            elif layers == 2:
                self.second = nn.BatchNorm(in_channels=4, params=self.first.params)

    def hybrid_forward(self, F, x):
        return self.first(x) + self.second(3 * x - 1)


def sequence(*blocks: gluon.Block) -> gluon.Block:
    net = sequential(*blocks, nn.Activation("relu"))
    for each in net:
        if not isinstance(each, gluon.SymbolBlock):  # which has its values
            each.initialize(ctx=contexts(2))
    return net


def imported(net: gluon.Block, folder) -> gluon.Block:
    net.initialize()
    net.hybridize()
    net(nd.array(X))
    net.export(str(folder / "net"))
    return import_files(folder / "net", contexts(2))


def norm() -> gluon.Block:
    return nn.BatchNorm(in_channels=4)


def of_contrib() -> gluon.Block:
    return PLAIN_NORMS[1](in_channels=4, num_devices=1)


def quietly_fused(folder) -> gluon.Block:
    return gluon_syncbn.fuse(sequence(imported(norm(), folder)), convert=True)


def copied(folder) -> gluon.Block:
    net = copy.deepcopy(sequence(norm(), imported(norm(), folder)))
    reset_ctx(net, contexts(2))  # MXNet's copies of arrays are on cpu(0)
    return net


ONE, TWO, CHAIN = "one norm", "two uses", "one after the other"
KINDS = {
    "layer": (ONE, lambda _: sequence(norm())),
    "node": (ONE, lambda folder: sequence(imported(norm(), folder))),
    "layer and node": (CHAIN, lambda folder: sequence(norm(), imported(of_contrib(), folder))),
    "layer used twice": (TWO, lambda _: sequence(Twice(1))),
    "layers that share": (TWO, lambda _: sequence(Twice(2))),
    "nodes that share": (TWO, lambda folder: sequence(imported(Twice(1), folder))),
    "fused": (ONE, quietly_fused),
    "copied": (CHAIN, copied),
}
ALL = pytest.mark.parametrize(
    "kind",
    [pytest.param(each, marks=only_1 if each in ("fused", "copied") else ()) for each in KINDS],
)


def make(kind: str, folder, **options) -> gluon.Block:
    net = KINDS[kind][1](folder)
    gluon_syncbn.convert_sync_batchnorm(net, **options)
    return net


def outputs(net: gluon.Block) -> np.ndarray:
    """Those in training. Without a backward pass, BatchNorm keeps its statistics."""
    parts = np.split(X, [SHARDS[0]])
    with autograd.record():
        outs = [net(nd.array(part, ctx=ctx)) for part, ctx in zip(parts, contexts(2))]
    return np.concatenate([out.asnumpy() for out in outs])


def expected_output(shape: str, x: np.ndarray = X) -> np.ndarray:
    x = x.astype("float64")
    out = {
        ONE: lambda: normalize(x),
        TWO: lambda: normalize(x) + normalize(3 * x - 1),
        CHAIN: lambda: normalize(normalize(x)),
    }[shape]()
    return np.maximum(out, 0)


def statistics(net: gluon.Block) -> list[list[np.ndarray]]:
    """The running mean and variance of each norm, on each device."""
    return [
        [array.asnumpy() for array in parameter.list_data()]
        for each in norms_of(net)
        for parameter in (each.running_mean, each.running_var)
    ]


@ALL
@pytest.mark.parametrize("hybridize", [False, True])
def test_convert(kind, hybridize, tmp_path):
    if IS_2 and hybridize and "node" in kind:
        pytest.skip("MXNet 2 has no SymbolBlocks in hybridized networks")
    net = KINDS[kind][1](tmp_path)
    net.hybridize(hybridize)
    outputs(net)  # a graph that the conversion drops
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        gluon_syncbn.convert_sync_batchnorm(net)
    assert all(each.is_synchronized for each in norms_of(net))
    assert relative_error(outputs(net), expected_output(KINDS[kind][0])) < 1e-5
    for values in statistics(net):
        np.testing.assert_array_equal(values[0], values[1])


@ALL
def test_revert(kind, tmp_path):
    net = make(kind, tmp_path)
    gluon_syncbn.revert_sync_batchnorm(net)
    assert not any(each.is_synchronized for each in norms_of(net))
    # Without synchronization each device normalizes its shard.
    alone = [expected_output(KINDS[kind][0], part) for part in np.split(X, [SHARDS[0]])]
    assert relative_error(outputs(net), np.concatenate(alone)) < 1e-5


@ALL
@pytest.mark.parametrize("sync_group_size", [None, 1])
def test_update_statistics(kind, sync_group_size, tmp_path):
    """Batches of 3 and 4 images: the last norms see both batches as one device would."""
    net = make(kind, tmp_path, sync_group_size=sync_group_size)
    data = np.concatenate([X, 10 + 3 * X[:3]])
    batches = [data[:3], data[3:]]
    gluon_syncbn.update_statistics(net, map(nd.array, batches))
    first = data.astype("float64")
    if KINDS[kind][0] == TWO:
        first = np.concatenate([first, 3 * first - 1])
    found = statistics(net)
    for values in found:
        np.testing.assert_array_equal(values[0], values[1])
    np.testing.assert_allclose(found[0][0], first.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(found[1][0], first.var((0, 2, 3)), rtol=1e-5)
    if KINDS[kind][0] == CHAIN and sync_group_size is None:
        last = np.concatenate([normalize(each.astype("float64")) for each in batches])
        np.testing.assert_allclose(found[2][0], last.mean((0, 2, 3)), atol=1e-5)
        np.testing.assert_allclose(found[3][0], last.var((0, 2, 3)), rtol=1e-5)


@ALL
def test_failed_update_statistics_change_nothing(kind, tmp_path):
    net = make(kind, tmp_path)
    outputs(net)
    before = statistics(net)
    with pytest.raises(TypeError, match="batch 1 of loader begins with int"):
        gluon_syncbn.update_statistics(net, [nd.array(X), 3])
    np.testing.assert_array_equal(statistics(net), before)
    assert relative_error(outputs(net), expected_output(KINDS[kind][0])) < 1e-5


@ALL
@pytest.mark.parametrize("converted", [False, True])
def test_average_statistics(kind, converted, tmp_path):
    net = make(kind, tmp_path) if converted else KINDS[kind][1](tmp_path)
    for each in norms_of(net):
        for parameter in (each.running_mean, each.running_var):
            for array, value in zip(parameter.list_data(), (1, 4)):
                array[:] = value
    gluon_syncbn.average_statistics(net)
    assert (np.array(statistics(net)) == 2.5).all()


@ALL
def test_check_in_sync(kind, tmp_path):
    net = make(kind, tmp_path, sync_group_size=1)
    outputs(net)
    found = gluon_syncbn.check_in_sync(net)
    ours = {id(p) for each in norms_of(net) for p in (each.running_mean, each.running_var)}
    assert {*found} == {name for name, p in net.collect_params().items() if id(p) in ours}
    assert all(
        "expected with sync_group_size=1: each group agrees" in text for text in found.values()
    )


@ALL
def test_export(kind, tmp_path):
    net = make(kind, tmp_path)
    outputs(net)
    if IS_2 and "node" in kind:
        pytest.skip("MXNet 2 has no SymbolBlocks in hybridized networks")
    net.hybridize()
    x = nd.array(X, ctx=contexts(2)[0])
    expected = net(x).asnumpy()
    gluon_syncbn.export(net, tmp_path / "plain")
    plain = check_files(tmp_path / "plain", x, expected)
    assert norms_of(plain)
    assert not any(each.is_synchronized for each in norms_of(plain))


@only_1
@ALL
def test_fuse(kind, tmp_path):
    net = KINDS[kind][1](tmp_path)
    if kind != "fused":
        with pytest.warns(UserWarning, match=r"not fused: fuse\(net, convert=True\)"):
            fused = gluon_syncbn.fuse(net)
        assert fused.fused == []
        assert {reason for _, reason in fused.left} == {"is no SyncBatchNorm"}
    fused = gluon_syncbn.fuse(net, convert=True)
    assert not any(reason == "is no SyncBatchNorm" for _, reason in fused.left)
    assert relative_error(outputs(fused), expected_output(KINDS[kind][0])) < 1e-5


def test_nodes_that_stay():
    data = mx.sym.var("data")
    norm = mx.sym.BatchNorm(data, output_mean_var=True, name="both")
    net = gluon.SymbolBlock(mx.sym.BatchNorm(norm[0] + norm[1].sum(), name="bn"), data)
    with pytest.warns(UserWarning, match="^both is left as it is: BatchNorm returns its mean"):
        gluon_syncbn.convert_sync_batchnorm(net, num_devices=2)
    assert [(each.name, each.is_synchronized) for each in norms_of(net)] == [
        ("both", False),
        ("bn", True),
    ]


@only_1
def test_symbols_with_other_inputs():
    """The norm reads one of two inputs, and a parameter whose shape it does not determine."""
    data, other, place = (mx.sym.var(name) for name in ("data", "other", "place"))
    norm = mx.sym.BatchNorm(mx.sym.broadcast_add(data, place), fix_gamma=False)
    net = gluon.SymbolBlock(norm + other, [data, other])
    for name, parameter in net.collect_params().items():
        parameter.shape = (1, 4, 1, 1) if name == "place" else (4,)
    net.initialize(ctx=contexts(2))
    whole = nn.HybridLambda(lambda F, x: net(x, x))
    whole.register_child(net)
    gluon_syncbn.convert_sync_batchnorm(whole)
    outputs(whole)
    gluon_syncbn.update_statistics(whole, [nd.array(X)])
    (mean, _), _ = statistics(whole)
    place = net.collect_params()["place"].data(contexts(2)[0]).asnumpy()
    np.testing.assert_allclose(mean, (X + place).astype("float64").mean((0, 2, 3)), rtol=1e-6)


@only_1
def test_statistics_that_are_inputs():
    """They are not parameters of the network."""
    data, mean = mx.sym.var("data"), mx.sym.var("mean")
    net = gluon.SymbolBlock(mx.sym.BatchNorm(data, moving_mean=mean), [data, mean])
    assert norms_of(net) == []


def test_norms_that_share_statistics_with_a_plain_one(monkeypatch):
    """Other processes add theirs, whichever comes first."""
    monkeypatch.setattr(gluon_syncbn.processes, "default", lambda: 5)
    net = Twice(2)
    gluon_syncbn.convert_sync_batchnorm(net.second)
    assert [each.is_synchronized for each in norms_of(net)] == [False, True]
    net.initialize(ctx=contexts(2))
    assert Moments(norms_of(net)).process_set == 5


def test_groups_that_do_not_fit_the_contexts(tmp_path):
    net = KINDS["layer and node"][1](tmp_path)
    net.add(imported(norm(), tmp_path))
    reset_ctx(net[-1], contexts(3))
    with pytest.raises(ValueError, match="sync_group_size=3 should divide num_devices=2"):
        gluon_syncbn.convert_sync_batchnorm(net, sync_group_size=3)
    assert not any(each.is_synchronized for each in norms_of(net))


def test_nodes_are_logged(tmp_path, caplog):
    net = KINDS["layer and node"][1](tmp_path)
    names = [each.name for each in norms_of(net)]
    with caplog.at_level(logging.INFO, logger="gluon_syncbn"):
        gluon_syncbn.convert_sync_batchnorm(net)
        gluon_syncbn.revert_sync_batchnorm(net)
    assert all(": 2 norms: " in record.message for record in caplog.records)
    assert all(name in caplog.text for name in names)


def test_load_torch(tmp_path):
    state = {"bn.weight": np.arange(4), "bn.bias": np.ones(4)}
    state.update({"bn.running_mean": np.ones(4), "bn.running_var": np.ones(4)})
    net = make("node", tmp_path)
    gluon_syncbn.load_torch(net, state)
    gammas = [p for name, p in net.collect_params().items() if name.endswith("gamma")]
    assert (gammas[0].list_data()[1].asnumpy() == np.arange(4)).all()
    layers = sequential(nn.Dense(4), norm())
    with pytest.raises(ValueError, match=r"^net has "):
        gluon_syncbn.load_torch(imported(layers, tmp_path), state)
