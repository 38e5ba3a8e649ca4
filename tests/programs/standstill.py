"""Programs that cannot make the missing calls, and some that only take their time.

Each runs in a process of its own, because the threads of a test runner count too.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any, Callable

import gluon_syncbn
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.support.either_mxnet import error_of, nd
from tests.support.step import MODES

try:
    from tqdm import tqdm
except ImportError:  # beside MXNet 2
    tqdm = None

PAUSE = 3.0  # seconds; the first look comes after 2
contexts = [mx.cpu(0), mx.cpu(1)]
net = nn.HybridSequential()
net.add(nn.Dense(3, in_units=4), gluon_syncbn.SyncBatchNorm(in_channels=3))
net.initialize(ctx=contexts)


def call(device: int) -> Any:
    with autograd.record():
        return (net(nd.random.normal(shape=(2, 4), ctx=contexts[device])) ** 2).sum()


def whole_step() -> None:
    losses = [call(0), call(1)]
    autograd.backward(losses)
    assert all(np.isfinite(each.asnumpy()).all() for each in losses)


def in_thread(function: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def read_inside_the_loop() -> None:
    for device in (0, 1):
        call(device).asnumpy()


def backward_of_one_device() -> None:
    losses = [call(0), call(1)]
    losses[0].backward()
    net[0].weight.grad(contexts[0]).asnumpy()


def thread_that_died() -> None:
    thread = in_thread(lambda: call(0).asnumpy())
    dead = in_thread(lambda: None)  # which should have called the other device
    thread.join()
    dead.join()


def mistakes() -> None:
    """Every kind ends with an error, and the next step works."""
    errors: list[str] = []
    threading.excepthook = lambda args: errors.append(str(args.exc_value))

    def end_with_an_error(mistake: Callable[[], Any], *words: str) -> None:
        error = error_of(mistake) or errors.pop()
        for each in ("no thread of the program can make the missing calls", *words):
            assert each in error, (each, error)
        error_of(mx.nd.waitall)  # of the other passes of the step
        whole_step()

    end_with_an_error(thread_that_died)
    # From here on there are threads that call no layers.
    loader = iter(gluon.data.DataLoader(gluon.data.SimpleDataset([0.0, 1.0]), 1, num_workers=1))
    next(loader)
    pool = multiprocessing.Pool(1)
    pool.map(abs, [1])
    bar = tqdm(total=1) if tqdm else None  # which has a thread of its own
    end_with_an_error(backward_of_one_device)
    end_with_an_error(lambda: (call(0), mx.nd.waitall()))
    line = read_inside_the_loop.__code__.co_firstlineno + 2
    for mode in MODES.values():
        net.hybridize(**mode)
        whole_step()
        place = f"; the program waits in MXNet at {__file__}:{line}.\nCame: "
        end_with_an_error(read_inside_the_loop, place)
    pool.terminate()
    del bar
    # This handler runs before that of the library.
    atexit.register(lambda: print(error_of(call(0).asnumpy)))


class _Slow(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        time.sleep(PAUSE)
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0])


@mx.operator.register("slow")
class _SlowProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return _Slow()


def _waits() -> Iterator[Callable[[], Any]]:
    """Functions that wait for PAUSE, each for something of another kind that begins now."""
    yield lambda: time.sleep(PAUSE)
    event = threading.Event()
    threading.Timer(PAUSE, event.set).start()
    yield event.wait
    reader, writer = os.pipe()
    subprocess.Popen(f"sleep {PAUSE}; echo >&{writer}", shell=True, pass_fds=[writer])
    yield lambda: os.read(reader, 1)
    lock = multiprocessing.Lock()
    lock.acquire()
    process = multiprocessing.get_context("fork").Process(target=_release, args=(lock,))
    process.start()
    yield lock.acquire
    process.join()


def slow() -> None:
    """Programs that make the missing call later; no round fails."""
    calls = [call(0)]
    time.sleep(PAUSE)
    call(1).asnumpy()
    # The main thread reads, and another calls the other device after a pause.
    for wait in _waits():

        def other(wait: Callable[[], Any] = wait) -> None:
            wait()
            calls.append(call(1))

        thread = in_thread(other)
        call(0).asnumpy()
        thread.join()
    with autograd.record():
        late = net(nd.Custom(nd.ones((2, 4), ctx=contexts[1]), op_type="slow"))
    call(0).asnumpy()
    late.asnumpy()
    print("all met")


def _release(lock: Any) -> None:
    time.sleep(PAUSE)
    lock.release()


def warned(what: str) -> None:
    """Another thread makes the missing call after the warning, and `what` it does before."""

    def other() -> None:
        end = time.monotonic() + PAUSE + 1  # the warning comes after 3 s
        if what == "sleeps":
            time.sleep(PAUSE + 1)
        values = np.ones((300, 300))
        while time.monotonic() < end:
            values = values @ values * 0
        call(1).asnumpy()

    in_thread(other)
    call(0).asnumpy()
    print("met")


def interrupted() -> None:
    """Ctrl-C ends a wait in which a thread may still call, and the next step works."""
    in_thread(lambda: [time.sleep(0.5) for _ in iter(int, 1)])
    subprocess.Popen(f"sleep {PAUSE}; kill -INT {os.getpid()}", shell=True)
    try:
        read_inside_the_loop()
    except KeyboardInterrupt:
        print("KeyboardInterrupt")
    print(error_of(mx.nd.waitall))
    whole_step()


def own_handler() -> None:
    """A program that handles Ctrl-C itself goes on with a step that is slow."""
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
    in_thread(lambda: (time.sleep(2 * PAUSE), call(1).asnumpy()))
    subprocess.Popen(f"sleep {PAUSE}; kill -INT {os.getpid()}", shell=True)
    call(0).asnumpy()
    assert pressed
    print("met")


whole_step()
