"""In IPython, a cell that ended with an error leaves no device waiting."""

from __future__ import annotations

import pytest

from tests.support.processes import run_program, run_python

pytest.importorskip("IPython", reason="IPython is missing")
# A round waits forever where nothing ends it.
NO_TIMEOUT = {"GLUON_SYNCBN_TIMEOUT": "0"}


@pytest.mark.parametrize(
    ("error", "statements"),
    [
        # The kernel's way to stop a cell.
        ("KeyboardInterrupt", "import signal; signal.raise_signal(signal.SIGINT); time.sleep(60)"),
        ("ZeroDivisionError", "1 / 0"),
    ],
)
def test_a_cell_that_ends_with_an_error_is_dropped(error, statements):
    end = run_program("notebooks.cell_that_ends_with", error, statements, **NO_TIMEOUT)
    assert "Error in callback" not in end.stdout


def test_it_can_be_switched_off():
    run_program("notebooks.switched_off")


def test_errors_of_other_operators_are_shown():
    end = run_program("notebooks.error_of_another_operator", **NO_TIMEOUT)
    assert "an operation of the cell failed as well: " in end.stderr
    assert "scale" in end.stderr.partition("failed as well: ")[2]


def test_cells_without_an_error_are_left_alone():
    run_program("notebooks.step_of_several_cells", **NO_TIMEOUT)


def test_programs_without_a_shell():
    """IPython is imported, as by a library, but runs no cells."""
    run_python("import IPython; from tests.support.two_devices import Network; Network().step()")
