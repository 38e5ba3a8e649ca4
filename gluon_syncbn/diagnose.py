"""What ``python -m gluon_syncbn diagnose`` prints."""

from __future__ import annotations

import os
import platform
from typing import Iterator

import mxnet as mx
import numpy as np

from . import __version__, cpu_contexts, runtime, self_test

__all__ = ["main"]


def main() -> int:
    """Print the report; return 0 if the self-test passed and 1 otherwise."""
    for name, value in _facts():
        print(f"{name:<36}{value}")
    try:
        problem = cpu_contexts.find_problem(synchronized=True)
        print(f"{'CPU contexts':<36}{'safe' if problem is None else problem}")
        self_test.run()
    except (AssertionError, mx.base.MXNetError) as error:
        print(f"{'self-test on two contexts':<36}FAILED: {error}")
        return 1
    print(f"{'self-test on two contexts':<36}passed")
    return 0


def _facts() -> Iterator[tuple[str, object]]:
    yield "gluon_syncbn", __version__
    yield "native library", runtime.library_path()
    yield "built as", runtime.build_info()
    yield "GPU half", runtime.gpu_build()
    yield "GPUs for it", runtime.gpu_devices()
    yield "MXNet", f"{mx.__version__} ({mx.base._LIB._name})"
    yield "MXNet features", _features()
    yield "GPUs for MXNet", mx.context.num_gpus()
    yield "NumPy", np.__version__
    yield "Python", platform.python_version()
    yield "system", platform.platform()
    yield "timeout", f"{runtime.get_timeout():g} s" if runtime.get_timeout() else "never"
    for name in cpu_contexts.SETTINGS:
        yield name, os.environ.get(name, "not set")
    yield "MXNET_ENGINE_TYPE", os.environ.get("MXNET_ENGINE_TYPE", "not set")


def _features() -> str:
    names = ("CUDA", "CUDNN", "NCCL", "MKLDNN", "OPENMP")
    features = mx.runtime.Features()
    return ", ".join(name for name in names if features.is_enabled(name)) or "none of interest"
