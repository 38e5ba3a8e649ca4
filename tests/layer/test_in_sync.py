"""check_in_sync finds what differs between devices, and average_statistics makes it equal."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

from tests.conftest import DEVICE, contexts
from tests.support.either_mxnet import nd, numpy_interface, only_1
from tests.support.step import Case, train


def test_unsynchronized_statistics_are_named():
    """They alone: the trainer keeps the parameters in sync."""
    ctx = contexts(3)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Dense(2))
    net.initialize(ctx=ctx)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    x = np.random.default_rng(0).standard_normal((6, 3, 5, 5)).astype("float32")
    case = Case(x, (2, 2, 2), call=lambda net, x, _: net(x).sum() ** 2)
    train(net, case, ctx, trainer, 3)
    differences = gluon_syncbn.check_in_sync(net)
    names = {parameter: name for name, parameter in net.collect_params().items()}
    mean, var = names[net[1].running_mean], names[net[1].running_var]
    assert set(differences) == {mean, var}
    assert differences[mean].startswith(f"from {DEVICE}(0): {DEVICE}(1) by ")


def test_a_single_bit_counts():
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=contexts(2))
    values = np.array([1, np.nextafter(np.float32(1), np.float32(2)), 1], dtype="float32")
    layer.gamma.data(mx.Context(DEVICE, 1))[:] = nd.array(values)
    assert list(gluon_syncbn.check_in_sync(layer)) == [layer.gamma.name]
    assert f"{DEVICE}(1) by 1.19e-07" in gluon_syncbn.check_in_sync(layer)[layer.gamma.name]


def test_nan_is_in_sync_with_nan():
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(mx.init.Constant(np.nan), ctx=contexts(2))
    layer.gamma.set_data(nd.full((3,), np.nan))
    assert gluon_syncbn.check_in_sync(layer) == {}


def test_an_uninitialized_network():
    with pytest.raises(RuntimeError):
        gluon_syncbn.check_in_sync(gluon_syncbn.SyncBatchNorm(in_channels=3))


def test_average_statistics():
    ctx = contexts(3)
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(in_channels=4), gluon_syncbn.SyncBatchNorm(in_channels=2))
    net[0].cast("float64")
    net.initialize(ctx=ctx)
    rng = np.random.default_rng(0)
    expected = {}
    for layer in net:
        for parameter in (layer.running_mean, layer.running_var):
            values = rng.normal(1e3, 1, (3, *parameter.shape)).astype(parameter.dtype)
            for array, value in zip(parameter.list_data(), values):
                array[:] = value
            mean = values.astype("float64").mean(axis=0)
            expected[parameter] = mean.astype(parameter.dtype)
    gluon_syncbn.average_statistics(net)
    assert gluon_syncbn.check_in_sync(net) == {}
    for parameter, mean in expected.items():
        assert parameter.data(ctx[2]).asnumpy().tobytes() == mean.tobytes()


@pytest.mark.parametrize("active", [pytest.param(False, marks=only_1), True])
def test_average_statistics_with_a_store_of_one_worker(active):
    with numpy_interface(active):
        layer = nn.BatchNorm(in_channels=2)
        layer.initialize(ctx=contexts(2))
        for data, mean in zip(layer.running_mean.list_data(), ([1, 2], [3, 8])):
            data[:] = np.array(mean)
        gluon_syncbn.average_statistics(layer, mx.kv.create("local"))
        for data in layer.running_mean.list_data():
            np.testing.assert_array_equal(data.asnumpy(), [2, 5])


@pytest.mark.parametrize("store", ["dist_sync", True])
def test_average_statistics_needs_the_store_itself(store):
    layer = nn.BatchNorm(in_channels=2)
    layer.initialize()
    with pytest.raises(TypeError, match=rf"kvstore={store!r} should be .*mx\.kv\.create"):
        gluon_syncbn.average_statistics(layer, store)


def test_average_statistics_needs_statistics():
    with pytest.raises(ValueError, match="has no BatchNorm"):
        gluon_syncbn.average_statistics(nn.Dense(2))
