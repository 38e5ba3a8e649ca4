"""Processes that measure, each with its own settings of MXNet.

MXNet fixes whether it uses oneDNN, and how many workspaces it has, when its first operator runs. So
each setting has a process, and the benchmark asks them in turns.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import resource
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import TimeoutError as NoAnswer
from concurrent.futures.process import BrokenProcessPool
from typing import Any

PAUSE = 0.004  # seconds after which the threads of the method before no longer look for work
PAUSE_BETWEEN_WORKERS = 0.05

QUIET = {"MXNET_STORAGE_FALLBACK_LOG_VERBOSE": "0", "GLUON_SYNCBN_CPU_CONTEXTS": "1"}
# The second name is that of MXNet 2.
WITHOUT_ONEDNN = {**QUIET, "MXNET_MKLDNN_ENABLED": "0", "MXNET_ONEDNN_ENABLED": "0"}
WITH_ONEDNN = {**QUIET, "MXNET_MKLDNN_ENABLED": "1", "MXNET_ONEDNN_ENABLED": "1"}
LIMIT = 300  # seconds; a worker without an answer by then counts as one that waits forever
# MXNet's CPU contexts share a few workspaces, and its own layers would wait for them. The processes
# of these layers do not import gluon_syncbn, which would give each context its own.
MANY_WORKSPACES = {**WITHOUT_ONEDNN, "MXNET_CPU_TEMP_COPY": "1024"}
# One context needs only one workspace, whatever the network.
ONE_WORKSPACE = {**WITHOUT_ONEDNN, "MXNET_CPU_TEMP_COPY": "1"}


def settings_of(method: str) -> dict[str, str]:
    """Return the settings of the process that runs a method."""
    if "whole" in method:
        # MXNet takes half of the processors, whether there are one or several contexts.
        cores = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
        return {**cores, **(WITH_ONEDNN if method.endswith("onednn") else WITHOUT_ONEDNN)}
    if method.endswith("onednn"):
        return WITH_ONEDNN
    return MANY_WORKSPACES if method in ("batchnorm", "builtin") else WITHOUT_ONEDNN


class Worker(ProcessPoolExecutor):
    """A process that calls functions; it ends with the ``with`` block."""

    def __init__(self, settings: dict[str, str]) -> None:
        super().__init__(1, multiprocessing.get_context("spawn"), _prepare, (settings,))

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of a module in the process; end it if there is no answer for long."""
        try:
            return self.submit(function, *arguments).result(LIMIT)
        except NoAnswer:
            for process in self._processes.values():
                process.kill()
            raise


def _prepare(settings: dict[str, str]) -> None:
    os.environ.update(settings)
    warnings.simplefilter("ignore")


@functools.lru_cache(maxsize=4)  # as many as the methods of a case
def _warm_step(make: Any, method: str, case: Any) -> Callable[[], object]:
    step: Callable[[], object] = make(method, case)
    step()
    return step


def time_methods(make: Any, case: Any, methods: Sequence[str], rounds: int) -> dict[str, Any]:
    """Time methods in turns, in ms."""
    steps = {method: _warm_step(make, method, case) for method in methods}
    times: dict[str, list[float]] = {method: [] for method in methods}
    for turn in range(rounds):
        for i in range(len(methods)):
            method = methods[(turn + i) % len(methods)]
            time.sleep(PAUSE)
            begin = time.perf_counter()
            steps[method]()
            times[method].append(1e3 * (time.perf_counter() - begin))
    return times


def take_turns(
    make: Any, tasks: Sequence[tuple[Worker, Any, Sequence[str]]], turns: Iterable[int], rounds: int
) -> dict[str, list[float]]:
    """Time the methods of all workers in turns, but for those that do not answer."""
    times: dict[str, list[float]] = defaultdict(list)
    silent: set[Worker] = set()
    for turn in turns:
        for i in range(len(tasks)):
            worker, *task = tasks[(turn + i) % len(tasks)]
            if worker in silent:
                continue
            time.sleep(PAUSE_BETWEEN_WORKERS)
            try:
                answer = worker.ask(time_methods, make, *task, rounds)
            except (NoAnswer, BrokenProcessPool):
                print(f"{task[-1]}: no answer in {LIMIT} s")
                silent.add(worker)
                continue
            for method, found in answer.items():
                times[method] += found
    return times


def peak_mb() -> int:
    """Return the largest memory that this process ever had, in MB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
