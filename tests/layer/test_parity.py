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
from tests.support.step import MODES, Case, avoid_kinks, check_step, make_case, make_layer

# Of statistics and gradients of parameters. Output and input gradient are rounded to the dtype of
# the data. In place, the rounding of the output is in all gradients, and grows by |beta / gamma|.
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 1e-5}
OUT_TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 1e-3}
INPLACE_TOLERANCE = {"float32": 3e-5, "float64": 1e-11, "float16": 3e-2}

GROUPS = {1: [1], 2: [1, 2], 3: [1, 3], 4: [1, 2, 4]}  # sizes that divide a number of devices
# Whether arrays are of mx.np: MXNet 2 has no others, and the fake CUDA has none of them.
NUMPY = st.booleans() if not IS_2 and DEVICE == "cpu" else st.just(IS_2)


@st.composite
def training(draw: st.DrawFn) -> tuple[list[Case], list[mx.Context]]:
    """Steps of a layer on its contexts, which are in any order."""
    ctx = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True))
    number = len(ctx)
    sizes = st.lists(st.integers(0, 5), min_size=number, max_size=number)
    steps = draw(st.lists(sizes.map(tuple), min_size=1, max_size=3))
    ndim = draw(st.integers(2, 5))
    axis = draw(st.integers(-ndim, ndim - 1))
    shape = [draw(st.integers(1, 9 if ndim < 4 else 5)) for _ in range(ndim)]
    if draw(st.booleans()):  # a run long enough for the vectorized path
        shape[-1] = draw(st.sampled_from([16, 17, 33, 49]))
    shape[1 if axis % ndim == 0 else 0] = sum(steps[0])
    dtype = draw(st.sampled_from(["float32", "float64", "float16"]))
    requests = draw(st.tuples(*[st.sampled_from(["write", "add", "null"])] * 4))
    if all(request == "null" for request in requests[:3]):
        requests = ("write", "null", "null", requests[3])
    inplace = draw(st.booleans())
    activations, alphas = [None, "leaky_relu", "elu"], [0.01, 0.25, 1.0, 3.0]
    if not inplace:  # The alpha need not be invertible, so it may be 0.
        activations, alphas = [*activations, None, "relu"], [0.0, *alphas]
    options = {
        "axis": axis,
        "epsilon": draw(st.sampled_from([1e-5, 1e-3, 0.1])),
        "momentum": draw(st.sampled_from([None, 0.0, 0.9, 0.99, 1.0])),
        "scale": draw(st.booleans()),
        "use_global_stats": draw(st.sampled_from([False, False, True])),
        "sync_group_size": draw(st.sampled_from([None, *GROUPS[number]])),
        "activation": draw(st.sampled_from(activations)),
        "inplace": inplace,
    }
    if options["activation"] in ("leaky_relu", "elu"):
        options["alpha"] = draw(st.sampled_from(alphas))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    case = make_case(rng, tuple(shape), steps[0], dtype, **options)
    if inplace:
        sign = np.where(case.gamma < 0, -1, 1)
        case.gamma = (sign * np.maximum(np.abs(case.gamma), 0.5)).astype(case.gamma.dtype)
    elif draw(st.booleans()):
        case.shortcut = rng.standard_normal(case.x.shape).astype(dtype)
    case.train_mode = draw(st.sampled_from([True, True, False]))
    case.grad_req = dict(zip(("x", "gamma", "beta", "shortcut"), requests))
    case.before = 1.0 if "add" in requests else 0.0
    cases = [case, *(case.another(rng, shards) for shards in steps[1:])]
    return cases, [mx.Context(DEVICE, i) for i in ctx]


def check_steps(cases: list[Case], ctx: list[mx.Context], mode: str) -> None:
    """Compare steps with the oracle; in place, outputs have the bits of a layer that is not."""
    first, options = cases[0], cases[0].options
    dtype, activation = first.x.dtype.name, options.get("activation")
    running, out = TOLERANCE[dtype], OUT_TOLERANCE[dtype]
    # With elu and a shortcut, the output in half precision determines the gradient.
    rounded = dtype == "float16" and activation == "elu" and first.shortcut is not None
    tolerance = out if rounded else running
    plain = dataclasses.replace(first, options={**options, "inplace": False})
    layer = make_layer(plain, ctx, mode)
    inplace = make_layer(first, ctx, mode) if options.get("inplace") else None
    for case in cases:
        if activation is not None:
            avoid_kinks(case)
        step = check_step(layer, case, ctx, tolerance, out, running)
        if inplace is not None:
            most = INPLACE_TOLERANCE[dtype]
            again = check_step(inplace, case, ctx, most, most, running)
            for ours, theirs in zip(again.batch["out"], step.batch["out"]):
                assert ours.tobytes() == theirs.tobytes()


@examples(500)
@given(training=training(), mode=st.sampled_from(sorted(MODES)), numpy=NUMPY)
def test_any_training_matches_the_oracle(training, mode, numpy):
    with numpy_interface(numpy):
        check_steps(*training, mode)


MANY = (1, 2, 3, 1, 2, 3, 1, 2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("steps", "options"),
    [
        ([MANY] * 3, {}),
        ([MANY] * 3, {"axis": -1}),
        ([MANY] * 3, {"activation": "leaky_relu", "inplace": True}),
        ([MANY, (2, 1) * 4, (3, 3) * 4], {"momentum": None}),
        ([(1, 2, 3, 2)] * 3, {"sync_group_size": 2}),
        ([(1, 1, 1), (1, 1, 0), (1, 1, 1), (0, 2, 0)], {}),
    ],
    ids=[
        "8 devices",
        "channels last",
        "in place",
        "average",
        "groups",
        "fewer images than devices",
    ],
)
def test_training_far_from_0(steps, options, mode):
    """The contexts are neither from 0 on nor in order."""
    rng = np.random.default_rng(0)
    case = make_case(rng, (sum(steps[0]), 6, 3, 6), steps[0], **options)
    cases = [case.another(rng, shards) for shards in steps]
    for each in cases:
        each.x += 100
    ctx = [mx.Context(DEVICE, i) for i in (5, 2, 0, 7, 1, 6, 3, 4)]
    check_steps(cases, ctx[: len(steps[0])], mode)


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
