"""What a layer asks of GPUs."""

from __future__ import annotations

import pytest

from . import fake
from .faults import require_that_it_works
from .steps import arrays


@pytest.mark.own_process
def test_only_gpus_that_take_part_get_a_context():
    """MXNet 2 itself makes one on gpu(0)."""

    def devices() -> list[int]:
        return [i for i in range(8) if fake.has_context(i)]

    assert devices() == []
    arrays([2, 5])
    before = devices()
    assert before in ([2, 5], [0, 2, 5])
    require_that_it_works([2, 5])
    assert devices() == before
