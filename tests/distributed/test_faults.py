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
    came = r"cpu\(0\)" if DEVICE == "cpu" else r"gpu\(2\)"
    first = "SyncBatchNorm 'net_syncbatchnorm1' round 0 backward"
    second = "SyncBatchNorm 'net_syncbatchnorm2' round 0 forward waited "
    for note in notes(tmp_path, 3):
        rank = note["rank"]
        expected = {
            **dict.fromkeys(("fine before", "fine after", "late"), "^$"),
            "repeated": "an earlier step has failed",
            "channels": "SyncBatchNorm 'channels'.*processes 0 and 1 differ: channels 3 and 4",
        }
        if rank == 1:  # has a layer that the others lack
            expected.update(local=rf"forward waited .*Came: {came}", layers=second)
        else:
            expected["local"] = rf"failed on process 1: .*Came: {came}"
            # They wait for its backward pass of the layer before, or get its error first.
            expected["layers"] = f"{first} waited |{first}.*failed already: {second}"
            expected["absent"] = (
                "SyncBatchNorm 'absent' round 0 forward waited .*process "
                rf"{rank} of 3 \(Horovod's ranks 0, 1, 2\).*Missing: at least one of the other "
                r"processes\..*missing ranks for SyncBatchNorm.absent_#0.forward after "
                "HOROVOD_STALL_CHECK_TIME"
            )
            expected["absent again"] = "forward waited "
            expected["stopped"] = "SyncBatchNorm 'stopped'.*forward waited "
        assert note["told"].keys() == expected.keys()
        for name, words in expected.items():
            assert re.search(words, note["told"][name], re.DOTALL), (name, note["told"][name])
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
