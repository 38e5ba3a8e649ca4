"""The training loop, the same for one device and for several."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from gluon_syncbn import cpu_contexts
from mxnet import autograd, gluon
from numpy.typing import NDArray
from sklearn.metrics import jaccard_score

from demo.job import Job
from demo.networks import Design, Norm, build
from demo.scenes import Scenes
from progress import progress

SIDE_OUTPUT_WEIGHT = 0.4
WARM_UP_STEPS = 3  # not timed
FINAL_STEPS = 20  # whose mean loss counts as the final loss


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train.

    The learning rate rises from zero to `rate` over the first tenth of the steps, and falls back to
    zero as a polynomial of power 0.9. A `batch` is over all devices; the validation scenes are
    scored `scorings` times; with `hybridize` None the network stays imperative.
    """

    epochs: int
    batch: int
    rate: float
    momentum: float = 0.9
    decay: float = 1e-4
    scorings: int = 5
    seed: int = 0
    hybridize: dict[str, bool] | None = field(default_factory=dict)

    def steps(self, scenes: Scenes) -> int:
        """Count the steps: only whole batches are trained on."""
        return self.epochs * (len(scenes.train_images) // self.batch)


@dataclass(frozen=True)
class Variant:
    """One way to train: a norm layer on some contexts of each process of a job."""

    key: str
    title: str
    norm: Norm
    contexts: tuple[Any, ...]
    job: Job = field(default_factory=Job)


@dataclass
class Outcome:
    """What a way of training led to.

    `losses` are those of whole batches, each before the update of its step. `scored_at` counts the
    steps done before each scoring, the first of which is 0; `predictions` are those of the last.
    """

    way: Variant
    net: Any
    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    scored_at: list[int] = field(default_factory=list)
    miou: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    predictions: Any = None

    @property
    def final_loss(self) -> float:
        """Mean loss of the last steps."""
        return float(np.mean(self.losses[-FINAL_STEPS:]))

    @property
    def seconds_per_step(self) -> float:
        """Median duration of a step, leaving out the first few."""
        return float(np.median(self.step_seconds[WARM_UP_STEPS:] or self.step_seconds))


def train(
    way: Variant, design: Design, scenes: Scenes, schedule: Schedule, weights: Path
) -> Outcome:
    """Train a network one way, with a progress bar. Only the first process scores."""
    job = way.job
    total = schedule.steps(scenes)
    loop = Loop(way, design, schedule, total, weights)
    evaluator = Evaluator(design, scenes, way.contexts[0], weights)
    outcome = Outcome(way, loop.net)
    if job.is_first:
        evaluator.score(weights, outcome)
    due = {round(total * part / schedule.scorings) for part in range(1, schedule.scorings + 1)}
    trained = weights.with_name(f"{way.key}.params")
    with progress(total=total, desc=way.title, unit="step", disable=not job.is_first) as bar:
        for images, labels in batches(scenes, schedule):
            begin = time.perf_counter()
            outcome.losses.append(loop.step(images, labels))
            mx.nd.waitall()  # or the update would count to the next step's time
            outcome.step_seconds.append(time.perf_counter() - begin)
            bar.set_postfix(loss=f"{outcome.losses[-1]:.4f}", refresh=False)
            bar.update()
            if len(outcome.losses) in due:
                job.save_parameters(loop.net, trained)
                if job.is_first:
                    evaluator.score(trained, outcome)
    return outcome


def losses_in_reverse(
    way: Variant, design: Design, scenes: Scenes, schedule: Schedule, weights: Path, steps: int
) -> list[float]:
    """Start to train a way with the scenes of every batch in reverse order.

    The mathematics is that of the batches as they are; only the order in which sums are rounded
    differs. How far these losses are from those of `train` is what rounding alone does.
    """
    loop = Loop(way, design, schedule, schedule.steps(scenes), weights)
    early = itertools.islice(batches(scenes, schedule), steps)
    return [loop.step(images[::-1].copy(), labels[::-1].copy()) for images, labels in early]


def batches(
    scenes: Scenes, schedule: Schedule
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Yield images and labels of the batches of all epochs; only the seed decides the order."""
    size = schedule.batch
    for epoch in range(schedule.epochs):
        order = np.random.default_rng((schedule.seed, epoch)).permutation(len(scenes.train_images))
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            labels = scenes.train_labels[chosen].astype(np.float32)
            yield as_input(scenes.train_images[chosen]), labels


class Loop:
    """The training loop of Gluon for one way; after `steps` steps the learning rate is zero."""

    def __init__(
        self, way: Variant, design: Design, schedule: Schedule, steps: int, weights: Path
    ) -> None:
        cpu_contexts.use_one_thread_each(way.contexts)
        self.net = build(design, way.norm, way.contexts, weights)
        if schedule.hybridize is not None:
            self.net.hybridize(**schedule.hybridize)
        self._job = way.job
        self._contexts = list(way.contexts)
        self._criterion = gluon.loss.SoftmaxCrossEntropyLoss(axis=1)
        rates = mx.lr_scheduler.PolyScheduler(
            steps, schedule.rate, pwr=0.9, warmup_steps=steps // 10
        )
        options = {
            "learning_rate": schedule.rate,
            "momentum": schedule.momentum,
            "wd": schedule.decay,
            "lr_scheduler": rates,
        }
        self._trainer = self._job.trainer(self.net, "sgd", options)

    def step(self, images: NDArray[np.float32], labels: NDArray[np.float32]) -> float:
        """Take one training step on a whole batch of `batches`; return its mean loss.

        The criterion gives one loss per scene, the mean over its pixels. The gradients are those
        of the sum over all scenes on all devices, and ``Trainer.step`` divides by the size of the
        whole batch (Horovod's trainer by the number of processes first), so that the step is that
        of the whole batch's mean loss however the batch is split.
        """
        parts, truth = (
            gluon.utils.split_and_load(
                mx.nd.array(self._job.share(whole)), self._contexts, even_split=False
            )
            for whole in (images, labels)
        )
        with autograd.record():
            losses = [
                _loss(self._criterion, self.net(part), label) for part, label in zip(parts, truth)
            ]
        autograd.backward(losses)
        self._trainer.step(len(images) / self._job.size)
        local = sum(float(loss.asnumpy().sum()) for loss in losses)
        return self._job.sum(local) / len(images)


def _loss(criterion: Any, outputs: Any, label: Any) -> Any:
    """Loss of each scene: that of the first output, plus that of further ones with less weight.

    Further outputs may be smaller than the image; they are enlarged to its size.
    """
    first, *others = outputs
    total = criterion(first, label)
    height, width = label.shape[1:]
    for other in others:
        enlarged = mx.nd.contrib.BilinearResize2D(other, height=height, width=width)
        total = total + SIDE_OUTPUT_WEIGHT * criterion(enlarged, label)
    return total


def as_input(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Turn images into the network's input: channels first, about zero mean and unit spread."""
    scaled = (images.astype(np.float32) / 255 - 0.5) / 0.25
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


class Evaluator:
    """Scores parameter files on the validation scenes, on one device.

    The network that judges has plain BatchNorm layers whichever way the parameters were trained:
    in inference all norm layers compute the same from the same parameters. Gluon's parameter
    files hold the mean over the devices, so running statistics that differ between the devices
    are averaged, as they are for whoever loads the file later.
    """

    def __init__(self, design: Design, scenes: Scenes, context: Any, weights: Path) -> None:
        self._scenes = scenes
        self._context = context
        self._net = build(design, Norm(), [context], weights)
        self._net.hybridize()

    def score(self, weights: Path, outcome: Outcome) -> None:
        """Score a parameter file and add the scores to `outcome`."""
        self._net.load_parameters(str(weights), ctx=self._context)
        outcome.predictions = predict_classes(self._net, self._scenes.valid_images, self._context)
        truth, found = self._scenes.valid_labels.ravel(), outcome.predictions.ravel()
        outcome.scored_at.append(len(outcome.losses))
        outcome.accuracy.append(float((truth == found).mean()))
        outcome.miou.append(float(jaccard_score(truth, found, average="macro")))


def predict_classes(
    net: Any, images: NDArray[np.uint8], context: Any, batch: int = 16
) -> NDArray[np.uint8]:
    """Predict the class of every pixel of ``uint8`` images, channels last."""
    classes = []
    for start in range(0, len(images), batch):
        data = mx.nd.array(as_input(images[start : start + batch]), ctx=context)
        classes.append(net(data)[0].argmax(axis=1).asnumpy().astype(np.uint8))
    return np.concatenate(classes)
