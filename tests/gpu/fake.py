"""What tests may ask of the fake CUDA (tests/gpu/fake_cuda/fake_cuda.h)."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

# Loaded already, by MXNet.
_runtime = ctypes.CDLL("libcuda.so.1")
_runtime.fakeCudaSet.argtypes = [ctypes.c_char_p, ctypes.c_long]
_runtime.fakeCudaSet.restype = ctypes.c_long
_runtime.fakeCudaInject.argtypes = [ctypes.c_char_p]
_runtime.fakeCudaClearFaults.restype = ctypes.c_long
_runtime.fakeCudaCount.argtypes = [ctypes.c_char_p, ctypes.c_int]
_runtime.fakeCudaCount.restype = ctypes.c_long

_before: dict[str, int] = {}


def change(name: str, value: int) -> None:
    """Change a setting of the fake; restored() takes it back at the end of the test."""
    former = _runtime.fakeCudaSet(name.encode(), value)
    _before.setdefault(name, former)


def inject(faults: str) -> None:
    """Order faults, as tests/gpu/fake_cuda/fake_cuda.h says."""
    _runtime.fakeCudaInject(faults.encode())


def clear_faults() -> int:
    """Take all faults away; how many have struck."""
    return int(_runtime.fakeCudaClearFaults())


def count(what: str, device: int = -1) -> int:
    """How often something happened."""
    return int(_runtime.fakeCudaCount(what.encode(), device))


def has_context(device: int) -> bool:
    """Whether a context of the device was made."""
    return bool(_runtime.fakeCudaHasContext(device))


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Take back all changes and faults at the end."""
    try:
        yield
    finally:
        clear_faults()
        for name, value in _before.items():
            _runtime.fakeCudaSet(name.encode(), value)
        _before.clear()
