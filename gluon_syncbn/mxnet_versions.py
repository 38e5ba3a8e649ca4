"""What differs between MXNet 1.9.1 and MXNet 2; no other module asks which of them it runs on.

``src/mxnet/c_api.cc`` has what differs in their C functions.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from typing import Any, Callable, Iterator

import mxnet as mx
from mxnet import gluon

IS_2 = mx.__version__.startswith("2.")

# The environment variables that switch oneDNN off, for all operators and for RNN.
ONEDNN = "MXNET_ONEDNN_ENABLED" if IS_2 else "MXNET_MKLDNN_ENABLED"
ONEDNN_RNN = "MXNET_USE_ONEDNN_RNN" if IS_2 else "MXNET_USE_MKLDNN_RNN"

# The norm layers of MXNet that SyncBatchNorm replaces.
PLAIN_NORMS = (gluon.nn.BatchNorm, (gluon if IS_2 else gluon.contrib).nn.SyncBatchNorm)

# The class of contexts. MXNet 2 calls them devices, and its ``mx.Context`` is a function.
Context = mx.Device if IS_2 else mx.Context

# The executor whose passes share their mode.
EXECUTOR: Any = None if IS_2 else mx.executor.Executor

# As files of symbols have it. MXNet 2 prints two lines for each symbol of an earlier version.
SYMBOL_VERSION = 20000 if IS_2 else 10901

load_symbol: Callable[[str], Any] = mx.sym.fromjson if IS_2 else mx.sym.load_json


def is_supported() -> bool:
    """Whether this is a version of MXNet that the package knows."""
    return IS_2 or mx.__version__.startswith("1.9.1")


def context_of(array: Any) -> Any:
    """Return the context of an array. In MXNet 2 the old name of the attribute warns."""
    return array.device if IS_2 else array.context


def new_array(values: Any, ctx: Any, dtype: str | None = None) -> Any:
    """Return an array that Gluon layers accept: of ``mx.np`` if that is in use."""
    # In MXNet 2 threads that have not called npx.set_np() know of no arrays of mx.np.
    array = mx.np.array if IS_2 or mx.util.is_np_array() else mx.nd.array
    return array(values, ctx=ctx, dtype=dtype)


def children_of(block: gluon.Block) -> list[gluon.Block]:
    """List the blocks that `block` consists of."""
    children = block._children.values()
    return [child() for child in children] if IS_2 else list(children)


def name_of(block: gluon.Block) -> str:
    """Return a name for messages. In MXNet 2 only layers of this package have names."""
    return str(getattr(block, "name", None) or type(block).__name__)


def names_in(net: gluon.Block, prefix: str = "") -> dict[gluon.Block, str]:
    """Name the blocks of a network: by themselves, or in MXNet 2 by their place in it."""
    names = {net: prefix or name_of(net)} if IS_2 else {net: net.name}
    for key, child in zip(net._children, children_of(net)):
        for block, name in names_in(child, f"{prefix}.{key}".lstrip(".")).items():
            names.setdefault(block, name)
    return names


def require_symbolic_calls(function: str, instead: str) -> None:
    """Raise an error in MXNet 2, whose networks cannot be called with symbols."""
    if IS_2:
        raise RuntimeError(
            f"gluon_syncbn.{function} needs MXNet 1.9.1: networks of MXNet 2 cannot be called with "
            f"symbols. Instead, {instead}"
        )


def add_parameter(block: gluon.Block, name: str, **arguments: Any) -> None:
    """Give `block` a parameter, as an attribute."""
    make = gluon.Parameter if IS_2 else block.params.get
    setattr(block, name, make(name, **arguments))


def remove_parameter(block: gluon.Block, name: str) -> None:
    """Take a parameter away again."""
    parameter = block._reg_params.pop(name)
    if not IS_2:
        block.params._params.pop(parameter.name, None)
    delattr(block, name)


def mixed_precision() -> Any:
    """Return the module of automatic mixed precision, which MXNet does not load on import."""
    if IS_2:
        from mxnet import amp
    else:
        from mxnet.contrib import amp
    return amp


def current_graph(layer: gluon.Block) -> tuple[Any, str, bool]:
    """Say for which graph MXNet is calling `layer`, if it builds one.

    Returns an object that belongs to this trace, and a name of the graph that is the same in all
    processes. Then it returns whether `layer` is called by itself.
    """
    return _current_graph_2(layer) if IS_2 else _current_graph_1(layer)


def _current_graph_1(layer: gluon.Block) -> tuple[Any, str, bool]:
    # Gluon enters a scope of names with each block that has a prefix. The outermost one belongs to
    # the trace.
    scope = current = mx.name.NameManager.current
    while isinstance(current, mx.name.Prefix):
        scope, current = current, current._old_manager
    graph = getattr(scope, "_prefix", "")
    return scope, graph, graph == layer.prefix


def custom_operator(traced: bool) -> Any:
    """Return MXNet's operator Custom for the arrays or symbols of this call."""
    if IS_2:
        return mx.nd.np._internal.Custom
    module = mx.sym if traced else mx.nd
    return module.np._internal.Custom if mx.util.is_np_array() else module.Custom


def is_tracing() -> bool:
    """Whether MXNet 2 is building a graph on this thread."""
    return bool(mx._deferred_compute.is_deferred_compute())


class _Trace:
    """One building of the graph of a block; it keeps `inputs`, by which it is known."""

    def __init__(self, inputs: list) -> None:
        self.inputs = inputs


_latest_traces: weakref.WeakKeyDictionary[Any, _Trace] = weakref.WeakKeyDictionary()


def _current_graph_2(layer: gluon.Block) -> tuple[Any, str, bool]:
    # There are no scopes: deferred compute is a switch of the thread that names no graph, and a
    # symbol exists only at the end. The block is known to the function that builds its graph. Its
    # frame is read, because a wrapper around it would not reach the layers that have copies of it
    # (mx.util.use_np), and would change MXNet for programs without this layer.
    frame = sys._getframe()
    while frame.f_code is not gluon.HybridBlock._get_graph.__code__:
        if frame.f_back is None:
            return gluon.Block, "", False  # the class stands for no graph
        frame = frame.f_back
    block, inputs = frame.f_locals["self"], frame.f_locals["symbol_inputs"]
    trace = _latest_traces.get(block)
    if trace is None or trace.inputs is not inputs:
        trace = _latest_traces[block] = _Trace(inputs)
    return (
        trace,
        f"{type(block).__name__}.{names_in(block).get(layer, name_of(layer))}",
        block is layer,
    )


_PARAMETERS = ("gamma", "beta", "running_mean", "running_var", "num_batches_tracked")


class _NormBlock1(gluon.nn.BatchNorm):
    def hybrid_forward(
        self,
        F: Any,  # noqa: N803
        x: Any,
        *inputs: Any,
        **named: Any,
    ) -> Any:
        # Gluon gives parameters by name, a subclass perhaps by position. A shortcut comes first.
        missing = [each for each in _PARAMETERS if each in self._reg_params and each not in named]
        first = len(inputs) - len(missing)
        named.update(zip(missing, inputs[first:]))
        return self._forward(F is mx.sym, x, *inputs[:first], **named)


class _NormBlock2(gluon.nn.BatchNorm):
    _counter: Iterator[int] = itertools.count()

    def __init__(self, prefix: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if prefix is not None:
            self._name = prefix.rstrip("_")

    @property
    def name(self) -> str:
        """The prefix, or this layer's place in the network that was converted, or its number."""
        if "_name" not in self.__dict__:
            self._name = f"{type(self).__name__.lower()}{next(self._counter)}"
        return self._name

    @property
    def prefix(self) -> str:
        """As in MXNet 1.9.1."""
        return f"{self.name}_"

    def infer_shape(self, x: Any, *_: Any) -> None:
        """Complete the parameters. Errors have the words of the operator, which is called later."""
        axis, number = self._kwargs["axis"], len(x.shape)
        if not 2 <= number <= 5:
            raise ValueError(
                f"{self.name}: data has shape {x.shape} where 2 to 5 dimensions are expected"
            )
        if not -number <= axis < number:
            raise ValueError(
                f"{self.name}: attribute axis={axis} should be from {-number} to {number - 1} for "
                f"data of {number} dimensions"
            )
        channels = (x.shape[axis],)
        for name in ("gamma", "beta", "running_mean", "running_var"):
            parameter = self._reg_params[name]
            known = parameter.shape
            if known[0] > 0 and known != channels:
                raise ValueError(
                    f"{self.name}: {name} has shape {known} where {channels} is expected, one for "
                    f"each channel of data of shape {x.shape} along axis {axis}"
                )
            parameter.shape = channels

    def forward(self, x: Any, shortcut: Any = None) -> Any:
        parameters = {name: each.data(x.device) for name, each in self._reg_params.items()}
        if self.gamma.grad_req == self.beta.grad_req == "null" and mx.autograd.is_recording():
            # MXNet records nothing if no gradient is wanted, and backward() would be an error. The
            # layers of the fork of MXNet 2 want one too.
            with mx.autograd.pause():
                parameters["beta"] = parameters["beta"].copy()
            parameters["beta"].attach_grad()
        return self._forward(is_tracing(), x, shortcut, **parameters)


# A BatchNorm that leaves its call to ``_forward(traced, x, shortcut, **parameters)``. `traced`
# says whether MXNet builds a graph.
NormBlock: Any = _NormBlock2 if IS_2 else _NormBlock1
