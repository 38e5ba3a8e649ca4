"""Tables in the docs that programs write, between two comments."""

from __future__ import annotations

from pathlib import Path

END = "<!-- end of table -->"


def read(page: Path, begin: str) -> str:
    """Return what stands behind the comment `begin`."""
    return page.read_text().split(begin)[1].split(END)[0].strip()


def write(page: Path, begin: str, text: str) -> None:
    """Put `text` behind the comment `begin`, in place of what stands there."""
    before, rest = page.read_text().split(begin)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{END}{rest.split(END, 1)[1]}")
