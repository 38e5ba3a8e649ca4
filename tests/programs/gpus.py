"""Programs on the fake CUDA of tests/gpu: faults, kernels that are compiled, waits."""

from __future__ import annotations

import os
import re

import mxnet as mx

from tests.gpu import fake
from tests.gpu.faults import count_wrong, require_that_it_works, struck_by
from tests.gpu.steps import arrays, errors, new_layer, outputs, require_right
from tests.support.either_mxnet import error_of


def memory_is_refused_once() -> None:
    for number in (1, 2, 3):
        # So many channels need memory that no pool has yet.
        struck, found = struck_by(f"cudaMalloc@1#{number}", [0, 1, 2], channels=300 << number)
        assert found == [""] * 3, found
        assert struck == 1 or number > 1


def no_memory() -> None:
    struck, found = struck_by("cudaMalloc@1#1+;cuMemAlloc@1#1+", [0, 1, 2], channels=9000)
    assert struck > 1
    for error in found:
        assert re.search(r"(failed on|of) gpu\(1\)|gpu\(1\) failed", error), found
        assert "out of memory" in error
    require_that_it_works([0, 1, 2])


def backward_after_a_device_failed() -> None:
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


def device_without_a_context() -> None:
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


def lost_device(fault: str) -> None:
    require_that_it_works([0, 1, 2])
    struck, found = struck_by(fault, [0, 1, 2])
    assert struck == 1
    require_that_it_works([0, 2])
    print(sum("gpu(1)" in error for error in found), "devices named it", flush=True)
    os._exit(0)  # MXNet does not end well without its device


def contexts_of_gpus() -> None:
    def devices() -> list[int]:
        return [i for i in range(8) if fake.has_context(i)]

    assert devices() == []
    arrays([2, 5])
    before = devices()
    assert before in ([2, 5], [0, 2, 5])
    require_that_it_works([2, 5])
    assert devices() == before


def two_steps() -> None:
    xs = arrays(range(8))
    for x in xs:
        x.attach_grad()
    layer = new_layer(xs)
    for _ in range(2):
        mx.autograd.backward(outputs(layer, xs))
        mx.nd.waitall()
    print("compiled:", fake.count("nvrtcCompileProgram"))


def call_without_kernels(message: str) -> None:
    xs = arrays([0, 1])
    try:
        found = errors(outputs(new_layer(xs), xs))
    except mx.base.MXNetError as error:
        found = [str(error)] * 2
    assert all(message in error for error in found), found


def wrong_results() -> None:
    print("wrong:", count_wrong(20))


def sums_that_are_under_way() -> None:
    """The sums wait in a queue of MXNet, behind which the layer's own stream does not come."""
    xs = arrays([0, 1])
    layer = new_layer(xs)
    errors(outputs(layer, xs))  # loads the kernels, which waits for the device
    sums = []
    for x in xs:
        sums.append(x)
        for _ in range(20):
            sums[-1] = sums[-1] + 1
    try:
        require_right(xs, outputs(layer, sums))
    except AssertionError:
        print("wrong", flush=True)
    os._exit(0)
