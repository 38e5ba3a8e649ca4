"""What a worker process measures: layers and their peers on CPU contexts, by name."""

from __future__ import annotations

import importlib
import itertools
import resource
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from benchmarks.oracle import exact, relative_error

COPIES = 8  # passes over the memory of the data: three in forward, five in backward
PAUSE_SECONDS = 0.004  # in which threads of the one measured before stop looking for work
MEMORY_LAYERS = 8
EPSILON = 1e-5

Case = Mapping[str, Any]
Step = Callable[[], None]


def normal_data(case: Case) -> list[NDArray[np.float32]]:
    """Make normal data of mean `case["mean"]` (default 1) and deviation 1 for every context."""
    mean = np.full((), case.get("mean", 1.0), np.float32)
    return [np.add(x, mean) for x in _normal(case, 0)]


def normal_gradients(case: Case) -> list[NDArray[np.float32]]:
    """Make gradients of the output for every context."""
    return _normal(case, 1)


def _normal(case: Case, seed: int) -> list[NDArray[np.float32]]:
    generator = np.random.default_rng(seed)
    shape, contexts = case["shape"], case["contexts"]
    return [np.asarray(generator.standard_normal(shape), np.float32) for _ in range(contexts)]


def mxnet_layers(method: str, case: Case, contexts: Sequence[Any]) -> list[Any]:
    """Build the layer of a method; for every context the one that it calls."""
    if method == "builtin1":
        # It keeps one barrier a layer, for one device: called on several, it crashes.
        return [mxnet_layer(method, case, [context]) for context in contexts]
    return [mxnet_layer(method, case, contexts)] * len(contexts)


def mxnet_layer(method: str, case: Case, contexts: Sequence[Any]) -> Any:
    """Build the layer of a method for the contexts, and what follows it."""
    from mxnet import gluon

    axis, epsilon = case.get("axis", 1), EPSILON
    if method in ("ours", "fused"):
        import gluon_syncbn

        layer = gluon_syncbn.SyncBatchNorm(
            num_devices=len(contexts),
            axis=axis,
            epsilon=epsilon,
            activation="relu" if method == "fused" else None,
        )
    elif method.startswith("batchnorm"):
        layer = gluon.nn.BatchNorm(axis=axis, epsilon=epsilon)
    else:
        layer = gluon.contrib.nn.SyncBatchNorm(num_devices=len(contexts), epsilon=epsilon)
    if case.get("dtype", "float32") != "float32":
        layer.cast(case["dtype"])
    if "tail" in case and method != "fused":
        layer = with_activation(layer)
    layer.initialize(ctx=list(contexts))
    layer.hybridize()
    return layer


def with_activation(norm: Any) -> Any:
    """Put MXNet's operators behind a norm: the sum with a second input, if any, and ReLU."""
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
        dtype = case.get("dtype", "float32")
        pairs = list(zip(normal_data(case), normal_gradients(case), contexts))
        self.data = [mx.nd.array(x, ctx=c, dtype=dtype) for x, _, c in pairs]
        self._heads = [mx.nd.array(dy, ctx=c, dtype=dtype) for _, dy, c in pairs]
        self._inputs = [[x] for x in self.data]
        if case.get("tail") == "add and ReLU":
            for inputs, shortcut in zip(self._inputs, _normal(case, 2)):
                inputs.append(mx.nd.array(shortcut, ctx=inputs[0].context, dtype=dtype))
        for array in itertools.chain(*self._inputs):
            array.attach_grad()
        self._layers = mxnet_layers(method, case, contexts)
        self._train = case.get("mode", "training") == "training"
        self.outputs: list[Any] = []
        mx.nd.waitall()

    def __call__(self) -> None:
        if self._train:
            with self._mx.autograd.record():
                self.outputs = [layer(*x) for layer, x in zip(self._layers, self._inputs)]
            self._mx.autograd.backward(self.outputs, self._heads)
        else:
            self.outputs = [layer(*x) for layer, x in zip(self._layers, self._inputs)]
        self._mx.nd.waitall()


class Copies:
    """Plain copies of the data, on as many threads as there are contexts."""

    def __init__(self, case: Case) -> None:
        self._sources = [np.asarray(x, case.get("dtype", "float32")) for x in normal_data(case)]
        self._targets = [np.zeros_like(x) for x in self._sources]
        self._threads = ThreadPoolExecutor(len(self._sources))

    def __call__(self) -> None:
        def copy(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
            for _ in range(COPIES):
                np.copyto(*pair)

        list(self._threads.map(copy, zip(self._targets, self._sources)))


class TorchStep:
    """PyTorch's batch normalization of the whole batch on all cores."""

    def __init__(self, case: Case) -> None:
        torch = importlib.import_module("torch")  # where there is one

        dtype = getattr(torch, case.get("dtype", "float32"))
        whole = [np.concatenate(f(case)) for f in (normal_data, normal_gradients)]
        data, self._head = (torch.from_numpy(x).to(dtype) for x in whole)
        if case.get("axis", 1) == -1:
            data, self._head = (x.moveaxis(-1, 1) for x in (data, self._head))
        self._train = case.get("mode", "training") == "training"
        self.data = data.requires_grad_(self._train)
        self._layer = torch.nn.BatchNorm2d(data.shape[1], dtype=dtype).train(self._train)
        self._no_grad = torch.no_grad
        self.output: Any = None

    def __call__(self) -> None:
        if self._train:
            self.data.grad = None
            self.output = self._layer(self.data)
            self.output.backward(self._head)
        else:
            with self._no_grad():
                self.output = self._layer(self.data)


def make_step(method: str, case: Case) -> Step:
    """Build what is timed for a method."""
    if method == "copies":
        return Copies(case)
    if method == "torch":
        return TorchStep(case)
    return MXNetStep(method, case)


class Network:
    """Training steps of a segmentation network with a norm layer."""

    def __init__(self, method: str, case: Case) -> None:
        import gluon_syncbn
        import mxnet as mx
        from mxnet import gluon

        from demo.networks import Design, Norm, save_initial_weights
        from demo.training import Loop, Schedule, Variant

        contexts = tuple(mx.cpu(i) for i in range(case["contexts"]))
        devices = {"num_devices": len(contexts)}
        norm = {
            "ours": Norm(gluon_syncbn.SyncBatchNorm, devices),
            "fused": Norm(gluon_syncbn.SyncBatchNorm, devices, fuse=True),
            "ours1": Norm(gluon_syncbn.SyncBatchNorm, {"num_devices": 1}),
            "builtin": Norm(gluon.contrib.nn.SyncBatchNorm, devices),
        }.get(method, Norm())
        design = Design(case["model"], case["backbone"], 21, case["side"])
        batch = case["images"] * len(contexts)
        schedule = Schedule(epochs=1, batch=batch, rate=1e-3)
        with tempfile.TemporaryDirectory() as folder:
            weights = Path(folder) / "initial.params"
            save_initial_weights(design, 0, weights)
            self._loop = Loop(
                Variant(method, method, norm, contexts), design, schedule, 1000, weights
            )
        generator = np.random.default_rng(0)
        side = case["side"]
        self._images = np.asarray(generator.standard_normal((batch, 3, side, side)), np.float32)
        self._labels = generator.integers(0, 21, (batch, side, side)).astype(np.float32)
        self._wait = mx.nd.waitall

    def __call__(self) -> None:
        self._loop.step(self._images, self._labels)
        self._wait()


def timed(step: Step) -> float:
    """Seconds that one call takes."""
    time.sleep(PAUSE_SECONDS)
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


class Timer:
    """Keeps what was built for the last case, and times its methods in turns."""

    def __init__(self, make: Callable[[str, Case], Step]) -> None:
        self._make = make
        self._case: Case = {}
        self._steps: dict[str, Step] = {}

    def __call__(self, request: Case) -> dict[str, Any]:
        methods = request["methods"]
        if request["case"] != self._case:
            self._steps.clear()
            self._case = request["case"]
        for method in methods:
            if method not in self._steps:
                step = self._steps[method] = self._make(method, self._case)
                for _ in range(request["warm_up"]):
                    step()
        times: dict[str, list[float]] = {method: [] for method in methods}
        for turn in range(request["rounds"]):
            for i in range(len(methods)):
                method = methods[(turn + i) % len(methods)]
                times[method].append(timed(self._steps[method]))
        return {"times": times, "peak_mb": peak_mb()}


def peak_mb() -> float:
    """Largest memory that this process ever had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_accuracy(request: Case) -> dict[str, Any]:
    """Errors of output and input gradient, relative to the largest true value, by method."""
    case = request["case"]
    pixels = int(np.prod(case["shape"][2:]))
    x, dy = (
        np.concatenate(f(case)).astype(np.float64).reshape(-1, case["shape"][1], pixels)
        for f in (normal_data, normal_gradients)
    )
    ones = np.ones(case["shape"][1])
    expected = exact(x, dy, ones, 0 * ones, EPSILON)
    errors = {}
    for method in request["methods"]:
        step = make_step(method, case)
        step()
        if isinstance(step, TorchStep):
            out, dx = step.output.detach().numpy(), step.data.grad.numpy()
        else:
            assert isinstance(step, MXNetStep)
            out = np.concatenate([x.asnumpy() for x in step.outputs])
            dx = np.concatenate([x.grad.asnumpy() for x in step.data])
        errors[method] = {
            "out": relative_error(out.reshape(x.shape), expected["y"]),
            "dx": relative_error(dx.reshape(x.shape), expected["dx"]),
        }
    return {"errors": errors}


def measure_memory(request: Case) -> dict[str, Any]:
    """Peak memory of a chain of layers in training beyond that of its data."""
    import mxnet as mx
    from mxnet import gluon

    case, (method,) = request["case"], request["methods"]
    contexts = [mx.cpu(i) for i in range(case["contexts"])]
    chain = gluon.nn.HybridSequential()
    chain.add(*[mxnet_layer(method, case, contexts) for _ in range(MEMORY_LAYERS)])
    chain.hybridize()
    data = [mx.nd.array(x, ctx=c) for x, c in zip(normal_data(case), contexts)]
    mx.nd.waitall()
    before = peak_mb()
    for _ in range(3):
        with mx.autograd.record():
            outputs = [chain(x) for x in data]
        mx.autograd.backward(outputs)
        mx.nd.waitall()
    return {"layer_mb": (peak_mb() - before) / MEMORY_LAYERS}
