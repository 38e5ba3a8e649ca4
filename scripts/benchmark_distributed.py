"""Time exchanges between processes beside Horovod's own operations on messages of the same size.

Start it with Horovod's launcher; rank 0 prints a table of medians and quartiles in ms:

    horovodrun --gloo -np 2 .venv/bin/python scripts/benchmark_distributed.py
    mpirun -np 2 .venv/bin/python scripts/benchmark_distributed.py

It times the forward pass of one layer on data of shape (2, C, 1, 1), which takes hardly any time to
compute. It compares with a layer that exchanges nothing, an allreduce of 2C doubles, and an
allgather of messages as long as the layer's. "exchange" is the layer minus the layer alone.

All operations go through MXNet's engine, in random order and in the same processes. The processes
meet before each, and start it at a random time of Horovod's cycle. Otherwise an operation that ends
just after the start of a cycle would always wait for the next cycle.

With --many it measures how the time and the memory of a step grow with processes, contexts and
layers. A step is a forward and a backward pass of layers of 64 channels. It compares with MXNet's
BatchNorm on the same contexts. This starts a launcher for each case itself:

    .venv/bin/python scripts/benchmark_distributed.py --many [--plot growth.png]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict

import gluon_syncbn
import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet.gluon import nn

from benchmarks.report import cell, format_table

CHANNELS = (64, 256, 1024, 2048)
# (processes, contexts of each process, layers)
MANY = [
    *((processes, 1, 10) for processes in (1, 2, 4, 8, 16)),
    (4, 4, 10),
    *((1, contexts, 10) for contexts in (8, 16, 32, 64)),
    *((processes, 2, layers) for processes in (1, 2) for layers in (10, 100, 1000)),
]
HEADER = 9  # the words of a message before its numbers (src/distributed/message.cc)

Calls = Dict[str, Callable[[], Any]]


def measure(calls: Calls, repeats: int, warm_up: int) -> dict[str, list[float]]:
    """Time each call on this process, in ms."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    chance = random.Random(0)
    cycle = float(os.environ.get("HOROVOD_CYCLE_TIME", "1")) / 1e3
    for repeat in range(warm_up + repeats):
        for name in chance.sample(sorted(calls), len(calls)):
            hvd.allreduce(mx.nd.zeros(1), name="meet").wait_to_read()
            time.sleep(chance.random() * 2 * cycle)
            begin = time.perf_counter()
            calls[name]()
            if repeat >= warm_up:
                times[name].append(1e3 * (time.perf_counter() - begin))
    return times


def forward(channels: int, **options: Any) -> Callable[[], None]:
    """Return the forward pass of a layer in training."""
    layer = gluon_syncbn.SyncBatchNorm(in_channels=channels, **options)
    layer.initialize()
    layer.hybridize()
    data = mx.nd.random.normal(shape=(2, channels, 1, 1))

    def call() -> None:
        with mx.autograd.train_mode():
            out = layer(data)
        out.wait_to_read()

    return call


def calls_of(channels: int) -> Calls:
    """Return the functions to time for a number of channels."""
    sums = mx.nd.zeros((2 * channels,), dtype="float64")
    message = mx.nd.zeros((HEADER + 2 * channels,), dtype="int64")
    return {
        "layer": forward(channels, process_set=hvd.global_process_set),
        "alone": forward(channels),
        "allreduce": lambda: hvd.allreduce(
            sums, op=hvd.Sum, name=f"sums {channels}"
        ).wait_to_read(),
        "allgather": lambda: hvd.allgather(message, name=f"message {channels}").wait_to_read(),
    }


def step_of(norm: Any, contexts: int, layers: int) -> Callable[[], None]:
    """Return a step of a chain of layers of 64 channels, forward and backward."""
    gluon_syncbn.prepare_cpu_contexts()
    ctx = [mx.cpu(i) for i in range(contexts)]
    net = nn.HybridSequential()
    for _ in range(layers):
        net.add(norm(in_channels=64))
    net.initialize(ctx=ctx)
    net.hybridize()
    data = [mx.nd.random.normal(shape=(2, 64, 1, 1), ctx=c) for c in ctx]

    def call() -> None:
        with mx.autograd.record():
            outs = [net(part) for part in data]
        mx.autograd.backward(outs)
        mx.nd.waitall()

    return call


def resident() -> float:
    """Return the memory of this process in MiB."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def one_of_many(contexts: int, layers: int) -> None:
    """Print the rest of a line of the table: the times of a step, and the memory that it adds."""
    gluon_syncbn.init()
    gluon_syncbn.set_timeout(600)
    step_of(gluon_syncbn.SyncBatchNorm, 1, 1)()  # adds the memory that any first step adds
    before = resident()
    line: list[Any] = []
    for norm in (gluon_syncbn.SyncBatchNorm, nn.BatchNorm):
        call = step_of(norm, contexts, layers)
        line.append(measure({"step": call}, max(5, 200 // layers), warm_up=3)["step"])
        if norm is not nn.BatchNorm:  # It reuses the memory of the other network's arrays.
            line.append(round(resident() - before))
    if hvd.rank() == 0:
        print(json.dumps(line))


def draw(lines: list[list[Any]], path: Path) -> None:
    """Draw how a step grows with one of processes, contexts and layers."""
    from matplotlib import pyplot as plt  # keeps it out of the processes that are measured

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True)
    for ax, vary, fixed, title in (
        (axes[0], 0, [1, 10], "processes, of one context"),
        (axes[1], 1, [1, 10], "contexts of one process"),
        (axes[2], 2, [2, 2], "layers, in two processes of two contexts"),
    ):
        chosen = sorted(line for line in lines if line[:vary] + line[vary + 1 : 3] == fixed)
        counts = [line[vary] for line in chosen]
        for column, label in ((3, "SyncBatchNorm"), (5, "BatchNorm")):
            ax.loglog(counts, [np.median(line[column]) for line in chosen], "o-", label=label)
        ax.set_xticks(counts, counts)
        ax.minorticks_off()
        ax.set_xlabel(title)
    axes[0].set_ylabel("a step, ms")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def many(plot: Path | None) -> None:
    """Print the table of MANY, and draw it."""
    lines = []
    for processes, *rest in MANY:
        command = [str(Path(sys.executable).with_name("horovodrun")), "--gloo"]
        command += ["-np", str(processes), sys.executable, __file__, "--one-of-many"]
        command += map(str, rest)
        env = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "300", **os.environ}
        out = subprocess.run(command, check=True, env=env, stdout=subprocess.PIPE, text=True).stdout
        lines.append([processes, *rest, *json.loads(out[out.index("[[") :].split("\n")[0])])
        print(*map(cell, lines[-1]), file=sys.stderr)
    head = ["processes", "contexts", "layers", "SyncBatchNorm, ms", "MiB", "BatchNorm, ms"]
    print(format_table(head, lines))
    if plot:
        draw(lines, plot)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--many", action="store_true")
    parser.add_argument("--plot", type=Path, help="file for a picture of --many")
    parser.add_argument("--one-of-many", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.many:
        many(options.plot)
        return
    hvd.init()
    if options.one_of_many:
        one_of_many(*options.one_of_many)
        return
    lines = []
    for channels in CHANNELS:
        times = measure(calls_of(channels), repeats=200, warm_up=20)
        layer, alone, allreduce, allgather = map(np.median, times.values())
        exchange = float(layer - alone)
        lines.append([channels, *times.values(), exchange / allreduce, exchange / allgather])
    if hvd.rank() == 0:
        print(f"{hvd.size()} processes, {'MPI' if hvd.mpi_enabled() else 'gloo'}\n")
        print(format_table(["C", *times, "exchange / allreduce", "exchange / allgather"], lines))


if __name__ == "__main__":
    main()
