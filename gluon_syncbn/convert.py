"""Make the norm layers of a network synchronized, and plain again."""

from __future__ import annotations

import gc
import logging
import warnings
from contextlib import ExitStack
from types import FunctionType
from typing import Any, Iterator

import mxnet as mx
from mxnet import gluon
from mxnet.gluon.nn.basic_layers import _BatchNorm

from .arguments import find_problem
from .block import PARAMETERS, SHARED_ATTRIBUTES, SyncBatchNorm, contexts_in
from .mxnet_versions import PLAIN_NORMS, children_of
from .naming import Named, name_of, named_blocks
from .norms import IN_BODY, Norm, norms_of
from .symbols.conversion import ATTRIBUTES, convert_nodes, edited, meet_on_contexts, set_groups
from .symbols.exporting import make_plain
from .symbols.graph import THEIR_SYNC_BATCH_NORM, Graph

_logger = logging.getLogger(__name__)
_FORWARD = {"forward", "hybrid_forward"}
# What SyncBatchNorm defines, and BatchNorm does not.
_USED = {
    name
    for kind in (SyncBatchNorm, Named)
    for name, value in vars(kind).items()
    if isinstance(value, (property, FunctionType)) and not hasattr(_BatchNorm, name)
}
# What a class may define without a change to its layers once they are made.
_OF_ANY_CLASS = {
    *("__annotations__", "__dict__", "__doc__", "__firstlineno__", "__module__"),
    *("__init__", "__new__", "__repr__", "__static_attributes__", "__str__", "__weakref__"),
}


def convert_sync_batchnorm(
    net: gluon.Block, num_devices: int | None = None, sync_group_size: int | None = None
) -> gluon.Block:
    """Make every BatchNorm of a network a :class:`gluon_syncbn.SyncBatchNorm`, in place.

    It converts the layers that compute what ``gluon.nn.BatchNorm`` or
    ``gluon.contrib.nn.SyncBatchNorm`` computes. They stay the same objects with the same
    parameters, so references, trainers and checkpoints stay valid. What the program has set on them
    stays: hooks, attributes, and the settings of parameters. In a SymbolBlock, such as an imported
    network, it converts the nodes ``BatchNorm`` and ``_contrib_SyncBatchNorm``. The logger
    ``gluon_syncbn`` lists the converted norms. :func:`revert_sync_batchnorm` undoes it.

    Norms that compute something else, and layers with methods or parameters of their own, stay as
    they are, and a warning names each. Another warning says that a network has no norms. If a
    subclass has a ``forward`` or ``hybrid_forward`` of its own, the function calls it with a
    symbol, on a shallow copy of the layer. One BatchNorm has to come out. It tries no arrays.

    Norms that were SyncBatchNorm before get `num_devices` and `sync_group_size` too, or their
    defaults. The nodes of a SymbolBlock synchronize the current contexts of their parameters, and
    the processes of :func:`gluon_syncbn.init`. So call this function again after you move a
    SymbolBlock, or after ``init``. All hybridized networks that contain a norm of `net` build their
    graphs again at the next call.

    Parameters
    ----------
    net : Block
        The network, or a single layer; initialized or not, hybridized or not.
    num_devices : int, optional
        Number of devices of a training step; 0 counts as 1. By default, the number of contexts of
        the parameters.
    sync_group_size : int, optional
        Synchronize within groups of this many devices. By default, all are one group.

    Returns
    -------
    Block
        `net`.

    Raises
    ------
    TypeError
        If `net` is no Block.
    ValueError
        If `num_devices` is not a whole number of at least 0, or `sync_group_size` not one of at
        least 1 that divides `num_devices`, or the number of contexts of a SymbolBlock. Nothing has
        changed then.
    """
    _require(num_devices, sync_group_size)
    num_devices = None if num_devices is None else max(int(num_devices), 1)
    sync_group_size = None if sync_group_size is None else int(sync_group_size)
    norms = norms_of(net)
    converted, left = [], _own_operators(net, norms)
    if not norms and not left:
        warnings.warn(f"{name_of(net)} has no BatchNorm to convert", UserWarning, stacklevel=2)
    for norm in norms:
        contexts = contexts_in(norm.block) if norm.node is not None else []
        _require(num_devices or len(contexts) or None, sync_group_size, norm.process_set)
    with ExitStack() as stack:  # all graphs, or none
        for block in _symbol_blocks(norms):
            graph = stack.enter_context(edited(block))
            nodes, others = convert_nodes(graph)
            set_groups(graph, sync_group_size)
            meet_on_contexts(graph, block, num_devices)
            converted += nodes
            left += others
    for norm in norms:
        if norm.is_in_body:
            left.append(f"{norm.name} is left as it is: {IN_BODY}")
        if norm.node is not None:
            continue
        if not norm.is_synchronized:
            difference = difference_from_batchnorm(norm.block)
            if difference is not None:
                left.append(f"{norm.name} is left as it is: {norm.kind} {difference}")
                continue
            synchronize(norm.block, norm.name)
            converted.append(norm.name)
        norm.block._kwargs.update(num_devices=num_devices, sync_group_size=sync_group_size)
    for message in left:
        warnings.warn(message, UserWarning, stacklevel=2)
    if norms:
        _drop_graphs(net)
    _log("converted to SyncBatchNorm", net, converted)
    return net


def _require(
    num_devices: int | None, sync_group_size: int | None, process_set: int | None = None
) -> None:
    problem = find_problem(
        num_devices=num_devices, sync_group_size=sync_group_size, process_set=process_set
    )
    if problem is not None:
        raise ValueError(f"convert_sync_batchnorm: {problem}")


def _symbol_blocks(norms: list[Norm]) -> list[gluon.SymbolBlock]:
    return list({norm.block: None for norm in norms if norm.node is not None})


def _own_operators(net: gluon.Block, norms: list[Norm]) -> list[str]:
    """Say which blocks call the operator of a norm and are no layers, as far as that can be seen.

    Only their graphs have the operator, and a network may have none yet.
    """
    known = {norm.running_mean for norm in norms}
    return [
        f"{name} is left as it is: {type(block).__name__} has a running mean, but is no BatchNorm"
        for block, name in named_blocks(net).items()
        if not isinstance(block, (_BatchNorm, gluon.SymbolBlock))
        for parameter in block._reg_params.values()
        if parameter.name.endswith(("running_mean", "moving_mean")) and parameter not in known
    ]


def difference_from_batchnorm(layer: Any) -> str | None:
    """Say why `layer` cannot become a SyncBatchNorm, or return None if it can.

    Its instance attributes, hooks and parameters stay in any case, with all that was set on them.
    """
    known = {*_BatchNorm.__mro__, *PLAIN_NORMS}
    own = {name for each in type(layer).__mro__ if each not in known for name in vars(each)}
    members = sorted(name for name in own - _FORWARD if _is_lost(name))
    if members:
        return f"has members of its own: {', '.join(members)}"
    functions = sorted(_FORWARD & vars(layer).keys())
    if functions:
        return f"has a function of its own as {' and '.join(functions)}"
    hidden = sorted(vars(layer).keys() & _USED)
    if hidden:
        return f"has an attribute of its own that SyncBatchNorm uses: {', '.join(hidden)}"
    parameters = sorted(layer._reg_params.keys() - PARAMETERS)
    if parameters:
        return f"has parameters of its own: {', '.join(parameters)}"
    if getattr(layer, "fuse_relu", False):  # later versions of MXNet 2 have no such layer
        return "computes a ReLU too: replace it by SyncBatchNorm(activation='relu')"
    inherits = isinstance(layer, PLAIN_NORMS) and not own & _FORWARD
    if layer._kwargs.keys() <= ATTRIBUTES and (inherits or _computes_batchnorm(layer)):
        return None
    return "does not compute what BatchNorm computes"


def _is_lost(name: str) -> bool:
    """Whether a layer of another class would miss `name`, which its class adds or replaces."""
    if name.startswith("__"):
        return name not in _OF_ANY_CLASS
    return not name.startswith("_") or (hasattr(_BatchNorm, name) and name != "_alias")


def _computes_batchnorm(layer: Any) -> bool:
    """Whether `layer`, called with a symbol, is one BatchNorm with its own attributes."""
    data = mx.sym.var("data")
    own = {name: gluon.Parameter(name) for name in PARAMETERS}
    probe = object.__new__(type(layer))  # shares all with `layer` but its graph and its parameters
    vars(probe).update({**vars(layer), **own, "_active": False, "_reg_params": own})
    try:
        for training in (False, True):
            with mx.autograd.pause(train_mode=training):
                # Not probe(data), which would call hooks.
                symbol = probe.forward(data.as_np_ndarray() if mx.util.is_np_array() else data)
            if not _is_one_node(symbol, layer._kwargs):
                return False
    except Exception:  # of a user's forward; in MXNet 2 none takes symbols
        return False
    return True


def _is_one_node(symbol: Any, expected: dict[str, Any]) -> bool:
    """Whether a symbol is one BatchNorm with the parameters of a layer and these attributes."""
    if not isinstance(symbol, mx.sym.Symbol):
        return False
    *inputs, norm = Graph(symbol).nodes
    attributes = dict(norm.get("attrs", {}))
    attributes.pop("cudnn_off", None)  # chooses a library, not a formula
    return (
        norm["op"] in ("BatchNorm", THEIR_SYNC_BATCH_NORM)
        and [node["name"] for node in inputs] == ["data", *PARAMETERS]
        and attributes == {name: str(value) for name, value in expected.items()}
    )


def synchronize(layer: Any, name: str, num_devices: int | None = None) -> None:
    """Make a layer that computes BatchNorm a SyncBatchNorm, in place."""
    before = layer._kwargs
    layer._before_conversion = (type(layer), before)
    layer._name = name
    layer.__class__ = SyncBatchNorm
    layer._begin(process_set=None)
    # MXNet's SyncBatchNorm has no attribute `axis`; its channels are axis 1.
    layer._kwargs = {name: before.get(name, 1) for name in SHARED_ATTRIBUTES}
    layer._kwargs.update(num_devices=num_devices, sync_group_size=None)


def _revert(layer: Any) -> None:
    """Make a layer what it was before `synchronize`, or a BatchNorm if it is not converted."""
    now = {name: layer._kwargs[name] for name in SHARED_ATTRIBUTES}
    layer.__class__, before = getattr(layer, "_before_conversion", (gluon.nn.BatchNorm, now))
    # Settings that the program has changed since, such as use_global_stats, stay changed.
    layer._kwargs = {name: now.get(name, value) for name, value in before.items()}


def revert_sync_batchnorm(net: gluon.Block) -> gluon.Block:
    """Undo the conversion of every :class:`gluon_syncbn.SyncBatchNorm` of a network, in place.

    Layers that were made as SyncBatchNorm become ``gluon.nn.BatchNorm``. Layers of a subclass stay
    as they are. BatchNorm has neither ``momentum=None`` nor an activation: set `momentum` to a
    number first, and use :func:`gluon_syncbn.export` for layers with an activation. In a
    SymbolBlock, nodes become ``BatchNorm``, with an activation as a node after it.

    Parameters
    ----------
    net : Block
        The network, or a single layer.

    Returns
    -------
    Block
        `net`.

    Raises
    ------
    ValueError
        If a norm has ``momentum=None``, or a layer an activation. The network stays as it was.
    """
    norms = [
        norm for norm in norms_of(net) if norm.kind == "Custom" or type(norm.block) is SyncBatchNorm
    ]
    for norm in norms:
        if norm.count is not None:
            raise ValueError(
                f"{norm.name}: momentum=None, the average over all batches, has no counterpart in "
                "BatchNorm; set layer.momentum to a number first (of a symbol, before it is made)"
            )
        activation = None if norm.node is not None else norm.block.activation
        if activation is not None:
            raise ValueError(
                f"{norm.name}: activation={activation!r} has no counterpart in BatchNorm; "
                "gluon_syncbn.export writes the network with MXNet's own operators"
            )
    for norm in norms:
        if norm.node is None:
            _revert(norm.block)
    for block in _symbol_blocks(norms):
        with edited(block) as graph:
            make_plain(graph)
    if norms:
        _drop_graphs(net)
    _log("reverted from SyncBatchNorm", net, [norm.name for norm in norms])
    return net


def _drop_graphs(net: gluon.Block) -> None:
    """Let `net`, its parts and the networks that contain it build their graphs again."""
    changed = {*_ids(net)}
    # Only the collector knows the networks that contain `net`.
    hybrid = [each for each in gc.get_objects() if issubclass(type(each), gluon.HybridBlock)]
    for block in hybrid:
        has_graph = getattr(block, "_cached_graph", None)
        if has_graph and not isinstance(block, gluon.SymbolBlock) and changed & {*_ids(block)}:
            block._clear_cached_op()


def _ids(block: gluon.Block) -> Iterator[int]:
    """Identify a block and those that it consists of; other people's may not be hashable."""
    yield id(block)
    for child in children_of(block):
        yield from _ids(child)


def _log(action: str, net: gluon.Block, names: list[str]) -> None:
    shown = ", ".join(names) or "none"
    _logger.info("%s in %s: %d norms: %s", action, name_of(net), len(names), shown)
