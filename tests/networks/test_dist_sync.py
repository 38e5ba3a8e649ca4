"""Training with MXNet's parameter server: the layer synchronizes within each worker.

Every process of the job runs this file. The scheduler and the server live in ``import mxnet`` until
all workers have ended. A worker trains a dense layer and a SyncBatchNorm on its share of the
batches, on two contexts, and leaves what it has in ``<folder>/<rank>.npz``.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.mxnet_versions import new_array
from mxnet import gluon

from tests.support.either_mxnet import only_1
from tests.support.networks import split
from tests.support.oracle import batch_norm
from tests.support.processes import ROOT, clean_environment
from tests.support.step import Case, run

WORKERS = CONTEXTS = 2
STEPS = 3
FEATURES, CHANNELS = 3, 4
RATE = 0.0625  # exact in float32, which is what MXNet hands to its optimizers
WEIGHT = np.random.default_rng(7).standard_normal((CHANNELS, FEATURES))


def share(rank: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and the gradient of the outputs of a worker's batch; workers differ in size too."""
    rng = np.random.default_rng([rank, step])
    size = 5 + 2 * rank
    return rng.standard_normal((size, FEATURES)) + rank, rng.standard_normal((size, CHANNELS))


def work(folder: Path, on_server: bool, arrays: str) -> None:
    gluon_syncbn.set_timeout(60)
    if arrays == "mx.np":
        mx.npx.set_np()
    store = mx.kv.create("dist_sync")
    ctx = [mx.cpu(i) for i in range(CONTEXTS)]
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(CHANNELS, in_units=FEATURES, use_bias=False))
    net.add(gluon_syncbn.SyncBatchNorm(in_channels=CHANNELS))
    net.initialize(ctx=ctx)
    net.cast("float64")
    net[0].weight.set_data(new_array(WEIGHT, mx.cpu(), "float64"))
    net.hybridize()
    options = {"kvstore": store, "update_on_kvstore": on_server}
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": RATE}, **options)
    for step in range(STEPS):
        x, dy = share(store.rank, step)
        run(net, Case(x, split(len(x), CONTEXTS), dy), ctx)
        trainer.step(batch_size=1)
    found = {}
    for averaged in ("", "average of "):
        for name, parameter in net._collect_params_with_prefix().items():
            found[averaged + name] = np.stack([data.asnumpy() for data in parameter.list_data()])
        if averaged:
            continue
        if on_server:
            with pytest.raises(ValueError, match="takes a push for a gradient"):
                gluon_syncbn.average_statistics(net, store)
        else:
            gluon_syncbn.average_statistics(net, store)
            gluon_syncbn.average_statistics(net, store)  # the mean of means is the mean
    np.savez(folder / f"{store.rank}.npz", **found)


def run_job(folder: Path, *options: str) -> list[dict[str, np.ndarray]]:
    """Run scheduler, server and workers; returns what the workers left."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **clean_environment(),
        "PYTHONPATH": str(ROOT),
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(WORKERS),
    }
    module = "tests.networks.test_dist_sync"
    command = [sys.executable, "-W", "ignore", "-m", module, str(folder), *options]
    jobs = []
    try:
        for role in ("scheduler", "server", *["worker"] * WORKERS):
            log = (folder / f"{len(jobs)} {role}").open("w+")
            environment["DMLC_ROLE"] = role
            jobs.append((subprocess.Popen(command, env=environment, stdout=log, stderr=log), log))
        for process, log in jobs:
            assert process.wait(120) == 0, log.seek(0) or log.read()
    finally:
        for process, log in jobs:
            process.kill()
            process.wait()
            log.close()
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(WORKERS)]


def expect() -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """Parameters after training, and every worker's running statistics."""
    weight, gamma, beta = WEIGHT, np.ones(CHANNELS), np.zeros(CHANNELS)
    running = [(np.zeros(CHANNELS), np.ones(CHANNELS))] * WORKERS
    for step in range(STEPS):
        gradients = [np.zeros_like(weight), np.zeros_like(gamma), np.zeros_like(beta)]
        for rank in range(WORKERS):
            x, dy = share(rank, step)
            normalized = batch_norm(x @ weight.T, dy, gamma, beta, *running[rank])
            running[rank] = normalized.running_mean, normalized.running_var
            gradients[0] += normalized.dx.T @ x
            gradients[1] += normalized.dgamma
            gradients[2] += normalized.dbeta
        if step == 0:
            # The trainer hands out worker 0's parameters in its first step, and statistics too.
            running = running[:1] * WORKERS
        weight, gamma, beta = (
            value - RATE * gradient for value, gradient in zip((weight, gamma, beta), gradients)
        )
    parameters = {"0.weight": weight, "1.gamma": gamma, "1.beta": beta}
    return parameters, [{"1.running_mean": mean, "1.running_var": var} for mean, var in running]


@pytest.mark.skipif(
    not mx.runtime.Features().is_enabled("DIST_KVSTORE"),
    reason="this MXNet was built without the distributed key-value store (USE_DIST_KVSTORE)",
)
@pytest.mark.parametrize("arrays", [pytest.param("mx.nd", marks=only_1), "mx.np"])
@pytest.mark.parametrize("where", ["server", "worker"])
def test_workers_train_one_network_with_statistics_of_their_own(where, arrays, tmp_path):
    found = run_job(tmp_path, where, arrays)
    parameters, running = expect()
    for own, statistics in zip(found, running):
        for name, expected in {**parameters, **statistics}.items():
            # MXNet's store may round to single precision when it adds doubles up.
            np.testing.assert_allclose(own[name], [expected] * CONTEXTS, rtol=0, atol=1e-6)
            if name in parameters:
                assert own[name].tobytes() == found[0][name].tobytes(), name
            elif where == "worker":
                mean = np.mean([each[name] for each in running], axis=0)
                average = own[f"average of {name}"]
                np.testing.assert_allclose(average, [mean] * CONTEXTS, rtol=0, atol=1e-6)
    assert np.abs(running[0]["1.running_mean"] - running[1]["1.running_mean"]).max() > 0.1


if __name__ == "__main__":
    work(Path(sys.argv[1]), sys.argv[2] == "server", sys.argv[3])
