"""Progress bars, and plain lines every few seconds where nobody watches a terminal."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from tqdm import tqdm

__all__ = ["progress"]

SECONDS = 5.0


class _Lines:
    """A file that gets each state of a bar as a line of its own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write what can be seen of `text`; a bar also moves the cursor and wipes itself out."""
        line = text.strip()
        if line:
            self._stream.write(f"{line}\n")

    def flush(self) -> None:
        self._stream.flush()


def progress(*arguments: Any, **options: Any) -> tqdm:
    """Return a ``tqdm`` of these arguments, for standard error as it is."""
    if not sys.stderr.isatty():
        options = {"file": _Lines(sys.stderr), "mininterval": SECONDS, "ascii": True, **options}
    return tqdm(*arguments, **options)
