"""Single steps of a layer on GPUs, real or fake."""

from __future__ import annotations

from collections.abc import Iterable

import gluon_syncbn
import mxnet as mx
import numpy as np

from tests.support.either_mxnet import error_of, nd
from tests.support.two_devices import require_right

SHAPE = (3, 7, 4, 4)


def arrays(devices: Iterable[int], channels: int = SHAPE[1], seed: int = 1) -> list[nd.NDArray]:
    """Different data on every device, and room in MXNet's pool for what a layer makes of it."""
    rng = np.random.default_rng(seed)
    shape = (SHAPE[0], channels, *SHAPE[2:])
    xs = [nd.array(rng.standard_normal(shape), ctx=mx.gpu(i)) for i in devices]
    room = [x * 1 for x in xs]
    nd.waitall()
    del room
    return xs


def outputs(layer: gluon_syncbn.SyncBatchNorm, xs: list[nd.NDArray]) -> list[nd.NDArray]:
    with mx.autograd.record():
        return [layer(x) for x in xs]


def new_layer(xs: list[nd.NDArray]) -> gluon_syncbn.SyncBatchNorm:
    layer = gluon_syncbn.SyncBatchNorm(in_channels=xs[0].shape[1], num_devices=len(xs))
    layer.initialize(ctx=[x.context for x in xs])
    nd.waitall()
    return layer


def errors(outs: list[nd.NDArray]) -> list[str]:
    """What each device ended with; empty where it has a result."""
    return [error_of(out.asnumpy) for out in outs]


def step(layer: gluon_syncbn.SyncBatchNorm, xs: list[nd.NDArray]) -> None:
    outs = outputs(layer, xs)
    mx.autograd.backward(outs)
    require_right(xs, outs)
