"""What proves the library right would have told if it were wrong."""

from __future__ import annotations

import pytest

from ..processes import run_python
from .training import count_wrong

PROGRAM = "from tests.cu112.training import *; print('wrong:', count_wrong(20))"
SLOW = {"FAKE_CUDA_DELAY": "2000"}


def test_all_is_right_with_everything_in_place():
    assert count_wrong(20) == 0


@pytest.mark.parametrize("ignored", ["EVENT_SYNCHRONIZE", "STREAM_WAIT"])
def test_results_are_wrong_without(ignored):
    result = run_python(PROGRAM, **SLOW, **{f"FAKE_CUDA_IGNORE_{ignored}": "1"})
    _, wrong = result.stdout.split("wrong:")
    assert int(wrong) > 0


def test_results_are_wrong_where_mxnet_does_not_synchronize_its_streams():
    program = """
import os
from tests.cu112.training import *
try:
    compare()
except (AssertionError, mx.base.MXNetError) as error:
    print("wrong:", type(error).__name__, flush=True)
os._exit(0)
"""
    result = run_python(program, **SLOW, FAKE_CUDA_IGNORE_STREAM_SYNCHRONIZE="1")
    assert "wrong:" in result.stdout
    assert "wrong:" not in run_python(program, **SLOW).stdout
