"""Programs in interpreters of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Callable

from gluon_syncbn.cpu_contexts import SETTINGS

ROOT = Path(__file__).parent.parent.parent


def clean_environment() -> dict[str, str]:
    """Return the environment without the variables that importing gluon_syncbn sets."""
    return {name: value for name, value in os.environ.items() if name not in SETTINGS}


def run_interpreter(
    *arguments: str,
    status: int | None = 0,
    stdin: str | None = None,
    timeout: float = 300,
    folder: Path = ROOT,
    **environment: str | None,
) -> subprocess.CompletedProcess:
    """Run Python in a clean environment and expect it to exit with `status`; None is any.

    A variable whose value is None is removed.
    """
    variables = {**clean_environment(), **environment}
    try:
        result = subprocess.run(
            [sys.executable, *arguments],
            env={name: value for name, value in variables.items() if value is not None},
            cwd=folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = ((error.stdout or b"") + (error.stderr or b"")).decode(errors="replace")
        raise AssertionError(f"{error}\n{said}") from None
    assert status in (None, result.returncode), result.stdout + result.stderr
    return result


def run_python(program: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess:
    """Run `program`, with the options of `run_interpreter`."""
    return run_interpreter("-c", program, *arguments, **options)


def run_program(name: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess:
    """Call a function of tests/programs, such as "life.exit_with_an_error", by `run_python`.

    The arguments are literals of Python.
    """
    module, _, _ = name.partition(".")
    program = f"from tests.programs import {module}; {name}(*{arguments!r})"
    return run_python(program, **options)


def in_child(body: Callable[[], Any]) -> None:
    """Fork, and expect the child to do this without an error."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
