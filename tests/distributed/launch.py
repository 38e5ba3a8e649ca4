"""Starting real processes with horovodrun and mpirun."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Collection

import pytest

from tests.support.processes import ROOT, clean_environment

from ..conftest import DEVICE

if TYPE_CHECKING:
    import psutil

WORKERS = Path(__file__).parent / "workers"
BIN = Path(sys.executable).parent
HOROVODRUN = Path(__file__).with_name("horovodrun.py")


def why_not() -> str | None:
    """What keeps these tests from running on this machine."""
    try:
        import horovod.mxnet as hvd
    except ImportError as error:
        return f"Horovod is missing ({error}); scripts/setup.sh --distributed installs it"
    if not hvd.gloo_built():
        return "Horovod was built without gloo; scripts/setup.sh --distributed builds it with gloo"
    return None


def needs_mpi() -> None:
    """Skip the test where Horovod cannot use MPI."""
    import horovod.mxnet as hvd

    if not hvd.mpi_built() or shutil.which("mpirun") is None:
        pytest.skip(
            "Open MPI is missing, or Horovod was built without it; "
            "scripts/setup.sh --distributed installs both"
        )


def needs_gpus(contexts: str) -> None:
    """Skip a test of contexts other than "cpu" where there are no GPUs for it."""
    import mxnet as mx

    if contexts == "cpu":
        return
    gpus = mx.context.num_gpus()
    if gpus < 2:
        pytest.skip(f"needs 2 GPUs and MXNet for CUDA; MXNet finds {gpus}")


def notes(folder: Path, processes: int, missing: Collection[int] = ()) -> list[dict]:
    """What the processes reported, in the order of ranks; fails where one left no note."""
    ranks = [rank for rank in range(processes) if rank not in missing]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in ranks]


@dataclass
class Job:
    """What a job of several processes left behind."""

    status: int
    output: str


def start(
    worker: str,
    processes: int,
    *arguments: str,
    mpi: bool = False,
    program: Path | None = None,
    timeout: float = 300,
    on_host: list[str] | None = None,
    leaves: int = 0,
    patience: float = 5,
    **environment: str,
) -> Job:
    """Run one of ``workers``, or `program`, in several processes; expect none to be left over.

    They start with horovodrun and gloo, or with `mpi` with mpirun. After `timeout` seconds the job
    is killed and the test fails. With `on_host`, what two_hosts() yields, half of them run on each
    of two hosts. The launcher may leave processes that it cannot reach, but no more than `leaves`.
    For `patience` seconds horovodrun lets processes go on after one of them has ended.
    In `environment`, ``SYNCBN_TEST_CONTEXTS`` is "cpu", "gpu" or "mixed".
    """
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    if mpi:
        needs_mpi()
        launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
        launcher += ["-np", str(processes)]
    else:
        launcher = [sys.executable, str(HOROVODRUN), "--gloo", "-np", str(processes)]
    if on_host is not None:
        launcher = [*on_host, *launcher, "-H", f"a:{processes // 2},b:{processes // 2}"]
        launcher += [] if mpi else ["--disable-cache", "--network-interfaces", "eth0"]
    kind = environment.setdefault("SYNCBN_TEST_CONTEXTS", DEVICE)
    marker = f"{os.getpid()}-{time.monotonic_ns()}"
    added = {
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOROVOD_CYCLE_TIME": "0.5",
        "OMP_NUM_THREADS": "1",
        "SYNCBN_TEST_JOB": marker,
        "SYNCBN_TEST_PATIENCE": str(patience),
        **environment,
    }
    if mpi and on_host is not None:
        for name in added:
            launcher += ["-x", name]
    path = program or WORKERS / f"{worker}.py"
    with subprocess.Popen(
        [*launcher, sys.executable, "-W", "ignore", str(path), *arguments],
        env={**(clean_environment() if kind == "cpu" else os.environ), **added},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            end(marker)
            output, _ = process.communicate()
            pytest.fail(f"{worker} did not end within {timeout:g} s:\n{output}")
    left = wait_for_end(marker)
    assert len(left) <= leaves, f"left over: {left}\n{output}"
    return Job(process.returncode, output)


def of_job(marker: str) -> list[psutil.Process]:
    """The processes that inherited the marker."""
    import psutil  # Horovod needs it too

    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SYNCBN_TEST_JOB") == marker:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def wait_for_end(marker: str, seconds: float = 15) -> list[str]:
    """Give the processes of a job some time to end; kill the others and return their commands."""
    deadline = time.monotonic() + seconds
    while (left := of_job(marker)) and time.monotonic() < deadline:
        time.sleep(0.1)
    commands = [" ".join(process.cmdline()) for process in left]
    end(marker)
    return commands


def end(marker: str) -> None:
    """Kill what is left of a job."""
    for process in of_job(marker):
        process.kill()
