"""Training on GPU contexts where something is unusual. tests/layer/test_modes.py has the usual."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from tests.support.either_mxnet import nd, only_1
from tests.support.networks import Branches, Shared, make_batch
from tests.support.own_process import case
from tests.support.step import train_step
from tests.support.training import require_same_training

from ..conftest import contexts
from . import fake


def test_many_steps():
    fake.change("DELAY", 20)
    require_same_training(Shared, 2, "static_alloc", steps=200)


def test_slow_devices():
    """Arrays are dropped, and their memory used again, long before devices are done."""
    fake.change("DELAY", 1500)
    require_same_training(Branches, 2, steps=3)


@pytest.fixture
def trained():
    net, case = Branches(gluon_syncbn.SyncBatchNorm), make_batch(2)
    net.initialize(ctx=contexts(2))
    net.cast("float64")
    net.hybridize()
    for _ in range(3):
        train_step(net, case, contexts(2))
    return net, case


def test_training_goes_on_from_a_file(tmp_path, trained):
    net, case = trained
    net.export(str(tmp_path / "ours"))
    files = (f"{tmp_path}/ours-symbol.json", ["data"], f"{tmp_path}/ours-0000.params")
    again = gluon.SymbolBlock.imports(*files, ctx=contexts(2))
    for each in (net, again):
        train_step(each, case, contexts(2))
    expected = net.collect_params()
    for name, parameter in again.collect_params().items():
        for mine, theirs in zip(parameter.list_data(), expected[name].list_data()):
            assert mine.asnumpy().tobytes() == theirs.asnumpy().tobytes()


@only_1
def test_exported(tmp_path, trained):
    """What GPUs have trained runs on a CPU by MXNet alone."""
    net, case = trained
    symbol_file, params_file = gluon_syncbn.export(net, tmp_path / "plain")
    plain = gluon.SymbolBlock.imports(symbol_file, ["data"], params_file, ctx=mx.cpu())
    outs = [
        each(nd.array(case.x, ctx=ctx, dtype="float64")).asnumpy()
        for each, ctx in ((plain, mx.cpu()), (net, mx.gpu(0)))
    ]
    np.testing.assert_allclose(*outs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "setting",
    [
        case("unpooled", MXNET_GPU_MEM_POOL_TYPE="Unpooled"),
        case("round", MXNET_GPU_MEM_POOL_TYPE="Round"),
        case("workers", MXNET_GPU_WORKER_NTHREADS="1"),
        case("engine", MXNET_ENGINE_TYPE="ThreadedEngine"),
        case("cuda", FAKE_CUDA_VERSION="12000"),
    ],
)
def test_settings_of_mxnet(setting):
    require_same_training(Branches, 4)
