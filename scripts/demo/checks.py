"""Checks of a run: the synchronized way follows one device, and its export predicts the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from demo.scenes import Scenes
from demo.training import Outcome, as_input

EARLY_STEPS = 5
FACTOR = 10.0
LAG = 2
FLOOR = 5e-5
EXPORT_TOLERANCE = 1e-5


@dataclass(frozen=True)
class FollowCheck:
    """Whether a loss curve stays as close to one device's as rounding lets it, step by step.

    `differences` are relative to one device, `rounding` those of one device with its batches in
    reverse order.
    """

    differences: list[float]
    rounding: list[float]
    allowed: list[float]

    @property
    def failing_step(self) -> int | None:
        """The first step, counted from 1, in which too large a difference occurs, or None."""
        for step, (difference, allowed) in enumerate(zip(self.differences, self.allowed), start=1):
            if not difference <= allowed:
                return step
        return None


def check_follows(
    reference: Sequence[float], followed: Sequence[float], reverse: Sequence[float]
) -> FollowCheck:
    """Compare the early losses of the synchronized way with those of one device.

    Training amplifies rounding: after the first update the weights differ in their last bits, and
    every step multiplies that. No fixed tolerance fits all steps and all networks, so the measure
    is taken in the same run: one device is started once more with its batches in reverse order,
    which changes nothing but rounding. A step's difference may be ``FACTOR`` times the largest
    that rounding made up to ``LAG`` steps later, plus ``FLOOR``. In the first step, before any
    update, nothing is amplified yet, and only that step's rounding counts. After ``EARLY_STEPS``
    rounding has grown too large to tell anything. Differences are relative to one device's loss.
    `reverse` has ``EARLY_STEPS + LAG`` steps, or as many as the training has; the result is for all
    of them but the last ``LAG``.
    """
    base = np.asarray(reference[: len(reverse)])
    rounding = np.abs(np.asarray(reverse) - base) / base
    differences = np.abs(np.asarray(followed[: len(reverse)]) - base) / base
    steps = max(1, len(reverse) - LAG)
    largest = np.maximum.accumulate(rounding)[-steps:]
    largest[0] = rounding[0]
    allowed = FACTOR * largest + FLOOR
    return FollowCheck(differences[:steps].tolist(), rounding[:steps].tolist(), allowed.tolist())


@dataclass(frozen=True)
class ExportCheck:
    """Whether a network loaded from its export predicts what the network does.

    `absolute` is the largest difference of outputs, `relative` its share of the largest output.
    """

    absolute: float
    relative: float

    @property
    def passed(self) -> bool:
        """Whether the difference is within ``EXPORT_TOLERANCE``."""
        return self.relative <= EXPORT_TOLERANCE


def check_export(outcome: Outcome, scenes: Scenes, folder: Path, images: int = 16) -> ExportCheck:
    """Export a trained network, load it on one context, and compare the two."""
    context = outcome.way.contexts[0]
    data = mx.nd.array(as_input(scenes.valid_images[:images]), ctx=context)
    outcome.net.hybridize()
    expected = _first(outcome.net(data))
    prefix = folder / f"{outcome.way.key}-network"
    outcome.net.export(str(prefix))
    loaded = mx.gluon.SymbolBlock.imports(
        f"{prefix}-symbol.json", ["data"], f"{prefix}-0000.params", ctx=context
    )
    difference = float(np.abs(_first(loaded(data)) - expected).max())
    return ExportCheck(difference, difference / float(np.abs(expected).max()))


def _first(outputs: Any) -> Any:
    """Return the first output as a NumPy array."""
    first = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
    return first.asnumpy()
