"""The marker own_process: a test runs in a fresh interpreter.

Keyword arguments are environment variables; None removes one. The test is the only one of another
pytest, without plugins, because their threads would count as threads of the program.
"""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest

from tests.support.processes import run_interpreter

_VARIABLE = "TEST_IN_OWN_PROCESS"
_IS_OWN = os.environ.pop(_VARIABLE, None) is not None
if _IS_OWN:
    # Jobs of a shell in the background ignore the signal, and so would the test.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def case(*values: Any, **variables: str) -> Any:
    """Return a case of pytest.mark.parametrize that has variables of its own."""
    return pytest.param(*values, marks=pytest.mark.own_process(**variables))


def _environment(item: pytest.Item) -> dict[str, Any] | None:
    """Return the variables for the interpreter of a test; None if the test runs in this one."""
    marks = [] if _IS_OWN else list(item.iter_markers("own_process"))  # of the function, of a case
    return {name: value for mark in marks for name, value in mark.kwargs.items()} if marks else None


def pytest_itemcollected(item: pytest.Item) -> None:
    if _environment(item) is not None:
        item.fixturenames = []  # the other process makes them


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    environment = _environment(pyfuncitem)
    if environment is None:
        return None
    own = {_VARIABLE: "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": None}
    options = ("-qs", "-rs", "--color=no", "-p", "no:cacheprovider")
    options += ("-W", "ignore::pytest.PytestConfigWarning")
    command = ("-u", "-m", "pytest", *options, pyfuncitem.nodeid)
    end = run_interpreter(*command, status=None, **{**own, **environment})
    skipped = re.search(r"^SKIPPED \[1\] \S+: (.*)$", end.stdout, re.MULTILINE)
    if skipped and end.returncode == 0:
        pytest.skip(skipped[1])
    if end.returncode != 0 or not re.search(r"^1 passed\b", end.stdout, re.MULTILINE):
        pytest.fail(f"exit status {end.returncode}\n{end.stdout}{end.stderr}", pytrace=False)
    return True
