"""GPU contexts: NVIDIA's driver and NVRTC, and the folder of compiled kernels.

The native library compiles its kernels when it runs (src/cuda/compiler.h). Nothing here initializes
CUDA, because a process that has done so cannot use GPUs after a fork.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from .library import LIBRARY

# The first driver of each major version of CUDA, which runs code of all its minor versions
# (NVIDIA's "minor version compatibility", which began with 11).
_FIRST_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


def describe() -> dict[str, str]:
    """Return what ``python -m gluon_syncbn diagnose`` says of them."""
    driver = _driver_version()
    if driver is None:
        return {"NVIDIA driver": "none (libcuda.so.1 does not load)"}
    problem = find_problem()
    folder = LIBRARY.code_cache()
    files = [path.stat().st_size for path in Path(folder).glob("*")] if folder else []
    return {
        "NVIDIA driver": f"for CUDA up to {_text(driver)}",
        "NVRTC": LIBRARY.nvrtc(),
        "compiled kernels": f"{len(files)} files with {sum(files) / 1e6:.1f} MB in {folder}"
        if folder
        else "not kept: no folder, other than a link, belongs to this user alone",
        "GPU contexts": f"do not work: {problem}" if problem else "have driver and NVRTC",
    }


def find_problem() -> str | None:
    """Say what GPU contexts lack; None if they lack nothing."""
    driver = _driver_version()
    if driver is None:
        return "the NVIDIA driver is missing: libcuda.so.1 does not load"
    nvrtc = LIBRARY.nvrtc()
    version = re.match(r"(\d+)\.\d+", nvrtc)
    if version is None:
        return f"they need NVRTC: {nvrtc.partition(': ')[2]}"
    major = int(version[1])
    if major > driver // 1000:
        first = _FIRST_DRIVERS.get(major, f"for CUDA {major}")
        return (
            f"the NVIDIA driver is for CUDA up to {_text(driver)}, which is too old for NVRTC "
            f"{version[0]}: install driver {first} or later"
        )
    return None


def _text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _driver_version() -> int | None:
    """1000 * major + 10 * minor of the newest CUDA of the driver; None without a driver."""
    version = ctypes.c_int(0)
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return version.value
