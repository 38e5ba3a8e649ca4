"""Where CUDA fails, every device that waits gets an error, and the process goes on if it can."""

from __future__ import annotations

import pytest

from ..processes import run_python
from .faults import require_that_it_works, struck_by

DEVICES = [0, 1, 2]


@pytest.mark.parametrize("number", range(1, 4))
def test_memory_that_is_refused_once_is_asked_for_again(number):
    # So many channels need memory that no pool has yet.
    struck, found = struck_by(f"cudaMalloc@1#{number}", DEVICES, channels=300 << number)
    assert found == [""] * 3
    assert struck == 1 or number > 1


def test_no_memory_is_an_error_everywhere():
    struck, found = struck_by("cudaMalloc@1#1+", DEVICES, channels=9000)
    assert struck > 1
    for error in found:
        assert "failed on gpu(1)" in error or "of gpu(1)" in error or "gpu(1) failed" in error
        assert "out of memory" in error
    require_that_it_works(DEVICES)


@pytest.mark.parametrize("call", ["cudaLaunchKernel", "cudaEventRecord"])
def test_a_call_that_fails_before_devices_meet_fails_them_all(call):
    struck, found = struck_by(f"{call}@1#1=701", DEVICES)
    assert struck == 1
    for error in found:
        assert "gpu(1)" in error
        assert "701" in error or "cudaErrorLaunchOutOfResources" in error
    require_that_it_works(DEVICES)


def test_a_kernel_that_fails_after_devices_have_met_fails_its_device():
    struck, found = struck_by("cudaLaunchKernel@1#2=701", DEVICES)
    assert struck == 1
    assert "gpu(1)" in found[1]
    require_that_it_works(DEVICES)


def test_without_an_event_the_whole_stream_is_waited_for():
    struck, found = struck_by("cudaEventRecord@1#2=701", DEVICES)
    assert struck == 1
    assert found == [""] * 3


@pytest.mark.parametrize("fault", ["kernel@1", "cudaEventRecord@1=719", "cudaLaunchKernel@1=719"])
def test_a_lost_device_fails_all_that_wait_for_it(fault):
    program = f"""
import os
from tests.cu112.faults import *
require_that_it_works([0, 1, 2])
struck, found = struck_by({fault!r}, [0, 1, 2])
assert struck == 1
require_that_it_works([0, 2])
print(sum("gpu(1)" in error for error in found), "devices named it", flush=True)
os._exit(0)  # MXNet does not end well without its device
"""
    assert "3 devices named it" in run_python(program).stdout
