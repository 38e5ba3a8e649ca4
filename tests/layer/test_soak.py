"""Nothing grows while networks train: memory, threads, files, keys. SOAK_STEPS: a longer run."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.library import LIBRARY
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.support.either_mxnet import nd
from tests.support.processes import run_python
from tests.support.step import MODES

MOST_GROWTH = {"rss_mib": 1.0, "threads": 0, "files": 0, "keys": 0}
# Processes count the layers of each name, and no name is forgotten: naming.py, Identity.
NAME_OF_A_LAYER_MIB = 160 / 2**20
NUM_SAMPLES = 50


def measure() -> list[float]:
    """What this process holds, in the order of MOST_GROWTH."""
    gc.collect()  # by itself, Python lets blocks lie around for tens of thousands of steps
    mx.nd.waitall()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    files = len(list(Path("/proc/self/fd").iterdir()))
    return [
        int(status["VmRSS"].split()[0]) / 1024,
        int(status["Threads"]),
        files,
        LIBRARY.num_keys(),
    ]


def measured_training(mode: str, steps: int) -> list[list[float]]:
    """Train two layers, one of them used twice, beside layers that live for a step."""
    ctx = [mx.cpu(0), mx.cpu(1)]
    shared = gluon_syncbn.SyncBatchNorm()
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3), gluon_syncbn.SyncBatchNorm(), nn.Conv2D(8, 3), shared)
    net.add(nn.Activation("relu"), nn.Conv2D(8, 1), shared, nn.GlobalAvgPool2D(), nn.Dense(4))
    net.initialize(ctx=ctx)
    net.hybridize(**MODES[mode])
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    data = [nd.random.normal(shape=(2, 3, 8, 8), ctx=c) for c in ctx]
    samples = []
    for step in range(steps):
        short = gluon_syncbn.SyncBatchNorm(in_channels=4)
        short.initialize(ctx=ctx)
        with autograd.record():
            outs = [net(x) for x in data]
            if step % 2:
                outs = [short(out) for out in outs]
        autograd.backward(outs)
        trainer.step(4)
        if (step + 1) % max(1, steps // NUM_SAMPLES) == 0:
            samples.append(measure())
    return samples


def growth(samples: list[list[float]]) -> dict[str, float]:
    """Smallest growth of the median from one fifth of the samples to the next, after the first.

    What leaks grows in each of them; what settles in steps, as the heap does, does not.
    """
    medians = [np.median(fifth, axis=0) for fifth in np.array_split(samples, 5)]
    return dict(zip(MOST_GROWTH, np.diff(medians[1:], axis=0).min(0)))


@pytest.mark.parametrize("mode", ["imperative", "static_alloc"])
def test_nothing_grows(mode):
    program = (
        "import json, sys; from tests.layer.test_soak import measured_training;"
        "print(json.dumps(measured_training(sys.argv[1], int(sys.argv[2]))))"
    )
    steps = os.environ.get("SOAK_STEPS", "400")
    result = run_python(program, mode, steps, timeout=300 + int(steps) / 5)
    samples = json.loads(result.stdout.splitlines()[-1])
    found = growth(samples)
    found["rss_mib"] -= int(steps) / 5 * NAME_OF_A_LAYER_MIB
    assert all(found[name] <= most for name, most in MOST_GROWTH.items()), found
    assert max(keys for *_, keys in samples) <= 6


def test_a_leak_is_found_and_steps_are_none():
    def found(rss):
        return growth([[rss(i), 5 + i // 90, 6, 0] for i in range(200)])

    leak = found(lambda i: 300 + i / 30 + 20 * (i > 100))
    assert leak["rss_mib"] > MOST_GROWTH["rss_mib"]
    assert leak["threads"] == 0
    assert found(lambda i: 300 + 20 * (i > 100) + 3 * (i > 150))["rss_mib"] == 0
