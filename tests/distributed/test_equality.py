"""Devices of several processes compute what one device computes on the whole batch."""

from __future__ import annotations

import pytest

from tests.support.pages import snippets
from tests.support.processes import ROOT

from .launch import needs_gpus, notes, start


@pytest.mark.parametrize(
    ("processes", "mpi", "contexts"),
    [
        (2, False, "cpu"),
        (3, False, "cpu"),
        (4, False, "cpu"),
        (2, True, "cpu"),
        (3, True, "cpu"),
        (4, True, "cpu"),
        (2, False, "gpu"),
        (3, True, "gpu"),
        (2, False, "mixed"),
    ],
    ids=str,
)
def test_one_layer_is_one_batch(processes, mpi, contexts, tmp_path):
    needs_gpus(contexts)
    job = start("equality", processes, str(tmp_path), mpi=mpi, SYNCBN_TEST_CONTEXTS=contexts)
    assert job.status == 0, job.output
    for note in notes(tmp_path, processes):
        assert note["cases"] == 17
        assert note["size"] == processes


@pytest.mark.parametrize(
    ("processes", "mpi", "contexts"),
    [(3, False, "cpu"), (2, True, "cpu"), (2, False, "gpu"), (2, True, "gpu")],
    ids=str,
)
def test_training_follows_one_device(processes, mpi, contexts, tmp_path):
    needs_gpus(contexts)
    job = start("trainer", processes, str(tmp_path), mpi=mpi, SYNCBN_TEST_CONTEXTS=contexts)
    assert job.status == 0, job.output
    assert len(notes(tmp_path, processes)) == processes


@pytest.mark.parametrize(
    ("mpi", "contexts"), [(False, "cpu"), (True, "cpu"), (False, "gpu")], ids=str
)
def test_two_groups_in_four_processes(mpi, contexts, tmp_path):
    needs_gpus(contexts)
    settings = {"SYNCBN_TEST_CONTEXTS": contexts, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    job = start("groups", 4, str(tmp_path), mpi=mpi, **settings)
    assert job.status == 0, job.output
    assert len(notes(tmp_path, 4)) == 4


def test_the_example_in_the_docs(tmp_path):
    program = tmp_path / "example.py"
    (text,) = snippets(ROOT / "docs" / "distributed.md", "python")
    program.write_text(text)
    job = start("", 2, program=program)
    assert job.status == 0, job.output
