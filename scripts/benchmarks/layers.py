"""Steps of one layer on CPU contexts, by the name of the method: ours and its peers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

COPIES = 8  # passes over the data without fusing: three in forward, five in backward
EPSILON = 1e-5


@dataclass(frozen=True)
class Case:
    """The data of a layer, and the operators after it."""

    shape: tuple[int, ...]  # the shape on each context
    contexts: int = 2
    dtype: str = "float32"
    axis: int = 1
    training: bool = True
    tail: str = ""  # the operators after the norm: "ReLU" or "add and ReLU"
    mean: float = 1  # the mean of the data

    @property
    def title(self) -> str:
        """The name of the case in a table."""
        parts = {
            f"{self.contexts} x {self.shape}": True,
            self.dtype: self.dtype != "float32",
            "channel last": self.axis == -1,
            "inference": not self.training,
            f"norm, {self.tail}": self.tail,
        }
        return ", ".join(part for part, applies in parts.items() if applies)

    def arrays(self, seed: int, mean: float = 0) -> list[NDArray[Any]]:
        """Make an array of standard deviation 1 for each context."""
        normal = np.random.default_rng(seed).standard_normal
        drawn = [np.asarray(normal(self.shape), np.float32) for _ in range(self.contexts)]
        return [(x + np.float32(mean)).astype(self.dtype) for x in drawn]


def mxnet_sync_batch_norm() -> Any:
    """Return the class of MXNet's own synchronized layer."""
    from mxnet import gluon

    return (gluon if hasattr(gluon.nn, "SyncBatchNorm") else gluon.contrib).nn.SyncBatchNorm


def new_array(values: Any, ctx: Any, dtype: str = "float32") -> Any:
    """Return an array that Gluon takes; gluon_syncbn has this too, but its import changes MXNet."""
    import mxnet as mx

    is_2 = mx.__version__.startswith("2.")
    return (mx.np if is_2 else mx.nd).array(values, ctx=ctx, dtype=dtype)


def make_layer(method: str, case: Case, contexts: list[Any]) -> Any:
    """Build the layer of a method for the contexts, and the operators after it."""
    from mxnet import gluon

    if method in ("ours", "fused"):
        import gluon_syncbn

        layer = gluon_syncbn.SyncBatchNorm(
            axis=case.axis,
            epsilon=EPSILON,
            num_devices=len(contexts),
            activation="relu" if method == "fused" else None,
        )
    elif method == "builtin":
        layer = mxnet_sync_batch_norm()(num_devices=len(contexts), epsilon=EPSILON)
    else:
        layer = gluon.nn.BatchNorm(axis=case.axis, epsilon=EPSILON)
    layer.cast(case.dtype)
    if case.tail and method != "fused":
        layer = with_activation(layer)
    layer.initialize(ctx=contexts)
    layer.hybridize()
    return layer


def with_activation(norm: Any) -> Any:
    """Put MXNet's operators after a norm: the sum with a second input, if any, and ReLU."""
    from mxnet import gluon

    class WithActivation(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm

        def hybrid_forward(self, F: Any, x: Any, *shortcuts: Any) -> Any:
            return F.Activation(sum(shortcuts, self.norm(x)), act_type="relu")

    return WithActivation()


def mxnet_step(method: str, case: Case) -> Callable[[], list[Any]]:
    """Make a step: one layer on all contexts, forward, and backward in training."""
    import mxnet as mx

    contexts = [mx.cpu(i) for i in range(case.contexts)]

    def arrays(seed: int, mean: float = 0) -> list[Any]:
        pairs = zip(case.arrays(seed, mean), contexts)
        return [new_array(x, ctx, case.dtype) for x, ctx in pairs]

    shards, heads = [arrays(0, case.mean)], arrays(1)
    if case.tail == "add and ReLU":
        shards.append(arrays(2))
    for shard in shards:
        for array in shard:
            array.attach_grad()
    layer = make_layer(method, case, contexts)
    mx.nd.waitall()

    def step() -> list[Any]:
        with mx.autograd.record() if case.training else mx.autograd.pause():
            outputs = [layer(*inputs) for inputs in zip(*shards)]
        if case.training:
            mx.autograd.backward(outputs, heads)
        mx.nd.waitall()
        return outputs

    return step


def copies_step(case: Case) -> Callable[[], object]:
    """Plain copies of the data, on one thread per context."""
    sources = case.arrays(0)
    targets = [np.zeros_like(x) for x in sources]
    threads = ThreadPoolExecutor(len(sources))

    def copy(target: NDArray[Any], source: NDArray[Any]) -> None:
        for _ in range(COPIES):
            np.copyto(target, source)

    return lambda: list(threads.map(copy, targets, sources))


def torch_step(case: Case) -> Callable[[], object]:
    """PyTorch's batch normalization of the whole batch on all cores."""
    torch = importlib.import_module("torch")  # may not be installed

    data, head = (torch.from_numpy(np.concatenate(case.arrays(i, 1 - i))) for i in (0, 1))
    if case.axis == -1:
        data, head = data.moveaxis(-1, 1), head.moveaxis(-1, 1)
    data.requires_grad_(case.training)
    layer = torch.nn.BatchNorm2d(data.shape[1], dtype=data.dtype).train(case.training)

    def step() -> None:
        data.grad = None
        with torch.set_grad_enabled(case.training):
            out = layer(data)
        if case.training:
            out.backward(head)

    return step


def make_step(method: str, case: Case) -> Callable[[], object]:
    """Build the function to time for a method."""
    others = {"copies": copies_step, "torch": torch_step}
    return others[method](case) if method in others else mxnet_step(method, case)


def largest_error(method: str, case: Case) -> float:
    """Return the largest error of the output against float64, relative to the largest value."""
    x = np.concatenate(case.arrays(0, case.mean)).astype(np.float64)
    variance = x.var((0, 2, 3), keepdims=True)
    expected = (x - x.mean((0, 2, 3), keepdims=True)) / np.sqrt(variance + EPSILON)
    out = np.concatenate([array.asnumpy() for array in mxnet_step(method, case)()])
    return float(abs(out - expected).max() / abs(expected).max())
