"""A program that can no longer make the missing calls gets an error at once, and no other does."""

from __future__ import annotations

import pytest

from tests.support.processes import run_program


def run(name: str, *arguments: str, status: int = 0, **environment: str) -> tuple[str, str]:
    environment = {"GLUON_SYNCBN_TIMEOUT": "100", **environment}
    end = run_program(f"standstill.{name}", *arguments, status=status, **environment)
    return end.stdout, end.stderr


def test_programs_that_stand_still():
    out, _ = run("mistakes")
    assert "no thread of the program can make the missing calls" in out  # in a handler of atexit


def test_programs_that_are_slow():
    assert run("slow")[0] == "all met\n"


def test_the_switch():
    _, error = run("mistakes", status=1, GLUON_SYNCBN_STANDSTILL="0", GLUON_SYNCBN_TIMEOUT="4")
    assert "forward waited 4." in error


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
