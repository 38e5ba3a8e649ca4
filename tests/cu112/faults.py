"""Single steps of a layer on devices where something goes wrong."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np

from tests.support.either_mxnet import nd
from tests.support.oracle import batch_norm

from . import fake_cuda

SHAPE = (3, 7, 4, 4)


def arrays(devices: list[int], channels: int = SHAPE[1], seed: int = 1) -> list[nd.NDArray]:
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
    found = []
    for out in outs:
        try:
            out.asnumpy()
            found.append("")
        except mx.base.MXNetError as error:
            found.append(str(error))
    return found


def require_right(xs: list[nd.NDArray], outs: list[nd.NDArray]) -> None:
    actual = np.concatenate([out.asnumpy() for out in outs])  # at once: a control reads too early
    whole = np.concatenate([x.asnumpy() for x in xs])
    ones = np.ones(whole.shape[1])
    expected = batch_norm(whole, whole, ones, 0 * ones, 0 * ones, ones).out
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def require_that_it_works(devices: list[int]) -> None:
    """Also after a fault."""
    xs = arrays(devices)
    require_right(xs, outputs(new_layer(xs), xs))


def struck_by(faults: str, devices: list[int], channels: int = SHAPE[1]) -> tuple[int, list[str]]:
    """How often faults struck a forward pass, and how each device ended."""
    xs = arrays(devices, channels)
    layer = new_layer(xs)
    fake_cuda.inject(faults)
    outs = outputs(layer, xs)
    found = errors(outs)
    struck = fake_cuda.clear_faults()
    if not any(found):
        require_right(xs, outs)
    return struck, found


def count_wrong(cases: int) -> int:
    """Of so many calls of a layer, how many do not give what the oracle gives."""
    wrong = 0
    for seed in range(cases):
        xs = arrays([0, 1, 2, 3], seed=seed)
        try:
            require_right(xs, outputs(new_layer(xs), xs))
        except (AssertionError, mx.base.MXNetError):
            wrong += 1
    return wrong
