"""ResNets of Gluon's model zoo, on any MXNet: several contexts against one with BatchNorm."""

from __future__ import annotations

import threading

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.mxnet_versions import IS_2
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

from tests.conftest import contexts
from tests.support.either_mxnet import nd
from tests.support.networks import load, make_images, randomize
from tests.support.step import MODES, compare, train_step

SIZE = 32


def network(name: str) -> gluon.HybridBlock:
    net = vision.get_model(name, classes=10)
    net.cast("float64")
    return net


@pytest.mark.parametrize(
    ("name", "mode"), [*(("resnet18_v1", mode) for mode in MODES), ("resnet50_v1", "static_alloc")]
)
def test_two_contexts_equal_one_with_batchnorm(name, mode):
    one, batch = network(name), make_images(SIZE, 1)
    values = randomize(one, batch)
    expected = train_step(one, batch, contexts(1))
    many = gluon_syncbn.convert_sync_batchnorm(network(name))
    load(many, contexts(2), values)
    many.hybridize(**MODES[mode])
    found = train_step(many, make_images(SIZE, 2), contexts(2))
    compare(found, expected, 1e-6, out=1e-8, running=1e-6)
    assert not gluon_syncbn.check_in_sync(many)
    gluon_syncbn.revert_sync_batchnorm(many)
    assert not any(isinstance(each, gluon_syncbn.SyncBatchNorm) for each in many.features)


def on_a_thread(function) -> list:
    """What `function` returns on a thread that lives for this call."""
    results: list = []

    def call() -> None:
        if IS_2:  # which has an interface per thread
            mx.npx.set_np()
        with contexts(1)[0]:
            results.append(function())

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return results


@pytest.mark.parametrize("mode", ["hybridized", "static_alloc"])
def test_threads_that_come_and_go(mode):
    ctx = contexts(2)
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=3), gluon_syncbn.SyncBatchNorm(in_channels=4), nn.Dropout(0.5))
    net.initialize(ctx=ctx)
    net.hybridize(**MODES[mode])
    data = [nd.array([[1, 2, 3], [4, 0, 6]], ctx=c) for c in ctx]

    def step() -> bool:
        with autograd.record():
            losses = [(net(x) ** 2).sum() for x in data]
        autograd.backward(losses)
        return all(np.isfinite(loss.asnumpy()).all() for loss in losses)

    for _ in range(200):
        assert on_a_thread(step) == [True]
