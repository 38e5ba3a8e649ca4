"""Compute norms together with the activations behind them, in a whole network."""

from __future__ import annotations

import logging
from typing import Any, Callable

import mxnet as mx
from mxnet import gluon
from mxnet.gluon.block import _flatten

from .convert import convert_sync_batchnorm
from .graph import Graph, is_sync_batchnorm

__all__ = ["FusedNetwork", "fuse"]

_logger = logging.getLogger(__name__)

_SHORTCUT = 3  # its place among the operator's inputs
_ADDITION = "elemwise_add"


def fuse(
    net: gluon.HybridBlock,
    convert: bool = False,
    num_devices: int | None = None,
    num_inputs: int = 1,
) -> FusedNetwork:
    """Make a network that computes its norms together with what follows them, in one pass.

    Every :class:`gluon_syncbn.SyncBatchNorm` whose output goes into an activation (ReLU, leaky ReLU
    or ELU) and nowhere else takes that in. One whose output goes into a sum with another array, and
    that into an activation, takes in both. What was fused, and what was left and why, is logged
    under ``gluon_syncbn``.

    Parameters
    ----------
    net : HybridBlock
        The network. It stays usable and shares its parameters with the new one.
    convert : bool, default False
        Convert plain BatchNorms of `net` first, in place; see
        :func:`gluon_syncbn.convert_sync_batchnorm`.
    num_devices : int, optional
        Number of devices of a training step for the converted layers. By default, the number of
        contexts that the parameters live on.
    num_inputs : int, default 1
        Number of arrays that the network is called with.

    Returns
    -------
    FusedNetwork
        A HybridBlock with the same parameters under the same names: it loads and saves the same
        checkpoints, trains with the same ``gluon.Trainer``, and exports. It keeps the number of
        devices that `net` has now. Methods of `net`'s class it has not.

    Raises
    ------
    ValueError
        If `net` is no HybridBlock, or cannot be traced; if the parameters are not initialized and
        a layer has no `num_devices` of its own.

    Examples
    --------
    >>> net = gluoncv.model_zoo.FCN(nclass=21, backbone="resnet50")
    >>> net.initialize(ctx=contexts)
    >>> fused = gluon_syncbn.fuse(net, convert=True)
    >>> fused.hybridize(static_alloc=True)
    """
    if not isinstance(net, gluon.HybridBlock):
        raise ValueError(f"net={type(net).__name__} should be a HybridBlock, which can be traced")
    if convert:
        convert_sync_batchnorm(net, num_devices)
    names = ["data"] if num_inputs == 1 else [f"data{i}" for i in range(num_inputs)]
    inputs = [mx.sym.var(name) for name in names]
    outputs = _trace(net, inputs)
    flat, out_format = _flatten(outputs, "output")
    graph = _Graph(mx.sym.Group(flat))
    fused, left = graph.fuse_all()
    network = FusedNetwork(graph.to_symbol(), inputs, out_format, net)
    network.fused, network.left = fused, left
    _logger.info(
        "fused in %s: %d norms: %s; left: %s",
        net.name,
        len(fused),
        ", ".join(f"{name} with {what}" for name, what in fused.items()) or "none",
        ", ".join(f"{name} ({why})" for name, why in left.items()) or "none",
    )
    return network


def _trace(net: gluon.HybridBlock, inputs: list[mx.sym.Symbol]) -> Any:
    try:
        return net(*inputs)
    except ValueError:
        raise
    except Exception as error:  # whatever its code raises where it meets a symbol
        raise ValueError(
            f"{net.name} cannot be traced with {len(inputs)} inputs, as hybridize() would do: "
            f"{type(error).__name__}: {error}"
        ) from error


class FusedNetwork(gluon.SymbolBlock):
    """A network made by :func:`gluon_syncbn.fuse`.

    Attributes
    ----------
    fused : dict of str to str
        Name of each norm that has taken in what follows it, and what that was.
    left : dict of str to str
        Name of each other norm, and why it stays.
    """

    fused: dict[str, str]
    left: dict[str, str]

    def __init__(
        self,
        symbol: mx.sym.Symbol,
        inputs: list[mx.sym.Symbol],
        out_format: Any,
        net: gluon.HybridBlock,
    ) -> None:
        # Not that of SymbolBlock, which would make parameters of its own idea of dtypes.
        gluon.HybridBlock.__init__(self)
        self._prefix = ""
        _, self._in_format = _flatten(inputs, "input")
        self._out_format = out_format
        self._cached_graph = inputs, symbol
        shared = net.collect_params()
        known = {symbol_in.name for symbol_in in inputs}
        used = {name: shared[name] for name in symbol.list_inputs() if name not in known}
        self._params = gluon.ParameterDict("", shared)
        self._params._params.update(used)
        self._reg_params = used
        # The network itself would become a child.
        self._structure: Callable[[str], dict] = net._collect_params_with_prefix

    def _collect_params_with_prefix(self, prefix: str = "") -> dict[str, gluon.Parameter]:
        """Name parameters as the network does that this one was made of, for its checkpoints."""
        return self._structure(prefix)


class _Graph(Graph):
    def fuse_all(self) -> tuple[dict[str, str], dict[str, str]]:
        fused, left = {}, {}
        for index in [i for i, node in enumerate(self.nodes) if is_sync_batchnorm(node)]:
            name = self.nodes[index]["name"]
            what, why_not = self._fuse(index)
            if why_not is None:
                fused[name] = what
            else:
                left[name] = why_not
        return fused, left

    def _fuse(self, index: int) -> tuple[str, str | None]:
        """Fuse a norm with what follows; return what that is, or else why it was not done."""
        if self.attribute(index, "act_type", "None") != "None":
            return "", "has an activation already"
        reader = self._only_reader(index)
        if reader is None:
            return "", "its output is used more than once, or is an output of the network"
        shortcut, absorbed = None, [index]
        if self.nodes[reader]["op"] == _ADDITION and not self.flag(index, "shortcut"):
            (shortcut,) = (entry for entry in self.nodes[reader]["inputs"] if entry[0] != index)
            absorbed.append(reader)
            reader = self._only_reader(reader)
            if reader is None:
                return "", "its sum with a shortcut is used more than once"
        activation = self._activation(reader)
        if activation is None:
            return "", f"is followed by {self.nodes[reader]['name']}, which is no such activation"
        norm = self.nodes[index]
        inputs, attributes = list(norm["inputs"]), {**norm["attrs"], **activation}
        if shortcut is not None:
            inputs.insert(_SHORTCUT, shortcut)
            attributes["shortcut"] = "True"
        what = f"{'sum and ' if shortcut is not None else ''}{activation['act_type']}"
        # Where the activation stood, all that the shortcut depends on has been computed.
        self.nodes[reader] = {**norm, "inputs": inputs, "attrs": attributes}
        for other in absorbed:
            self.nodes[other]["inputs"] = []  # it reads nothing any more
        return what, None

    def _only_reader(self, index: int) -> int | None:
        readers = self.consumers(index)
        return readers[0][0] if len(readers) == 1 and readers[0][0] >= 0 else None

    def _activation(self, index: int) -> dict[str, str] | None:
        """Return the operator's attributes for the activation `index`, or None if it has none."""
        op = self.nodes[index]["op"]
        if op == "relu" or (op == "Activation" and self.attribute(index, "act_type", "") == "relu"):
            return {"act_type": "relu"}
        act_type = self.attribute(index, "act_type", "leaky")
        slope = self.attribute(index, "slope", "0.25")
        if op == "LeakyReLU" and act_type in ("leaky", "elu") and float(slope) >= 0:
            return {"act_type": act_type, "slope": slope}
        return None
