"""All tests here need Horovod."""

from __future__ import annotations

import pytest

from .launch import why_not


@pytest.fixture(autouse=True, scope="session")
def _needs_horovod() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
