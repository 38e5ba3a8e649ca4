"""momentum=None counts the batches. test_parity.py has the averages, test_faults.py has faults."""

from __future__ import annotations

import dataclasses
from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import nd, only_1, reset_ctx
from tests.support.step import Case, check_step, make_case, make_layer, train_step

CTX = contexts(2)
LIKE_BATCH_NORM = {"gamma", "beta", "running_mean", "running_var"}


def make_cases(number: int, dtype: str = "float32", **options: Any) -> list[Case]:
    """Batches of different sizes for one layer."""
    rng = np.random.default_rng(0)
    first = make_case(rng, (3, 3, 5), (1, 2), dtype, **{"momentum": None, **options})
    return [first, *(first.another(rng, (2 + i, 3)) for i in range(1, number))]


def count(layer: gluon_syncbn.SyncBatchNorm) -> float:
    """The number of batches, on which all devices agree."""
    assert gluon_syncbn.check_in_sync(layer) == {}
    return layer.num_batches_tracked.list_data()[0].asnumpy().item()


def test_saved_and_resumed_on_other_devices(tmp_path):
    cases = make_cases(4)
    first = make_layer(cases[0], CTX)
    for case in cases[:2]:
        check_step(first, case, CTX)
    first.save_parameters(str(tmp_path / "layer.params"))
    second = gluon_syncbn.SyncBatchNorm(momentum=None)
    second.load_parameters(str(tmp_path / "layer.params"), ctx=CTX)
    assert count(second) == 2
    mean, loaded = first.running_mean.data(CTX[0]), second.running_mean.data(CTX[1])
    np.testing.assert_array_equal(loaded.asnumpy(), mean.asnumpy())
    check_step(second, cases[2], CTX)
    reset_ctx(second, contexts(1))
    check_step(second, dataclasses.replace(cases[3], shards=(len(cases[3].x),)), contexts(1))
    assert count(second) == 4
    second.initialize(ctx=CTX, force_reinit=True)
    assert count(second) == 0


def test_checkpoints_of_batch_norm(tmp_path):
    """Gluon has no parameter that a file may lack, unless it is told so."""
    plain, ours = nn.BatchNorm(in_channels=3), make_layer(make_cases(1)[0], CTX)
    plain.initialize()
    plain.running_mean.set_data(nd.array([1, 2, 3]))
    plain.save_parameters(str(tmp_path / "plain.params"))
    with pytest.raises(AssertionError, match="num_batches_tracked"):
        ours.load_parameters(str(tmp_path / "plain.params"), ctx=CTX)
    ours.load_parameters(str(tmp_path / "plain.params"), ctx=CTX, allow_missing=True)
    np.testing.assert_array_equal(ours.running_mean.data(CTX[1]).asnumpy(), [1, 2, 3])
    assert count(ours) == 0, "what was loaded has no weight"
    check_step(ours, make_cases(1)[0], CTX)
    ours.save_parameters(str(tmp_path / "ours.params"))
    plain.load_parameters(str(tmp_path / "ours.params"), ignore_extra=True)
    mean = ours.running_mean.data(CTX[0]).asnumpy()
    np.testing.assert_array_equal(plain.running_mean.data().asnumpy(), mean)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12), ("float16", 1e-3)]
)
def test_statistics_measured_anew_after_training(dtype, tolerance):
    """Setting momentum to None and back, as PyTorch's ``update_bn`` does."""
    net = nn.HybridSequential()
    net.add(gluon_syncbn.SyncBatchNorm(in_channels=3))
    net.initialize(ctx=CTX)
    net.cast(dtype)
    for momentum in (0.9, None, 0.5):
        net[0].momentum = momentum
        net.hybridize()
        for case in make_cases(3, dtype, momentum=momentum):
            case.call = lambda _, x, __: net(x)
            check_step(net[0], case, CTX, tolerance, running=min(tolerance, 1e-5))
        assert momentum is not None or count(net[0]) == 3
    assert set(net[0]._collect_params_with_prefix()) == LIKE_BATCH_NORM


@only_1  # `params`
def test_momentum_set_before_the_first_call_and_shared_parameters():
    layer = gluon_syncbn.SyncBatchNorm()
    layer.initialize(ctx=CTX)
    layer.momentum = None
    twin = gluon_syncbn.SyncBatchNorm(momentum=None, params=layer.params)
    first, *others = make_cases(4)
    train_step(layer, first, CTX)
    for case, each in zip(others, (twin, layer, twin)):
        check_step(each, case, CTX)
    assert count(layer) == count(twin) == 4


def test_momentum_must_be_a_weight_or_none():
    layer = gluon_syncbn.SyncBatchNorm()
    with pytest.raises(ValueError, match=r"momentum=1\.1 should be a number from 0 to 1, or None"):
        layer.momentum = 1.1
    assert layer.momentum == 0.9


def test_wrong_counts():
    arrays = [nd.ones(s) for s in ((2, 3), 3, 3, 3, 3, 3)]
    message = r"SyncBatchNorm 'bn'.*num_batches_tracked has shape \(3,\) where \(1,\)"
    with pytest.raises(mx.base.MXNetError, match=message):
        nd.Custom(*arrays, op_type="SyncBatchNorm", key="bn", momentum=None)
    arrays[-1] = nd.ones(1, dtype="int64")
    with pytest.raises(mx.base.MXNetError, match="num_batches_tracked is int64 where float32"):
        nd.Custom(*arrays, op_type="SyncBatchNorm", key="bn", momentum=None)
