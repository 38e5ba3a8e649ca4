"""The processes that horovodrun or mpirun has started together; without them, this one alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gluon_syncbn
import mxnet as mx
from mxnet import gluon

LAUNCHERS = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE")  # what horovodrun and mpirun set


@dataclass(frozen=True)
class Job:
    """All processes that train together; `hvd` is None if this process is alone.

    `local_rank` and `local_size` count those of this machine. Horovod forgets rank and size when a
    process ends.
    """

    hvd: Any = None
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that reports."""
        return self.rank == 0

    def wait_for_all(self) -> None:
        """Return once all processes have come here."""
        self.sum(0.0)

    def sum(self, value: float) -> float:
        """Add up a number over all processes, in double precision."""
        if not self.hvd:
            return value
        own = mx.nd.array([value], dtype="float64")
        return float(self.hvd.allreduce(own, op=self.hvd.Sum, name="sum").asscalar())

    def share(self, batch: Any) -> Any:
        """Cut this process's part out of a batch; parts differ by one item at most."""
        return _part(batch, self.rank, self.size)

    def share_of_machine(self, devices: Any) -> Any:
        """Cut this process's part out of the devices of its machine."""
        return _part(devices, self.local_rank, self.local_size)

    def trainer(self, net: Any, optimizer: str, options: Mapping[str, Any]) -> Any:
        """Make a trainer that sums gradients over all contexts of all processes."""
        if not self.hvd:
            return gluon.Trainer(net.collect_params(), optimizer, dict(options))
        from gluon_syncbn.distributed_trainer import DistributedTrainer

        return DistributedTrainer(net.collect_params(), optimizer, dict(options))

    def save_parameters(self, net: Any, path: Path) -> None:
        """Save parameters in the first process, with the mean of all devices' running statistics.

        All processes have to call this.
        """
        means = {}
        for name, parameter in net._collect_params_with_prefix().items():
            means[name] = parameter._reduce()  # the mean over this process's contexts
            if self.hvd and parameter.grad_req == "null":
                means[name] = self.hvd.allreduce(means[name], name=f"mean of {name}")
        mx.nd.waitall()  # a process that ended meanwhile would break the others off
        if self.is_first:
            mx.nd.save(str(path), means)


def join_job() -> Job:
    """Find out how this program was started, and connect it with the others.

    From now on layers synchronize over all processes, and only the first one prints.
    """
    if all(int(os.environ.get(name, "1")) == 1 for name in LAUNCHERS):
        return Job()
    import horovod.mxnet as hvd

    hvd.init()
    gluon_syncbn.init()
    job = Job(hvd, hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
    if not job.is_first:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    return job


def _part(whole: Any, index: int, count: int) -> Any:
    return whole[len(whole) * index // count : len(whole) * (index + 1) // count]
