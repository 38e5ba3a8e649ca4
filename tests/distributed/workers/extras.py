"""Processes of which some call, copy, trace and export more than the others, without training."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.distributed.workers.equality import MODES
from tests.distributed.workers.job import bounds, close, contexts, init, report
from tests.support.oracle import batch_norm

CHANNELS = 3
STEPS = 3


class Twice(gluon.HybridBlock):
    """One layer, used twice, and in a part that is called by itself too."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.features = nn.HybridSequential()
            with self.features.name_scope():
                self.features.add(gluon_syncbn.SyncBatchNorm(in_channels=CHANNELS))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.features(x) + self.features(x * x)


def do_more(net: Any, step: int, folder: Path) -> Any:
    """Do what a first process does besides: a summary, validation, averages, a checkpoint."""
    x = mx.nd.ones((2, CHANNELS), ctx=contexts(1)[0], dtype="float64")
    if step == 0:
        net(mx.sym.var("data"))
    twin = copy.deepcopy(net) if step == 0 else None
    for called in filter(None, (twin, net, net.features)):
        called(x).wait_to_read()
    if net._active:
        net.export(str(folder / "checkpoint"))
        gluon_syncbn.fuse(net)(x).wait_to_read()
    return twin


def whole(x: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, ...]:
    """Output of the network, that of its features, and the gradient of both, of all processes."""
    ones, zeros = np.ones(CHANNELS), np.zeros(CHANNELS)
    one, two = (batch_norm(value, dy, ones, zeros, zeros, ones) for value in (x, x * x))
    return one.out + two.out, one.out, 2 * one.dx + two.dx * 2 * x


def main() -> None:
    folder = Path(sys.argv[1])
    rank, size = init(timeout=20)
    gluon_syncbn.init()
    for mode, options in MODES.items():
        net = Twice()
        ctx = contexts(2)
        net.initialize(ctx=ctx)
        net.cast("float64")
        kept = []
        if options is not None:
            net.hybridize(**options)
        mine, total = bounds(rank, size, 2)
        rng = np.random.default_rng(1)
        for step in range(STEPS):
            if step % size == rank:
                kept.append(do_more(net, step, folder))
            x, dy = rng.standard_normal((2, total, CHANNELS))
            xs, dys = (
                [mx.nd.array(a[part], ctx=c, dtype="float64") for part, c in zip(mine, ctx)]
                for a in (x, dy)
            )
            for array in xs:
                array.attach_grad()
            with autograd.record():
                outs = [(net(array), net.features(array)) for array in xs]
            heads = [out for pair in outs for out in pair]
            autograd.backward(heads, [dy for dy in dys for _ in (1, 2)])
            expected = whole(x, dy)
            for (out, features), array, part in zip(outs, xs, mine):
                close(f"{mode} output", out.asnumpy(), expected[0][part], 1e-9)
                close(f"{mode} features", features.asnumpy(), expected[1][part], 1e-9)
                close(f"{mode} gradient", array.grad.asnumpy(), expected[2][part], 1e-9)
    report(str(folder), done=True)


if __name__ == "__main__":
    main()
