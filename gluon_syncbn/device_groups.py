"""Cuts the devices of a layer into groups, as src/sync/device_groups.h does in the operator."""

from __future__ import annotations

from typing import Any


def groups_are_whole(num_devices: int | None, size: int | None) -> bool:
    """Return whether groups of `size` leave no device out, or True if a number is None."""
    return num_devices is None or size is None or num_devices % size == 0


def in_groups(values: list[Any], size: int) -> list[list[Any]]:
    """Split a list with one value per device into a list per group."""
    return [values[first : first + size] for first in range(0, len(values), size)]
