"""Each CPU context has workspaces and random numbers of its own in each thread."""

from __future__ import annotations

import ctypes
import shutil
import threading

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.library import library_path
from mxnet.gluon import nn

from tests.support.either_mxnet import nd, on_a_thread
from tests.support.own_process import case
from tests.support.processes import in_child, run_program
from tests.support.step import MODES


def dropout_net(layers: int, contexts: list[mx.Context], mode: str) -> nn.HybridSequential:
    net = nn.HybridSequential()
    for _ in range(layers):
        net.add(nn.Conv2D(4, 3, padding=1), gluon_syncbn.SyncBatchNorm(), nn.Activation("relu"))
        net.add(nn.Dropout(0.3))
    net.initialize(ctx=contexts)
    net.hybridize(**MODES[mode])
    return net


def train(net: nn.HybridSequential, contexts: list[mx.Context], steps: int) -> None:
    """Steps that nothing but the layers keeps together.

    MXNet 2's Trainer is not used, because it crashes when several threads call it.
    """
    trained = [p for p in net.collect_params().values() if p.grad_req != "null"]
    for _ in range(steps):
        with mx.autograd.record():
            outputs = [
                net(nd.random.normal(shape=(2, 4, 6, 6), ctx=context)).mean()
                for context in contexts
            ]
        mx.autograd.backward(outputs)
        for parameter in trained:
            for data, grad in zip(parameter.list_data(), parameter.list_grad()):
                data[:] = data - 0.01 * grad
    assert all(np.isfinite(output.asnumpy().item()) for output in outputs)


def cpus(number: int) -> list[mx.Context]:
    return [mx.cpu(i) for i in range(number)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("layers", "number"), [(3, 4), (30, 8)])
def test_networks_with_dropout(mode, layers, number):
    """Behind the synchronization on one device nothing holds what another one needs before it."""
    contexts = cpus(number)
    train(dropout_net(layers, contexts, mode), contexts, steps=3)


@pytest.mark.parametrize("mode", MODES)
def test_three_threads_each_with_a_network_on_the_same_contexts(mode):
    contexts = cpus(4)
    done = []

    def work() -> None:
        train(dropout_net(10, contexts, mode), contexts, steps=3)
        done.append(True)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 3


@pytest.mark.own_process(GLUON_SYNCBN_TIMEOUT="60")
@pytest.mark.parametrize(
    "setting",
    [
        case("workers", MXNET_CPU_WORKER_NTHREADS="3"),
        case("copies", MXNET_CPU_TEMP_COPY="1"),
        case("engine", MXNET_ENGINE_TYPE="ThreadedEngine"),
    ],
)
def test_settings_of_the_user(setting):
    for mode in MODES:
        test_networks_with_dropout(mode, 8, 4)


def draw(number: int = 3) -> list[np.ndarray]:
    """Random numbers of each context: uniform ones, normal ones, and the mask of a Dropout."""
    drawn = []
    for context in cpus(number):
        like = {"shape": (100,), "dtype": "float64", "ctx": context}
        uniform, normal = nd.random.uniform(**like), nd.random.normal(**like)
        with mx.autograd.train_mode():
            mask = nd.Dropout(nd.ones(**like), 0.5)
        drawn.append(nd.stack(uniform, normal, mask).asnumpy())
    return drawn


def seeded(number: int = 3) -> list[np.ndarray]:
    mx.random.seed(7)
    return draw(number)


def test_seeds():
    first = seeded()
    np.testing.assert_array_equal(seeded(), first)
    np.testing.assert_array_equal(on_a_thread(seeded), first)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        # Nor are they the same numbers elsewhere: MXNet has a generator for every 64 of an array.
        for mine, theirs in zip(first[i][:2], first[j][:2]):
            assert not np.isin(mine, theirs).any()
        assert (first[i][2] != first[j][2]).any()
    assert not (np.array(draw())[:, :2] == np.array(first)[:, :2]).any()


def test_the_seed_of_one_context():
    drawn = seeded()
    mx.random.seed(7)
    mx.random.seed(3, ctx=mx.cpu(1))
    other = draw()
    np.testing.assert_array_equal(other[0], drawn[0])
    np.testing.assert_array_equal(other[2], drawn[2])
    assert not (other[1][:2] == drawn[1][:2]).any()
    mx.random.seed(3, ctx=mx.cpu(1))
    np.testing.assert_array_equal(draw()[1], other[1])


def test_threads_that_choose_no_seed_differ():
    drawn = [draw(), on_a_thread(draw), on_a_thread(draw)]
    for context in (1, 2):
        numbers = [own[context][0] for own in drawn]
        assert len(np.unique(numbers)) == 300


@pytest.mark.parametrize("mode", MODES)
def test_masks_depend_on_the_seed_alone(mode):
    def masks(mode: str) -> list[np.ndarray]:
        net = nn.HybridSequential()
        net.add(nn.Dropout(0.5), nn.Dropout(0.1))
        net.hybridize(**MODES[mode])
        mx.random.seed(11)
        with mx.autograd.train_mode():
            steps = [[net(nd.ones((8, 8), ctx=c)) for c in cpus(3)] for _ in range(2)]
        return [mask.asnumpy() for masks in steps for mask in masks]

    np.testing.assert_array_equal(masks(mode), masks("imperative"))


def test_the_first_context_draws_what_mxnet_draws():
    run_program("late_imports.first_context_draws_what_mxnet_draws")


@pytest.mark.own_process(GLUON_SYNCBN_TIMEOUT="60")
def test_parent_and_child_of_a_fork_train_on():
    contexts = cpus(4)
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


@pytest.mark.own_process
def test_another_copy_of_the_library_looks_before_it_acts(tmp_path):
    copy = shutil.copy(library_path(), tmp_path / "copy.so")
    before = seeded()
    give = ctypes.CDLL(str(copy)).gluon_syncbn_give_cpu_contexts_workspaces
    give.restype = ctypes.c_char_p
    assert give(mx.base._LIB._name.encode()) is None
    assert give(b"libc.so.6") == b"it has no symbol _ZN5mxnet15ResourceManager3GetEv"
    np.testing.assert_array_equal(seeded(), before)


def test_another_mxnet_serves_one_context_and_refuses_several():
    run_program("late_imports.another_mxnet")
