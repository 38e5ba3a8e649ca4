"""Programs that end in the middle of a step, or step while they end."""

from __future__ import annotations

import atexit
import time
from typing import Any

import gluon_syncbn
import mxnet as mx

from tests.support.two_devices import contexts, forward, make_layer, train

kept: list[Any] = []  # the interpreter frees its objects last


def call_one_of(number: int) -> None:
    """Call a layer on the first of these devices. The others are CPUs: there may be one GPU."""
    ctx = [contexts[0], *(mx.cpu(i) for i in range(1, number))]
    layer = make_layer(ctx)
    kept.extend([layer, *forward(layer, ctx[:1])])


def exit_with_work_pending(status: int, devices: int = 2) -> None:
    """Several devices leave a round pending. One alone computes."""
    call_one_of(devices)
    raise RuntimeError if status == 1 else SystemExit(status)


def first_call_in_an_exit_handler() -> None:
    layer = make_layer()
    atexit.register(lambda: (train(layer), print("trained")))


def exit_with_an_error() -> None:
    gluon_syncbn.set_timeout(0.2)
    call_one_of(2)
    time.sleep(1)
