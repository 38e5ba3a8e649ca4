"""Settings of all tests."""

from __future__ import annotations

from collections.abc import Iterator

import gluon_syncbn  # before mxnet's first operator, which reads the settings of CPU contexts
import mxnet as mx
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "gluon_syncbn",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gluon_syncbn")


@pytest.fixture(autouse=True)
def _fail_rather_than_hang() -> Iterator[None]:
    gluon_syncbn.set_timeout(60)
    mx.random.seed(0)
    yield
    mx.nd.waitall()


def contexts(number: int) -> list[mx.Context]:
    """The first `number` CPU contexts."""
    return [mx.cpu(i) for i in range(number)]
