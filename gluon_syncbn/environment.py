"""Environment variables that switch something on or off."""

from __future__ import annotations

import os


def switch(name: str) -> bool | None:
    """Return what an environment variable says: 1 or 0, or None if it is empty or not set."""
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        raise ImportError(f"environment variable {name}={value!r} should be 0 or 1")
    return value == "1" if value else None
