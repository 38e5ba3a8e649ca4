"""Fold batch normalization into the layer before it, if that is exact."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict

import mxnet as mx
import numpy as np

from .graph import Graph

_DEFAULT_EPS = "1e-3"  # of this package's operator and of MXNet's BatchNorm

Arrays = Dict[str, mx.nd.NDArray]
_FOLDABLE = ("Convolution", "Deconvolution", "FullyConnected")


@dataclass
class FoldReport:
    """The folded norms and the others. ``str()`` makes a text with one line per BatchNorm.

    Attributes
    ----------
    folded : dict of str to str
        Each folded BatchNorm, and the layer that replaces it.
    left : dict of str to str
        Each other BatchNorm, and why it stays.
    """

    folded: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{name}: folded into {into}" for name, into in self.folded.items()]
        return "\n".join(lines + [f"{name}: left, {why}" for name, why in self.left.items()])


def fold_batchnorm(
    symbol: mx.sym.Symbol, args: Arrays, aux: Arrays
) -> tuple[mx.sym.Symbol, Arrays, Arrays, FoldReport]:
    """Fold the BatchNorm nodes of a symbol into the convolution or dense layer before them.

    With the scale ``s = gamma / sqrt(moving_var + eps)`` of each output channel, the weight becomes
    ``s * weight`` and the bias ``s * (bias - moving_mean) + beta``. In inference the function is
    the same (B. Jacob et al., "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", CVPR 2018, section 3.2).

    The layer before the norm may be a convolution, a transposed convolution or a dense layer, with
    or without bias and groups. Only the BatchNorm may read its output, and no other layer may share
    its weight. Other BatchNorm nodes stay.

    Parameters
    ----------
    symbol : Symbol
        A symbol with plain ``BatchNorm`` nodes; see :func:`gluon_syncbn.to_batchnorm`.
    args, aux : dict of str to NDArray
        Its parameters and auxiliary states.

    Returns
    -------
    symbol : Symbol
    args : dict of str to NDArray
    aux : dict of str to NDArray
        Copies; the arguments do not change.
    report : FoldReport
        The folded norms, and the other norms with the reason.
    """
    graph = _Graph(symbol)
    args, aux, report = dict(args), dict(aux), FoldReport()
    for index, node in enumerate(graph.nodes):
        if node["op"] != "BatchNorm":
            continue
        source = node["inputs"][0][0]
        reason = graph.why_not(index)
        if reason is not None:
            report.left[node["name"]] = reason
            continue
        _fold_arrays(graph, index, args, aux)
        graph.redirect(index, node["inputs"][0])
        report.folded[node["name"]] = graph.nodes[source]["name"]
    folded = graph.to_symbol()
    args = {name: args[name] for name in folded.list_arguments() if name in args}
    aux = {name: aux[name] for name in folded.list_auxiliary_states() if name in aux}
    return folded, args, aux, report


class _Graph(Graph):
    """A graph whose norms can be folded."""

    def why_not(self, index: int) -> str | None:
        """Why the BatchNorm `index` cannot be folded, or None if it can."""
        source, output = self.nodes[index]["inputs"][0][:2]
        layer = self.nodes[source]
        if layer["op"] not in _FOLDABLE or output != 0:
            return f"its input is {layer['name']}, which is no convolution or dense layer"
        if any(output != 0 for _, output in self.consumers(index)):
            return "its mean or variance is used"
        if self.consumers(source) != [(index, 0)]:
            return f"the output of {layer['name']} is used elsewhere too"
        for entry in layer["inputs"][1:]:
            variable = self.nodes[entry[0]]
            if variable["op"] != "null":
                return f"{variable['name']} is computed"
            if len(self.consumers(entry[0])) > 1:
                return f"{variable['name']} is shared"
        axis = int(self.attribute(index, "axis", "1"))
        if axis not in self._channel_axes(source):
            return f"it normalizes axis {axis}, which is not the channel axis"
        return None

    def _channel_axes(self, index: int) -> tuple[int, ...]:
        if self.nodes[index]["op"] == "FullyConnected":
            flattens = self.flag(index, "flatten", "True")
            return (1, -1) if flattens else (-1,)
        layout = self.attribute(index, "layout", "None")
        kernel = self.attribute(index, "kernel", "()").strip("()").split(",")
        ndim = 2 + len([size for size in kernel if size.strip()])
        axis = 1 if layout == "None" else layout.index("C")
        return (axis, axis - ndim)


def _fold_arrays(graph: _Graph, index: int, args: Arrays, aux: Arrays) -> None:
    """Apply the scale and shift of the BatchNorm `index` to the layer before it."""
    norm = graph.nodes[index]
    source = norm["inputs"][0][0]
    names = [graph.nodes[entry[0]]["name"] for entry in norm["inputs"][1:]]
    gamma, beta, mean, var = (
        (args[name] if name in args else aux[name]).asnumpy().astype(np.float64) for name in names
    )
    if graph.flag(index, "fix_gamma", "True"):
        gamma = np.ones_like(gamma)
    scale = gamma / np.sqrt(var + float(graph.attribute(index, "eps", _DEFAULT_EPS)))

    layer = graph.nodes[source]
    weight_name = graph.nodes[layer["inputs"][1][0]]["name"]
    weight = args[weight_name]
    args[weight_name] = _like(weight, _scale_outputs(graph, source, weight.asnumpy(), scale))
    if len(layer["inputs"]) > 2:
        bias_name = graph.nodes[layer["inputs"][2][0]]["name"]
        bias = args[bias_name].asnumpy().astype(np.float64)
    else:
        bias_name, bias = f"{layer['name']}_bias", np.zeros_like(mean)
        layer["inputs"].append([graph.add("null", bias_name, []), 0, 0])
        layer["attrs"] = {**layer.get("attrs", {}), "no_bias": "False"}
    args[bias_name] = _like(weight, (bias - mean) * scale + beta)


def _scale_outputs(graph: _Graph, index: int, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Scale the output channels of a layer's weight."""
    weight = weight.astype(np.float64)
    if graph.nodes[index]["op"] != "Deconvolution":
        return weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
    # The shape is (inputs, outputs of a group, kernel...). Groups lie one after the other in it.
    groups = int(graph.attribute(index, "num_group", "1"))
    grouped = weight.reshape(groups, -1, *weight.shape[1:])
    factors = scale.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))
    return (grouped * factors).reshape(weight.shape)


def _like(array: mx.nd.NDArray, values: np.ndarray) -> mx.nd.NDArray:
    return mx.nd.array(values, ctx=array.context, dtype=array.dtype)
