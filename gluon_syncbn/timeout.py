"""How long a device waits for the others, and the end of a step that was interrupted."""

from __future__ import annotations

import numbers
import os
import sys
import warnings
from typing import Any

import mxnet as mx

from . import processes
from .environment import switch
from .library import LIBRARY
from .standstill import other_processes_take_part


# The default and the time of the warning are in src/common/watchdog.h.
def set_timeout(seconds: float) -> None:
    """Set how long a device waits for the others.

    After 10 s, or a tenth of a shorter time, a warning names the missing devices; after 2 to 3 s if
    no thread of the process computes. At the end, every waiting device gets an ``MXNetError`` with
    the layer, the round, the devices that came, the missing ones and the likely causes. If the only
    thread of the program waits for a CPU context, and no other process takes part, the error comes
    after 2 to 3 s. The next step repeats the error, unless `drop_step` is called.

    Parameters
    ----------
    seconds : float
        Seconds from the arrival of the first device; 0 waits forever. The default is 300, or the
        environment variable ``GLUON_SYNCBN_TIMEOUT`` at import.

    Raises
    ------
    ValueError
        If `seconds` is negative or not a finite number.
    """
    is_number = isinstance(seconds, numbers.Real)
    if not is_number or not 0 <= seconds < float("inf"):
        raise ValueError(f"seconds={seconds!r} should be a finite number, 0 or greater")
    LIBRARY.set_timeout(float(seconds))


def get_timeout() -> float:
    """Return how many seconds a device waits for the others; 0 means forever."""
    return LIBRARY.timeout()


def set_timeout_from_environment() -> None:
    """Set the timeout that the environment variable ``GLUON_SYNCBN_TIMEOUT`` asks for, if any."""
    try:
        if value := os.environ.get("GLUON_SYNCBN_TIMEOUT"):
            set_timeout(float(value))
    except ValueError as error:
        raise ImportError(f"environment variable GLUON_SYNCBN_TIMEOUT: {error}") from error


def drop_step() -> None:
    """Forget a step that has failed or was interrupted, so that the next one is whole.

    After an error that the program has read, MXNet may update weights with arrays that no operation
    has written. So the next step fails too, on all devices, unless this function is called. Restore
    the weights first if they were updated.

    A stopped cell of a notebook, or a caught exception, may end a step between the calls of two
    devices. The first device then waits for the second, and would meet its call of the next step.
    This function waits until all other operations have run, fails the devices that wait, and takes
    the errors of layers. It needs about a second if any device waits.

    If other processes take part, it waits until the threads of this process have nothing to do, for
    a minute at most, because an operation of Horovod may wait for a process that does not come. It
    leaves errors to be read, and prints the messages that other processes have not answered.

    In IPython, each cell that ended with an error calls it, unless the environment variable
    ``GLUON_SYNCBN_NOTEBOOK`` is 0.

    Raises
    ------
    MXNetError
        If another operation than a layer of this package has failed.
    """
    error = LIBRARY.drop_step(other_processes_take_part())
    if error is not None:
        raise mx.base.MXNetError(error)


def watch_cells() -> None:
    """Call `drop_step` after each cell that ended with an error, if this is a notebook."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    if (shell := get_shell()) is not None:
        shell.events.register("post_run_cell", _after_cell)


def _after_cell(result: Any) -> None:
    if result.success or switch("GLUON_SYNCBN_NOTEBOOK") is False:
        return
    if processes.default() is not None:
        return  # the other processes may still compute the step, which ends with their timeout
    try:
        drop_step()
    except mx.base.MXNetError as error:  # MXNet raises it once, and IPython has shown the cell's
        warnings.warn(f"an operation of the cell failed as well: {error}", stacklevel=1)
