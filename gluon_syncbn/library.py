"""The native library, and the C functions that it offers to Python."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ._version import __version__

_INT, _CHARACTERS = ctypes.c_int, ctypes.POINTER(ctypes.c_char)
ArrayVisitor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
LiveArrays = ctypes.CFUNCTYPE(None, ArrayVisitor)
FirstUse = ctypes.CFUNCTYPE(None)
AskPython = ctypes.CFUNCTYPE(_INT, _CHARACTERS, _INT)
CpuContextCheck = ctypes.CFUNCTYPE(None, _INT, _CHARACTERS, _INT)

_TEXT = ctypes.c_char_p
# The functions of src/exports.cc: the type of the result, then the types of the arguments.
_FUNCTIONS = {
    "add_process_set": (_TEXT, ctypes.c_void_p, _INT, _INT, _INT, _TEXT),
    "blas": (_TEXT,),
    "build_info": (_TEXT,),
    "code_cache": (_TEXT,),
    "count_rounds": (None,),
    "drop_step": (_TEXT, ctypes.c_bool),
    "give_cpu_contexts_workspaces": (_TEXT, _TEXT),
    "engine": (_TEXT,),
    "gpu_devices": (_TEXT,),
    "leave_processes": (_TEXT,),
    "num_keys": (ctypes.c_size_t,),
    "nvrtc": (_TEXT,),
    "operators_have_run": (ctypes.c_bool, _TEXT),
    "register": (_TEXT, _TEXT, CpuContextCheck, LiveArrays, FirstUse),
    "retire": (_TEXT,),
    "rounds": (_TEXT,),
    "set_ask_python": (None, AskPython),
    "set_frozen": (None, _TEXT, ctypes.c_bool),
    "set_timeout": (None, ctypes.c_double),
    "timeout": (ctypes.c_double,),
    "use_openblas": (_TEXT, _TEXT, _TEXT),
    "wait_for_errors": (None,),
}

PAGES = Path(__file__).with_name("docs")  # the documentation


def write_text(text: str, to: Any, size: int) -> None:
    """Write an answer to a function of the library, which has memory for `size` bytes."""
    encoded = text.encode()[: size - 1]
    ctypes.memmove(to, encoded + b"\0", len(encoded) + 1)


def library_path() -> Path:
    """Path of this package's native library, or of ``GLUON_SYNCBN_LIBRARY`` in tests."""
    other = os.environ.get("GLUON_SYNCBN_LIBRARY")
    return Path(other) if other else Path(__file__).with_name("libgluon_syncbn.so")


def _load() -> SimpleNamespace:
    path = library_path()
    if not path.exists():
        sources = Path(__file__).resolve().parents[1]
        if (sources / "CMakeLists.txt").exists():
            raise ImportError(
                f"{sources} has the sources of gluon_syncbn without the native library, and Python "
                "takes them before an installed package because it runs there: run it in another "
                "folder, or build the library there: pip install -e ."
            )
        raise ImportError(
            f"gluon_syncbn was installed without its native library {path}; "
            "build and install it with: pip install ."
        )
    library, functions = ctypes.CDLL(str(path)), SimpleNamespace()
    _require_version(library, path)
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, f"gluon_syncbn_{name}")
        function.restype, function.argtypes = result, arguments
        function.errcheck = _decoded
        setattr(functions, name, function)
    return functions


def _require_version(library: ctypes.CDLL, path: Path) -> None:
    build_info = library.gluon_syncbn_build_info  # which every version has
    build_info.restype = _TEXT
    version = build_info().decode().partition(",")[0]
    if version != __version__:
        raise ImportError(
            f"{path} is the native library of gluon_syncbn {version}, but the Python files beside "
            f"it are of {__version__}: install both again from one source, with pip install "
            "--force-reinstall --no-deps . in a clone, or the name of a wheel for the dot"
        )


def _decoded(value: Any, *_: object) -> Any:
    return value.decode() if isinstance(value, bytes) else value


LIBRARY = _load()
