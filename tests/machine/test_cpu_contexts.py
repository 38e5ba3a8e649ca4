"""CPU contexts are safe whatever ran before the import, or the first call says what to set."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
from gluon_syncbn import cpu_contexts
from gluon_syncbn.mxnet_versions import ONEDNN

from tests.support.either_mxnet import only_1
from tests.support.processes import run_python

CALL = """
import gluon_syncbn
from tests.support.either_mxnet import nd
layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
layer.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
def train():
    with mx.autograd.record():
        return [layer(nd.ones((2, 3, 4), ctx=mx.cpu(i))).asnumpy for i in range(2)]
"""


def test_import_after_mxnet():
    run_python("import mxnet as mx\n" + CALL + "[out() for out in train()]")


def test_onednn_by_choice_of_the_user():
    program = "import mxnet as mx\n" + CALL + "train()"
    failed = run_python(program, status=1, **{ONEDNN: "1"})
    assert "MXNetError" in failed.stderr
    assert f"{ONEDNN}=0" in failed.stderr


def test_naive_engine():
    program = """
import mxnet as mx
import gluon_syncbn
from tests.support.either_mxnet import nd
ones = [nd.ones((2, 3))] + [nd.ones((3,)) for _ in range(4)]
def call(**attributes):
    return nd.Custom(*ones, op_type="SyncBatchNorm", **attributes)
groups = dict(num_devices=4, sync_group_size=2)
for attributes in (dict(num_devices=2), groups, dict(process_set=0)):
    try:
        call(key="key", **attributes)
    except mx.base.MXNetError as error:
        assert "NaiveEngine" in str(error), error
        assert "process_set" in attributes or "use one device" in str(error), error
    else:
        raise SystemExit(f"no error: {attributes}")
assert call().shape == (2, 3)
from gluon_syncbn import cpu_contexts
assert cpu_contexts.find_problem(several=False) is None
assert "NaiveEngine" in cpu_contexts.find_problem(several=True)
# It forgets errors of asynchronous operations, and would go on with arrays nobody wrote.
layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
layer.initialize()
def error_of_step(gradient):
    x = nd.array([[1, 2, 3], [3, 2, 1]])
    try:
        with mx.autograd.record():
            out = layer(x)
        out.backward(gradient)
    except mx.base.MXNetError as error:
        return str(error)
message = error_of_step(nd.ones((2, 3), dtype="float64"))
assert layer.name in message and "float64 of shape (2, 3) but the output is" in message, message
assert error_of_step(nd.ones((2, 3))) is None
assert (layer.beta.grad().asnumpy() == 2).all()
"""
    run_python(program, MXNET_ENGINE_TYPE="NaiveEngine")


def test_timeout_from_the_environment():
    failed = run_python("import gluon_syncbn", status=1, GLUON_SYNCBN_TIMEOUT="soon")
    last = "ImportError: environment variable GLUON_SYNCBN_TIMEOUT: "
    assert failed.stderr.rstrip().splitlines()[-1].startswith(last)


IMPORT = """
import gluon_syncbn
from gluon_syncbn import cpu_contexts, timeout
dropped = []
timeout.drop_step = lambda: dropped.append(1)
"""
FAILED_CELL = 'timeout._after_cell(type("Failed", (), {"success": False}))\n'


def test_an_empty_variable_counts_as_not_set():
    names = ("TIMEOUT", "CPU_CONTEXTS", "NOTEBOOK", "OPENBLAS")
    empty = {f"GLUON_SYNCBN_{name}": "" for name in names}
    program = f"""
{IMPORT}
assert gluon_syncbn.get_timeout() == 300
assert "GLUON_SYNCBN" not in str(cpu_contexts.describe())
{FAILED_CELL}
assert dropped
"""
    run_python(program, **empty)


@pytest.mark.parametrize("name", ["CPU_CONTEXTS", "NOTEBOOK", "OPENBLAS", "STANDSTILL"])
def test_switches_are_0_or_1(name):
    variable = f"GLUON_SYNCBN_{name}"
    failed = run_python(f"{IMPORT}{FAILED_CELL}", status=1, **{variable: "off"})
    last = f"ImportError: environment variable {variable}='off' should be 0 or 1"
    assert failed.stderr.rstrip().splitlines()[-1] == last


@pytest.mark.parametrize("name", ["avx", "AVX2", "avx2 "])
def test_an_unknown_instruction_set(name):
    failed = run_python("import gluon_syncbn", status=1, GLUON_SYNCBN_ISA=name)
    last = (
        "ImportError: gluon_syncbn could not register its operator: environment variable "
        f"GLUON_SYNCBN_ISA='{name}' should be baseline, avx2 or avx512"
    )
    assert failed.stderr.rstrip().splitlines()[-1] == last


@pytest.mark.parametrize("name", ["", "avx512"])
def test_instruction_sets_that_every_machine_takes(name):
    run_python("import gluon_syncbn", GLUON_SYNCBN_ISA=name)


def test_convolutions_with_several_threads_for_each_context():
    """Without the library's help, the OpenBLAS of MXNet's wheel waits forever.

    MXNet starts other workers after a fork, which need that help again.
    """
    run_python(
        """
import os
import mxnet as mx
import gluon_syncbn
from tests.support.either_mxnet import nd
contexts = [mx.cpu(0), mx.cpu(1)]
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
""",
        OMP_NUM_THREADS="2",
    )


CONVOLUTION = """
x, w = mx.nd.ones((1, 16, 8, 8)), mx.nd.ones((16, 16, 3, 3))
mx.nd.Convolution(x, w, no_bias=True, num_filter=16, kernel=(3, 3)).wait_to_read()
"""


@pytest.mark.parametrize(
    ("before", "setting", "warns"),
    [
        (CONVOLUTION, {}, True),
        ("(mx.nd.ones((2,)) + 1).wait_to_read()", {}, None),
        ("mx.nd.array([1])", {}, False),
        (CONVOLUTION, {ONEDNN: "1"}, False),  # as the user wants it
    ],
)
def test_late_import(before, setting, warns):
    """The warning comes if and only if the settings are not in effect."""
    program = (
        f"import warnings, mxnet as mx\n{before}\n"
        + """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import gluon_syncbn
late = ["Restart Python" in str(w.message) for w in caught if w.category is UserWarning]
print(any(late), gluon_syncbn.cpu_contexts.find_problem(several=False) is not None)
"""
    )
    warned, refused = run_python(program, **setting).stdout.split()
    assert warned == (refused if warns is None else str(warns))


# MXNet's cells are the oracle of its fused layers.
RECURRENT = """
import numpy as np
from mxnet import gluon
from tests.support.either_mxnet import nd

x = nd.normal(shape=(5, 2, 3))  # steps, batch, channels
for kind in ("LSTM", "GRU", "RNN"):
    cell = getattr(gluon.rnn, f"{kind}Cell")(4, input_size=3)
    layer = getattr(gluon.rnn, kind)(4, **({"activation": "tanh"} if kind == "RNN" else {}))
    both = gluon.rnn.LSTM(4, 2, bidirectional=True)
    for each in (layer, cell, both):
        each.initialize()
    cell.unroll(5, x, layout="TNC")
    layer(x)
    names = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")
    if hasattr(layer, "rnn_param"):  # MXNet 2 has all in one vector
        parts = [getattr(cell, name).data().asnumpy().ravel() for name in names]
        layer.rnn_param.set_data(nd.array(np.concatenate(parts)))
    else:
        for name in names:
            getattr(layer, f"l0_{name}").set_data(getattr(cell, name).data())
    x.attach_grad()
    gradients = []
    for call in (layer, lambda x: cell.unroll(5, x, layout="TNC", merge_outputs=True)[0], both):
        with mx.autograd.record():
            out = call(x)
        out.backward()
        gradients.append((out.asnumpy(), x.grad.asnumpy()))
    for one, other in zip(*gradients[:2]):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
"""


@pytest.mark.parametrize("before", ["", "mx.nd.ones((2,)).wait_to_read()", CONVOLUTION])
@pytest.mark.parametrize("setting", [{}, {ONEDNN: "1"}], ids=["", "with oneDNN"])
def test_recurrent_layers(before, setting):
    program = f"import mxnet as mx\n{before}\nimport gluon_syncbn\n{RECURRENT}"
    run_python(f"import warnings; warnings.simplefilter('ignore')\n{program}", **setting)


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


# Prints which parts of MXNet the import has changed.
CHANGES = """
import ctypes, os, subprocess, sys
import mxnet as mx
import mxnet.gluon.contrib
path = mx.base._LIB._name
with open("/proc/self/maps") as maps:
    base = min(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(path))
relocations = subprocess.run(["readelf", "-rW", path], capture_output=True, text=True).stdout
slots = [line.split()[0] for line in relocations.splitlines() if " cblas_" in line]
assert len(slots) > 10
manager = ctypes.addressof(ctypes.c_void_p.in_dll(
    mx.base._LIB, "_ZTVN5mxnet8resource19ResourceManagerImplE"))
def words(addresses):
    return [ctypes.c_void_p.from_address(address).value for address in addresses]
def python():
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "mxnet"]
    state = {}
    for module in modules:
        for name, value in vars(module).items():
            state[module.__name__, name] = id(value)
            if isinstance(value, type):
                members = ((*key, id(each)) for key, each in vars_of(value))
                state[module.__name__, name, "members"] = sorted(members)
    return state
def vars_of(value):
    return [((name,), each) for name, each in vars(value).items() if not name.startswith("__")]
def state():
    return {
        "environment": dict(os.environ),
        "resource manager": words(range(manager, manager + 6 * 8, 8)),
        "products": words(base + int(slot, 16) for slot in slots),
        "Python": python(),
    }
before = state()
import gluon_syncbn
after = state()
print(", ".join(name for name in before if before[name] != after[name]))
"""


@only_1  # by names of libmxnet
@pytest.mark.parametrize(
    ("variable", "changed"), [("0", ""), ("1", "environment, resource manager, products")]
)
def test_what_the_import_changes_in_mxnet(variable, changed):
    found = run_python(CHANGES, GLUON_SYNCBN_CPU_CONTEXTS=variable)
    assert found.stdout.strip() == changed, found.stderr


NETWORK_WITH_ONEDNN = """
import mxnet as mx
import gluon_syncbn
from tests.support.either_mxnet import nd
from mxnet.gluon import nn
net = nn.HybridSequential()
net.add(nn.Conv2D(16, 3, in_channels=16), nn.BatchNorm())
contexts = [mx.cpu(0), mx.cpu(1)]
net.initialize(ctx=contexts)
net.hybridize()
for context in contexts:
    with mx.autograd.record():
        out = net(nd.ones((2, 16, 8, 8), ctx=context))
    out.backward()
    assert abs(out.asnumpy()).max() < 1e-3
    try:
        net[0](nd.ones((2, 16, 8, 8), ctx=context)).to_dlpack_for_read()
    except mx.base.MXNetError as error:
        assert "DNN data" in str(error)
    else:
        raise SystemExit("oneDNN is not in effect")
"""


def test_networks_of_batchnorm_keep_onednn():
    run_python(NETWORK_WITH_ONEDNN, GLUON_SYNCBN_CPU_CONTEXTS="0")


REFUSED = """
import mxnet as mx
import gluon_syncbn
from tests.support.either_mxnet import nd
def error_of_call(number):
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=[mx.cpu(i) for i in range(number)])
    try:
        with mx.autograd.record():
            layer(nd.ones((2, 3, 4)))
    except mx.base.MXNetError as error:
        return str(error)
for number, refused in zip((1, 2), (REFUSED)):
    error = error_of_call(number)
    assert (error is not None) == refused, (number, error)
    for words in ("syncbatchnorm", "prepare_cpu_contexts()", "GLUON_SYNCBN_CPU_CONTEXTS=1"):
        assert error is None or words in error, error
"""


@pytest.mark.parametrize(("onednn", "refused"), [("1", (True, True)), ("0", (False, True))])
def test_contexts_that_are_not_prepared(onednn, refused):
    """Without oneDNN one context is safe, and several could still wait for each other forever."""
    run_python(
        REFUSED.replace("REFUSED", str(refused)),
        GLUON_SYNCBN_CPU_CONTEXTS="0",
        **{ONEDNN: onednn},
    )


def test_contexts_that_the_program_prepares():
    program = "import mxnet as mx" + CALL + "for _ in range(2): gluon_syncbn.prepare_cpu_contexts()"
    run_python(f"{program}\n[out() for out in train()]", GLUON_SYNCBN_CPU_CONTEXTS="0")


def test_contexts_that_the_program_prepares_too_late():
    """Both calls say it; a change of the variable between them comes too late as well."""
    program = f"""
import gluon_syncbn, mxnet as mx
{CONVOLUTION}
for _ in range(2):
    try:
        gluon_syncbn.prepare_cpu_contexts()
    except RuntimeError as error:
        assert "before CPU contexts were prepared" in str(error), error
    else:
        raise SystemExit("no error")
"""
    run_python(program, GLUON_SYNCBN_CPU_CONTEXTS="0")


def test_products_under_way_at_a_fork():
    """OpenBLAS is loaded after the library has registered its handlers of forks."""
    program = """
import os
import mxnet as mx
import gluon_syncbn
from tests.support.either_mxnet import nd
gluon_syncbn.prepare_cpu_contexts()
ones = nd.ones((1500, 1500))
for _ in range(6):
    product = nd.dot(ones, ones)
    if os.fork() == 0:
        os._exit(0)
    assert (product.asnumpy() == 1500).all()
"""
    run_python(program, timeout=60, OMP_NUM_THREADS="2", GLUON_SYNCBN_CPU_CONTEXTS="0")


@only_1  # mixed precision
def test_an_error_of_another_operator():
    """The failing convolution runs in the same thread as the first call of the layer."""
    program = """
from mxnet.contrib import amp
import mxnet as mx
import gluon_syncbn
from mxnet.gluon import nn
amp.init()
net = nn.HybridSequential()
net.add(nn.Conv2D(4, 3), gluon_syncbn.SyncBatchNorm())
net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
net.hybridize()
with mx.autograd.record():
    outputs = [net(mx.nd.ones((2, 3, 8, 8), ctx=mx.cpu(i))) for i in range(2)]
for output in outputs:
    try:
        output.asnumpy()
    except mx.base.MXNetError as error:
        assert "FP16 gemm on cpu not implemented" in str(error), error
        assert "oneDNN" not in str(error), error
    else:
        raise SystemExit("no error")
"""
    run_python(program)
