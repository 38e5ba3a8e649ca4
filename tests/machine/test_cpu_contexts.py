"""CPU contexts are safe whatever ran before the import, or the first call says what to set."""

from __future__ import annotations

import os
import warnings
from types import SimpleNamespace
from typing import Any

import gluon_syncbn
import mxnet as mx
import pytest
from gluon_syncbn import cpu_contexts, timeout
from gluon_syncbn.amp import mixed_precision
from gluon_syncbn.mxnet_versions import ONEDNN
from mxnet.base import MXNetError
from mxnet.gluon import nn

from tests.programs.late_imports import run_operator
from tests.support.either_mxnet import nd, only_1
from tests.support.own_process import case
from tests.support.processes import run_program, run_python
from tests.support.two_devices import contexts, forward, make_layer, train

not_prepared = pytest.mark.own_process(GLUON_SYNCBN_CPU_CONTEXTS="0")


def test_import_after_mxnet():
    run_python("import mxnet; from tests.support import two_devices; two_devices.train()")


@pytest.mark.own_process(**{ONEDNN: "1"})
def test_onednn_by_choice_of_the_user():
    with pytest.raises(MXNetError, match=f"(?s)Restart Python.*{ONEDNN}=0"):
        forward()


@pytest.mark.own_process(MXNET_ENGINE_TYPE="NaiveEngine")
def test_naive_engine():
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
    # It forgets errors of asynchronous operations, and would go on with unwritten arrays.
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


def test_timeout_from_the_environment():
    failed = run_python("import gluon_syncbn", status=1, GLUON_SYNCBN_TIMEOUT="soon")
    last = "ImportError: environment variable GLUON_SYNCBN_TIMEOUT: "
    assert failed.stderr.rstrip().splitlines()[-1].startswith(last)


@pytest.mark.own_process(
    GLUON_SYNCBN_TIMEOUT="",
    GLUON_SYNCBN_CPU_CONTEXTS="",
    GLUON_SYNCBN_NOTEBOOK="",
    GLUON_SYNCBN_OPENBLAS="",
)
def test_an_empty_variable_counts_as_not_set(monkeypatch):
    assert gluon_syncbn.get_timeout() == 300
    assert "GLUON_SYNCBN" not in str(cpu_contexts.describe())
    dropped = []
    monkeypatch.setattr(timeout, "drop_step", lambda: dropped.append(True))
    timeout._after_cell(SimpleNamespace(success=False))
    assert dropped


@pytest.mark.parametrize("name", ["CPU_CONTEXTS", "NOTEBOOK", "OPENBLAS"])
def test_switches_are_0_or_1(name):
    variable = f"GLUON_SYNCBN_{name}"
    program = "from gluon_syncbn import timeout; timeout._after_cell(Mock(success=False))"
    program = f"from unittest.mock import Mock; {program}"
    failed = run_python(program, status=1, **{variable: "off"})
    last = f"ImportError: environment variable {variable}='off' should be 0 or 1"
    assert failed.stderr.rstrip().splitlines()[-1] == last


def test_an_unknown_instruction_set():
    failed = run_python("import gluon_syncbn", status=1, GLUON_SYNCBN_ISA="AVX2")
    last = (
        "ImportError: gluon_syncbn could not register its operator: environment variable "
        "GLUON_SYNCBN_ISA='AVX2' should be baseline, avx2 or avx512"
    )
    assert failed.stderr.rstrip().splitlines()[-1] == last


@pytest.mark.parametrize("name", ["", "avx512"])
def test_instruction_sets_that_every_machine_takes(name):
    run_python("import gluon_syncbn", GLUON_SYNCBN_ISA=name)


@pytest.mark.own_process(OMP_NUM_THREADS="2")
def test_convolutions_with_several_threads_for_each_context():
    """Without the library's help, the OpenBLAS of MXNet's wheel waits forever.

    MXNet starts other workers after a fork, which need that help again.
    """
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


@pytest.mark.parametrize(
    ("before", "setting", "warns"),
    [
        ("convolution", {}, True),
        ("sum", {}, None),
        ("array", {}, False),
        ("convolution", {ONEDNN: "1"}, False),  # as the user wants it
    ],
)
def test_late_import(before, setting, warns):
    """The warning comes if and only if the settings are not in effect."""
    result = run_program("late_imports.print_warned_and_refused", before, **setting)
    warned, refused = result.stdout.split()
    assert warned == (refused if warns is None else str(warns))


@pytest.mark.parametrize(
    ("before", "setting"),
    # oneDNN by choice of the user is the same early and late.
    [("nothing", {}), ("ones", {}), ("convolution", {}), ("nothing", {ONEDNN: "1"})],
)
def test_recurrent_layers(before, setting):
    run_program("late_imports.recurrent_layers", before, **setting)


@pytest.mark.parametrize(
    ("variable", "cuda", "files", "prepares"),
    [
        (None, False, True, True),  # MXNet for CPUs on a machine with a GPU
        (None, True, False, True),
        (None, True, True, False),
        ("1", True, True, True),
        ("0", False, False, False),
        ("0", True, True, False),
        ("", True, True, False),
    ],
)
def test_what_the_import_decides(variable, cuda, files, prepares, monkeypatch, tmp_path):
    if variable is None:
        monkeypatch.delenv("GLUON_SYNCBN_CPU_CONTEXTS", raising=False)
    else:
        monkeypatch.setenv("GLUON_SYNCBN_CPU_CONTEXTS", variable)
    if files:
        (tmp_path / "nvidia0").touch()
    features = SimpleNamespace(is_enabled=lambda name: cuda and name == "CUDA")
    monkeypatch.setattr(cpu_contexts.mx.runtime, "Features", lambda: features)
    monkeypatch.setattr(cpu_contexts, "_GPU_FILES", (f"{tmp_path}/nvidia[0-9]*", "/nowhere/*"))
    prepared = []
    monkeypatch.setattr(cpu_contexts, "prepare_cpu_contexts", lambda: prepared.append(True))
    monkeypatch.setattr(cpu_contexts, "_choice", "")
    for problem in ("they need NVRTC", None):
        monkeypatch.setattr(cpu_contexts.gpu_contexts, "find_problem", lambda: problem)  # noqa: B023
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cpu_contexts.prepare_at_import()
        assert bool(prepared) is prepares
        expected = [problem] if problem and cuda and files and not prepares else []
        assert [str(each.message).partition(": ")[2] for each in caught] == expected


@only_1  # by names of libmxnet
@pytest.mark.parametrize(
    ("variable", "changed"), [("0", ""), ("1", "environment, resource manager, products")]
)
def test_what_the_import_changes_in_mxnet(variable, changed):
    found = run_program("late_imports.print_changes_of_mxnet", GLUON_SYNCBN_CPU_CONTEXTS=variable)
    assert found.stdout.strip() == changed, found.stderr


@not_prepared
def test_networks_of_batchnorm_keep_onednn():
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


@not_prepared
@pytest.mark.parametrize(
    "one_is_refused", [case(True, **{ONEDNN: "1"}), case(False, **{ONEDNN: "0"})]
)
def test_contexts_that_are_not_prepared(one_is_refused):
    """Without oneDNN one context is safe, and several could still wait for each other forever."""
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


@not_prepared
def test_contexts_that_the_program_prepares():
    layer = make_layer()
    for _ in range(2):
        gluon_syncbn.prepare_cpu_contexts()
    train(layer)


@not_prepared
def test_contexts_that_the_program_prepares_too_late():
    """Both calls say it; a change of the variable between them comes too late as well."""
    run_operator("convolution")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="before CPU contexts were prepared"):
            gluon_syncbn.prepare_cpu_contexts()


@pytest.mark.own_process(GLUON_SYNCBN_CPU_CONTEXTS="0", OMP_NUM_THREADS="2")
def test_products_under_way_at_a_fork():
    """OpenBLAS is loaded after the library has registered its handlers of forks."""
    gluon_syncbn.prepare_cpu_contexts()
    ones = nd.ones((1500, 1500))
    for _ in range(6):
        product = nd.dot(ones, ones)
        if os.fork() == 0:
            os._exit(0)
        assert (product.asnumpy() == 1500).all()


@only_1  # mixed precision
@pytest.mark.own_process
def test_an_error_of_another_operator():
    """The failing convolution runs in the same thread as the first call of the layer."""
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
