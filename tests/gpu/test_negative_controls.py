"""What proves the library right would have told if it were wrong."""

from __future__ import annotations

import pytest

from tests.support.processes import run_program

from .faults import count_wrong

SLOW = {"FAKE_CUDA_DELAY": "2000"}


def test_all_is_right_with_everything_in_place():
    assert count_wrong(20) == 0


@pytest.mark.own_process(**SLOW, FAKE_CUDA_IGNORE_EVENT_SYNCHRONIZE="1")
def test_results_are_wrong_without_waits_for_events():
    assert count_wrong(20) > 0


def test_results_are_wrong_where_mxnet_does_not_synchronize_its_streams():
    program = "gpus.sums_that_are_under_way"
    result = run_program(program, **SLOW, FAKE_CUDA_IGNORE_STREAM_SYNCHRONIZE="1")
    assert result.stdout.strip() == "wrong"
    assert not run_program(program, **SLOW).stdout
