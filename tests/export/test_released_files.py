"""What every release has exported loads, predicts and trains as it did.

``python -m tests.export.test_released_files`` writes the files of this version, once, when it is
released.
"""

from __future__ import annotations

import json
import re

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.block import ATTRIBUTES_VERSION
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.networks import Residual, import_files
from tests.support.processes import ROOT

DATA = ROOT / "tests" / "data"
VERSIONS = sorted(path.name[: -len("-symbol.json")] for path in DATA.glob("*-symbol.json"))
SHAPE = (6, 3, 5, 5)


def batch() -> mx.nd.NDArray:
    """Numbers that no generator has to give again forever."""
    return mx.nd.array(np.sin(np.arange(np.prod(SHAPE)) ** 1.5).reshape(SHAPE))


def predict_and_train(net: gluon.HybridBlock) -> dict:
    """What the network computes in inference, and its losses in four steps on two devices."""
    predictions = net(batch().as_in_context(contexts(2)[0])).asnumpy()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    losses = []
    for _ in range(4):
        shards = gluon.utils.split_and_load(batch(), contexts(2))
        with autograd.record():
            parts = [((net(shard) - 1) ** 2).sum() for shard in shards]
        autograd.backward(parts)
        trainer.step(SHAPE[0])
        losses.append(sum(part.asscalar() for part in parts))
    return {"predictions": predictions.tolist(), "losses": [float(loss) for loss in losses]}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", [{}, {"static_alloc": True}], ids=["dynamic", "static"])
def test_files_of_a_release(version, mode):
    net = import_files(DATA / version, contexts(2))
    net.hybridize(**mode)
    expected = json.loads((DATA / f"{version}-expected.json").read_text())
    found = predict_and_train(net)
    np.testing.assert_allclose(found["predictions"], expected["predictions"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-4)
    assert found["losses"][-1] < found["losses"][0]


def test_this_release_has_left_files():
    version = gluon_syncbn.__version__
    if re.fullmatch(r"[\d.]+", version):
        assert version in VERSIONS
        assert f"\n## {version} (" in (ROOT / "CHANGELOG.md").read_text()


def test_symbols_carry_the_version_of_their_attributes():
    nodes = json.loads(build().tojson())["nodes"]
    versions = [node["attrs"]["version"] for node in nodes if node["op"] == "Custom"]
    assert versions == [str(ATTRIBUTES_VERSION)] * 4


def test_files_of_a_later_release_are_refused():
    graph = json.loads(build().tojson())
    node = next(node for node in graph["nodes"] if node["op"] == "Custom")
    node["attrs"].update(version=str(ATTRIBUTES_VERSION + 1), new_option="1")
    expected = (
        rf"SyncBatchNorm '\w+': attribute version={ATTRIBUTES_VERSION + 1} comes from a later "
        rf"gluon_syncbn; this is {re.escape(gluon_syncbn.__version__)}, which reads up to version "
        rf"{ATTRIBUTES_VERSION}\. Install the later one"
    )
    with pytest.raises(mx.base.MXNetError, match=expected):
        mx.sym.load_json(json.dumps(graph)).infer_shape(data=SHAPE)


def make_net() -> gluon.HybridBlock:
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, in_channels=3), gluon_syncbn.SyncBatchNorm(), nn.Activation("relu"))
        net.add(nn.Conv2D(2, 1), gluon_syncbn.SyncBatchNorm(momentum=None, scale=False))
        norm = gluon_syncbn.SyncBatchNorm(activation="leaky_relu", alpha=0.1)
        net.add(Residual(nn.Conv2D(2, 1, in_channels=2), norm=norm))
        net.add(nn.Dense(3), gluon_syncbn.SyncBatchNorm(axis=-1, num_devices=2, sync_group_size=1))
    net.initialize(mx.init.Xavier(), ctx=contexts(2))
    return net


def build() -> mx.sym.Symbol:
    return make_net()(mx.sym.var("data"))


def write(version: str) -> None:
    mx.random.seed(1)
    net = make_net()
    net.hybridize()
    predict_and_train(net)  # the averages move
    DATA.mkdir(exist_ok=True)
    net.export(str(DATA / version))
    symbol = DATA / f"{version}-symbol.json"
    symbol.write_text(json.dumps(json.loads(symbol.read_text()), separators=(",", ":")) + "\n")
    expected = predict_and_train(import_files(DATA / version, contexts(2)))
    (DATA / f"{version}-expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    write(gluon_syncbn.__version__)
