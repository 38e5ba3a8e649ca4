"""Programs that fork, and some that break off steps, with two layers on two devices."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.base import MXNetError
from mxnet.gluon import nn

from tests.programs.two_devices import contexts, make_layer, train
from tests.support.either_mxnet import nd
from tests.support.processes import in_child
from tests.support.step import MODES

layer = make_layer()
net = nn.HybridSequential()
net.add(nn.Dense(4, in_units=3), gluon_syncbn.SyncBatchNorm(in_channels=4))
net.add(nn.Dense(5, in_units=4), gluon_syncbn.SyncBatchNorm(in_channels=5))
net.initialize(ctx=contexts)
xs = [nd.random.normal(shape=(2, 3), ctx=context) for context in contexts]


def call(device: int) -> Any:
    with mx.autograd.record():
        return net(xs[device])


def check(outs: list[Any]) -> None:
    """Normalized over all devices, every channel has mean 0."""
    values = np.concatenate([out.asnumpy() for out in outs])
    assert abs(values.mean(0)).max() < 1e-5, values


def step() -> None:
    outs = [call(0), call(1)]
    mx.autograd.backward(outs)
    check(outs)
    mx.nd.waitall()


def _fork_unknown_to_python() -> int:
    """As subprocess does in Python 3.8."""
    return ctypes.PyDLL(None).fork()


def while_a_device_waits() -> None:
    forked = "forked before all devices had come"

    def child() -> None:
        with pytest.raises(MXNetError, match=forked):
            y0.asnumpy()
        gluon_syncbn.drop_step()
        step()

    for mode in MODES.values():
        net.hybridize(**mode)
        step()
        y0 = call(0)
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        y1 = call(1)
        for out in (y1, y0):
            with pytest.raises(MXNetError, match=forked):
                out.asnumpy()
        mx.autograd.backward([y0, y1])
        with pytest.raises(MXNetError, match="backward"):
            mx.nd.waitall()
        with pytest.raises(MXNetError, match=f"an earlier step has failed.*{forked}"):
            step()
        gluon_syncbn.drop_step()
        step()
        step()
        process.join()
        assert process.exitcode == 0, (mode, process.exitcode)


@contextlib.contextmanager
def _a_device_waits() -> Iterator[None]:
    y0 = call(0)
    yield
    with pytest.raises(MXNetError, match="forked"):
        y0.asnumpy()
    gluon_syncbn.drop_step()
    step()


def by_a_subprocess() -> None:
    step()
    with _a_device_waits():
        if _fork_unknown_to_python() == 0:
            os._exit(0)


def by_a_thread() -> None:
    """The thread holds Python's lock, and the main thread waits for a result."""
    step()
    with _a_device_waits():
        thread = threading.Thread(target=lambda: os.fork() or os._exit(0))
        thread.start()
        thread.join()


def by_a_loader() -> None:
    """A worker dies, and the pool forks another from a thread of its own."""
    step()
    data = gluon.data.ArrayDataset(np.ones((8, 3), dtype="float32"))
    loader = gluon.data.DataLoader(data, batch_size=2, num_workers=2)
    with _a_device_waits():
        workers = {worker.pid for worker in loader._worker_pool._pool}
        loader._worker_pool.apply_async(os._exit, (1,))
        while {worker.pid for worker in loader._worker_pool._pool} <= workers:
            time.sleep(0.05)
        assert len(list(loader)) == 4


def new_loader_while_a_device_waits() -> None:
    step()
    gluon_syncbn.set_timeout(0.5)
    call(0)
    with pytest.raises(MXNetError, match="a new DataLoader"):
        gluon.data.DataLoader([0], 1)
    gluon_syncbn.drop_step()
    step()


def while_the_devices_are_on_their_way() -> None:
    slow = nd.ones((3000, 3000), ctx=contexts[1])
    for _ in range(8):
        slow = nd.dot(slow, slow) / 3000
    xs[1] = xs[1] + slow[:2, :3] * 0
    outs = [call(0), call(1)]
    if os.fork() == 0:
        os._exit(0)
    check(outs)


def with_an_unread_error() -> None:
    for held in (True, False):
        gluon_syncbn.set_timeout(0.1)
        y0 = call(0)
        if not held:
            del y0
        time.sleep(1)
        child = os.fork()
        with pytest.raises(MXNetError, match="forward waited"):
            mx.nd.waitall()
        gluon_syncbn.set_timeout(0)
        gluon_syncbn.drop_step()
        step()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def drop_step() -> None:
    for mode in MODES.values():
        net.hybridize(**mode)
        for _ in range(2):
            step()
            try:
                _y0 = call(0)
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                gluon_syncbn.drop_step()
            mx.nd.waitall()
            xs.reverse()
        step()
        gluon_syncbn.drop_step()
        step()
    _x = nd.random.normal(scale=-1, shape=(1,))
    with pytest.raises(MXNetError, match="scale"):
        gluon_syncbn.drop_step()
    gluon_syncbn.drop_step()


def before_and_after_the_first_step() -> None:
    def child() -> None:
        assert gluon_syncbn.get_timeout() == 77
        train(layer)
        gluon_syncbn.set_timeout(0.3)
        with pytest.raises(MXNetError, match="forward waited"):
            train(layer, contexts[:1])

    gluon_syncbn.set_timeout(77)
    for _ in range(2):
        in_child(child)
        train(layer)


def while_steps_are_under_way() -> None:
    wide = [nd.ones((2, 3, 200000), ctx=context) for context in contexts]

    def begin() -> None:
        with mx.autograd.record():
            outs = [layer(x) for x in wide]
        mx.autograd.backward(outs)

    for _ in range(8):
        begin()
        child = _fork_unknown_to_python()
        if child == 0:
            begin()
            mx.nd.waitall()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def workers_of_a_data_loader() -> None:
    data = gluon.data.ArrayDataset(np.ones((32, 3), dtype="float32"))
    for _ in range(2):
        for batch in gluon.data.DataLoader(data, batch_size=8, num_workers=2):
            with mx.autograd.record():
                outs = [layer(shard) for shard in gluon.utils.split_and_load(batch, contexts)]
            mx.autograd.backward(outs)
            assert sum(abs(out.asnumpy()).max() for out in outs) < 1e-2
