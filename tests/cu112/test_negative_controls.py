"""What proves the library right would have told if it were wrong."""

from __future__ import annotations

from tests.support.processes import run_python

from .faults import count_wrong

PROGRAM = "from tests.cu112.faults import *; print('wrong:', count_wrong(20))"
SLOW = {"FAKE_CUDA_DELAY": "2000"}


def test_all_is_right_with_everything_in_place():
    assert count_wrong(20) == 0


def test_results_are_wrong_without_waits_for_events():
    result = run_python(PROGRAM, **SLOW, FAKE_CUDA_IGNORE_EVENT_SYNCHRONIZE="1")
    _, wrong = result.stdout.split("wrong:")
    assert int(wrong) > 0


def test_results_are_wrong_where_mxnet_does_not_synchronize_its_streams():
    # The sums wait in a queue of MXNet, behind which the layer's own stream does not come.
    program = """
import os
from tests.cu112.faults import *
xs = arrays([0, 1])
layer = new_layer(xs)
errors(outputs(layer, xs))  # loads the kernels, which waits for the device
sums = []
for x in xs:
    for _ in range(20):
        x = x + 1
    sums.append(x)
try:
    require_right(xs, outputs(layer, sums))
except AssertionError:
    print("wrong", flush=True)
os._exit(0)
"""
    result = run_python(program, **SLOW, FAKE_CUDA_IGNORE_STREAM_SYNCHRONIZE="1")
    assert result.stdout.strip() == "wrong"
    assert not run_python(program, **SLOW).stdout
