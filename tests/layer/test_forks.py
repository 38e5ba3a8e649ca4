"""Processes that fork: DataLoader's workers, multiprocessing, subprocess."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.base import MXNetError

from tests.support.either_mxnet import nd, only_1
from tests.support.processes import in_child
from tests.support.step import MODES
from tests.support.two_devices import Network, check, contexts, make_layer, train

# A round waits forever where nothing ends it.
no_timeout = pytest.mark.own_process(GLUON_SYNCBN_TIMEOUT="0")


def fork_unknown_to_python() -> int:
    """As subprocess does in Python 3.8."""
    return ctypes.PyDLL(None).fork()


@no_timeout
def test_fork_while_a_device_waits():
    """The round fails as after any error, and training goes on in parent and child."""
    forked = "forked before all devices had come"
    network = Network()

    def child() -> None:
        with pytest.raises(MXNetError, match=forked):
            y0.asnumpy()
        gluon_syncbn.drop_step()
        network.step()

    for mode in MODES.values():
        network.net.hybridize(**mode)
        network.step()
        y0 = network.call(0)
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        y1 = network.call(1)
        for out in (y1, y0):
            with pytest.raises(MXNetError, match=forked):
                out.asnumpy()
        mx.autograd.backward([y0, y1])
        with pytest.raises(MXNetError, match="backward"):
            mx.nd.waitall()
        with pytest.raises(MXNetError, match=f"an earlier step has failed.*{forked}"):
            network.step()
        gluon_syncbn.drop_step()
        network.step()
        network.step()
        process.join()
        assert process.exitcode == 0, (mode, process.exitcode)


@contextlib.contextmanager
def a_device_waits(network: Network) -> Iterator[None]:
    network.step()
    y0 = network.call(0)
    yield
    with pytest.raises(MXNetError, match="forked"):
        y0.asnumpy()
    gluon_syncbn.drop_step()
    network.step()


@no_timeout
def test_a_subprocess_while_a_device_waits():
    with a_device_waits(Network()):
        if fork_unknown_to_python() == 0:
            os._exit(0)


@no_timeout
def test_a_thread_that_forks_while_a_device_waits():
    """The thread holds Python's lock, and the main thread waits for a result."""
    with a_device_waits(Network()):
        thread = threading.Thread(target=lambda: os.fork() or os._exit(0))
        thread.start()
        thread.join()


@only_1
@no_timeout
def test_a_new_worker_of_a_loader_while_a_device_waits():
    """A worker dies, and the pool forks another from a thread of its own."""
    network = Network()
    network.step()
    data = gluon.data.ArrayDataset(np.ones((8, 3), dtype="float32"))
    loader = gluon.data.DataLoader(data, batch_size=2, num_workers=2)
    with a_device_waits(network):
        workers = {worker.pid for worker in loader._worker_pool._pool}
        loader._worker_pool.apply_async(os._exit, (1,))
        while {worker.pid for worker in loader._worker_pool._pool} <= workers:
            time.sleep(0.05)
        assert len(list(loader)) == 4


@only_1  # the loader of MXNet 2 does not wait
@pytest.mark.own_process
def test_a_loader_that_is_made_while_a_device_waits():
    """Its constructor waits for all operations before it forks, so only the timeout ends that."""
    network = Network()
    network.step()
    gluon_syncbn.set_timeout(0.5)
    network.call(0)
    with pytest.raises(MXNetError, match="a new DataLoader"):
        gluon.data.DataLoader([0], 1)
    gluon_syncbn.drop_step()
    network.step()


@no_timeout
def test_fork_while_the_devices_are_on_their_way():
    """All devices have been called: none waits in vain, however long it takes them."""
    network = Network()
    slow = nd.ones((3000, 3000), ctx=contexts[1])
    for _ in range(8):
        slow = nd.dot(slow, slow) / 3000
    network.xs[1] = network.xs[1] + slow[:2, :3] * 0
    outs = [network.call(0), network.call(1)]
    if os.fork() == 0:
        os._exit(0)
    check(outs)


@pytest.mark.own_process
def test_fork_with_an_unread_error():
    """The error is there afterwards, also where no array of the program's has it."""
    network = Network()
    for held in (True, False):
        gluon_syncbn.set_timeout(0.1)
        y0 = network.call(0)
        if not held:
            del y0
        time.sleep(3)  # the wait ends, also on a busy machine
        child = os.fork()
        with pytest.raises(MXNetError, match="forward waited"):
            mx.nd.waitall()
        gluon_syncbn.set_timeout(0)
        gluon_syncbn.drop_step()
        network.step()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


@no_timeout
def test_drop_step():
    """A step that was broken off is forgotten, whichever device comes first in the next."""
    network = Network()
    for mode in MODES.values():
        network.net.hybridize(**mode)
        for _ in range(2):
            network.step()
            try:
                _y0 = network.call(0)
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                gluon_syncbn.drop_step()
            mx.nd.waitall()
            network.xs.reverse()
        network.step()
        gluon_syncbn.drop_step()
        network.step()
    _x = nd.random.normal(scale=-1, shape=(1,))
    with pytest.raises(MXNetError, match="scale"):
        gluon_syncbn.drop_step()
    gluon_syncbn.drop_step()


@pytest.mark.own_process
def test_fork():
    """The child has no thread of the parent's, and waits and fails by itself."""
    layer = make_layer()

    def child() -> None:
        assert gluon_syncbn.get_timeout() == 77
        train(layer)
        gluon_syncbn.set_timeout(0.3)
        with pytest.raises(MXNetError, match="forward waited"):
            train(layer, contexts[:1])

    gluon_syncbn.set_timeout(77)
    for _ in range(2):  # before and after the first step
        in_child(child)
        train(layer)


@pytest.mark.own_process(GLUON_SYNCBN_TIMEOUT="20")
def test_forks_while_steps_are_under_way():
    """MXNet ends the threads of custom operators before the operations that call them."""
    layer = make_layer()
    wide = [nd.ones((2, 3, 200000), ctx=context) for context in contexts]

    def begin() -> None:
        with mx.autograd.record():
            outs = [layer(x) for x in wide]
        mx.autograd.backward(outs)

    for _ in range(8):
        begin()
        child = fork_unknown_to_python()
        if child == 0:
            begin()
            mx.nd.waitall()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.own_process
def test_workers_of_a_data_loader():
    layer = make_layer()
    data = gluon.data.ArrayDataset(np.ones((32, 3), dtype="float32"))
    for _ in range(2):
        for batch in gluon.data.DataLoader(data, batch_size=8, num_workers=2):
            with mx.autograd.record():
                outs = [layer(shard) for shard in gluon.utils.split_and_load(batch, contexts)]
            mx.autograd.backward(outs)
            assert sum(abs(out.asnumpy()).max() for out in outs) < 1e-2
