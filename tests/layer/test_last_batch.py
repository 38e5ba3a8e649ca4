"""A last batch with fewer images than devices, as loaders give it."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluoncv.utils.parallel import split_load_kwargs
from mxnet import autograd, gluon

from tests.conftest import contexts

DEVICES = 3


def loader(last_batch: str) -> gluon.data.DataLoader:
    """Batches of 6 and 2 images."""
    images = np.random.default_rng(0).normal(size=(8, 3, 4)).astype("float32")
    return gluon.data.DataLoader(gluon.data.ArrayDataset(images), 6, last_batch=last_batch)


def split(batch: mx.nd.NDArray) -> list[mx.nd.NDArray]:
    """Split as GluonCV's DataParallelModel does."""
    shards, _ = split_load_kwargs((batch,), {}, contexts(DEVICES))
    return [shard for (shard,) in shards]


def train(last_batch: str) -> gluon_syncbn.SyncBatchNorm:
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, momentum=None)
    layer.initialize(ctx=contexts(DEVICES))
    for _ in range(2):
        for batch in loader(last_batch):
            with autograd.record():
                outs = [layer(shard) for shard in split(batch)]
            autograd.backward(outs)
            mx.nd.waitall()
    return layer


@pytest.mark.parametrize("last_batch", ["discard", "rollover"])
def test_loaders_that_leave_it_out(last_batch):
    assert train(last_batch).num_batches_tracked.data(contexts(1)[0]).asscalar() == 2


def test_it_cannot_be_split():
    """MXNet itself has no empty arrays, and says so before any layer is called."""
    with pytest.raises(mx.base.MXNetError, match="inferring shapes failed"):
        train("keep")


def test_it_is_given_to_some_devices():
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=contexts(DEVICES))
    gluon_syncbn.set_timeout(1)
    with autograd.record():
        outs = [layer(mx.nd.ones((1, 3), ctx=c)) for c in contexts(2)]
    with pytest.raises(mx.base.MXNetError, match="DataLoader should have last_batch='discard'"):
        outs[0].wait_to_read()
    with pytest.raises(mx.base.MXNetError):
        outs[1].wait_to_read()
