"""Folding changes the graph and not the function."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.symbols.exporting import PlainFiles
from mxnet.gluon import nn

from tests.support.either_mxnet import HybridBlock, nd
from tests.support.networks import check_files, sequential


class TwoReaders(HybridBlock):
    """A convolution whose output is read by the norm and by somebody else."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.conv, self.norm = nn.Conv2D(4, 1), gluon_syncbn.SyncBatchNorm()

    def hybrid_forward(self, F, x):
        x = self.conv(x)
        return self.norm(x) + x


class SharedWeight(HybridBlock):
    """A convolution that is used twice, once in front of the norm."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.conv, self.norm = nn.Conv2D(3, 1), gluon_syncbn.SyncBatchNorm()

    def hybrid_forward(self, F, x):
        return self.norm(self.conv(self.conv(x)))


def with_norm(layer, **options) -> nn.HybridSequential:
    return sequential(layer, gluon_syncbn.SyncBatchNorm(**options), nn.Activation("relu"))


FOLDED = {
    "convolution": lambda: with_norm(nn.Conv2D(4, 3)),
    "no bias": lambda: with_norm(nn.Conv2D(4, 3, use_bias=False)),
    "groups": lambda: with_norm(nn.Conv2D(6, 3, groups=3)),
    "negative axis": lambda: with_norm(nn.Conv2D(4, 3), axis=-3),
    "fixed gamma": lambda: with_norm(nn.Conv2D(4, 3), scale=False),
    "no beta": lambda: with_norm(nn.Conv2D(4, 3), center=False, epsilon=0.1),
    "transposed": lambda: with_norm(nn.Conv2DTranspose(4, 3, strides=2)),
    "transposed, groups": lambda: with_norm(nn.Conv2DTranspose(6, 3, groups=3, use_bias=False)),
    "dense": lambda: with_norm(nn.Dense(5)),
    "dense, not flat": lambda: with_norm(nn.Dense(5, flatten=False, use_bias=False), axis=-1),
    "two in a row": lambda: sequential(
        nn.Conv2D(4, 1), gluon_syncbn.SyncBatchNorm(), gluon_syncbn.SyncBatchNorm()
    ),
    "a network": lambda: sequential(
        nn.Conv2D(4, 3), gluon_syncbn.SyncBatchNorm(), nn.Conv2D(4, 3, use_bias=False),
        gluon_syncbn.SyncBatchNorm(), nn.Dense(3), nn.BatchNorm(),
    ),
}  # fmt: skip

LEFT = {
    "first": (lambda: sequential(gluon_syncbn.SyncBatchNorm()), "no convolution or dense layer"),
    "after relu": (
        lambda: sequential(nn.Conv2D(4, 1, activation="relu"), gluon_syncbn.SyncBatchNorm()),
        "no convolution or dense layer",
    ),
    "two readers": (TwoReaders, "is used elsewhere too"),
    "shared weight": (SharedWeight, "weight is shared"),
    "other axis": (lambda: with_norm(nn.Conv2D(4, 1), axis=2), "not the channel axis"),
    "dense, not flat, other axis": (
        lambda: with_norm(nn.Dense(5, flatten=False), axis=1),
        "not the channel axis",
    ),
}


def trace(net, folder):
    """Symbol and parameters of an initialized network with statistics that are not the initial."""
    rng = np.random.default_rng(0)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = nd.array(rng.standard_normal((2, 3, 6, 6)))
    net(x)
    for name, parameter in net.collect_params().items():
        values = rng.standard_normal(parameter.shape)
        parameter.set_data(nd.array(values**2 + 0.1 if name.endswith("var") else values))
    plain = PlainFiles(*gluon_syncbn.export(net, folder / "net"), fold=False)
    return plain.symbol, plain.args, plain.aux, x, net(x).asnumpy()


@pytest.mark.parametrize("name", [*FOLDED, *LEFT])
def test_fold(name, tmp_path):
    make, reason = LEFT.get(name) or (FOLDED[name], None)
    symbol, args, aux, x, expected = trace(make(), tmp_path)
    if name == "fixed gamma":  # which export writes as 1
        args = {key: 3 * value if key.endswith("gamma") else value for key, value in args.items()}
    before = {key: value.asnumpy() for key, value in args.items()}
    folded, new_args, new_aux, report = gluon_syncbn.fold_batchnorm(symbol, args, aux)
    done, others = (report.left, report.folded) if reason else (report.folded, report.left)
    assert not others
    assert len(done) == symbol.tojson().count('"BatchNorm"')
    if reason is None:
        assert "BatchNorm" not in folded.tojson()
        assert not new_aux
        assert set(new_args) == set(folded.list_arguments()) - {"data"}
    else:
        assert all(reason in why for why in report.left.values())
        assert reason in str(report)
    folded.save(str(tmp_path / "folded-symbol.json"))
    arrays = {f"arg:{name}": array for name, array in new_args.items()}
    arrays.update({f"aux:{name}": array for name, array in new_aux.items()})
    mx.nd.save(str(tmp_path / "folded-0000.params"), arrays)
    check_files(tmp_path / "folded", x, expected, 5e-6)
    for key, value in before.items():
        np.testing.assert_array_equal(args[key].asnumpy(), value)
