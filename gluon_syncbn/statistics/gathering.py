"""Gather the moments of the inputs of norms, while a network runs in training mode."""

from __future__ import annotations

import math
from contextlib import contextmanager, suppress
from typing import Any, Iterator, Sequence

import mxnet as mx
import numpy as np
from mxnet.gluon.block import _flatten, _regroup

from ..mxnet_versions import context_of
from ..norms import Norm
from ..symbols.graph import graph_of


class Moments:
    """The count, the mean and M2 of all inputs of norms that share their running statistics."""

    def __init__(self, norms: list[Norm]) -> None:
        synchronized = [norm for norm in norms if norm.is_synchronized]
        self._names = [norm.name for norm in synchronized]
        self.process_set = next((norm.process_set for norm in synchronized), None)
        self._parameters = [norms[0].running_mean, norms[0].running_var]
        self._before = [[array.copy() for array in p.list_data()] for p in self._parameters]
        self._counters = {norm.count for norm in norms} - {None}
        self._waiting: list[tuple[int, list[mx.nd.NDArray]]] = []
        self._uses = 0
        self.values = np.zeros((3, self._before[0][0].size))

    def before(self, ctx: mx.Context) -> list[mx.nd.NDArray]:
        """Return the statistics of a device, as they were."""
        number = self._parameters[0].list_ctx().index(ctx)
        return [arrays[number] for arrays in self._before]

    def note(self, count: int, mean: mx.nd.NDArray, var: mx.nd.NDArray) -> None:
        """Note the statistics of an input, of which a device has `count` values per channel."""
        self._waiting.append((count, [mean.copy(), var.copy()]))

    def merge_waiting(self) -> None:
        """Add the moments of all devices, after all of them were called."""
        for count, statistics in self._waiting:
            mean, var = (array.asnumpy().astype(np.float64) for array in statistics)
            self.merge(np.stack([np.full_like(mean, count), mean, count * var]))
        self._uses += len(self._waiting) // len(self._before[0])
        self._waiting.clear()

    def merge(self, others: np.ndarray) -> None:
        """Add another count, mean and M2, by Chan's formula."""
        (count, mean, m2), (more, other, m2_other) = self.values, others
        share = more / np.maximum(count + more, 1)
        change = other - mean
        self.values = np.stack(
            [count + more, mean + share * change, m2 + m2_other + change**2 * count * share]
        )

    def unreached(self) -> list[str]:
        """Name the norms, if they have had no input at all."""
        return [] if self.values[0].all() else self._names

    def finish(self, error: Any, *_: Any) -> None:
        """Set the running statistics, or restore them after an error; see ``ExitStack.push``."""
        count, mean, m2 = self.values
        if error is not None or not count.all():
            for parameter, arrays in zip(self._parameters, self._before):
                for now, before in zip(parameter.list_data(), arrays):
                    with suppress(mx.base.MXNetError):
                        now.wait_to_read()  # with an unread error, it would stay as it is
                    now[:] = before
            return
        set_everywhere(self._parameters, [mean, m2 / count])
        set_everywhere(self._counters, [float(self._uses)] * len(self._counters))


def set_everywhere(parameters: Any, values: Sequence[Any]) -> None:
    """Give each parameter a value on all of its contexts."""
    for parameter, value in zip(parameters, values):
        for array in parameter.list_data():
            array[:] = value


@contextmanager
def noting_layer(layer: Any, moments: Moments) -> Iterator[None]:
    """Let `moments` note each input of a layer in training mode.

    With momentum 0, the running statistics of the layer are those of its last input.
    """
    momentum, count = layer._kwargs["momentum"], layer._reg_params.pop("num_batches_tracked", None)
    layer._kwargs["momentum"] = 0.0
    statistics = [layer.running_mean, layer.running_var]

    def statistics_of(x: Any) -> list[Any]:
        return [parameter.data(context_of(x)) for parameter in statistics]

    def prepare(_layer: Any, inputs: tuple) -> None:
        if isinstance(inputs[0], mx.sym.Symbol):  # MXNet infers shapes
            return
        before = moments.before(context_of(inputs[0]))
        for now, values in zip(statistics_of(inputs[0]), before):
            now[:] = 0 if mx.autograd.is_training() else values  # a NaN would stay one

    def note(_layer: Any, inputs: tuple, _output: Any) -> None:
        x = inputs[0]
        if mx.autograd.is_training() and not isinstance(x, mx.sym.Symbol):
            moments.note(x.size // x.shape[layer._kwargs["axis"]], *statistics_of(x))

    hooks = [layer.register_forward_pre_hook(prepare), layer.register_forward_hook(note)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.detach()
        layer._kwargs["momentum"] = momentum
        if count is not None:
            layer._reg_params["num_batches_tracked"] = count


@contextmanager
def noting_nodes(block: Any, noted: list[tuple[int, Moments]]) -> Iterator[None]:
    """Let moments note each input of nodes of a SymbolBlock in training mode.

    The block computes a copy of its graph, in which each node has statistics of its own.
    """
    inputs, graph = block._cached_graph[0], graph_of(block)
    parameters = {**block.collect_params()}
    own = {}  # the parameters that are statistics, by the names of the copies for each node
    for index, _ in noted:
        node, statistics = graph.nodes[index], graph.statistics(index)
        node["attrs"]["momentum"] = "0"
        del node["inputs"][-len(statistics) :]
        for name, old in zip((f"{index}_mean", f"{index}_var"), statistics):
            own[name] = parameters[old]
            node["inputs"].append([graph.add("null", name, []), 0, 0])
    computed = graph.to_symbol()
    operator = mx.nd.CachedOp(computed)
    graph.heads = [graph.nodes[index]["inputs"][0] for index, _ in noted]
    data = graph.to_symbol()

    def forward(*args: Any) -> Any:
        if not mx.autograd.is_training():
            return type(block).forward(block, *args)
        given = dict(zip((each.name for each in inputs), _flatten(args, "input")[0]))
        ctx = context_of(args[0])
        for name, parameter in own.items():
            given[name] = parameter.data(ctx).copy()
            given[name][:] = 0  # a NaN would stay one
        values = {
            name: given[name] if name in given else parameters[name].data(ctx)
            for name in computed.list_inputs()
        }
        out = operator(*values.values())
        shapes = data.infer_shape(**{name: values[name].shape for name in data.list_inputs()})[1]
        for (index, moments), shape in zip(noted, shapes):
            mean, var = given[f"{index}_mean"], given[f"{index}_var"]
            moments.note(math.prod(shape) // mean.size, mean, var)
        return _regroup(out if isinstance(out, list) else [out], block._out_format)

    block.forward = forward
    try:
        yield
    finally:
        del block.forward
