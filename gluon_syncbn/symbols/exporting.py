"""Make symbols and files that MXNet loads without this package."""

from __future__ import annotations

import logging
from pathlib import Path

import mxnet as mx
from mxnet import gluon

from ..activations import BY_TYPE, DEFAULT_SLOPE
from ..mxnet_versions import load_symbol
from .folding import Arrays, FoldReport, fold_batchnorm
from .graph import SHORTCUT, Graph, last_line, shared_attributes

_logger = logging.getLogger(__name__)


def to_batchnorm(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Turn every SyncBatchNorm node of a symbol into a ``BatchNorm`` node.

    A shortcut and an activation become nodes after it: ``elemwise_add``, and ``Activation`` or
    ``LeakyReLU``. In inference the result is the same. In training BatchNorm normalizes each device
    separately, and nodes with ``momentum=None`` get BatchNorm's
    default, 0.9.

    Parameters
    ----------
    symbol : Symbol
        Any symbol.

    Returns
    -------
    Symbol
        A copy with the same names, without the counts of batches.
    """
    graph = Graph(symbol)
    make_plain(graph)
    return graph.to_symbol()


def make_plain(graph: Graph) -> None:
    """Replace every SyncBatchNorm of a graph by MXNet's own operators.

    In the body of control flow, a norm with a shortcut or with ``momentum=None`` is a ValueError.
    """
    _, *bodies = graph.all()
    for body in bodies:
        names = [body.nodes[index]["name"] for index in body.norms()]
        variables = body.variables()
        _replace_norms(body)
        if body.variables() != variables:  # which the operator gives by their places
            raise ValueError(
                f"{', '.join(names)}: in the body of control flow, a norm with a shortcut or with "
                "momentum=None has no counterpart in MXNet"
            )
    _replace_norms(graph)


def _replace_norms(graph: Graph) -> None:
    for index in graph.norms():
        name, inputs = graph.nodes[index]["name"], graph.nodes[index]["inputs"]
        attributes = graph.nodes[index]["attrs"]
        shortcut = inputs.pop(SHORTCUT) if graph.flag(index, "shortcut") else None
        for node in (graph.nodes[entry[0]] for entry in inputs):
            if node["op"] == "null":  # it may have copies of the attributes
                copied = node.get("attrs", {}).items()
                node["attrs"] = {key: value for key, value in copied if key.startswith("__")}
        plain = inputs[:5]  # without the count of batches of momentum=None
        last = graph.add("BatchNorm", name, plain, **shared_attributes(attributes))
        if shortcut is not None:
            last = graph.add("elemwise_add", f"{name}_add", [[last, 0, 0], shortcut])
        act_type = attributes.get("act_type", "None")
        if act_type != "None":
            activation = BY_TYPE[act_type]
            extra = {"act_type": act_type}
            if activation.alpha is not None:
                extra["slope"] = attributes.get("slope", DEFAULT_SLOPE)
            graph.add(activation.op, f"{name}_{act_type}", [[last, 0, 0]], **extra)
        # The last node takes the index of the norm, so that readers of the norm read it.
        graph.nodes[index] = graph.nodes.pop()


def export(
    net: gluon.HybridBlock, path: str | Path, epoch: int = 0, fold: bool = False
) -> tuple[str, str]:
    """Export a network for MXNet without this package, in any language.

    Every SyncBatchNorm becomes a ``BatchNorm`` node. ``HybridBlock.export`` keeps the synchronized
    operator, for further training.

    Parameters
    ----------
    net : HybridBlock
        A network that has been hybridized and called at least once.
    path : str or Path
        Beginning of the file names: ``path-symbol.json`` and ``path-0000.params``.
    epoch : int, default 0
        Number in the name of the parameter file.
    fold : bool, default False
        Fold the norms into the convolution or dense layers before them if that is exact, and log
        it. See :func:`gluon_syncbn.fold_batchnorm`.

    Returns
    -------
    symbol_file : str
    params_file : str
        The names of the files written.

    Raises
    ------
    RuntimeError
        If `net` has not been hybridized and called, or is a SymbolBlock that has not been called.
    ValueError
        If a norm in the body of control flow has a shortcut or ``momentum=None``.
    """
    if isinstance(net, gluon.SymbolBlock) and net._cached_op is None:
        raise RuntimeError("call the network once before export: MXNet would write no parameters")
    net.export(str(path), epoch)
    symbol_file, params_file = f"{path}-symbol.json", f"{path}-{epoch:04d}.params"
    PlainFiles(symbol_file, params_file, fold).write(symbol_file, params_file)
    return symbol_file, params_file


class PlainFiles:
    """Exported files, converted to MXNet's own operators.

    `converted` counts the SyncBatchNorm nodes, and `report` lists the folded norms. A file with
    other contents raises a ValueError, and an unreadable file an OSError.
    """

    def __init__(self, symbol_file: str, params_file: str, fold: bool) -> None:
        symbol = _load_symbol(symbol_file)
        self.converted = sum(len(each.norms()) for each in Graph(symbol).all())
        self.symbol = to_batchnorm(symbol)
        self.args, aux = _load_parameters(params_file)
        states = self.symbol.list_auxiliary_states()
        missing = set(states) - aux.keys()
        if missing:
            raise ValueError(
                f"{params_file} has no {min(missing)}, which {symbol_file} needs; "
                "do the two files belong together?"
            )
        self.aux = {name: aux[name] for name in states}
        write_fixed_gammas(self.symbol, self.args)
        self.report = FoldReport()
        if fold:
            self.symbol, self.args, self.aux, self.report = fold_batchnorm(
                self.symbol, self.args, self.aux
            )
            _logger.info("folded batch normalization of %s:\n%s", symbol_file, self.report)

    def write(self, symbol_file: str, params_file: str) -> None:
        """Write both files, which may be the files that were read."""
        arrays = {f"arg:{name}": array for name, array in self.args.items()}
        arrays.update({f"aux:{name}": array for name, array in self.aux.items()})
        mx.nd.save(params_file, arrays)
        self.symbol.save(symbol_file)


def write_fixed_gammas(symbol: mx.sym.Symbol, args: Arrays) -> None:
    """Write 1 where ``fix_gamma=True`` ignores gamma, as training with BatchNorm does.

    Other readers of the files use gamma, such as MXNet's exporter to ONNX.
    """
    for graph in Graph(symbol).all():
        for index, node in enumerate(graph.nodes):
            if node["op"] == "BatchNorm" and graph.flag(index, "fix_gamma", "True"):
                name = graph.nodes[node["inputs"][1][0]]["name"]
                if name in args:
                    args[name] = mx.nd.ones(args[name].shape, dtype=args[name].dtype)


def _load_symbol(name: str) -> mx.sym.Symbol:
    """Load a symbol file; if it holds no symbol, a ValueError names it."""
    try:
        return load_symbol(Path(name).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, mx.base.MXNetError) as error:
        raise ValueError(f"{name} holds no symbol of MXNet: {last_line(error)}") from error


def _load_parameters(name: str) -> tuple[Arrays, Arrays]:
    """Load arguments and auxiliary states; if there are none, a ValueError names the file."""
    Path(name).open("rb").close()  # raises the usual error if there is no such file
    try:
        arrays = mx.nd.load(name)
    except mx.base.MXNetError as error:
        raise ValueError(f"{name} holds no parameters of MXNet: {last_line(error)}") from error
    if not isinstance(arrays, dict) or not all(key[:4] in ("arg:", "aux:") for key in arrays):
        raise ValueError(
            f"{name} holds arrays that are not the parameters of a symbol (arg:... and aux:...); "
            "it may come from save_parameters instead of export"
        )
    parts = [{key[4:]: a for key, a in arrays.items() if key[:4] == k} for k in ("arg:", "aux:")]
    return parts[0], parts[1]
