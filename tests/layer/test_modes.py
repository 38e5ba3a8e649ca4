"""However a network is called, its devices meet and compute the same."""

from __future__ import annotations

import functools

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import HybridBlock, nd
from tests.support.oracle import relative_error

MODES = {
    "imperative": {"active": False},
    "hybridized": {},
    "static_alloc": {"static_alloc": True},
    "static_shape": {"static_alloc": True, "static_shape": True},
}


class Branches(HybridBlock):
    """Parallel branches of different depth, as in ASPP and PSP heads."""

    def __init__(self, norm, number: int = 5, channels: int = 4) -> None:
        super().__init__()
        with self.name_scope():
            self.branches = nn.HybridSequential()
            for depth in range(1, number + 1):
                branch = nn.HybridSequential()
                for _ in range(depth):
                    branch.add(nn.Conv2D(channels, 3, padding=1, use_bias=False))
                    branch.add(norm())
                    branch.add(nn.Activation("relu"))
                self.branches.add(branch)

    def hybrid_forward(self, F, x):
        # The deepest first, so that the order of calls is not the order of arrival.
        return F.concat(*[branch(x) for branch in reversed(list(self.branches))], dim=1)


class Shared(HybridBlock):
    """One layer used three times in a forward, twice of it in independent branches."""

    def __init__(self, norm) -> None:
        super().__init__()
        with self.name_scope():
            self.first = nn.Conv2D(4, 3, padding=1)
            self.second = nn.Conv2D(4, 1)
            self.norm = norm()

    def hybrid_forward(self, F, x):
        deep = self.norm(self.first(x))
        shallow = self.norm(self.second(x) * 3 + 1)
        return self.norm(F.tanh(deep) + shallow)


class Training:
    """A network in training on `number` devices, with fixed data.

    MXNet's BatchNorm runs on a CPU also where the others have GPUs: there it is cuDNN's, which
    divides running variances by n - 1.
    """

    def __init__(self, make_net, number: int, mode: str, norm, size: int = 8) -> None:
        self.ctx = [mx.cpu(0)] if norm is nn.BatchNorm else contexts(number)
        self.net = make_net(norm)
        self.net.initialize(mx.init.Zero(), ctx=self.ctx)
        rng = np.random.default_rng(7)
        self.x = nd.array(rng.standard_normal((size, 3, 9, 9)))
        self.weight = nd.array(rng.standard_normal((size, 1, 9, 9)))
        self.net(self.x[:1].as_in_context(self.ctx[0]))
        for _, parameter in sorted(self.net._collect_params_with_prefix().items()):
            if parameter.grad_req != "null":
                parameter.set_data(nd.array(rng.standard_normal(parameter.shape) * 0.5))
        self.net.hybridize(**MODES[mode])
        self.trainer = gluon.Trainer(self.net.collect_params(), "sgd", {"learning_rate": 0.05})

    def step(self) -> float:
        xs = gluon.utils.split_and_load(self.x, self.ctx, even_split=False)
        weights = gluon.utils.split_and_load(self.weight, self.ctx, even_split=False)
        with autograd.record():
            losses = [((self.net(x) * w) ** 2).sum() for x, w in zip(xs, weights)]
        autograd.backward(losses)
        if not self.trainer._kv_initialized:
            # The trainer's first step copies all parameters of device 0 to the others, running
            # statistics too, and in a static_shape graph MXNet does not let it wait for them.
            mx.nd.waitall()
        self.trainer.step(self.x.size)
        return sum(loss.asnumpy().item() for loss in losses)

    def parameters(self) -> dict[str, np.ndarray]:
        parameters = self.net._collect_params_with_prefix()
        for parameter in parameters.values():
            values = [value.asnumpy().tobytes() for value in parameter.list_data()]
            assert len(set(values)) == 1, f"{parameter.name} differs between devices"
        return {name: p.list_data()[0].asnumpy() for name, p in parameters.items()}


def assert_same_training(one: Training, many: Training, steps: int, tolerance: float) -> None:
    for _ in range(steps):
        assert many.step() == pytest.approx(one.step(), rel=tolerance)
    expected, actual = one.parameters(), many.parameters()
    assert expected.keys() == actual.keys()
    for name in expected:
        assert relative_error(actual[name], expected[name]) < 10 * tolerance, name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_layer_called_three_times(mode, number):
    """K devices follow one device.

    MXNet's BatchNorm updates running statistics in backward, hence in reverse order, so that only
    the rest is compared with it. A static_shape graph has no order between the branches
    (docs/limits.md), so there the layer averages over all batches, for which any order is right.
    """
    momentum = None if mode == "static_shape" else 0.9
    norm = functools.partial(gluon_syncbn.SyncBatchNorm, momentum=momentum)
    one = Training(Shared, 1, "imperative", norm)
    plain = Training(Shared, 1, "imperative", nn.BatchNorm)
    many = Training(Shared, number, mode, norm)
    assert_same_training(one, many, steps=5, tolerance=1e-4)
    for _ in range(5):
        plain.step()
    assert many.step() == pytest.approx(plain.step(), rel=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_five_branches_on_four_contexts(mode):
    one = Training(Branches, 1, "imperative", nn.BatchNorm)
    many = Training(Branches, 4, mode, gluon_syncbn.SyncBatchNorm)
    assert_same_training(one, many, steps=3, tolerance=1e-4)
    for _ in range(37):  # whether devices ever wait for each other for good
        many.step()
    assert all(np.isfinite(value).all() for value in many.parameters().values())


class Pair:
    """Training in which the network is called twice before backward, on two parts of the batch."""

    def __init__(self, norm, number: int, mode: str) -> None:
        self.training = Training(Shared, number, mode, norm)

    def step(self) -> float:
        training = self.training
        halves = [
            gluon.utils.split_and_load(half, training.ctx, even_split=False)
            for half in (training.x[:5], training.x[5:] * 3)
        ]
        with autograd.record():
            # All devices see the first half first, but the second may get ahead of it.
            losses = [
                (training.net(first) ** 2).sum() + (training.net(second) ** 4).sum()
                for first, second in zip(*halves)
            ]
        autograd.backward(losses)
        training.trainer.step(training.x.size)
        return sum(loss.asnumpy().item() for loss in losses)


@pytest.mark.parametrize("mode", ["imperative", "hybridized", "static_alloc"])
def test_a_network_called_twice_before_backward(mode):
    one = Pair(gluon_syncbn.SyncBatchNorm, 1, "imperative")
    many = Pair(gluon_syncbn.SyncBatchNorm, 3, mode)
    for _ in range(20):
        assert many.step() == pytest.approx(one.step(), rel=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_several_backward_passes_through_one_forward(mode):
    ctx = contexts(2)
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=ctx)
    layer.hybridize(**MODES[mode])
    rng = np.random.default_rng(8)
    xs = [nd.array(rng.standard_normal((2, 3, 5)), ctx=c) for c in ctx]
    for x in xs:
        x.attach_grad()
    with autograd.record():
        losses = [(layer(x) ** 3).sum() for x in xs]
    autograd.backward(losses, retain_graph=True)
    first = [x.grad.asnumpy() for x in xs]
    for x in xs:
        x.grad[:] = 0
    autograd.backward(losses)
    for before, x in zip(first, xs):
        assert np.abs(before).max() > 0
        np.testing.assert_array_equal(x.grad.asnumpy(), before)
