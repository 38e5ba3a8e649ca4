"""A training step with known results, to test an installation.

``python -m gluon_syncbn.diagnose.self_test gpu`` runs it on all GPU contexts, in a separate
process, because some faults end the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

from ..block import SyncBatchNorm
from ..mxnet_versions import new_array

_SECONDS = 300
_FAILED = 3  # exit status of a test that has printed why


def contexts_of(device_type: str) -> list[mx.Context]:
    """Contexts to test: two CPU contexts, or all GPU contexts."""
    number = 2 if device_type == "cpu" else _count_gpus()
    return [getattr(mx, device_type)(i) for i in range(number)]


def _count_gpus() -> int:
    try:
        return int(mx.context.num_gpus())
    except mx.base.MXNetError:  # of the driver
        return 0


def run(contexts: list[mx.Context]) -> None:
    """Train one step on `contexts` and compare with MXNet's BatchNorm on one CPU context."""
    expected = _step(nn.BatchNorm(epsilon=1e-3), [mx.cpu()], 3 * len(contexts))
    found = _step(SyncBatchNorm(epsilon=1e-3), contexts, 3 * len(contexts))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


def _step(layer: nn.BatchNorm, contexts: list[mx.Context], samples: int) -> dict[str, np.ndarray]:
    batch = new_array(np.arange(samples)[:, None] ** 2, mx.cpu(), "float32")
    layer.initialize(ctx=contexts)
    inputs = gluon.utils.split_and_load(batch, contexts)
    for array in inputs:
        array.attach_grad()
    with mx.autograd.record():
        outputs = [layer(array) for array in inputs]
    heads = new_array(np.eye(samples)[:, :1], mx.cpu(), "float32")  # only of the first sample
    mx.autograd.backward(outputs, gluon.utils.split_and_load(heads, contexts))
    return {
        "output": np.concatenate([array.asnumpy() for array in outputs]),
        "gradient of the input": np.concatenate([array.grad.asnumpy() for array in inputs]),
        "running mean": np.unique([array.asnumpy() for array in layer.running_mean.list_data()]),
        "running variance": np.unique([array.asnumpy() for array in layer.running_var.list_data()]),
    }


def find_failure(device_type: str) -> str | None:
    """Run the test on contexts of this type in a separate process; return the failure, if any."""
    # The layer's own error comes first if devices do not meet.
    environment = {**os.environ, "GLUON_SYNCBN_TIMEOUT": str(_SECONDS / 3)}
    if device_type == "cpu":
        environment["GLUON_SYNCBN_CPU_CONTEXTS"] = "1"
    folder = Path(__file__).resolve().parents[2]
    folders = [str(folder), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    try:
        ended = subprocess.run(
            [sys.executable, "-m", __name__, device_type],
            env=environment,
            cwd=folder,  # -m looks there first, and the folder of the caller may have sources alone
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
