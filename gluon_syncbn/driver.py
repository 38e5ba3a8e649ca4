"""The NVIDIA driver of this machine, and the GPUs that MXNet finds with it."""

from __future__ import annotations

import ctypes
import os
import re

__all__ = ["count_gpus", "describe", "describe_gpus", "is_forked"]

# CUDA of one major version runs on every driver from its first on (NVIDIA's "minor version
# compatibility", which began with 11).
FIRST_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}

_PROCESS = os.getpid()


def is_forked() -> bool:
    """Whether this process was forked from the one that imported gluon_syncbn."""
    return os.getpid() != _PROCESS


def count_gpus() -> int:
    """Count the GPUs that MXNet can use; 0 if MXNet raises an error of the driver."""
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
    """Say which CUDA the driver supports, and whether that is enough for the GPU backend.

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
    """1000 * major + 10 * minor of the newest CUDA of the driver; None without a driver."""
    version = ctypes.c_int(0)
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return version.value
