"""Puts what this package has in the place of MXNet's, in each process of a program."""

from __future__ import annotations

import atexit
import functools
import os
from multiprocessing import util
from typing import Callable

from ..library import LIBRARY
from . import first_calls, layers, operators, summary


def prepare() -> None:
    """Replace layers and operators as ``GLUON_SYNCBN_RUN`` says, and count what synchronizes."""
    root, convert, num_devices, file = os.environ["GLUON_SYNCBN_RUN"].split(" ", 3)
    options = convert == "1", int(num_devices) or None
    layers.replace(*options)
    operators.replace(*options)
    first_calls.serialize()
    summary.rounds = LIBRARY.rounds
    _count()
    os.register_at_fork(after_in_child=_count)
    report = functools.partial(summary.report, int(root), file)
    atexit.register(report)
    _report_at_end(report)
    util.register_after_fork(report, _report_at_end)
    end = functools.partial(_report_and_exit, int(root), options[0], file)
    os._exit = first_calls.wrapped(os._exit, end)


def _count() -> None:
    """Begin to count, in a forked process too. The library's counts begin at 0 there."""
    LIBRARY.count_rounds()
    for each in (summary.made, summary.left_layers, summary.left_operators):
        each.clear()


def _report_and_exit(root: int, converts: bool, file: str, theirs: Callable, status: int) -> None:
    """End a process without its handlers of atexit, as children do that the program forks."""
    try:
        if os.getpid() == root:
            summary.summarize(converts, file)
        else:
            summary.report(root, file)
    finally:
        theirs(status)


def _report_at_end(report: Callable[[], None]) -> None:
    """Report in processes that multiprocessing forks, which end without atexit."""
    util.Finalize(None, report, exitpriority=0)
