"""Processes that fork: DataLoader's workers, multiprocessing, subprocess."""

from __future__ import annotations

import pytest

from tests.layer.test_life import LAYER
from tests.support.either_mxnet import only_1
from tests.support.processes import run_python
from tests.support.step import MODES

# A round waits forever where nothing ends it.
NO_TIMEOUT = {"GLUON_SYNCBN_TIMEOUT": "0"}

# A network of two layers on two devices.
NETWORK = (
    LAYER
    + """
import multiprocessing, os, threading
import numpy as np
from mxnet.gluon import nn
from tests.support.either_mxnet import nd
multiprocessing = multiprocessing.get_context("fork")
net = nn.HybridSequential()
net.add(nn.Dense(4, in_units=3), gluon_syncbn.SyncBatchNorm(in_channels=4),
        nn.Dense(5, in_units=4), gluon_syncbn.SyncBatchNorm(in_channels=5))
net.initialize(ctx=contexts)
xs = [nd.random.normal(shape=(2, 3), ctx=context) for context in contexts]
def call(device):
    with mx.autograd.record():
        return net(xs[device])
def step():
    outs = [call(0), call(1)]
    mx.autograd.backward(outs)
    # Normalized over all devices, every channel has mean 0.
    values = np.concatenate([out.asnumpy() for out in outs])
    assert abs(values.mean(0)).max() < 1e-5, values
    mx.nd.waitall()
def expect_error(function, *words):
    try:
        function()
    except mx.base.MXNetError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"no error of {words}")
"""
)


IN_EVERY_MODE = NETWORK + f"for mode in {list(MODES.values())}:\n    net.hybridize(**mode)\n"


def test_fork_while_a_device_waits():
    """The round fails as after any error, and training goes on in parent and child."""
    program = """
    def child():
        expect_error(y0.asnumpy, 'forked before all devices had come')
        step()
    step()
    y0 = call(0)
    process = multiprocessing.Process(target=child)
    process.start()
    y1 = call(1)
    expect_error(y1.asnumpy, 'forked before all devices had come')
    expect_error(y0.asnumpy, 'forked before all devices had come')
    mx.autograd.backward([y0, y1])
    expect_error(mx.nd.waitall, 'backward')
    step()
    step()
    process.join()
    assert process.exitcode == 0, (mode, process.exitcode)
"""
    run_python(IN_EVERY_MODE + program, **NO_TIMEOUT)


BY_SUBPROCESS_OF_PYTHON_3_8 = """
import ctypes
y0 = call(0)
if ctypes.PyDLL(None).fork() == 0:
    os._exit(0)
"""
# The thread that forks holds Python's lock, and the main thread waits for a result.
BY_ANOTHER_THREAD = """
y0 = call(0)
thread = threading.Thread(target=lambda: os.fork() or os._exit(0))
thread.start()
thread.join()
"""
# The pool of the loader forks another worker from a thread of its own.
BY_A_LOADER_WHOSE_WORKER_DIES = """
loader = mx.gluon.data.DataLoader(
    mx.gluon.data.ArrayDataset(np.ones((8, 3), dtype="float32")), batch_size=2, num_workers=2)
y0 = call(0)
workers = {worker.pid for worker in loader._worker_pool._pool}
loader._worker_pool.apply_async(os._exit, (1,))
import time
while {worker.pid for worker in loader._worker_pool._pool} <= workers:
    time.sleep(0.05)
assert len(list(loader)) == 4
"""


@pytest.mark.parametrize(
    "fork",
    [
        BY_SUBPROCESS_OF_PYTHON_3_8,
        BY_ANOTHER_THREAD,
        pytest.param(BY_A_LOADER_WHOSE_WORKER_DIES, marks=only_1),
    ],
    ids=["subprocess", "thread", "loader"],
)
def test_ways_to_fork_while_a_device_waits(fork):
    program = "step()\n" + fork + "expect_error(y0.asnumpy, 'forked')\nstep()\n"
    run_python(NETWORK + program, **NO_TIMEOUT)


@only_1  # the loader of MXNet 2 does not wait
def test_a_loader_that_is_made_while_a_device_waits():
    """Its constructor waits for all operations before it forks, so only the timeout ends that."""
    program = NETWORK + (
        "step()\n"
        "gluon_syncbn.set_timeout(0.5)\n"
        "call(0)\n"
        "expect_error(lambda: mx.gluon.data.DataLoader([0], 1), 'a new DataLoader')\n"
        "step()\n"
    )
    run_python(program)


def test_fork_while_the_devices_are_on_their_way():
    """All devices have been called: none waits in vain, however long it takes them."""
    program = (
        "slow = nd.ones((3000, 3000), ctx=contexts[1])\n"
        "for _ in range(8):\n"
        "    slow = nd.dot(slow, slow) / 3000\n"
        "xs[1] = xs[1] + slow[:2, :3] * 0\n"
        "outs = [call(0), call(1)]\n"
        "if os.fork() == 0:\n    os._exit(0)\n"
        "values = np.concatenate([out.asnumpy() for out in outs])\n"
        "assert abs(values.mean(0)).max() < 1e-5, values\n"
    )
    run_python(NETWORK + program, **NO_TIMEOUT)


def test_fork_with_an_unread_error():
    """The error is there afterwards, also where no array of the program's has it."""
    program = """
import time
for held in (True, False):
    gluon_syncbn.set_timeout(0.1)
    y0 = call(0)
    if not held:
        del y0
    time.sleep(1)
    child = os.fork()
    expect_error(mx.nd.waitall, 'forward waited')
    gluon_syncbn.set_timeout(0)
    step()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    run_python(NETWORK + program)


def test_drop_step():
    """A step that was broken off is forgotten, whichever device comes first in the next."""
    program = """
    for _ in range(2):
        step()
        try:
            y0 = call(0)
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            gluon_syncbn.drop_step()
        mx.nd.waitall()
        xs.reverse()
    step()
    gluon_syncbn.drop_step()
    step()
x = nd.random.normal(scale=-1, shape=(1,))
expect_error(gluon_syncbn.drop_step, 'scale')  # the error of another operator
gluon_syncbn.drop_step()
"""
    run_python(IN_EVERY_MODE + program, **NO_TIMEOUT)


def test_fork():
    """The child has no thread of the parent's, and waits and fails by itself."""
    program = """
import os
gluon_syncbn.set_timeout(77)
for _ in range(2):  # before and after the first step
    child = os.fork()
    if child == 0:
        assert gluon_syncbn.get_timeout() == 77
        train()
        gluon_syncbn.set_timeout(0.3)
        try:
            train([0])
        except mx.base.MXNetError as error:
            os._exit(0 if 'forward waited' in str(error) else 4)
        os._exit(5)
    assert os.waitpid(child, 0)[1] == 0
    train()
"""
    run_python(LAYER + program)


def test_forks_while_steps_are_under_way():
    """MXNet ends the threads of custom operators before the operations that call them.

    The fork is one of which Python does not know, as those of subprocess in Python 3.8.
    """
    program = LAYER + (
        "import ctypes, os\n"
        "wide = [nd.ones((2, 3, 200000), ctx=context) for context in contexts]\n"
        "def begin():\n"
        "    with mx.autograd.record():\n"
        "        outs = [layer(x) for x in wide]\n"
        "    mx.autograd.backward(outs)\n"
        "for _ in range(8):\n"
        "    begin()\n"
        "    child = ctypes.PyDLL(None).fork()\n"
        "    if child == 0:\n"
        "        begin()\n"
        "        mx.nd.waitall()\n"
        "        os._exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
    )
    run_python(program, GLUON_SYNCBN_TIMEOUT="20")


def test_workers_of_a_data_loader():
    program = LAYER + (
        "import numpy as np\n"
        "from mxnet import gluon\n"
        "data = gluon.data.ArrayDataset(np.ones((32, 3), dtype='float32'))\n"
        "for _ in range(2):\n"
        "    for batch in gluon.data.DataLoader(data, batch_size=8, num_workers=2):\n"
        "        with mx.autograd.record():\n"
        "            shards = gluon.utils.split_and_load(batch, contexts)\n"
        "            outs = [layer(shard) for shard in shards]\n"
        "        mx.autograd.backward(outs)\n"
        "        assert sum(abs(out.asnumpy()).max() for out in outs) < 1e-2\n"
    )
    run_python(program)
