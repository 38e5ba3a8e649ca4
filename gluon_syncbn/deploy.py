"""Symbols and files that MXNet loads without this package."""

from __future__ import annotations

import json
from pathlib import Path

import mxnet as mx
from mxnet import gluon

from .block import OP_TYPE

__all__ = ["export", "to_batchnorm"]

_SHARED_ATTRIBUTES = ("eps", "momentum", "fix_gamma", "use_global_stats", "axis")


def to_batchnorm(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Make every SyncBatchNorm node of a symbol a plain ``BatchNorm`` node.

    In inference the two compute the same; in training BatchNorm normalizes each device by itself.

    Parameters
    ----------
    symbol : Symbol
        Any symbol.

    Returns
    -------
    Symbol
        A copy with the same names of nodes, arguments and auxiliary states.
    """
    graph = json.loads(symbol.tojson())
    for node in graph["nodes"]:
        attributes = node.get("attrs", {})
        if node["op"] == "Custom" and attributes.get("op_type") == OP_TYPE:
            node["op"] = "BatchNorm"
            node["attrs"] = {
                name: value
                for name, value in attributes.items()
                if name in _SHARED_ATTRIBUTES or name.startswith("__")
            }
    return mx.sym.load_json(json.dumps(graph))


def export(net: gluon.HybridBlock, path: str | Path, epoch: int = 0) -> tuple[str, str]:
    """Export a network for MXNet without this package, in any language.

    As ``HybridBlock.export``, but every SyncBatchNorm becomes a plain ``BatchNorm`` node.

    Parameters
    ----------
    net : HybridBlock
        A network that has been hybridized and called at least once.
    path : str or Path
        Beginning of the file names: ``path-symbol.json`` and ``path-0000.params``.
    epoch : int, default 0
        Number in the name of the parameter file.

    Returns
    -------
    symbol_file, params_file : str
        The names of the files written.

    Raises
    ------
    RuntimeError
        If `net` has not been hybridized and called.
    """
    net.export(str(path), epoch)
    symbol_file = f"{path}-symbol.json"
    to_batchnorm(mx.sym.load(symbol_file)).save(symbol_file)
    return symbol_file, f"{path}-{epoch:04d}.params"
