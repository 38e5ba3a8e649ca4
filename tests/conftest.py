"""Settings of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import gluon_syncbn  # before mxnet's first operator, which reads the settings of CPU contexts
import mxnet as mx
import pytest
from gluon_syncbn import cpu_contexts
from hypothesis import HealthCheck, settings

cpu_contexts.allow_several()  # beside GPUs the import does not

settings.register_profile(
    "gluon_syncbn",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gluon_syncbn")

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


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--all-networks"):
        # ResNeSt-200 and 269 need more workspaces on two contexts than importing gluon_syncbn sets.
        os.environ["MXNET_CPU_TEMP_COPY"] = "4096"


@pytest.fixture(autouse=True)
def _fail_rather_than_hang() -> Iterator[None]:
    gluon_syncbn.set_timeout(60)
    mx.random.seed(0)
    with mx.Context(DEVICE):
        yield
    mx.nd.waitall()


def contexts(number: int) -> list[mx.Context]:
    """The first `number` contexts."""
    return [mx.Context(DEVICE, i) for i in range(number)]
