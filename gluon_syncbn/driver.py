"""What the NVIDIA driver of this machine can run, and how many GPUs MXNet finds with it."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

__all__ = ["count_gpus", "describe", "describe_gpus", "has_gpus", "is_forked"]

# CUDA of one major version runs on every driver from its first on (NVIDIA's "minor version
# compatibility", which began with 11).
FIRST_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


# For an interpreter of its own, with the path of MXNet's CUDA runtime.
_COUNT = """
import ctypes, sys
number = ctypes.c_int(0)
status = ctypes.CDLL(sys.argv[1]).cudaGetDeviceCount(ctypes.byref(number))
print(number.value if status == 0 else 0)
"""
_PATIENCE_SECONDS = 60.0
_PROCESS = os.getpid()


def is_forked() -> bool:
    """Whether this process is a fork of the one that has imported gluon_syncbn."""
    return os.getpid() != _PROCESS


@functools.lru_cache(maxsize=None)
def has_gpus() -> bool:
    """Whether MXNet can use a GPU here, found out without a call of CUDA in this process.

    CUDA serves no child of a process that has called it, and MXNet fails there even on CPU
    contexts. So a process that only imports gluon_syncbn before it forks must not call CUDA.
    """
    runtime = _cuda_runtime()
    if runtime is None or not sys.executable:
        return count_gpus() > 0
    try:
        answer = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _COUNT, runtime],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        answer = ""
    return int(answer) > 0 if answer.isdigit() else count_gpus() > 0


def _cuda_runtime() -> str | None:
    """Where the CUDA runtime was loaded from; None if MXNet was built without CUDA."""
    import mxnet as mx  # here, because the rest serves where MXNet cannot be imported

    if not mx.runtime.Features().is_enabled("CUDA"):
        return None
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if "/libcudart.so" in path:
            return path
    return None


def count_gpus() -> int:
    """Count the GPUs that MXNet can use: none if the driver refuses it, for which MXNet raises."""
    import mxnet as mx

    try:
        return int(mx.context.num_gpus())
    except mx.base.MXNetError:
        return 0


def describe_gpus() -> str:
    """Count the GPUs that MXNet can use, or say why there are none."""
    import mxnet as mx

    try:
        return str(mx.context.num_gpus())
    except mx.base.MXNetError as error:
        return f"none: {str(error).splitlines()[-1]}"


def describe(gpu_build: str) -> str:
    """Say which CUDA the driver knows, and whether that is enough for the GPU backend.

    Parameters
    ----------
    gpu_build : str
        What :func:`gluon_syncbn._native.gpu_build` returns.
    """
    version = _version()
    if version is None:
        return "none (libcuda.so.1 does not load)"
    text = f"for CUDA up to {version // 1000}.{version % 1000 // 10}"
    built = re.match(r"CUDA (\d+)\.", gpu_build)
    if built is None:
        return text
    first = FIRST_DRIVERS.get(int(built[1]), f"for CUDA {built[1]}")
    if int(built[1]) <= version // 1000:
        return f"{text}; the GPU backend needs {first} or later"
    known = version // 1000
    older = {11: "11.2 to 11.8"}.get(known, str(known))  # no CUDA before 11.2 can build it
    return (
        f"{text}: too old for the GPU backend, which CUDA {built[1]} has built. Install driver "
        f"{first} or later{f', or build with nvcc of CUDA {older}' if known >= 11 else ''}"
    )


def _version() -> int | None:
    """1000 * major + 10 * minor of the newest CUDA that the driver knows; None without driver."""
    version = ctypes.c_int(0)
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return version.value
