"""The stand-in for MXNet of the native tests does to the library what MXNet does.

One program runs one list of scenarios (tests/native/scenarios) on either. Each checks its numbers
itself; what is compared here is every bit of the results, and the record of all that went between
the library and its host: callbacks, their arguments and threads, operations and where they ran.
"""

from __future__ import annotations

import difflib
import os
import subprocess
from pathlib import Path

import mxnet as mx
import pytest
from gluon_syncbn import _native, cpu_contexts

from tests.support.native_build import build


@pytest.fixture(scope="module")
def program() -> Path:
    """The program that scripts/test.sh has built in the same folder, or builds there."""
    return build("host_scenarios") / "host_scenarios"


def run(program: Path, record: Path, *options: str) -> dict[str, list[str]]:
    """Run all scenarios and give the record of each."""
    result = subprocess.run(
        [program, "--adapter", str(_native.library_path()), "--record", str(record), *options],
        env={**os.environ, **cpu_contexts.SETTINGS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    scenarios: dict[str, list[str]] = {}
    for line in record.read_text().splitlines():
        if line.startswith("scenario "):
            scenarios[line] = []
        else:
            scenarios[next(reversed(scenarios))].append(line)
    return scenarios


def test_the_stand_in_does_what_mxnet_does(program, tmp_path):
    of_mxnet = run(program, tmp_path / "mxnet", "--host", mx.base._LIB._name)
    of_stand_in = run(program, tmp_path / "stand_in")
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True)
    assert list(of_mxnet) == [f"scenario {name}" for name in listed.stdout.splitlines()]
    assert list(of_stand_in) == list(of_mxnet)
    for name, lines in of_mxnet.items():
        differences = difflib.unified_diff(
            lines, of_stand_in[name], "MXNet", "the stand-in", lineterm=""
        )
        assert lines == of_stand_in[name], "\n".join([name, *differences])
    # Numbers, callbacks and operations were in the record.
    step = "\n".join(of_mxnet["scenario a step on two devices"])
    for words in ("output[1] ", "backward tags(3,0,0,0,1,2,2,2,4,4)", "run on a worker of its"):
        assert words in step
