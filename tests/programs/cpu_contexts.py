"""Programs on CPU contexts that the import prepares, or the program, or neither."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import gluon_syncbn
import mxnet as mx
import pytest
from gluon_syncbn import cpu_contexts, timeout
from gluon_syncbn.amp import mixed_precision
from mxnet.base import MXNetError
from mxnet.gluon import nn

from tests.programs.late_imports import run_operator
from tests.programs.two_devices import contexts, forward, make_layer, train
from tests.support.either_mxnet import nd


def naive_engine() -> None:
    ones = [nd.ones((2, 3))] + [nd.ones((3,)) for _ in range(4)]

    def call(**attributes: Any) -> Any:
        return nd.Custom(*ones, op_type="SyncBatchNorm", **attributes)

    groups = {"num_devices": 4, "sync_group_size": 2}
    for attributes in ({"num_devices": 2}, groups, {"process_set": 0}):
        with pytest.raises(MXNetError, match="NaiveEngine") as error:
            call(key="key", **attributes)
        assert "process_set" in attributes or "use one device" in str(error.value), error.value
    assert call().shape == (2, 3)
    assert cpu_contexts.find_problem(several=False) is None
    assert "NaiveEngine" in cpu_contexts.find_problem(several=True)
    # It forgets errors of asynchronous operations, and would go on with arrays nobody wrote.
    layer = make_layer(contexts[:1])

    def step(dtype: str) -> None:
        with mx.autograd.record():
            out = layer(nd.array([[1, 2, 3], [3, 2, 1]]))
        out.backward(nd.ones((2, 3), dtype=dtype))

    with pytest.raises(MXNetError, match=r"float64 of shape \(2, 3\) but the output is") as error:
        step("float64")
    assert layer.name in str(error.value), error.value
    step("float32")
    assert (layer.beta.grad().asnumpy() == 2).all()


def drops_after_a_failed_cell() -> bool:
    dropped: list[bool] = []
    timeout.drop_step = lambda: dropped.append(True)
    timeout._after_cell(SimpleNamespace(success=False))
    return bool(dropped)


def empty_variables() -> None:
    assert gluon_syncbn.get_timeout() == 300
    assert "GLUON_SYNCBN" not in str(cpu_contexts.describe())
    assert drops_after_a_failed_cell()


def convolutions_and_forks() -> None:
    net = mx.gluon.model_zoo.vision.resnet18_v1()
    gluon_syncbn.convert_sync_batchnorm(net, num_devices=2)
    net.initialize(ctx=contexts)
    for step in range(4):
        net.hybridize(step % 2 == 0)
        with mx.autograd.record():
            outputs = [net(nd.ones((2, 3, 96, 96), ctx=context)) for context in contexts]
        mx.autograd.backward(outputs)
        mx.nd.waitall()
        if os.fork() == 0:
            os._exit(0)


def onednn_is_in_effect() -> None:
    net = nn.HybridSequential()
    net.add(nn.Conv2D(16, 3, in_channels=16), nn.BatchNorm())
    net.initialize(ctx=contexts)
    net.hybridize()
    for context in contexts:
        with mx.autograd.record():
            out = net(nd.ones((2, 16, 8, 8), ctx=context))
        out.backward()
        assert abs(out.asnumpy()).max() < 1e-3
        with pytest.raises(MXNetError, match="DNN data"):
            net[0](nd.ones((2, 16, 8, 8), ctx=context)).to_dlpack_for_read()


def not_prepared(one_is_refused: bool) -> None:
    for ctx, refused in ((contexts[:1], one_is_refused), (contexts, True)):
        layer = make_layer(ctx)
        if not refused:
            forward(layer, ctx[:1])
            continue
        with pytest.raises(MXNetError) as error:
            forward(layer, ctx[:1])
        for words in ("syncbatchnorm", "prepare_cpu_contexts()", "GLUON_SYNCBN_CPU_CONTEXTS=1"):
            assert words in str(error.value), error.value
        assert ("Restart Python" in str(error.value)) is one_is_refused, error.value


def prepared_by_the_program() -> None:
    layer = make_layer()
    for _ in range(2):
        gluon_syncbn.prepare_cpu_contexts()
    train(layer)


def prepared_too_late() -> None:
    """Both calls say it; a change of the variable between them comes too late as well."""
    run_operator("convolution")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="before CPU contexts were prepared"):
            gluon_syncbn.prepare_cpu_contexts()


def products_and_forks() -> None:
    gluon_syncbn.prepare_cpu_contexts()
    ones = nd.ones((1500, 1500))
    for _ in range(6):
        product = nd.dot(ones, ones)
        if os.fork() == 0:
            os._exit(0)
        assert (product.asnumpy() == 1500).all()


def error_of_another_operator() -> None:
    mixed_precision().init()
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), gluon_syncbn.SyncBatchNorm())
    net.initialize(ctx=contexts)
    net.hybridize()
    with mx.autograd.record():
        outputs = [net(mx.nd.ones((2, 3, 8, 8), ctx=context)) for context in contexts]
    for output in outputs:
        with pytest.raises(MXNetError, match="FP16 gemm on cpu not implemented") as error:
            output.asnumpy()
        assert "oneDNN" not in str(error.value), error.value
