"""A process that measures what it is asked to: JSON requests in, JSON answers out, one a line.

MXNet fixes whether it uses oneDNN when its first operator runs. So each setting has a process of
its own, which the benchmark asks in turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent.parent

# For all peers alike (gluon_syncbn would set the same).
WITHOUT_ONEDNN = {"MXNET_STORAGE_FALLBACK_LOG_VERBOSE": "0", "MXNET_MKLDNN_ENABLED": "0"}
WITH_ONEDNN = {**WITHOUT_ONEDNN, "MXNET_MKLDNN_ENABLED": "1"}
# For one context: how many workspaces there are is no matter of the network.
ONE_WORKSPACE = {**WITHOUT_ONEDNN, "MXNET_CPU_TEMP_COPY": "1"}
# MXNet's profiler sees operations only where they run one by one.
WITHOUT_BULKS = {**WITHOUT_ONEDNN, "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN": "0"}


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


def main() -> None:
    """Answer requests until there are no more."""
    # Libraries may print: what they print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    from benchmarks import deployment, inplace, measuring, waiting

    tasks: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "op": measuring.Timer(measuring.make_step),
        "net": measuring.Timer(measuring.Network),
        "deploy": measuring.Timer(deployment.Deployment),
        "accuracy": measuring.measure_accuracy,
        "memory": measuring.measure_memory,
        "plan": inplace.measure_plan,
        "peak": inplace.measure_peak,
        "lockstep": waiting.measure_lockstep,
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
