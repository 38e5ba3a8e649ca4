"""CUDA serves no process that was forked after it had been called."""

from __future__ import annotations

import pytest

from tests.support.processes import run_python

FORK = """
import os
import traceback
def in_child(body):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
"""

# Anew, on contexts of any type.
TRAIN = """
import gluon_syncbn
import mxnet as mx
from tests.support.either_mxnet import nd
def train(device):
    contexts = [mx.Context(device, i) for i in range(2)]
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=contexts)
    with mx.autograd.record():
        outs = [layer(nd.full((2, 3), 1 + c.device_id, ctx=c)) for c in contexts]
    mx.autograd.backward(outs)
    assert abs(sum(out.asnumpy() for out in outs)).max() < 1e-5
    assert abs(outs[0].asnumpy() + 1).max() < 1e-3
"""

TRAINED = """
from tests.cu112.faults import *
xs = arrays([0, 1])
layer = new_layer(xs)
def step():
    outs = outputs(layer, xs)
    mx.autograd.backward(outs)
    require_right(xs, outs)
step()
"""


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_child_may_use_cuda_where_the_parent_has_only_imported(device):
    run_python(FORK + TRAIN + f"in_child(lambda: train({device!r}))")


def test_workers_of_a_data_loader_beside_gpus():
    program = """
data = mx.gluon.data.ArrayDataset(np.arange(12, dtype="float32"))
batches = mx.gluon.data.DataLoader(data, 4, num_workers=2, batchify_fn=np.stack)
for _ in range(2):
    assert [batch.sum() for batch in batches] == [6, 22, 38]
    step()
"""
    run_python(TRAINED + program)


def test_the_layer_in_a_child_that_cuda_does_not_serve_is_an_error():
    program = """
def use():
    try:
        outputs(layer, xs)[0].wait_to_read()
    except mx.base.MXNetError as error:
        assert "there is no gpu(0)" in str(error) and "forked after" in str(error), error
    else:
        raise AssertionError("no error")
in_child(use)
step()
"""
    run_python(FORK + TRAINED + program)


def test_cpu_contexts_in_a_child_beside_gpus():
    run_python(FORK + TRAIN + TRAINED + "in_child(lambda: train('cpu'))\nstep()")


def test_forks_while_steps_are_under_way():
    program = """
for _ in range(8):
    mx.autograd.backward(outputs(layer, xs))
    in_child(lambda: None)
step()
"""
    run_python(FORK + TRAINED + program, GLUON_SYNCBN_TIMEOUT="20")
