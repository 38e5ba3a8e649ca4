"""A network without convolutions in several processes against the same on one device."""

from __future__ import annotations

import sys
import zlib
from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

from tests.distributed.workers.job import agree, contexts, init, report, shares, values
from tests.support.networks import Parabola
from tests.support.step import Case, require_close, run

CHANNELS = 5
STEPS = 5
OPTIONS = {"learning_rate": 1e-4, "momentum": 0.9}


def build(norm: type, ctx: list[mx.Context]) -> Any:
    net = nn.HybridSequential()
    for _ in range(3):
        net.add(norm(in_channels=CHANNELS, epsilon=1e-2))
        net.add(Parabola())
    net.initialize(ctx=ctx)
    net.cast("float64")
    net.hybridize()
    return net


def statistics(rank: int, size: int, ctx: list[mx.Context]) -> None:
    """Those of a data set of which the processes have parts of different size."""
    layer = gluon_syncbn.SyncBatchNorm(in_channels=CHANNELS)
    layer.initialize(ctx=ctx)
    rng = np.random.default_rng(0)
    parts = [rng.normal(10, 2, (2, 3 + r, CHANNELS, 2)).astype("float32") for r in range(size)]
    gluon_syncbn.update_statistics(layer, [mx.nd.array(batch) for batch in parts[rank]])
    data = np.concatenate(parts, axis=1).astype("float64")
    found = values(layer)
    require_close("mean of all", found["running_mean"], data.mean((0, 1, 3)), 1e-6)
    require_close("variance of all", found["running_var"], data.var((0, 1, 3)), 1e-6)
    agree("statistics", {name: zlib.crc32(value.tobytes()) for name, value in found.items()})


def averages(rank: int, size: int, ctx: list[mx.Context]) -> None:
    """Plain BatchNorm layers, every device with statistics of its own."""
    layer = nn.BatchNorm(in_channels=CHANNELS)
    layer.initialize(ctx=ctx)
    for i, array in enumerate(layer.running_mean.list_data()):
        array[:] = rank * len(ctx) + i
    gluon_syncbn.average_statistics(layer)
    mean = (size * len(ctx) - 1) / 2
    require_close("average", values(layer)["running_mean"], np.full(CHANNELS, mean), 1e-6)
    assert not gluon_syncbn.check_in_sync(layer)


def main() -> None:
    rank, size = init()
    alone = build(nn.BatchNorm, [mx.cpu()])
    gluon_syncbn.init()
    for number in (1, 2):
        ctx = contexts(number)
        net = build(gluon_syncbn.SyncBatchNorm, ctx)
        alone.initialize(force_reinit=True, ctx=[mx.cpu()])
        trainer = gluon_syncbn.DistributedTrainer(net.collect_params(), "sgd", OPTIONS)
        whole = gluon.Trainer(alone.collect_params(), "sgd", OPTIONS)
        sizes = tuple(samples for each in range(size) for samples in shares(each, number))
        total = sum(sizes)
        rng = np.random.default_rng(number)
        for _ in range(STEPS):
            x, dy = (rng.standard_normal((total, CHANNELS, 4, 3)) for _ in range(2))
            run(net, Case(x, sizes, dy), ctx, rank * number)
            trainer.step(total / size)
            run(alone, Case(x, (total,), dy), [mx.cpu()])
            whole.step(total)
        ours = values(net)
        agree("parameters", {name: zlib.crc32(value.tobytes()) for name, value in ours.items()})
        for name, value in values(alone).items():
            # MXNet's BatchNorm holds momentum in single precision.
            require_close(name, ours[name], value, 1e-6 if "running" in name else 1e-9)
        statistics(rank, size, ctx)
        averages(rank, size, ctx)
    report(sys.argv[1], done=True)


if __name__ == "__main__":
    main()
