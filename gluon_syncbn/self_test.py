"""A training step whose results are known, for a user who doubts an installation.

``python -m gluon_syncbn.self_test gpu`` makes it on all GPU contexts, in a process of its own,
because some faults end the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np

from . import driver
from .block import SyncBatchNorm

__all__ = ["contexts_of", "find_failure", "run"]

_EPSILON = 1e-3
_MOMENTUM = 0.9
_SECONDS = 300
_FAILED = 3  # the exit status of a test that says on its output why


def contexts_of(device_type: str) -> list[mx.Context]:
    """Where to test: two CPU contexts, or as many GPU contexts as there are."""
    number = 2 if device_type == "cpu" else driver.count_gpus()
    return [mx.Context(device_type, i) for i in range(number)]


def run(contexts: list[mx.Context]) -> None:
    """Train one step on `contexts` and compare with NumPy on the whole batch.

    Raises
    ------
    AssertionError
        If a result is wrong.
    mxnet.base.MXNetError
        If the step fails.
    """
    batch = np.arange(3.0 * len(contexts)) ** 2  # three samples for each device
    head = np.zeros_like(batch)
    head[0] = 1

    def shards(values: np.ndarray) -> list[mx.nd.NDArray]:
        parts = np.split(values, len(contexts))
        return [mx.nd.array(part[:, None], ctx=ctx) for part, ctx in zip(parts, contexts)]

    layer = SyncBatchNorm(epsilon=_EPSILON, momentum=_MOMENTUM)
    layer.initialize(ctx=contexts)
    inputs = shards(batch)
    for array in inputs:
        array.attach_grad()
    with mx.autograd.record():
        outputs = [layer(array) for array in inputs]
    mx.autograd.backward(outputs, shards(head))

    inverse_deviation = 1 / np.sqrt(batch.var() + _EPSILON)
    normalized = (batch - batch.mean()) * inverse_deviation
    gradient = inverse_deviation * (head - head.mean() - normalized * (head * normalized).mean())
    running_mean = (1 - _MOMENTUM) * batch.mean()
    running_var = _MOMENTUM + (1 - _MOMENTUM) * batch.var()
    for name, actual, expected in (
        ("output", outputs, normalized),
        ("gradient of the input", [array.grad for array in inputs], gradient),
        ("running mean", layer.running_mean.list_data(), [running_mean] * len(contexts)),
        ("running variance", layer.running_var.list_data(), [running_var] * len(contexts)),
    ):
        values = np.concatenate([array.asnumpy().ravel() for array in actual])
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6, err_msg=name)


def find_failure(device_type: str) -> str | None:
    """Run the test on contexts of this type in a process of its own.

    Parameters
    ----------
    device_type : str
        "cpu" or "gpu".

    Returns
    -------
    str or None
        What went wrong, or None if all is well.
    """
    environment = dict(os.environ)
    folders = [str(Path(__file__).parent.parent), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    try:
        ended = subprocess.run(
            [sys.executable, "-m", __name__, device_type],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {_SECONDS} s"
    if ended.returncode == 0:
        return None
    if ended.returncode == _FAILED:
        return " ".join(ended.stdout.split())
    return f"the process ended with status {ended.returncode}: {' '.join(ended.stderr.split())}"


if __name__ == "__main__":
    try:
        run(contexts_of(sys.argv[1]))
    except Exception as error:
        print(error)
        sys.exit(_FAILED)
