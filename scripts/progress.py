"""Progress bars in a terminal; otherwise a plain line every few seconds."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from tqdm import tqdm

__all__ = ["progress"]

SECONDS = 5.0


class _Lines:
    """A file that writes each state of a bar as a line of its own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write the visible part of `text`: a bar also moves the cursor and erases itself."""
        line = text.strip()
        if line:
            self._stream.write(f"{line}\n")

    def flush(self) -> None:
        self._stream.flush()


def progress(*arguments: Any, **options: Any) -> tqdm:
    """Return a ``tqdm`` with these arguments, which suits the kind of standard error."""
    if not sys.stderr.isatty():
        options = {"file": _Lines(sys.stderr), "mininterval": SECONDS, "ascii": True, **options}
    return tqdm(*arguments, **options)
