"""Bar charts of medians that a CSV file keeps: one layer, and a training step."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Dict, Tuple

import numpy as np

# Of each case: the bar, its colour, and the methods of which it shows the fastest.
BARS = (
    ("gluon_syncbn", "#1b6ca8", ("gluon_syncbn",)),
    ("BatchNorm, not synchronized", "#9aa5b1", ("BatchNorm", "BatchNorm, oneDNN")),
    ("MXNet's SyncBatchNorm", "#c8553d", ("contrib SyncBatchNorm",)),
)
CHARTS = {
    "op": ("layer.png", "One layer, forward and backward, on two contexts"),
    "net": ("step.png", "A training step of FCN-ResNet50 on two contexts"),
}
LENGTHS = "length of a bar: time divided by BatchNorm's"
CASES_SHOWN = 3

Medians = Dict[Tuple[str, str], Dict[str, float]]  # by benchmark and case, and then by method


def medians_of(command: str, head: list[str], lines: list[list[Any]]) -> Medians:
    """Take the medians of two contexts from a table of ``op`` or ``net``."""
    found: Medians = {}
    for line in lines:
        if command == "net":
            case, norm, contexts, times = line[:4]
            methods = {norm: times} if contexts == 2 else {}
        else:
            case = line[0]
            timed = zip(head, line) if case.startswith("2 x") else ()
            methods = {name[:-4]: times for name, times in timed if name.endswith(", ms")}
        for method, times in methods.items():
            if times is not None:
                found.setdefault((command, case), {})[method] = float(np.median(times))
    return found


def write(path: Path, found: Medians) -> None:
    """Write medians, in the place of earlier ones of the same benchmark."""
    kept = read(path) if path.exists() else {}
    commands = {command for command, _ in found}
    merged = {key: value for key, value in kept.items() if key[0] not in commands}
    merged.update(found)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for (command, case), methods in merged.items():
            for method, time in methods.items():
                writer.writerow([command, case, method, f"{time:.4g}"])


def read(path: Path) -> Medians:
    """Read what :func:`write` has written."""
    found: Medians = {}
    with path.open(newline="") as file:
        for command, case, method, time in csv.reader(file):
            found.setdefault((command, case), {})[method] = float(time)
    return found


def draw(folder: Path, found: Medians) -> list[Path]:
    """Draw the chart of each benchmark that has cases with all bars; return the files."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    files = []
    for command, (name, title) in CHARTS.items():
        cases = {case: times for (of, case), times in found.items() if of == command}
        bars = {
            case: [
                min((times[m] for m in methods if m in times), default=0.0) for *_, methods in BARS
            ]
            for case, times in cases.items()
        }
        shown = [case for case, times in bars.items() if all(times)][:CASES_SHOWN]
        if not shown:
            continue
        # Large letters and an opaque ground: pages show it 400 pixels wide, and some are dark.
        figure, ax = plt.subplots(figsize=(6.4, 1.65 + 1.35 * len(shown)), facecolor="white")
        longest = max(max(bars[case]) / bars[case][1] for case in shown)
        for i, (label, colour, _) in enumerate(BARS):
            places = [3.9 * row + i for row in range(len(shown))]
            lengths = [bars[case][i] / bars[case][1] for case in shown]
            ax.barh(places, lengths, 0.92, color=colour, label=label)
            for place, length, case in zip(places, lengths, shown):
                text = (
                    f"{bars[case][i]:.3g} ms" if bars[case][i] < 1000 else f"{bars[case][i]:.0f} ms"
                )
                ax.text(length + 0.01 * longest, place, text, va="center", fontsize=13)
        for row, case in enumerate(shown):
            ax.text(0, 3.9 * row - 0.62, case, fontsize=13, fontweight="bold")
        ax.set_xlim(0, 1.2 * longest)
        ax.set_ylim(3.9 * len(shown) - 1.2, -1.5)
        ax.set_title(f"{title}\n{LENGTHS}", fontsize=14, loc="left")
        ax.axis("off")
        figure.legend(
            *ax.get_legend_handles_labels(), loc="lower left", fontsize=12, frameon=False, ncols=1
        )
        figure.tight_layout(rect=(0, 0.9 / figure.get_figheight(), 1, 1))
        files.append(folder / name)
        figure.savefig(files[-1], dpi=125)
        plt.close(figure)
    return files
