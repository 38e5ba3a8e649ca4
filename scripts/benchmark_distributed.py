"""Time one exchange between processes beside a bare Horovod allreduce of the same size.

Start it with Horovod's launcher; rank 0 prints a table:

    horovodrun --gloo -np 2 .venv/bin/python scripts/benchmark_distributed.py
    mpirun -np 2 .venv/bin/python scripts/benchmark_distributed.py

A layer on data of shape (2, C, 1, 1) has next to nothing to compute, so that forward takes the
time of one exchange. Both columns are medians, taken in turn.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, Callable

import gluon_syncbn
import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

WARM_UP = 10


def milliseconds(calls: list[Callable[[], Any]], repeats: int) -> list[float]:
    """Median time of each call, taking them in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for repeat in range(WARM_UP + repeats):
        for call, found in zip(calls, times):
            begin = time.perf_counter()
            call().wait_to_read()
            if repeat >= WARM_UP:
                found.append((time.perf_counter() - begin) * 1e3)
    return [float(np.median(found)) for found in times]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, nargs="+", default=[64, 256, 1024, 2048])
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    hvd.init()
    gluon_syncbn.init()
    if hvd.rank() == 0:
        print(f"processes {hvd.size()}: C, ours ms, allreduce ms, ratio")
    for channels in options.channels:
        layer = gluon_syncbn.SyncBatchNorm(in_channels=channels)
        layer.initialize()
        data = mx.nd.random.normal(shape=(2, channels, 1, 1))
        message = mx.nd.zeros((2 * channels,), dtype="float64")

        def ours(layer: Any = layer, data: Any = data) -> Any:
            with mx.autograd.train_mode():
                return layer(data)

        def bare(message: Any = message, channels: int = channels) -> Any:
            return hvd.allreduce(message, op=hvd.Sum, name=f"bare {channels}")

        mine, theirs = milliseconds([ours, bare], options.repeats)
        if hvd.rank() == 0:
            print(f"{channels:6d} {mine:8.3f} {theirs:8.3f} {mine / theirs:6.2f}", flush=True)


if __name__ == "__main__":
    main()
