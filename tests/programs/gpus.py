"""Programs on the fake CUDA of tests/gpu that end early, or that several processes run."""

from __future__ import annotations

import os

import mxnet as mx

from tests.gpu import fake
from tests.gpu.faults import require_that_it_works, struck_by
from tests.gpu.steps import arrays, errors, new_layer, outputs, require_right


def lost_device(fault: str) -> None:
    require_that_it_works([0, 1, 2])
    struck, found = struck_by(fault, [0, 1, 2])
    assert struck == 1
    require_that_it_works([0, 2])
    assert all("gpu(1)" in error for error in found), found
    os._exit(0)  # MXNet does not end well without its device


def two_steps() -> None:
    xs = arrays(range(8))
    for x in xs:
        x.attach_grad()
    layer = new_layer(xs)
    for _ in range(2):
        mx.autograd.backward(outputs(layer, xs))
        mx.nd.waitall()
    print("compiled:", fake.count("nvrtcCompileProgram"))


def sums_that_are_under_way() -> None:
    """The sums wait in a queue of MXNet, for which the layer's own stream does not wait."""
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
