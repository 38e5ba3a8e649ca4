"""Programs that end in the middle of a step, or step while they end."""

from __future__ import annotations

import atexit
import time
from typing import Any

import gluon_syncbn
import mxnet as mx

from tests.programs.two_devices import contexts, forward, make_layer, train

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
    atexit.register(lambda: print(train(layer)[0].shape))


def exit_with_an_error() -> None:
    gluon_syncbn.set_timeout(0.2)
    call_one_of(2)
    time.sleep(1)


def print_error_of_mirroring() -> None:
    symbol = gluon_syncbn.SyncBatchNorm(in_channels=3, num_devices=1)(mx.sym.var("data"))
    executor = symbol.simple_bind(contexts[0], data=(4, 3))
    try:
        executor.forward(is_train=True)[0].wait_to_read()
    except mx.base.MXNetError as error:
        print(error)
