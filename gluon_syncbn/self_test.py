"""A two-context training step whose results are known, for a user who doubts an installation."""

from __future__ import annotations

import mxnet as mx
import numpy as np

from .block import SyncBatchNorm

__all__ = ["run"]


def run() -> None:
    """Train one step on ``cpu(0)`` and ``cpu(1)`` and compare with the numbers by hand.

    Three samples of 1 on one device and three of 2 on the other have mean 1.5 and variance 0.25.

    Raises
    ------
    AssertionError
        If a result is wrong.
    mxnet.base.MXNetError
        If the step fails.
    """
    contexts = [mx.cpu(0), mx.cpu(1)]
    layer = SyncBatchNorm(epsilon=1e-3, momentum=0.9)
    layer.initialize(ctx=contexts)
    inputs = [mx.nd.full((3, 1), value, ctx=ctx) for value, ctx in zip((1, 2), contexts)]
    for array in inputs:
        array.attach_grad()
    with mx.autograd.record():
        outputs = [layer(array) for array in inputs]
    heads = [mx.nd.array([[1.0], [0.0], [0.0]], ctx=contexts[0]), mx.nd.zeros((3, 1), contexts[1])]
    mx.autograd.backward(outputs, heads)

    inverse_deviation = 1 / np.sqrt(0.25 + 1e-3)
    normalized = np.array([-0.5, -0.5, -0.5, 0.5, 0.5, 0.5]) * inverse_deviation
    head = np.array([1.0, 0, 0, 0, 0, 0])
    gradient = inverse_deviation * (head - 1 / 6 - normalized * normalized[0] / 6)
    for name, actual, expected in (
        ("output", outputs, normalized),
        ("gradient of the input", [array.grad for array in inputs], gradient),
        ("running mean", layer.running_mean.list_data(), [0.15, 0.15]),
        ("running variance", layer.running_var.list_data(), [0.925, 0.925]),
    ):
        values = np.concatenate([array.asnumpy().ravel() for array in actual])
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-7, err_msg=name)
