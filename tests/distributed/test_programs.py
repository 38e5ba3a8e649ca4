"""Whole programs, started as users start them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.docs.test_snippets import program_of
from tests.support.processes import ROOT, clean_environment

from .launch import start

SCRIPT = ROOT / "scripts" / "train_segmentation.py"


@pytest.mark.parametrize(
    ("processes", "contexts", "mpi"), [(3, 1, False), (2, 2, True)], ids=["gloo", "mpi"]
)
def test_segmentation_is_that_of_one_process(processes, contexts, mpi, tmp_path):
    """The processes follow one device, and one process with as many contexts as they have."""
    options = ["--scenes", "16", "--valid-scenes", "4", "--epochs", "1", "--batch-size", "4"]
    options += ["--image-size", "48", "--data", str(tmp_path / "data")]

    def where(folder: str, contexts: int) -> list[str]:
        return [*options, "--out", str(tmp_path / folder), "--num-devices", str(contexts), "--norm"]

    arguments = [*where("several", contexts), "batch,sync"]
    job = start("", processes, *arguments, program=SCRIPT, mpi=mpi)
    assert job.status == 0, job.output  # the script checks that it follows one device
    row = f"{processes} processes with {contexts} devices, SyncBatchNorm  "
    assert job.output.count(row) == 1
    assert job.output.count("results: ") == 1

    arguments = [*where("single", processes * contexts), "sync"]
    subprocess.run([sys.executable, str(SCRIPT), *arguments], env=clean_environment(), check=True)
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
