"""Say whether the threads of the program can still call a layer for which devices wait.

``src/common/program.cc`` looks at all threads first, and asks here about those that may go on
although no other thread wakes them. A wrong yes would end a step that is only slow, so whatever is
not known counts as a no: then the warning and the timeout follow.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from .environment import switch
from .library import LIBRARY, AskPython, write_text

# As in src/common/program.h.
_STANDS_STILL, _IS_INTERRUPTED = 1, 2

# Modules of MXNet with the functions that wait for its engine.
_WAITING = ("mxnet.ndarray", "mxnet.numpy", "mxnet._ctypes", "mxnet._ffi", "mxnet.autograd")
# Packages whose threads call no layers.
_HELPERS = (
    *("tqdm", "tensorboardX", "tensorboard", "mxboard"),
    *("IPython", "ipykernel", "jupyter_client", "tornado", "traitlets", "zmq"),
    *("debugpy", "pydevd", "_pydevd_bundle", "_pydev_bundle"),
)
_NATIVE_HELPERS = ("ZMQbg/",)  # threads without Python, by name
# Threads of multiprocessing.pool and multiprocessing.queues that pass on tasks and results.
_PASSING_ON = ("_handle_workers", "_handle_tasks", "_handle_results", "_feed")
# Modules of Python that the threads of helpers and of idle workers are in.
_LIBRARY = (
    *("_weakrefset", "asyncio", "concurrent", "contextlib", "contextvars", "decorator", "weakref"),
    *("multiprocessing", "queue", "runpy", "selectors", "socket", "sqlite3", "threading"),
)
# Signals whose handlers, if they are not Python's, end the process or no wait. 32 and 33 are the C
# library's own.
_HARMLESS = {
    *(signal.SIGINT, signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE),
    *(signal.SIGSEGV, signal.SIGTRAP, signal.SIGSYS, signal.SIGWINCH, 32, 33),
}


def watch() -> None:
    """Let the watchdog ask, unless ``GLUON_SYNCBN_STANDSTILL`` is 0."""
    if switch("GLUON_SYNCBN_STANDSTILL") is not False:
        LIBRARY.set_ask_python(_answer)


@AskPython
def _answer(threads: Any, number: int, interrupted: int, place: Any, size: int) -> int:
    try:
        frames = sys._current_frames()
        frames.pop(threading.get_ident(), None)  # of this function
        main = frames.get(threading.main_thread().ident or 0)
        waits = main is not None and _waits_in_mxnet(main)
        if main is not None and waits:
            write_text(_place(main), place, size)
        answer = 0
        if _stands_still(frames, threads[:number], waits):
            answer |= _STANDS_STILL
        if interrupted and waits and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            answer |= _IS_INTERRUPTED
    except Exception:  # an exception cannot leave through native code, and nothing is known then
        return 0
    return answer


def _stands_still(frames: dict[int, FrameType], may_go_on: list[int], main_waits: bool) -> bool:
    if _has_native_handlers() or (not main_waits and (may_go_on or _has_own_handlers())):
        return False
    if not may_go_on:
        return True
    identities = {each.native_id: each.ident for each in threading.enumerate()}
    for thread in may_go_on:
        frame = frames.get(identities.get(thread) or 0)
        known = _is_native_helper(thread) if frame is None else _is_helper(frame)
        if not known:
            return False
    # A helper may wake a thread that waits for it in Python.
    return all(
        _waits_in_mxnet(each) or _is_helper(each) or _is_idle_worker(each)
        for each in frames.values()
    )


def _calls(frame: FrameType | None) -> Iterator[tuple[FrameType, str, str]]:
    """Yield the frames of a thread, the latest first, with the names of module and function."""
    while frame is not None:
        yield frame, frame.f_globals.get("__name__", ""), frame.f_code.co_name
        frame = frame.f_back


def _is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in packages)


def _waits_in_mxnet(frame: FrameType) -> bool:
    return _is_in(frame.f_globals.get("__name__", ""), _WAITING)


def _is_helper(frame: FrameType) -> bool:
    calls = list(_calls(frame))
    if not all(_is_in(module, _HELPERS + _LIBRARY) for _, module, _ in calls):
        return False
    names = [(module, name) for _, module, name in calls]
    if any(pair == (("threading", "wait"), ("threading", "run")) for pair in zip(names, names[1:])):
        return False  # a Timer calls a function of the program
    if any(name == "_handle_results" and _calls_program(each) for each, _, name in calls):
        return False
    return any(_is_in(module, _HELPERS) or name in _PASSING_ON for module, name in names)


def _calls_program(handle_results: FrameType) -> bool:
    """Whether functions of the program get results of a pool of processes."""
    jobs = handle_results.f_locals["cache"].values()
    functions = (vars(job).get(name) for job in jobs for name in ("_callback", "_error_callback"))
    return any(each is not None for each in functions)


def _is_idle_worker(frame: FrameType) -> bool:
    """Whether the thread waits for tasks, which only another thread can give it."""
    names = [(module, name) for _, module, name in _calls(frame)]
    if names[0] == ("concurrent.futures.thread", "_worker"):
        return True
    return ("multiprocessing.pool", "worker") in names and all(
        _is_in(module, _HELPERS + _LIBRARY) for module, _ in names
    )


def _is_native_helper(thread: int) -> bool:
    if "DMLC_ROLE" in os.environ:  # other hosts may wake a thread of MXNet's parameter server
        return False
    return Path(f"/proc/self/task/{thread}/comm").read_text().startswith(_NATIVE_HELPERS)


def _has_own_handlers() -> bool:
    """Whether the program handles signals, which can let its main thread go on."""
    handlers = map(signal.getsignal, signal.valid_signals())
    return any(callable(each) and each is not signal.default_int_handler for each in handlers)


def _has_native_handlers() -> bool:
    """Whether a library handles signals without Python, and so can let any thread go on."""
    status = Path("/proc/self/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
    numbers = (number for number in range(1, 65) if caught >> (number - 1) & 1)
    return any(
        number not in _HARMLESS and not callable(signal.getsignal(number)) for number in numbers
    )


def _place(frame: FrameType) -> str:
    """Return file and line of the program's own code."""
    for each, module, _ in _calls(frame):
        if not _is_in(module, ("mxnet", "gluon_syncbn", "threading")):
            return f"{each.f_code.co_filename}:{each.f_lineno}"
    return "the end of the program"
