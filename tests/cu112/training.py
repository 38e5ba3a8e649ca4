"""Networks of elementwise functions and synchronized norms, on several contexts and on one."""

from __future__ import annotations

from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.support.layers import Options, check, make_batch

from ..conftest import contexts

CHANNELS = 5
EACH = 2  # samples of every device


class Branches(nn.HybridBlock):
    """Five branches of different depth, which devices run in orders of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = []
        for i in range(5):
            branch = nn.HybridSequential()
            for _ in range(1 + i % 3):
                branch.add(gluon_syncbn.SyncBatchNorm(in_channels=CHANNELS, epsilon=1e-2))
                branch.add(nn.HybridLambda(lambda F, x: F.square(x) - x))
            self.register_child(branch)
            self.branches.append(branch)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.add_n(*[branch(x) for branch in self.branches])


class Twice(nn.HybridBlock):
    """One layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = gluon_syncbn.SyncBatchNorm(in_channels=CHANNELS, epsilon=1e-2)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.norm(F.square(self.norm(x)))


def train(
    kind: type,
    parts: int,
    steps: int,
    mode: dict[str, bool] | None,
    optimizer: str,
    samples: int,
) -> dict[str, np.ndarray]:
    """Parameters after training, on `parts` contexts that share each batch of `samples`."""
    net = kind()
    ctx = contexts(parts)
    net.initialize(ctx=ctx)
    net.cast("float64")
    if mode is not None:
        net.hybridize(**mode)
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.01})
    rng = np.random.default_rng(0)
    for _ in range(steps):
        batch = rng.standard_normal((samples, CHANNELS, 3, 2))
        shards = gluon.utils.split_and_load(mx.nd.array(batch, dtype="float64"), ctx)
        with autograd.record():
            outs = [net(shard) for shard in shards]
            losses = [(out * out).sum() for out in outs]
        autograd.backward(losses)
        trainer.step(samples)
        del outs, losses  # MXNet uses their memory again while devices still work
    values = {}
    for name, parameter in net._collect_params_with_prefix().items():
        first, *others = [array.asnumpy() for array in parameter.list_data()]
        for other in others:
            np.testing.assert_allclose(other, first, rtol=1e-9, atol=1e-12, err_msg=name)
        values[name] = first
    return values


def compare(
    kind: type = Branches,
    parts: int = 4,
    steps: int = 5,
    mode: dict[str, bool] | None = None,
    optimizer: str = "sgd",
) -> None:
    """Several contexts end where one ends that has the whole batch."""
    ours = train(kind, parts, steps, mode, optimizer, parts * EACH)
    expected = train(kind, 1, steps, mode, optimizer, parts * EACH)
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-7, atol=1e-9, err_msg=name)


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
