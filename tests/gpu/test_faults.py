"""Where CUDA fails, every device that waits gets an error, and the process goes on if it can."""

from __future__ import annotations

import re

import pytest
from gluon_syncbn.mxnet_versions import IS_2

from tests.support.either_mxnet import error_of
from tests.support.processes import run_program

from . import fake
from .faults import require_that_it_works, struck_by
from .steps import arrays, errors, new_layer, outputs

DEVICES = [0, 1, 2]
own_process = pytest.mark.own_process(GLUON_SYNCBN_TIMEOUT="20")


@own_process
def test_memory_that_is_refused_once_is_asked_for_again():
    """In a process of its own, in whose pools no other test has left memory."""
    for number in (1, 2, 3):
        # So many channels need memory that no pool has yet.
        struck, found = struck_by(f"cudaMalloc@1#{number}", DEVICES, channels=300 << number)
        assert found == [""] * 3, found
        assert struck == 1 or number > 1


OUT_OF_RESOURCES = "701|CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"


@pytest.mark.parametrize(
    ("fault", "channels", "words"),
    [
        pytest.param("cudaMalloc@1#1+;cuMemAlloc@1#1+", 9000, "out of memory", marks=own_process),
        ("cuLaunchKernel@1#1=701", 7, OUT_OF_RESOURCES),
        ("cuEventRecord@1#1=701", 7, OUT_OF_RESOURCES),
    ],
)
def test_a_call_that_fails_before_devices_meet_fails_them_all(fault, channels, words):
    struck, found = struck_by(fault, DEVICES, channels)
    assert struck > 1 if "+" in fault else struck == 1
    for error in found:
        assert re.search(r"(failed on|of) gpu\(1\)|gpu\(1\) failed", error), found
        assert re.search(words, error), found
    require_that_it_works(DEVICES)


@own_process
def test_backward_knows_of_a_device_that_failed_after_devices_had_met():
    xs = arrays([0, 1])
    for x in xs:
        x.attach_grad()
    layer = new_layer(xs)
    # After the sums and the merge.
    fake.inject("cuLaunchKernel@1#3=701")
    outs = outputs(layer, xs)
    assert [bool(error) for error in errors(outs)] == [False, True]
    assert fake.clear_faults() == 1
    outs[0].backward()
    [error] = errors([xs[0].grad])
    assert "failed on gpu(1)" in error, error
    assert "OUT_OF_RESOURCES" in error, error
    require_that_it_works([0, 1])


@pytest.mark.own_process
def test_a_device_without_a_context_is_an_error_of_mxnet_and_others_work():
    fake.inject("context@1#1+")
    error = error_of(lambda: arrays([0, 1]))
    assert "busy or unavailable" in error, error
    # MXNet 2 may fail an operation on the device later than the array, and may leave this thread on
    # that device. Both show in what the thread does next.
    for _ in range(3):
        error = error_of(lambda: arrays([0]))
        assert not error or "busy or unavailable" in error, error
    require_that_it_works([0, 2])
    assert fake.clear_faults()
    require_that_it_works([0, 1])


@pytest.mark.skipif(IS_2, reason="MXNet 2 ends a process that loses a device")
@pytest.mark.parametrize("fault", ["kernel@1", "cuEventRecord@1=719", "cuLaunchKernel@1=719"])
def test_a_lost_device_fails_all_that_wait_for_it(fault):
    run_program("gpus.lost_device", fault)
