"""GluonCV segmentation networks train on K contexts as on one."""

from __future__ import annotations

import warnings
from typing import Iterator

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluoncv.model_zoo import FCN
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.oracle import relative_error

CLASSES = 11
BATCH = 4
SIZE = 32
STEPS = 2

Parameters = dict


class Run:
    """FCN on `number` contexts as GluonCV makes it with its own layers, from parameters `start`.

    Dropout, which no two runs share, is off. Double precision, because the gradients of a fresh
    network of 50 layers magnify rounding errors ten thousand times and more in every step.
    """

    def __init__(self, norm_layer, number: int, start: Parameters | None = None, **norm_kwargs):
        self.ctx = contexts(number)
        self.net = FCN(
            nclass=CLASSES,
            backbone="resnet50",
            pretrained_base=False,
            norm_layer=norm_layer,
            norm_kwargs=norm_kwargs,
            ctx=self.ctx,
            crop_size=SIZE,
        )
        self.net.apply(self._without_dropout)
        self.net.cast("float64")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the constructor initializes parts of the network
            self.net.initialize(ctx=self.ctx)
        self.net(mx.nd.zeros((1, 3, SIZE, SIZE), ctx=self.ctx[0], dtype="float64"))
        for name, parameter in self.net._collect_params_with_prefix().items():
            # Deferred initialization may have drawn other values for every context.
            value = parameter.data(self.ctx[0]).asnumpy() if start is None else start[name]
            parameter.set_data(mx.nd.array(value, dtype=value.dtype))
        self.net.hybridize()
        self.trainer = gluon.Trainer(
            self.net.collect_params(), "sgd", {"learning_rate": 0.01, "momentum": 0.9, "wd": 1e-4}
        )
        self.criterion = gluon.loss.SoftmaxCrossEntropyLoss(axis=1)

    @staticmethod
    def _without_dropout(block) -> None:
        if isinstance(block, nn.Dropout):
            block._rate = 0

    def step(self, data: mx.nd.NDArray, labels: mx.nd.NDArray) -> float:
        shards = zip(
            gluon.utils.split_and_load(data, self.ctx, even_split=False),
            gluon.utils.split_and_load(labels, self.ctx, even_split=False),
        )
        with autograd.record():
            losses = [sum(self.criterion(out, y).sum() for out in self.net(x)) for x, y in shards]
        autograd.backward(losses)
        self.trainer.step(BATCH)
        return sum(loss.asscalar() for loss in losses) / BATCH

    def parameters(self) -> Parameters:
        values = {}
        for name, parameter in self.net._collect_params_with_prefix().items():
            values[name], *others = [value.asnumpy() for value in parameter.list_data()]
            for other in others:
                np.testing.assert_array_equal(other, values[name], err_msg=name)
        return values


def batches() -> Iterator[tuple[mx.nd.NDArray, mx.nd.NDArray]]:
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        data = rng.standard_normal((BATCH, 3, SIZE, SIZE))
        labels = rng.integers(0, CLASSES, (BATCH, SIZE, SIZE))
        yield mx.nd.array(data, dtype="float64"), mx.nd.array(labels, dtype="float64")


@pytest.fixture(scope="module")
def one_device():
    mx.random.seed(1)
    run = Run(nn.BatchNorm, 1)
    start = run.parameters()
    losses = [run.step(*batch) for batch in batches()]
    return start, losses, run.parameters()


def test_fcn_follows_one_device(one_device):
    """Shards of 1, 1 and 2 images; two devices are in test_gluoncv_families.py."""
    start, losses, expected = one_device
    run = Run(gluon_syncbn.SyncBatchNorm, 3, start, num_devices=3)
    ours = [run.step(*batch) for batch in batches()]
    np.testing.assert_allclose(ours, losses, rtol=1e-10)
    for name, value in run.parameters().items():
        # MXNet's BatchNorm holds momentum in single precision.
        tolerance = 1e-6 if "running" in name else 1e-8
        assert relative_error(value, expected[name]) < tolerance, name


def test_unsynchronized_layers_go_elsewhere(one_device):
    """So the comparison above can fail."""
    start, losses, _ = one_device
    run = Run(nn.BatchNorm, 4, start)
    assert run.step(*next(batches())) != pytest.approx(losses[0], rel=1e-6)
