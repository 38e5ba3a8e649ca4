"""Replaces MXNet's operator SyncBatchNorm, in functions, symbols and files.

MXNet's own operator is the model. Its function makes a symbol first, which has the name, the
variables and the attributes that MXNet gives them. This package's operator takes them over.
"""

from __future__ import annotations

import functools
import inspect
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

import mxnet as mx
from mxnet.base import _Null
from mxnet.onnx.mx2onnx._export_onnx import MXNetGraph

from ..block import ATTRIBUTES_VERSION, OP_TYPE, SHARED_ATTRIBUTES
from ..mxnet_versions import is_tracing
from ..symbols.exporting import to_batchnorm, write_fixed_gammas
from ..symbols.graph import Graph, is_true
from .first_calls import wrap_method
from .layers import replace_in_mxnet
from .summary import left_operators, made

if TYPE_CHECKING:
    from collections.abc import Callable

_THEIRS = "_contrib_SyncBatchNorm"
_NAMES = ("SyncBatchNorm", "sync_batch_norm")
_INPUTS = ("data", "gamma", "beta", "moving_mean", "moving_var")


def replace() -> None:
    """Replace every function of MXNet that calls its operator, and those that load symbols."""
    make_symbol = mx.sym.contrib.SyncBatchNorm
    for module_name, function in _functions(_NAMES):
        own = _symbols if ".symbol" in module_name else functools.partial(_arrays, make_symbol)
        replace_in_mxnet(function, own(function, "numpy" in module_name))
    for _, function in _functions(("load", "load_json", "fromjson"), "mxnet.symbol"):
        replace_in_mxnet(function, _loading(function))
    for _, function in _functions(("BatchNorm", "batch_norm"), "mxnet.symbol"):
        replace_in_mxnet(function, _counting(function))
    for function in (mx.viz.print_summary, mx.viz.plot_network):
        replace_in_mxnet(function, _showing(function))
    wrap_method(MXNetGraph, "create_onnx_graph_proto", _exporting)


def _functions(names: tuple[str, ...], package: str = "mxnet") -> list[tuple[str, FunctionType]]:
    """List functions of MXNet by their names, with the first module that has each."""
    found: dict[FunctionType, str] = {}
    for module_name, module in sorted(sys.modules.items()):
        if f"{module_name}.".startswith(f"{package}."):
            for name in names:
                function = vars(module).get(name)
                if isinstance(function, FunctionType):
                    found.setdefault(function, module_name)
    return [(module_name, function) for function, module_name in found.items()]


def _symbols(theirs: Callable, numpy: bool) -> Callable:
    """Return a function that makes a symbol, with the arguments of MXNet's."""

    @functools.wraps(theirs)
    def call(*args: Any, **kwargs: Any) -> Any:
        symbol = theirs(*args, **kwargs)
        if _leave(symbol.list_attr()):
            return symbol
        attributes = _own_attributes(symbol.list_attr(), symbol.name, in_graph=True)
        made.append(symbol.name)
        # MXNet has applied the managers of names and attributes already. What it wrote into the
        # node comes before what a scope says.
        hidden = {key: attributes.pop(key) for key in [*attributes] if key.startswith("__")}
        with mx.name.NameManager():
            own = mx.sym.Custom(*symbol.get_children(), name=symbol.name, attr=hidden, **attributes)
        return own.as_np_ndarray() if numpy else own

    return call


def _arrays(make_symbol: Callable, theirs: Callable, numpy: bool) -> Callable:
    """Return a function that computes, with the arguments of MXNet's."""
    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        given.update(given.pop("kwargs", {}))
        inputs = [given.pop(name, None) for name in _INPUTS]
        out, name = given.pop("out", None), given.pop("name", None)
        # MXNet checks the attributes.
        attributes = {key: value for key, value in given.items() if value is not _Null}
        checked = make_symbol(name="checked", **attributes).list_attr()
        if _leave(checked):
            return theirs(*args, **kwargs)
        custom = mx.nd.np._internal.Custom if numpy else mx.nd.Custom
        return custom(
            *[array for array in inputs if array is not None],
            name=name,
            out=out,
            **_own_attributes(checked, name, in_graph=numpy and is_tracing()),
        )

    return call


def _leave(theirs: dict[str, str]) -> bool:
    """Count MXNet's operator if it stays, because it returns statistics too; return whether."""
    stays = is_true(theirs.get("output_mean_var"))
    if stays:
        left_operators[_THEIRS] += 1
    return stays


def _own_attributes(theirs: dict[str, str], name: str | None, in_graph: bool) -> dict[str, Any]:
    """Translate the attributes of MXNet's operator."""
    layer, number = name or theirs["key"], theirs.get("ndev", "1")
    kept = {
        key: value
        for key, value in theirs.items()
        if key in SHARED_ATTRIBUTES or key.startswith("__")
    }
    return {
        **kept,
        "op_type": OP_TYPE,
        "num_devices": "1" if number == "0" else number,  # as of the layer
        # Nodes of a graph need no key. It is for messages, and MXNet's may be a number.
        "key": layer if in_graph else theirs["key"],
        "scope": "graph" if in_graph else "key",
        **({"version": ATTRIBUTES_VERSION} if in_graph else {}),
    }


def _loading(theirs: Callable) -> Callable:
    """Return a function that loads a symbol, and replaces MXNet's operator in it."""

    @functools.wraps(theirs)
    def load(*args: Any, **kwargs: Any) -> Any:
        symbol = theirs(*args, **kwargs)
        graph = Graph(symbol)
        left_operators.update(node["op"] for node in graph.nodes if node["op"] == "BatchNorm")
        found = [
            node for node in graph.nodes if node["op"] == _THEIRS and not _leave(node["attrs"])
        ]
        for node in found:
            attributes = _own_attributes(node["attrs"], node["name"], in_graph=True)
            made.append(node["name"])
            node["op"], node["attrs"] = "Custom", {k: str(v) for k, v in attributes.items()}
        return graph.to_symbol() if found else symbol

    return load


def _counting(theirs: Callable) -> Callable:
    """Return a function that counts the BatchNorms of a program which are not layers of Gluon."""

    @functools.wraps(theirs)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("name") != "fwd":  # as layers call it
            left_operators["BatchNorm"] += 1
        return theirs(*args, **kwargs)

    return call


def _showing(theirs: Callable) -> Callable:
    """Return a function that shows a symbol, with BatchNorm in the place of this operator."""

    @functools.wraps(theirs)
    def show(symbol: Any, *args: Any, **kwargs: Any) -> Any:
        return theirs(to_batchnorm(symbol), *args, **kwargs)

    return show


def _exporting(theirs: Callable) -> Callable:
    """Return the method by which MXNet writes ONNX files, with BatchNorm as above."""

    @functools.wraps(theirs)
    def export(graph: Any, sym: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        sym, params = to_batchnorm(sym), {**params}
        write_fixed_gammas(sym, params)
        return theirs(graph, sym, params, *args, **kwargs)

    return export
