"""What a layer asks of GPUs."""

from __future__ import annotations

from tests.support.processes import run_python


def test_only_gpus_that_take_part_get_a_context():
    program = """
from tests.cu112.faults import *
require_that_it_works([2, 5])
print([i for i in range(8) if fake_cuda.has_context(i)])
"""
    assert run_python(program).stdout.strip() == "[2, 5]"
