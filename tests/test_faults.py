"""Devices that do not come, or do not fit together, are reported to all that wait."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn import runtime

from .conftest import contexts


@pytest.fixture
def layer() -> gluon_syncbn.SyncBatchNorm:
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=contexts(2))
    return layer


def train(layer, devices, shape=(2, 3, 4)):
    with mx.autograd.record():
        return [layer(mx.nd.random.normal(shape=shape, ctx=mx.cpu(i))) for i in devices]


@pytest.mark.parametrize("mode", [None, {}, {"static_alloc": True, "static_shape": True}])
def test_a_device_that_never_calls(layer, mode):
    if mode is not None:
        layer.hybridize(**mode)
    gluon_syncbn.set_timeout(0.3)
    (out,) = train(layer, [0])
    with pytest.raises(mx.base.MXNetError, match=r"waited .* s for 2 devices.*came: cpu\(0\)\."):
        out.asnumpy()
    (late,) = train(layer, [1])
    with pytest.raises(mx.base.MXNetError, match="waited"):
        late.asnumpy()
    gluon_syncbn.set_timeout(60)
    for out in train(layer, [0, 1]):
        assert np.isfinite(out.asnumpy()).all()


def test_channels_that_differ():
    key = "differs"

    def call(device, channels):
        arrays = [mx.nd.ones((2, channels), ctx=mx.cpu(device))]
        arrays += [mx.nd.ones((channels,), ctx=mx.cpu(device)) for _ in range(4)]
        with mx.autograd.record():
            return mx.nd.Custom(*arrays, op_type="SyncBatchNorm", key=key, num_devices=2)

    outs = [call(0, 3), call(1, 4)]
    for out in outs:
        with pytest.raises(mx.base.MXNetError, match=r"differ: channels [34] and [34]"):
            out.asnumpy()


def test_more_devices_than_num_devices():
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, num_devices=2)
    layer.initialize(ctx=contexts(3))
    with pytest.raises(ValueError, match="num_devices=2, but the parameters live on 3 contexts"):
        train(layer, [0])
    layer.hybridize()
    outs = train(layer, [0, 1])
    mx.nd.waitall()
    (third,) = train(layer, [2])
    with pytest.raises(mx.base.MXNetError, match=r"synchronizes .*was called on cpu\(2\)"):
        third.asnumpy()
    assert all(np.isfinite(out.asnumpy()).all() for out in outs)


def test_training_forwards_without_backward(layer):
    for _ in range(20):
        for out in train(layer, [0, 1]):
            assert np.isfinite(out.asnumpy()).all()


def test_keys_are_released(layer):
    before = runtime.num_keys()
    for _ in range(10):
        layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
        layer.initialize(ctx=contexts(2))
        outs = train(layer, [0, 1])
        mx.autograd.backward(outs)
    mx.nd.waitall()
    del outs, layer
    assert runtime.num_keys() <= before + 1


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "soon"])
def test_timeouts_that_make_no_sense(seconds):
    with pytest.raises(ValueError):
        gluon_syncbn.set_timeout(seconds)
    assert gluon_syncbn.get_timeout() == 60
