"""The arguments of the layer, checked before MXNet stores them.

The operator checks its attributes again, because anyone may have written a symbol file
(src/operator/attributes.cc).
"""

from __future__ import annotations

import numbers
import sys
from typing import Any, Callable

import numpy as np

from .activations import ACTIVATIONS, INVERTIBLE, WITH_ALPHA


def _is_number(value: Any, least: float = 0, most: float = sys.float_info.max) -> bool:
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_real and bool(least <= value <= most)


def _is_whole(value: Any, least: float = -sys.float_info.max) -> bool:
    return _is_number(value, least) and int(value) == value


def _is_flag(value: Any) -> bool:
    return isinstance(value, (numbers.Integral, np.bool_)) and value in (0, 1)


# What each argument should be, and whether a value is.
ARGUMENTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "in_channels": ("a whole number of at least 0", lambda x: _is_whole(x, 0)),
    "axis": ("a whole number", _is_whole),
    "num_devices": (
        "a whole number of at least 0, or None for the number of contexts that the parameters live "
        "on",
        lambda x: x is None or _is_whole(x, 0),
    ),
    "sync_group_size": (
        "a whole number of at least 1, or None for all devices",
        lambda x: x is None or _is_whole(x, 1),
    ),
    "momentum": (
        "a number from 0 to 1, or None for the average over all batches",
        lambda x: x is None or _is_number(x, most=1),
    ),
    "epsilon": ("a number of at least 0", _is_number),
    "use_global_stats": ("True or False", _is_flag),
    "activation": (
        f"one of {', '.join(map(repr, ACTIVATIONS))} or None",
        lambda x: x is None or (isinstance(x, str) and x in ACTIVATIONS),
    ),
    "alpha": ("a number of at least 0", lambda x: x is None or _is_number(x)),
}


def find_problem(
    *, inplace: bool = False, process_set: int | None = None, **given: Any
) -> str | None:
    """Say what is wrong with arguments of the layer; None if nothing is."""
    for name, value in given.items():
        expected, accepts = ARGUMENTS[name]
        if not accepts(value):
            return f"{name}={value!r} should be {expected}"
    number, size = given.get("num_devices"), given.get("sync_group_size")
    if number == 0:
        number = 1
    if number is not None and size is not None and number % size:
        return f"sync_group_size={size} should divide num_devices={number}"
    if size is not None and process_set is not None:
        return (
            f"sync_group_size={size} cannot be combined with other processes; make the groups of "
            "process sets"
        )
    activation, alpha = given.get("activation"), given.get("alpha")
    kind = None if activation is None else ACTIVATIONS[activation]
    if alpha is not None and (kind is None or kind.alpha is None):
        return (
            f"alpha={alpha!r} belongs to {' and '.join(map(repr, WITH_ALPHA))}, but "
            f"activation={activation!r}"
        )
    if inplace and kind is not None and not kind.is_invertible(alpha):
        slope = "" if alpha is None else f" with alpha={alpha}"
        return (
            f"inplace=True takes an activation that can be inverted ({INVERTIBLE}), but "
            f"activation={activation!r}{slope}"
        )
    return None
