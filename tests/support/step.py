"""One training step on any contexts, and the same on one device with the whole batch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Callable

import gluon_syncbn
import mxnet as mx
import numpy as np
from gluon_syncbn.mxnet_versions import new_array
from mxnet import autograd

from tests.support.oracle import batch_norm

MODES = {
    "imperative": {"active": False},
    "hybridized": {},
    "static_alloc": {"static_alloc": True},
    "static_shape": {"static_alloc": True, "static_shape": True},
}
# What SyncBatchNorm calls an activation, and what the operators of MXNet call it.
ACT_TYPES = {None: None, "relu": "relu", "leaky_relu": "leaky", "elu": "elu"}


@dataclass
class Case:
    """A batch, and a layer or a network that trains on it.

    `shards` has the number of samples of each device. Without `dy`, the network returns losses.
    `call` takes the network, a shard and the place of the shard in the batch.
    """

    x: np.ndarray
    shards: tuple[int, ...]
    dy: np.ndarray | None = None
    gamma: np.ndarray | None = None
    beta: np.ndarray | None = None
    running_mean: np.ndarray | None = None
    running_var: np.ndarray | None = None
    num_batches_tracked: np.ndarray | None = None
    shortcut: np.ndarray | None = None
    call: Callable[[Any, Any, int], Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)  # arguments of the layer
    train_mode: bool = True
    grad_req: dict[str, str] = field(default_factory=dict)  # of x, shortcut and the parameters
    before: float = 0.0  # the value of gradients before backward

    @property
    def axis(self) -> int:
        return int(self.options.get("axis", 1))

    @property
    def batch_axis(self) -> int:
        """The first axis, or the second if channels come first."""
        return 1 if self.axis % self.x.ndim == 0 else 0

    def bounds(self, device: int) -> slice:
        """The samples of a device."""
        return slice(sum(self.shards[:device]), sum(self.shards[: device + 1]))

    def part(self, array: np.ndarray, samples: slice) -> np.ndarray:
        return array[(slice(None),) * self.batch_axis + (samples,)]

    @property
    def groups(self) -> list[slice]:
        """The devices that synchronize with each other."""
        number = len(self.shards)
        size = self.options.get("sync_group_size") or number
        return [slice(first, first + size) for first in range(0, number, size)]

    def of(self, devices: slice) -> Case:
        """The case of a group of the devices."""
        numbers = range(len(self.shards))[devices]
        samples = slice(self.bounds(numbers[0]).start, self.bounds(numbers[-1]).stop)
        parts = {
            name: self.part(getattr(self, name), samples)
            for name in ("x", "dy", "shortcut")
            if getattr(self, name) is not None
        }
        return dataclasses.replace(self, shards=self.shards[devices], **parts)

    def another(self, rng: np.random.Generator, shards: tuple[int, ...]) -> Case:
        """The case with other data of standard deviation 1."""
        shape = list(self.x.shape)
        shape[self.batch_axis] = sum(shards)
        data = {
            name: rng.standard_normal(shape).astype(self.x.dtype)
            for name in ("x", "dy", "shortcut")
            if getattr(self, name) is not None
        }
        return dataclasses.replace(self, shards=shards, **data)

    def held_by(self, layer: Any, c: mx.Context) -> Case:
        """The case with the parameters of a layer on a context."""
        values = {name: each.data(c).asnumpy() for name, each in named(layer).items()}
        return dataclasses.replace(self, **values)


def make_case(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    shards: tuple[int, ...],
    dtype: str = "float32",
    mean: float = 0.0,
    **options: Any,
) -> Case:
    """Draw data of standard deviation 1 around `mean`; shape[batch axis] is the sum of shards."""
    channels = shape[options.get("axis", 1)]
    parameter = "float32" if dtype == "float16" else dtype

    def normal(*size: int) -> np.ndarray:
        return rng.standard_normal(size)

    return Case(
        x=(normal(*shape) + mean).astype(dtype),
        dy=normal(*shape).astype(dtype),
        gamma=(1 + 0.5 * normal(channels)).astype(parameter),
        beta=normal(channels).astype(parameter),
        running_mean=normal(channels).astype(parameter),
        running_var=(0.5 + rng.random(channels)).astype(parameter),
        shards=shards,
        options=options,
    )


def set_values(layer: Any, case: Case) -> None:
    for name in ("gamma", "beta", "running_mean", "running_var"):
        values = getattr(case, name)
        getattr(layer, name).set_data(new_array(values, mx.cpu(), values.dtype.name))


def make_layer(case: Case, ctx: list[mx.Context], mode: str = "imperative", **more: Any) -> Any:
    """Make the layer of a case."""
    layer = gluon_syncbn.SyncBatchNorm(in_channels=len(case.gamma), **case.options, **more)
    layer.initialize(ctx=ctx)
    layer.cast(case.x.dtype.name)
    set_values(layer, case)
    for name in ("gamma", "beta"):
        parameter = getattr(layer, name)
        parameter._differentiable = True  # with scale=False too, where the gradient is 0
        parameter.grad_req = case.grad_req.get(name, "write")
    layer.hybridize(**MODES[mode])
    return layer


@dataclass
class Step:
    """What a step leaves on each device, by name.

    `sizes` are what errors are relative to, where that is not the largest value.
    """

    batch: dict[str, list[np.ndarray]]  # outputs or losses, and gradients of inputs
    gradients: dict[str, list[np.ndarray]] = field(default_factory=dict)  # of parameters
    running: dict[str, list[np.ndarray]] = field(default_factory=dict)  # parameters without one
    sizes: dict[str, float] = field(default_factory=dict)
    batch_axis: int = 0

    def of(self, devices: slice) -> Step:
        """The part of a group of the devices."""
        parts = (
            {name: arrays[devices] for name, arrays in each.items()}
            for each in (self.batch, self.gradients, self.running)
        )
        return Step(*parts, batch_axis=self.batch_axis)

    def __getitem__(self, name: str) -> np.ndarray:
        """An array of the whole batch."""
        return np.concatenate(self.batch[name], axis=self.batch_axis)


def run(net: Any, case: Case, ctx: list[mx.Context], first: int = 0) -> dict[str, list]:
    """Call a network on all devices, and call backward.

    `first` is the place of the first device among all: other processes may have others.
    """

    def shards(array: np.ndarray, name: str = "") -> list:
        parts = [case.part(array, case.bounds(first + i)) for i in range(len(ctx))]
        arrays = [new_array(part, c, array.dtype.name) for part, c in zip(parts, ctx)]
        for each in arrays if name else ():
            each.attach_grad(case.grad_req.get(name, "write"))
            if each.grad is not None and case.before:
                each.grad[:] = case.before
        return arrays

    xs = shards(case.x, "x")
    shortcuts = [] if case.shortcut is None else shards(case.shortcut, "shortcut")
    with autograd.record(train_mode=case.train_mode):
        if case.call is None:
            outs = [net(*inputs) for inputs in (zip(xs, shortcuts) if shortcuts else zip(xs))]
        else:
            places = (case.bounds(first + i).start for i in range(len(ctx)))
            outs = [case.call(net, x, place) for x, place in zip(xs, places)]
    dys = None if case.dy is None else shards(case.dy)
    autograd.backward(outs, dys, train_mode=case.train_mode)
    return {"out": outs, "x": xs, "shortcut": shortcuts}


def named(net: Any) -> dict[str, Any]:
    """Return parameters by their place in the network. In a traced graph, names give the place."""
    parameters = net._collect_params_with_prefix().items()
    return {n.replace("syncbatchnorm", "batchnorm").replace(".", "_"): p for n, p in parameters}


def train_step(net: Any, case: Case, ctx: list[mx.Context], first: int = 0) -> Step:
    """Run one forward and backward pass on these contexts."""
    parameters = named(net)
    trained = {name: p for name, p in parameters.items() if p.grad_req != "null"}
    for parameter in trained.values() if case.before else ():
        for gradient in parameter.list_grad():
            gradient[:] = case.before
    arrays = run(net, case, ctx, first)
    step = Step(_outputs(case, arrays), batch_axis=case.batch_axis)
    for name in ("x", "shortcut") if case.dy is not None else ():
        if arrays[name] and arrays[name][0].grad is not None:
            step.batch[f"d{name}"] = [each.grad.asnumpy() for each in arrays[name]]
    for name, parameter in parameters.items():
        if name in trained:
            step.gradients[name] = [each.asnumpy() for each in parameter.list_grad()]
        elif name not in ("gamma", "beta"):
            step.running[name] = [each.asnumpy() for each in parameter.list_data()]
    return step


def train(net: Any, case: Case, ctx: list[mx.Context], trainer: Any, steps: int) -> Step:
    """Run steps of a trainer, and read nothing before the last; `running` has all parameters."""
    for step in range(steps):
        arrays = run(net, case, ctx)
        if step == 0:
            # The first step of a trainer copies all parameters of the first device to the others,
            # running statistics too. In a static_shape graph it does not wait for them.
            mx.nd.waitall()
        trainer.step(len(case.x))
        batch = _outputs(case, arrays) if step == steps - 1 else {}
        del arrays  # MXNet uses their memory again while devices still work
    running = {n: [each.asnumpy() for each in p.list_data()] for n, p in named(net).items()}
    return Step(batch, running=running, batch_axis=case.batch_axis)


def _outputs(case: Case, arrays: dict[str, list]) -> dict[str, list[np.ndarray]]:
    outs = [each.asnumpy() for each in arrays["out"]]
    return {"out": outs} if case.dy is not None else {"loss": [each.reshape(1) for each in outs]}


def expect(case: Case) -> Step:
    """Return the step of one device with the whole batch, from the oracle."""
    options = case.options
    activation, scale = options.get("activation"), options.get("scale", True)
    alpha = options.get("alpha", {"leaky_relu": 0.01, "elu": 1.0}.get(activation, 0.0))
    momentum, batches = options.get("momentum", 0.9), None
    if momentum is None:
        batches = 0 if case.num_batches_tracked is None else case.num_batches_tracked.item()
        momentum = batches / (batches + 1)
    moves = case.train_mode and not options.get("use_global_stats") and case.x.size > 0
    whole = batch_norm(
        case.x,
        case.dy,
        case.gamma,
        case.beta,
        case.running_mean,
        case.running_var,
        axis=case.axis,
        eps=options.get("epsilon", 1e-5),
        momentum=momentum,
        fix_gamma=not scale,
        batch_statistics=moves,
        shortcut=0.0 if case.shortcut is None else case.shortcut,
        act_type=ACT_TYPES[activation],
        slope=alpha,
    )
    step = Step(
        {"out": [whole.out]},
        running={"running_mean": [whole.running_mean], "running_var": [whole.running_var]},
        batch_axis=case.batch_axis,
    )
    if batches is not None:
        step.running["num_batches_tracked"] = [np.array([batches + moves])]
    largest = np.abs(case.dy).max(initial=0.0) * max(1.0, alpha)
    gradients = {
        # A difference of terms of this size, which may cancel.
        "x": (whole.dx, largest * whole.largest_scale),
        "shortcut": (whole.dshortcut, largest),
        "gamma": (whole.dgamma, largest),
        "beta": (whole.dbeta, largest),
    }
    for name, (gradient, size) in gradients.items():
        request = case.grad_req.get(name, "write")
        before = case.before if request == "add" else 0.0
        if request == "null" or (name == "shortcut" and case.shortcut is None):
            continue
        if name in ("x", "shortcut"):
            step.batch[f"d{name}"] = [gradient + before]
            step.sizes[f"d{name}"] = size + before
        else:
            step.gradients[name] = [gradient + before * len(case.shards)]
            step.sizes[name] = size + before
    return step


def largest(*arrays: np.ndarray) -> float:
    return max([1e-30, *(float(np.abs(each).max(initial=0.0)) for each in arrays)])


def require_close(
    name: str, value: np.ndarray, wanted: np.ndarray, tolerance: float, size: float | None = None
) -> None:
    """Fail where the difference is more than `tolerance` of a size, or of the largest value."""
    assert value.shape == wanted.shape, (name, value.shape, wanted.shape)
    size = largest(wanted) if size is None else size
    error = np.abs(value.astype(np.float64) - wanted).max(initial=0.0)
    assert error <= tolerance * size, f"{name}: {error} > {tolerance} of {size}"


def compare(
    found: Step,
    expected: Step,
    tolerance: float,
    out: float | None = None,
    running: float | None = None,
) -> None:
    """Fail where a step differs by more than `tolerance` from that of one device.

    `out` is the tolerance of arrays with the dtype of the data or of losses, `running` that of
    running statistics, which have the same bits on all devices.
    """

    out = tolerance if out is None else out
    assert found.batch.keys() == expected.batch.keys()
    for name in found.batch:
        wanted, value = expected[name], found[name]
        if name == "loss":
            value, wanted = value.sum(keepdims=True), wanted.sum(keepdims=True)
        require_close(name, value, wanted, out, expected.sizes.get(name))
    assert found.gradients.keys() == expected.gradients.keys()
    most = largest(*(part for parts in expected.gradients.values() for part in parts))
    for name, parts in found.gradients.items():
        total, wanted = (
            np.sum(each, axis=0, dtype=np.float64) for each in (parts, expected.gradients[name])
        )
        # Sums may cancel, but the rounding errors of their terms do not. Gradients that are 0 in
        # exact arithmetic are sums of terms as large as the other gradients.
        size = largest(wanted) + 1e-4 * most
        if name in expected.sizes:
            size = max(largest(*parts, wanted), expected.sizes[name])
        require_close(name, total, wanted, tolerance, size)
    for name, (wanted, *_) in expected.running.items():
        first, *others = found.running[name]
        require_close(name, first, wanted, tolerance if running is None else running)
        assert {each.tobytes() for each in others} <= {first.tobytes()}, f"{name} differs"


def after(case: Case, expected: Step) -> Case:
    """The case with the running statistics that a step leaves."""
    running = {name: value.astype(case.gamma.dtype) for name, (value,) in expected.running.items()}
    return dataclasses.replace(case, **running)


def check_step(
    layer: Any,
    case: Case,
    ctx: list[mx.Context],
    tolerance: float = 1e-5,
    out: float | None = None,
    running: float | None = None,
) -> Step:
    """Compare a step of a layer with the oracle, which starts from the layer's parameters."""
    expected = [expect(case.of(each).held_by(layer, ctx[each.start])) for each in case.groups]
    # Without it, mx.nd takes 0 for a size that is not known.
    with mx.util.np_shape(mx.util.is_np_shape() or 0 in case.shards):
        found = train_step(layer, case, ctx)
    assert all(each.dtype == case.x.dtype for each in found.batch["out"])
    for devices, each in zip(case.groups, expected):
        compare(found.of(devices), each, tolerance, out, running)
    return found


def avoid_kinks(case: Case) -> None:
    """Set gradients to 0 where rounding decides on which side of its kink an activation is."""
    plain = {n: v for n, v in case.options.items() if n not in ("activation", "alpha")}
    for each in map(case.of, case.groups):
        z = expect(dataclasses.replace(each, options=plain))["out"]
        each.dy[np.abs(z) < 1e-2] = 0
