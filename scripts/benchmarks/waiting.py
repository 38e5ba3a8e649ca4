"""What contexts lose that wait for each other at every norm, from a trace of some that do not."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import Network

NORMS = ("BatchNorm", "_backward_BatchNorm")


def lockstep(ends: Sequence[Sequence[float]], seconds: float) -> float:
    """Seconds that a step would take if all contexts left each norm together.

    Every context takes as long from norm to norm as it did, and to meet takes no time: so the step
    is the sum, over all norms, of the longest way there on any context, and what comes after the
    last norm. A context may be faster while another one waits, so this is no bound.

    Parameters
    ----------
    ends : sequence of sequences of float
        For each context when its norms ended, forward and backward, in seconds since the step
        began.
    seconds : float
        How long the step took.

    Returns
    -------
    float
        At least `seconds`.

    Raises
    ------
    ValueError
        If there are no norms, or not as many on all contexts.
    """
    counts = [len(own) for own in ends]
    if not all(counts) or len(set(counts)) != 1:
        raise ValueError(f"expected as many norms on all contexts, at least one; got {counts}")
    intervals = [[end - begin for begin, end in zip([0.0, *own], own)] for own in map(sorted, ends)]
    after = seconds - max(max(own) for own in ends)
    return sum(map(max, zip(*intervals))) + after


class TracedNetwork:
    """Training steps of a network with BatchNorm, in which MXNet's profiler sees the norms.

    MXNet must not run operations in bulk (``MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN=0``), because it
    would trace the bulk and not the norm.
    """

    def __init__(self, case: Mapping[str, Any]) -> None:
        import mxnet as mx

        self._profiler = mx.profiler
        self._contexts = case["contexts"]
        self._network = Network("batchnorm", case)
        self._folder = tempfile.TemporaryDirectory()
        self._file = Path(self._folder.name) / "trace.json"
        self._profiler.set_config(
            profile_symbolic=True, profile_imperative=True, filename=str(self._file)
        )
        self._steps: list[tuple[float, float]] = []

    def __call__(self) -> None:
        self._profiler.set_state("run")
        begin = time.time()  # the trace has the time of day
        self._network()
        self._steps.append((begin, time.time()))
        self._profiler.set_state("stop")

    def times(self) -> dict[str, list[float]]:
        """End the trace, and return the seconds of all steps, as they were and in lockstep."""
        self._profiler.dump(finished=True)
        events = json.loads(self._file.read_text())["traceEvents"]
        self._folder.cleanup()
        ends: list[list[float]] = [[] for _ in range(self._contexts)]
        for event in events:
            if event["name"] in NORMS and event["ph"] == "E":
                ends[event["pid"]].append(event["ts"] / 1e6)
        return {
            "traced": [last - begin for begin, last in self._steps],
            "lockstep": [
                lockstep(
                    [[end - begin for end in own if begin < end < last] for own in ends],
                    last - begin,
                )
                for begin, last in self._steps
            ],
        }


def measure_lockstep(request: Mapping[str, Any]) -> dict[str, Any]:
    """Time a network with BatchNorm, and say how long its steps would have been in lockstep."""
    network = TracedNetwork(request["case"])
    warm_up = request["warm_up"]
    for _ in range(warm_up + request["rounds"]):
        network()
    return {"times": {name: times[warm_up:] for name, times in network.times().items()}}
