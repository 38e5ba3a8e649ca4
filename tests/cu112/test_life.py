"""What a layer asks of GPUs."""

from __future__ import annotations

from tests.support.processes import run_python


def test_only_gpus_that_take_part_get_a_context():
    """MXNet 2 itself makes one on gpu(0)."""
    program = """
from tests.cu112.faults import *
def devices():
    return [i for i in range(8) if fake_cuda.has_context(i)]
assert devices() == []
arrays([2, 5])
before = devices()
assert before in ([2, 5], [0, 2, 5])
require_that_it_works([2, 5])
assert devices() == before
"""
    run_python(program)
