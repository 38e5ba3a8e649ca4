"""Steps of one layer, or of a network, on two devices. The import runs no operator."""

from __future__ import annotations

from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
from mxnet.gluon import nn

from tests import conftest
from tests.support.either_mxnet import nd
from tests.support.oracle import batch_norm

contexts = conftest.contexts(2)


def make_layer(ctx: list[mx.Context] = contexts) -> gluon_syncbn.SyncBatchNorm:
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=ctx)
    return layer


def data(ctx: list[mx.Context]) -> list[Any]:
    values = np.random.default_rng(0).normal(size=(len(ctx), 2, 3))
    return [nd.array(shard, ctx=each) for shard, each in zip(values, ctx)]


def forward(layer: Any = None, ctx: list[mx.Context] = contexts) -> list[Any]:
    """Call a layer, or a new one, on each of `ctx`."""
    layer = layer or make_layer(ctx)
    with mx.autograd.record():
        return [layer(x) for x in data(ctx)]


def train(layer: Any = None, ctx: list[mx.Context] = contexts) -> None:
    """Wait for arrays alone, because waitall of MXNet 2 calls CUDA."""
    outs = forward(layer, ctx)
    mx.autograd.backward(outs)
    require_right(data(ctx), outs)


def require_right(xs: list[Any], outs: list[Any]) -> None:
    actual = np.concatenate([out.asnumpy() for out in outs])  # at once: a control reads too early
    whole = np.concatenate([x.asnumpy() for x in xs])
    ones = np.ones(whole.shape[1])
    expected = batch_norm(whole, whole, ones, 0 * ones, 0 * ones, ones).out
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


class Network:
    """A network with two layers, whose steps tests break off."""

    def __init__(self) -> None:
        self.net = nn.HybridSequential()
        self.net.add(nn.Dense(4, in_units=3), gluon_syncbn.SyncBatchNorm(in_channels=4))
        self.net.add(nn.Dense(5, in_units=4), gluon_syncbn.SyncBatchNorm(in_channels=5))
        self.net.initialize(ctx=contexts)
        self.xs = [nd.random.normal(shape=(2, 3), ctx=context) for context in contexts]

    def call(self, device: int) -> Any:
        with mx.autograd.record():
            return self.net(self.xs[device])

    def step(self) -> None:
        outs = [self.call(0), self.call(1)]
        mx.autograd.backward(outs)
        check(outs)
        mx.nd.waitall()


def check(outs: list[Any]) -> None:
    """Normalized over all devices, every channel has mean 0, but not on each device alone."""
    values = np.stack([out.asnumpy() for out in outs])
    assert abs(values.mean((0, 1))).max() < 1e-5, values
    assert abs(values.mean(1)).max() > 1e-3, values
