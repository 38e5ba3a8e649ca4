"""Which files of parameters load in which network; docs/migration.md says so."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import contrib, nn

from tests.conftest import contexts
from tests.support.either_mxnet import HybridBlock, nd

LAYERS = {
    "BatchNorm": (nn.BatchNorm, {}),
    "contrib": (contrib.nn.SyncBatchNorm, {"num_devices": 1}),
    "ours": (gluon_syncbn.SyncBatchNorm, {"num_devices": 1}),
}
X = nd.array(np.random.default_rng(0).standard_normal((2, 3, 5, 5)), ctx=contexts(1)[0])


class Network(HybridBlock):
    """A backbone and a head. GluonCV's detectors trace the backbone into a symbol."""

    def __init__(self, kind: str, traced: bool) -> None:
        super().__init__(prefix="net_")
        self.kind = kind
        with self.name_scope():
            self.backbone = self.make(4, in_channels=3)
            self.head = self.make(2, in_channels=4)
            if traced:
                data, parameters = mx.sym.var("data"), self.backbone.collect_params()
                self.traced = gluon.SymbolBlock(self.backbone(data), data, params=parameters)
                del self._children["backbone"]

    def make(self, channels: int, in_channels: int) -> nn.HybridSequential:
        layer, options = LAYERS[self.kind]
        part = nn.HybridSequential()
        with part.name_scope():
            part.add(nn.Conv2D(channels, 3, padding=1, in_channels=in_channels))
            part.add(layer(in_channels=channels, **options), nn.Activation("relu"))
        return part

    def hybrid_forward(self, F, x):
        return self.head(getattr(self, "traced", self.backbone)(x))


def make(kind: str, traced: bool, seed: int) -> Network:
    """A network of the kind; "converted" is one of BatchNorms."""
    net = Network("BatchNorm" if kind == "converted" else kind, traced)
    mx.random.seed(seed)
    net.initialize(mx.init.Normal(0.5), ctx=contexts(1))
    for name, parameter in net.collect_params().items():
        if name.endswith("running_mean"):
            parameter.set_data(nd.random.normal(shape=parameter.shape))
    return gluon_syncbn.convert_sync_batchnorm(net) if kind == "converted" else net


def save(net: Network, by: str, file: str) -> None:
    net.save_parameters(file) if by == "place" else net.collect_params().save(file)


def load(net: Network, by: str, file: str) -> None:
    net.load_parameters(file) if by == "place" else net.collect_params().load(file)


@pytest.mark.parametrize("by", ["place", "name"])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("to", ["BatchNorm", "contrib", "ours", "converted"])
@pytest.mark.parametrize("come", ["BatchNorm", "contrib", "ours", "converted"])
@pytest.mark.filterwarnings("ignore:.*is left as it is", "ignore:Cannot decide type")
def test_files_of_other_layers(come, to, traced, by, tmp_path):
    file = str(tmp_path / "net.params")
    source, target = make(come, traced, seed=1), make(to, traced, seed=2)
    save(source, by, file)
    of_batchnorm = ("BatchNorm", "converted")
    has_prefix = traced or by == "name"
    if has_prefix and (come in of_batchnorm) != (to in of_batchnorm):
        with pytest.raises((AssertionError, IOError), match="batchnorm0_"):
            load(target, by, file)
        old, new = "batchnorm", "syncbatchnorm"
        if to in of_batchnorm:
            old, new = new, old
        arrays = {name.replace(old, new): array for name, array in nd.load(file).items()}
        mx.nd.save(file, arrays)
    load(target, by, file)
    np.testing.assert_allclose(target(X).asnumpy(), source(X).asnumpy(), rtol=1e-5, atol=1e-6)
