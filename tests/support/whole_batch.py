"""One training step of a network on any number of contexts, and the comparison of two steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import nd

BATCH = 3  # two devices get one image and two

# A loss of a network, its input and the place of that in the batch.
Loss = Callable[[Any, mx.nd.NDArray, int], mx.nd.NDArray]


def outputs_of(out: Any) -> list[mx.nd.NDArray]:
    return list(out) if isinstance(out, (list, tuple)) else [out]


def weighted_loss(net: Any, x: mx.nd.NDArray, first: int) -> mx.nd.NDArray:
    """Return the sum of every output times random weights."""
    losses = []
    for out in outputs_of(net(x)):
        rng = np.random.default_rng(out.size // out.shape[0])
        weights = rng.standard_normal((first + out.shape[0], *out.shape[1:]))[first:]
        losses.append((out * nd.array(weights, ctx=out.context, dtype="float64")).sum())
    return sum(losses)


@dataclass
class Step:
    """The loss of a step, and the arrays after it by the names of the parameters."""

    loss: float
    gradients: dict[str, np.ndarray]
    running: dict[str, np.ndarray]


def norm_layers(net: Any) -> list:
    found: list = []
    net.apply(lambda block: found.append(block) if isinstance(block, nn.BatchNorm) else None)
    return found


def _named(net: Any) -> dict[str, Any]:
    """Return parameters by their place in the network. In a traced graph, names give the place."""
    parameters = net._collect_params_with_prefix().items()
    return {n.replace("syncbatchnorm", "batchnorm").replace(".", "_"): p for n, p in parameters}


def randomize(net: Any, size: int, loss: Loss) -> dict[str, np.ndarray]:
    """Give a network on one context random parameters and running statistics; return them.

    With the initial values of BatchNorm some statistics would be zero but for rounding.
    """
    net.initialize(mx.init.Zero(), ctx=contexts(1), force_reinit=True)
    with autograd.record():  # infers the shapes
        loss(net, nd.zeros((1, 3, size, size), dtype="float64"), 0)
    rng = np.random.default_rng(1)
    values = {}
    for name, parameter in _named(net).items():
        value = rng.standard_normal(parameter.shape)
        if value.ndim > 1:
            value *= np.sqrt(2 / value[0].size)  # keeps the size of activations: He et al. 2015
        elif name.endswith("gamma"):
            value = 1 + 0.2 * value
        elif name.endswith("num_batches_tracked"):
            value[:] = 3
        elif name.endswith("running_var"):
            value = np.exp(0.3 * value)
        else:
            value *= 0.3
        parameter.set_data(nd.array(value, dtype="float64"))
        values[name] = value
    return values


def load(net: Any, number: int, values: dict[str, np.ndarray]) -> None:
    """Give a network on `number` contexts these values."""
    parameters = _named(net)
    assert parameters.keys() == values.keys()
    for name, parameter in parameters.items():
        parameter.shape = values[name].shape
        parameter.initialize(mx.init.Zero(), ctx=contexts(number), force_reinit=True)
        parameter.set_data(nd.array(values[name], dtype="float64"))


def train_step(net: Any, number: int, size: int, loss: Loss) -> Step:
    """Run forward and backward on `number` contexts."""
    rng = np.random.default_rng(2)
    data = nd.array(rng.standard_normal((BATCH, 3, size, size)), dtype="float64")
    shards = gluon.utils.split_and_load(data, contexts(number), even_split=False)
    first, losses = 0, []
    with autograd.record():
        for shard in shards:
            losses.append(loss(net, shard, first))
            first += shard.shape[0]
    autograd.backward(losses)
    gradients, running = {}, {}
    for name, parameter in _named(net).items():
        if parameter.grad_req == "null":
            running[name], *others = [array.asnumpy() for array in parameter.list_data()]
            for other in others:
                np.testing.assert_array_equal(other, running[name], err_msg=name)
        else:
            gradients[name] = sum(array.asnumpy() for array in parameter.list_grad())
    return Step(sum(value.asnumpy().item() for value in losses), gradients, running)


def compare(ours: Step, expected: Step, tolerance: float) -> None:
    """Fail if two steps differ by more than rounding, or gradients by more than `tolerance`.

    Gradients that are zero in exact arithmetic (of a bias in front of a norm, say) are sums of
    terms as large as the other gradients.
    """
    np.testing.assert_allclose(ours.loss, expected.loss, rtol=1e-8)
    assert ours.gradients.keys() == expected.gradients.keys()
    largest = max(np.abs(gradient).max() for gradient in expected.gradients.values())
    for name, gradient in expected.gradients.items():
        size = np.abs(gradient).max()
        difference = np.abs(ours.gradients[name] - gradient).max()
        allowed = tolerance * (size + 1e-4 * largest)
        assert difference <= allowed, f"{name}: {difference} > {allowed}, size {size} of {largest}"
    assert ours.running.keys() == expected.running.keys()
    for name, value in expected.running.items():
        # MXNet's BatchNorm has its momentum in single precision.
        assert np.abs(ours.running[name] - value).max() <= 1e-6 * np.abs(value).max(), name
