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


def test_events_do_not_keep_a_core_busy():
    program = """
from tests.cu112.faults import *
require_that_it_works([0, 1])
print(fake_cuda.count("spinning wait"), fake_cuda.count("cudaEventSynchronize") > 0)
"""
    assert run_python(program).stdout.split() == ["0", "True"]
