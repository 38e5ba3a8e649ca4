"""Networks are given up after each test: Gluon's blocks refer to each other, and take gigabytes."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def _spare_what_stays() -> None:
    """Modules take the collector longer than networks."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _collect_garbage() -> Iterator[None]:
    yield
    gc.collect()
