"""What becomes of a layer and its process on GPU contexts, from the first call to the end."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from tests.support.processes import run_python

from ..conftest import contexts
from .faults import arrays, errors, new_layer, outputs, require_right
from .training import CHANNELS, Branches


def test_only_gpus_that_take_part_get_a_context():
    program = """
from tests.cu112.faults import *
require_that_it_works([2, 5])
print([i for i in range(8) if fake_cuda.has_context(i)])
"""
    assert run_python(program).stdout.strip() == "[2, 5]"


def test_events_do_not_keep_a_core_busy():
    program = """
from tests.cu112.faults import *
require_that_it_works([0, 1])
print(fake_cuda.count("spinning wait"), fake_cuda.count("cudaEventSynchronize") > 0)
"""
    assert run_python(program).stdout.split() == ["0", "True"]


def test_groups_are_batches_of_their_own():
    xs = arrays([0, 1, 2, 3])
    layer = gluon_syncbn.SyncBatchNorm(in_channels=xs[0].shape[1], num_devices=4, sync_group_size=2)
    layer.initialize(ctx=contexts(4))
    outs = outputs(layer, xs)
    require_right(xs[:2], outs[:2])
    require_right(xs[2:], outs[2:])


def test_a_device_that_never_comes():
    gluon_syncbn.set_timeout(1)
    xs = arrays([0, 1, 2])
    layer = new_layer(xs)
    for error in errors(outputs(layer, xs[:2])):
        assert "for all of 3 devices" in error
    require_right(xs, outputs(layer, xs))


def test_another_initialization():
    xs = arrays([0, 1])
    layer = new_layer(xs)
    require_right(xs, outputs(layer, xs))
    layer.initialize(ctx=[mx.gpu(2), mx.gpu(3)], force_reinit=True)
    xs = arrays([2, 3])
    require_right(xs, outputs(layer, xs))


@pytest.mark.parametrize("exported", [False, True])
def test_files(tmp_path, exported):
    ctx = contexts(2)
    x = mx.nd.array(np.random.default_rng(1).standard_normal((4, CHANNELS, 3, 2)), ctx=ctx[0])
    net = Branches()
    net.initialize(ctx=ctx)
    net.hybridize()
    outputs(net, gluon.utils.split_and_load(x, ctx))
    expected = net(x).asnumpy()
    if exported:
        net.export(str(tmp_path / "net"))
        files = (str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params"))
        other = gluon.SymbolBlock.imports(*files, ctx=ctx)
    else:
        net.save_parameters(str(tmp_path / "net.params"))
        other = Branches()
        other.load_parameters(str(tmp_path / "net.params"), ctx=ctx)
    np.testing.assert_allclose(other(x).asnumpy(), expected, rtol=1e-6)


def test_the_end_of_a_process_with_a_round_pending():
    program = """
from tests.cu112.faults import *
xs = arrays([0, 1])
outs = outputs(new_layer(xs), xs[:1])
"""
    run_python(program)
