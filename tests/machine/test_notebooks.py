"""In IPython, a cell that ended with an error leaves no device waiting."""

from __future__ import annotations

import pytest

from tests.layer.test_forks import NETWORK, NO_TIMEOUT
from tests.support.processes import run_python

pytest.importorskip("IPython", reason="IPython is missing")

# Jobs of a shell in the background ignore the signal, and so would this program.
NOTEBOOK = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
def run(cell):
    result = shell.run_cell(cell)
    return result.error_before_exec or result.error_in_exec
assert run({NETWORK!r}) is None
assert run("step()") is None
"""
# The next step begins with the other device.
BREAK_OFF = "y0 = call(0)\nxs.reverse()\ncontexts.reverse()\n"
AFTERWARDS = "xs.reverse()\ncontexts.reverse()\n"


@pytest.mark.parametrize(
    ("cell", "error"),
    [
        # The kernel's way to stop a cell.
        (
            "import signal, time\n"
            + BREAK_OFF
            + "signal.raise_signal(signal.SIGINT)\ntime.sleep(60)",
            "KeyboardInterrupt",
        ),
        (BREAK_OFF + "1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_cell_that_ends_with_an_error_is_dropped(cell, error):
    program = f"""
for _ in range(2):
    assert type(run({cell!r})).__name__ == {error!r}
    assert run("step()") is None  # it has the other device first
    assert run("step()") is None
"""
    end = run_python(NOTEBOOK + program, **NO_TIMEOUT)
    assert "Error in callback" not in end.stdout


def test_it_can_be_switched_off():
    program = f"""
run("os.environ['GLUON_SYNCBN_NOTEBOOK'] = '0'")
run("gluon_syncbn.set_timeout(0.3)")
run({BREAK_OFF + "raise KeyboardInterrupt"!r})
expect_error = shell.user_ns["expect_error"]
expect_error(shell.user_ns["y0"].asnumpy, "forward waited", "All causes: docs/troubleshooting.md")
"""
    run_python(NOTEBOOK + program)


def test_errors_of_other_operators_are_shown():
    program = """
assert run("x = mx.nd.random.normal(scale=-1, shape=(1,))\\n1 / 0") is not None
assert run("step()") is None
"""
    end = run_python(NOTEBOOK + program, **NO_TIMEOUT)
    assert "an operation of the cell failed as well: " in end.stderr
    assert "scale" in end.stderr.partition("failed as well: ")[2]


def test_cells_without_an_error_are_left_alone():
    program = """
assert run("y0 = call(0)") is None  # a step may have several cells
assert run("y1 = call(1)\\nmx.autograd.backward([y0, y1])\\nmx.nd.waitall()") is None
"""
    run_python(NOTEBOOK + program, **NO_TIMEOUT)


def test_programs_without_a_shell():
    """IPython is imported, as by a library, but runs no cells."""
    run_python("import IPython\n" + NETWORK + "step()")
