"""The report of ``python -m gluon_syncbn diagnose``, also if the import fails."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from pathlib import Path
from typing import Iterator

from .. import nvidia_libraries
from .._version import __version__
from ..options import is_command

_PACKAGE = Path(__file__).parent.parent


def main() -> int:
    """Print the report; return 0 if the self-tests passed and 1 otherwise."""
    from . import self_test

    for name, value in _facts():
        print(f"{name:<36}{value}")
    failed = False
    for device_type in ("cpu", "gpu"):
        contexts = self_test.contexts_of(device_type)
        if not contexts:
            print(f"{'self-test on GPU contexts':<36}not run: MXNet finds no GPU")
            continue
        failure = self_test.find_failure(device_type)
        failed = failed or failure is not None
        name = f"self-test on {', '.join(map(str, contexts))}"
        print(f"{name:<35} {'passed' if failure is None else f'FAILED: {failure}'}")
    return 1 if failed else 0


def _facts() -> Iterator[tuple[str, object]]:
    import mxnet as mx
    import numpy as np

    from .. import cpu_contexts, gpu_contexts
    from ..library import LIBRARY, library_path
    from ..timeout import get_timeout

    yield "gluon_syncbn", __version__
    yield "native library", library_path()
    yield "built as", LIBRARY.build_info()
    yield from gpu_contexts.describe().items()
    yield "GPUs for it", LIBRARY.gpu_devices()
    yield "MXNet", f"{mx.__version__} ({mx.base._LIB._name})"
    yield "MXNet's engine", LIBRARY.engine()
    features = mx.runtime.Features()
    names = ("CUDA", "CUDNN", "NCCL", "MKLDNN", "ONEDNN", "OPENMP")
    enabled = (name for name in names if name in features and features.is_enabled(name))
    yield "MXNet features", ", ".join(enabled) or "none of interest"
    try:
        yield "GPUs for MXNet", mx.context.num_gpus()
    except mx.base.MXNetError as error:
        yield "GPUs for MXNet", f"none: {str(error).splitlines()[-1]}"
    yield "NumPy", np.__version__
    yield "Python", platform.python_version()
    yield "system", platform.platform()
    yield "timeout", f"{get_timeout():g} s" if get_timeout() else "never"
    for name in (*cpu_contexts.SETTINGS, "MXNET_ENGINE_TYPE"):
        yield name, os.environ.get(name, "not set")
    yield from cpu_contexts.describe().items()
    for name, several in (("one CPU context", False), ("several CPU contexts", True)):
        problem = cpu_contexts.find_problem(several)
        yield name, "safe" if problem is None else f"refused: {problem}"


def explain(error: Exception) -> str:
    """Say why MXNet cannot be imported, and what to do."""
    advice = ""
    if isinstance(error, AttributeError) and "np." in str(error):  # of NumPy itself
        numpy = sys.modules["numpy"].__version__
        reason = f"NumPy {numpy} is installed, and MXNet's packages need one below 1.24."
        advice = " This command installs one: pip install 'numpy<1.24'"
    else:
        reason = (
            "gluon_syncbn needs Apache MXNet 1.9.1 or 2, which could not be imported: "
            f"{str(error).rstrip('.')}."
        )
        if isinstance(error, ModuleNotFoundError) and error.name == "mxnet":
            advice = (
                " This command adds MXNet 1.9.1, and a NumPy for it, to the installed package: "
                "pip install 'gluon_syncbn[cpu]' (or cu112, or mxnet2)"
            )
    return reason + advice


def failed_import(error: Exception) -> BaseException:
    """Return `error`, or on the command line an exit without a traceback, after the facts."""
    if not is_command():
        return error
    if sys.argv[1:2] == ["diagnose"]:
        for name, value in _facts_without_import():
            print(f"{name:<36}{value}", flush=True)
    return SystemExit(f"error: {error}")


def _facts_without_import() -> Iterator[tuple[str, str]]:
    yield "gluon_syncbn", f"{__version__} ({_PACKAGE})"
    yield "Python", f"{platform.python_version()} ({sys.executable})"
    yield "system", platform.platform()
    try:
        from .. import gpu_contexts

        yield from gpu_contexts.describe().items()
    except (ImportError, OSError, AttributeError) as error:
        yield "NVRTC", f"unknown: {error}"
    names = re.compile(r"(mxnet|nvidia)(-.*)?|numpy")
    for found in sorted(distributions(), key=lambda found: str(found.metadata["Name"])):
        if names.fullmatch(str(found.metadata["Name"]).lower().replace("_", "-")):
            yield f"package {found.metadata['Name']}", found.version
    spec = PathFinder.find_spec("mxnet")
    folders = (spec and spec.submodule_search_locations) or []
    yield "MXNet", ", ".join(folders) or "not installed"
    for folder in folders:
        yield from _missing_libraries(Path(folder, "libmxnet.so"))


def _missing_libraries(library: Path) -> Iterator[tuple[str, str]]:
    """Say where the libraries are that the linker does not find by itself."""
    try:
        command = ["ldd", str(library)]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        yield str(library), f"unknown: {error}"
        return
    for name in re.findall(r"(\S+) => not found", listed):
        yield f"needs {name}", str(nvidia_libraries.find_library(name) or "missing")
