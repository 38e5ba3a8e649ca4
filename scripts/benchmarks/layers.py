"""Steps of one layer, ours and others', on CPU contexts: by the name of the method."""

from __future__ import annotations

import importlib
import resource
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

COPIES = 8  # passes over the memory of the data: three in forward, five in backward
EPSILON = 1e-5

Case = Mapping[str, Any]


def normal_arrays(case: Case, seed: int, mean: float = 0) -> list[NDArray[np.float32]]:
    """Make an array for every context, of deviation 1."""
    generator = np.random.default_rng(seed)
    shapes = [case["shape"]] * case["contexts"]
    offset = np.float32(mean)
    return [np.asarray(generator.standard_normal(s), np.float32) + offset for s in shapes]


def make_layer(method: str, case: Case, contexts: Sequence[Any]) -> Any:
    """Build the layer of a method for the contexts, and what follows it."""
    from mxnet import gluon

    options = {"axis": case.get("axis", 1), "epsilon": EPSILON}
    if method in ("ours", "fused"):
        import gluon_syncbn

        options["num_devices"] = len(contexts)
        options["activation"] = "relu" if method == "fused" else None
        layer = gluon_syncbn.SyncBatchNorm(**options)
    elif method == "builtin":
        layer = gluon.contrib.nn.SyncBatchNorm(num_devices=len(contexts), epsilon=EPSILON)
    else:
        layer = gluon.nn.BatchNorm(**options)
    layer.cast(case.get("dtype", "float32"))
    if "tail" in case and method != "fused":
        layer = with_activation(layer)
    layer.initialize(ctx=list(contexts))
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


class MXNetStep:
    """Forward, or forward and backward, of one layer on all contexts."""

    def __init__(self, method: str, case: Case) -> None:
        import mxnet as mx

        self._mx = mx
        contexts = [mx.cpu(i) for i in range(case["contexts"])]

        def arrays(seed: int, mean: float = 0) -> list[Any]:
            pairs = zip(normal_arrays(case, seed, mean), contexts)
            return [mx.nd.array(x, c, case.get("dtype", "float32")) for x, c in pairs]

        self.data, self._heads = arrays(0, case.get("mean", 1)), arrays(1)
        inputs = [self.data]
        if case.get("tail") == "add and ReLU":
            inputs.append(arrays(2))
        self._inputs = list(zip(*inputs))
        for given in self._inputs:
            for array in given:
                array.attach_grad()
        self._layer = make_layer(method, case, contexts)
        self._train = case.get("mode", "training") == "training"
        self.outputs: list[Any] = []
        mx.nd.waitall()

    def __call__(self) -> None:
        if self._train:
            with self._mx.autograd.record():
                self.outputs = [self._layer(*given) for given in self._inputs]
            self._mx.autograd.backward(self.outputs, self._heads)
        else:
            self.outputs = [self._layer(*given) for given in self._inputs]
        self._mx.nd.waitall()


class Copies:
    """Plain copies of the data, on as many threads as there are contexts."""

    def __init__(self, case: Case) -> None:
        self._sources = [x.astype(case.get("dtype", "float32")) for x in normal_arrays(case, 0)]
        self._targets = [np.zeros_like(x) for x in self._sources]
        self._threads = ThreadPoolExecutor(len(self._sources))

    def __call__(self) -> None:
        def copy(target: NDArray[Any], source: NDArray[Any]) -> None:
            for _ in range(COPIES):
                np.copyto(target, source)

        list(self._threads.map(copy, self._targets, self._sources))


class TorchStep:
    """PyTorch's batch normalization of the whole batch on all cores."""

    def __init__(self, case: Case) -> None:
        torch = importlib.import_module("torch")  # if there is one

        dtype = getattr(torch, case.get("dtype", "float32"))
        whole = [np.concatenate(normal_arrays(case, 0, 1)), np.concatenate(normal_arrays(case, 1))]
        data, self._head = (torch.from_numpy(x).to(dtype) for x in whole)
        if case.get("axis", 1) == -1:
            data, self._head = (x.moveaxis(-1, 1) for x in (data, self._head))
        self._train = case.get("mode", "training") == "training"
        self._data = data.requires_grad_(self._train)
        self._layer = torch.nn.BatchNorm2d(data.shape[1], dtype=dtype).train(self._train)
        self._no_grad = torch.no_grad

    def __call__(self) -> None:
        if self._train:
            self._data.grad = None
            self._layer(self._data).backward(self._head)
        else:
            with self._no_grad():
                self._layer(self._data)


def make_step(method: str, case: Case) -> Callable[[], None]:
    """Build what is timed for a method."""
    if method == "copies":
        return Copies(case)
    if method == "torch":
        return TorchStep(case)
    return MXNetStep(method, case)


def measure_accuracy(request: Case) -> dict[str, Any]:
    """Largest error of the output against float64, relative to the largest value, by method."""
    case = request["case"]
    x = np.concatenate(normal_arrays(case, 0, case["mean"])).astype(np.float64)
    variance = x.var((0, 2, 3), keepdims=True)
    expected = (x - x.mean((0, 2, 3), keepdims=True)) / np.sqrt(variance + EPSILON)
    errors = {}
    for method in request["methods"]:
        step = MXNetStep(method, case)
        step()
        out = np.concatenate([array.asnumpy() for array in step.outputs])
        errors[method] = float(abs(out - expected).max() / abs(expected).max())
    return {"errors": errors}


def peak_mb() -> float:
    """Largest memory that this process ever had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
