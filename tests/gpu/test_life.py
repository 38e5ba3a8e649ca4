"""What a layer asks of GPUs."""

from __future__ import annotations

from tests.support.processes import run_program


def test_only_gpus_that_take_part_get_a_context():
    """MXNet 2 itself makes one on gpu(0)."""
    run_program("gpus.contexts_of_gpus")
