"""update_statistics makes running statistics those of a whole data set."""

from __future__ import annotations

import sys

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.norms import norms_of
from mxnet import gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import HybridBlock, nd, numpy_interface, only_1


class TwoUses(HybridBlock):
    """One norm for two arrays, and one for what it makes of them."""

    def __init__(self, **options) -> None:
        super().__init__()
        with self.name_scope():
            self.norm = gluon_syncbn.SyncBatchNorm(**options)
            self.last = gluon_syncbn.SyncBatchNorm()

    def hybrid_forward(self, F, x):
        return self.last(self.norm(x) + self.norm(3 * x - 1))


def data_of(number: int) -> np.ndarray:
    rng = np.random.default_rng(number)
    return rng.normal(100, 2, (number, 3, 4, 5)).astype("float32") * rng.uniform(
        1, 2, (number, 1, 1, 1)
    )


def loader(data: np.ndarray, batch_size: int) -> gluon.data.DataLoader:
    return gluon.data.DataLoader(
        gluon.data.ArrayDataset(data.astype("float32"), np.arange(len(data))), batch_size
    )


def statistics(layer, ctx) -> list[np.ndarray]:
    found = []
    for parameter in (layer.running_mean, layer.running_var):
        first, *others = [array.asnumpy() for array in parameter.list_data()]
        assert all((first == other).all() for other in others)
        assert len(others) == len(ctx) - 1
        found.append(first)
    return found


@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"sync_group_size": 1}], ids=str)
@pytest.mark.parametrize("mode", [None, {}, {"static_alloc": True}])
def test_they_are_those_of_the_data_set(options, mode):
    """Batches of 4, 4 and 3 images on three devices, and one more that joins the last of them."""
    ctx, data = contexts(3), data_of(12)
    net = TwoUses(**options)
    net.initialize(ctx=ctx)
    if mode is not None:
        net.hybridize(**mode)
    before = net(nd.array(data)).asnumpy()
    net.norm.running_mean.set_data(nd.full(3, np.nan))  # whatever they were before
    batches = [nd.array(part) for part in np.split(data, [4, 8, 11])]
    gluon_syncbn.update_statistics(net, batches, ctx)
    seen = np.concatenate([data, 3 * data - 1]).astype(np.float64)
    mean, var = statistics(net.norm, ctx)
    np.testing.assert_allclose(mean, seen.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(var, seen.var((0, 2, 3)), rtol=1e-5)
    # The last norm's input depends on the batch, so one device has to see the same batches.
    one = TwoUses(**options)
    one.initialize(ctx=contexts(1))
    one(nd.array(data))
    if "sync_group_size" not in options:
        parts = [nd.array(part) for part in np.split(data, [4, 8])]
        gluon_syncbn.update_statistics(one, parts)
        for ours, theirs in zip(statistics(net.last, ctx), statistics(one.last, ctx[:1])):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    after = net(nd.array(data)).asnumpy()
    assert np.abs(after - before).max() > 0.1, "a compiled network predicts with the new ones"
    assert net.norm.momentum == options.get("momentum", 0.9)
    if net.norm.momentum is None:
        assert net.norm.num_batches_tracked.data(ctx[2]).asnumpy().item() == 6


@pytest.mark.parametrize("interface", [pytest.param(False, marks=only_1), True])
def test_a_loader_of_data_and_labels(interface):
    """Batches of 4, 4 and 1 images: the last one joins the one before it."""
    ctx, data = contexts(2), data_of(9)
    with numpy_interface(interface):
        layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
        layer.initialize(ctx=ctx)
        gluon_syncbn.update_statistics(layer, loader(data, 4))
        mean, var = statistics(layer, ctx)
    np.testing.assert_allclose(mean, data.astype(np.float64).mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(var, data.astype(np.float64).var((0, 2, 3)), rtol=1e-5)


def refilled(parts):
    """One array for all batches, as a program has that saves memory."""
    array = nd.array(parts[0])
    for part in parts:
        array[:] = nd.array(part)
        yield array


@pytest.mark.parametrize("kind", ["refilled", pytest.param("DataIter", marks=only_1)])
def test_a_loader_that_reuses_or_pads_its_arrays(kind):
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=contexts(2))
    data = data_of(10)
    if kind == "refilled":
        data = data[:8]
        batches = refilled(np.split(data, 4))
    else:
        batches = mx.io.NDArrayIter(data.astype("float32"), np.arange(10), 4)
        list(batches)  # an epoch of training
    gluon_syncbn.update_statistics(layer, batches)
    mean, var = statistics(layer, contexts(2))
    np.testing.assert_allclose(mean, data.astype(np.float64).mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(var, data.astype(np.float64).var((0, 2, 3)), rtol=1e-5)


class Fails(HybridBlock):
    """Its second call fails, while the first device waits for the second."""

    calls = 0

    def hybrid_forward(self, F, x):
        self.calls += 1
        if self.calls == 2:
            raise ValueError("no luck")
        return x


def interrupted():
    yield nd.array(data_of(4))
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("first", "last", "batches", "error", "message"),
    [
        ([], [], interrupted, KeyboardInterrupt, ""),
        (
            [],
            [],
            lambda: [nd.ones((1, 3, 2, 2))],
            ValueError,
            "loader has 1 images where at least 2",
        ),
        ([], [], lambda: ["image.png"], TypeError, "batch 0 of loader begins with str, no array"),
        ([Fails], [], lambda: loader(data_of(8), 4), ValueError, "no luck"),
        (
            [],
            [lambda: nn.Dense(4), gluon_syncbn.SyncBatchNorm],
            lambda: loader(data_of(8), 4),
            gluon.parameter.DeferredInitializationError,
            "",
        ),
    ],
)
@pytest.mark.parametrize("others", [False, True], ids=["alone", "processes"])
def test_what_goes_wrong_changes_nothing(first, last, batches, error, message, others, monkeypatch):
    take_part = "gluon_syncbn.statistics.whole_data_set.other_processes_take_part"
    monkeypatch.setattr(take_part, lambda: others)
    norms = [
        gluon_syncbn.SyncBatchNorm(in_channels=3),
        gluon_syncbn.SyncBatchNorm(in_channels=3, momentum=None),
    ]
    net = nn.HybridSequential()
    net.add(*(make() for make in first), *norms, *(make() for make in last))
    net.initialize(ctx=contexts(2))
    net.hybridize()
    norms[0].running_mean.set_data(nd.ones(3) * 7)

    def state() -> list[bytes]:
        parameters = (p for norm in norms for p in norm._reg_params.values())
        return [array.asnumpy().tobytes() for p in parameters for array in p.list_data()]

    before = state()
    with pytest.raises(error, match=message):
        gluon_syncbn.update_statistics(net, batches())
    assert state() == before
    assert net._active
    assert [norm.momentum for norm in norms] == [0.9, None]


def test_norms_of_other_kinds():
    net = nn.HybridSequential()
    net.add(
        nn.BatchNorm(in_channels=3),
        gluon_syncbn.SyncBatchNorm(in_channels=3, use_global_stats=True),
    )
    net.initialize(ctx=contexts(2))
    with pytest.raises(ValueError, match="has no SyncBatchNorm that gathers statistics"):
        gluon_syncbn.update_statistics(net, [])
    net.add(gluon_syncbn.SyncBatchNorm(in_channels=3))
    net[2].initialize(ctx=contexts(2))
    with pytest.warns(UserWarning, match=f"{norms_of(net)[0].name} keeps its statistics"):
        gluon_syncbn.update_statistics(net, [nd.array(data_of(4))])
    assert (net[1].running_mean.data(contexts(1)[0]).asnumpy() == 0).all()


@pytest.mark.parametrize("installed", [False, True])
def test_progress(installed, monkeypatch, capsys):
    if installed:
        pytest.importorskip("tqdm")
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=contexts(1))
    if not installed:
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    gluon_syncbn.update_statistics(layer, loader(data_of(4), 2))
    assert ("running statistics: 100%" in capsys.readouterr().err) == installed
    gluon_syncbn.update_statistics(layer, loader(data_of(4), 2), progress=False)
    assert not capsys.readouterr().err


def test_a_layer_that_is_not_called_keeps_its_statistics_and_is_named():
    net = TwoUses(in_channels=3)
    net.unused = gluon_syncbn.SyncBatchNorm(in_channels=3)
    net.initialize(ctx=contexts(2))
    net(nd.array(data_of(1)))
    named = f"{norms_of(net)[-1].name} keeps its statistics: no batch of loader has reached it"
    with pytest.warns(UserWarning, match=named) as warned:
        gluon_syncbn.update_statistics(net, [nd.array(data_of(4))])
    assert sum("keeps its statistics" in str(each.message) for each in warned) == 1
    mean, var = statistics(net.unused, contexts(2))
    assert (mean == 0).all()
    assert (var == 1).all()
