"""Builds programs of the native tests where scripts/test.sh builds them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from tests.support.processes import ROOT

FOLDER = ROOT / "build" / "native-plain"


def build(target: str) -> Path:
    """Build what is not there yet, and return the folder."""
    FOLDER.parent.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DGLUON_SYNCBN_BUILD_TESTS=ON"]
    options += ["-DGLUON_SYNCBN_WERROR=ON", "-DGLUON_SYNCBN_SANITIZE="]
    options += [f"-DGLUON_SYNCBN_CUDA={os.environ.get('GLUON_SYNCBN_CUDA', 'AUTO')}"]
    with FOLDER.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests of another process build here too
        for command in (
            ["cmake", "-S", str(ROOT), "-B", str(FOLDER), "-G", "Ninja", *options],
            ["cmake", "--build", str(FOLDER), "--target", target],
        ):
            result = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
            assert result.returncode == 0, result.stdout + result.stderr
    return FOLDER
