"""The marker own_process of tests (tests/support/own_process.py)."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tests.support.own_process import case

os.environ.setdefault("TEST_PARENT", str(os.getpid()))


@pytest.mark.own_process(TEST_OF_FUNCTION="1", PATH=None)
@pytest.mark.parametrize("text", ["a b", "[x]::ü", case("-n", TEST_OF_CASE="2")])
def test_a_process_of_its_own(text):
    assert os.environ["TEST_PARENT"] != str(os.getpid())
    assert os.environ["TEST_OF_FUNCTION"] == "1"
    assert os.environ.get("TEST_OF_CASE") == ("2" if text == "-n" else None)
    assert "PATH" not in os.environ
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert threading.enumerate() == [threading.main_thread()]


@pytest.mark.own_process
@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.xfail(strict=True, raises=pytest.fail.Exception)
def test_an_early_end_is_a_failure(status):
    os._exit(status)
