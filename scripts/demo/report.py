"""What a run leaves behind: a table, curves, and a page of predictions."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gluon_syncbn
import matplotlib as mpl
import mxnet as mx
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from demo.checks import EARLY_STEPS, ExportCheck, FollowCheck
from demo.scenes import Scenes
from demo.training import FINAL_STEPS, Outcome

COLUMNS = (
    ("title", "way", "{}"),
    ("final_loss", f"loss, last {FINAL_STEPS}", "{:.4f}"),
    ("pixel_accuracy", "pixel acc.", "{:.4f}"),
    ("miou", "mIoU", "{:.4f}"),
    ("early_difference", f"|dloss| first {EARLY_STEPS}", "{:.1e}"),
    ("overall_difference", "|dloss| all steps", "{:.1e}"),
    ("seconds_per_step", "s/step", "{:.3f}"),
)
SMOOTHING = 15  # steps
DRAWN_DIFFERENCES = 50  # steps; later ones are all about as large
DISTINCT_COLOURS = 11


def table(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Sum up every way of training in one row, compared with the first.

    ``early_difference`` and ``overall_difference`` are the largest absolute differences of the loss
    curve from the first way's, over the first steps and over all.
    """
    reference = np.asarray(outcomes[0].losses)
    rows = []
    for outcome in outcomes:
        differences = np.abs(np.asarray(outcome.losses) - reference)
        rows.append(
            {
                "way": outcome.way.key,
                "title": outcome.way.title,
                "devices": [str(context) for context in outcome.way.contexts],
                "final_loss": outcome.final_loss,
                "pixel_accuracy": outcome.accuracy[-1],
                "miou": outcome.miou[-1],
                "early_difference": float(differences[:EARLY_STEPS].max()),
                "overall_difference": float(differences.max()),
                "seconds_per_step": outcome.seconds_per_step,
            }
        )
    return rows


def format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Lay the rows of `table` out as text."""
    cells = [[heading for _, heading, _ in COLUMNS]]
    cells += [[form.format(row[key]) for key, _, form in COLUMNS] for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    cells.insert(1, ["-" * width for width in widths])
    lines = []
    for first, *others in cells:
        numbers = [text.rjust(width) for text, width in zip(others, widths[1:])]
        lines.append("  ".join([first.ljust(widths[0]), *numbers]))
    return "\n".join(lines)


def write_json(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    outcomes: Sequence[Outcome],
    configuration: Mapping[str, Any],
    follow: FollowCheck | None,
    export: ExportCheck | None,
) -> None:
    """Write everything measured, with what it takes to measure it again."""
    content = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "configuration": dict(configuration),
        "versions": _versions(),
        "settings": {key: os.environ[key] for key in sorted(os.environ) if key[:6] == "MXNET_"},
        "table": list(rows),
        "follow_check": follow and dict(vars(follow), failing_step=follow.failing_step),
        "export_check": export and dict(vars(export), passed=export.passed),
        "curves": {
            outcome.way.key: {
                "loss": outcome.losses,
                "scored_at": outcome.scored_at,
                "miou": outcome.miou,
                "pixel_accuracy": outcome.accuracy,
            }
            for outcome in outcomes
        },
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def _versions() -> dict[str, str]:
    """Versions of all that has a part in the numbers."""
    return {
        "python": platform.python_version(),
        "machine": platform.platform(),
        "gluon_syncbn": gluon_syncbn.__version__,
        "mxnet": mx.__version__,
        "gluoncv": importlib.metadata.version("gluoncv"),  # its own __version__ is another
        "numpy": np.__version__,
        "matplotlib": mpl.__version__,
    }


def draw_curves(path: Path, outcomes: Sequence[Outcome], follow: FollowCheck | None) -> None:
    """Draw the loss, the mIoU, and how far the ways, and rounding alone, are from the first."""
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    loss, miou, difference = figure.subplots(1, 3)
    reference = np.asarray(outcomes[0].losses)
    for number, outcome in enumerate(outcomes):
        look = {"color": f"C{number}", "label": outcome.way.title}
        losses = np.asarray(outcome.losses)
        loss.plot(losses, color=f"C{number}", alpha=0.2, linewidth=0.8)
        width = min(SMOOTHING, len(losses))
        smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
        loss.plot(np.arange(len(smooth)) + width - 1, smooth, **look)
        miou.plot(outcome.scored_at, outcome.miou, marker="o", **look)
        if number:
            apart = np.abs(losses - reference) / reference
            difference.plot(np.maximum(apart[:DRAWN_DIFFERENCES], 1e-8), marker=".", **look)
    if follow is not None:
        difference.plot(
            np.maximum(follow.rounding, 1e-8), "k--", label="one device, batches reversed"
        )
    loss.set(title="training loss", xlabel="step", ylabel="whole batch's mean", yscale="log")
    miou.set(title="validation mIoU", xlabel="step", ylim=(0, None))
    difference.set(
        title=f"loss: relative difference from “{outcomes[0].way.title}”",
        xlabel="step",
        yscale="log",
    )
    for axes in (loss, miou, difference):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def draw_predictions(
    path: Path, scenes: Scenes, outcomes: Sequence[Outcome], columns: int = 10
) -> None:
    """Draw validation scenes: image, truth, and what each way predicts."""
    columns = min(columns, len(scenes.valid_images))
    rows = [("image", scenes.valid_images), ("truth", scenes.valid_labels)]
    rows += [(outcome.way.title, outcome.predictions) for outcome in outcomes]
    figure = Figure(figsize=(1.4 * columns + 1, 1.5 * len(rows) + 0.6), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False)
    classes = len(scenes.class_names)
    colours = _colours(classes)
    for line, (title, pictures) in zip(grid, rows):
        line[0].set_ylabel(title.replace(", ", ",\n"), fontsize=8)
        for axes, picture in zip(line, pictures):
            axes.imshow(picture, cmap=colours, vmin=-0.5, vmax=classes - 0.5, interpolation="none")
            axes.set(xticks=[], yticks=[])
    if classes <= DISTINCT_COLOURS:
        key = mpl.cm.ScalarMappable(mpl.colors.Normalize(-0.5, classes - 0.5), colours)
        bar = figure.colorbar(key, ax=grid, ticks=range(classes), shrink=0.8)
        bar.ax.set_yticklabels(scenes.class_names, fontsize=8)
    figure.savefig(path, dpi=100)


def _colours(classes: int) -> Any:
    """Give every class a colour; class 0, the background, is dark."""
    if classes <= DISTINCT_COLOURS:
        return ListedColormap(["#202020", *mpl.color_sequences["tab10"]][:classes])
    return mpl.colormaps["nipy_spectral"].resampled(classes)
