"""Every process that is left gets an error that names layer and cause, and none is left over."""

from __future__ import annotations

import pytest

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
        assert "SyncBatchNorm 'channels_" in told["channels"]
        assert "processes 0 and 1 differ: channels 3 and 4" in told["channels"]
        missing = "forward waited 1.5" if rank == 1 else "failed on process 1: "
        assert missing in told["local"], told["local"]
        assert "Came: cpu(0)" in told["local"]
        if rank != 1:
            for words in (
                "SyncBatchNorm 'absent_",
                "round 0 forward waited 1.5",
                f"process {rank} of 3 (Horovod's ranks 0, 1, 2)",
                "Missing: at least one of the other processes.",
                "HOROVOD_STALL_CHECK_TIME_SECONDS",
            ):
                assert words in told["absent"]
            assert "forward waited 1.5" in told["absent again"]
        # The third layer, which two processes lack, or the backward pass that waits for it.
        passed = "forward" if rank == 1 else "backward"
        which = 2 if rank == 1 else 1
        assert f"SyncBatchNorm 'net_syncbatchnorm{which}_" in told["layers"], told["layers"]
        assert f"{passed} waited 1.5" in told["layers"]
        assert "s for the other processes" in told["layers"]
    # Horovod's own report, to which the message refers.
    assert "Missing ranks" in job.output or "missing ranks" in job.output, job.output
    assert "SyncBatchNorm.absent_#0.forward" in job.output


def test_a_process_that_dies_with_gloo(tmp_path):
    job = start("faults", 3, str(tmp_path), "dies")
    assert job.status != 0
    for rank in (0, 2):
        (note,) = [note for note in notes(tmp_path, 3, missing={1}) if note["rank"] == rank]
        assert "SyncBatchNorm 'mortal_" in note["told"]["dies"], note
        assert "the exchange with other processes has failed: " in note["told"]["dies"]


def test_a_process_that_dies_with_mpi(tmp_path):
    """MPI's launcher ends the others before they can say anything."""
    job = start("faults", 3, str(tmp_path), "dies", mpi=True)
    assert job.status != 0
