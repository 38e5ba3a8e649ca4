"""CPU contexts are safe whatever ran before the import, or the first call says what to set."""

from __future__ import annotations

import warnings

import gluon_syncbn
import pytest
from gluon_syncbn import cpu_contexts
from mxnet.gluon import nn

from tests.support.processes import run_python

CALL = """
import gluon_syncbn
layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
layer.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
def train():
    with mx.autograd.record():
        return [layer(mx.nd.ones((2, 3, 4), ctx=mx.cpu(i))).asnumpy for i in range(2)]
def expect_error(*words):
    try:
        train()
    except mx.base.MXNetError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise SystemExit("no error")
"""


def test_import_before_or_after_mxnet():
    run_python("import mxnet as mx\n" + CALL + "[out() for out in train()]")
    run_python("import gluon_syncbn\nimport mxnet as mx\n" + CALL + "[out() for out in train()]")


def test_after_operators_of_the_user():
    """A convolution before the import has put oneDNN into effect for good."""
    before = """
import mxnet as mx
x, w = mx.nd.ones((1, 16, 8, 8)), mx.nd.ones((16, 16, 3, 3))
mx.nd.Convolution(x, w, no_bias=True, num_filter=16, kernel=(3, 3)).wait_to_read()
"""
    run_python(before + CALL + "expect_error('MXNET_MKLDNN_ENABLED=0', 'syncbatchnorm')")


def test_after_operators_that_took_the_default_workspaces():
    before = "import mxnet as mx\nmx.nd.sum(mx.nd.ones((2,))).wait_to_read()\n"
    patience = "\nfrom gluon_syncbn import cpu_contexts\ncpu_contexts._PATIENCE_SECONDS = 0.2\n"
    expected = "expect_error('MXNET_CPU_TEMP_COPY=1024', 'fewer than 1024 workspaces')\n"
    # One device needs no workspaces of its own.
    alone = """
single = gluon_syncbn.SyncBatchNorm(in_channels=3)
single.initialize(ctx=mx.cpu(0))
with mx.autograd.record():
    single(mx.nd.ones((2, 3))).asnumpy()
"""
    run_python(before + CALL + patience + expected + alone, MXNET_MKLDNN_ENABLED="0")


def test_too_few_workspaces_by_choice_of_the_user():
    patience = "\nfrom gluon_syncbn import cpu_contexts\ncpu_contexts._PATIENCE_SECONDS = 0.2\n"
    run_python(
        "import mxnet as mx\n" + CALL + patience + "expect_error('fewer than 64 workspaces')",
        MXNET_CPU_TEMP_COPY="63",
    )


@pytest.mark.parametrize(
    ("layers", "error"), [(12, ""), (30, "set MXNET_CPU_TEMP_COPY to about 5")]
)
def test_fewer_workspaces_by_choice_of_the_user(layers, error):
    """They are enough for some networks, and where they are not, the timeout says so."""
    program = """
import sys
import mxnet as mx
import gluon_syncbn
from mxnet.gluon import nn
contexts = [mx.cpu(0), mx.cpu(1)]
net = nn.HybridSequential()
for _ in range(int(sys.argv[1])):
    net.add(nn.Conv2D(4, 3, padding=1), gluon_syncbn.SyncBatchNorm(), nn.Activation("relu"))
net.initialize(ctx=contexts)
net.hybridize()
try:
    for _ in range(3):
        with mx.autograd.record():
            outputs = [net(mx.nd.ones((2, 4, 8, 8), ctx=context)) for context in contexts]
        mx.autograd.backward(outputs)
        mx.nd.waitall()
    found = ""
except mx.base.MXNetError as caught:
    found = str(caught)
assert (sys.argv[2] in found) if sys.argv[2] else not found, found
"""
    run_python(program, str(layers), error, MXNET_CPU_TEMP_COPY="64", GLUON_SYNCBN_TIMEOUT="3")


def test_onednn_by_choice_of_the_user():
    run_python(
        "import mxnet as mx\n" + CALL + "expect_error('MXNET_MKLDNN_ENABLED=0')",
        MXNET_MKLDNN_ENABLED="1",
    )


def test_settings_of_the_user_are_kept():
    program = """
import os
import gluon_syncbn
assert os.environ["MXNET_CPU_TEMP_COPY"] == "2048"
assert os.environ["MXNET_CPU_PARALLEL_RAND_COPY"] == "8"
assert gluon_syncbn.get_timeout() == 12.5
"""
    run_python(program, MXNET_CPU_TEMP_COPY="2048", GLUON_SYNCBN_TIMEOUT="12.5")


# MXNet for CUDA would be asked in another way.
BESIDE_GPUS = """
import mxnet as mx
mx.context.num_gpus = lambda: 2
mx.runtime.Features.is_enabled = lambda self, name: False
"""
ON_ONE = """
single = gluon_syncbn.SyncBatchNorm(in_channels=16)
net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.Conv2D(16, 3, in_channels=16), single)
net.initialize(ctx=mx.cpu(0))
for mode in (False, True):
    net.hybridize(mode)
    assert net(mx.nd.ones((2, 16, 8, 8))).shape == (2, 16, 6, 6)
    with mx.autograd.record():
        out = net(mx.nd.ones((2, 16, 8, 8)))
    out.backward()
    assert abs(out.asnumpy()).max() < 1e-2  # all pixels are the same
"""


def test_one_context_beside_gpus():
    """Without settings that cost memory whenever large images are evaluated."""
    program = """
import os
assert "MXNET_CPU_TEMP_COPY" not in os.environ
assert "MXNET_CPU_PARALLEL_RAND_COPY" not in os.environ
"""
    run_python(BESIDE_GPUS + "import gluon_syncbn\n" + ON_ONE + program)


def test_several_contexts_beside_gpus():
    run_python(BESIDE_GPUS + CALL + "expect_error('allow_several()', 'MXNET_CPU_TEMP_COPY=1024')")
    allow = "gluon_syncbn.cpu_contexts.allow_several()\n"
    train = "[out() for out in train()]"
    run_python(BESIDE_GPUS + "import gluon_syncbn\n" + allow + CALL + train)
    run_python(BESIDE_GPUS + CALL + train, MXNET_CPU_TEMP_COPY="1024")


def test_too_few_workspaces_beside_gpus():
    """The import would not help there."""
    program = """
from gluon_syncbn import cpu_contexts
cpu_contexts._PATIENCE_SECONDS = 0.2
try:
    train()
except mx.base.MXNetError as error:
    assert "fewer than 64 workspaces" in str(error), error
    assert "import gluon_syncbn" not in str(error), error
else:
    raise SystemExit("no error")
"""
    run_python(BESIDE_GPUS + CALL + program, MXNET_CPU_TEMP_COPY="4")


def test_naive_engine_with_several_devices_or_processes():
    program = """
import mxnet as mx
import gluon_syncbn
ones = [mx.nd.ones((2, 3))] + [mx.nd.ones((3,)) for _ in range(4)]
def call(**attributes):
    return mx.nd.Custom(*ones, op_type="SyncBatchNorm", **attributes)
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
assert cpu_contexts.find_problem(synchronized=False) is None
assert "NaiveEngine" in cpu_contexts.find_problem(synchronized=True)
"""
    run_python(program, MXNET_ENGINE_TYPE="NaiveEngine")


def test_naive_engine_tells_of_errors():
    """It forgets those of asynchronous operations, and would go on with arrays nobody wrote."""
    program = """
import mxnet as mx
import gluon_syncbn
layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
layer.initialize()
def error_of_step(gradient):
    x = mx.nd.array([[1, 2, 3], [3, 2, 1]])
    try:
        with mx.autograd.record():
            out = layer(x)
        out.backward(gradient)
    except mx.base.MXNetError as error:
        return str(error)
message = error_of_step(mx.nd.ones((2, 4)))
assert layer.prefix in message and "float32 of shape (2, 4) but the output is" in message, message
assert error_of_step(mx.nd.ones((2, 3))) is None
assert (layer.beta.grad().asnumpy() == 2).all()
"""
    run_python(program, MXNET_ENGINE_TYPE="NaiveEngine")


def test_threads_have_workspaces_of_their_own():
    """MXNet reads the settings anew in every thread that calls operators."""
    program = (
        "import mxnet as mx, threading\n"
        + CALL
        + """
result = []
thread = threading.Thread(target=lambda: result.extend(out() for out in train()))
thread.start()
thread.join()
assert len(result) == 2
"""
    )
    run_python(program)


@pytest.mark.parametrize("fused", [False, True])
def test_static_shape_warns_of_few_workspaces(monkeypatch, fused):
    monkeypatch.setattr(cpu_contexts.driver, "has_gpus", lambda: False)
    net = nn.HybridSequential()
    net.add(nn.Dense(3), gluon_syncbn.SyncBatchNorm(num_devices=2))
    if fused:
        net = gluon_syncbn.fuse(net)
    for copies, expected in (("1024", 1), ("65535", 1), ("65536", 0), ("100000", 0)):
        monkeypatch.setenv("MXNET_CPU_TEMP_COPY", copies)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            net.hybridize()
            net.hybridize(static_alloc=True)
            net.hybridize(static_alloc=True, static_shape=True)
        messages = [str(warning.message) for warning in caught]
        assert len(messages) == expected, (copies, messages)
        assert all("MXNET_CPU_TEMP_COPY=65536" in message for message in messages)


def test_timeout_from_the_environment():
    failed = run_python("import gluon_syncbn", status=1, GLUON_SYNCBN_TIMEOUT="soon")
    assert "GLUON_SYNCBN_TIMEOUT" in failed.stderr


def test_import_without_mxnet():
    program = """
import sys
sys.modules["mxnet"] = None
try:
    import gluon_syncbn
except ImportError as error:
    assert "needs Apache MXNet 1.9.1" in str(error), error
else:
    raise SystemExit("imported")
"""
    run_python(program)


@pytest.mark.parametrize("hybridize", [True, False])
def test_convolutions_with_several_threads_for_each_context(hybridize):
    """Without the library's help, the OpenBLAS of MXNet's wheel waits for ever.

    MXNet starts other workers after a fork, which need that help again.
    """
    run_python(
        f"""
import os
import mxnet as mx
import gluon_syncbn
contexts = [mx.cpu(0), mx.cpu(1)]
net = mx.gluon.model_zoo.vision.resnet18_v1()
gluon_syncbn.convert_sync_batchnorm(net, num_devices=2)
net.initialize(ctx=contexts)
net.hybridize({hybridize})
for _ in range(3):
    with mx.autograd.record():
        outputs = [net(mx.nd.ones((2, 3, 96, 96), ctx=context)) for context in contexts]
    mx.autograd.backward(outputs)
    mx.nd.waitall()
    if os.fork() == 0:
        os._exit(0)
""",
        OMP_NUM_THREADS="2",
    )
