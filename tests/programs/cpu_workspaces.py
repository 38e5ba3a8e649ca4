"""Programs of the networks and random numbers in tests/machine/test_cpu_workspaces.py."""

from __future__ import annotations

import ctypes

import mxnet as mx
import numpy as np

from tests.machine.test_cpu_workspaces import (
    cpus,
    dropout_net,
    seeded,
    test_networks_with_dropout,
    test_threads_that_choose_no_seed_differ,
    train,
)
from tests.support.either_mxnet import on_a_thread
from tests.support.processes import in_child
from tests.support.step import MODES

contexts = cpus(4)


def networks_with_dropout() -> None:
    for mode in MODES:
        train(dropout_net(8, contexts, mode), contexts, steps=3)


def parent_and_child_of_a_fork() -> None:
    net = dropout_net(3, contexts, "hybridized")
    train(net, contexts, steps=2)

    def check() -> None:
        train(net, contexts, steps=2)
        first = seeded()
        np.testing.assert_array_equal(on_a_thread(seeded), first)
        test_threads_that_choose_no_seed_differ()
        test_networks_with_dropout("static_alloc", 10, 8)

    in_child(check)
    check()


def another_copy_of_the_library(path: str) -> None:
    before = seeded()
    give = ctypes.CDLL(path).gluon_syncbn_give_cpu_contexts_workspaces
    give.restype = ctypes.c_char_p
    assert give(mx.base._LIB._name.encode()) is None
    assert give(b"libc.so.6") == b"it has no symbol _ZN5mxnet15ResourceManager3GetEv"
    np.testing.assert_array_equal(seeded(), before)
