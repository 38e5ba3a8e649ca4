"""The tests of real GPUs, where they find one GPU, and where they find two."""

from __future__ import annotations

import pytest

from tests.support.processes import run_interpreter


@pytest.mark.parametrize(("number", "chosen"), [("1", "not all_gpus"), ("2", "all_gpus")])
def test_gpus(number, chosen):
    command = ("-m", "pytest", "tests/gpu/test_gpu.py", "-k", chosen)
    end = run_interpreter(*command, FAKE_CUDA_DEVICES=number)
    assert " passed" in end.stdout
    assert "skipped" not in end.stdout
