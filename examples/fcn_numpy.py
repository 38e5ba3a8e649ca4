"""Train the FCN of "Dive into Deep Learning" on several devices, with arrays of mx.np.

It runs on MXNet 2 as it is, and on MXNet 1.9.1. The images show discs and boxes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, npx
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision
from PIL import Image

CLASSES, STRIDE = 3, 32


def main() -> None:
    """Train, print the loss and the share of pixels that are right in new images, and draw them."""
    options = parse_arguments()
    npx.set_np()
    make_context = mx.gpu if options.gpus else mx.cpu
    ctx = [make_context(i) for i in range(options.devices)]
    mx.random.seed(0)
    np.random.seed(0)

    net = nn.HybridSequential()
    for layer in list(vision.resnet18_v2().features)[:-2]:
        net.add(layer)
    net.add(nn.Conv2D(CLASSES, kernel_size=1))
    net.add(nn.Conv2DTranspose(CLASSES, 2 * STRIDE, strides=STRIDE, padding=STRIDE // 2))
    gluon_syncbn.convert_sync_batchnorm(net)
    net.initialize(mx.init.Xavier(), ctx)
    net[-1].initialize(mx.init.Constant(mx.np.array(bilinear_kernel())), ctx, force_reinit=True)
    net.hybridize()

    criterion = gluon.loss.SoftmaxCrossEntropyLoss(axis=1)
    settings = {"learning_rate": options.lr, "momentum": 0.9, "wd": 1e-4}
    trainer = gluon.Trainer(net.collect_params(), "sgd", settings)
    batch_size = options.images_per_device * len(ctx)
    for step in range(options.steps):
        images, labels = (mx.np.array(each) for each in draw(batch_size, options.side))
        xs = gluon.utils.split_and_load(images, ctx)
        ys = gluon.utils.split_and_load(labels, ctx)
        with autograd.record():
            # All devices are called before a result of one is read.
            losses = [criterion(net(x), y) for x, y in zip(xs, ys)]
        autograd.backward(losses)
        trainer.step(batch_size)
        if step % 10 == 0 or step == options.steps - 1:
            mean = sum(float(loss.mean()) for loss in losses) / len(ctx)
            print(f"step {step}: loss {mean:.3f} on {len(ctx)} devices", flush=True)

    images, labels = draw(16, options.side)
    predicted = net(mx.np.array(images, ctx=ctx[0])).argmax(axis=1).asnumpy()
    print(f"{(predicted == labels).mean():.3f} of the pixels are right in new images")
    print(f"devices in sync: {not gluon_syncbn.check_in_sync(net)}")
    draw_predictions(options.out, images[:8], labels[:8], predicted[:8])


def bilinear_kernel() -> np.ndarray:
    """Weights with which a transposed convolution interpolates each class by itself."""
    ramp = 1 - np.abs(np.arange(2 * STRIDE) - (STRIDE - 0.5)) / STRIDE
    kernel = np.zeros((CLASSES, CLASSES, 2 * STRIDE, 2 * STRIDE), np.float32)
    kernel[range(CLASSES), range(CLASSES)] = np.outer(ramp, ramp)
    return kernel


def draw(number: int, side: int) -> tuple[Any, Any]:
    """Draw images (N, 3, side, side), each with a disc or a box, and their labels."""
    images = np.random.normal(0, 0.5, (number, 3, side, side)).astype(np.float32)
    labels = np.zeros((number, side, side), np.float32)
    rows, columns = np.mgrid[:side, :side]
    for image, label in zip(images, labels):
        row, column = np.random.randint(side // 4, 3 * side // 4, 2)
        down, right = np.abs(rows - row), np.abs(columns - column)
        kind = np.random.randint(1, CLASSES)
        distance = np.hypot(down, right) if kind == 1 else np.maximum(down, right)
        inside = distance < side // 4
        label[inside] = kind
        image[kind, inside] += 2
    return images, labels


def draw_predictions(path: Path, images: Any, labels: Any, predicted: Any) -> None:
    """Draw images, labels and predictions below each other."""
    palette = np.array([(0, 0, 0), (90, 200, 90), (90, 90, 220)], np.uint8)
    photos = (images.transpose(0, 2, 3, 1) * 50 + 100).clip(0, 255).astype(np.uint8)
    rows = [photos, *(palette[each.astype(np.uint8)] for each in (labels, predicted))]
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = np.concatenate([np.concatenate(list(row), axis=1) for row in rows])
    Image.fromarray(picture.repeat(2, 0).repeat(2, 1)).save(path)  # each pixel as four
    print(f"images, labels and predictions: {path}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=2, help="number of devices (2)")
    parser.add_argument("--gpus", action="store_true", help="GPU contexts, not CPU contexts")
    parser.add_argument("--images-per-device", type=int, default=2, help="images of a step (2)")
    parser.add_argument("--steps", type=int, default=60, help="training steps (60)")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (0.05)")
    parser.add_argument("--side", type=int, default=64, help="side of an image (64)")
    parser.add_argument("--out", type=Path, default=Path("runs/fcn_numpy.png"), help="picture")
    return parser.parse_args()


if __name__ == "__main__":
    main()
