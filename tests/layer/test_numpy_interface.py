"""Under npx.set_np() networks do what they do with mx.nd arrays. test_parity.py has the layer."""

from __future__ import annotations

from collections.abc import Iterator

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import numpy_interface, only_1
from tests.support.networks import Residual
from tests.support.step import MODES

SHAPE = (7, 3, 4, 5)


@pytest.fixture(autouse=True)
def _numpy_interface() -> Iterator[None]:
    with numpy_interface():
        yield


def shards(values: np.ndarray, ctx: list[mx.Context]) -> list[mx.np.ndarray]:
    return gluon.utils.split_and_load(mx.np.array(values), ctx, even_split=False)


def make_net() -> gluon.HybridBlock:
    net = nn.HybridSequential()
    body = nn.Conv2D(3, 1, in_channels=3), nn.BatchNorm(), nn.Activation("relu")
    net.add(Residual(*body, norm=nn.BatchNorm(), act=nn.LeakyReLU(0.1)))
    net.add(nn.Conv2D(2, 1), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(3))
    net.initialize(mx.init.One(), ctx=contexts(2))
    return gluon_syncbn.convert_sync_batchnorm(net)


def losses_of_textbooks(net: gluon.Block, steps: int = 3) -> list[float]:
    """Train as textbooks with this interface do: a backward for each device."""
    ctx, losses = contexts(2), []
    rng = np.random.default_rng(1)
    x = rng.normal(size=SHAPE).astype("float32")
    labels = rng.integers(0, 3, SHAPE[0])
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    criterion = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(steps):
        with autograd.record():
            outs = [net(part) for part in shards(x, ctx)]
            parts = [criterion(out, y) for out, y in zip(outs, shards(labels, ctx))]
        for part in parts:
            part.backward()
        mx.npx.waitall()
        trainer.step(SHAPE[0], ignore_stale_grad=True)
        losses.append(float(sum(part.sum().item() for part in parts)))
    return losses


@pytest.mark.parametrize("mode", MODES)
def test_all_modes_train_alike(mode):
    net = make_net()
    net.hybridize(**MODES[mode])
    ours = losses_of_textbooks(net)
    assert gluon_syncbn.check_in_sync(net) == {}
    assert ours[-1] < ours[0]
    assert ours == pytest.approx(losses_of_textbooks(make_net()), rel=1e-4)


@only_1
def test_fuse():
    """All but the sum: with this interface it may broadcast, which the layer's own does not."""
    net, plain = make_net(), make_net()
    fused = gluon_syncbn.fuse(net)
    assert [activation for _, activation in fused.fused] == ["relu", "relu"]
    assert len(fused.left) == 1
    fused.hybridize(static_alloc=True)
    assert losses_of_textbooks(fused) == pytest.approx(losses_of_textbooks(plain), rel=1e-4)
