"""What synchronizing adds to a training step, from the parts that can be known."""

from __future__ import annotations

from dataclasses import dataclass

from .collectives import allgather, allreduce, allreduce_by_doubling
from .links import Cluster
from .networks import Levels

PASSES = 2  # one exchange in forward, one in backward
HEADER = 9  # words of ProcessMessage beside the values; src/core/process_message.cc
WORD = 8
CACHE_BITS = 1024  # HOROVOD_CACHE_CAPACITY


@dataclass(frozen=True)
class Software:
    """What does not depend on the network.

    Attributes
    ----------
    cycle : float
        Seconds; HOROVOD_CYCLE_TIME.
    handling : float
        Seconds of MXNet's engine, Horovod and this library for an exchange between two processes
        of one machine, waiting for the cycle left out.
    merging : float
        Seconds to merge the part of one process into another's, for one channel.
    """

    cycle: float
    handling: float
    merging: float


# 2-core AMD EPYC, 2026-11-21; docs/distributed.md says how.
MEASURED = Software(cycle=1e-3, handling=0.4e-3, merging=2e-9)


@dataclass(frozen=True)
class Job:
    """A training job.

    Attributes
    ----------
    cluster : Cluster
    processes : int
        Of the job; a power of two.
    group : int
        Processes that synchronize with each other: a process set, or all; a power of two.
    software : Software
    """

    cluster: Cluster
    processes: int
    group: int
    software: Software

    def negotiation(self) -> float:
        """Seconds in which Horovod finds out what is ready everywhere.

        In every cycle, all processes combine a bit for each name they know, and so do those of
        every process set.
        """
        sets = {self.processes, self.group}
        return sum(allreduce_by_doubling(self.cluster, size, CACHE_BITS / 8) for size in sets)

    def waiting(self) -> float:
        """Seconds from a call to the cycle that carries its message, on average.

        Half a cycle passes until the first process looks for messages. The others look later, each
        a cycle after it last did so, and the first waits for the last of them: with starts that are
        spread evenly, (P - 1) / (P + 1) of a cycle.
        """
        spread = (self.processes - 1) / (self.processes + 1)
        return max(self.software.cycle, self.negotiation()) / 2 + self.software.cycle * spread

    def gathering(self, channels: int) -> float:
        """Seconds of an exchange as it is: gathered, and merged by Chan's formula."""
        size = WORD * (HEADER + 2 * channels)
        network = allgather(self.cluster, self.group, size)
        return self._around() + network + self.group * channels * self.software.merging

    def reducing(self, channels: int) -> float:
        """Seconds of an exchange of float64 sums, which Horovod would add up."""
        size = WORD * (1 + 2 * channels)
        return self._around() + allreduce(self.cluster, self.group, size)

    def _around(self) -> float:
        return self.waiting() + self.negotiation() + self.software.handling

    def step(self, levels: Levels, reduce: bool = False, fused: bool = True) -> float:
        """Seconds that synchronizing adds to a step.

        Parameters
        ----------
        levels : list of tuple of int
            Channels of the layers whose messages are under way together.
        reduce : bool
            With an allreduce instead of an allgather.
        fused : bool
            Whether Horovod merges messages that are under way together.
        """
        exchange = self.reducing if reduce else self.gathering
        messages = [
            sum(level) if fused else channels
            for level in levels
            for channels in (level[:1] if fused else level)
        ]
        return PASSES * sum(map(exchange, messages))


def largest_group(
    cluster: Cluster, processes: int, software: Software, levels: Levels, budget: float
) -> int:
    """Find the largest group that needs at most `budget` seconds a step; 1 where none does."""
    group = processes
    while group > 1 and Job(cluster, processes, group, software).step(levels) > budget:
        group //= 2
    return group
