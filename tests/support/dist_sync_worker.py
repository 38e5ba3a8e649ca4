"""One process of a job with a parameter server; test_dist_sync.py starts it in every role.

The scheduler and the server live in ``import mxnet`` until all workers have ended. A worker trains
a dense layer and a SyncBatchNorm on its share of the batches, on two contexts, and leaves what it
has in ``<folder>/<rank>.npz``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

WORKERS = 2
CONTEXTS = 2
STEPS = 3
FEATURES, CHANNELS = 3, 4
RATE = 0.0625  # exact in float32, which is what MXNet hands to its optimizers


def share(rank: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and the gradient of the outputs of a worker's batch; workers differ in size too."""
    rng = np.random.default_rng([rank, step])
    size = 5 + 2 * rank
    inputs = rng.standard_normal((size, FEATURES)) + rank
    return inputs, rng.standard_normal((size, CHANNELS))


def weights() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((CHANNELS, FEATURES))


def average_statistics(store: Any, net: Any) -> None:
    """Set running statistics to their means over the workers; the server must not update."""
    parameters = net.collect_params(".*running.*").values()
    for key, parameter in enumerate(parameters, 10**6):  # the trainer's keys count from 0
        value = parameter.data(parameter.list_ctx()[0])
        store.init(key, mx.nd.zeros_like(value))
        store.push(key, value)
        store.pull(key, value)
        parameter.set_data(value / store.num_workers)


def main() -> None:
    folder = Path(sys.argv[1])
    on_server = sys.argv[2] == "server"
    gluon_syncbn.set_timeout(60)
    store = mx.kv.create("dist_sync")
    ctx = [mx.cpu(i) for i in range(CONTEXTS)]
    norm = gluon_syncbn.SyncBatchNorm(in_channels=CHANNELS)
    dense = gluon.nn.Dense(CHANNELS, in_units=FEATURES, use_bias=False)
    net = gluon.nn.HybridSequential()
    net.add(dense, norm)
    net.initialize(ctx=ctx)
    net.cast("float64")
    dense.weight.set_data(mx.nd.array(weights(), dtype="float64"))
    net.hybridize()
    trainer = gluon.Trainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": RATE},
        kvstore=store,
        update_on_kvstore=on_server,
    )
    for step in range(STEPS):
        x, dy = share(store.rank, step)
        shards = zip(
            gluon.utils.split_and_load(mx.nd.array(x, dtype="float64"), ctx, even_split=False),
            gluon.utils.split_and_load(mx.nd.array(dy, dtype="float64"), ctx, even_split=False),
        )
        with autograd.record():
            losses = [(net(part) * gradient).sum() for part, gradient in shards]
        autograd.backward(losses)
        trainer.step(batch_size=1)
    found = {
        f"{name} {context}": parameter.data(context).asnumpy()
        for name, parameter in net._collect_params_with_prefix().items()
        for context in ctx
    }
    if not on_server:
        average_statistics(store, net)
    found.update(
        {
            f"average of {name}": parameter.data(ctx[0]).asnumpy()
            for name, parameter in net._collect_params_with_prefix().items()
        }
    )
    np.savez(folder / f"{store.rank}.npz", **found)


if __name__ == "__main__":
    main()
