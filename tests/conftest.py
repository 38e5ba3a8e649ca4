"""Settings of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import gluon_syncbn  # before mxnet's first operator, which reads whether to use oneDNN
import mxnet as mx
import pytest
from hypothesis import HealthCheck, settings

if mx.runtime.Features().is_enabled("CUDA"):  # the import may have left CPU contexts to the tests
    os.environ.setdefault("GLUON_SYNCBN_CPU_CONTEXTS", "1")  # for programs in other processes
    gluon_syncbn.prepare_cpu_contexts()

pytest_plugins = ["tests.support.own_process"]

settings.register_profile(
    "gluon_syncbn",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("nightly", settings.get_profile("gluon_syncbn"), derandomize=False)
settings.load_profile("gluon_syncbn")


def examples(number: int) -> settings:
    """So many drawn cases of a test. TEST_CASES takes the place of the number in longer runs."""
    return settings(max_examples=int(os.environ.get("TEST_CASES", number)))


# The type of the contexts of all tests: gpu where scripts/test.sh --cu112 runs them.
DEVICE = os.environ.get("GLUON_SYNCBN_TEST_DEVICE", "cpu")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-networks",
        action="store_true",
        help="train every network of docs/gluoncv.md, not only a few of every kind (10 minutes)",
    )
    parser.addoption(
        "--write-gluoncv-table",
        action="store_true",
        help="with --all-networks: write the table in docs/gluoncv.md",
    )


@pytest.fixture(autouse=True)
def _fail_rather_than_hang(request: pytest.FixtureRequest) -> Iterator[None]:
    if "own_process" not in request.keywords:  # whose process stays as the import leaves it
        gluon_syncbn.set_timeout(60)
        mx.random.seed(0)
    with mx.Context(DEVICE):
        yield
    mx.nd.waitall()


def contexts(number: int) -> list[mx.Context]:
    """The first `number` contexts."""
    return [mx.Context(DEVICE, i) for i in range(number)]
