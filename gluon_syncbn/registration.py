"""Register the operator with MXNet, for as long as the process lives."""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import sys
from typing import Any, Callable

import mxnet as mx

from . import cpu_contexts, standstill
from .library import LIBRARY, CpuContextCheck, FirstUse, LiveArrays, write_text
from .mxnet_versions import IS_2
from .symbols.graph import has_norms
from .timeout import set_timeout_from_environment, watch_cells


def start() -> None:
    """Prepare MXNet and register the operator at the import, in any order."""
    cpu_contexts.prepare_at_import()
    _register_operator()
    set_timeout_from_environment()
    standstill.watch()
    watch_cells()


def _register_operator() -> None:
    libmxnet = mx.base._LIB._name.encode()
    error = LIBRARY.register(libmxnet, _check_cpu_contexts, _visit_live_arrays, _keep_modes)
    if error is not None:
        raise ImportError(f"gluon_syncbn could not register its operator: {error}")
    # Python calls this handler before MXNet's own, because it is registered later.
    atexit.register(end_all_waiting)


@CpuContextCheck
def _check_cpu_contexts(several: int, message: ctypes.Array, size: int) -> None:
    try:
        problem = cpu_contexts.find_problem(several=bool(several))
    except Exception as error:  # an exception cannot leave through native code
        problem = f"the settings for CPU contexts could not be checked: {error!r}"
    write_text(problem or "", message, size)


@FirstUse  # programs without the operator keep executors as they are
def _keep_modes() -> None:
    """Let ``Executor.forward`` wait for the last pass if it changes between training and inference.

    An operation reads the mode when it runs. All passes of an executor share it (``RunOps`` in
    mxnet/src/executor/graph_executor.cc). So ``forward_backward; update; forward(is_train=False)``
    of a Module would turn the training pass into inference on the devices that have not run it yet,
    and the other devices would wait for them. Executors without the layer stay as they are.
    """
    if IS_2:  # which has another executor
        return
    forward = mx.executor.Executor.forward

    @functools.wraps(forward)
    def wait_and_forward(self: Any, is_train: bool = False, **arrays: Any) -> Any:
        if not hasattr(self, "_gluon_syncbn_mode"):  # which is None without the layer
            self._gluon_syncbn_mode = is_train if has_norms(self._symbol) else None
        if self._gluon_syncbn_mode not in (None, is_train):
            for output in self.outputs:
                output.wait_to_read()
            self._gluon_syncbn_mode = is_train
        return forward(self, is_train, **arrays)

    mx.executor.Executor.forward = wait_and_forward


@LiveArrays
def _visit_live_arrays(visitor: Callable[[int], None]) -> None:
    arrays = [each for each in gc.get_objects() if issubclass(type(each), mx.nd.NDArray)]
    for array in arrays:
        gradient = array.grad  # the program may hold it through this array alone
        visitor(array.handle)
        if gradient is not None:
            visitor(gradient.handle)


def end_all_waiting() -> None:
    """At the end of the process, fail the passes that wait.

    MXNet then waits for all operations (_notify_shutdown in mxnet/python/mxnet/base.py), and these
    would never end. Other errors are the program's, and are raised, unless an error has already
    ended the program.
    """
    expected = [LIBRARY.leave_processes(), LIBRARY.retire()]
    try:
        mx.nd.waitall()
    except mx.base.MXNetError as error:
        shown = hasattr(sys, "last_value")
        if not shown and not any(words in str(error) for words in expected):
            raise
    finally:
        LIBRARY.wait_for_errors()
