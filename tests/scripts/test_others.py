"""How scripts/others.sh compares programs of others with and without gluon_syncbn."""

from __future__ import annotations

import numpy as np

from others import __main__ as others
from others import suites

TESTS = """
import os
import pytest

def test_right(): pass
def test_wrong(): assert False, "the reason"
def test_crash(): os._exit(3)
@pytest.mark.skip
def test_left(): pass
def test_crash_is_a_beginning_of_this_name(): pass
"""


def test_outcomes_of_a_file_that_crashes(tmp_path):
    file = tmp_path / "test_program.py"
    file.write_text(TESTS)
    outcomes = suites.run_file(file, "plain", tmp_path / "results")
    assert {name.split("::")[1]: outcome for name, (outcome, _) in outcomes.items()} == {
        "test_right": "passed",
        "test_wrong": "failed",
        "test_crash": "no result",
        "test_left": "skipped",
        "test_crash_is_a_beginning_of_this_name": "passed",
    }
    assert "the reason" in outcomes["test_program.py::test_wrong"][1]


def test_a_file_that_cannot_be_imported_differs(tmp_path):
    file = tmp_path / "test_program.py"
    file.write_text("import no_such_module")
    broken = suites.run_file(file, "plain", tmp_path / "results")
    assert suites.differences({"test_program.py::test": ("passed", "")}, broken)


def test_differences_of_outcomes():
    plain = {"a": ("passed", ""), "b": ("failed", "one reason"), "c": ("passed", "")}
    ours = {"a": ("passed", ""), "b": ("failed", "another"), "d": ("failed", "")}
    assert suites.differences(plain, plain) == []
    assert suites.differences(plain, ours) == [
        "c: did not run, plainly passed",
        "d: failed, plainly did not run",
    ]


def test_differences_of_arrays():
    plain = {"weight": np.array([1.0, 2.0]), "bias": np.zeros(2), "bn_moving_mean": np.ones(2)}
    near = {
        "weight": np.array([1.0, 2.0 + 1e-9]),
        "bias": np.full(2, 1e-16),
        "bn_moving_mean": np.full(2, 1 + 1e-6),
    }
    assert others.difference(plain, near) == "nothing"
    far = {**near, "weight": np.array([1.0, 2.02])}
    assert others.difference(plain, far) == "1 of 3 arrays: weight (1e-02)"
    assert others.difference(plain, {**near, "weight": np.full(2, np.nan)}).startswith("1 of 3")
    assert others.difference(plain, {"weight": plain["weight"]}).startswith("names: bias")
