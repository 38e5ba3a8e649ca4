"""Programs that end in the middle of a step, or step while they end."""

from __future__ import annotations

import atexit
import time
from typing import Any

import gluon_syncbn
import mxnet as mx

from tests.programs.two_devices import contexts, forward, make_layer, train

layer = make_layer()
outs: list[Any] = []  # the interpreter frees them last


def exit_with_a_round_pending(status: int) -> None:
    outs.extend(forward(layer, contexts[:1]))
    raise RuntimeError if status == 1 else SystemExit(status)


def first_call_in_an_exit_handler() -> None:
    atexit.register(lambda: print(train(layer)[0].shape))


def exit_with_an_error() -> None:
    gluon_syncbn.set_timeout(0.2)
    outs.extend(forward(layer, contexts[:1]))
    time.sleep(1)


def print_error_of_mirroring() -> None:
    symbol = gluon_syncbn.SyncBatchNorm(in_channels=3, num_devices=1)(mx.sym.var("data"))
    executor = symbol.simple_bind(contexts[0], data=(4, 3))
    try:
        executor.forward(is_train=True)[0].wait_to_read()
    except mx.base.MXNetError as error:
        print(error)
