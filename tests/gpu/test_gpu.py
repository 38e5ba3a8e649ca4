"""MXNet for CUDA on one GPU, and on all. The import of this file calls CUDA."""

from __future__ import annotations

import functools

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from tests.gpu.steps import arrays, new_layer, outputs, step
from tests.support.either_mxnet import error_of, nd
from tests.support.networks import Branches, split
from tests.support.processes import in_child, run_program, run_python
from tests.support.step import MODES, check_step, make_case, make_layer
from tests.support.two_devices import train as train_anew

GPUS = mx.context.num_gpus()


def needs(number: int) -> pytest.MarkDecorator:
    reason = f"GPUs of MXNet: {GPUS}, needed: {number}"
    return pytest.mark.skipif(number > GPUS, reason=reason)


pytestmark = [pytest.mark.gpu, needs(1)]


@pytest.fixture(params=["one_gpu", pytest.param("all_gpus", marks=needs(2))])
def gpus(request) -> list[mx.Context]:
    return [mx.gpu(i) for i in range(1 if request.param == "one_gpu" else GPUS)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((5, 3, 7, 7), 1), ((5, 9, 9, 65), -1), ((5, 64, 60, 60), 1), ((5, 17), 1), ((5, 4, 6, 3), 2)],
)
def test_gpus_are_one_device_on_the_whole_batch(gpus, dtype, shape, axis):
    ctx = gpus[:2]
    shards = split(shape[0], len(ctx))
    case = make_case(np.random.default_rng(1), shape, shards, dtype, mean=100.0, axis=axis)
    tolerance = 1e-12 if dtype == "float64" else 2e-5
    out = 1e-3 if dtype == "float16" else tolerance
    check_step(make_layer(case, ctx), case, ctx, tolerance, out)


@pytest.mark.parametrize("mode", MODES)
def test_modes(gpus, mode):
    ctx = gpus[:2]
    case = make_case(np.random.default_rng(2), (5, 3, 7, 7), split(5, len(ctx)), "float64")
    layer = make_layer(case, ctx, mode)
    for _ in range(3):
        check_step(layer, case, ctx, 1e-12)


# With larger outputs, the squares that stand for convolutions on the fake CUDA diverge.
small_norm = functools.partial(gluon_syncbn.SyncBatchNorm, gamma_initializer=mx.init.Constant(0.1))


def train(net, ctx, steps: int, dtype: str = "float32") -> list[float]:
    """Losses of a network that learns to give zeros."""
    net.cast(dtype)
    net.initialize(mx.init.Xavier(), ctx=ctx)
    sgd = {"learning_rate": 0.01, "momentum": 0.9}
    trainer = gluon.Trainer(net.collect_params(), "sgd", sgd)
    mx.random.seed(0)
    xs = [nd.random.normal(shape=(2, 3, 32, 32), ctx=c).astype(dtype) for c in ctx]
    losses = []
    for _ in range(steps):
        with autograd.record():
            outs = [nd.square(net(x).astype("float32")) for x in xs]
        autograd.backward(outs)
        trainer.step(sum(out.size for out in outs))
        losses.append(float(np.mean([out.asnumpy() for out in outs])))
    return losses


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("mode", MODES)
def test_branches_train(gpus, mode, dtype):
    net = Branches(small_norm)
    net.hybridize(**MODES[mode])
    losses = train(net, gpus, 5, dtype)
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    nd.waitall()
    assert not gluon_syncbn.check_in_sync(net)


def test_soak(gpus):
    net = Branches(small_norm, 2)
    net.hybridize(static_alloc=True)
    train(net, gpus, 20)
    free = [mx.context.gpu_memory_info(i)[0] for i in range(len(gpus))]
    net = Branches(small_norm, 2)
    net.hybridize(static_alloc=True)
    losses = train(net, gpus, 300)
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


@pytest.mark.parametrize("pool", ["Naive", "Round", "Unpooled"])
def test_memory_pools(pool):
    imports = "from tests.support import networks, training"
    program = f"{imports}; training.require_same_training(networks.Branches, 1)"
    run_python(program, GLUON_SYNCBN_TEST_DEVICE="gpu", MXNET_GPU_MEM_POOL_TYPE=pool)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_child_may_use_cuda_where_the_parent_has_only_imported(gpus, device):
    program = "from tests.support import processes as p, two_devices as t"
    context = f"[t.mx.Context({device!r}, i) for i in range({len(gpus[:2])})]"
    run_python(f"{program}; p.in_child(lambda: t.train(ctx={context}))")


forks = pytest.mark.own_process(GLUON_SYNCBN_TIMEOUT="20")


@pytest.fixture
def trained(gpus) -> tuple:
    """A layer that has made a step, and its data."""
    xs = arrays(range(len(gpus[:2])))
    layer = new_layer(xs)
    step(layer, xs)
    return layer, xs


@forks
def test_workers_of_a_data_loader(trained):
    data = gluon.data.ArrayDataset(np.arange(12, dtype="float32"))
    batches = gluon.data.DataLoader(data, 4, num_workers=2, batchify_fn=np.stack)
    for _ in range(2):
        assert [batch.sum() for batch in batches] == [6, 22, 38]
        step(*trained)


@forks
def test_no_child_has_the_gpus_of_its_parent(trained):
    """CUDA serves no process that was forked after it had been called."""

    def use() -> None:
        error = error_of(lambda: [each.wait_to_read() for each in outputs(*trained)])
        assert "there is no gpu(0)" in error, error
        assert "forked after" in error, error

    in_child(use)
    step(*trained)


@forks
def test_a_child_has_cpus(trained):
    in_child(lambda: train_anew(ctx=[mx.cpu(0), mx.cpu(1)]))
    step(*trained)


@forks
def test_forks_during_steps(trained):
    for _ in range(8):
        autograd.backward(outputs(*trained))
        in_child(lambda: None)
    step(*trained)


@pytest.mark.parametrize("devices", [1, 2])
def test_exit_with_work_pending(devices):
    program = "life.exit_with_work_pending"
    run_program(program, 3, devices, status=3, GLUON_SYNCBN_TEST_DEVICE="gpu")
