"""What the benchmark needs of a GPU, and the arrays that its methods take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gpu_benchmarks.bridge import ARRAYS, Bridge, Part
from gpu_benchmarks.cases import Case


class Device(Protocol):
    """A library of arrays, with streams and timing."""

    def describe(self) -> dict[str, str]:
        """Say what is measured on."""

    def free_bytes(self) -> int:
        """Memory that arrays can have."""

    def normal(self, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
        """Make normal numbers of deviation 1."""

    def full(self, shape: tuple[int, ...], dtype: str, value: float) -> Any:
        """Make an array of one value."""

    def address(self, array: Any) -> int:
        """Return where an array begins."""

    def double(self, array: Any) -> Any:
        """Return a copy in float64."""

    def copy(self, to: Any, source: Any) -> None:
        """Put a copy on the current stream."""

    def library_streams(self, bridge: Bridge, contexts: int) -> list[Any]:
        """Return the streams on which the library works."""

    def seconds(self, work: Callable[[], None], streams: Sequence[Any]) -> float:
        """Measure the time of work that is put on the current stream or on `streams`."""

    def finish(self) -> None:
        """Wait for all streams."""


class Slot:
    """The arrays of one step.

    Attributes
    ----------
    x, dy, y, dx : array, shape (batch, channels, side, side) or (batch, side, side, channels)
        Data of all contexts.
    gamma, beta : array, shape (channels,)
        Parameters.
    mean, var, dgamma, dbeta : array, shape (contexts, channels)
        Running statistics, and what each context gives to the gradients of gamma and beta.
    """

    def __init__(self, case: Case, device: Device, seed: int) -> None:
        pixels = (case.side, case.side)
        shape = (
            (case.batch, *pixels, case.channels)
            if case.channel_last
            else (case.batch, case.channels, *pixels)
        )
        parameter = "float32" if case.dtype == "float16" else case.dtype
        self._case, self._device = case, device
        self.x = device.normal(shape, case.dtype, 4 * seed)
        self.dy = device.normal(shape, case.dtype, 4 * seed + 1)
        self.y = device.full(shape, case.dtype, 0)
        self.dx = device.full(shape, case.dtype, 0)
        self.gamma = device.normal((case.channels,), parameter, 4 * seed + 2)
        self.beta = device.normal((case.channels,), parameter, 4 * seed + 3)
        each = (case.contexts, case.channels)
        self.mean = device.full(each, parameter, 0)
        self.var = device.full(each, parameter, 1)
        self.dgamma = device.full(each, parameter, 0)
        self.dbeta = device.full(each, parameter, 0)

    def shard(self, array: Any, context: int) -> Any:
        """Return what a context has of x, dy, y or dx."""
        size = self._case.batch // self._case.contexts
        return array[context * size : (context + 1) * size]

    def part(self, context: int) -> Part:
        """Return the arrays of a context as the library takes them."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        for name in ("x", "dy", "y", "dx"):
            arrays[name] = self.shard(arrays[name], context)
        for name in ("mean", "var", "dgamma", "dbeta"):
            arrays[name] = arrays[name][context]
        return Part(
            self._case.layout()[0] // self._case.contexts,
            {name: self._device.address(array) for name, array in arrays.items()},
        )
