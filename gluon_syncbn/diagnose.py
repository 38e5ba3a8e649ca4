"""What ``python -m gluon_syncbn diagnose`` prints."""

from __future__ import annotations

import os
import platform
from typing import Iterator

import mxnet as mx
import numpy as np

from . import __version__, _native, cpu_contexts, driver, self_test

__all__ = ["main"]


def main() -> int:
    """Print the report; return 0 if the self-tests passed and 1 otherwise."""
    for name, value in _facts():
        print(f"{name:<36}{value}")
    failed = False
    for device_type in ("cpu", "gpu"):
        contexts = self_test.contexts_of(device_type)
        if not contexts:
            print(f"{'self-test on GPU contexts':<36}not run: MXNet finds no GPU")
            continue
        failure = self_test.find_failure(device_type)
        failed = failed or failure is not None
        name = f"self-test on {', '.join(map(str, contexts))}"
        print(f"{name:<35} {'passed' if failure is None else f'FAILED: {failure}'}")
    return 1 if failed else 0


def _facts() -> Iterator[tuple[str, object]]:
    yield "gluon_syncbn", __version__
    yield "native library", _native.library_path()
    yield "built as", _native.build_info()
    yield "GPU backend", _native.gpu_build()
    yield "GPUs for it", _native.gpu_devices()
    yield "NVIDIA driver", driver.describe(_native.gpu_build())
    yield "MXNet", f"{mx.__version__} ({mx.base._LIB._name})"
    yield "MXNet features", _features()
    yield "GPUs for MXNet", driver.describe_gpus()
    yield "matrix products on CPU contexts", _native.blas()
    yield "NumPy", np.__version__
    yield "Python", platform.python_version()
    yield "system", platform.platform()
    yield "timeout", f"{_native.get_timeout():g} s" if _native.get_timeout() else "never"
    for name in cpu_contexts.SETTINGS:
        yield name, os.environ.get(name, "not set")
    yield "MXNET_ENGINE_TYPE", os.environ.get("MXNET_ENGINE_TYPE", "not set")
    for name, synchronized in (("one CPU context", False), ("several CPU contexts", True)):
        problem = cpu_contexts.find_problem(synchronized)
        yield name, "safe" if problem is None else f"refused: {problem}"


def _features() -> str:
    names = ("CUDA", "CUDNN", "NCCL", "MKLDNN", "OPENMP")
    features = mx.runtime.Features()
    return ", ".join(name for name in names if features.is_enabled(name)) or "none of interest"
