"""Networks to train, and their parameters on any contexts."""

from __future__ import annotations

from typing import Any, Callable
from unittest import mock

import gluon_syncbn
import mxnet as mx
import numpy as np
from gluon_syncbn.mxnet_versions import new_array
from mxnet import gluon
from mxnet.gluon import nn

from tests.conftest import DEVICE
from tests.support.either_mxnet import HybridBlock, nd
from tests.support.step import Case, named, require_close, run

CHANNELS = 3


def sequential(*layers: Any) -> nn.HybridSequential:
    net = nn.HybridSequential()
    net.add(*layers)
    return net


class Parabola(HybridBlock):
    """A layer without parameters."""

    def hybrid_forward(self, F, x):
        return F.square(x) - x


def mixing() -> Any:
    """A convolution, or an elementwise function: the fake CUDA computes nothing else."""
    if DEVICE == "gpu":
        return Parabola()
    return nn.Conv2D(CHANNELS, 3, padding=1, use_bias=False, in_channels=CHANNELS)


class Branches(HybridBlock):
    """Parallel branches of different depth, as in ASPP and PSP heads."""

    def __init__(self, norm: Callable[..., Any], number: int = 5) -> None:
        super().__init__()
        with self.name_scope():
            self.branches = nn.HybridSequential()
            for depth in range(1, number + 1):
                branch = nn.HybridSequential()
                for _ in range(depth):
                    branch.add(mixing(), norm(in_channels=CHANNELS, epsilon=1e-2))
                branch.add(Parabola())
                self.branches.add(branch)

    def hybrid_forward(self, F, x):
        # The deepest first, so that the order of calls is not the order of arrival.
        return F.add_n(*[branch(x) for branch in reversed(list(self.branches))])


class Shared(HybridBlock):
    """One layer used three times in a forward, twice of it in independent branches."""

    def __init__(self, norm: Callable[..., Any]) -> None:
        super().__init__()
        with self.name_scope():
            self.first, self.second = mixing(), mixing()
            self.norm = norm(in_channels=CHANNELS, epsilon=1e-2)

    def hybrid_forward(self, F, x):
        deep = self.norm(self.first(x))
        shallow = self.norm(self.second(x) * 3 + 1)
        return self.norm(F.square(deep) + shallow)


class Residual(HybridBlock):
    """Layers, and a shortcut around them to a norm, or to the `act` after the norm."""

    def __init__(self, *layers: Any, norm: Any, act: Any = None) -> None:
        super().__init__()
        with self.name_scope():
            self.body = sequential(*layers)
            self.norm, self.act = norm, act

    def hybrid_forward(self, F, x):
        y = self.body(x)
        return self.norm(y, x) if self.act is None else self.act(self.norm(y) + x)


class LeakyReLU(HybridBlock):
    """In the precision of the data. MXNet's operator computes in single precision."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def hybrid_forward(self, F, x):
        return F.relu(x) - self.alpha * F.relu(-x)


def exact_leaky_relu() -> Any:
    """MXNet's operator rounds what lies below 0 to single precision, of float64 data too."""

    def hybrid_forward(self, F, x):
        return F.where(x > 0, x, x * float(np.float32(self._alpha)))

    return mock.patch.object(nn.LeakyReLU, "hybrid_forward", hybrid_forward)


def residual(norm: Callable[..., Any], fused: bool = False) -> nn.HybridSequential:
    """Activations and a shortcut, which the norms compute themselves if they are fused."""
    leaky, relu = {}, {}
    between, act = LeakyReLU(0.25), LeakyReLU(0.0)
    if fused:
        leaky = {"activation": "leaky_relu", "alpha": 0.25, "inplace": True}
        relu = {"activation": "relu"}
        between, act = nn.HybridSequential(), None
    first, last = (norm(in_channels=CHANNELS, **options) for options in (leaky, relu))
    return sequential(mixing(), Residual(first, between, mixing(), norm=last, act=act))


ACTIVATIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "relu": {"activation": "relu"},
    "leaky": {"activation": "leaky_relu"},
    "leaky 0.3": {"activation": "leaky_relu", "alpha": 0.3, "momentum": None},
    "elu 0.5": {"activation": "elu", "alpha": 0.5},
}


def two_norms(kind: str) -> nn.HybridSequential:
    """Two norms with activations, the second one with a shortcut."""
    convs = [nn.Conv2D(4, 3, padding=1, use_bias=False, in_channels=inputs) for inputs in (3, 4)]
    norms = [gluon_syncbn.SyncBatchNorm(in_channels=4, **ACTIVATIONS[kind]) for _ in convs]
    return sequential(convs[0], norms[0], Residual(convs[1], norm=norms[1]))


def import_files(path: Any, ctx: Any) -> gluon.SymbolBlock:
    """Load an export."""
    files = f"{path}-symbol.json", ["data"], f"{path}-0000.params"
    return gluon.SymbolBlock.imports(*files, ctx=ctx)


def check_files(path: Any, x: Any, expected: np.ndarray, most: float = 1e-6) -> gluon.SymbolBlock:
    """Load an export; fail where it differs by more than `most` of the largest value."""
    net = import_files(path, x.context)
    require_close(str(path), net(x).asnumpy(), expected, most)
    return net


def make_batch(number: int, samples: int = 9) -> Case:
    """A batch for these networks, on `number` devices."""
    rng = np.random.default_rng(7)
    x, dy = (rng.standard_normal((samples, CHANNELS, 5, 4)) for _ in range(2))
    return Case(x, split(samples, number), dy)


def split(samples: int, number: int) -> tuple[int, ...]:
    """Share samples as evenly as possible."""
    ends = [samples * i // number for i in range(number + 1)]
    return tuple(end - begin for begin, end in zip(ends, ends[1:]))


def leaves(outputs: Any) -> list[mx.nd.NDArray]:
    if isinstance(outputs, (list, tuple)):
        return [leaf for output in outputs for leaf in leaves(output)]
    return [outputs]


def weighted_loss(net: Any, x: mx.nd.NDArray, first: int) -> mx.nd.NDArray:
    """Return the sum of every output times random weights."""
    losses = []
    for out in leaves(net(x)):
        rng = np.random.default_rng(out.size // out.shape[0])
        weights = rng.standard_normal((first + out.shape[0], *out.shape[1:]))[first:]
        losses.append((out * nd.array(weights, ctx=out.context, dtype="float64")).sum())
    return sum(losses)


def make_images(size: int, number: int, loss: Callable = weighted_loss) -> Case:
    """Three images for `number` devices: two devices get one image and two."""
    x = np.random.default_rng(2).standard_normal((3, 3, size, size))
    return Case(x, split(3, number), call=loss)


def norm_layers(net: Any) -> list:
    found: list = []
    net.apply(lambda block: found.append(block) if isinstance(block, nn.BatchNorm) else None)
    return found


def randomize(net: Any, case: Case) -> dict[str, np.ndarray]:
    """Give a network on one CPU context random parameters and running statistics; return them.

    With the initial values of BatchNorm some statistics would be zero but for rounding.
    """
    net.initialize(mx.init.Zero(), ctx=[mx.cpu()], force_reinit=True)
    net.cast("float64")
    one = Case(case.x[:1] * 0, (1,), None if case.dy is None else case.dy[:1], call=case.call)
    run(net, one, [mx.cpu()])  # infers the shapes
    rng = np.random.default_rng(1)
    values = {}
    for name, parameter in named(net).items():
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
        values[name] = value
    load(net, [mx.cpu()], values)
    return values


def load(net: Any, ctx: list[mx.Context], values: dict[str, np.ndarray]) -> None:
    """Give a network on these contexts these values."""
    parameters = named(net)
    assert parameters.keys() == values.keys()
    for name, parameter in parameters.items():
        parameter.shape = values[name].shape
        parameter.initialize(mx.init.Zero(), ctx=ctx, force_reinit=True)
        parameter.set_data(new_array(values[name], mx.cpu(), "float64"))
