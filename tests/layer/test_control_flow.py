"""Norms in the body of foreach, while_loop and cond, where MXNet trains no norm of a graph."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.norms import norms_of
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import nd, only_1
from tests.support.networks import import_files
from tests.support.processes import run_interpreter

pytestmark = only_1
X = np.random.default_rng(0).normal(5, 2, (6, 3)).astype("float32")


class Body(gluon.HybridBlock):
    """Calls a norm three times, in the body of an operator."""

    def __init__(self, norm, kind: str = "while_loop", **options) -> None:
        super().__init__()
        self.kind = kind
        with self.name_scope():
            self.norm = norm(in_channels=3, **options)

    def hybrid_forward(self, F, x):
        if self.kind == "cond":
            return F.contrib.cond(F.sum(x) > -1e9, lambda: self.norm(x) + 0, lambda: x * 1)
        if self.kind == "foreach":
            steps = F.stack(x, x, x)
            outs = F.contrib.foreach(lambda y, s: (self.norm(y), s), steps, [])[0]
            return F.squeeze(F.slice_axis(outs, axis=0, begin=2, end=3), axis=0)
        start = [F.zeros((1,)), x]
        loop = F.contrib.while_loop
        states = loop(lambda i, y: i < 3, lambda i, y: ([], [i + 1, self.norm(y)]), start, 3)[1]
        return states[1]


def make(kind: str, norm=gluon_syncbn.SyncBatchNorm, **options) -> gluon.Block:
    net = Body(norm, kind, **options)
    net.initialize(ctx=contexts(2))
    return net


KINDS = pytest.mark.parametrize("kind", ["while_loop", "foreach", "cond"])


@pytest.mark.parametrize("predicts_first", [False, True])
@KINDS
def test_training_a_graph_is_an_error_that_names_the_norm(kind, predicts_first):
    net = make(kind)
    net.hybridize()
    if predicts_first:
        net(nd.array(X)).wait_to_read()
    named = f"SyncBatchNorm '{net.norm.name}': MXNet cannot train a norm in the body"
    with pytest.raises(mx.base.MXNetError, match=named), autograd.record():
        net(nd.array(X)).wait_to_read()
    gluon_syncbn.drop_step()
    net.hybridize(active=False)
    with autograd.record():
        outs = [net(nd.array(part, ctx=c)) for part, c in zip(np.split(X, 2), contexts(2))]
    found = np.concatenate([out.asnumpy() for out in outs])
    np.testing.assert_allclose(found, (X - X.mean(0)) / X.std(0), atol=1e-4)


@KINDS
def test_files_are_plain(kind, tmp_path):
    net = make(kind)
    net.norm.running_mean.set_data(nd.array([1, 2, 3]))
    net.hybridize()
    expected = net(nd.array(X)).asnumpy()
    gluon_syncbn.export(net, tmp_path / "plain")
    program = (
        "import sys, mxnet as mx, numpy as np; "
        "net = mx.gluon.SymbolBlock.imports('plain-symbol.json', ['data'], 'plain-0000.params'); "
        "np.save('out', net(mx.nd.array(np.load('x.npy'))).asnumpy()); "
        "assert 'gluon_syncbn' not in sys.modules"
    )
    np.save(tmp_path / "x", X)
    run_interpreter("-W", "ignore", "-c", program, folder=tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-6)


@KINDS
def test_symbols_are_plain_again_and_named(kind, tmp_path):
    net = make(kind, nn.BatchNorm)
    net.hybridize()
    expected = net(nd.array(X)).asnumpy()
    net.export(str(tmp_path / "net"))
    imported = import_files(tmp_path / "net", contexts(2))
    name = net.norm.name
    with pytest.warns(
        UserWarning, match=f"{name}_fwd is left as it is: MXNet cannot train"
    ) as warned:
        gluon_syncbn.convert_sync_batchnorm(imported)
    assert not any("has no BatchNorm" in str(each.message) for each in warned)
    with pytest.raises(ValueError, match="has no SyncBatchNorm that gathers"):
        gluon_syncbn.update_statistics(imported, [nd.array(X)])
    gluon_syncbn.average_statistics(imported)
    ours = make(kind)
    ours.hybridize()
    ours(nd.array(X))
    ours.export(str(tmp_path / "ours"))
    imported = import_files(tmp_path / "ours", contexts(2))
    gluon_syncbn.revert_sync_batchnorm(imported)
    assert [norm.kind for norm in norms_of(imported)] == ["BatchNorm"]
    np.testing.assert_allclose(imported(nd.array(X)).asnumpy(), expected, rtol=1e-6)


def test_what_has_no_counterpart_is_refused(tmp_path):
    net = make("while_loop", momentum=None)
    net.hybridize()
    net(nd.array(X))
    with pytest.raises(ValueError, match=f"{net.norm.name}_fwd: in the body of control flow"):
        gluon_syncbn.export(net, tmp_path / "net")
