"""The layer with an activation and a shortcut in it does what layers behind it would do."""

from __future__ import annotations

import json
from pathlib import Path

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.conftest import DEVICE, contexts
from tests.layer.test_modes import MODES
from tests.support.either_mxnet import HybridBlock, nd
from tests.support.whole_batch import compare, load, randomize, train_step, weighted_loss

SIZE = 5  # of images

# Arguments of the layer, and MXNet's operator for the same.
ACTIVATIONS = {
    "none": ({}, None, 0),
    "relu": ({"activation": "relu"}, "relu", 0),
    "leaky": ({"activation": "leaky_relu"}, "leaky", 0.01),
    "leaky 0.3": ({"activation": "leaky_relu", "alpha": 0.3}, "leaky", 0.3),
    "elu": ({"activation": "elu"}, "elu", 1.0),
    "elu 0.5": ({"activation": "elu", "alpha": 0.5}, "elu", 0.5),
}


class Residual(HybridBlock):
    """Two norms: one with an activation, and one with a shortcut and an activation."""

    def __init__(self, fused: bool, kind: str = "relu", **norm) -> None:
        super().__init__()
        options, self.act_type, self.slope = ACTIVATIONS[kind]
        self.fused = fused
        norm = {**norm, **(options if fused else {})}
        with self.name_scope():
            self.first = nn.Conv2D(4, 3, padding=1, use_bias=False, in_channels=3)
            self.norm1 = gluon_syncbn.SyncBatchNorm(in_channels=4, **norm)
            self.second = nn.Conv2D(4, 3, padding=1, use_bias=False, in_channels=4)
            self.norm2 = gluon_syncbn.SyncBatchNorm(in_channels=4, **norm)

    def activate(self, F, x):
        if self.act_type is None:
            return x
        if self.act_type == "elu":
            return F.LeakyReLU(x, act_type="elu", slope=self.slope)
        # LeakyReLU computes in single precision.
        return F.relu(x) - self.slope * F.relu(-x) if self.slope else F.relu(x)

    def hybrid_forward(self, F, x):
        x = self.first(x)
        if self.fused:
            x = self.norm1(x)
            return self.norm2(self.second(x), x)
        x = self.activate(F, self.norm1(x))
        return self.activate(F, self.norm2(self.second(x)) + x)


def require_same_training(one, many, mode: str) -> None:
    """Two steps on one device and on two, in double precision, on shards of different size."""
    for net in (one, many):
        net.cast("float64")
    values = randomize(one, SIZE, weighted_loss)
    load(many, 2, values)
    many.hybridize(**MODES[mode])
    for _ in range(2):
        expected = train_step(one, 1, SIZE, weighted_loss)
        compare(train_step(many, 2, SIZE, weighted_loss), expected, 1e-10)


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("mode", MODES)
def test_training_equals_layers_behind_the_norm(kind, mode):
    require_same_training(Residual(False, kind), Residual(True, kind), mode)


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": None},
        {"use_global_stats": True},
        {"scale": False},
        {"center": False, "epsilon": 0.1},
    ],
)
def test_options_of_the_layer(options):
    one, many = (Residual(fused, "elu", **options) for fused in (False, True))
    require_same_training(one, many, "static_alloc")


def test_the_same_array_as_data_and_shortcut():
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, activation="relu")
    layer.initialize()
    x = nd.random.normal(shape=(4, 3, 8))
    gradients = []
    for arrays in ((x.copy(),) * 2, (x.copy(), x.copy())):
        for array in arrays:
            array.attach_grad()
        with autograd.record():
            loss = (layer(*arrays) * x).sum()
        loss.backward()
        gradients.append(sum(array.grad.asnumpy() for array in {id(a): a for a in arrays}.values()))
    np.testing.assert_allclose(*gradients, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"activation": "gelu"}, "activation='gelu' should be one of 'relu', 'leaky_relu', 'elu'"),
        ({"alpha": 0.1}, "alpha=0.1 belongs to 'leaky_relu' and 'elu', but activation=None"),
        ({"activation": "relu", "alpha": 0.1}, "alpha=0.1 belongs to.*but activation='relu'"),
        ({"activation": "elu", "alpha": -1}, "alpha=-1 should be a number of at least 0"),
        ({"activation": "elu", "alpha": float("nan")}, "alpha=nan should be a number"),
        ({"activation": "elu", "alpha": "1"}, "alpha='1' should be a number of at least 0"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=r"syncbatchnorm\d+: " + message):
        gluon_syncbn.SyncBatchNorm(**arguments)


@pytest.mark.parametrize("hybridize", [False, True])
def test_shortcuts_that_do_not_fit(hybridize):
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, activation="relu")
    layer.initialize(ctx=contexts(2))
    if hybridize:
        layer.hybridize()
    x = nd.ones((2, 3, 4))
    for shortcut, message in (
        (nd.ones((2, 3, 1)), r"shortcut has shape \(2, 3, 1\) where \(2, 3, 4\) is expected"),
        (nd.ones((2, 3)), r"shortcut has shape \(2, 3\) where \(2, 3, 4\) is expected"),
        (x.astype("float64"), "shortcut is float64 where float32 is expected for data of float32"),
    ):
        with pytest.raises(mx.base.MXNetError, match=r"SyncBatchNorm 'syncbatchnorm.*" + message):
            layer(x, shortcut).asnumpy()
    message = rf"shortcut is on {DEVICE}\(1\) where {DEVICE}\(0\) is expected"
    if hybridize:
        message = "context|devices"
    with pytest.raises(ValueError, match=message):
        layer(x, x.as_in_context(contexts(2)[1]))
    np.testing.assert_array_equal(layer(x, x).asnumpy(), layer(x, x).asnumpy())


def test_names_and_representation():
    layer = gluon_syncbn.SyncBatchNorm(activation="elu", alpha=2, prefix="bn_")
    assert (layer.activation, layer.alpha) == ("elu", 2)
    assert "activation='elu', alpha=2.0" in repr(layer)
    assert "activation" not in repr(gluon_syncbn.SyncBatchNorm())
    symbol = mx.sym.Custom(mx.sym.var("data"), op_type="SyncBatchNorm", name="bn", shortcut=True)
    assert symbol.list_arguments() == ["data", "bn_gamma", "bn_beta", "bn_shortcut"]
    shapes = symbol.infer_shape(data=(2, 3, 4, 4))
    assert shapes[0] == [(2, 3, 4, 4), (3,), (3,), (2, 3, 4, 4)]
    dtypes = symbol.infer_type(bn_shortcut=np.float16)
    assert dtypes[0] == [np.float16, np.float32, np.float32, np.float16]


def test_revert():
    net = Residual(True, "elu")
    with pytest.raises(
        ValueError, match=r"norm\d+: activation='\w+' has no counterpart in BatchNorm"
    ):
        gluon_syncbn.revert_sync_batchnorm(net)
    assert type(net.norm1) is gluon_syncbn.SyncBatchNorm, "nothing has changed"


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("fold", [False, True])
def test_export(kind, fold, tmp_path):
    """To plain operators, with the norms folded or not."""
    net = Residual(True, kind)
    net.cast("float64")
    randomize(net, SIZE, weighted_loss)
    net.cast("float32")
    net.hybridize()
    x = nd.random.normal(shape=(2, 3, SIZE, SIZE))
    expected = net(x).asnumpy()
    symbol, params = gluon_syncbn.export(net, str(tmp_path / "plain"), fold=fold)
    plain = gluon.SymbolBlock.imports(symbol, ["data"], params, ctx=x.ctx)
    kinds = [node["op"] for node in json.loads(Path(symbol).read_text())["nodes"]]
    assert "Custom" not in kinds
    assert kinds.count("BatchNorm") == (0 if fold else 2)
    assert kinds.count("elemwise_add") == 1
    np.testing.assert_allclose(plain(x).asnumpy(), expected, rtol=1e-4, atol=1e-4)
