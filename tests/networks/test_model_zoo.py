"""ResNets of Gluon's model zoo, on any MXNet: several contexts against one with BatchNorm."""

from __future__ import annotations

import gluon_syncbn
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

from tests.conftest import contexts
from tests.support.either_mxnet import on_a_thread
from tests.support.networks import load, make_images, randomize, sequential
from tests.support.step import MODES, Case, compare, run, train_step

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


@pytest.mark.parametrize("mode", ["hybridized", "static_alloc"])
def test_threads_that_come_and_go(mode):
    ctx = contexts(2)
    net = sequential(
        nn.Dense(4, in_units=3), gluon_syncbn.SyncBatchNorm(in_channels=4), nn.Dropout(0.5)
    )
    net.initialize(ctx=ctx)
    net.hybridize(**MODES[mode])
    x = np.array([[1, 2, 3], [4, 0, 6]] * 2, "float32")
    case = Case(x, (2, 2), call=lambda net, x, _: (net(x) ** 2).sum())

    def is_finite() -> bool:
        return all(np.isfinite(loss.asnumpy()).all() for loss in run(net, case, ctx)["out"])

    for _ in range(200):
        assert on_a_thread(is_finite)
