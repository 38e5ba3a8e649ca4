"""The marker own_process of tests (tests/support/own_process.py)."""

from __future__ import annotations

import atexit
import os
import signal
import threading

import pytest

from tests.support.own_process import case

IS_PARENT = os.environ.setdefault("TEST_PARENT", str(os.getpid())) == str(os.getpid())


@pytest.mark.own_process(TEST_OF_FUNCTION="1", PATH=None)
@pytest.mark.parametrize("text", ["a b", "[x]::ü", case("-n", TEST_OF_CASE="2")])
def test_a_process_of_its_own(text):
    assert not IS_PARENT
    assert os.environ["TEST_OF_FUNCTION"] == "1"
    assert os.environ.get("TEST_OF_CASE") == ("2" if text == "-n" else None)
    assert "PATH" not in os.environ
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert threading.enumerate() == [threading.main_thread()]


@pytest.mark.own_process
@pytest.mark.xfail(IS_PARENT, reason="as it should", raises=pytest.fail.Exception, strict=True)
@pytest.mark.parametrize("end", [lambda: os._exit(0), lambda: atexit.register(os._exit, 1)])
def test_a_bad_end_is_a_failure(end):
    assert not IS_PARENT
    end()
