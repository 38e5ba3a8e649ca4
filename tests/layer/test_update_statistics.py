"""update_statistics makes running statistics those of a whole data set."""

from __future__ import annotations

import sys
import warnings

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.mxnet_versions import IS_2
from gluon_syncbn.norms import norms_of
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import HybridBlock, nd, numpy_interface, only_1
from tests.support.networks import import_files, sequential
from tests.support.step import MODES
from tests.support.two_devices import make_layer


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


def statistics(layer) -> list[np.ndarray]:
    """Mean and variance, which are the same on all contexts."""
    found = []
    for parameter in (layer.running_mean, layer.running_var):
        first, *others = [array.asnumpy() for array in parameter.list_data()]
        assert all((first == other).all() for other in others)
        found.append(first)
    return found


def require_statistics(layer, data: np.ndarray, rtol: float = 1e-6) -> None:
    """The statistics of a layer are those of the data."""
    mean, var = statistics(layer)
    data = data.astype(np.float64)
    np.testing.assert_allclose(mean, data.mean((0, 2, 3)), rtol=rtol)
    np.testing.assert_allclose(var, data.var((0, 2, 3)), rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"sync_group_size": 1}], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_they_are_those_of_the_data_set(options, mode):
    """Batches of 4, 4 and 3 images on three devices, and one more that joins the last of them."""
    ctx, data = contexts(3), data_of(12)
    net = TwoUses(**options)
    net.initialize(ctx=ctx)
    net.hybridize(**MODES[mode])
    before = net(nd.array(data)).asnumpy()
    net.norm.running_mean.set_data(nd.full(3, np.nan))  # whatever they were before
    batches = [nd.array(part) for part in np.split(data, [4, 8, 11])]
    gluon_syncbn.update_statistics(net, batches, ctx)
    require_statistics(net.norm, np.concatenate([data, 3 * data - 1]))
    # The last norm's input depends on the batch, so one device has to see the same batches.
    one = TwoUses(**options)
    one.initialize(ctx=contexts(1))
    one(nd.array(data))
    if "sync_group_size" not in options:
        parts = [nd.array(part) for part in np.split(data, [4, 8])]
        gluon_syncbn.update_statistics(one, parts)
        for ours, theirs in zip(statistics(net.last), statistics(one.last)):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    after = net(nd.array(data)).asnumpy()
    assert np.abs(after - before).max() > 0.1, "a compiled network predicts with the new ones"
    assert net.norm.momentum == options.get("momentum", 0.9)
    if net.norm.momentum is None:
        assert net.norm.num_batches_tracked.data(ctx[2]).asnumpy().item() == 6


def refilled(parts):
    """One array for all batches, as a program has that saves memory."""
    array = nd.array(parts[0])
    for part in parts:
        array[:] = nd.array(part)
        yield array


@pytest.mark.parametrize(
    "kind",
    [
        "mx.np",
        "refilled",
        *(pytest.param(each, marks=only_1) for each in ("mx.nd", "pad", "discard", "roll_over")),
    ],
)
def test_loaders(kind):
    """Some have labels, a last batch of one image, an array for all batches, or padding."""
    ctx, data = contexts(2), data_of({"refilled": 8, "mx.nd": 9, "mx.np": 9}.get(kind, 10))
    with numpy_interface(IS_2 or kind == "mx.np"):
        layer = make_layer(ctx)
        if kind == "refilled":
            batches = refilled(np.split(data, 4))
        elif kind.startswith("mx."):
            batches = loader(data, 4)
        else:
            batches = mx.io.NDArrayIter(data.astype("float32"), np.arange(10), 4, False, kind)
            list(batches)  # an epoch of training
            data = data if kind == "pad" else data[:8]
        gluon_syncbn.update_statistics(layer, batches)
        require_statistics(layer, data)


class Frozen(HybridBlock):
    """A network whose body is called in inference mode, and once in training mode if wanted."""

    def __init__(self, body, trains: bool) -> None:
        super().__init__()
        self.body, self.trains = body, trains
        self.head = gluon_syncbn.SyncBatchNorm(in_channels=3)

    def forward(self, x):
        if self.trains:
            self.body(x)
        with autograd.predict_mode():
            x = self.body(x)
        return self.head(x)


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("kind", ["layer", pytest.param("nodes", marks=only_1)])
def test_calls_in_inference_mode_see_the_statistics_as_they_were(kind, trains, tmp_path):
    ctx, data = contexts(2), data_of(6)
    body = sequential(gluon_syncbn.SyncBatchNorm(in_channels=3, momentum=None))
    body.initialize(ctx=ctx)
    body[0].running_mean.set_data(nd.array([90, 100, 110]))
    body[0].running_var.set_data(nd.array([4, 5, 6]))
    if kind == "nodes":
        body.hybridize()
        body(nd.array(data))
        body.export(str(tmp_path / "body"))
        body = gluon_syncbn.convert_sync_batchnorm(import_files(tmp_path / "body", ctx))
    net = Frozen(body, trains)
    net.head.initialize(ctx=ctx)
    body_norm = norms_of(body)[0]
    expected = warnings.catch_warnings() if trains else pytest.warns(match="no batch of loader")
    with expected:
        gluon_syncbn.update_statistics(net, [nd.array(data)])
    mean, var = np.reshape([90, 100, 110], (3, 1, 1)), np.reshape([4, 5, 6], (3, 1, 1))
    seen = (data.astype(np.float64) - mean) / np.sqrt(var + 1e-5)
    require_statistics(net.head, seen, 1e-5)
    whole = data.astype(np.float64).mean((0, 2, 3)) if trains else mean.ravel()
    np.testing.assert_allclose(statistics(body_norm)[0], whole, rtol=1e-6)
    counts = [array.asnumpy().item() for array in body_norm.count.list_data()]
    assert counts == [float(trains)] * 2


def test_arrays_that_are_too_small_are_joined_until_there_are_enough():
    ctx, data, sizes = contexts(2), data_of(5), []
    layer = make_layer(ctx)
    layer.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    gluon_syncbn.update_statistics(layer, [nd.array(image[None]) for image in data])
    assert sorted(sizes) == [1, 1, 1, 2]
    require_statistics(layer, data)


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
    net = sequential(*(make() for make in first), *norms, *(make() for make in last))
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


@pytest.mark.parametrize("installed", [False, True])
def test_progress(installed, monkeypatch, capsys):
    if installed:
        pytest.importorskip("tqdm")
    layer = make_layer(contexts(1))
    if not installed:
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    gluon_syncbn.update_statistics(layer, loader(data_of(4), 2))
    assert ("running statistics: 100%" in capsys.readouterr().err) == installed
    gluon_syncbn.update_statistics(layer, loader(data_of(4), 2), contexts(1)[0], progress=False)
    assert not capsys.readouterr().err


def test_norms_that_gather_nothing_keep_their_statistics_and_are_named():
    plain, unused = nn.BatchNorm(in_channels=3), gluon_syncbn.SyncBatchNorm(in_channels=3)
    frozen = gluon_syncbn.SyncBatchNorm(in_channels=3, use_global_stats=True)
    net = sequential(plain, frozen)
    with pytest.raises(ValueError, match="has no SyncBatchNorm that gathers statistics"):
        gluon_syncbn.update_statistics(net, [])
    net.add(TwoUses(in_channels=3))
    net[2].unused = unused
    net.initialize(ctx=contexts(2))
    net(nd.array(data_of(1)))
    first, *_, last = (norm.name for norm in norms_of(net))
    with pytest.warns(UserWarning, match="keeps its statistics") as warned:
        gluon_syncbn.update_statistics(net, [nd.array(data_of(4))])
    messages = {str(each.message) for each in warned}
    assert {each for each in messages if "keeps its statistics" in each} == {
        f"{first} keeps its statistics: BatchNorm is not gluon_syncbn.SyncBatchNorm",
        f"{last} keeps its statistics: no batch of loader has reached it",
    }
    for layer in (plain, frozen, unused):
        mean, var = statistics(layer)
        assert (mean == 0).all()
        assert (var == 1).all()
