"""K devices give what one device gives on the whole batch."""

from __future__ import annotations

import dataclasses

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gluon

from tests.conftest import DEVICE, contexts, examples
from tests.support.either_mxnet import IS_2, nd, numpy_interface, only_1
from tests.support.oracle import normalize
from tests.support.step import MODES, avoid_kinks, check, make_case

TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 1e-5}
# Output and input gradient are rounded to the dtype of the data.
OUT_TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 1e-3}
# In place, the rounding of the output is in all gradients, and grows by |beta / gamma|.
INPLACE_TOLERANCE = {"float32": 3e-5, "float64": 1e-11, "float16": 3e-2}


@st.composite
def cases(draw: st.DrawFn, inplace: bool):
    shards = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    ndim = draw(st.integers(2, 5))
    axis = draw(st.integers(-ndim, ndim - 1))
    shape = [draw(st.integers(1, 9 if ndim < 4 else 5)) for _ in range(ndim)]
    if draw(st.booleans()):  # a run long enough for the vectorized path
        shape[-1] = draw(st.sampled_from([16, 17, 33, 49]))
    shape[1 if axis % ndim == 0 else 0] = sum(shards)
    dtype = draw(st.sampled_from(["float32", "float64", "float16"]))
    requests = draw(st.tuples(*[st.sampled_from(["write", "add", "null"])] * 4))
    if all(request == "null" for request in requests[:3]):
        requests = ("write", "null", "null", requests[3])
    activations, alphas = [None, "leaky_relu", "elu"], [0.01, 0.25, 1.0, 3.0]
    if not inplace:  # The alpha need not be invertible, so it may be 0.
        activations, alphas = [*activations, None, "relu"], [0.0, *alphas]
    options = {
        "axis": axis,
        "epsilon": draw(st.sampled_from([1e-5, 1e-3, 0.1])),
        "momentum": draw(st.sampled_from([0.0, 0.9, 0.99, 1.0])),
        "scale": draw(st.booleans()),
        "use_global_stats": draw(st.sampled_from([False, False, True])),
        "activation": draw(st.sampled_from(activations)),
        "inplace": inplace,
    }
    if options["activation"] in ("leaky_relu", "elu"):
        options["alpha"] = draw(st.sampled_from(alphas))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    case = make_case(rng, tuple(shape), shards, dtype, **options)
    if not inplace and draw(st.booleans()):
        case.shortcut = rng.standard_normal(case.x.shape).astype(dtype)
    if inplace:
        sign = np.where(case.gamma < 0, -1, 1)
        case.gamma = (sign * np.maximum(np.abs(case.gamma), 0.5)).astype(case.gamma.dtype)
    case.train_mode = draw(st.sampled_from([True, True, False]))
    case.grad_req = dict(zip(("x", "gamma", "beta", "shortcut"), requests))
    case.before = 1.0 if "add" in requests else 0.0
    return case


# Whether arrays are of mx.np: MXNet 2 has no others, and the fake CUDA has none of them.
NUMPY = st.booleans() if not IS_2 and DEVICE == "cpu" else st.just(IS_2)


@examples(500)
@given(case=cases(inplace=False), mode=st.sampled_from(sorted(MODES)), numpy=NUMPY)
def test_any_step_matches_the_oracle(case, mode, numpy):
    dtype, activation = case.x.dtype.name, case.options["activation"]
    tolerance, out_tolerance = TOLERANCE[dtype], OUT_TOLERANCE[dtype]
    if case.shortcut is not None and dtype == "float16" and activation == "elu":
        tolerance = out_tolerance  # the output in half precision determines the gradient
    if activation is not None:
        avoid_kinks(case)
    with numpy_interface(numpy):
        check(case, contexts(len(case.shards)), tolerance, out_tolerance, mode)


@examples(300)
@given(case=cases(inplace=True), mode=st.sampled_from(sorted(MODES)))
def test_any_step_in_place_matches_the_oracle(case, mode):
    if case.options["activation"] is not None:
        avoid_kinks(case)
    tolerance = INPLACE_TOLERANCE[case.x.dtype.name]
    inplace = check(case, contexts(len(case.shards)), tolerance, mode=mode)
    case = dataclasses.replace(case, options={**case.options, "inplace": False})
    for ours, theirs in zip(
        inplace.batch["out"], check(case, contexts(len(case.shards)), 1).batch["out"]
    ):
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": None}, {"axis": -1}, {"activation": "leaky_relu", "inplace": True}],
    ids=str,
)
@pytest.mark.parametrize("number", [2, 8])
def test_several_steps_of_a_layer(number, options, mode):
    """On shards of different size, with data far from 0."""
    shards = tuple(1 + i % 3 for i in range(number))
    case = make_case(
        np.random.default_rng(number), (sum(shards), 6, 3, 6), shards, mean=100, **options
    )
    check(case, contexts(number), mode=mode, steps=1 if "momentum" in options else 3)


def test_published_numbers():
    """Two devices with three 1s and three 2s."""
    ctx = contexts(2)
    layer = gluon_syncbn.SyncBatchNorm(epsilon=1e-3, momentum=0.9)
    layer.initialize(ctx=ctx)
    with mx.autograd.record():
        outs = [layer(nd.full((3, 1), value, ctx=c)) for value, c in zip((1, 2), ctx)]
    np.testing.assert_allclose(outs[0].asnumpy(), np.full((3, 1), -0.998006), rtol=1e-6)
    np.testing.assert_allclose(outs[1].asnumpy(), np.full((3, 1), 0.998006), rtol=1e-6)
    for c in ctx:
        np.testing.assert_allclose(layer.running_mean.data(c).asnumpy(), [0.15], rtol=1e-6)
        np.testing.assert_allclose(layer.running_var.data(c).asnumpy(), [0.925], rtol=1e-6)


@pytest.mark.parametrize(
    ("scale", "is_right"),
    [
        (1e-20, True),
        # MXNet 2 takes denormal numbers for 0. GPUs sum the squares in float32.
        pytest.param(1e-38, DEVICE == "cpu", marks=only_1),
        pytest.param(1e-40, False, marks=only_1),
    ],
)
def test_epsilon_of_zero(scale, is_right):
    """1 / sqrt(variance) has to be a float32."""
    x = np.array([[1.0], [-1.0], [2.0], [-2.5]], np.float32) * np.float32(scale)
    layer = gluon_syncbn.SyncBatchNorm(in_channels=1, epsilon=0)
    layer.initialize(ctx=contexts(2))
    with mx.autograd.record():
        shards = gluon.utils.split_and_load(nd.array(x), contexts(2))
        outs = [layer(shard) for shard in shards]
    out = np.concatenate([each.asnumpy() for each in outs])
    exact = normalize(x, eps=0)
    expected = exact if is_right else np.sign(exact) * np.inf
    np.testing.assert_allclose(out, expected, rtol=1e-5)
