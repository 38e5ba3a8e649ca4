"""Trains the network in one way, with the step of examples/segmentation.py, and measures it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from gluon_syncbn import SyncBatchNorm
from mxnet import gluon
from mxnet.gluon import nn

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

from segmentation import train_step

from aerial.network import UNet
from aerial.scenes import CLASSES, Scenes
from progress import progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

BATCH = 8  # images per step, on all devices together
RATE = 0.1


@dataclass(frozen=True)
class Way:
    """A norm on a number of devices."""

    norm: type
    contexts: list[mx.Context]

    @property
    def title(self) -> str:
        """Its name in pictures."""
        devices = len(self.contexts)
        return f"{devices} device{'s' * (devices > 1)}, {self.norm.__name__}"


@dataclass(frozen=True)
class Result:
    """The result of training.

    `losses` are the means of whole batches; `predictions` are (N, H, W), `miou` is their mean
    intersection over union.
    """

    losses: list[float]
    predictions: NDArray[np.uint8]
    miou: float


def train(way: Way, scenes: Scenes, valid: Scenes, steps: int, seed: int) -> Result:
    """Train; the seed alone determines the first weights and the batches, whatever the way."""
    mx.random.seed(seed)
    net = UNet(len(CLASSES), norm_layer=way.norm)
    # One device draws the weights, so that all ways begin with the same ones.
    net.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2), ctx=mx.cpu())
    net(mx.nd.zeros((1, 3, *scenes.labels.shape[1:])))
    net.collect_params().reset_ctx(way.contexts)
    net.hybridize(static_alloc=True)

    criterion = gluon.loss.SoftmaxCrossEntropyLoss(axis=1)
    rates = mx.lr_scheduler.PolyScheduler(steps, RATE, pwr=0.9, warmup_steps=steps // 20)
    options = {"learning_rate": RATE, "momentum": 0.9, "wd": 1e-4, "lr_scheduler": rates}
    trainer = gluon.Trainer(net.collect_params(), "sgd", options)

    means: list[float] = []
    with progress(total=steps, desc=way.title, unit="step") as bar:
        for batch in _batches(scenes, steps, seed):
            means.append(train_step(net, criterion, trainer, batch, way.contexts))
            bar.set_postfix(loss=f"{means[-1]:.3f}", refresh=False)
            bar.update()

    # One device predicts. reset_ctx averages the running statistics of all devices, as a file does.
    net.collect_params().reset_ctx(way.contexts[:1])
    net.hybridize(static_alloc=True)
    inputs = (_as_input(valid.images[i : i + 16]) for i in range(0, len(valid.images), 16))
    scores = (net(images.as_in_context(way.contexts[0]))[0] for images in inputs)
    classes = [each.argmax(axis=1).asnumpy().astype(np.uint8) for each in scores]
    predictions = np.concatenate(classes)
    return Result(means, predictions, mean_iou(predictions, valid.labels))


def mean_iou(predictions: NDArray[np.uint8], labels: NDArray[np.uint8]) -> float:
    """Return the mean over the classes of intersection over union of prediction and label."""
    shares = []
    for number in range(len(CLASSES)):
        found, true = predictions == number, labels == number
        shares.append((found & true).sum() / (found | true).sum())
    return float(np.mean(shares))


def ways(devices: int, make_context: Any) -> list[Way]:
    """Return the ways: one device, and several with and without synchronization."""
    several = [make_context(i) for i in range(devices)]
    one = Way(nn.BatchNorm, several[:1])
    return [one, Way(SyncBatchNorm, several), Way(nn.BatchNorm, several)]


def _batches(scenes: Scenes, steps: int, seed: int) -> Iterator[tuple[Any, Any]]:
    """Draw whole batches in an order that depends on the seed alone."""
    rng = np.random.default_rng(seed)
    epochs = -(-steps * BATCH // len(scenes.images))
    order = np.concatenate([rng.permutation(len(scenes.images)) for _ in range(epochs)])
    for step in range(steps):
        chosen = order[step * BATCH : (step + 1) * BATCH]
        yield _as_input(scenes.images[chosen]), mx.nd.array(scenes.labels[chosen])


def _as_input(images: NDArray[np.float32]) -> Any:
    return mx.nd.array(images.transpose(0, 3, 1, 2) / 0.25)
