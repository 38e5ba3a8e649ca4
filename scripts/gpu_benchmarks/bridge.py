"""Steps of a layer on GPU contexts, on arrays of another library (tests/native/bridge)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ARRAYS = ("x", "dy", "y", "dx", "gamma", "beta", "mean", "var", "dgamma", "dbeta")
ELEMENTS = ("float32", "float64", "float16")  # in the order of common/dtype.h
EPS = 1e-5
MOMENTUM = 0.9  # weight of the old running statistics


class _Context(ctypes.Structure):
    """GpuBridgeContext of tests/native/bridge/gpu_bridge.h."""

    _fields_ = [("outer", ctypes.c_int64), *((name, ctypes.c_void_p) for name in ARRAYS)]


class _Device(ctypes.Structure):
    """GpuBridgeDevice of tests/native/bridge/gpu_bridge.h."""

    _fields_ = [("stream", ctypes.c_void_p), ("cache_bytes", ctypes.c_int64)]


class BridgeError(RuntimeError):
    """The library failed; says what it said."""


class Part(NamedTuple):
    """Arrays of one context.

    Attributes
    ----------
    outer : int
        Elements before the channel axis.
    pointers : dict
        For each of `ARRAYS`, its address in memory of the GPU: x, dy, y and dx of the data's type,
        the others with one element per channel, float32 for float16 data, else of that type.
    """

    outer: int
    pointers: dict[str, int]


class Bridge:
    """The library that CMake builds as ``gpu_bridge``, or ``gpu_bridge_emulated`` without a GPU.

    Parameters
    ----------
    path : pathlib.Path
        The library.

    Raises
    ------
    BridgeError
        If it cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        # Read when a context is first used: contexts are streams where there are fewer GPUs.
        os.environ["GLUON_SYNCBN_SHARE_GPUS"] = "1"
        try:
            self._library = ctypes.CDLL(str(path.resolve()))
        except OSError as error:
            raise BridgeError(f"{path}: {error}; scripts/check_gpu.sh builds it") from error
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        signatures = {
            "device": [ctypes.c_int, ctypes.POINTER(_Device)],
            "open": [
                ctypes.c_int,
                ctypes.POINTER(_Context),
                ctypes.c_int,
                number,
                number,
                ctypes.c_double,
                ctypes.c_double,
                ctypes.POINTER(pointer),
            ],
            "finish": [ctypes.c_int],
            **{name: [pointer] for name in (*Round.PHASES, "close")},
        }
        for name, arguments in signatures.items():
            function = getattr(self._library, f"gpu_bridge_{name}")
            function.argtypes = arguments
            function.restype = None if name == "close" else ctypes.c_char_p

    def call(self, name: str, *arguments: object) -> None:
        """Call gpu_bridge_NAME; raise `BridgeError` with what went wrong."""
        error = getattr(self._library, f"gpu_bridge_{name}")(*arguments)
        if error is not None:
            raise BridgeError(error.decode())

    def stream(self, context: int) -> int | None:
        """Return the CUDA stream of a context; None where the GPU is emulated."""
        stream: int | None = self._device(context).stream
        return stream

    def cache_bytes(self) -> int:
        """Return the size of the first GPU's L2 cache."""
        return int(self._device(0).cache_bytes)

    def finish(self, contexts: int) -> None:
        """Wait for all work on contexts 0, 1, ...; raise `BridgeError` with what went wrong."""
        self.call("finish", contexts)

    def _device(self, context: int) -> _Device:
        device = _Device()
        self.call("device", context, ctypes.byref(device))
        return device


class Round:
    """A layer on contexts 0, 1, ... with the arrays of a step; leave the ``with`` block to end it.

    Each of `PHASES` is a method that puts its work on the streams of the contexts, behind that of
    the phases before.

    Parameters
    ----------
    bridge : Bridge
        The library.
    parts : sequence of Part
        Arrays of each context, which have to outlive the round.
    dtype : {'float32', 'float64', 'float16'}
        Type of the data.
    channels, inner : int
        Size of the channel axis, and of all axes behind it together.
    """

    PHASES = ("moments", "normalize", "gradient_sums", "input_gradient")

    def __init__(
        self, bridge: Bridge, parts: Sequence[Part], dtype: str, channels: int, inner: int
    ) -> None:
        self._bridge = bridge
        contexts = (_Context * len(parts))()
        for context, part in zip(contexts, parts):
            context.outer = part.outer
            for name in ARRAYS:
                setattr(context, name, part.pointers[name])
        self._handle = ctypes.c_void_p()
        bridge.call(
            "open",
            len(parts),
            contexts,
            ELEMENTS.index(dtype),
            channels,
            inner,
            EPS,
            MOMENTUM,
            ctypes.byref(self._handle),
        )

    def moments(self) -> None:
        self._bridge.call("moments", self._handle)

    def normalize(self) -> None:
        self._bridge.call("normalize", self._handle)

    def gradient_sums(self) -> None:
        self._bridge.call("gradient_sums", self._handle)

    def input_gradient(self) -> None:
        self._bridge.call("input_gradient", self._handle)

    def forward(self) -> None:
        self.moments()
        self.normalize()

    def backward(self) -> None:
        self.gradient_sums()
        self.input_gradient()

    def close(self) -> None:
        """Give back what the library holds for this round."""
        self._bridge.call("close", self._handle)
        self._handle = ctypes.c_void_p()

    def __enter__(self) -> Round:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
