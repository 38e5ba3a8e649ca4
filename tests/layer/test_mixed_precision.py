"""float16 data goes through the layer as float16; its parameters and statistics are float32.

MXNet computes no convolution and no dense layer in float16 on a CPU, so that other operators stand
for them here. ``amp.init`` changes the process, hence processes of their own.
"""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.mxnet_versions import IS_2
from mxnet import gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import HybridBlock, only_1
from tests.support.processes import run_program
from tests.support.step import make_case, train


def test_amp_keeps_float16():
    if "no casts" in run_program("mixed_precision.train_in_both_modes").stdout:
        pytest.skip("this MXNet casts to float16 on GPU contexts only")


def test_amp_with_its_default_lists():
    """The check of CPU contexts, which is a convolution, is not made float16."""
    run_program("mixed_precision.default_lists")


@only_1  # the casts of MXNet 2 begin with operators of mx.np
def test_amp_skips_an_overflow():
    run_program("mixed_precision.skip_an_overflow")


@only_1  # MXNet 2.0.0b1 looks for the names of parameters in a graph of ids, and fails
def test_convert_hybrid_block():
    run_program("mixed_precision.convert_hybrid_block")


class Scaled(HybridBlock):
    """A layer with a weight that MXNet computes in float16 on a CPU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        with self.name_scope():
            make = gluon.Parameter if IS_2 else self.params.get
            self.weight = make("weight", shape=(1, channels, 1, 1), init=mx.init.One())

    def hybrid_forward(self, F, x, weight):
        return F.broadcast_mul(x, weight)


def test_cast_network_trains_with_multi_precision():
    net = nn.HybridSequential()
    net.add(Scaled(3), gluon_syncbn.SyncBatchNorm(in_channels=3), nn.Activation("relu"), Scaled(3))
    net.initialize(ctx=contexts(2))
    net.cast("float16")
    net.hybridize()
    before = net[0].weight.data(contexts(1)[0]).asnumpy()
    options = {"learning_rate": 0.05, "momentum": 0.9, "multi_precision": True}
    trainer = gluon.Trainer(net.collect_params(), "sgd", options)
    case = make_case(np.random.default_rng(0), (5, 3, 6, 6), (2, 3), "float16", mean=5)
    found = train(net, case, contexts(2), trainer, 3)
    assert {out.dtype for out in found.batch["out"]} == {np.dtype("float16")}
    assert (net[0].weight.data(contexts(1)[0]).asnumpy() != before).any()
    for name, parameter in net.collect_params().items():
        expected = "float16" if "weight" in name else "float32"
        assert np.dtype(parameter.dtype).name == expected, name
    assert gluon_syncbn.check_in_sync(net) == {}
