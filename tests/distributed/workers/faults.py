"""What goes wrong between processes, and what each of them is told."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

import gluon_syncbn
import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet.gluon import nn

from tests.distributed.workers.job import contexts, init, report, wait_for_notes
from tests.support.step import Case, run

SHORT = 3.0
LONG = 60.0


def error_of(call: Callable[[], Any], pending: bool = False) -> str:
    """The error of a call, or "" where it succeeds.

    While a process stays away, Horovod's operation is `pending`, and waitall() would wait for it.
    """
    try:
        call()
    except mx.base.MXNetError as error:
        return str(error)
    finally:
        if not pending:
            with contextlib.suppress(mx.base.MXNetError):
                mx.nd.waitall()
    return ""


def step_or_raise(net: Any, channels: int = 3, devices: int = 1) -> None:
    """One step; raises what any of its arrays holds."""
    rng = np.random.default_rng(hvd.rank())
    data = rng.standard_normal((2 * devices, channels)).astype("float32")
    arrays = run(net, Case(data, (2,) * devices), contexts(2)[:devices])
    for array in (*arrays["out"], *[x.grad for x in arrays["x"]]):
        array.wait_to_read()


def begin_together() -> None:
    hvd.allreduce(mx.nd.ones((1,)), name="begin together").wait_to_read()


def layer(prefix: str, number: int = 1) -> Any:
    made = gluon_syncbn.SyncBatchNorm(prefix=prefix)
    made.initialize(ctx=contexts(2)[:number])
    return made


def dies(rank: int) -> dict[str, str]:
    net = layer("mortal_")
    step_or_raise(net)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    # The launcher ends all processes after one has died; this one leaves its note first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Over gloo Horovod finds the dead, after 30 s at times. With MPI it waits for them.
    gluon_syncbn.set_timeout(SHORT if "OMPI_COMM_WORLD_RANK" in os.environ else 2 * LONG)
    return {"dies": error_of(lambda: step_or_raise(net), pending=True)}


def survives(rank: int, folder: Path) -> dict[str, str]:
    told = {}
    net = layer("channels_")
    told["channels"] = error_of(lambda: step_or_raise(net, channels=3 + rank))

    net = layer("local_", 2)
    told["fine before"] = error_of(lambda: step_or_raise(net, devices=2))
    gluon_syncbn.set_timeout(SHORT if rank == 1 else LONG)
    told["local"] = error_of(lambda: step_or_raise(net, devices=1 if rank == 1 else 2))
    gluon_syncbn.set_timeout(LONG)
    told["repeated"] = error_of(lambda: step_or_raise(net, devices=2))
    told["fine after"] = error_of(lambda: step_or_raise(net, devices=2))

    # Within the timeout, to be late is no fault.
    if rank == 1:
        time.sleep(SHORT / 2)
    gluon_syncbn.set_timeout(LONG)
    told["late"] = error_of(lambda: step_or_raise(net, devices=2))

    gluon_syncbn.set_timeout(SHORT)
    net = layer("absent_")
    begin_together()
    if rank != 1:
        told["absent"] = error_of(lambda: step_or_raise(net), pending=True)
        gluon_syncbn.drop_step()  # while an operation of Horovod waits for process 1
        told["absent again"] = error_of(lambda: step_or_raise(net), pending=True)
    else:
        time.sleep(2 * SHORT)

    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for _ in range(2 + (rank == 1)):
            net.add(gluon_syncbn.SyncBatchNorm())
    net.initialize(ctx=contexts(2)[:1])
    begin_together()
    told["layers"] = error_of(lambda: step_or_raise(net), pending=True)
    gluon_syncbn.drop_step()  # in all processes, which wait for each other in different layers

    net = layer("stopped_")
    stopped, seen = folder / "stopped", folder / "seen"
    if rank == 1:
        stopped.write_text(str(os.getpid()))
    begin_together()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        told["stopped"] = error_of(lambda: step_or_raise(net), pending=True)
    if rank == 2:
        seen.touch()
    if rank == 0:
        while not seen.exists():
            time.sleep(0.01)
        os.kill(int(stopped.read_text()), signal.SIGCONT)
    begin_together()  # no process ends before the others are done
    return told


LOST: dict[str, Callable[[], Any]] = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "halted": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "cut": lambda: set_cable("down"),
}


def set_cable(state: str) -> None:
    subprocess.run(["ip", "link", "set", "eth0", state], check=True)


def lost(rank: int, what: str) -> str:
    """The last process, or the cable of its host, is lost in the middle of a step."""
    first, second = layer("first_"), layer("second_")
    step_or_raise(first)
    step_or_raise(second)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gluon_syncbn.set_timeout(SHORT)
    x = mx.nd.array([[rank] * 3, [rank + 1.0] * 3])
    with mx.autograd.record():
        x = first(x)
        x.wait_to_read()
        if rank == hvd.size() - 1:
            LOST[what]()
        x = second(x)
    return error_of(x.wait_to_read, pending=True)


def main() -> None:
    folder, what = sys.argv[1], sys.argv[2]
    rank, size = init()
    gluon_syncbn.init()
    if what == "survives":
        report(folder, told=survives(rank, Path(folder)))
        return
    report(folder, told=dies(rank) if what == "dies" else lost(rank, what))
    # After the first process has ended, the launcher ends the others.
    silent = {"dies": 1, "killed": size - 1, "halted": size - 1}.get(what)
    wait_for_notes(folder, set(range(size)) - {silent})
    if what == "cut" and rank == size - 1:
        set_cable("up")  # for the launcher, which ends the processes of both hosts
    os._exit(1)  # at a normal end Horovod would wait for the dead where MPI goes on without it


if __name__ == "__main__":
    main()
