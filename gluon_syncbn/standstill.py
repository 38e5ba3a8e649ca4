"""Say where the program waits in MXNet, and whether it has a thread that can make calls.

``src/common/program.cc`` asks, for errors, warnings and Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from traceback import walk_stack
from types import FrameType
from typing import Any

from .library import LIBRARY, AskPython, write_text

# As in src/common/program.h.
_WAITS_ALONE, _STILL_WAITS_ALONE, _RAISES_INTERRUPTS = 1, 2, 4
# Modules of MXNet with functions that may wait, and the functions that wait for its engine alone.
_MODULES = ("mxnet.ndarray", "mxnet.numpy", "mxnet._ctypes", "mxnet._ffi", "mxnet.autograd")
_FUNCTIONS = ("asnumpy", "wait_to_read", "wait_to_write", "waitall", "_sync_copyfrom")

_waited_before: list[tuple[int, int]] = []


def watch() -> None:
    """Let the watchdog ask."""
    LIBRARY.set_ask_python(_answer)


def other_processes_take_part() -> bool:
    """Whether operations of MXNet may wait for other processes, as those of Horovod do."""
    return "horovod.mxnet" in sys.modules or "DMLC_ROLE" in os.environ


@AskPython
def _answer(place: Any, size: int) -> int:
    global _waited_before  # noqa: PLW0603
    try:
        before, _waited_before = _waited_before, []
        frames = sys._current_frames()
        frame = frames.get(threading.main_thread().ident or 0)
        if frame is None or not _is_in(frame, *_MODULES):
            return 0
        write_text(_place(frame), place, size)
        answer = 0
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            answer |= _RAISES_INTERRUPTS
        # This thread, the main thread, and the monitor of progress bars, which calls nothing.
        helpers = {each.ident for each in threading.enumerate() if _is_monitor(each)}
        others = frames.keys() - helpers - {threading.get_ident(), threading.main_thread().ident}
        waits = frame.f_code.co_name in _FUNCTIONS
        if others or not waits or other_processes_take_part():
            return answer
        _waited_before = [(id(each), each.f_lasti) for each, _ in walk_stack(frame)]
        return answer | _WAITS_ALONE | (_STILL_WAITS_ALONE if _waited_before == before else 0)
    except Exception:  # an exception cannot leave through native code, and nothing is known then
        return 0


def _is_monitor(thread: threading.Thread) -> bool:
    return type(thread).__module__ == "tqdm._monitor"


def _is_in(frame: FrameType, *packages: str) -> bool:
    module = frame.f_globals.get("__name__", "")
    return any(module == each or module.startswith(f"{each}.") for each in packages)


def _place(frame: FrameType) -> str:
    """Return file and line of the program's own code."""
    for each, _ in walk_stack(frame):
        if not _is_in(each, "mxnet", "gluon_syncbn", "threading"):
            return f"{each.f_code.co_filename}:{each.f_lineno}"
    return "the end of the program"
