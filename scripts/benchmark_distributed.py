"""Time exchanges between processes beside Horovod's own operations on messages of the same size.

Start it with Horovod's launcher; rank 0 prints a table:

    horovodrun --gloo -np 2 .venv/bin/python scripts/benchmark_distributed.py
    mpirun -np 2 .venv/bin/python scripts/benchmark_distributed.py
    mpirun -np 2 .venv/bin/python scripts/benchmark_distributed.py fusion

``exchange`` times the forward pass of one layer on data of shape (2, C, 1, 1), which has next to
nothing to compute, beside a layer that exchanges nothing, an allreduce of 2C doubles, and an
allgather of messages as long as the layer's; the exchange is the layer less the layer alone. All go
through MXNet's engine and are taken in random order in the same processes. Processes meet before
each, and start at a random time of Horovod's cycle: without that, an operation that ends just
behind the start of a cycle always waits for the next. Given are medians and quartiles, in ms.

``accuracy`` compares the variance of data far from zero, in float64, by what the layer does
(moments are gathered and merged) and by an allreduce of the sums of x and of its square: largest
relative errors.

``fusion`` times the forward passes of several layers that do not wait for each other, and counts,
from Horovod's timeline, how many operations their exchanges took.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict

import gluon_syncbn
import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from benchmarks.report import cell, format_table, summary
from cost_model import HEADER

WARM_UP = 20

Calls = Dict[str, Callable[[], Any]]


def cycle_seconds() -> float:
    """Horovod's cycle."""
    return float(os.environ.get("HOROVOD_CYCLE_TIME", "1")) / 1e3


def meet() -> None:
    """Wait for all processes."""
    hvd.allreduce(mx.nd.zeros(1), name="meet").wait_to_read()


def measure(calls: Calls, repeats: int) -> dict[str, dict[str, Any]]:
    """Median and quartiles of each call's time on this process."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    chance = random.Random(0)
    for repeat in range(WARM_UP + repeats):
        for name in chance.sample(sorted(calls), len(calls)):
            meet()
            time.sleep(chance.random() * 2 * cycle_seconds())
            begin = time.perf_counter()
            calls[name]()
            if repeat >= WARM_UP:
                times[name].append(time.perf_counter() - begin)
    return {name: summary(found) for name, found in times.items()}


def forward(channels: int, number: int = 1, **options: Any) -> Callable[[], None]:
    """Return the forward pass, in training, of layers that do not wait for each other."""
    layers = [gluon_syncbn.SyncBatchNorm(in_channels=channels, **options) for _ in range(number)]
    for layer in layers:
        layer.initialize()
        layer.hybridize()
    data = mx.nd.random.normal(shape=(2, channels, 1, 1))

    def call() -> None:
        with mx.autograd.train_mode():
            outs = [layer(data) for layer in layers]
        for out in outs:
            out.wait_to_read()

    return call


def exchange(options: argparse.Namespace) -> None:
    """Print the table of single exchanges."""
    lines = []
    for channels in options.channels:
        sums = mx.nd.zeros((2 * channels,), dtype="float64")
        message = mx.nd.zeros((HEADER + 2 * channels,), dtype="int64")

        def allreduce(sums: Any = sums, name: str = f"sums {channels}") -> None:
            hvd.allreduce(sums, op=hvd.Sum, name=name).wait_to_read()

        def allgather(message: Any = message, name: str = f"message {channels}") -> None:
            hvd.allgather(message, name=name).wait_to_read()

        found = measure(
            {
                "layer": forward(channels, process_set=hvd.global_process_set),
                "alone": forward(channels),
                "allreduce": allreduce,
                "allgather": allgather,
            },
            options.repeats,
        )
        medians = {name: result["median_ms"] for name, result in found.items()}
        exchanged = medians["layer"] - medians["alone"]
        ratios = [exchanged / medians[name] for name in ("allreduce", "allgather")]
        lines.append([str(channels), *map(cell, found.values()), *map("{:.2f}".format, ratios)])
    head = ["C", *found, "exchange / allreduce", "exchange / allgather"]
    show(options, format_table(head, lines))


def accuracy(options: argparse.Namespace) -> None:
    """Print the table of errors of the variance."""
    lines = []
    channels = options.channels[0]
    for mean in options.means:
        rng = np.random.default_rng(0)
        batch = rng.standard_normal((hvd.size() * 32, channels, 16)) + mean
        exact = batch.astype(np.longdouble).var((0, 2))
        own = mx.nd.array(np.split(batch, hvd.size())[hvd.rank()], dtype="float64")

        layer = gluon_syncbn.SyncBatchNorm(
            momentum=0.0, in_channels=channels, process_set=hvd.global_process_set
        )
        layer.initialize()
        layer.cast("float64")
        with mx.autograd.train_mode():
            layer(own).wait_to_read()
        merged = layer.running_var.data().asnumpy()

        sums = mx.nd.stack(own.sum((0, 2)), (own * own).sum((0, 2)))
        first, second = hvd.allreduce(sums, op=hvd.Average, name=f"sums {mean}").asnumpy() / (
            own.size / channels
        )
        errors = [
            float((abs(found - exact) / exact).max()) for found in (merged, second - first**2)
        ]
        lines.append([f"{mean:g}", *map("{:.0e}".format, errors)])
    show(options, format_table(["mean", "gathered and merged", "sums"], lines))


@contextlib.contextmanager
def timeline() -> Any:
    """Give a list that holds Horovod's timeline of rank 0 when the context ends."""
    events: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timeline.json"
        hvd.start_timeline(str(path), mark_cycles=True)
        meet()
        yield events
        meet()
        hvd.stop_timeline()
        if hvd.rank() == 0:
            events += json.loads(path.read_text())


def operations(events: list[dict[str, Any]]) -> int:
    """Count the allgathers: those of merged messages begin one behind the other."""
    runs = itertools.groupby(event.get("name") for event in events)
    return sum(name in ("MPI_ALLGATHER", "GLOO_ALLGATHER") for name, _ in runs)


def fusion(options: argparse.Namespace) -> None:
    """Print the table of several exchanges under way together."""
    lines = []
    for number in options.layers:
        call = forward(options.channels[0], number, process_set=hvd.global_process_set)
        found = measure({"layers": call}, options.repeats)
        rounds = 20
        with timeline() as events:
            for _ in range(rounds):
                meet()
                call()
        lines.append([str(number), cell(found["layers"]), f"{operations(events) / rounds:.2f}"])
    show(options, format_table(["layers", "time", "allgathers"], lines))


def show(options: argparse.Namespace, table: str) -> None:
    """Print a table once, under what it is of."""
    if hvd.rank() == 0:
        by = "MPI" if hvd.mpi_enabled() else "gloo"
        names = [f"HOROVOD_{name}" for name in ("CYCLE_TIME", "FUSION_THRESHOLD", "CACHE_CAPACITY")]
        given = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
        title = f"{options.command}, {hvd.size()} processes, {by}"
        print(", ".join([title, *given]), table, sep="\n\n", flush=True)


def main() -> None:
    """Print the table that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = {"exchange": exchange, "accuracy": accuracy, "fusion": fusion}
    parser.add_argument("command", nargs="?", choices=commands, default="exchange")
    parser.add_argument("--channels", type=int, nargs="+", default=[64, 256, 1024, 2048])
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 5, 10])
    parser.add_argument("--means", type=float, nargs="+", default=[0, 1, 10, 1e2, 1e3, 1e4, 1e6])
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    if options.command == "fusion":
        os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
    hvd.init()
    commands[options.command](options)


if __name__ == "__main__":
    main()
