"""Which devices form a group, as src/sync/device_groups.cc has it in the operator."""

from __future__ import annotations

from typing import Any


def groups_are_whole(num_devices: int | None, size: int | None) -> bool:
    """Whether groups of `size` leave no device out. None fits: no count yet, or one group."""
    return num_devices is None or size is None or num_devices % size == 0


def in_groups(of_devices: list[Any], size: int) -> list[list[Any]]:
    """Group the values of the devices, in the order of the contexts."""
    return [of_devices[first : first + size] for first in range(0, len(of_devices), size)]
