"""sync_group_size: groups of devices. test_parity.py has their numbers."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from tests.conftest import DEVICE, contexts
from tests.support.either_mxnet import nd, reset_ctx
from tests.support.networks import import_files
from tests.support.step import Case, check_step, make_case, make_layer, train_step

CHANNELS = 3
# Neither from 0 on nor in order: position in this list is what counts.
ELSEWHERE = [mx.Context(DEVICE, i) for i in (5, 2, 0, 7)]


def draw(size: int | None = 2, sizes: tuple[int, ...] = (1, 2, 3, 2)) -> Case:
    rng = np.random.default_rng(0)
    return make_case(rng, (sum(sizes), CHANNELS, 4), sizes, sync_group_size=size)


def test_moved_to_other_contexts():
    layer = make_layer(draw(), ELSEWHERE, "hybridized")
    check_step(layer, draw(), ELSEWHERE)
    reset_ctx(layer, contexts(6))
    with autograd.record():
        out = layer(nd.ones((2, CHANNELS), ctx=mx.Context(DEVICE, 1)))
    with pytest.raises(mx.base.MXNetError, match=rf"called on {DEVICE}\(1\), which is in no group"):
        out.wait_to_read()
    layer.hybridize()
    check_step(layer, draw(sizes=(1, 2, 3, 2, 1, 2)), contexts(6))


def test_check_in_sync_tells_groups_from_faults():
    layer = make_layer(draw(), contexts(4))
    assert gluon_syncbn.check_in_sync(layer) == {}
    train_step(layer, draw(), contexts(4))
    differences = gluon_syncbn.check_in_sync(layer)
    assert set(differences) == {layer.running_mean.name, layer.running_var.name}
    for text in differences.values():
        assert text.startswith(f"from {DEVICE}(0): {DEVICE}(2) by ")
        assert f"{DEVICE}(1)" not in text
        assert text.endswith("; expected with sync_group_size=2: each group agrees")
    layer.running_mean.data(mx.Context(DEVICE, 3))[:] = 7
    text = gluon_syncbn.check_in_sync(layer)[layer.running_mean.name]
    assert text.endswith("; the devices of a group differ too (sync_group_size=2)")


def test_exported_groups(tmp_path):
    """The symbol keeps the devices for training; inference runs anywhere."""
    net = nn.HybridSequential()
    net.add(gluon_syncbn.SyncBatchNorm(in_channels=CHANNELS, sync_group_size=2))
    net.initialize(ctx=ELSEWHERE)
    net.hybridize()
    train_step(net, draw(), ELSEWHERE)
    path = str(tmp_path / "net")
    net.export(path)
    again = import_files(path, ELSEWHERE)
    for _ in range(2):
        expected = train_step(net, draw(), ELSEWHERE)["out"]
        np.testing.assert_array_equal(train_step(again, draw(), ELSEWHERE)["out"], expected)
    moved = contexts(6)[2:]
    there = import_files(path, moved)
    gluon_syncbn.convert_sync_batchnorm(there, sync_group_size=2)
    np.testing.assert_array_equal(train_step(there, draw(), moved)["out"], expected)

    elsewhere = import_files(path, mx.Context(DEVICE, 6))
    x = nd.ones((2, CHANNELS, 4), ctx=mx.Context(DEVICE, 6))
    assert np.isfinite(elsewhere(x).asnumpy()).all()
    with autograd.record():
        out = elsewhere(x)
    message = (
        rf"called on {DEVICE}\(6\), which is in no group: sync_group_size=2 groups the devices 5, 2"
    )
    with pytest.raises(mx.base.MXNetError, match=message):
        out.wait_to_read()


def test_converted_into_groups_and_back():
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(in_channels=CHANNELS))
    net.initialize(ctx=contexts(4))
    with pytest.raises(ValueError, match="sync_group_size=3 should divide num_devices=4"):
        gluon_syncbn.convert_sync_batchnorm(net, num_devices=4, sync_group_size=3)
    assert type(net[0]) is nn.BatchNorm
    gluon_syncbn.convert_sync_batchnorm(net, sync_group_size=2)
    net[0].hybridize()  # whose graph has the size in it
    check_step(net[0], draw(), contexts(4))
    net.initialize(ctx=contexts(4), force_reinit=True)  # each group had its own statistics
    net[0].sync_group_size = None
    check_step(net[0], draw(None), contexts(4))
    gluon_syncbn.revert_sync_batchnorm(net)
    assert type(net[0]) is nn.BatchNorm


def test_a_size_must_divide_the_number_of_devices():
    """test_faults.py has calls."""
    message = r"syncbatchnorm\d+: sync_group_size=3 should divide num_devices="
    for number, counted in ((4, 4), (0, 1)):
        with pytest.raises(ValueError, match=f"{message}{counted}"):
            gluon_syncbn.SyncBatchNorm(num_devices=number, sync_group_size=3)
    with pytest.raises(ValueError, match=f"{message}2"):
        gluon_syncbn.SyncBatchNorm(sync_group_size=3).num_devices = 2
