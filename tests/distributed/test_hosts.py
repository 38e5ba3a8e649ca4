"""Two hosts of two processes: the numbers of one device, and what a lost host or process leads to."""

from __future__ import annotations

import os
import subprocess
from typing import Iterator

import pytest

from . import hosts
from .launch import notes, start

MPI = pytest.mark.parametrize("mpi", [False, True], ids=["gloo", "mpi"])


@pytest.fixture()
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
    slow = "tc qdisc add dev eth0 root tbf rate 1mbit burst 5kb latency 1s"
    subprocess.run([*on_host, *slow.split()], check=True)
    job = start("trainer", 4, str(tmp_path), mpi=mpi, on_host=on_host)
    assert job.status == 0, job.output
    assert len(notes(tmp_path, 4)) == 4


@MPI
@pytest.mark.parametrize("what", ["killed", "halted", "cut"])
def test_a_loss_in_the_middle_of_a_step(what, mpi, on_host, tmp_path):
    job = start("faults", 4, str(tmp_path), what, mpi=mpi, on_host=on_host)
    print(job.output)
    for path in sorted(tmp_path.iterdir()):
        print(path.read_text())
    assert 0
