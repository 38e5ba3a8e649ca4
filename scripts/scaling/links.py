"""What a message needs from one process to another: published figures, with their sources."""

from __future__ import annotations

from dataclasses import dataclass

NCCL = (
    "NVIDIA, NCCL 2.20.3 (2024), src/graph/tuning.cc (hwLat: ring, LL; baseLat) and "
    "src/graph/topo.h (PCI_BW, NET_BW, SM80_NVLINK_BW)"
)
TCP = (
    "J. Squyres, Ain't your father's TCP, Cisco Blogs: High Performance Computing Networking, 2012"
)
ETHERNET = "IEEE Std 802.3ae-2002: 10 Gb/s"


@dataclass(frozen=True)
class Link:
    """A way from one process to another.

    Attributes
    ----------
    latency : float
        Seconds until a message of no length has arrived.
    bandwidth : float
        Bytes a second.
    source : str
        Who published the figures.
    """

    latency: float
    bandwidth: float
    source: str

    def seconds(self, size: float) -> float:
        """Time of a message of `size` bytes (Hockney's model)."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Cluster:
    """Machines of `per_machine` processes, one for each GPU, and one network port each.

    Attributes
    ----------
    name : str
    inside, between : Link
        Within a machine, and from one to another.
    per_machine : int
        A power of two.
    start : float
        Seconds that starting a collective operation takes, beside Horovod.
    """

    name: str
    inside: Link
    between: Link
    per_machine: int = 8
    start: float = 0.0


HOST = Link(1.0e-6, 12e9, NCCL)  # through PCIe 3.0 x16 or host memory
NVLINK = Link(0.6e-6, 20e9, NCCL)  # one link
INFINIBAND = Link(2.7e-6, 12e9, NCCL)  # 100 Gb/s
ETHERNET_TCP = Link(10e-6, 1.25e9, f"{TCP}; {ETHERNET}")

# What the layer uses: its messages go through host memory, with MPI or gloo.
CLUSTERS = (
    Cluster("InfiniBand", HOST, INFINIBAND),
    Cluster("Ethernet", HOST, ETHERNET_TCP),
)
# For comparison: the same messages from GPU to GPU. A kernel has to be started for each.
NCCL_CLUSTER = Cluster("NCCL", NVLINK, INFINIBAND, start=6.6e-6)
