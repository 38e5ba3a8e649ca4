"""Tables of the results, for people and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def cell(value: Any) -> str:
    """Format a value: times in ms as their median and quartiles, and ratios with two digits."""
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
    """Format a table with aligned columns."""
    texts = [list(head), *([cell(value) for value in line] for line in lines)]
    widths = [max(map(len, column)) for column in zip(*texts)]
    texts.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths)) + " |"
        for line in texts
    )
