"""Puts what this package has in the place of MXNet's, in this process and in its children."""

from __future__ import annotations

import atexit
import functools
from multiprocessing import spawn
from typing import TYPE_CHECKING, Any

from ..library import LIBRARY
from ..registration import end_all_waiting
from . import first_calls, layers, operators, summary

if TYPE_CHECKING:
    from collections.abc import Callable


def prepare(convert: bool, num_devices: int | None, at_exit: Callable[[], Any]) -> None:
    """Replace layers and operators, and call `at_exit` after the last operation."""
    layers.replace(convert, num_devices)
    operators.replace()
    first_calls.serialize()
    _prepare_children(convert, num_devices)
    LIBRARY.count_rounds()
    # The other handler waits for the last operation.
    atexit.unregister(end_all_waiting)
    atexit.register(at_exit)
    atexit.register(end_all_waiting)


def _prepare_children(convert: bool, num_devices: int | None) -> None:
    """Prepare the processes that ``multiprocessing`` starts anew (spawn, forkserver).

    Such a process first unpickles what its parent says of the program. An object is added there
    that prepares the process when it is unpickled, before the program's modules are imported.
    """
    describe = spawn.get_preparation_data

    @functools.wraps(describe)
    def describe_with_preparation(name: str) -> dict[str, Any]:
        return {**describe(name), "gluon_syncbn": _Preparation(convert, num_devices)}

    spawn.get_preparation_data = describe_with_preparation


class _Preparation:
    def __init__(self, *options: Any) -> None:
        self._options = options

    def __reduce__(self) -> tuple:
        # Workers that only load data have nothing to say, so there is no warning at their end.
        return prepare, (*self._options, summary.say_rounds)
