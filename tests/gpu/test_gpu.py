"""Real MXNet on at least two GPUs; skipped elsewhere."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from tests.support.either_mxnet import nd
from tests.support.networks import Branches
from tests.support.step import MODES, check, make_case

GPUS = mx.context.num_gpus()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(GPUS < 2, reason=f"needs 2 GPUs and MXNet for CUDA; MXNet finds {GPUS}"),
]


def gpus() -> list[mx.Context]:
    return [mx.gpu(i) for i in range(GPUS)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((5, 3, 7, 7), 1), ((5, 9, 9, 65), -1), ((5, 64, 60, 60), 1), ((5, 17), 1), ((5, 4, 6, 3), 2)],
)
def test_two_gpus_are_one_device_on_the_whole_batch(dtype, shape, axis):
    case = make_case(np.random.default_rng(1), shape, (2, 3), dtype, mean=100.0, axis=axis)
    tolerance = 1e-12 if dtype == "float64" else 2e-5
    check(case, gpus()[:2], tolerance, 1e-3 if dtype == "float16" else tolerance)


def train(net, ctx, steps: int, dtype: str = "float32") -> list[float]:
    """Losses of a network that learns to give zeros."""
    net.cast(dtype)
    net.initialize(mx.init.Xavier(), ctx=ctx)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    mx.random.seed(0)
    xs = [nd.random.normal(shape=(2, 3, 32, 32), ctx=c).astype(dtype) for c in ctx]
    losses = []
    for _ in range(steps):
        with autograd.record():
            outs = [net(x).astype("float32").square().mean() for x in xs]
        autograd.backward(outs)
        trainer.step(len(ctx))
        losses.append(sum(float(out.asnumpy()) for out in outs))
    return losses


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("mode", MODES)
def test_branches_train(mode, dtype):
    net = Branches(gluon_syncbn.SyncBatchNorm)
    net.hybridize(**MODES[mode])
    losses = train(net, gpus(), 5, dtype)
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    nd.waitall()
    assert not gluon_syncbn.check_in_sync(net)


def test_soak():
    net = Branches(gluon_syncbn.SyncBatchNorm, 2)
    net.hybridize(static_alloc=True)
    train(net, gpus(), 20)
    free = [mx.context.gpu_memory_info(i)[0] for i in range(GPUS)]
    net = Branches(gluon_syncbn.SyncBatchNorm, 2)
    net.hybridize(static_alloc=True)
    losses = train(net, gpus(), 300)
    assert np.isfinite(losses).all()
    # No more than what a second network of this kind needs.
    for i, before in enumerate(free):
        assert before - mx.context.gpu_memory_info(i)[0] < 256 << 20


def test_cpu_and_gpu_contexts_do_not_meet():
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, num_devices=2)
    ctx = [mx.cpu(0), mx.gpu(0)]
    layer.initialize(ctx=ctx)
    with autograd.record():
        outs = [layer(nd.ones((2, 3), ctx=c)) for c in ctx]
    with pytest.raises(mx.base.MXNetError, match="which cannot meet"):
        outs[0].asnumpy()
    with pytest.raises(mx.base.MXNetError):
        outs[1].asnumpy()
