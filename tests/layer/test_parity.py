"""K devices give what one device gives on the whole batch."""

from __future__ import annotations

import itertools

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gluon

from tests.conftest import contexts, examples
from tests.support.either_mxnet import nd, only_1
from tests.support.layers import (
    Options,
    add_shortcut,
    avoid_kinks,
    check,
    expect,
    make_batch,
    run,
)
from tests.support.oracle import relative_error

TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 1e-5}
# Output and input gradient are rounded to the dtype of the data.
OUT_TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 1e-3}


@st.composite
def batches(draw: st.DrawFn):
    shards = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    ndim = draw(st.integers(2, 5))
    axis = draw(st.integers(-ndim, ndim - 1))
    shape = [draw(st.integers(1, 9 if ndim < 4 else 5)) for _ in range(ndim)]
    if draw(st.booleans()):  # a run long enough for the vectorized path
        shape[-1] = draw(st.sampled_from([16, 17, 33, 49]))
    shape[1 if axis % ndim == 0 else 0] = sum(shards)
    dtype = draw(st.sampled_from(["float32", "float64", "float16"]))
    seed = draw(st.integers(0, 2**32 - 1))
    return make_batch(np.random.default_rng(seed), tuple(shape), shards, axis, dtype), dtype


@st.composite
def steps(draw: st.DrawFn, inplace: bool = False):
    """A batch, the options of a step, and the dtype of the data."""
    batch, dtype = draw(batches())
    requests = draw(st.tuples(*[st.sampled_from(["write", "add", "null"])] * 4))
    if all(request == "null" for request in requests[:3]):
        requests = ("write", "null", "null", requests[3])
    act_types, slopes = [None, "leaky", "elu"], [0.01, 0.25, 1.0, 3.0]
    if not inplace:  # The slope need not be invertible, so it may be 0.
        act_types, slopes = [*act_types, None, "relu"], [0.0, *slopes]
    options = Options(
        eps=draw(st.sampled_from([1e-5, 1e-3, 0.1])),
        momentum=draw(st.sampled_from([0.0, 0.9, 0.99, 1.0])),
        fix_gamma=draw(st.booleans()),
        use_global_stats=draw(st.sampled_from([False, False, True])),
        train_mode=draw(st.sampled_from([True, True, False])),
        grad_req=dict(zip(("data", "gamma", "beta", "shortcut"), requests)),
        before=1.0 if "add" in requests else 0.0,
        act_type=draw(st.sampled_from(act_types)),
        slope=draw(st.sampled_from(slopes)),
        inplace=inplace,
    )
    if not inplace and draw(st.booleans()):
        add_shortcut(np.random.default_rng(batch.x.size), batch)
    return batch, options, dtype


@examples(500)
@given(step=steps())
def test_any_step_matches_the_oracle(step):
    batch, options, dtype = step
    tolerance, out_tolerance = TOLERANCE[dtype], OUT_TOLERANCE[dtype]
    if batch.shortcut is not None and dtype == "float16" and options.act_type == "elu":
        tolerance = out_tolerance  # the output in half precision tells the gradient
    if options.act_type is not None:
        avoid_kinks(batch, options)
    check(batch, options, tolerance, out_tolerance)


@pytest.mark.parametrize("mean", [0, 10, 100, 1e3, 1e4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [1, -1])
def test_data_far_from_zero(mean, dtype, axis):
    shape = (8, 6, 30, 31) if axis == 1 else (8, 30, 31, 6)
    batch = make_batch(np.random.default_rng(1), shape, (3, 1, 4), axis, dtype, mean)
    check(batch, Options(), 1e-5 if dtype == "float32" else 1e-10)


@pytest.mark.parametrize(
    ("channels", "spatial"),
    [
        *itertools.product([1, 3, 65, 2048], [(1, 1), (1, 7), (7, 7)]),
        *itertools.product([1, 3], [(60, 60), (119, 119)]),
    ],
)
def test_shapes_of_networks(channels, spatial):
    batch = make_batch(np.random.default_rng(3), (8, channels, *spatial), (4, 4))
    check(batch, Options(), 1e-5)


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


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_stay_in_their_channel(value):
    batch = make_batch(np.random.default_rng(4), (4, 3, 5, 5), (2, 2))
    batch.x[3, 1, 2, 2] = value
    result = run(batch, Options())
    assert np.isnan(result.out[:, 1]).all(), "every device of the round sees it"
    assert np.isfinite(result.out[:, [0, 2]]).all()
    assert np.isfinite(result.dx[:, [0, 2]]).all()
    for statistics in (*result.running_mean, *result.running_var):
        assert not np.isfinite(statistics[1])
        assert np.isfinite(statistics[[0, 2]]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["data", "running mean"])
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize(
    "options",
    [
        Options(use_global_stats=True),
        Options(train_mode=False),
        Options(use_global_stats=True, inplace=True),
        *(Options(use_global_stats=True, act_type=each) for each in ("relu", "leaky", "elu")),
    ],
    ids=["global", "recorded in inference", "inplace", "relu", "leaky", "elu"],
)
def test_gradients_of_running_statistics_stay_finite(options, axis, where, value):
    """As in BatchNorm: the input's gradient is dz * gamma / sqrt(variance + epsilon)."""
    shape = (4, 3, 5, 7) if axis == 1 else (4, 5, 7, 3)
    batch = make_batch(np.random.default_rng(6), shape, (2, 2), axis)
    batch.gamma = abs(batch.gamma) + 0.1
    if options.act_type is not None:
        avoid_kinks(batch, options)
    expected = np.moveaxis(expect(batch, options).dx, axis, 1)
    steepness = {None: 1, "relu": 0, "elu": 0, "leaky": options.slope}[options.act_type]
    if where == "data":
        spoiled, dy = (np.moveaxis(each, axis, 1)[3, 1, 2] for each in (batch.x, batch.dy))
        spoiled[:2], dy[1] = value, 0
        factor = batch.gamma / np.sqrt(batch.running_var + options.eps)
        expected[3, 1, 2, :2] = factor[1] * dy[:2] * (1 if value > 0 else steepness)
    elif options.act_type is None:
        batch.running_mean[1] = value
    else:
        pytest.skip("the activation depends on the mean")
    dx = np.moveaxis(run(batch, options).dx, axis, 1)
    if np.isnan(value) and options.act_type == "elu":  # whose derivative at NaN is NaN
        assert np.isnan(dx[3, 1, 2, :2]).all()
        dx[3, 1, 2, :2] = expected[3, 1, 2, :2]
    assert relative_error(dx, expected) < 1e-5


@pytest.mark.parametrize(
    ("scale", "is_right"),
    [
        (1e-20, True),
        # MXNet 2 takes denormal numbers for 0.
        pytest.param(1e-38, True, marks=only_1),
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
    exact = (x.astype(float) - x.astype(float).mean()) / x.astype(float).std()
    expected = exact if is_right else np.sign(exact) * np.inf
    np.testing.assert_allclose(out, expected, rtol=1e-5)


def test_the_same_bits_every_time():
    batch = make_batch(np.random.default_rng(5), (8, 5, 33, 33), (1, 2, 2, 3))
    first = run(batch, Options())
    for _ in range(5):
        again = run(batch, Options())
        assert again.out.tobytes() == first.out.tobytes()
        assert again.dx.tobytes() == first.dx.tobytes()
        assert again.running_var[0].tobytes() == first.running_var[0].tobytes()
