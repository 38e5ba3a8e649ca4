"""setup.py on made-up packages, where CMake fails."""

from __future__ import annotations

import os
import runpy
import sys
from types import SimpleNamespace


class FailedLiveProcessError(Exception):
    pass


def setup(**_: object) -> None:
    raise FailedLiveProcessError("CMake configuration failed")


def run_setup(path: str) -> None:
    """Find compilers in `path` alone."""
    os.environ.pop("CXX", None)
    os.environ["PATH"] = path
    errors = SimpleNamespace(FailedLiveProcessError=FailedLiveProcessError)
    sys.modules["setuptools"] = SimpleNamespace(setup=setup)
    sys.modules["setuptools.command.bdist_wheel"] = SimpleNamespace(bdist_wheel=object)
    sys.modules["scikit_build_core"] = SimpleNamespace()
    sys.modules["scikit_build_core.errors"] = errors
    runpy.run_path("setup.py")
