"""Processes that measure, each with settings of MXNet of its own.

MXNet fixes whether it uses oneDNN, and how many workspaces it has, when its first operator runs. So
each setting has a process, and the benchmark asks them in turns.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

PAUSE = 0.004  # seconds in which threads of what was measured before stop looking for work
PAUSE_BETWEEN_WORKERS = 0.05

QUIET = {"MXNET_STORAGE_FALLBACK_LOG_VERBOSE": "0"}
WITHOUT_ONEDNN = {**QUIET, "MXNET_MKLDNN_ENABLED": "0"}
WITH_ONEDNN = {**QUIET, "MXNET_MKLDNN_ENABLED": "1"}
# MXNet's own layers share workspaces between CPU contexts, and would wait for the few that there
# are. gluon_syncbn, which gives each context its own, is not imported in their processes.
MANY_WORKSPACES = {**WITHOUT_ONEDNN, "MXNET_CPU_TEMP_COPY": "1024"}
# For one context: how many workspaces there are is no matter of the network.
ONE_WORKSPACE = {**WITHOUT_ONEDNN, "MXNET_CPU_TEMP_COPY": "1"}


def settings_of(method: str) -> dict[str, str]:
    """Return the settings of the process that runs a method."""
    if "whole" in method:
        # MXNet takes half of the processors that it sees, for one context as for several.
        cores = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
        return {**cores, **(WITH_ONEDNN if method.endswith("onednn") else WITHOUT_ONEDNN)}
    if method.endswith("onednn"):
        return WITH_ONEDNN
    return MANY_WORKSPACES if method in ("batchnorm", "builtin") else WITHOUT_ONEDNN


class Worker:
    """A process to ask; leave the ``with`` block to end it."""

    def __init__(self, settings: dict[str, str]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, spawn, _prepare, (settings,))

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of a module in the process."""
        return self._pool.submit(function, *arguments).result()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()


def _prepare(settings: dict[str, str]) -> None:
    os.environ.update(settings)
    warnings.simplefilter("ignore")


_steps: dict[Any, Callable[[], object]] = {}  # of the worker, by case and method


def time_methods(make: Any, case: Any, methods: Sequence[str], rounds: int) -> dict[str, Any]:
    """Time methods in turns, in ms. Keeps what it has built for the last case."""
    for key in [key for key in _steps if key[0] != case]:
        del _steps[key]
    for method in methods:
        if (case, method) not in _steps:
            step = _steps[case, method] = make(method, case)
            step()  # which warms up
    times: dict[str, list[float]] = {method: [] for method in methods}
    for turn in range(rounds):
        for i in range(len(methods)):
            method = methods[(turn + i) % len(methods)]
            time.sleep(PAUSE)
            begin = time.perf_counter()
            _steps[case, method]()
            times[method].append(1e3 * (time.perf_counter() - begin))
    return times


def take_turns(
    make: Any, tasks: Sequence[tuple[Worker, Any, Sequence[str]]], turns: Iterable[int], rounds: int
) -> dict[str, list[float]]:
    """Time, in turns, the methods that each worker is to measure on its case."""
    times: dict[str, list[float]] = defaultdict(list)
    for turn in turns:
        for i in range(len(tasks)):
            worker, *task = tasks[(turn + i) % len(tasks)]
            time.sleep(PAUSE_BETWEEN_WORKERS)
            for method, found in worker.ask(time_methods, make, *task, rounds).items():
                times[method] += found
    return times


def peak_mb() -> int:
    """Largest memory that this process ever had, in MB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
