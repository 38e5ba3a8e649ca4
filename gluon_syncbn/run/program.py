"""Runs a script or module as Python itself would.

An exception of the script passes through, so that the interpreter decides the exit status.
"""

from __future__ import annotations

import builtins
import functools
import os
import pkgutil
import runpy
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class NothingToRunError(Exception):
    """There is no such module, or no ``__main__`` in it. The message is that of Python."""


def is_readable(path: str) -> bool:
    """Whether Python could run `path`."""
    return Path(path).exists() and os.access(path, os.R_OK)


def run(arguments: list[str], is_module: bool) -> None:
    """Run a script, or a module, with its arguments."""
    is_folder = not is_module and pkgutil.get_importer(arguments[0]) is not None
    sys.argv[:] = arguments
    try:
        (_run_module if is_module else _run_folder if is_folder else _run_script)(arguments[0])
    except (NothingToRunError, SystemExit):
        raise
    except BaseException as error:
        if isinstance(error, ImportError) and _comes_from_runpy(error):
            raise NothingToRunError(error) from None
        # The hook is read here, because the script may have set its own.
        sys.excepthook = functools.partial(_show_from_script, sys.excepthook)
        raise


def _run_script(path: str) -> None:
    _set_first_folder(str(Path(path).resolve().parent))
    file = _as_in_file(path)
    source = Path(file).read_bytes()
    main = ModuleType("__main__")
    main.__dict__.update(
        __annotations__={},
        __builtins__=builtins,
        __cached__=None,
        __file__=file,
        __loader__=SourceFileLoader("__main__", file),
    )
    sys.modules["__main__"] = main
    exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)


def _run_module(name: str) -> None:
    _set_first_folder(str(Path.cwd()))
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_folder(path: str) -> None:
    """Run ``__main__.py`` of a folder or zip file."""
    folder = _as_in_file(path)
    spec = PathFinder.find_spec("__main__", [folder])
    if spec is None or spec.loader is None:
        raise NothingToRunError(f"can't find '__main__' module in '{folder}'")
    # Python imports from this folder whatever the flags say.
    sys.path[:] = [folder, *(sys.path if _keeps_path() else sys.path[1:])]
    main = sys.modules["__main__"] = module_from_spec(spec)
    exec(spec.loader.get_code("__main__"), main.__dict__)  # type: ignore[attr-defined]


def _as_in_file(path: str) -> str:
    """Return the path as ``__file__`` has it. Since Python 3.9 it is absolute."""
    return path if sys.version_info < (3, 9) else str(Path(path).absolute())


def _set_first_folder(folder: str) -> None:
    """Let the program import from `folder`, as Python does unless it was started with -I or -P."""
    if not _keeps_path():
        sys.path[0] = folder


def _keeps_path() -> bool:
    return bool(sys.flags.isolated or getattr(sys.flags, "safe_path", False))


def _comes_from_runpy(error: ImportError) -> bool:
    """Whether runpy found nothing to run."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_globals.get("__name__") == "runpy"


def _show_from_script(
    show: Callable, kind: type, error: BaseException, traceback: TracebackType | None
) -> None:
    """Show an error without the frames between the interpreter and the script."""
    rest = traceback
    while rest is not None:
        if rest.tb_frame.f_code.co_filename == __file__:
            traceback = rest.tb_next
        rest = rest.tb_next
    error.__traceback__ = traceback
    show(kind, error, traceback)
