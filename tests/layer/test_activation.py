"""Activations and shortcuts in the layer: arguments, symbols and files."""

from __future__ import annotations

import json
from pathlib import Path

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from tests.conftest import DEVICE, contexts
from tests.support.either_mxnet import nd
from tests.support.networks import ACTIVATIONS, check_files, make_images, randomize, two_norms

SIZE = 5  # of images


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
        ({"alpha": 0.1}, "alpha=0.1 belongs to 'leaky_relu' and 'elu', but activation=None"),
        ({"activation": "relu", "alpha": 0.1}, "alpha=0.1 belongs to .*, but activation='relu'"),
        ({"activation": "relu", "inplace": True}, "inplace=True takes .* but activation='relu'"),
        (
            {"activation": "elu", "alpha": 0, "inplace": True},
            "inplace=True takes .*inverted .* but activation='elu' with alpha=0",
        ),
    ],
)
def test_arguments_that_exclude_each_other(arguments, message):
    with pytest.raises(ValueError, match=rf"syncbatchnorm\d+: {message}"):
        gluon_syncbn.SyncBatchNorm(**arguments)


@pytest.mark.parametrize("hybridize", [False, True])
def test_shortcuts_that_do_not_fit(hybridize):
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, activation="relu")
    layer.initialize(ctx=contexts(2))
    layer.hybridize(hybridize)
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


def test_representation():
    layer = gluon_syncbn.SyncBatchNorm(activation="elu", alpha=2, prefix="bn_")
    assert (layer.activation, layer.alpha) == ("elu", 2)
    assert "activation='elu', alpha=2.0" in repr(layer)
    assert gluon_syncbn.SyncBatchNorm(activation="elu").alpha == 1
    assert "activation" not in repr(gluon_syncbn.SyncBatchNorm())


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("fold", [False, True])
def test_export(kind, fold, tmp_path):
    """To plain operators, with the norms folded or not."""
    net = two_norms(kind)
    randomize(net, make_images(SIZE, 1))
    net.cast("float32")
    net.hybridize()
    x = nd.random.normal(shape=(2, 3, SIZE, SIZE))
    expected = net(x).asnumpy()
    symbol, params = gluon_syncbn.export(net, str(tmp_path / "plain"), fold=fold)
    plain = check_files(tmp_path / "plain", x, expected, 5e-6)
    names = "".join([*plain.collect_params(), *nd.load(params)])
    assert "num_batches_tracked" not in names
    assert ("running" in names) == (not fold)
    assert "momentum" not in Path(symbol).read_text() or kind != "leaky 0.3"
    kinds = [node["op"] for node in json.loads(Path(symbol).read_text())["nodes"]]
    assert "Custom" not in kinds
    assert kinds.count("BatchNorm") == (0 if fold else 2)
    assert kinds.count("elemwise_add") == 1
