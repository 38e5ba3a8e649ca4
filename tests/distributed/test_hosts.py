"""Two hosts of two processes: the numbers of one device, and errors where one of them is lost."""

from __future__ import annotations

import re
import subprocess
from typing import Iterator

import pytest

from . import hosts
from .launch import notes, start

MPI = pytest.mark.parametrize("mpi", [False, True], ids=["gloo", "mpi"])


@pytest.fixture
def on_host(tmp_path_factory) -> Iterator[list[str]]:
    reason = hosts.why_not()
    if reason is not None:
        pytest.skip(reason)
    with hosts.two_hosts(tmp_path_factory.mktemp("hosts")) as command:
        yield command


@MPI
@pytest.mark.parametrize("worker", ["equality", "trainer"])
def test_two_hosts_compute_what_one_device_does(worker, mpi, on_host, tmp_path):
    job = start(worker, 4, str(tmp_path), mpi=mpi, on_host=on_host)
    assert job.status == 0, job.output
    assert [note["host"] for note in notes(tmp_path, 4)] == ["a", "a", "b", "b"]


@MPI
def test_a_slow_cable_changes_no_number(mpi, on_host, tmp_path):
    slow = "tc qdisc add dev eth0 root tbf rate 200kbit burst 2kb latency 1s"
    subprocess.run([*on_host, *slow.split()], check=True)
    job = start("trainer", 4, str(tmp_path), mpi=mpi, on_host=on_host)
    assert job.status == 0, job.output
    assert len(notes(tmp_path, 4)) == 4


UNREACHED = "Missing: at least one of the other processes."


@MPI
def test_a_process_is_killed(mpi, on_host, tmp_path):
    job = start("faults", 4, str(tmp_path), "killed", mpi=mpi, on_host=on_host, patience=200)
    assert job.status != 0
    if mpi:  # ends the others before they can say anything
        assert re.search(r"process rank 3 with PID \d+ on node b exited on signal 9", job.output)
        return
    assert "Process 3 exit with status code" in job.output
    told = [note["told"] for note in notes(tmp_path, 4, missing={3})]
    assert all("SyncBatchNorm 'second'" in error for error in told), told
    # Those that read from it notice at once, and others when one of these ends.
    failed = ["the exchange with other processes has failed: " in error for error in told]
    assert any(failed), told
    assert all(f or UNREACHED in error for f, error in zip(failed, told)), told


@MPI
def test_a_process_is_stopped(mpi, on_host, tmp_path):
    # horovodrun ends its ssh, and what ssh has started cannot notice before it goes on.
    leaves = 0 if mpi else 1
    job = start("faults", 4, str(tmp_path), "halted", mpi=mpi, on_host=on_host, leaves=leaves)
    assert job.status != 0
    for note in notes(tmp_path, 4, missing={3}):
        assert "SyncBatchNorm 'second'" in note["told"]
        assert UNREACHED in note["told"]


@MPI
def test_a_cable_is_cut(mpi, on_host, tmp_path):
    job = start("faults", 4, str(tmp_path), "cut", mpi=mpi, on_host=on_host)
    assert job.status != 0
    for note in notes(tmp_path, 4):
        assert "SyncBatchNorm 'second'" in note["told"]
        assert UNREACHED in note["told"]
