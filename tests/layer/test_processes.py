"""Synchronizing over processes without Horovod, and what needs no second process."""

from __future__ import annotations

import sys

import gluon_syncbn
import mxnet as mx
import pytest
from mxnet import gluon


@pytest.fixture
def _no_horovod(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.setitem(sys.modules, "horovod.mxnet", None)


@pytest.mark.usefixtures("_no_horovod")
@pytest.mark.parametrize(
    "call", [gluon_syncbn.init, lambda: gluon_syncbn.SyncBatchNorm(process_set=object())]
)
def test_without_horovod_the_error_says_how_to_get_it(call):
    with pytest.raises(ImportError, match=r"HOROVOD_WITH_MXNET=1 .*horovod==0[.]28[.]1"):
        call()


def test_a_symbol_of_several_processes_needs_init():
    symbol = mx.sym.Custom(
        mx.sym.var("data"), name="bn", op_type="SyncBatchNorm", key="k", process_set=7, across="k"
    )
    net = gluon.SymbolBlock([symbol], [mx.sym.var("data")])
    net.initialize()
    bulk_size = mx.engine.set_bulk_size(0)
    with pytest.raises(mx.base.MXNetError, match="process set 7 is not known in this process"):
        net(mx.nd.ones((2, 3))).asnumpy()
    # MXNet bulks the operations of a graph, and goes back only after exceptions of its own. Bulks
    # make what one device needs wait for another.
    assert mx.engine.set_bulk_size(bulk_size) == 0


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"process_set": "first"}, "attribute process_set='first' should be the number of"),
        ({"process_set": -2}, "attribute process_set='-2' should be"),
        ({"process_set": 0, "key": ""}, "attribute key is required where num_devices > 1 or"),
        (
            {"process_set": 0, "sync_group_size": 1, "num_devices": 2},
            "sync_group_size=1 cannot be combined with other processes",
        ),
    ],
)
def test_attributes_that_make_no_sense(attributes, message):
    with pytest.raises(mx.base.MXNetError, match=message):
        mx.sym.Custom(mx.sym.var("x"), op_type="SyncBatchNorm", **{"key": "k", **attributes})
