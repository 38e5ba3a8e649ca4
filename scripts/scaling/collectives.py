"""How long collective operations take.

All assume that every process starts at the same time and that a round lasts as long as its slowest
message. Processes of one machine have neighbouring ranks and share its network port. Formulas for
equal links: R. Thakur, R. Rabenseifner and W. Gropp, Optimization of Collective Communication
Operations in MPICH, International Journal of High Performance Computing Applications 19(1), 2005.
"""

from __future__ import annotations

from .links import Cluster


def _rounds(processes: int) -> int:
    """Logarithm to the base of 2."""
    if processes < 1 or processes & (processes - 1):
        raise ValueError(f"processes={processes} should be a power of two")
    return processes.bit_length() - 1


def _crossing(cluster: Cluster, distance: int, size: float) -> float:
    """All processes swap `size` bytes with the one whose rank differs by `distance`."""
    if distance < cluster.per_machine:
        return cluster.inside.seconds(size)
    return cluster.between.seconds(size * cluster.per_machine)


def _step_of_ring(cluster: Cluster, processes: int, size: float) -> float:
    """All processes send `size` bytes to their right neighbour."""
    link = cluster.inside if processes <= cluster.per_machine else cluster.between
    return link.seconds(size)


def allgather_by_doubling(cluster: Cluster, processes: int, size: float) -> float:
    """Recursive doubling; `size` bytes from every process: log2(P) a + (P - 1) size b."""
    return sum(_crossing(cluster, 1 << k, size * (1 << k)) for k in range(_rounds(processes)))


def allgather_by_ring(cluster: Cluster, processes: int, size: float) -> float:
    """(P - 1) (a + size b): what gloo does."""
    return (processes - 1) * _step_of_ring(cluster, processes, size)


def allreduce_by_doubling(cluster: Cluster, processes: int, size: float) -> float:
    """Recursive doubling of `size` bytes: log2(P) (a + size b)."""
    return sum(_crossing(cluster, 1 << k, size) for k in range(_rounds(processes)))


def allreduce_by_tree(cluster: Cluster, processes: int, size: float) -> float:
    """Reduce along a binomial tree and back: 2 log2(P) (a + size b).

    In every round at most one process of a machine uses the network.
    """
    return 2 * sum(
        (cluster.inside if 1 << k < cluster.per_machine else cluster.between).seconds(size)
        for k in range(_rounds(processes))
    )


def allreduce_by_ring(cluster: Cluster, processes: int, size: float) -> float:
    """Reduce-scatter and allgather: 2 (P - 1) (a + size b / P)."""
    return 2 * (processes - 1) * _step_of_ring(cluster, processes, size / processes)


ALLGATHER = (allgather_by_doubling, allgather_by_ring)
ALLREDUCE = (allreduce_by_doubling, allreduce_by_tree, allreduce_by_ring)


def allgather(cluster: Cluster, processes: int, size: float) -> float:
    """Compute seconds to give every process `size` bytes of every other, the best way."""
    return cluster.start + min(way(cluster, processes, size) for way in ALLGATHER)


def allreduce(cluster: Cluster, processes: int, size: float) -> float:
    """Compute seconds to sum up `size` bytes over all processes, the best way."""
    return cluster.start + min(way(cluster, processes, size) for way in ALLREDUCE)
