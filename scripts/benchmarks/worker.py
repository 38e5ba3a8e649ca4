"""A process that measures what it is asked to: JSON requests in, JSON answers out, one a line.

MXNet fixes whether it uses oneDNN, and how many workspaces it has, when its first operator runs. So
each setting has a process of its own, which the benchmark asks in turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.layers import peak_mb

SCRIPTS = Path(__file__).parent.parent

QUIET = {"MXNET_STORAGE_FALLBACK_LOG_VERBOSE": "0"}
WITHOUT_ONEDNN = {**QUIET, "MXNET_MKLDNN_ENABLED": "0"}
WITH_ONEDNN = {**QUIET, "MXNET_MKLDNN_ENABLED": "1"}
# MXNet's own layers share workspaces between CPU contexts, and would wait for the few that there
# are. gluon_syncbn, which gives each context its own, is not imported in their processes.
MANY_WORKSPACES = {**WITHOUT_ONEDNN, "MXNET_CPU_TEMP_COPY": "1024"}
# For one context: how many workspaces there are is no matter of the network.
ONE_WORKSPACE = {**WITHOUT_ONEDNN, "MXNET_CPU_TEMP_COPY": "1"}

PAUSE_SECONDS = 0.004  # in which threads of what was measured before stop looking for work

Step = Callable[[], None]


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

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=SCRIPTS,
            env={**os.environ, **settings, "PYTHONPATH": _python_path()},
        )

    def ask(self, task: str, **request: Any) -> dict[str, Any]:
        """Return the answer, or raise `RuntimeError` with the error of the worker."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"task": task, **request}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker for {task} ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def _python_path() -> str:
    """Put the package of this repository before an installed one, and add the scripts."""
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, [str(SCRIPTS.parent), str(SCRIPTS), inherited]))


class Timer:
    """Keeps what was built for the last case, and times its methods in turns."""

    def __init__(self, make: Callable[[str, Mapping[str, Any]], Step]) -> None:
        self._make = make
        self._case: Mapping[str, Any] = {}
        self._steps: dict[str, Step] = {}

    def __call__(self, request: Mapping[str, Any]) -> dict[str, Any]:
        methods = request["methods"]
        if request["case"] != self._case:
            self._steps.clear()
            self._case = request["case"]
        for method in methods:
            if method not in self._steps:
                step = self._steps[method] = self._make(method, self._case)
                for _ in range(request["warm_up"]):
                    step()
        times: dict[str, list[float]] = {method: [] for method in methods}
        for turn in range(request["rounds"]):
            for i in range(len(methods)):
                method = methods[(turn + i) % len(methods)]
                time.sleep(PAUSE_SECONDS)
                begin = time.perf_counter()
                self._steps[method]()
                times[method].append(time.perf_counter() - begin)
        return {"times": times, "peak_mb": peak_mb()}


def main() -> None:
    """Answer requests until there are no more."""
    # Libraries may print: what they print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    from benchmarks import layers, networks

    tasks: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "op": Timer(layers.make_step),
        "net": Timer(networks.Training),
        "accuracy": layers.measure_accuracy,
        "plan": networks.measure_plan,
        "peak": networks.measure_peak,
    }
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = tasks[request["task"]](request)
        except Exception as error:  # whatever it is, the benchmark has to hear of it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
