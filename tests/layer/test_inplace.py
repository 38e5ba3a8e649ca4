"""What a layer that works in place refuses. test_parity.py has its numbers."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from tests.conftest import contexts
from tests.support.either_mxnet import nd, only_1


@pytest.mark.parametrize(
    ("dtype", "gamma", "beta", "works"),
    [
        ("float32", 0, 0, False),
        ("float32", -3e-4, 1, True),
        ("float32", 2e-4, 1, False),
        ("float16", 0.02, -1, False),
        ("float64", -1e-9, 1, False),
    ],
)
@pytest.mark.parametrize("number", [1, 2])
def test_a_small_gamma(dtype, gamma, beta, works, number):
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, inplace=True, prefix="small_")
    layer.initialize(ctx=contexts(number))
    layer.cast(dtype)
    arrays = [nd.random.normal(shape=(4, 3, 9), ctx=c).astype(dtype) for c in contexts(number)]

    def step() -> None:
        with autograd.record():
            outs = [layer(x) for x in arrays]
        autograd.backward(outs)
        mx.nd.waitall()
        for gradient in layer.gamma.list_grad():
            assert np.isfinite(gradient.asnumpy()).all()

    layer.gamma.set_data(nd.array([1, gamma, 1]))
    layer.beta.set_data(nd.array([5, beta, 0]))
    if works:
        step()
        return
    message = r"SyncBatchNorm 'small'.* channel 1 has gamma .* and beta .* should be above"
    with pytest.raises(mx.base.MXNetError, match=message):
        step()
    assert np.isfinite(layer(arrays[0]).asnumpy()).all(), "inference needs no inverse"
    layer.gamma.set_data(nd.ones(3))
    step()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"activation": "relu"}, r"inverted .* but activation='relu'"),
        ({"activation": "elu", "alpha": 0}, r"inverted .* but activation='elu' with alpha=0"),
    ],
)
def test_activations_that_do_not_invert(arguments, message):
    with pytest.raises(ValueError, match=r"syncbatchnorm\d+: inplace=True takes .*" + message):
        gluon_syncbn.SyncBatchNorm(inplace=True, **arguments)
    attributes = {"relu": {"act_type": "relu"}, "elu": {"act_type": "elu", "slope": 0}}
    with pytest.raises(mx.base.MXNetError, match="inplace=True takes an activation that can be"):
        mx.sym.Custom(
            mx.sym.var("x"),
            op_type="SyncBatchNorm",
            inplace=True,
            **attributes[arguments["activation"]],
        )


@only_1
def test_plain_operators_have_no_such_attribute():
    symbol = gluon_syncbn.SyncBatchNorm(num_devices=1, inplace=True)(mx.sym.var("data"))
    assert '"inplace": "True"' in symbol.tojson()
    assert "inplace" not in gluon_syncbn.to_batchnorm(symbol).tojson()


def test_no_shortcut():
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, inplace=True)
    layer.initialize()
    x = nd.ones((2, 3, 4))
    with pytest.raises(ValueError, match=r"inplace=True and a shortcut exclude each other"):
        layer(x, x)
    with pytest.raises(mx.base.MXNetError, match="inplace=True and shortcut=True exclude"):
        mx.sym.Custom(mx.sym.var("x"), op_type="SyncBatchNorm", inplace=True, shortcut=True)
