"""What the programs of several processes share."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gluon_syncbn
import horovod.mxnet as hvd
import mxnet as mx
import numpy as np


def contexts(number: int) -> list[mx.Context]:
    """Contexts of this process, of the type that the test asks for."""
    kind = os.environ.get("SYNCBN_TEST_CONTEXTS", "cpu")
    if kind == "cpu" or (kind == "mixed" and hvd.rank() == 0):
        return [mx.cpu(i) for i in range(number)]
    # Processes share GPUs where there are not enough.
    first, gpus = hvd.local_rank() * number, mx.context.num_gpus()
    return [mx.gpu((first + i) % gpus) for i in range(number)]


def shares(rank: int, number: int) -> list[int]:
    """Samples on each device of a process: different from device to device, never none."""
    return [1 + (rank * number + device) * 2 % 3 for device in range(number)]


def values(net: Any) -> dict[str, np.ndarray]:
    """Every parameter, which is the same bits on all contexts."""
    found = {}
    for name, parameter in net._collect_params_with_prefix().items():
        found[name], *others = [array.asnumpy() for array in parameter.list_data()]
        for other in others:
            np.testing.assert_array_equal(other, found[name], err_msg=name)
    return found


def agree(what: str, value: dict[str, int], process_set: Any = None) -> None:
    """Fail where the values differ between processes."""
    group = process_set or hvd.global_process_set
    mine = mx.nd.array(np.array([list(value.values())]), dtype="int64")
    every = hvd.allgather(mine, process_set=group, name=f"agree on {what}").asnumpy()
    assert every.shape == (group.size(), len(value))
    for name, column in zip(value, every.T):
        assert len(set(column)) == 1, f"{what}: {name} differs"


def report(folder: str, **facts: Any) -> None:
    """Leave a note of this process for the test."""
    note = {"rank": hvd.rank(), "host": socket.gethostname(), **facts}
    unfinished = Path(folder) / f"{hvd.rank()}.unfinished"
    unfinished.write_text(json.dumps(note))
    unfinished.rename(unfinished.with_suffix(".json"))


def wait_for_notes(folder: str, ranks: Iterable[int]) -> None:
    """Wait until these processes have left their notes."""
    for rank in ranks:
        while not (Path(folder) / f"{rank}.json").exists():
            time.sleep(0.01)


def init(timeout: float = 60, **options: Any) -> tuple[int, int]:
    """Initialize Horovod and the library; returns rank and size."""
    hvd.init(**options)
    gluon_syncbn.set_timeout(timeout)
    mx.random.seed(1)
    return hvd.rank(), hvd.size()
