"""What a benchmark leaves behind: a table for people, and a JSON file."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def cell(value: Any) -> str:
    """Write a value of a table: ratios, and times in ms as their median and quartiles."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}"
    if not isinstance(value, list):
        return str(value)
    low, median, high = np.percentile(value, (25, 50, 75))
    digits = 3 if median < 10 else 1 if median < 1000 else 0
    return f"{median:.{digits}f} ({low:.{digits}f}..{high:.{digits}f})"


def format_table(head: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """Lay out a table for people and for Markdown."""
    texts = [list(head), *([cell(value) for value in line] for line in lines)]
    widths = [max(map(len, column)) for column in zip(*texts)]
    texts.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths)) + " |"
        for line in texts
    )


def write_json(path: Path, head: Sequence[str], lines: Sequence[Sequence[Any]]) -> None:
    """Write the table, with all times in ms, and what is needed to repeat it."""
    processors = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    content = {
        "command": " ".join(sys.argv),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": {
            "processor": processors[0] if processors else platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
        },
        "python": platform.python_version(),
        "head": head,
        "lines": lines,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
