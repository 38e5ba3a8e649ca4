"""Exported networks run in MXNet without this package."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import nd
from tests.support.networks import sequential
from tests.support.processes import run_program


@pytest.fixture
def net():
    net = sequential(
        nn.Conv2D(4, 3, in_channels=3, layout="NCHW"),
        gluon_syncbn.SyncBatchNorm(),
        nn.Activation("relu"),
        gluon_syncbn.SyncBatchNorm(axis=-1, scale=False, epsilon=0.01),
    )
    net.initialize(mx.init.Xavier(), ctx=contexts(2))
    net.hybridize()
    with autograd.record():  # running statistics that are not the initial ones
        outs = [net(nd.random.normal(1, 2, shape=(2, 3, 6, 6), ctx=c)) for c in contexts(2)]
    for out in outs:
        out.wait_to_read()
    return net


def test_stock_mxnet_gives_the_same_numbers(net, tmp_path):
    x = nd.random.normal(shape=(2, 3, 6, 6))
    np.save(tmp_path / "x.npy", x.asnumpy())
    np.save(tmp_path / "y.npy", net(x).asnumpy())
    files = gluon_syncbn.export(net, tmp_path / "net", epoch=7)
    assert files == (f"{tmp_path}/net-symbol.json", f"{tmp_path}/net-0007.params")
    run_program("stock_mxnet.compare", *files, str(tmp_path))


def test_symbols_keep_their_names(net):
    _, symbol = net._cached_graph
    plain = gluon_syncbn.to_batchnorm(symbol)
    assert plain.list_arguments() == symbol.list_arguments()
    assert plain.list_auxiliary_states() == symbol.list_auxiliary_states()
    assert plain.list_outputs() == symbol.list_outputs()
    assert "SyncBatchNorm" in symbol.tojson()
    assert "SyncBatchNorm" not in plain.tojson()
    again = gluon_syncbn.to_batchnorm(plain)
    assert again.tojson() == plain.tojson()


def test_a_network_that_was_never_called_cannot_be_exported(tmp_path):
    net = sequential(gluon_syncbn.SyncBatchNorm(in_channels=3))
    with pytest.raises(RuntimeError):
        gluon_syncbn.export(net, tmp_path / "net")


def test_the_users_attributes_stay():
    """MXNet copies the attributes of an operator to the variables that it makes."""
    data = mx.sym.var("data")
    with mx.AttrScope(ctx_group="first", __note__="mine"):
        symbol = mx.sym.Custom(data, name="bn", op_type="SyncBatchNorm", act_type="relu")
    plain = gluon_syncbn.to_batchnorm(symbol)
    assert plain.list_inputs() == symbol.list_inputs()
    attributes = plain.attr_dict()
    for name in ("bn", "bn_gamma"):
        assert attributes[name].items() >= {"__ctx_group__": "first", "__note__": "mine"}.items()
    assert not {"op_type", "act_type"} & attributes["bn_gamma"].keys()
