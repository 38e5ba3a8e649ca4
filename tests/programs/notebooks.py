"""Cells of a notebook, the first of which imports gluon_syncbn."""

from __future__ import annotations

import signal

import pytest
from IPython.core.interactiveshell import InteractiveShell

# Jobs of a shell in the background ignore the signal, and so would these programs.
signal.signal(signal.SIGINT, signal.default_int_handler)
shell = InteractiveShell.instance()
# The next step begins with the other device.
BREAK_OFF = "y0 = network.call(0)\nnetwork.xs.reverse()\n"


def run(cell: str, error: str = "NoneType") -> None:
    result = shell.run_cell(cell)
    assert type(result.error_before_exec or result.error_in_exec).__name__ == error


run("import os, time\nimport gluon_syncbn, mxnet as mx")
run("from tests.support.two_devices import Network\nnetwork = Network()")
run("network.step()")


def cell_that_ends_with(error: str, statements: str) -> None:
    for _ in range(2):
        run(BREAK_OFF + statements, error)
        run("network.step()")
        run("network.step()")


def switched_off() -> None:
    run("os.environ['GLUON_SYNCBN_NOTEBOOK'] = '0'")
    run("gluon_syncbn.set_timeout(0.3)")
    run(BREAK_OFF + "raise KeyboardInterrupt", "KeyboardInterrupt")
    words = r"(?s)forward waited.*All causes: \S*docs/troubleshooting\.md"
    with pytest.raises(shell.user_ns["mx"].base.MXNetError, match=words):
        shell.user_ns["y0"].asnumpy()


def error_of_another_operator() -> None:
    run("x = mx.nd.random.normal(scale=-1, shape=(1,))\n1 / 0", "ZeroDivisionError")
    run("network.step()")


def step_of_several_cells() -> None:
    run("y0 = network.call(0)")
    run("y1 = network.call(1)\nmx.autograd.backward([y0, y1])\nmx.nd.waitall()")
