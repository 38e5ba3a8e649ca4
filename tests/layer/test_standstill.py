"""A program that can no longer make the missing calls gets an error at once, and no other does.

Each runs in a process of its own, because the threads of a test runner count too.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.pool
import os
import re
import signal
import subprocess
import threading
import time
from typing import Any, Callable

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest

from tests.support.either_mxnet import error_of, nd, only_1
from tests.support.processes import ROOT, run_interpreter, run_python
from tests.support.step import MODES
from tests.support.two_devices import Network, contexts

try:
    from tqdm import tqdm
except ImportError:  # beside MXNet 2
    tqdm = None

PAUSE = 4.0  # seconds; a program that stands still is ended after 2 to 3
own_process = pytest.mark.own_process(GLUON_SYNCBN_TIMEOUT="100")


@pytest.fixture
def network() -> Network:
    """A network that has made a step."""
    network = Network()
    network.step()
    return network


def in_thread(function: Callable[[], Any]) -> None:
    threading.Thread(target=function, daemon=True).start()


def interrupt_after_a_pause() -> None:
    subprocess.Popen(f"sleep {PAUSE}; kill -INT {os.getpid()}", shell=True)


def read_inside_the_loop(network: Network) -> None:
    for device in (0, 1):
        network.call(device).asnumpy()


def backward_of_one_device(network: Network) -> None:
    outs = [network.call(0), network.call(1)]
    outs[0].backward()
    network.net[0].weight.grad(contexts[0]).asnumpy()


@own_process
def test_programs_that_stand_still(network):
    """Every kind ends with an error, and after drop_step() the next step works."""

    def end_with_an_error(mistake: Callable[[], Any], *words: str) -> None:
        error = error_of(mistake)
        for each in ("the only thread of the program waits in MXNet at ", *words):
            assert each in error, (each, error)
        gluon_syncbn.drop_step()
        network.step()

    bar = tqdm(total=1) if tqdm else None  # which has a thread of its own
    end_with_an_error(lambda: backward_of_one_device(network))
    end_with_an_error(lambda: (network.call(0), mx.nd.waitall()))
    line = read_inside_the_loop.__code__.co_firstlineno + 2
    for mode in MODES.values():
        network.net.hybridize(**mode)
        network.step()
        place = f"{__file__}:{line}, and so cannot make the missing calls.\nCame: "
        end_with_an_error(lambda: read_inside_the_loop(network), place)
    del bar


def test_a_program_that_stands_still_at_exit():
    """Its handler runs before that of the library."""
    program = """
import atexit
from tests.support.either_mxnet import error_of
from tests.support.two_devices import Network
network = Network()
network.step()
atexit.register(lambda: print(error_of(network.call(0).asnumpy)))
"""
    assert "and so cannot make the missing calls" in run_python(program).stdout


class Slow(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        time.sleep(PAUSE)
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0])


@mx.operator.register("slow")
class SlowProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Slow()


def fed_by_processes(network: Network) -> None:
    """A pool of threads gets what a pool of processes computes and another process sends."""
    fork = multiprocessing.get_context("fork")
    pool, queue = fork.Pool(1), fork.Queue()
    fork.Process(target=lambda: (time.sleep(PAUSE), queue.put(1), queue.put(None))).start()
    threads = multiprocessing.pool.ThreadPool(2)
    for fed in (pool.imap(time.sleep, [PAUSE]), iter(queue.get, None)):
        threads.apply_async(lambda fed=fed: [network.call(1).asnumpy() for _ in fed])
        network.call(0).asnumpy()


@own_process
@pytest.mark.parametrize("how", ["main", "processes", "loop", "operator"])
def test_programs_that_are_slow(how, network, capfd):
    """They make the missing call later, and no round fails."""

    async def call_1_later() -> None:
        await asyncio.sleep(PAUSE)
        network.call(1).asnumpy()

    if how == "main":
        first = network.call(0)
        time.sleep(PAUSE)
        network.call(1).asnumpy()
        first.asnumpy()
    elif how == "processes":
        fed_by_processes(network)
    elif how == "loop":
        in_thread(lambda: asyncio.run(call_1_later()))
        network.call(0).asnumpy()
    else:
        network.xs[1] = nd.Custom(network.xs[1], op_type="slow")
        last = network.call(1)
        network.call(0).asnumpy()
        last.asnumpy()
    assert re.search(r"has waited [\d.]+ s", capfd.readouterr().err)


@pytest.mark.own_process(GLUON_SYNCBN_TIMEOUT="10")
def test_a_program_that_was_suspended(network):
    """It could make no call in this time, so the time does not count."""
    first = network.call(0)
    stop = f"kill -STOP {os.getpid()}; sleep 12; kill -CONT {os.getpid()}"
    subprocess.run(stop, shell=True, check=True)
    network.call(1).asnumpy()
    first.asnumpy()


@only_1  # MXNet 2 has no hybrid_forward
def test_layers_that_run_converts_while_a_device_waits():
    program = str(ROOT / "tests" / "programs" / "run" / "subclasses.py")
    run_interpreter("-W", "ignore", "-m", "gluon_syncbn", "run", "--convert", program)


@pytest.mark.own_process(GLUON_SYNCBN_TIMEOUT="30")
@pytest.mark.parametrize("what", ["sleeps", "computes"])
def test_the_warning_says_what_the_program_does(what, network, capfd):
    """Another thread makes the missing call after the warning, and `what` it does before."""

    def other() -> None:
        end = time.monotonic() + PAUSE  # the warning comes after 2 to 3 s
        if what == "sleeps":
            time.sleep(PAUSE)
        values = np.ones((300, 300))
        while time.monotonic() < end:
            values = values @ values * 0
        network.call(1).asnumpy()

    in_thread(other)
    network.call(0).asnumpy()
    warning = capfd.readouterr().err
    assert "The main thread waits in MXNet at " in warning
    assert ("Likely: " in warning) == (what == "sleeps")
    assert ("Threads of this process compute" in warning) == (what == "computes")


@own_process
def test_an_interrupt_ends_the_wait(network):
    """A thread may still call, also one that computes."""

    def compute() -> None:
        for _ in iter(int, 1):
            pass

    in_thread(compute)
    interrupt_after_a_pause()
    with pytest.raises(KeyboardInterrupt):
        read_inside_the_loop(network)
    error_of(mx.nd.waitall)
    gluon_syncbn.drop_step()
    network.step()


@own_process
def test_a_handler_of_the_program_takes_the_interrupt(network):
    """The program goes on with a step that is slow."""
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
    in_thread(lambda: (time.sleep(1.5 * PAUSE), network.call(1).asnumpy()))
    interrupt_after_a_pause()
    network.call(0).asnumpy()
    assert pressed
