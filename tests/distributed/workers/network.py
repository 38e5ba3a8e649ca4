"""The U-Net of the demo in several processes against the same on one device."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any

import gluon_syncbn
import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from gluon_syncbn.distributed_trainer import DistributedTrainer
from mxnet import autograd, gluon

from tests.distributed.workers.job import agree, bounds, close, contexts, init, report, values
from tests.support.processes import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from aerial.network import UNet

CLASSES = 5
SIDE = 32
STEPS = 2
OPTIONS = {"learning_rate": 0.01, "momentum": 0.9}


def step(net: Any, trainer: Any, xs: list, ys: list, size: float) -> float:
    criterion = gluon.loss.SoftmaxCrossEntropyLoss(axis=1)
    with autograd.record():
        losses = [criterion(net(x), y).sum() for x, y in zip(xs, ys)]
    autograd.backward(losses)
    trainer.step(size)
    return sum(loss.asscalar() for loss in losses)


def main() -> None:
    folder = Path(sys.argv[1])
    rank, size = init(timeout=100)
    weights = folder / f"{rank}.params"
    mx.random.seed(0)
    # Networks are made in the same order in all processes, as their prefixes tell the layers apart.
    alone = UNet(CLASSES)
    alone.initialize(mx.init.Xavier())
    alone(mx.nd.zeros((1, 3, SIDE, SIDE)))
    alone.save_parameters(str(weights))
    gluon_syncbn.init()
    for number in (1, 2):
        net = UNet(CLASSES, gluon_syncbn.SyncBatchNorm)
        net.load_parameters(str(weights), ctx=contexts(number))
        alone.load_parameters(str(weights), cast_dtype=True)
        for other in (net, alone):
            other.cast("float64")
            other.hybridize()
        trainer = DistributedTrainer(net.collect_params(), "sgd", OPTIONS)
        whole = gluon.Trainer(alone.collect_params(), "sgd", OPTIONS)
        mine, total = bounds(rank, size, number)
        rng = np.random.default_rng(number)
        for _ in range(STEPS):
            x = rng.standard_normal((total, 3, SIDE, SIDE))
            y = rng.integers(0, CLASSES, (total, SIDE, SIDE)).astype("float64")
            xs = [mx.nd.array(x[p], ctx=c, dtype="float64") for p, c in zip(mine, contexts(number))]
            ys = [mx.nd.array(y[p], ctx=c, dtype="float64") for p, c in zip(mine, contexts(number))]
            loss = step(net, trainer, xs, ys, total / size)
            loss = hvd.allreduce(mx.nd.array([loss], dtype="float64"), op=hvd.Sum, name="loss")
            if rank == 0:
                every = [mx.nd.array(a, dtype="float64") for a in (x, y)]
                expected = step(alone, whole, *[[a] for a in every], total)
                assert abs(loss.asscalar() / expected - 1) < 1e-9, (loss.asscalar(), expected)
        ours = values(net)
        agree("parameters", {name: zlib.crc32(value.tobytes()) for name, value in ours.items()})
        if rank == 0:
            for name, value in values(alone).items():
                # MXNet's BatchNorm holds momentum in single precision.
                close(name, ours[name], value, 1e-6 if "running" in name else 1e-8)
    report(str(folder), done=True)


if __name__ == "__main__":
    main()
