"""Most of these tests need the fake CUDA of scripts/test.sh --cu112."""

from __future__ import annotations

import os
from collections.abc import Iterator

import mxnet as mx
import pytest

from ..conftest import DEVICE

IS_FAKE = DEVICE == "gpu"
# test_gpu.py is for real GPUs, and for the fake ones of test_gpus.py.
if not IS_FAKE:
    collect_ignore_glob = ["test_[!g]*.py", "test_gpus.py"]
elif "FAKE_CUDA_DEVICES" not in os.environ:
    collect_ignore_glob = ["test_gpu.py", "test_gpu_kernels.py"]


@pytest.fixture(autouse=True)
def _in_order() -> Iterator[None]:
    if not IS_FAKE:
        yield
        return
    from . import fake

    with fake.restored():
        yield
        mx.nd.waitall()
