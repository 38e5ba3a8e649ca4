"""CPU contexts are safe whatever ran before the import, or the first call says what to set."""

from __future__ import annotations

import pytest

from tests.support.processes import run_python

CALL = """
import gluon_syncbn
layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
layer.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
def train():
    with mx.autograd.record():
        return [layer(mx.nd.ones((2, 3, 4), ctx=mx.cpu(i))).asnumpy for i in range(2)]
"""


def test_import_after_mxnet():
    run_python("import mxnet as mx\n" + CALL + "[out() for out in train()]")


def test_onednn_by_choice_of_the_user():
    program = "import mxnet as mx\n" + CALL + "train()"
    failed = run_python(program, status=1, MXNET_MKLDNN_ENABLED="1")
    assert "MXNetError" in failed.stderr
    assert "MXNET_MKLDNN_ENABLED=0" in failed.stderr


def test_naive_engine():
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
assert cpu_contexts.find_problem(several=False) is None
assert "NaiveEngine" in cpu_contexts.find_problem(several=True)
# It forgets errors of asynchronous operations, and would go on with arrays nobody wrote.
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


def test_timeout_from_the_environment():
    failed = run_python("import gluon_syncbn", status=1, GLUON_SYNCBN_TIMEOUT="soon")
    assert "GLUON_SYNCBN_TIMEOUT" in failed.stderr


def test_convolutions_with_several_threads_for_each_context():
    """Without the library's help, the OpenBLAS of MXNet's wheel waits forever.

    MXNet starts other workers after a fork, which need that help again.
    """
    run_python(
        """
import os
import mxnet as mx
import gluon_syncbn
contexts = [mx.cpu(0), mx.cpu(1)]
net = mx.gluon.model_zoo.vision.resnet18_v1()
gluon_syncbn.convert_sync_batchnorm(net, num_devices=2)
net.initialize(ctx=contexts)
for step in range(4):
    net.hybridize(step % 2 == 0)
    with mx.autograd.record():
        outputs = [net(mx.nd.ones((2, 3, 96, 96), ctx=context)) for context in contexts]
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
        (CONVOLUTION, {"MXNET_MKLDNN_ENABLED": "1"}, False),  # as the user wants it
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
