"""Make the norms of a symbol synchronized."""

from __future__ import annotations

from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Iterator

from mxnet import gluon

from .. import processes
from ..arguments import groups_are_whole
from ..block import ATTRIBUTES_VERSION, OP_TYPE, SHARED_ATTRIBUTES, contexts_in, device_ids
from ..naming import Identity
from .graph import THEIR_SYNC_BATCH_NORM, Graph, shared_attributes

# Attributes of the operators of MXNet's layers, as in layer._kwargs. cudnn_off chooses a library.
ATTRIBUTES = {*SHARED_ATTRIBUTES, "cudnn_off", "ndev", "key"}


@contextmanager
def edited(block: gluon.SymbolBlock) -> Iterator[Graph]:
    """Give the graph of a block, and take over what becomes of it."""
    inputs, symbol = block._cached_graph
    graph = Graph(symbol)
    yield graph
    block._cached_graph = inputs, graph.to_symbol()
    block._clear_cached_op()


def convert_nodes(
    graph: Graph, operators: tuple[str, ...] = ("BatchNorm", THEIR_SYNC_BATCH_NORM)
) -> tuple[list[str], list[str]]:
    """Convert the nodes of MXNet's `operators` to SyncBatchNorm.

    Returns the names of the converted nodes. Then it says why other norms of MXNet stay.
    """
    converted, left = [], []
    process_set = processes.default()
    for index in graph.plain_norms():
        node = graph.nodes[index]
        name, reason = node["name"], why_not(graph, index)
        if reason is not None:
            left.append(f"{name} is left as it is: {node['op']} {reason}")
        elif node["op"] in operators:
            attributes = own_attributes(node.get("attrs", {}), name)
            if process_set is not None:
                attributes.update(process_set=process_set, across=Identity(name).across(None))
            node["op"] = "Custom"
            node["attrs"] = {key: str(value) for key, value in attributes.items()}
            converted.append(name)
    return converted, left


def why_not(graph: Graph, index: int) -> str | None:
    """Say why a node cannot become a SyncBatchNorm, or return None if it can."""
    node = graph.nodes[index]
    if graph.flag(index, "output_mean_var") or any(map(itemgetter(1), graph.consumers(index))):
        return "returns its mean and variance too"
    given = node.get("attrs", {}).items()
    own = {key for key, value in given if value != "None" and not key.startswith("__")}
    known = {*ATTRIBUTES, "output_mean_var"}
    if node["op"] not in ("BatchNorm", THEIR_SYNC_BATCH_NORM) or own - known:
        return "does not compute what BatchNorm computes"
    return None


def own_attributes(theirs: dict[str, str], name: str) -> dict[str, Any]:
    """Translate the attributes of a BatchNorm node."""
    # Only MXNet's SyncBatchNorm has a key. Without ndev it counts one device, as with 0.
    number = theirs.get("ndev", "1") if "key" in theirs else None  # None is not known yet
    return {
        **shared_attributes(theirs),
        "op_type": OP_TYPE,
        "num_devices": "1" if number == "0" else number,
        "key": name,  # for messages
        "scope": "graph",
        "version": ATTRIBUTES_VERSION,
    }


def meet_on_contexts(
    graph: Graph, block: gluon.SymbolBlock, num_devices: int | None, size: int | None
) -> None:
    """Synchronize the SyncBatchNorm nodes of a block over the contexts of its parameters.

    The block is an imported or a fused network, and `size` is the size of groups.
    """
    contexts = contexts_in(block)
    number = num_devices or len(contexts)
    for index in graph.norms():
        attributes = graph.nodes[index]["attrs"]
        group = size or int(graph.attribute(index, "sync_group_size", str(number)))
        if number == 0 or not groups_are_whole(number, group):
            continue
        attributes["num_devices"] = str(number)
        if size is not None:
            attributes["sync_group_size"] = str(size)
        devices = device_ids(contexts, number)
        attributes.pop("device_ids", None)
        attributes.update({} if devices is None else {"device_ids": devices})
