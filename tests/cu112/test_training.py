"""Training on 2 to 8 contexts ends where training on one does that has the whole batch."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from tests.support.either_mxnet import nd, only_1
from tests.support.layers import Options, expect, make_batch
from tests.support.oracle import relative_error
from tests.support.processes import run_python

from ..conftest import contexts
from . import fake_cuda
from .training import CHANNELS, Apart, Branches, Fused, Twice, compare, make, train

MODES = [None, {}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("parts", [2, 8])
def test_a_layer_equals_the_oracle(parts, mode):
    shards = tuple(1 + i % 3 for i in range(parts))
    batch = make_batch(np.random.default_rng(parts), (sum(shards), 6, 3, 5), shards, mean=10)
    layer = gluon_syncbn.SyncBatchNorm(in_channels=6)
    net = make(lambda: layer, contexts(parts), "float32", mode)
    names = ("gamma", "beta", "running_mean", "running_var")
    for name in names:
        getattr(layer, name).set_data(nd.array(getattr(batch, name)))
    xs = [nd.array(x, ctx=ctx) for x, ctx in zip(batch.split(batch.x), contexts(parts))]
    dys = [nd.array(dy, ctx=ctx) for dy, ctx in zip(batch.split(batch.dy), contexts(parts))]
    for x in xs:
        x.attach_grad()
    with mx.autograd.record():
        outs = [net(x) for x in xs]
    mx.autograd.backward(outs, dys)
    whole = expect(batch, Options())
    for arrays, expected in ((outs, whole.out), ([x.grad for x in xs], whole.dx)):
        actual = np.concatenate([array.asnumpy() for array in arrays])
        assert relative_error(actual, expected) < 1e-5
    for name in names[2:]:
        first, *others = [array.asnumpy() for array in getattr(layer, name).list_data()]
        assert relative_error(first, getattr(whole, name)) < 1e-6
        assert {array.tobytes() for array in others} == {first.tobytes()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_branches_of_different_depth(parts, mode):
    compare(Branches, parts, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_one_layer_used_twice(mode):
    compare(Twice, 4, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_activations_and_a_shortcut(mode):
    compare(Fused, 3, mode=mode, alone=Apart)


@pytest.mark.parametrize("mode", MODES)
def test_float16(mode):
    compare(Branches, 2, mode=mode, dtype="float16")


def test_many_steps():
    fake_cuda.change("DELAY", 20)
    compare(Twice, 2, steps=200, mode={"static_alloc": True})


def test_slow_devices():
    """Arrays are dropped, and their memory used again, long before devices are done."""
    fake_cuda.change("DELAY", 1500)
    compare(Branches, 2, steps=3)


@pytest.fixture
def trained():
    net = make(Branches, contexts(2), "float64", {})
    train(net, contexts(2), 3, 4, "float64")
    return net


def test_training_goes_on_from_a_file(tmp_path, trained):
    net = trained
    net.export(str(tmp_path / "ours"))
    files = (f"{tmp_path}/ours-symbol.json", ["data"], f"{tmp_path}/ours-0000.params")
    again = gluon.SymbolBlock.imports(*files, ctx=contexts(2))
    for each in (net, again):
        train(each, contexts(2), 3, 4, "float64")
    expected = net.collect_params()
    for name, parameter in again.collect_params().items():
        for mine, theirs in zip(parameter.list_data(), expected[name].list_data()):
            assert mine.asnumpy().tobytes() == theirs.asnumpy().tobytes()


@only_1
def test_exported(tmp_path, trained):
    """What GPUs have trained runs on a CPU by MXNet alone."""
    net = trained
    symbol_file, params_file = gluon_syncbn.export(net, tmp_path / "plain")
    plain = gluon.SymbolBlock.imports(symbol_file, ["data"], params_file, ctx=mx.cpu())
    x = np.random.default_rng(1).standard_normal((2, CHANNELS, 3, 2))
    outs = [
        each(nd.array(x, ctx=ctx, dtype="float64")).asnumpy()
        for each, ctx in ((plain, mx.cpu()), (net, mx.gpu(0)))
    ]
    np.testing.assert_allclose(*outs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("peers", [0, 1])
def test_with_and_without_peer_access(peers):
    result = run_python(
        "from tests.cu112.training import *; compare(parts=4)", FAKE_CUDA_PEERS=str(peers)
    )
    assert not result.stdout


def test_peer_access_that_is_reported_and_broken():
    compared = "from tests.cu112.training import *; compare(parts=4)"
    run_python(compared, FAKE_CUDA_PEERS="2", MXNET_ENABLE_GPU_P2P="0")
    # With nothing set, the layer sees it. MXNet does not.
    result = run_python(
        "from tests.cu112.faults import *; require_that_it_works([0, 1])", FAKE_CUDA_PEERS="2"
    )
    for reader in (0, 1):
        assert f"warning: gpu({reader}) reads wrong numbers from the" in result.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MXNET_GPU_MEM_POOL_TYPE", "Unpooled"),
        ("MXNET_GPU_MEM_POOL_TYPE", "Round"),
        ("MXNET_GPU_WORKER_NTHREADS", "1"),
        ("MXNET_ENGINE_TYPE", "ThreadedEngine"),
        ("FAKE_CUDA_VERSION", "12000"),
    ],
)
def test_settings_of_mxnet(name, value):
    run_python("from tests.cu112.training import *; compare(parts=4)", **{name: value})
