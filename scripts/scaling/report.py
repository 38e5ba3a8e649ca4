"""The tables of docs/distributed.md, and a plot."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Sequence

from benchmarks.report import format_table

from .links import CLUSTERS, NCCL_CLUSTER, Cluster
from .model import MEASURED, Job, Software, largest_group
from .networks import Levels, networks

PATH = Path(__file__).parents[2] / "docs" / "distributed.md"
BEGIN = "<!-- table: written by scripts/cost_model.py --write -->"

PROCESSES = (2, 8, 16, 64, 256, 1024, 4096)
SHOWN = "FCN-ResNet50"
GROUPED_IN = 1024
BUDGETS = (100.0, 200.0, 400.0)
CYCLES = (1.0, 0.1)
PER_MACHINE = 8


def _on_machines(clusters: Sequence[Cluster], per_machine: int) -> list[Cluster]:
    return [dataclasses.replace(cluster, per_machine=per_machine) for cluster in clusters]


def _with_cycle(cycle: float) -> Software:
    return dataclasses.replace(MEASURED, cycle=cycle * 1e-3)


def tables(
    cycles: Sequence[float] = CYCLES,
    budgets: Sequence[float] = BUDGETS,
    per_machine: int = PER_MACHINE,
) -> str:
    """Tables in Markdown: networks, milliseconds a step, and groups.

    Parameters
    ----------
    cycles, budgets : sequence of float
        HOROVOD_CYCLE_TIME, and what synchronizing may take in a step, in milliseconds.
    per_machine : int
        Processes on a machine; a power of two.
    """
    found = networks()
    layers = [
        [name, str(sum(map(len, levels))), str(len(levels)), str(sum(map(sum, levels)))]
        for name, levels in found.items()
    ]
    parts = [format_table(["network", "layers", "exchanges", "channels"], layers)]
    for cycle in cycles:
        parts += [
            f"{SHOWN}, milliseconds a step, cycle {cycle:g} ms, {per_machine} processes a machine:",
            _steps(found[SHOWN], cycle, per_machine),
        ]
    parts += [
        f"Largest group that synchronizes within so many milliseconds a step, {GROUPED_IN} "
        "processes:",
        _groups(found, cycles, budgets, per_machine),
    ]
    return "\n\n".join(parts)


def _steps(levels: Levels, cycle: float, per_machine: int) -> str:
    head, jobs = ["processes"], []
    for cluster in _on_machines((*CLUSTERS, NCCL_CLUSTER), per_machine):
        head += [f"{cluster.name}, allgather", "allreduce"]
        jobs.append(Job(cluster, 1, 1, _with_cycle(cycle)))
    lines = []
    for processes in PROCESSES:
        line = [str(processes)]
        for job in jobs:
            whole = dataclasses.replace(job, processes=processes, group=processes)
            line += [f"{whole.step(levels, reduce) * 1e3:.1f}" for reduce in (False, True)]
        lines.append(line)
    return format_table(head, lines)


def _groups(
    found: dict[str, Levels], cycles: Sequence[float], budgets: Sequence[float], per_machine: int
) -> str:
    lines = []
    for cluster in _on_machines(CLUSTERS, per_machine):
        for cycle in cycles:
            for name, levels in found.items():
                groups = [
                    largest_group(cluster, GROUPED_IN, _with_cycle(cycle), levels, budget / 1e3)
                    for budget in budgets
                ]
                lines.append([cluster.name, f"{cycle:g} ms", name, *map(str, groups)])
    return format_table(
        ["network of machines", "cycle", "network", *(f"{budget:g} ms" for budget in budgets)],
        lines,
    )


def plot(folder: Path, cycle: float = CYCLES[-1], per_machine: int = PER_MACHINE) -> None:
    """Draw what synchronizing adds against the number of processes into cost_model.svg."""
    import matplotlib.pyplot as plt

    clusters = _on_machines((*CLUSTERS, NCCL_CLUSTER), per_machine)
    software = _with_cycle(cycle)
    found = networks()
    processes = [1 << k for k in range(1, 14)]
    figure, axes = plt.subplots(1, len(found), figsize=(12, 4), sharey=True)
    for ax, (name, levels) in zip(axes, found.items()):
        for number, cluster in enumerate(clusters):
            for reduce, style in ((False, "-"), (True, "--")):
                steps = [
                    Job(cluster, count, count, software).step(levels, reduce) * 1e3
                    for count in processes
                ]
                label = f"{cluster.name}, {'allreduce' if reduce else 'allgather'}"
                ax.loglog(processes, steps, style, color=f"C{number}", label=label)
        ax.set(title=name, xlabel="processes")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("ms a step for synchronizing")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "cost_model.svg", metadata={"Date": None})
    plt.close(figure)
