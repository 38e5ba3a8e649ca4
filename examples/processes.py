"""Train in several processes over Horovod, each with contexts of its own.

Start it with horovodrun --gloo -np 2 python examples/processes.py. All devices of all processes
normalize with the statistics of the whole batch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gluon_syncbn
import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn


def main() -> None:
    """Train a small network to find the quarter of an image that is bright."""
    options = parse_arguments()
    hvd.init()
    gluon_syncbn.init()  # from now on layers synchronize over processes too
    if options.gpus:
        ctx = [mx.gpu(hvd.local_rank())]
    else:
        ctx = [mx.cpu(i) for i in range(options.devices)]
    images_here = options.images_per_device * len(ctx)

    mx.random.seed(0)  # the same first parameters in all processes
    net = nn.HybridSequential()
    for channels in (8, 16):
        net.add(nn.Conv2D(channels, 3, strides=2, padding=1, use_bias=False))
        net.add(gluon_syncbn.SyncBatchNorm(), nn.Activation("relu"))
    net.add(nn.Dense(4))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net.hybridize()

    criterion = gluon.loss.SoftmaxCrossEntropyLoss()
    settings = {"learning_rate": 0.05, "momentum": 0.9}
    trainer = gluon_syncbn.DistributedTrainer(net.collect_params(), "sgd", settings)
    rng = np.random.default_rng(hvd.rank())  # every process has other images
    for step in range(options.steps):
        images, labels = draw(rng, images_here)
        xs = gluon.utils.split_and_load(images, ctx)
        ys = gluon.utils.split_and_load(labels, ctx)
        with autograd.record():
            losses = [criterion(net(x), y) for x, y in zip(xs, ys)]
        autograd.backward(losses)
        trainer.step(images_here)  # the trainer also divides by the number of processes
        if step % 10 == 9 and hvd.rank() == 0:
            mean = sum(float(loss.mean().asscalar()) for loss in losses) / len(ctx)
            print(f"step {step + 1}: loss {mean:.3f} on {hvd.size()} processes", flush=True)

    # Parameters and running statistics have the same bits everywhere, so one process saves them.
    differences = gluon_syncbn.check_in_sync(net)
    own = net[1].running_mean.data(ctx[0]).asnumpy()
    means = hvd.allgather(mx.nd.array(own[None]), name="means").asnumpy()
    in_sync = not differences and all(each.tobytes() == means[0].tobytes() for each in means)
    if hvd.rank() == 0:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        net.save_parameters(str(options.out))
        print(f"processes and contexts in sync: {in_sync}; saved: {options.out}")


def draw(rng: np.random.Generator, number: int) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    """Draw noise with one bright quarter, and say which."""
    images, labels = rng.normal(0, 1, (number, 1, 16, 16)), rng.integers(0, 4, number)
    for image, label in zip(images, labels):
        top, left = 8 * (label // 2), 8 * (label % 2)
        image[0, top : top + 8, left : left + 8] += 1
    return mx.nd.array(images), mx.nd.array(labels)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=2, help="CPU contexts of each process (2)")
    parser.add_argument("--gpus", action="store_true", help="one GPU per process, by local rank")
    parser.add_argument("--images-per-device", type=int, default=4, help="images of a step (4)")
    parser.add_argument("--steps", type=int, default=50, help="training steps (50)")
    parser.add_argument("--out", type=Path, default=Path("runs/processes.params"), help="file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
