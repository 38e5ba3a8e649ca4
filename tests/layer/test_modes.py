"""However a network is called, its devices meet and compute the same."""

from __future__ import annotations

import functools

import gluon_syncbn
import numpy as np
import pytest
from mxnet import autograd

from tests.conftest import contexts
from tests.support.either_mxnet import nd
from tests.support.networks import Branches, Shared, make_batch, residual
from tests.support.step import MODES, compare, make_case, make_layer
from tests.support.training import on_one, require_same_training, training


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("number", "momentum"), [(1, 0.9), (4, None)])
def test_a_layer_called_three_times(number, momentum, mode):
    """K devices follow one device.

    MXNet's BatchNorm updates running statistics in backward, hence in reverse order, so that only
    the rest is compared with it. A static_shape graph has no order between the branches
    (docs/limits.md), so there the layer averages over all batches, for which any order is right.
    """
    momentum = None if mode == "static_shape" else momentum
    norm = functools.partial(gluon_syncbn.SyncBatchNorm, momentum=momentum)
    case = make_batch(number)
    values, expected = on_one(Shared, case, 5, norm)
    found = training(Shared(norm), contexts(number), case, mode, values)(5)
    compare(found, expected, 1e-9)
    values.pop("norm_num_batches_tracked", None)
    _, plain = on_one(Shared, case, 5)
    plain.running = {n: v for n, v in plain.running.items() if "running" not in n}
    compare(found, plain, 1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_five_branches_on_four_contexts(mode):
    case = make_batch(4)
    values, expected = on_one(Branches, case, 3)
    steps = training(Branches(gluon_syncbn.SyncBatchNorm), contexts(4), case, mode, values)
    compare(steps(3), expected, 1e-9, running=1e-6)  # BatchNorm has its momentum in float32
    found = steps(37)  # whether devices ever wait for each other for good
    assert all(np.isfinite(value).all() for value, *_ in found.running.values())


@pytest.mark.parametrize("mode", MODES)
def test_activations_and_a_shortcut_in_the_norm(mode):
    """One norm works in place, and others read its input too."""
    require_same_training(functools.partial(residual, fused=True), 3, mode, alone=residual)


@pytest.mark.parametrize("mode", ["imperative", "hybridized", "static_alloc"])
def test_a_network_called_twice_before_backward(mode):
    """All devices begin with the same call, but the second may get ahead of it."""
    require_same_training(Shared, 3, mode, steps=10, call=lambda net, x, _: net(x) + net(x * 3) * 2)


@pytest.mark.parametrize("mode", MODES)
def test_several_backward_passes_through_one_forward(mode):
    case = make_case(np.random.default_rng(8), (4, 3, 5), (2, 2))
    layer = make_layer(case, contexts(2), mode)
    xs = [nd.array(part, ctx=c) for part, c in zip(np.split(case.x, 2), contexts(2))]
    for x in xs:
        x.attach_grad()
    with autograd.record():
        outs = [layer(x) for x in xs]
    autograd.backward(outs, [x * x for x in xs], retain_graph=True)
    first = [x.grad.asnumpy() for x in xs]
    for x in xs:
        x.grad[:] = 0
    autograd.backward(outs, [x * x for x in xs])
    for before, x in zip(first, xs):
        assert np.abs(before).max() > 0
        np.testing.assert_array_equal(x.grad.asnumpy(), before)
