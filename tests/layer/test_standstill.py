"""A program that can no longer make the missing calls gets an error at once, and no other does."""

from __future__ import annotations

import pytest

from tests.support.either_mxnet import only_1
from tests.support.processes import ROOT, run_interpreter, run_program


def run(name: str, *arguments: str, **environment: str) -> tuple[str, str]:
    environment = {"GLUON_SYNCBN_TIMEOUT": "100", **environment}
    end = run_program(f"standstill.{name}", *arguments, **environment)
    return end.stdout, end.stderr


def test_programs_that_stand_still():
    out, _ = run("mistakes")
    assert "and so cannot make the missing calls" in out  # in a handler of atexit


@pytest.mark.parametrize("how", ["main", "processes", "loop", "operator"])
def test_programs_that_are_slow(how):
    out, warnings = run("slow", how)
    assert out == "met\n"
    assert "has waited 2." in warnings


def test_a_program_that_was_suspended():
    assert run("suspended", GLUON_SYNCBN_TIMEOUT="3")[0] == "met\n"


@only_1  # MXNet 2 has no hybrid_forward
def test_layers_that_run_converts_while_a_device_waits():
    program = str(ROOT / "tests" / "programs" / "run" / "subclasses.py")
    run_interpreter("-W", "ignore", "-m", "gluon_syncbn", "run", "--convert", program)


@pytest.mark.parametrize("what", ["sleeps", "computes"])
def test_the_warning_says_what_the_program_does(what):
    out, warning = run("warned", what, GLUON_SYNCBN_TIMEOUT="30")
    assert out == "met\n"
    assert "The main thread waits in MXNet at " in warning
    assert ("Likely: " in warning) == (what == "sleeps")
    assert ("Threads of this process compute" in warning) == (what == "computes")


def test_an_interrupt_ends_the_wait():
    out, _ = run("interrupted")
    assert out.startswith("KeyboardInterrupt\n")


def test_a_handler_of_the_program_takes_the_interrupt():
    assert run("own_handler")[0] == "met\n"
