"""A device without data takes part in a step with an empty shard."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.layer.test_modes import MODES
from tests.support.either_mxnet import only_1
from tests.support.oracle import batch_norm, relative_error


def build(ctx):
    net = nn.HybridSequential()
    net.add(gluon_syncbn.SyncBatchNorm(in_channels=3), nn.Activation("relu"), nn.MaxPool2D())
    net.add(nn.Dense(2))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    return net


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("numpy", [pytest.param(False, marks=only_1), True])
def test_the_last_batch_has_fewer_images_than_devices(numpy, mode):
    """mx.np arrays may be empty. mx.nd arrays may be too within mx.util.np_shape."""
    ctx = contexts(3)
    x = np.random.default_rng(0).normal(1, 2, (2, 3, 4, 4)).astype("float32")
    with mx.util.np_shape(numpy), mx.util.np_array(numpy):
        net = build(ctx)
        net.hybridize(**MODES[mode])
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
        first = (mx.np if numpy else mx.nd).array(np.concatenate([x, x[:1] + 1]), dtype="float32")
        for batch in (first, first[:2], first):
            with mx.util.np_shape(numpy or len(batch) < len(ctx)):
                shards = gluon.utils.split_and_load(batch, ctx, even_split=False)
                for each in shards:
                    each.attach_grad()
                before = [each.data(ctx[0]).asnumpy() for each in statistics(net)]
                with autograd.record():
                    losses = [net(each).sum() for each in shards]
                autograd.backward(losses)
                trainer.step(len(batch))
                assert float(losses[-1].asnumpy()) == 0 or len(batch) == len(ctx)
                check(net, ctx, shards, before)
    assert gluon_syncbn.check_in_sync(net) == {}


def statistics(net):
    return net[0].running_mean, net[0].running_var


def check(net, ctx, shards, before):
    """The running statistics and gradients are those of all images on one device."""
    x = np.concatenate([each.asnumpy() for each in shards if each.shape[0]]).astype("float64")
    ones = np.ones(3)
    expected = batch_norm(x, np.zeros_like(x), ones, 0 * ones, *before, act_type="relu")
    for parameter, value in zip(statistics(net), (expected.running_mean, expected.running_var)):
        for array in parameter.list_data():
            assert relative_error(array.asnumpy(), value) < 1e-5

    weight = net[3].weight.data(ctx[0]).asnumpy().astype("float64").sum(axis=0)
    out = expected.out
    windows = out.reshape(len(x), 3, 2, 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(-1, 4)
    dy = np.eye(4)[windows.argmax(axis=1)] * np.tile(weight, len(x))[:, None]
    dy = dy.reshape(len(x), 3, 2, 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(x.shape)
    expected = batch_norm(x, dy, ones, 0 * ones, *before, act_type="relu")
    dx = np.concatenate([each.grad.asnumpy() for each in shards if each.shape[0]])
    assert relative_error(dx, expected.dx) < 1e-4
    total = sum(each.asnumpy().astype("float64") for each in net[0].gamma.list_grad())
    assert relative_error(total, expected.dgamma) < 1e-4


@pytest.mark.parametrize("use_global_stats", [False, True])
def test_gradients_of_no_data_are_zero(use_global_stats):
    """Also where 1 / sqrt(variance + epsilon) is infinite."""
    ctx = contexts(2)
    with mx.util.np_shape(), mx.util.np_array():
        layer = gluon_syncbn.SyncBatchNorm(
            in_channels=3, epsilon=0, use_global_stats=use_global_stats
        )
        layer.initialize(ctx=ctx)
        for array in layer.running_var.list_data():
            array[:] = 0
        with autograd.record():
            losses = [layer(mx.np.zeros((0, 3, 4), ctx=each)).sum() for each in ctx]
        autograd.backward(losses)
    for parameter in (layer.gamma, layer.beta):
        for gradient in parameter.list_grad():
            assert gradient.asnumpy().tolist() == [0, 0, 0]
    assert layer.running_mean.data(ctx[0]).asnumpy().tolist() == [0, 0, 0]
