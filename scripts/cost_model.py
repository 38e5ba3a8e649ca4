#!/usr/bin/env python
"""Estimate what synchronizing adds to a training step, up to thousands of processes.

    .venv/bin/python scripts/cost_model.py               # prints the tables
    .venv/bin/python scripts/cost_model.py --write       # and puts them into docs/distributed.md
    .venv/bin/python scripts/cost_model.py --out runs/cost_model   # and plots

The model: layers that do not wait for each other exchange in one message; a message waits for the
last process to begin a cycle of Horovod, then Horovod finds out what is ready everywhere, then the
network carries it. docs/distributed.md says where its parameters come from.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import warnings
from pathlib import Path
from typing import Any, List, NamedTuple, Sequence

import mxnet as mx

import doc_table
from benchmarks.report import format_table

PATH = Path(__file__).parents[1] / "docs" / "distributed.md"
BEGIN = "<!-- table: written by scripts/cost_model.py --write -->"
SHOWN, GROUPED_IN, IMAGE = "FCN-ResNet50", 1024, 480

PASSES = 2  # one exchange in forward, one in backward
HEADER = 9  # words of ProcessMessage beside the values; src/distributed/message.cc
WORD = 8
CACHE_BITS = 1024  # HOROVOD_CACHE_CAPACITY
HANDLING = 0.4e-3  # seconds of MXNet's engine, Horovod and this library for an exchange
MERGING = 2e-9  # seconds to merge one channel of one process into another's

# Channels of the layers whose exchanges are under way together, in the order of calls.
Levels = List[List[int]]


class Link(NamedTuple):
    latency: float  # seconds
    bandwidth: float  # bytes a second


class Cluster(NamedTuple):
    """Machines of `per_machine` processes with neighbouring ranks, which share a network port.

    The methods give the seconds of an operation of P processes with `size` bytes each; P and
    `per_machine` are powers of two. Formulas: R. Thakur, R. Rabenseifner and W. Gropp, Optimization
    of Collective Communication Operations in MPICH, 2005, here with two kinds of links.
    """

    name: str
    inside: Link
    between: Link
    per_machine: int = 8
    start: float = 0.0  # seconds before each operation

    def message(self, distance: int, size: float, sharing: int = 1) -> float:
        """Time to the rank at `distance`, if `sharing` processes of a machine send at a time."""
        if distance < self.per_machine:
            return self.inside.latency + size / self.inside.bandwidth
        return self.between.latency + sharing * size / self.between.bandwidth

    def doubling(self, processes: int, size: float) -> float:
        """Allreduce: swap sums with ever farther partners."""
        return sum(self.message(d, size, self.per_machine) for d in distances(processes))

    def allreduce(self, processes: int, size: float) -> float:
        """Take the best of doubling, a tree there and back, and a ring twice round."""
        tree = 2 * sum(self.message(d, size) for d in distances(processes))
        ring = 2 * (processes - 1) * self.message(processes - 1, size / processes)
        return self.start + min(self.doubling(processes, size), tree, ring)

    def allgather(self, processes: int, size: float) -> float:
        """Take the better of doubling, with all that is gathered so far, and a ring as in gloo."""
        doubling = sum(self.message(d, size * d, self.per_machine) for d in distances(processes))
        return self.start + min(doubling, (processes - 1) * self.message(processes - 1, size))


def distances(processes: int) -> list[int]:
    return [1 << k for k in range(processes.bit_length() - 1)]


def clusters(per_machine: int = 8) -> list[Cluster]:
    """List what the layer can use, through host memory, and last, for comparison, NCCL."""
    host, infiniband = Link(1.0e-6, 12e9), Link(2.7e-6, 12e9)
    return [
        Cluster("InfiniBand", host, infiniband, per_machine),
        Cluster("Ethernet", host, Link(10e-6, 1.25e9), per_machine),
        Cluster("NCCL", Link(0.6e-6, 20e9), infiniband, per_machine, start=6.6e-6),
    ]


def step(
    cluster: Cluster, cycle: float, levels: Levels, processes: int, group: int, reduce: bool = False
) -> float:
    """Milliseconds that synchronizing in groups adds to a step, with a cycle of `cycle` ms.

    A group gathers and merges, or lets Horovod add up float64 sums (`reduce`).
    """
    # In every cycle, all processes combine a bit for each name, and so do those of a process set.
    negotiation = sum(cluster.doubling(size, CACHE_BITS / 8) for size in {processes, group})
    # Half a cycle passes until the first process looks for messages. With starts that are spread
    # evenly, the last looks (P - 1) / (P + 1) of a cycle later.
    spread = (processes - 1) / (processes + 1)
    waiting = max(cycle / 1e3, negotiation) / 2 + cycle / 1e3 * spread
    total = len(levels) * (waiting + negotiation + HANDLING)
    for channels in map(sum, levels):
        if reduce:
            total += cluster.allreduce(group, WORD * (1 + 2 * channels))
        else:
            total += cluster.allgather(group, WORD * (HEADER + 2 * channels))
            total += group * channels * MERGING
    return 1e3 * PASSES * total


def largest_group(
    cluster: Cluster, cycle: float, levels: Levels, processes: int, budget: float
) -> int:
    """Find the largest group that needs at most `budget` ms a step; 1 if none does."""
    groups = (2 * distance for distance in distances(processes))
    fit = (group for group in groups if step(cluster, cycle, levels, processes, group) <= budget)
    return max(fit, default=1)


def times(every: Sequence[Cluster], cycle: float, levels: Levels, processes: int) -> list[float]:
    """Milliseconds a step of all processes on every cluster, by allgather and by allreduce."""
    return [
        step(cluster, cycle, levels, processes, processes, reduce)
        for cluster in every
        for reduce in (False, True)
    ]


def levels_of(symbol: Any, size: int = IMAGE) -> Levels:
    """Group the normalizations of a graph by how many of them lie on the longest way to each."""
    shapes, _, _ = symbol.infer_shape(data=(2, 3, size, size))
    shape_of = dict(zip(symbol.list_arguments(), shapes))
    nodes = json.loads(symbol.tojson())["nodes"]
    depth: list[int] = []
    levels: dict[int, list[int]] = {}
    for node in nodes:
        sources = [source for source, *_ in node["inputs"]]
        before = max((depth[source] for source in sources), default=0)
        depth.append(before + (node["op"] == "BatchNorm"))
        if node["op"] == "BatchNorm":
            levels.setdefault(before, []).append(shape_of[nodes[sources[1]]["name"]][0])
    return [levels[level] for level in sorted(levels)]


def networks() -> dict[str, Levels]:
    """GluonCV's segmentation networks on ResNet-50, as they are trained: with auxiliary head."""
    from gluoncv.model_zoo import FCN, DeepLabV3, PSPNet

    found = {}
    for family in (FCN, PSPNet, DeepLabV3):
        # Their constructors print and warn of what concerns initialization only.
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net = family(21, "resnet50", aux=True, pretrained_base=False, crop_size=IMAGE)
            outputs = mx.sym.Group(list(net(mx.sym.var("data"))))
        found[f"{family.__name__}-ResNet50"] = levels_of(outputs)
    return found


def tables(options: argparse.Namespace, found: dict[str, Levels]) -> str:
    """Tables in Markdown: networks, milliseconds a step, and groups."""
    every, cycles, budgets = clusters(options.per_machine), options.cycle_time, options.budget
    lines = [
        [name, *map(str, (sum(map(len, levels)), len(levels), sum(map(sum, levels))))]
        for name, levels in found.items()
    ]
    parts = [format_table(["network", "layers", "exchanges", "channels"], lines)]
    head = [title for c in every for title in (f"{c.name}, allgather", "allreduce")]
    for cycle in cycles:
        lines = [
            [str(count), *map("{:.1f}".format, times(every, cycle, found[SHOWN], count))]
            for count in (2, 8, 16, 64, 256, 1024, 4096)
        ]
        parts += [
            f"{SHOWN}, milliseconds a step, cycle {cycle:g} ms, {options.per_machine} processes a "
            "machine:",
            format_table(["processes", *head], lines),
        ]
    lines = [
        [cluster.name, f"{cycle:g} ms", name]
        + [str(largest_group(cluster, cycle, levels, GROUPED_IN, budget)) for budget in budgets]
        for cluster in every[:-1]
        for cycle in cycles
        for name, levels in found.items()
    ]
    head = ["network of machines", "cycle", "network", *(f"{budget:g} ms" for budget in budgets)]
    parts += [
        f"Largest group that synchronizes within so many milliseconds a step, {GROUPED_IN} "
        "processes:",
        format_table(head, lines),
    ]
    return "\n\n".join(parts)


def plot(options: argparse.Namespace, found: dict[str, Levels]) -> None:
    """Draw what synchronizing adds against the number of processes into cost_model.svg."""
    import matplotlib.pyplot as plt

    every, counts = clusters(options.per_machine), [1 << k for k in range(1, 14)]
    labels = [f"{c.name}, {way}" for c in every for way in ("allgather", "allreduce")]
    figure, axes = plt.subplots(1, len(found), figsize=(12, 4), sharey=True, layout="constrained")
    for ax, (name, levels) in zip(axes, found.items()):
        lines = [times(every, options.cycle_time[-1], levels, count) for count in counts]
        ax.set_prop_cycle(color=list("bbrrgg"), linestyle=["-", "--"] * 3)
        ax.loglog(counts, lines, label=labels)
        ax.set(title=name, xlabel="processes")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("ms a step for synchronizing")
    axes[0].legend(fontsize=7)
    options.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out / "cost_model.svg", metadata={"Date": None})


def main(arguments: list[str] | None = None) -> None:
    """Print, write and plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    cycles, budgets = [1.0, 0.1], [100.0, 200.0, 400.0]
    add("--cycle-time", type=float, nargs="+", default=cycles, help="HOROVOD_CYCLE_TIME in ms")
    add("--budget", type=float, nargs="+", default=budgets, help="ms a step for synchronizing")
    add("--per-machine", type=int, default=8, help="processes on a machine, a power of two")
    add("--write", action="store_true", help="put the tables into the docs")
    add("--out", type=Path, help="folder for the plot, cost_model.svg, with the last cycle")
    options = parser.parse_args(arguments)
    found = networks()
    text = tables(options, found)
    print(text)
    if options.write:
        doc_table.write(PATH, BEGIN, text)
    if options.out:
        plot(options, found)


if __name__ == "__main__":
    main()
