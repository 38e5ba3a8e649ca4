"""What happens to networks and processes besides training steps."""

from __future__ import annotations

import copy
import pickle
import threading

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.mxnet_versions import IS_2
from mxnet import autograd
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import error_of, nd, only_1, reset_ctx
from tests.support.networks import Shared, import_files, make_batch
from tests.support.processes import run_program
from tests.support.step import MODES, compare
from tests.support.training import on_one, training


def small_network(mode: str = "imperative") -> nn.HybridSequential:
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=3), gluon_syncbn.SyncBatchNorm(in_channels=4))
    net.hybridize(**MODES[mode])
    return net


def step(net, number: int) -> list[np.ndarray]:
    xs = [nd.full((2, 3), 1 + i, ctx=c) for i, c in enumerate(contexts(number))]
    with autograd.record():
        outs = [net(x) for x in xs]
    autograd.backward(outs)
    values = [out.asnumpy() for out in outs]
    # Normalized over all devices, every channel has mean 0.
    np.testing.assert_allclose(np.concatenate(values).mean(0), 0, atol=1e-5)
    return values


@pytest.mark.parametrize("mode", MODES)
def test_other_contexts_and_numbers_of_devices(mode):
    net = small_network(mode)
    net.initialize(ctx=contexts(2))
    step(net, 2)
    for number in (3, 1, 4, 2):
        net.initialize(ctx=contexts(number), force_reinit=True)
        net[1].num_devices = number if number > 2 else None
        net.hybridize(**MODES[mode])
        step(net, number)
        step(net, number)


@pytest.mark.parametrize("mode", MODES)
def test_deepcopy(mode):
    """Gluon copies hybridized networks only before their first call."""
    net = small_network(mode)
    net.initialize(ctx=contexts(2))
    expected = step(net, 2) if mode == "imperative" else None
    twin = copy.deepcopy(net)
    reset_ctx(twin, contexts(2))  # Gluon copies no gradients
    copied = step(twin, 2)
    np.testing.assert_array_equal(step(net, 2), copied)
    if expected is not None:
        np.testing.assert_array_equal(copied, expected)


@only_1  # networks of MXNet 2 hold weak references, which no pickle takes
def test_pickle():
    net = small_network()
    net.initialize(ctx=contexts(2))
    expected = step(net, 2)
    twin = pickle.loads(pickle.dumps(net))
    assert twin[1].key != net[1].key
    reset_ctx(twin, contexts(2))  # Gluon pickles the values of one context
    np.testing.assert_array_equal(step(twin, 2), expected)
    np.testing.assert_array_equal(step(net, 2), expected)


def test_checkpoints_of_networks(tmp_path):
    path = str(tmp_path / "net.params")
    plain = nn.HybridSequential()
    plain.add(nn.Dense(4, in_units=3), nn.BatchNorm(in_channels=4))
    plain.initialize(mx.init.Uniform(1))
    plain.save_parameters(path)
    net = small_network("static_alloc")
    net.load_parameters(path, ctx=contexts(2))
    step(net, 2)
    for name, value in plain._collect_params_with_prefix().items():
        if "running" not in name:
            loaded = net._collect_params_with_prefix()[name].data(contexts(2)[1])
            np.testing.assert_array_equal(loaded.asnumpy(), value.data().asnumpy())
    net.save_parameters(path)
    plain.load_parameters(path)
    x = nd.random.normal(shape=(2, 3))
    np.testing.assert_allclose(plain(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-5)


def test_two_networks_in_two_threads():
    case = make_batch(2)
    values, expected = on_one(Shared, case, 5, gluon_syncbn.SyncBatchNorm)
    found = {}

    def train(number: int) -> None:
        if IS_2:  # which has an interface per thread
            mx.npx.set_np()
        net = Shared(gluon_syncbn.SyncBatchNorm)
        found[number] = training(net, contexts(2), case, "hybridized", values)(5)

    threads = [threading.Thread(target=train, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(2):
        compare(found[number], expected, 1e-9)


@only_1  # GluonCV
@pytest.mark.parametrize("mode", ["imperative", "hybridized"])
@pytest.mark.parametrize("sync", [False, True])
def test_data_parallel_model(sync, mode):
    """With sync=True GluonCV calls each device on a thread of its own, which waits for its output.

    Gluon builds the graph of a hybridized network in its first call, and threads that make it at
    once would each build one of their own, so the first call is made before.
    """
    from gluoncv.utils.parallel import DataParallelModel

    net = small_network(mode)
    net.initialize(ctx=contexts(2))
    model = DataParallelModel(net, contexts(2), sync=sync)
    x = nd.random.normal(shape=(6, 3))
    net(x)
    for _ in range(3):
        with autograd.record():
            outs = [out for (out,) in model(x)]
        autograd.backward(outs)
        whole = np.concatenate([out.asnumpy() for out in outs])
        np.testing.assert_allclose(whole.mean(0), 0, atol=1e-5)


@pytest.mark.parametrize(("timeout", "status"), [("0", 3), ("300", 1)])
def test_exit_with_a_round_pending(timeout, status):
    program = "life.exit_with_work_pending"
    end = run_program(program, status, status=status, GLUON_SYNCBN_TIMEOUT=timeout)
    assert "atexit" not in end.stderr


def test_a_first_call_in_an_exit_handler():
    result = run_program("life.first_call_in_an_exit_handler")
    assert result.stdout == "trained\n", result.stderr


def test_exit_does_not_hide_errors():
    assert "forward waited" in run_program("life.exit_with_an_error").stderr


@only_1  # Executor
@pytest.mark.own_process(MXNET_BACKWARD_DO_MIRROR="1")
def test_mirroring_of_all_operators_is_refused():
    """MXNet would run the layer again in backward, and update the running statistics again."""
    symbol = gluon_syncbn.SyncBatchNorm(in_channels=3, num_devices=1)(mx.sym.var("data"))
    executor = symbol.simple_bind(contexts(1)[0], data=(4, 3))
    (out,) = executor.forward(is_train=True)
    error = error_of(out.wait_to_read)
    assert "MXNET_BACKWARD_DO_MIRROR=1" in error
    assert "twice" in error


@only_1
def test_a_symbol_is_written_once(monkeypatch, tmp_path):
    """MXNet leaks 0.4 KB for each operator with every ``tojson``."""
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(in_channels=3), nn.Activation("relu"))
    net.initialize(ctx=contexts(2))
    net.hybridize()
    net(nd.ones((2, 3), ctx=contexts(1)[0]))
    net.export(str(tmp_path / "net"))
    imported = import_files(tmp_path / "net", contexts(2))
    gluon_syncbn.convert_sync_batchnorm(net)
    fused = gluon_syncbn.fuse(net)
    data = mx.sym.var("data")
    executors = [
        symbol.simple_bind(contexts(1)[0], data=(2, 3))
        for symbol in (mx.sym.relu(data), mx.sym.Custom(data, op_type="SyncBatchNorm", key="bn"))
    ]
    written = []

    def tojson(symbol):
        written.append(symbol)
        return theirs(symbol)

    def use():
        gluon_syncbn.convert_sync_batchnorm(imported)
        gluon_syncbn.update_statistics(imported, [nd.ones((4, 3))], progress=False)
        gluon_syncbn.check_in_sync(imported)
        fused.hybridize()
        for executor in executors:
            for is_train in (True, False):
                executor.forward(is_train)
                executor.outputs[0].wait_to_read()

    for _ in range(2):  # the first one makes symbols, which the second one reads
        use()
    theirs = mx.sym.Symbol.tojson
    monkeypatch.setattr(mx.sym.Symbol, "tojson", tojson)
    use()
    assert not written
