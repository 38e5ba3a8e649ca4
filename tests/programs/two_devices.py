"""Steps of one layer on two devices. The import runs no operator."""

from __future__ import annotations

from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np

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
