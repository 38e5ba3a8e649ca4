"""Time exchanges between processes beside Horovod's own operations on messages of the same size.

Start it with Horovod's launcher; rank 0 prints a table of medians and quartiles in ms:

    horovodrun --gloo -np 2 .venv/bin/python scripts/benchmark_distributed.py
    mpirun -np 2 .venv/bin/python scripts/benchmark_distributed.py

It times the forward pass of one layer on data of shape (2, C, 1, 1), which has next to nothing to
compute, beside a layer that exchanges nothing, an allreduce of 2C doubles, and an allgather of
messages as long as the layer's; the exchange is the layer less the layer alone. All go through
MXNet's engine and are taken in random order in the same processes. Processes meet before each, and
start at a random time of Horovod's cycle: without that, an operation that ends just after the start
of a cycle always waits for the next.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from typing import Any, Callable, Dict

import gluon_syncbn
import horovod.mxnet as hvd
import mxnet as mx

from benchmarks.report import cell, format_table, summary

WARM_UP = 20
HEADER = 9  # words of a message in front of its numbers (src/distributed/message.cc)

Calls = Dict[str, Callable[[], Any]]


def measure(calls: Calls, repeats: int) -> dict[str, dict[str, Any]]:
    """Median and quartiles of each call's time on this process."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    chance = random.Random(0)
    cycle = float(os.environ.get("HOROVOD_CYCLE_TIME", "1")) / 1e3
    for repeat in range(WARM_UP + repeats):
        for name in chance.sample(sorted(calls), len(calls)):
            hvd.allreduce(mx.nd.zeros(1), name="meet").wait_to_read()
            time.sleep(chance.random() * 2 * cycle)
            begin = time.perf_counter()
            calls[name]()
            if repeat >= WARM_UP:
                times[name].append(time.perf_counter() - begin)
    return {name: summary(found) for name, found in times.items()}


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
    """Return what is timed for a number of channels."""
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--channels", type=int, nargs="+", default=[64, 256, 1024, 2048])
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    hvd.init()
    lines = []
    for channels in options.channels:
        found = measure(calls_of(channels), options.repeats)
        medians = {name: result["median_ms"] for name, result in found.items()}
        exchange = medians["layer"] - medians["alone"]
        ratios = [exchange / medians[name] for name in ("allreduce", "allgather")]
        lines.append([str(channels), *map(cell, found.values()), *map("{:.2f}".format, ratios)])
    if hvd.rank() == 0:
        print(f"{hvd.size()} processes, {'MPI' if hvd.mpi_enabled() else 'gloo'}\n")
        print(format_table(["C", *found, "exchange / allreduce", "exchange / allgather"], lines))


if __name__ == "__main__":
    main()
