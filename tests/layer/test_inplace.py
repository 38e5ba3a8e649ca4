"""A layer that works in place gives what it gives otherwise, without keeping its input."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from mxnet import autograd
from mxnet.gluon import nn

from tests.conftest import contexts, examples
from tests.layer.test_activation import require_same_training
from tests.layer.test_modes import MODES
from tests.layer.test_parity import steps
from tests.support.either_mxnet import HybridBlock, nd, only_1
from tests.support.layers import Batch, Options, avoid_kinks, check, make_batch, run

# Arguments of the layer.
INVERTIBLE = {
    "none": {},
    "leaky": {"activation": "leaky_relu"},
    "leaky 3": {"activation": "leaky_relu", "alpha": 3},
    "elu": {"activation": "elu"},
    "elu 0.5": {"activation": "elu", "alpha": 0.5},
}


def keep_gamma_from_zero(batch: Batch) -> None:
    sign = np.where(batch.gamma < 0, -1, 1)
    batch.gamma = (sign * np.maximum(np.abs(batch.gamma), 0.5)).astype(batch.gamma.dtype)


@examples(300)
@given(step=steps(inplace=True))
def test_any_step_matches_the_oracle(step):
    batch, options, dtype = step
    keep_gamma_from_zero(batch)
    if options.act_type is not None:
        avoid_kinks(batch, options)
    # The rounding of the output is in all gradients, and grows by |beta / gamma|.
    check(batch, options, {"float32": 3e-5, "float64": 1e-11, "float16": 3e-2}[dtype])


class Chain(HybridBlock):
    """Two convolutions and norms; the input of the first norm is read by others too."""

    def __init__(self, kind: str, inplace: bool) -> None:
        super().__init__()
        options = {**INVERTIBLE[kind], "inplace": inplace}
        with self.name_scope():
            self.first = nn.Conv2D(4, 3, padding=1, use_bias=False, in_channels=3)
            self.norm1 = gluon_syncbn.SyncBatchNorm(in_channels=4, **options)
            self.second = nn.Conv2D(4, 3, padding=1, use_bias=False, in_channels=4)
            self.norm2 = gluon_syncbn.SyncBatchNorm(in_channels=4, **options)

    def hybrid_forward(self, F, x):
        x = self.first(x)
        return self.norm2(self.second(self.norm1(x))) * F.tanh(x)


@pytest.mark.parametrize("kind", INVERTIBLE)
@pytest.mark.parametrize("mode", MODES)
def test_training_equals_that_not_in_place(kind, mode):
    """In double precision, on uneven shards, with what a checkpoint holds meaning the same."""
    require_same_training(Chain(kind, inplace=False), Chain(kind, inplace=True), mode)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("act_type", [None, "leaky", "elu"])
def test_the_output_has_the_same_bits(dtype, act_type):
    batch = make_batch(np.random.default_rng(1), (6, 5, 33), (2, 4), dtype=dtype)
    keep_gamma_from_zero(batch)
    outs = [run(batch, Options(act_type=act_type, inplace=i)).out for i in (False, True)]
    assert outs[0].tobytes() == outs[1].tobytes()


@pytest.mark.parametrize(
    ("dtype", "gamma", "beta", "works"),
    [
        ("float32", 0, 0, False),
        ("float32", 1e-20, 0, True),  # a small output has all its digits
        ("float32", -3e-4, 1, True),
        ("float32", 2e-4, 1, False),
        ("float16", 0.03, 1, True),
        ("float16", 0.02, -1, False),
        ("float16", 1e-6, 0, False),
        ("float64", 1e-6, 1, True),
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
    message = r"SyncBatchNorm 'small_\w+'.* channel 1 has gamma .* and beta .* should be above"
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
