"""Networks of elementwise functions and synchronized norms, on several contexts and on one."""

from __future__ import annotations

from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.support.either_mxnet import HybridBlock, nd
from tests.support.layers import Options, check, make_batch

from ..conftest import contexts

CHANNELS = 5
EACH = 2  # samples of every device


class Parabola(HybridBlock):
    """A layer without parameters."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.square(x) - x


class Branches(HybridBlock):
    """Five branches of different depth, which devices run in orders of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = []
        for i in range(5):
            branch = nn.HybridSequential()
            for _ in range(1 + i % 3):
                branch.add(gluon_syncbn.SyncBatchNorm(in_channels=CHANNELS, epsilon=1e-2))
                branch.add(Parabola())
            self.register_child(branch)
            self.branches.append(branch)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.add_n(*[branch(x) for branch in self.branches])


class Twice(HybridBlock):
    """One layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = gluon_syncbn.SyncBatchNorm(in_channels=CHANNELS, epsilon=1e-2)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.norm(F.square(self.norm(x)))


class Fused(HybridBlock):
    """Activations and a shortcut that the layers compute themselves, the first one in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = gluon_syncbn.SyncBatchNorm(
            in_channels=CHANNELS, activation="leaky_relu", alpha=0.25, inplace=True
        )
        self.second = gluon_syncbn.SyncBatchNorm(in_channels=CHANNELS, activation="relu")

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.second(self.first(x), x)


class Apart(HybridBlock):
    """The same by MXNet's activations."""

    def __init__(self) -> None:
        super().__init__()
        self.first = gluon_syncbn.SyncBatchNorm(in_channels=CHANNELS)
        self.second = gluon_syncbn.SyncBatchNorm(in_channels=CHANNELS)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.relu(self.second(F.LeakyReLU(self.first(x), slope=0.25)) + x)


def make(kind: type, ctx: list[mx.Context], dtype: str, mode: dict[str, bool] | None) -> Any:
    net = kind()
    net.initialize(ctx=ctx)
    net.cast(dtype)
    if mode is not None:
        net.hybridize(**mode)
    return net


def train(net: Any, ctx: list[mx.Context], steps: int, samples: int, dtype: str) -> None:
    """Steps towards small outputs, on contexts that share each batch of `samples`."""
    optimizer = {"learning_rate": 0.001, "momentum": 0.9}
    trainer = gluon.Trainer(net.collect_params(), "sgd", optimizer)
    rng = np.random.default_rng(0)
    for step in range(steps):
        batch = rng.standard_normal((samples, CHANNELS, 3, 2))
        shards = gluon.utils.split_and_load(nd.array(batch, dtype=dtype), ctx)
        with autograd.record():
            outs = [net(shard) for shard in shards]
        autograd.backward(outs, [2 * out for out in outs])  # as the sum of squares would
        if step == 0:
            nd.waitall()  # as docs/limits.md says of static_shape and Trainer
        trainer.step(samples)
        del outs  # MXNet uses their memory again while devices still work


def values(net: Any, tolerance: float) -> dict[str, np.ndarray]:
    """Parameters, which are the same on all contexts."""
    found = {}
    for name, parameter in net._collect_params_with_prefix().items():
        first, *others = [array.asnumpy() for array in parameter.list_data()]
        for other in others:
            np.testing.assert_allclose(other, first, tolerance / 100, tolerance / 1000, name)
        found[name] = first
    return found


def compare(
    kind: type = Branches,
    parts: int = 4,
    steps: int = 5,
    mode: dict[str, bool] | None = None,
    dtype: str = "float64",
    alone: type | None = None,
) -> None:
    """Several contexts end where one with the whole batch does, whose network may be `alone`."""
    tolerance = 1e-7 if dtype == "float64" else 1e-2
    ends = []
    for number, network in ((parts, kind), (1, alone or kind)):
        net = make(network, contexts(number), dtype, mode)
        train(net, contexts(number), steps, parts * EACH, dtype)
        ends.append(values(net, tolerance))
    ours, expected = ends
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name], value, tolerance, tolerance / 100, name)


def count_wrong(cases: int) -> int:
    """Of so many steps of one layer, how many do not give what the oracle gives."""
    wrong = 0
    for case in range(cases):
        rng = np.random.default_rng(case)
        shards = tuple(int(n) for n in rng.integers(1, 4, size=4))
        batch = make_batch(rng, (sum(shards), 6, 5, 5), shards)
        try:
            check(batch, Options(), 1e-5)
        except (AssertionError, mx.base.MXNetError):
            wrong += 1
    return wrong
