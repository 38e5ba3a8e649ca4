"""In IPython, forget the step of a cell that ended with an error."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import mxnet as mx

from . import processes
from .timeout import drop_step


def watch_cells() -> None:
    """Call `drop_step` after each cell that ended with an error, if this is a notebook."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    if (shell := get_shell()) is not None:
        shell.events.register("post_run_cell", _after_cell)


def _after_cell(result: Any) -> None:
    if result.success or os.environ.get("GLUON_SYNCBN_NOTEBOOK") == "0":
        return
    if processes.default() is not None:
        return  # the other processes may still compute the step, which ends with their timeout
    try:
        drop_step()
    except mx.base.MXNetError as error:  # MXNet raises it once, and IPython has shown the cell's
        warnings.warn(f"an operation of the cell failed as well: {error}", stacklevel=1)
