"""Every process that is left gets an error that names layer and cause, and none is left over."""

from __future__ import annotations

import re

import pytest

from ..conftest import DEVICE
from .launch import notes, start


@pytest.mark.parametrize("mpi", [False, True], ids=["gloo", "mpi"])
def test_processes_that_stay_away_or_differ(mpi, tmp_path):
    job = start(
        "faults",
        3,
        str(tmp_path),
        "survives",
        mpi=mpi,
        HOROVOD_STALL_CHECK_TIME_SECONDS="1",
    )
    assert job.status == 0, job.output
    for note in notes(tmp_path, 3):
        rank, told = note["rank"], note["told"]
        assert told["fine before"] == told["fine after"] == told["late"] == "", told
        assert "an earlier step has failed" in told["repeated"], told["repeated"]
        assert "SyncBatchNorm 'channels'" in told["channels"]
        assert "processes 0 and 1 differ: channels 3 and 4" in told["channels"]
        missing = "forward waited " if rank == 1 else "failed on process 1: "
        assert missing in told["local"], told["local"]
        came = "cpu(0)" if DEVICE == "cpu" else "gpu(2)"
        assert f"Came: {came}" in told["local"]
        if rank != 1:
            for words in (
                "SyncBatchNorm 'absent'",
                "round 0 forward waited ",
                f"process {rank} of 3 (Horovod's ranks 0, 1, 2)",
                "Missing: at least one of the other processes.",
                "missing ranks for SyncBatchNorm.absent_#0.forward after HOROVOD_STALL_CHECK_TIME",
            ):
                assert words in told["absent"]
            assert "forward waited " in told["absent again"]
            assert "SyncBatchNorm 'stopped'" in told["stopped"]
            assert "forward waited " in told["stopped"]
        missed = "SyncBatchNorm 'net_syncbatchnorm2' round 0 forward waited "
        if rank == 1:  # has this layer, which the others lack
            assert missed in told["layers"], told["layers"]
        else:  # wait for its backward pass of the layer before, or get its error first
            backward = "SyncBatchNorm 'net_syncbatchnorm1' round 0 backward"
            assert backward in told["layers"], told["layers"]
            reasons = (f"{backward} waited ", f"failed already: {missed}")
            assert any(reason in told["layers"] for reason in reasons), told["layers"]
    left = "drop_step() leaves messages that other processes have not answered (absent_#0.forward"
    assert left in job.output
    if mpi:  # Horovod's own report. Over gloo its list of ranks is empty.
        assert re.search(r"Missing ranks:\n1: .*SyncBatchNorm.absent_#0.forward", job.output)
    else:
        warned = re.findall(r"\[(\d)\]<stderr>:gluon_syncbn: warning: .*'absent'", job.output)
        assert set(warned) == {"0", "2"}


def told_by_survivors(folder):
    told = [note["told"]["dies"] for note in notes(folder, 3, missing={1})]
    assert all("SyncBatchNorm 'mortal'" in error for error in told), told
    return told


def test_a_process_that_dies_with_gloo(tmp_path):
    job = start("faults", 3, str(tmp_path), "dies", patience=200)
    assert job.status != 0
    # The shell's report. That of horovodrun may name one of those that end because of the first.
    assert "[1]<stderr>:Killed\n" in job.output
    for error in told_by_survivors(tmp_path):
        assert "the exchange with other processes has failed: " in error


def test_a_process_that_dies_with_mpi(tmp_path):
    """Its launcher ends the others before they can say anything, and names who has died."""
    job = start("faults", 3, str(tmp_path), "dies", mpi=True)
    assert job.status != 0
    assert re.search(r"process rank 1 with PID \d+ on node \S+ exited on signal 9", job.output)


def test_a_process_that_dies_where_mpi_spares_the_others(tmp_path):
    start("faults", 3, str(tmp_path), "dies", mpi=True, OMPI_MCA_orte_enable_recovery="1")
    for error in told_by_survivors(tmp_path):
        assert "round 1 forward waited" in error or "round 0 forward waited" in error, error
        assert "Missing: at least one of the other processes." in error
