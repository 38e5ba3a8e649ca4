"""A plugin for pytest that writes the outcome of each test to a file as soon as it is known.

A test that crashes or hangs ends the process, and a report at the end would lose all tests.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

NO_RESULT = "no result"  # the test started, and the process ended in it


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Leave out the tests that ran before another one ended the process."""
    file = Path(os.environ["OTHERS_OUTCOMES"])
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    known = {json.loads(line)[0] for line in lines}
    items[:] = [item for item in items if item.nodeid not in known]


def pytest_runtest_logstart(nodeid: str) -> None:
    """Write that a test has started."""
    _write(nodeid, NO_RESULT, "")


def pytest_runtest_logreport(report: Any) -> None:
    """Write the outcome of a test; failures of its setup and teardown count too."""
    if report.when == "call" or report.outcome != "passed":
        crash = getattr(report.longrepr, "reprcrash", None)
        _write(report.nodeid, report.outcome, getattr(crash, "message", ""))


def pytest_collectreport(report: Any) -> None:
    """Write that a file could not be imported."""
    if report.failed:
        _write(report.nodeid, "failed", str(report.longrepr)[-300:])


def _write(test: str, outcome: str, message: str) -> None:
    with Path(os.environ["OTHERS_OUTCOMES"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps([test, outcome, message[:300]]) + "\n")
