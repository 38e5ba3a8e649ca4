"""Devices of several processes compute what one device computes on the whole batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .launch import start


def notes(folder: Path, processes: int) -> list[dict]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


@pytest.mark.parametrize(
    ("processes", "mpi"), [(2, False), (2, True), (3, True), (4, True)], ids=str
)
def test_one_layer_is_one_batch(processes, mpi, tmp_path):
    job = start("equality", processes, str(tmp_path), mpi=mpi)
    assert job.status == 0, job.output
    for note in notes(tmp_path, processes):
        assert note["cases"] == 17
        assert note["size"] == processes
