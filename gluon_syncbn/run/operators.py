"""Replaces MXNet's operators: SyncBatchNorm of arrays, and norms of symbols before they run."""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from types import FunctionType
from typing import Any, Callable, Collection

import mxnet as mx
from mxnet import gluon
from mxnet.base import _Null
from mxnet.gluon.nn.basic_layers import _BatchNorm
from mxnet.onnx.mx2onnx._export_onnx import MXNetGraph

from ..block import PARAMETERS, SyncBatchNorm, contexts_in, contexts_of
from ..mxnet_versions import IS_2, is_tracing
from ..naming import name_of, named_blocks
from ..symbols.conversion import (
    convert_nodes,
    edited,
    join_processes,
    meet_on_contexts,
    own_attributes,
)
from ..symbols.exporting import to_batchnorm, write_fixed_gammas
from ..symbols.graph import THEIR_SYNC_BATCH_NORM, Graph, is_true
from .first_calls import LOCK, wrap_method, wrapped
from .layers import replace_in_mxnet
from .summary import left_operators, made

_INPUTS = ("data", "gamma", "beta", "moving_mean", "moving_var")


def replace(convert: bool, num_devices: int | None) -> None:
    """Replace MXNet's operators where arrays are computed, and where symbols get arrays."""
    for function, numpy in _functions("SyncBatchNorm", "sync_batch_norm"):
        replace_in_mxnet(function, wrapped(function, functools.partial(_compute, numpy)))
    if not IS_2:
        theirs = mx.sym.contrib.SyncBatchNorm
        replace_in_mxnet(theirs, wrapped(theirs, _add_node))
    for function, _ in _functions("BatchNorm", "batch_norm") if convert else ():
        replace_in_mxnet(function, wrapped(function, _note_call))
    nodes = _Nodes(convert, num_devices)
    wrap_method(gluon.HybridBlock, "_build_cache", nodes.of_block)
    wrap_method(gluon.HybridBlock, "_call_cached_op", nodes.of_call)
    wrap_method(gluon.SymbolBlock, "forward", nodes.of_symbol_block)
    for name in ("_bind", "_simple_bind") if IS_2 else ("bind", "simple_bind"):
        wrap_method(mx.sym.Symbol, name, nodes.of_symbol)
    if not IS_2:
        for module in (mx.mod.executor_group, mx.executor_manager):
            wrap_method(module.DataParallelExecutorGroup, "__init__", nodes.of_executors)
    for function in (mx.viz.print_summary, mx.viz.plot_network):
        replace_in_mxnet(function, wrapped(function, _show))
    wrap_method(mx.sym.Symbol, "save", _show)
    wrap_method(MXNetGraph, "create_onnx_graph_proto", _export)


def _functions(*names: str) -> list[tuple[FunctionType, bool]]:
    """List MXNet's functions of arrays by their names, and say whether they take those of NumPy."""
    found: dict[FunctionType, bool] = {}
    for module_name, module in sorted(sys.modules.items()):
        if module_name.partition(".")[0] == "mxnet" and ".symbol" not in module_name:
            for name in names:
                function = vars(module).get(name)
                if isinstance(function, FunctionType):
                    found.setdefault(function, "numpy" in module_name)
    return list(found.items())


def _compute(numpy: bool, theirs: Callable, *args: Any, **kwargs: Any) -> Any:
    """Compute SyncBatchNorm, with the arguments of MXNet's."""
    if (layer := _layer_that_calls(kwargs)) is not None:
        return _compute_layer(layer, *args, **kwargs)
    if numpy and is_tracing():  # a node of a graph
        return theirs(*args, **kwargs)
    given = inspect.signature(theirs).bind(*args, **kwargs).arguments
    given.update(given.pop("kwargs", {}))
    inputs = [given.pop(name, None) for name in _INPUTS]
    out, name = given.pop("out", None), given.pop("name", None)
    # MXNet checks the attributes.
    attributes = {key: value for key, value in given.items() if value is not _Null}
    checked = mx.sym.contrib.SyncBatchNorm(name="checked", **attributes).list_attr()
    key = checked["key"]
    if is_true(checked.get("output_mean_var")):
        left_operators[name or key] = THEIR_SYNC_BATCH_NORM
        return theirs(*args, **kwargs)
    own = {**own_attributes(checked, key), "scope": "key"}
    custom = mx.nd.np._internal.Custom if numpy else mx.nd.Custom
    arrays = [array for array in inputs if array is not None]
    return custom(*arrays, name=name, out=out, **own)


def _add_node(theirs: Callable, *args: Any, **kwargs: Any) -> Any:
    """Add MXNet's SyncBatchNorm to a symbol."""
    layer = _layer_that_calls(kwargs)
    return theirs(*args, **kwargs) if layer is None else _compute_layer(layer, *args, **kwargs)


def _layer_that_calls(attributes: dict[str, Any]) -> SyncBatchNorm | None:
    """Return the layer of a subclass that calls MXNet's operator with the layer's attributes."""
    block = _calling_block() if "num_devices" in attributes else None
    return block if isinstance(block, SyncBatchNorm) else None


def _compute_layer(layer: SyncBatchNorm, *args: Any, **kwargs: Any) -> Any:
    given = {**dict(zip(_INPUTS, args)), **kwargs}
    x, *parameters = (given[name] for name in _INPUTS)
    traced = isinstance(x, mx.sym.Symbol) or is_tracing()
    return layer._normalize(traced, x, **dict(zip(PARAMETERS, parameters)))


def _note_call(theirs: Callable, *args: Any, **kwargs: Any) -> Any:
    """Compute BatchNorm of arrays, of one device, and note which block does so in training."""
    if mx.autograd.is_training() and not is_tracing():
        block = _calling_block()
        if not isinstance(block, _BatchNorm):  # layers are noted when they are called
            left_operators["BatchNorm" if block is None else name_of(block)] = "BatchNorm"
    return theirs(*args, **kwargs)


def _calling_block() -> Any:
    """Return the block whose method calls an operator; None if no block does."""
    frame: Any = sys._getframe()
    while frame is not None:
        # f_locals keeps the values of all variables alive.
        if frame.f_code.co_varnames[:1] == ("self",):
            block = frame.f_locals["self"]
            if isinstance(block, gluon.Block):
                return block
        frame = frame.f_back
    return None


class _Nodes:
    """Makes the norms of symbols synchronized, once the number of devices is known."""

    def __init__(self, convert: bool, num_devices: int | None) -> None:
        self._convert = convert
        self._num_devices = num_devices
        self._known: weakref.WeakKeyDictionary[Any, list] = weakref.WeakKeyDictionary()
        # For each block with norms in its graph: a parameter, and the contexts that it then had.
        self._made_for: weakref.WeakKeyDictionary[Any, tuple] = weakref.WeakKeyDictionary()

    def of_symbol_block(self, forward: Callable, block: Any, *args: Any) -> Any:
        """Call a SymbolBlock. Programs move networks, too."""
        contexts = contexts_in(block)
        if contexts != self._known.get(block, []):
            with LOCK:
                if contexts != self._known.get(block, []):  # else another thread was here
                    with edited(block) as graph:
                        self._convert_in(graph, len(contexts))
                        meet_on_contexts(graph, block, self._num_devices)
                    self._known[block] = contexts
        return forward(block, *args)

    def of_block(self, build: Callable, block: Any, *args: Any, **kwargs: Any) -> Any:
        """Make an operator of a network's graph.

        A BatchNorm that no layer made stays, because it stays in a network that is not hybridized.
        """
        inputs, symbol = block._get_graph(*args)
        graph = Graph(symbol)
        layers = (each for each in named_blocks(block) if isinstance(each, _BatchNorm))
        if self._convert_in(graph, None, {f"{'' if IS_2 else each.prefix}fwd" for each in layers}):
            symbol = graph.to_symbol()
        block._cached_graph = inputs, symbol
        placed = filter(contexts_of, block.collect_params().values())
        parameter = next(placed, None) if graph.norms() else None
        self._made_for[block] = parameter, parameter and contexts_of(parameter)
        return build(block, *args, **kwargs)

    def of_call(self, call: Callable, block: Any, *args: Any) -> Any:
        """Run the graph of a network, which one thread makes, and anew if the network has moved.

        MXNet's BatchNorm runs wherever a program moves a hybridized network. Inference does not
        depend on the number of devices.
        """
        if self._needs_graph(block):
            with LOCK:
                if self._needs_graph(block):  # else another thread has made it
                    if block._cached_op is not None:
                        block._clear_cached_op()
                    block._build_cache(*args)
        return call(block, *args)

    def _needs_graph(self, block: Any) -> bool:
        return block._cached_op is None or (mx.autograd.is_training() and self._is_moved(block))

    def _is_moved(self, block: Any) -> bool:
        parameter, contexts = self._made_for.get(block, (None, None))
        return parameter is not None and contexts_of(parameter) != contexts

    def of_symbol(self, bind: Callable, symbol: Any, *args: Any, **kwargs: Any) -> Any:
        """Bind a symbol to arrays of one device. Nodes of other binds meet it by MXNet's key."""
        graph = Graph(symbol)
        nodes = [graph.nodes[index] for index in graph.plain_norms()]
        keys = [(node, node.get("attrs", {}).get("key")) for node in nodes]
        infers = kwargs.get("grad_req") == "null"
        changed = self._convert_in(graph, None, [n["name"] for n in nodes] if infers else ())
        for node, key in keys:
            if node["op"] == "Custom":
                node["attrs"].update(key=key, scope="key")
        return bind(graph.to_symbol() if changed else symbol, *args, **kwargs)

    def of_executors(self, init: Callable, *args: Any, **kwargs: Any) -> None:
        """Make the executors of a Module or FeedForward, one per context."""
        given = inspect.signature(init).bind(*args, **kwargs).arguments
        contexts = given["contexts" if "contexts" in given else "ctx"]
        symbol = "symbol" if "symbol" in given else "sym"
        given[symbol] = self._converted(given[symbol], len(contexts))
        init(**given)

    def _converted(self, symbol: Any, number: int) -> Any:
        graph = Graph(symbol)
        changed = self._convert_in(graph, number)
        unknown = [i for i in graph.norms() if graph.attribute(i, "num_devices", "1") == "None"]
        for index in unknown:
            graph.nodes[index]["attrs"]["num_devices"] = str(self._num_devices or number)
        return graph.to_symbol() if changed or unknown else symbol

    def _convert_in(self, graph: Graph, number: int | None, unnoted: Collection[str] = ()) -> bool:
        """Convert nodes of a graph for a number of devices, if that is known; say if it changed.

        Nodes that stay are noted, except `unnoted` ones: those of layers, and of inference.
        """
        converts = self._convert and number is not None
        operators = (THEIR_SYNC_BATCH_NORM, *(["BatchNorm"] if converts else []))
        converted, _ = convert_nodes(graph, operators)
        made.update(converted)
        joined = join_processes(graph)
        for each in graph.all():
            for node in (each.nodes[index] for index in each.plain_norms()):
                if node["name"] not in unnoted:
                    left_operators[node["name"]] = node["op"]
        return bool(converted) or joined


def _show(theirs: Callable, symbol: Any, *args: Any, **kwargs: Any) -> Any:
    """Show or write a symbol, with BatchNorm in the place of this operator."""
    return theirs(to_batchnorm(symbol), *args, **kwargs)


def _export(theirs: Callable, graph: Any, sym: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
    """Write an ONNX file, with BatchNorm as above."""
    sym, params = to_batchnorm(sym), {**params}
    write_fixed_gammas(sym, params)
    return theirs(graph, sym, params, *args, **kwargs)
