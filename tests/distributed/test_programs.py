"""Whole programs, started as users start them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ..processes import ROOT, clean_environment
from ..test_snippets import program_of
from .launch import start

SCRIPT = ROOT / "scripts" / "train_segmentation.py"


@pytest.mark.parametrize("mpi", [False, True], ids=["gloo", "mpi"])
def test_segmentation_is_that_of_one_process(mpi, tmp_path):
    """Three processes follow one device, and one process with as many contexts."""
    options = ["--scenes", "16", "--valid-scenes", "4", "--epochs", "1", "--image-size", "48"]
    options += ["--data", str(tmp_path / "data"), "--batch-size", "4"]
    several = ["--num-devices", "1", "--norm", "batch,sync", "--out", str(tmp_path / "several")]
    job = start("", 3, *options, *several, program=SCRIPT, mpi=mpi)
    assert job.status == 0, job.output  # the script checks that it follows one device
    assert job.output.count("3 processes with 1 devices, SyncBatchNorm  ") == 1  # the table's row
    assert job.output.count("results: ") == 1

    single = ["--num-devices", "3", "--norm", "sync", "--out", str(tmp_path / "single")]
    subprocess.run(
        [sys.executable, str(SCRIPT), *options, *single], env=clean_environment(), check=True
    )
    ours, theirs = (
        json.loads((tmp_path / name / "table.json").read_text())["curves"]["sync"]["loss"]
        for name in ("several", "single")
    )
    assert len(ours) == len(theirs) == 4
    # Before the first update: nothing has magnified rounding yet.
    assert ours[0] == pytest.approx(theirs[0], rel=2e-6)


def test_the_example_in_the_docs(tmp_path):
    program = tmp_path / "example.py"
    program.write_text(program_of(ROOT / "docs" / "distributed.md"))
    job = start("", 2, program=program)
    assert job.status == 0, job.output
