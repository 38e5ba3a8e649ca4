"""What is timed: the library, and copies of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable, Protocol

from gpu_benchmarks.bridge import Bridge, Round
from gpu_benchmarks.cases import BACKWARD, FORWARD, Case
from gpu_benchmarks.device import Device, Slot

Step = Callable[[int], None]


class Method(Protocol):
    """Steps on slots.

    Attributes
    ----------
    streams : sequence
        Where its work is put, besides the current stream.
    parts : dict
        What to time, by name, in an order in which each finds what those before left for it. Each
        takes the number of a slot.
    """

    streams: Sequence[Any]
    parts: Mapping[str, Step]

    def results(self, slot: int) -> dict[str, Any]:
        """Return y, dx, dgamma and dbeta of the whole batch, as far as it computes them."""

    def close(self) -> None:
        """Give back what is held on the GPU."""


class Ours:
    """The library's four phases."""

    def __init__(self, case: Case, device: Device, slots: Sequence[Slot], bridge: Bridge) -> None:
        _, channels, inner = case.layout()
        self._slots = slots
        self._finish = lambda: bridge.finish(case.contexts)
        self._rounds = [
            Round(
                bridge,
                [slot.part(context) for context in range(case.contexts)],
                case.dtype,
                channels,
                inner,
            )
            for slot in slots
        ]
        self.streams: Sequence[Any] = device.library_streams(bridge, case.contexts)
        names = ("forward", "backward", *FORWARD, *BACKWARD)
        self.parts: Mapping[str, Step] = {name: self._part(name) for name in names}

    def _part(self, name: str) -> Step:
        return lambda slot: getattr(self._rounds[slot], name)()

    def results(self, slot: int) -> dict[str, Any]:
        self._finish()
        arrays = self._slots[slot]
        return {
            "y": arrays.y,
            "dx": arrays.dx,
            "dgamma": arrays.dgamma.sum(0),
            "dbeta": arrays.dbeta.sum(0),
        }

    def close(self) -> None:
        self._finish()
        for each in self._rounds:
            each.close()


class Copy:
    """A copy of x to y."""

    streams: Sequence[Any] = ()

    def __init__(self, device: Device, slots: Sequence[Slot]) -> None:
        self.parts: Mapping[str, Step] = {
            "copy": lambda slot: device.copy(slots[slot].y, slots[slot].x)
        }

    def results(self, slot: int) -> dict[str, Any]:
        del slot  # that it copies is not in doubt
        return {}

    def close(self) -> None:
        pass
