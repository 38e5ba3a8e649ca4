"""Training with MXNet's parameter server: the layer synchronizes within each worker."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from tests.support import dist_sync_worker as worker
from tests.support.oracle import batch_norm
from tests.support.processes import ROOT, clean_environment

SECONDS = 120
TOLERANCE = 1e-6  # MXNet's store may round to single precision when it adds doubles up

pytestmark = pytest.mark.skipif(
    not mx.runtime.Features().is_enabled("DIST_KVSTORE"),
    reason="this MXNet was built without the distributed key-value store (USE_DIST_KVSTORE)",
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def train(folder: Path, where: str) -> list[dict[str, np.ndarray]]:
    """Run scheduler, server and workers; returns what the workers left."""
    environment = {
        **clean_environment(),
        "PYTHONPATH": str(ROOT),
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(worker.WORKERS),
    }
    roles = ["scheduler", "server", *["worker"] * worker.WORKERS]
    processes = []
    try:
        for role in roles:
            command = [sys.executable, "-W", "ignore", "-m", worker.__name__, str(folder), where]
            processes.append(
                subprocess.Popen(
                    command,
                    env={**environment, "DMLC_ROLE": role},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for role, process, output in zip(roles, processes, outputs):
        assert process.returncode == 0, f"{role}:\n{output}"
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(worker.WORKERS)]


def expect() -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """Parameters after training, and every worker's running statistics."""
    weight, gamma, beta = worker.weights(), np.ones(worker.CHANNELS), np.zeros(worker.CHANNELS)
    running = [(np.zeros(worker.CHANNELS), np.ones(worker.CHANNELS))] * worker.WORKERS
    for step in range(worker.STEPS):
        gradients = [np.zeros_like(weight), np.zeros_like(gamma), np.zeros_like(beta)]
        for rank in range(worker.WORKERS):
            x, dy = worker.share(rank, step)
            normalized = batch_norm(x @ weight.T, dy, gamma, beta, *running[rank])
            running[rank] = normalized.running_mean, normalized.running_var
            gradients[0] += normalized.dx.T @ x
            gradients[1] += normalized.dgamma
            gradients[2] += normalized.dbeta
        if step == 0:
            # The trainer hands out worker 0's parameters in its first step, and statistics too.
            running = running[:1] * worker.WORKERS
        weight, gamma, beta = (
            value - worker.RATE * gradient
            for value, gradient in zip((weight, gamma, beta), gradients)
        )
    parameters = {"0.weight": weight, "1.gamma": gamma, "1.beta": beta}
    return parameters, [{"1.running_mean": mean, "1.running_var": var} for mean, var in running]


@pytest.mark.parametrize("where", ["server", "worker"])
def test_workers_train_one_network_with_statistics_of_their_own(where, tmp_path):
    found = train(tmp_path, where)
    parameters, running = expect()
    for name, expected in parameters.items():
        for note in found:
            for context in range(worker.CONTEXTS):
                value = note[f"{name} cpu({context})"]
                assert value.tobytes() == found[0][f"{name} cpu(0)"].tobytes(), name
                np.testing.assert_allclose(value, expected, rtol=0, atol=TOLERANCE, err_msg=name)
    for note, own in zip(found, running):
        for name, expected in own.items():
            for context in range(worker.CONTEXTS):
                value = note[f"{name} cpu({context})"]
                np.testing.assert_allclose(value, expected, rtol=0, atol=TOLERANCE, err_msg=name)
    assert np.abs(running[0]["1.running_mean"] - running[1]["1.running_mean"]).max() > 0.1
    if where == "worker":
        for name in running[0]:
            mean = np.mean([own[name] for own in running], axis=0)
            for note in found:
                np.testing.assert_allclose(note[f"average of {name}"], mean, rtol=0, atol=TOLERANCE)
