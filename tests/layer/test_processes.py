"""Synchronizing over processes without Horovod, and what needs no second process."""

from __future__ import annotations

import copy
import json
import sys
from types import SimpleNamespace
from typing import Any

import gluon_syncbn
import mxnet as mx
import pytest
from gluon_syncbn.mxnet_versions import IS_2
from mxnet import gluon

from tests.support.either_mxnet import HybridBlock, nd
from tests.support.two_devices import contexts, make_layer


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
        net(nd.ones((2, 3))).asnumpy()
    # MXNet bulks the operations of a graph, and goes back only after exceptions of its own. Bulks
    # make what one device needs wait for another.
    assert mx.engine.set_bulk_size(bulk_size) == 0


class Twice(HybridBlock):
    """A layer that it uses twice."""

    def __init__(self, prefix=None):
        super().__init__(prefix=prefix)
        with self.name_scope():
            self.norm = gluon_syncbn.SyncBatchNorm(in_channels=3, prefix="norm_")

    def hybrid_forward(self, F, x):
        return self.norm(self.norm(x))


def names_of(net):
    """Under which names other processes meet the layers of a new trace."""
    if IS_2:
        net._clear_cached_op()
        _, symbol = net._get_graph(nd.ones((2, 3)))
    else:
        symbol = net(mx.sym.var("data"))
    nodes = json.loads(symbol.tojson())["nodes"]
    return sorted(node["attrs"]["across"] for node in nodes if node["op"] == "Custom")


@pytest.fixture
def _two_processes(monkeypatch):
    monkeypatch.setattr("gluon_syncbn.processes.default", lambda: 0)


@pytest.mark.usefixtures("_two_processes")
@pytest.mark.parametrize("prefix", [None, "net_"])
def test_another_trace_or_copy_changes_no_name(prefix):
    net = Twice(prefix)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    names = names_of(net)
    assert len(set(names)) == 2
    net.norm.infer_shape(nd.ones((2, 3)))
    twin = copy.deepcopy(net)
    assert not set(names) & set(names_of(twin))
    assert names_of(net) == names
    assert not set(names) & set(names_of(net.norm))


@pytest.mark.usefixtures("_two_processes")
def test_uses_in_a_graph_without_a_prefix_have_names_of_their_own():
    net = Twice("")
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    assert len(set(names_of(net))) == 2


@pytest.mark.parametrize("own", [None, 0, 3])  # None: this process alone
def test_a_layer_with_processes_of_its_own_keeps_them(own, monkeypatch):
    monkeypatch.setattr("gluon_syncbn.processes.default", lambda: 7)
    monkeypatch.setattr("gluon_syncbn.processes.register", lambda process_set: own)
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, process_set=object())
    assert layer._among_processes(None)["process_set"] == (-1 if own is None else own)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"process_set": "first"}, "attribute process_set='first' should be the number of"),
        ({"process_set": -2}, "attribute process_set='-2' should be"),
        ({"process_set": 0, "key": ""}, "attribute key is required if num_devices > 1 or"),
        (
            {"process_set": 0, "sync_group_size": 1, "num_devices": 2},
            "sync_group_size=1 cannot be combined with other processes",
        ),
    ],
)
def test_attributes_that_make_no_sense(attributes, message):
    with pytest.raises(mx.base.MXNetError, match=message):
        mx.sym.Custom(mx.sym.var("x"), op_type="SyncBatchNorm", **{"key": "k", **attributes})


class Trainer(mx.gluon.Trainer):
    """The trainer of a Horovod of one process, in which there is nothing to exchange."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, kvstore=None)

    def _allreduce_grads(self) -> None:
        pass


@pytest.mark.own_process
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_the_trainer_sums_over_the_contexts_of_a_process(grad_req, monkeypatch):
    module = SimpleNamespace(DistributedTrainer=Trainer)
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace(mxnet=module))
    monkeypatch.setitem(sys.modules, "horovod.mxnet", module)
    net = make_layer()
    net.beta.grad_req = grad_req
    trainer = gluon_syncbn.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1})
    with mx.autograd.record():
        outs = [net(nd.ones((2 + i, 3), ctx=c)) for i, c in enumerate(contexts)]
    mx.autograd.backward(outs)
    trainer.step(1)
    for array in net.beta.list_data():
        assert (array.asnumpy() == -5).all(), array
