"""Fuse the norms of a network with the activations after them."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from typing import Any, Callable

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon.block import _flatten

from ..activations import BY_NODE, BY_TYPE, DEFAULT_SLOPE
from ..convert import convert_sync_batchnorm
from ..mxnet_versions import require_symbolic_calls
from ..naming import name_of
from ..norms import IN_BODY, norms_of
from .conversion import edited, meet_on_contexts
from .graph import SHORTCUT, Graph

_logger = logging.getLogger(__name__)


def fuse(
    net: gluon.HybridBlock,
    convert: bool = False,
    num_devices: int | None = None,
    num_inputs: int = 1,
    inplace: bool = False,
) -> FusedNetwork:
    """Make a network that computes each norm and the activation after it in one pass.

    A :class:`gluon_syncbn.SyncBatchNorm` is fused with an activation (ReLU, leaky ReLU or ELU) that
    is the only reader of its output. A sum with another array may stand between them. The
    attribute ``fused`` of the new network lists the fused norms, and ``left`` the other norms with
    the reason. The logger ``gluon_syncbn`` prints both.

    The new network computes the same as `net` does when it is hybridized. A layer that is called
    several times in a step updates its running statistics in the order of the graph, not of the
    calls. The graph of some networks depends on training, as in YOLO3. Fuse such a network under
    ``autograd.record()`` for training, and again outside for inference.

    Parameters
    ----------
    net : HybridBlock
        The network. It stays usable and shares its parameters with the new one.
    convert : bool, default False
        Convert plain BatchNorms of `net` first, in place; see
        :func:`gluon_syncbn.convert_sync_batchnorm`.
    num_devices : int, optional
        Number of devices of a training step for the converted layers. By default, the number of
        contexts of the parameters.
    num_inputs : int, default 1
        Number of inputs of the network.
    inplace : bool, default False
        Make norms with a leaky ReLU or ELU work in place, so that MXNet frees their inputs. Norms
        with a sum or a ReLU cannot. See `inplace` of :class:`gluon_syncbn.SyncBatchNorm` for the
        price.

    Returns
    -------
    FusedNetwork
        A HybridBlock with the same parameters under the same names. It loads and saves the same
        checkpoints, trains with the same ``gluon.Trainer``, and exports. It keeps the current
        number of devices of `net`. It does not have the methods of the class of `net`.

    Raises
    ------
    ValueError
        If `net` is no HybridBlock, or cannot be traced.
    RuntimeError
        With MXNet 2, where no network can be called with symbols.

    Examples
    --------
    >>> import gluon_syncbn
    >>> import mxnet as mx
    >>> from mxnet.gluon import nn
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Conv2D(8, 3), nn.BatchNorm(), nn.Activation("relu"))
    >>> net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    >>> fused = gluon_syncbn.fuse(net, convert=True)
    >>> fused.hybridize(static_alloc=True)
    >>> activations = [activation for _, activation in fused.fused]
    """
    if not isinstance(net, gluon.HybridBlock):
        raise ValueError(f"net={type(net).__name__} should be a HybridBlock, which can be traced")
    require_symbolic_calls(
        "fuse", "give the norms of the network their activation: SyncBatchNorm(activation='relu')"
    )
    if convert:
        convert_sync_batchnorm(net, num_devices)
    elif not all(norm.is_synchronized for norm in norms_of(net)):
        warnings.warn(
            f"{name_of(net)} has BatchNorms, which are not fused: fuse(net, convert=True) converts "
            "them first",
            UserWarning,
            stacklevel=2,
        )
    names = ["data"] if num_inputs == 1 else [f"data{i}" for i in range(num_inputs)]
    numpy = mx.util.is_np_array()
    inputs = [mx.sym.var(name).as_np_ndarray() if numpy else mx.sym.var(name) for name in names]
    try:
        outputs = net(*inputs)
    except ValueError:
        raise
    except Exception as error:  # the user's code may raise any error where it meets a symbol
        raise ValueError(
            f"{name_of(net)} cannot be traced with {len(inputs)} inputs, as hybridize() would do: "
            f"{type(error).__name__}: {error}"
        ) from error
    flat, out_format = _flatten(outputs, "output")
    graph = _Graph(mx.sym.Group(flat, type(flat[0])))
    fused, left = graph.fuse_all(inplace)
    network = FusedNetwork(graph.to_symbol(), inputs, out_format, net)
    network.fused, network.left = fused, left
    _logger.info(
        "fused in %s: %d norms: %s; left: %s",
        name_of(net),
        len(fused),
        ", ".join(f"{name} with {others}" for name, others in fused) or "none",
        ", ".join(f"{name} ({why})" for name, why in left) or "none",
    )
    return network


class FusedNetwork(gluon.SymbolBlock):
    """A network made by :func:`gluon_syncbn.fuse`.

    Attributes
    ----------
    fused : list of (str, str)
        Each fused norm, and the operations after it that it now computes. A layer that is called
        several times has several entries.
    left : list of (str, str)
        Each other norm, and why it was not fused.
    """

    fused: list[tuple[str, str]]
    left: list[tuple[str, str]]

    def __init__(
        self,
        symbol: mx.sym.Symbol,
        inputs: list[mx.sym.Symbol],
        out_format: Any,
        net: gluon.HybridBlock,
    ) -> None:
        # SymbolBlock's constructor makes parameters, and guesses their dtypes from the symbol. This
        # network has the parameters of `net`, so it sets the attributes of a SymbolBlock itself.
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
        # A method, because Gluon makes a child of a network that is an attribute.
        self._structure: Callable[[str], dict] = net._collect_params_with_prefix

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Hybridize as every Gluon block does, and synchronize the contexts of the parameters."""
        with edited(self) as graph:
            meet_on_contexts(graph, self, None)
        super().hybridize(active, **kwargs)

    def cast(self, dtype: Any) -> None:
        """Cast as every Gluon block does; norms keep float32 parameters for float16 data."""
        super().cast(dtype)
        # SymbolBlock.cast keeps the other parameters of norms, but does not know the count.
        for name, parameter in self._reg_params.items():
            if np.dtype(dtype) == np.float16 and name.endswith("num_batches_tracked"):
                parameter.cast("float32")

    def _collect_params_with_prefix(self, prefix: str = "") -> dict[str, gluon.Parameter]:
        """Name parameters as the original network does, for its checkpoints."""
        return self._structure(prefix)


class _LeftError(Exception):
    """Why a norm is not fused."""


class _Graph(Graph):
    def fuse_all(self, inplace: bool) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Fuse all norms; return the lists `fused` and `left` of the network."""
        fused, left = [], []
        norms = self.norms()
        # The running mean identifies the layer.
        counts = Counter(self.statistics(index)[0] for index in norms)
        self._shared = {statistics for statistics, count in counts.items() if count > 1}
        plain = [(self.nodes[index]["name"], "is no SyncBatchNorm") for index in self.plain_norms()]
        _, *bodies = self.all()
        for body in bodies:
            inner = [*body.norms(), *body.plain_norms()]
            plain += [(body.nodes[index]["name"], IN_BODY) for index in inner]
        for index in norms:
            name = self.nodes[index]["name"]
            try:
                fused.append((name, self._fuse(index, inplace)))
            except _LeftError as reason:
                left.append((name, str(reason)))
        return fused, left + plain

    def _fuse(self, index: int, inplace: bool) -> str:
        """Fuse a norm with the operations after it; return their names, or raise `_LeftError`."""
        if self.attribute(index, "act_type", "None") != "None":
            raise _LeftError("has an activation already")
        reader = self._only_reader(index)
        if reader is None:
            raise _LeftError("its output is used more than once, or is an output of the network")
        shortcut, absorbed = None, [index]
        if self.nodes[reader]["op"] == "elemwise_add" and not self.flag(index, "shortcut"):
            (shortcut,) = (entry for entry in self.nodes[reader]["inputs"] if entry[0] != index)
            absorbed.append(reader)
            reader = self._only_reader(reader)
            if reader is None:
                raise _LeftError("its sum with a shortcut is used more than once")
        activation = self._activation(reader)
        if activation is None:
            name = self.nodes[reader]["name"]
            raise _LeftError(f"is followed by {name}, which no norm can have as its activation")
        recovers = self.flag(index, "inplace")
        kind, slope = BY_TYPE[activation["act_type"]], float(activation.get("slope", 0))
        inverts = shortcut is None and kind.is_invertible(slope)
        if recovers and not inverts:
            raise _LeftError("works in place, and could not if fused")
        norm = self.nodes[index]
        inputs, attributes = list(norm["inputs"]), {**norm["attrs"], **activation}
        if shortcut is not None:
            inputs.insert(SHORTCUT, shortcut)
            attributes["shortcut"] = "True"
        if inplace and inverts:
            attributes["inplace"], recovers = "True", True
        # The new node takes the index of the activation, because its inputs have lower ones.
        uses, before = self._uses(), {i: self.nodes[i] for i in (*absorbed, reader)}
        self.nodes[reader] = {**norm, "inputs": inputs, "attrs": attributes}
        for other in absorbed:
            self.nodes[other] = {**self.nodes[other], "inputs": []}
        if self._uses() != uses:
            for other, node in before.items():
                self.nodes[other] = node
            raise _LeftError(
                "would change the order in which a layer used several times updates statistics"
            )
        addition = "" if shortcut is None else "sum and "
        return f"{addition}{activation['act_type']}{' in place' if recovers else ''}"

    def _uses(self) -> list[tuple[str, list[int]]]:
        """List the inputs of layers that are used several times, in the order of the uses."""
        if not self._shared:
            return []
        norms = {*self.norms()}
        order = [index for index in self.order() if index in norms]
        uses = ((self.statistics(index)[0], self.nodes[index]["inputs"][0]) for index in order)
        return sorted((use for use in uses if use[0] in self._shared), key=lambda use: use[0])

    def _only_reader(self, index: int) -> int | None:
        readers = self.consumers(index)
        return readers[0][0] if len(readers) == 1 and readers[0][0] >= 0 else None

    def _activation(self, index: int) -> dict[str, str] | None:
        """Return the norm's attributes for the activation `index`; None if it cannot have it."""
        op, act_type = self.nodes[index]["op"], self.attribute(index, "act_type", "leaky")
        if op in ("relu", "_npx_relu"):
            op, act_type = "Activation", "relu"
        activation = BY_NODE.get((op, act_type))
        if activation is None or activation.alpha is None:
            return None if activation is None else {"act_type": act_type}
        # As MXNet stores it.
        slope = float(np.float32(self.attribute(index, "slope", DEFAULT_SLOPE)))
        return {"act_type": act_type, "slope": repr(slope)} if slope >= 0 else None
