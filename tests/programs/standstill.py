"""Programs that cannot make the missing calls, and some that only take their time.

Each runs in a process of its own, because the threads of a test runner count too.
"""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import multiprocessing.pool
import os
import signal
import subprocess
import threading
import time
from typing import Any, Callable

import gluon_syncbn
import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import nn

from tests.support.either_mxnet import error_of, nd
from tests.support.step import MODES

try:
    from tqdm import tqdm
except ImportError:  # beside MXNet 2
    tqdm = None

# Jobs of a shell in the background ignore the signal, and so would these programs.
signal.signal(signal.SIGINT, signal.default_int_handler)
PAUSE = 4.0  # seconds; a program that stands still is ended after 2 to 3
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


def mistakes() -> None:
    """Every kind ends with an error, and after drop_step() the next step works."""

    def end_with_an_error(mistake: Callable[[], Any], *words: str) -> None:
        error = error_of(mistake)
        for each in ("the only thread of the program waits in MXNet at ", *words):
            assert each in error, (each, error)
        gluon_syncbn.drop_step()
        whole_step()

    bar = tqdm(total=1) if tqdm else None  # which has a thread of its own
    end_with_an_error(backward_of_one_device)
    end_with_an_error(lambda: (call(0), mx.nd.waitall()))
    line = read_inside_the_loop.__code__.co_firstlineno + 2
    for mode in MODES.values():
        net.hybridize(**mode)
        whole_step()
        place = f"{__file__}:{line}, and so cannot make the missing calls.\nCame: "
        end_with_an_error(read_inside_the_loop, place)
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


def _call_1() -> None:
    call(1).asnumpy()


def _fed_by_processes() -> None:
    """A pool of threads gets what a pool of processes computes and another process sends."""
    fork = multiprocessing.get_context("fork")
    pool, queue = fork.Pool(1), fork.Queue()
    fork.Process(target=lambda: (time.sleep(PAUSE), queue.put(1), queue.put(None))).start()
    threads = multiprocessing.pool.ThreadPool(2)
    for fed in (pool.imap(_sleep, [PAUSE]), iter(queue.get, None)):
        threads.apply_async(lambda fed=fed: [_call_1() for _ in fed])
        call(0).asnumpy()


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


async def _call_1_later() -> None:
    await asyncio.sleep(PAUSE)
    _call_1()


def slow(how: str) -> None:
    """Make the missing call later; no round fails."""
    if how == "main":
        first = call(0)
        time.sleep(PAUSE)
        _call_1()
        first.asnumpy()
    elif how == "processes":
        _fed_by_processes()
    elif how == "loop":
        in_thread(lambda: asyncio.run(_call_1_later()))
        call(0).asnumpy()
    else:
        with autograd.record():
            late = net(nd.Custom(nd.ones((2, 4), ctx=contexts[1]), op_type="slow"))
        call(0).asnumpy()
        late.asnumpy()
    print("met")


def suspended() -> None:
    """Nobody could make a call in this time, so it does not count."""
    first = call(0)
    stop = f"kill -STOP {os.getpid()}; sleep 5; kill -CONT {os.getpid()}"
    subprocess.Popen(stop, shell=True)
    time.sleep(2)
    _call_1()
    first.asnumpy()
    print("met")


def warned(what: str) -> None:
    """Another thread makes the missing call after the warning, and `what` it does before."""

    def other() -> None:
        end = time.monotonic() + PAUSE  # the warning comes after 2 to 3 s
        if what == "sleeps":
            time.sleep(PAUSE)
        values = np.ones((300, 300))
        while time.monotonic() < end:
            values = values @ values * 0
        call(1).asnumpy()

    in_thread(other)
    call(0).asnumpy()
    print("met")


def interrupted() -> None:
    """Ctrl-C ends a wait in which a thread may still call, also one that computes."""
    in_thread(lambda: [None for _ in iter(int, 1)])
    subprocess.Popen(f"sleep {PAUSE}; kill -INT {os.getpid()}", shell=True)
    try:
        read_inside_the_loop()
    except KeyboardInterrupt:
        print("KeyboardInterrupt")
    print(error_of(mx.nd.waitall))
    gluon_syncbn.drop_step()
    whole_step()


def own_handler() -> None:
    """A program that handles Ctrl-C itself goes on with a step that is slow."""
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
    in_thread(lambda: (time.sleep(1.5 * PAUSE), _call_1()))
    subprocess.Popen(f"sleep {PAUSE}; kill -INT {os.getpid()}", shell=True)
    call(0).asnumpy()
    assert pressed
    print("met")


whole_step()
