"""Programs in interpreters of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gluon_syncbn.cpu_contexts import SETTINGS

ROOT = Path(__file__).parent.parent


def run_python(
    program: str, *arguments: str, status: int = 0, **environment: str
) -> subprocess.CompletedProcess:
    """Run `program` without the settings that importing gluon_syncbn has left in this process."""
    inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**inherited, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result
