"""Where CUDA fails, every device that waits gets an error, and the process goes on if it can."""

from __future__ import annotations

import pytest
from gluon_syncbn.mxnet_versions import IS_2

from tests.support.processes import run_python

from .faults import require_that_it_works, struck_by

DEVICES = [0, 1, 2]


def test_memory_that_is_refused_once_is_asked_for_again():
    """In a process of its own, in whose pools no other test has left memory."""
    program = """
from tests.cu112.faults import *
for number in (1, 2, 3):
    # So many channels need memory that no pool has yet.
    struck, found = struck_by(f"cudaMalloc@1#{number}", [0, 1, 2], channels=300 << number)
    assert found == [""] * 3, found
    assert struck == 1 or number > 1
"""
    run_python(program, GLUON_SYNCBN_TIMEOUT="20")


def test_no_memory_is_an_error_everywhere():
    program = """
from tests.cu112.faults import *
struck, found = struck_by("cudaMalloc@1#1+;cuMemAlloc@1#1+", [0, 1, 2], channels=9000)
assert struck > 1
for error in found:
    assert "failed on gpu(1)" in error or "of gpu(1)" in error or "gpu(1) failed" in error, found
    assert "out of memory" in error
require_that_it_works([0, 1, 2])
"""
    run_python(program, GLUON_SYNCBN_TIMEOUT="20")


@pytest.mark.parametrize("call", ["cuLaunchKernel", "cuEventRecord"])
def test_a_call_that_fails_before_devices_meet_fails_them_all(call):
    struck, found = struck_by(f"{call}@1#1=701", DEVICES)
    assert struck == 1
    for error in found:
        assert "gpu(1)" in error
        assert "701" in error or "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" in error
    require_that_it_works(DEVICES)


def test_a_kernel_that_fails_after_devices_have_met_fails_its_device():
    struck, found = struck_by("cuLaunchKernel@1#2=701", DEVICES)
    assert struck == 1
    assert "gpu(1)" in found[1]
    require_that_it_works(DEVICES)


def test_backward_knows_of_a_device_that_failed_after_devices_had_met():
    program = """
from tests.cu112.faults import *
xs = arrays([0, 1])
for x in xs:
    x.attach_grad()
layer = new_layer(xs)
# After the sums and the merge.
fake_cuda.inject("cuLaunchKernel@1#3=701")
outs = outputs(layer, xs)
assert [bool(error) for error in errors(outs)] == [False, True]
assert fake_cuda.clear_faults() == 1
outs[0].backward()
[error] = errors([xs[0].grad])
assert "failed on gpu(1)" in error and "OUT_OF_RESOURCES" in error, error
"""
    run_python(program, GLUON_SYNCBN_TIMEOUT="20")


def test_without_an_event_the_whole_stream_is_waited_for():
    struck, found = struck_by("cuEventRecord@1#2=701", [0, 1])
    assert struck == 1
    assert found == [""] * 2


def test_a_device_without_a_context_is_an_error_of_mxnet_and_others_work():
    program = """
from tests.cu112.faults import *
fake_cuda.inject("context@1#1+")
try:
    arrays([0, 1])
except mx.base.MXNetError as error:
    assert "busy or unavailable" in str(error), error
else:
    raise SystemExit("no error")
# MXNet 2 may fail an operation on the device later than the array, and may leave this thread on
# that device. Both show in what the thread does next.
for _ in range(3):
    try:
        arrays([0])
    except mx.base.MXNetError as error:
        assert "busy or unavailable" in str(error), error
require_that_it_works([0, 2])
assert fake_cuda.clear_faults()
require_that_it_works([0, 1])
"""
    run_python(program)


@pytest.mark.skipif(IS_2, reason="MXNet 2 ends a process that loses a device")
@pytest.mark.parametrize("fault", ["kernel@1", "cuEventRecord@1=719", "cuLaunchKernel@1=719"])
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
    result = run_python(program)
    assert "3 devices named it" in result.stdout
