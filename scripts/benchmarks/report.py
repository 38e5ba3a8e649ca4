"""What a benchmark leaves behind: a table, a JSON file, and a bar chart."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Dict

import numpy as np

TITLES = {
    "ours": "gluon_syncbn",
    "fused": "gluon_syncbn, fused",
    "inplace": "gluon_syncbn, in place",
    "ours1": "gluon_syncbn, num_devices=1",
    "batchnorm": "BatchNorm",
    "traced": "BatchNorm, traced",
    "lockstep": "BatchNorm, traced, in lockstep",
    "batchnorm_onednn": "BatchNorm, oneDNN",
    "builtin": "contrib SyncBatchNorm",
    "builtin1": "contrib, num_devices=1",
    "copies": "8 copies",
    "torch": "PyTorch",
    "exported": "exported",
    "folded": "folded",
    "exported_onednn": "exported, oneDNN",
    "folded_onednn": "folded, oneDNN",
}

Row = Dict[str, Any]


def summary(times: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles in milliseconds, and all times in seconds."""
    low, median, high = (float(q) * 1e3 for q in np.percentile(times, (25, 50, 75)))
    return {"median_ms": median, "low_ms": low, "high_ms": high, "times_s": list(times)}


def ratio(row: Row, method: str, others: Sequence[str]) -> float | None:
    """Median of a method over the least median of others; None where one is missing."""
    results = row["results"]
    medians = [results[other]["median_ms"] for other in others if other in results]
    if method not in results or not medians:
        return None
    return float(results[method]["median_ms"] / min(medians))


def cell(result: Mapping[str, Any] | None) -> str:
    """Median and quartiles as text."""
    if result is None:
        return "-"
    digits = 3 if result["median_ms"] < 10 else 1 if result["median_ms"] < 1000 else 0
    low, median, high = (f"{result[k]:.{digits}f}" for k in ("low_ms", "median_ms", "high_ms"))
    return f"{median} ({low}..{high})"


def format_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Lay out a table for people and for Markdown."""
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]

    def text(line: Sequence[str]) -> str:
        return "| " + " | ".join(value.ljust(width) for value, width in zip(line, widths)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([text(head), rule, *(text(line) for line in lines)])


def time_table(rows: Sequence[Row]) -> str:
    """Tabulate times in ms and ratios."""
    methods = [key for key in TITLES if any(key in row["results"] for row in rows)]
    ratios = list(dict.fromkeys(name for row in rows for name in row["ratios"]))
    head = ["case", *(f"{TITLES[method]}, ms" for method in methods), *ratios]
    lines = []
    for row in rows:
        values = [row["ratios"].get(name) for name in ratios]
        lines.append(
            [
                row["title"],
                *(cell(row["results"].get(method)) for method in methods),
                *("-" if value is None else f"{value:.2f}" for value in values),
            ]
        )
    return format_table(head, lines)


def processor() -> str:
    """Name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def write_json(path: Path, rows: Sequence[Row], settings: Mapping[str, Any]) -> None:
    """Write the rows with what is needed to repeat them."""
    content = {
        "command": " ".join(sys.argv),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": {"processor": processor(), "cores": len(os.sched_getaffinity(0))},
        "python": platform.python_version(),
        **settings,
        "rows": list(rows),
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def draw(path: Path, title: str, unit: str, bars: Mapping[str, Mapping[str, float]]) -> None:
    """Draw one group of bars for each case, on a logarithmic scale of `unit`."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    methods = [key for key in TITLES if any(key in values for values in bars.values())]
    height = 0.8 / max(len(methods), 1)
    figure = Figure(figsize=(9, 1.2 + 0.24 * len(bars) * (len(methods) + 1)), layout="constrained")
    axes = figure.add_subplot()
    for i, method in enumerate(methods):
        places = [at for at, values in enumerate(bars.values()) if method in values]
        values = [values[method] for values in bars.values() if method in values]
        drawn = axes.barh(
            [at + (i - len(methods) / 2 + 0.5) * height for at in places],
            values,
            height,
            label=TITLES[method],
            color=mpl.colormaps["tab10"](i),
        )
        axes.bar_label(drawn, fmt="%.3g", padding=2, fontsize=7)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(unit)
    axes.set_title(title)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
