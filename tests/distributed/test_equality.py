"""Devices of several processes compute what one device computes on the whole batch."""

from __future__ import annotations

import pytest

from .launch import notes, start


@pytest.mark.parametrize(
    ("processes", "mpi"), [(2, False), (2, True), (3, True), (4, True)], ids=str
)
def test_one_layer_is_one_batch(processes, mpi, tmp_path):
    job = start("equality", processes, str(tmp_path), mpi=mpi)
    assert job.status == 0, job.output
    for note in notes(tmp_path, processes):
        assert note["cases"] == 17
        assert note["size"] == processes


@pytest.mark.parametrize(("processes", "mpi"), [(2, True), (3, False)], ids=str)
def test_fcn_follows_one_device(processes, mpi, tmp_path):
    job = start("network", processes, str(tmp_path), mpi=mpi)
    assert job.status == 0, job.output
    assert len(notes(tmp_path, processes)) == processes


@pytest.mark.parametrize("mpi", [False, True], ids=["gloo", "mpi"])
def test_two_groups_in_four_processes(mpi, tmp_path):
    job = start("groups", 4, str(tmp_path), mpi=mpi)
    assert job.status == 0, job.output
    assert len(notes(tmp_path, 4)) == 4
