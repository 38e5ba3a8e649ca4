"""momentum=None: running statistics are the plain average over all training batches."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from tests.conftest import DEVICE, contexts
from tests.support.either_mxnet import nd, only_1, reset_ctx
from tests.support.networks import split
from tests.support.step import MODES, Case, train_step

CHANNELS = 3
LIKE_BATCH_NORM = {"gamma", "beta", "running_mean", "running_var"}


def make_batches(number: int, seed: int = 0) -> list[np.ndarray]:
    """Batches of different sizes, means and deviations."""
    rng = np.random.default_rng(seed)
    shapes = [(4 + 3 * i, CHANNELS, 5) for i in range(number)]
    return [
        (rng.standard_normal(s) * rng.uniform(0.5, 3) + rng.normal()).astype("float32")
        for s in shapes
    ]


def averages(batches: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Means over batches of mean and biased variance, in float64."""
    batches = [batch.astype("float64") for batch in batches]
    means = [batch.mean((0, 2)) for batch in batches]
    variances = [batch.var((0, 2)) for batch in batches]
    return np.mean(means, axis=0), np.mean(variances, axis=0)


def make_layer(number: int = 2, mode: str = "imperative", **options) -> gluon_syncbn.SyncBatchNorm:
    layer = gluon_syncbn.SyncBatchNorm(momentum=None, **options)
    layer.initialize(ctx=contexts(number))
    layer.hybridize(**MODES[mode])
    return layer


def train_batches(net, batches, ctx) -> None:
    for batch in batches:
        train_step(net, Case(batch, split(len(batch), len(ctx)), batch), ctx)


def state(layer) -> list[np.ndarray]:
    """Running mean, running variance and count, on whose bits all devices agree."""
    assert gluon_syncbn.check_in_sync(layer) == {}
    parameters = (layer.running_mean, layer.running_var, layer.num_batches_tracked)
    return [parameter.list_data()[0].asnumpy() for parameter in parameters]


def check(layer, batches: list[np.ndarray], rtol: float = 1e-6) -> None:
    mean, variance, count = state(layer)
    expected_mean, expected_variance = averages(batches)
    np.testing.assert_allclose(mean, expected_mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(variance, expected_variance, rtol=rtol)
    assert count == [len(batches)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", [1, 2, 4])
def test_every_batch_counts_the_same(number, mode):
    layer = make_layer(number, mode)
    batches = make_batches(7)
    for done in range(len(batches)):
        train_batches(layer, batches[done : done + 1], contexts(number))
        check(layer, batches[: done + 1])
    layer(nd.array(batches[0])).wait_to_read()  # inference counts nothing
    check(layer, batches)


@pytest.mark.parametrize(
    ("dtype", "count", "rtol"), [("float64", "float64", 1e-14), ("float16", "float32", 1e-6)]
)
def test_other_dtypes(dtype, count, rtol):
    layer = gluon_syncbn.SyncBatchNorm(in_channels=CHANNELS)
    layer.initialize(ctx=contexts(3))
    layer.cast(dtype)
    layer.momentum = None
    batches = [batch.astype(dtype) for batch in make_batches(5)]
    train_batches(layer, batches, contexts(3))
    assert np.dtype(layer.num_batches_tracked.dtype).name == count
    check(layer, batches, rtol)


def test_saved_and_resumed_on_other_devices(tmp_path):
    batches = make_batches(6)
    whole, first = make_layer(3), make_layer(3)
    train_batches(whole, batches, contexts(3))
    train_batches(first, batches[:4], contexts(3))
    first.save_parameters(str(tmp_path / "layer.params"))
    second = gluon_syncbn.SyncBatchNorm(momentum=None)
    second.load_parameters(str(tmp_path / "layer.params"), ctx=contexts(3))
    assert state(second)[2] == [4]
    train_batches(second, batches[4:], contexts(3))
    for mine, expected in zip(state(second), state(whole)):
        np.testing.assert_array_equal(mine, expected)
    reset_ctx(second, contexts(2))
    train_batches(second, batches[:1], contexts(2))
    check(second, [*batches, batches[0]])
    second.initialize(ctx=contexts(2), force_reinit=True)
    assert state(second)[2] == [0]


def test_checkpoints_of_batch_norm(tmp_path):
    """Gluon has no parameter that a file may lack, unless it is told so."""
    plain, ours = nn.BatchNorm(in_channels=CHANNELS), make_layer(2, in_channels=CHANNELS)
    plain.initialize()
    plain.running_mean.set_data(nd.array([1, 2, 3]))
    plain.save_parameters(str(tmp_path / "plain.params"))
    with pytest.raises(AssertionError, match="num_batches_tracked"):
        ours.load_parameters(str(tmp_path / "plain.params"), ctx=contexts(2))
    ours.load_parameters(str(tmp_path / "plain.params"), ctx=contexts(2), allow_missing=True)
    np.testing.assert_array_equal(state(ours)[0], [1, 2, 3])
    batches = make_batches(2)
    train_batches(ours, batches, contexts(2))
    check(ours, batches)  # the count was 0: what was loaded has no weight
    ours.save_parameters(str(tmp_path / "ours.params"))
    plain.load_parameters(str(tmp_path / "ours.params"), ignore_extra=True)
    np.testing.assert_array_equal(plain.running_mean.data().asnumpy(), state(ours)[0])


def test_statistics_measured_anew_after_training():
    """Setting momentum to None and back, as PyTorch's ``update_bn`` does."""
    net = nn.HybridSequential()
    net.add(gluon_syncbn.SyncBatchNorm())
    net.initialize(ctx=contexts(2))
    net.hybridize()
    batches = make_batches(5)
    train_batches(net, batches, contexts(2))
    net[0].momentum = None
    net.hybridize()
    train_batches(net, batches[:3], contexts(2))
    check(net[0], batches[:3])
    net[0].momentum = 0.5
    net.hybridize()
    mean = averages(batches[:3])[0]
    train_batches(net, batches[3:4], contexts(2))
    expected = 0.5 * mean + 0.5 * batches[3].mean((0, 2))
    np.testing.assert_allclose(
        net[0].running_mean.data(mx.Context(DEVICE, 1)).asnumpy(), expected, rtol=1e-5
    )
    assert set(net[0]._collect_params_with_prefix()) == LIKE_BATCH_NORM


@only_1  # `params`
def test_momentum_set_before_the_first_call_and_shared_parameters():
    layer = gluon_syncbn.SyncBatchNorm()
    layer.initialize(ctx=contexts(2))
    layer.momentum = None
    twin = gluon_syncbn.SyncBatchNorm(momentum=None, params=layer.params)
    batches = make_batches(4)
    for batch in batches:
        train_batches(twin if len(batch) > 9 else layer, [batch], contexts(2))
    check(layer, batches)
    check(twin, batches)


def test_momentum_must_be_a_weight_or_none():
    layer = gluon_syncbn.SyncBatchNorm()
    with pytest.raises(ValueError, match=r"momentum=1\.1 should be a number from 0 to 1, or None"):
        layer.momentum = 1.1
    assert layer.momentum == 0.9


@pytest.mark.parametrize("mode", MODES)
def test_a_step_that_fails_does_not_count(mode):
    layer = make_layer(2, mode, in_channels=CHANNELS)
    batches = make_batches(3)
    train_batches(layer, batches[:1], contexts(2))
    gluon_syncbn.set_timeout(0.2)
    with autograd.record():
        out = layer(nd.array(batches[1]))
    with pytest.raises(mx.base.MXNetError, match="forward waited"):
        out.wait_to_read()
    gluon_syncbn.drop_step()
    gluon_syncbn.set_timeout(60)
    train_batches(layer, batches[2:], contexts(2))
    check(layer, [batches[0], batches[2]])


def test_wrong_counts():
    arrays = [nd.ones(s) for s in ((2, 3), 3, 3, 3, 3, 3)]
    message = r"SyncBatchNorm 'bn'.*num_batches_tracked has shape \(3,\) where \(1,\)"
    with pytest.raises(mx.base.MXNetError, match=message):
        nd.Custom(*arrays, op_type="SyncBatchNorm", key="bn", momentum=None)
    arrays[-1] = nd.ones(1, dtype="int64")
    with pytest.raises(mx.base.MXNetError, match="num_batches_tracked is int64 where float32"):
        nd.Custom(*arrays, op_type="SyncBatchNorm", key="bn", momentum=None)
