"""Where CUDA fails, every device that waits gets an error, and the process goes on if it can."""

from __future__ import annotations

import pytest
from gluon_syncbn.mxnet_versions import IS_2

from tests.support.processes import run_program

from .faults import require_that_it_works, struck_by

DEVICES = [0, 1, 2]


def test_memory_that_is_refused_once_is_asked_for_again():
    """In a process of its own, in whose pools no other test has left memory."""
    run_program("gpus.memory_is_refused_once", GLUON_SYNCBN_TIMEOUT="20")


def test_no_memory_is_an_error_everywhere():
    run_program("gpus.no_memory", GLUON_SYNCBN_TIMEOUT="20")


@pytest.mark.parametrize("call", ["cuLaunchKernel", "cuEventRecord"])
def test_a_call_that_fails_before_devices_meet_fails_them_all(call):
    struck, found = struck_by(f"{call}@1#1=701", DEVICES)
    assert struck == 1
    for error in found:
        assert "gpu(1)" in error
        assert "701" in error or "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" in error
    require_that_it_works(DEVICES)


def test_backward_knows_of_a_device_that_failed_after_devices_had_met():
    run_program("gpus.backward_after_a_device_failed", GLUON_SYNCBN_TIMEOUT="20")


def test_a_device_without_a_context_is_an_error_of_mxnet_and_others_work():
    run_program("gpus.device_without_a_context")


@pytest.mark.skipif(IS_2, reason="MXNet 2 ends a process that loses a device")
@pytest.mark.parametrize("fault", ["kernel@1", "cuEventRecord@1=719", "cuLaunchKernel@1=719"])
def test_a_lost_device_fails_all_that_wait_for_it(fault):
    result = run_program("gpus.lost_device", fault)
    assert "3 devices named it" in result.stdout
