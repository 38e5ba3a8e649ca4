"""Programs that fork beside GPUs, real or fake.

CUDA serves no process that was forked after it had been called.
"""

from __future__ import annotations

from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np

from tests.gpu.steps import arrays, new_layer, outputs, require_right
from tests.support.either_mxnet import error_of, nd
from tests.support.processes import in_child


def train(number: int, device: str) -> None:
    """Anew, on contexts of any type. Waits for arrays, because waitall of MXNet 2 calls CUDA."""
    contexts = [mx.Context(device, i) for i in range(number)]
    xs = [nd.full((2, 3), 1 + i, ctx=ctx) for i, ctx in enumerate(contexts)]
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, num_devices=number)
    layer.initialize(ctx=contexts)
    outs = outputs(layer, xs)
    mx.autograd.backward(outs)
    require_right(xs, outs)


class Trained:
    """A layer that has made a step on so many GPUs."""

    def __init__(self, number: int) -> None:
        self.xs = arrays(range(number))
        self.layer = new_layer(self.xs)
        self.step()

    def outputs(self) -> list[Any]:
        return outputs(self.layer, self.xs)

    def step(self) -> None:
        outs = self.outputs()
        mx.autograd.backward(outs)
        require_right(self.xs, outs)


def train_in_child(number: int, device: str) -> None:
    in_child(lambda: train(number, device))


def workers_of_a_data_loader(number: int) -> None:
    trained = Trained(number)
    data = mx.gluon.data.ArrayDataset(np.arange(12, dtype="float32"))
    batches = mx.gluon.data.DataLoader(data, 4, num_workers=2, batchify_fn=np.stack)
    for _ in range(2):
        assert [batch.sum() for batch in batches] == [6, 22, 38]
        trained.step()


def gpus_in_child(number: int) -> None:
    trained = Trained(number)

    def use() -> None:
        error = error_of(lambda: [each.wait_to_read() for each in trained.outputs()])
        assert "there is no gpu(0)" in error, error
        assert "forked after" in error, error

    in_child(use)
    trained.step()


def cpus_in_child(number: int) -> None:
    trained = Trained(number)
    in_child(lambda: train(2, "cpu"))
    trained.step()


def forks_during_steps(number: int) -> None:
    trained = Trained(number)
    for _ in range(8):
        mx.autograd.backward(trained.outputs())
        in_child(lambda: None)
    trained.step()
