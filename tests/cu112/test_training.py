"""Training on 2 to 8 contexts ends where training on one does that has the whole batch."""

from __future__ import annotations

import pytest

from tests.support.processes import run_python

from . import fake_cuda
from .training import Branches, Twice, compare

MODES = [None, {}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_branches_of_different_depth(parts, mode):
    compare(Branches, parts, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_one_layer_used_twice(mode):
    compare(Twice, 4, mode=mode)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_many_steps(optimizer):
    fake_cuda.change("DELAY", 20)
    compare(Twice, 2, steps=200, mode={"static_alloc": True}, optimizer=optimizer)


def test_slow_devices():
    """Arrays are dropped, and their memory used again, long before devices are done."""
    fake_cuda.change("DELAY", 1500)
    compare(Branches, 2, steps=3)


@pytest.mark.parametrize("peers", [0, 1])
def test_with_and_without_peer_access(peers):
    result = run_python(
        "from tests.cu112.training import *; compare(parts=4)", FAKE_CUDA_PEERS=str(peers)
    )
    assert not result.stdout


def test_peer_access_that_is_reported_and_broken():
    compared = "from tests.cu112.training import *; compare(parts=4)"
    run_python(compared, FAKE_CUDA_PEERS="2", MXNET_ENABLE_GPU_P2P="0")
    # The layer cannot see it; with nothing set, numbers are wrong that nobody could miss.
    program = """
from tests.cu112.faults import *
xs = arrays([0, 1])
outs = outputs(new_layer(xs), xs)
print([bool(np.isnan(out.asnumpy()).all()) for out in outs])
"""
    assert run_python(program, FAKE_CUDA_PEERS="2").stdout.strip() == "[True, True]"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MXNET_GPU_MEM_POOL_TYPE", "Unpooled"),
        ("MXNET_GPU_MEM_POOL_TYPE", "Round"),
        ("MXNET_GPU_WORKER_NTHREADS", "1"),
        ("MXNET_ENGINE_TYPE", "ThreadedEngine"),
        ("FAKE_CUDA_VERSION", "12000"),
    ],
)
def test_settings_of_mxnet(name, value):
    run_python("from tests.cu112.training import *; compare(parts=4)", **{name: value})
