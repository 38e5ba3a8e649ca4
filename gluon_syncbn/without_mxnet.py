"""What to report if MXNet cannot be imported. This module needs no MXNet."""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
import sys
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from pathlib import Path
from typing import Iterator

import _gluon_syncbn_nvidia as nvidia

from . import driver
from ._version import __version__

__all__ = ["explained"]


def explained(error: Exception) -> BaseException:
    """Return the exception to raise if the import of MXNet has failed.

    On the command line it ends the process without a traceback. ``diagnose`` prints facts about the
    machine first.
    """
    if not isinstance(error, nvidia.LibraryError):
        message = (
            f"gluon_syncbn needs Apache MXNet 1.9.1, which could not be imported: {error}. Install "
            "it together with gluon_syncbn, in one call, so that pip picks a NumPy that MXNet can "
            "use: pip install 'gluon_syncbn[cpu]' or 'gluon_syncbn[cu112]'."
        )
        error = ImportError(message)
    if sys.argv[0] != "-m" and Path(sys.argv[0]).name != "gluon-syncbn":
        return error
    if sys.argv[1:2] == ["diagnose"]:
        for name, value in _facts():
            print(f"{name:<36}{value}", flush=True)
    return SystemExit(f"error: {error}")


def _facts() -> Iterator[tuple[str, str]]:
    yield "gluon_syncbn", f"{__version__} ({Path(__file__).parent})"
    yield "Python", f"{platform.python_version()} ({sys.executable})"
    yield "system", platform.platform()
    gpu_build = _gpu_build()
    yield "GPU backend", gpu_build
    yield "NVIDIA driver", driver.describe(gpu_build)
    names = re.compile(r"(mxnet|nvidia)(-.*)?|numpy")
    for found in sorted(distributions(), key=lambda found: str(found.metadata["Name"])):
        if names.fullmatch(str(found.metadata["Name"]).lower().replace("_", "-")):
            yield f"package {found.metadata['Name']}", found.version
    spec = PathFinder.find_spec("mxnet")
    folders = (spec and spec.submodule_search_locations) or []
    yield "MXNet", ", ".join(folders) or "not installed"
    for folder in folders:
        yield from _libraries(Path(folder, "libmxnet.so"))


def _gpu_build() -> str:
    try:
        build = ctypes.CDLL(
            str(Path(__file__).with_name("libgluon_syncbn.so"))
        ).gluon_syncbn_gpu_build
    except (OSError, AttributeError) as error:
        return f"unknown: {error}"
    build.restype = ctypes.c_char_p
    return str(build().decode())


def _libraries(library: Path) -> Iterator[tuple[str, str]]:
    """Say where the libraries are that the linker does not find."""
    try:
        command = ["ldd", str(library)]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        yield str(library), f"unknown: {error}"
        return
    for name in re.findall(r"(\S+) => not found", listed):
        yield f"needs {name}", str(nvidia._find(name) or "missing")
