"""Runs these tests where scripts/test.sh --cu112 has put MXNet on the fake CUDA runtime."""

from __future__ import annotations

from collections.abc import Iterator

import mxnet as mx
import pytest

from ..conftest import DEVICE

# Elsewhere nothing here can be imported.
collect_ignore_glob = [] if DEVICE == "gpu" else ["test_*.py"]


@pytest.fixture(autouse=True)
def _in_order() -> Iterator[None]:
    from . import fake_cuda

    with fake_cuda.restored():
        yield
        mx.nd.waitall()
