"""What a benchmark leaves behind: a table for people, and a JSON file."""

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

# In the order of the columns.
TITLES = {
    "ours": "gluon_syncbn",
    "fused": "gluon_syncbn, fused",
    "inplace": "gluon_syncbn, in place",
    "ours_whole": "gluon_syncbn",
    "batchnorm": "BatchNorm",
    "batchnorm_onednn": "BatchNorm, oneDNN",
    "batchnorm_whole_onednn": "BatchNorm, oneDNN",
    "builtin": "contrib SyncBatchNorm",
    "copies": "8 copies",
    "torch": "PyTorch",
}

Row = Dict[str, Any]


def summary(times: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles in milliseconds, and all times in seconds."""
    low, median, high = (float(q) * 1e3 for q in np.percentile(times, (25, 50, 75)))
    return {"median_ms": median, "low_ms": low, "high_ms": high, "times_s": list(times)}


def ratio(row: Row, method: str, *others: str) -> float | None:
    """Median of a method over the least median of others; None if one is missing."""
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
    """Tabulate times in ms, and ratios."""
    methods = [key for key in TITLES if any(key in row["results"] for row in rows)]
    ratios = list(dict.fromkeys(name for row in rows for name in row["ratios"]))
    head = ["case", *(f"{TITLES[method]}, ms" for method in methods), *ratios]
    lines = []
    for row in rows:
        line = [row["title"], *(cell(row["results"].get(method)) for method in methods)]
        values = [row["ratios"].get(name) for name in ratios]
        lines.append(line + ["-" if value is None else f"{value:.2f}" for value in values])
    return format_table(head, lines)


def processor() -> str:
    """Name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows with what is needed to repeat them."""
    content = {
        "command": " ".join(sys.argv),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": {"processor": processor(), "cores": len(os.sched_getaffinity(0))},
        "python": platform.python_version(),
        "rows": list(rows),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
