"""Steps of one layer, or of a network, on two devices. The import runs no operator."""

from __future__ import annotations

from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
from mxnet.gluon import nn

from tests import conftest
from tests.support.either_mxnet import nd

contexts = conftest.contexts(2)


def make_layer(ctx: list[mx.Context] = contexts) -> gluon_syncbn.SyncBatchNorm:
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=ctx)
    return layer


def forward(layer: Any = None, ctx: list[mx.Context] = contexts) -> list[Any]:
    """Call a layer, or a new one, on each of `ctx`."""
    layer = layer or make_layer(ctx)
    values = np.random.default_rng(0).normal(size=(len(ctx), 2, 3))
    with mx.autograd.record():
        return [layer(nd.array(shard, ctx=each)) for shard, each in zip(values, ctx)]


def train(layer: Any = None, ctx: list[mx.Context] = contexts) -> list[np.ndarray]:
    outs = forward(layer, ctx)
    mx.autograd.backward(outs)
    return [out.asnumpy() for out in outs]


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
    """Normalized over all devices, every channel has mean 0."""
    values = np.concatenate([out.asnumpy() for out in outs])
    assert abs(values.mean(0)).max() < 1e-5, values
