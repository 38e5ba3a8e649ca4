"""Symbols and files that MXNet loads without this package."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import mxnet as mx
from mxnet import gluon

from .block import OP_TYPE
from .fold import fold_batchnorm

__all__ = ["export", "to_batchnorm"]

_logger = logging.getLogger(__name__)

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


def export(
    net: gluon.HybridBlock, path: str | Path, epoch: int = 0, fold: bool = False
) -> tuple[str, str]:
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
    fold : bool, default False
        Fold the norms into the convolution or dense layers before them where that is exact; what
        was folded is logged. See :func:`gluon_syncbn.fold_batchnorm`.

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
    symbol_file, params_file = f"{path}-symbol.json", f"{path}-{epoch:04d}.params"
    symbol = to_batchnorm(mx.sym.load(symbol_file))
    if fold:
        arrays = mx.nd.load(params_file)
        args, aux = (
            {name[4:]: array for name, array in arrays.items() if name.startswith(kind)}
            for kind in ("arg:", "aux:")
        )
        symbol, args, aux, report = fold_batchnorm(symbol, args, aux)
        _logger.info("folded batch normalization of %s:\n%s", net.name, report)
        named = {f"arg:{name}": array for name, array in args.items()}
        mx.nd.save(params_file, {**named, **{f"aux:{name}": a for name, a in aux.items()}})
    symbol.save(symbol_file)
    return symbol_file, params_file
