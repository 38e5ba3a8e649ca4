"""Exported networks train where only gluon_syncbn has been imported."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.mxnet_versions import IS_2
from mxnet import autograd
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import nd
from tests.support.networks import import_files, sequential


@pytest.mark.own_process(
    MXNET_CPU_TEMP_COPY="16", MXNET_GPU_TEMP_COPY="16", GLUON_SYNCBN_TIMEOUT="60"
)
def test_two_imports_do_not_meet(tmp_path):
    """All have the same keys; calls are interleaved so that any mix-up changes the numbers.

    Devices that reach networks in orders of their own need workspaces (docs/limits.md).
    """
    path, ctx = str(tmp_path / "net"), contexts(2)
    net = sequential(
        nn.Conv2D(4, 3, in_channels=3),
        gluon_syncbn.SyncBatchNorm(),
        nn.Activation("relu"),
        nn.Conv2D(2, 1),
        gluon_syncbn.SyncBatchNorm(),
    )
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net.hybridize()
    net(nd.zeros((1, 3, 8, 8), ctx=ctx[0]))
    net.export(path)
    nets = [import_files(path, ctx) for _ in range(2)]
    for net in nets:
        net.hybridize()
    rng = np.random.default_rng(3)
    data = [[rng.standard_normal((2, 3, 8, 8)) * scale for _ in ctx] for scale in (1, 5)]

    def forward(net, shards, order):
        outs = {}
        with autograd.record():
            for i in order:
                outs[i] = net(nd.array(shards[i], ctx=ctx[i]))
        return outs

    alone = [
        [out.asnumpy() for _, out in sorted(forward(net, shards, [0, 1]).items())]
        for net, shards in zip(nets, data)
    ]
    # Device 0 sees the first network first and device 1 the second.
    first = forward(nets[0], data[0], [0])
    second = forward(nets[1], data[1], [0, 1])
    first.update(forward(nets[0], data[0], [1]))
    for outs, expected in zip((first, second), alone):
        for i in range(2):
            np.testing.assert_allclose(outs[i].asnumpy(), expected[i], rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not IS_2, reason="MXNet 1.9.1 can fuse it")
def test_fuse_without_symbolic_calls_is_an_error_that_says_what_works():
    net = sequential(gluon_syncbn.SyncBatchNorm(in_channels=3), nn.Activation("relu"))
    with pytest.raises(RuntimeError, match=r"fuse needs MXNet 1.9.1: .*activation='relu'"):
        gluon_syncbn.fuse(net)
