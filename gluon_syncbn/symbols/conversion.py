"""Make the norms of a symbol synchronized."""

from __future__ import annotations

from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Iterator

from mxnet import gluon

from .. import processes
from ..arguments import find_problem
from ..block import ATTRIBUTES_VERSION, OP_TYPE, SHARED_ATTRIBUTES, contexts_in, device_ids
from ..naming import Identity
from .graph import THEIR_SYNC_BATCH_NORM, Graph, graph_of, shared_attributes

# Attributes of the operators of MXNet's layers, as in layer._kwargs. cudnn_off chooses a library.
ATTRIBUTES = {*SHARED_ATTRIBUTES, "cudnn_off", "ndev", "key"}


@contextmanager
def edited(block: gluon.SymbolBlock) -> Iterator[Graph]:
    """Give the graph of a block, and take over what becomes of it."""
    graph, before = graph_of(block), graph_of(block).to_json()
    yield graph
    if graph.to_json() != before:
        block._cached_graph = block._cached_graph[0], graph.to_symbol()
        has_run, contexts = block._cached_op is not None, contexts_in(block)
        block._clear_cached_op()
        if has_run and contexts:  # otherwise MXNet's export would write no parameters
            with contexts[0]:
                block._build_cache()


def convert_nodes(
    graph: Graph, operators: tuple[str, ...] = ("BatchNorm", THEIR_SYNC_BATCH_NORM)
) -> tuple[list[str], list[str]]:
    """Convert the nodes of MXNet's `operators` to SyncBatchNorm.

    Returns the names of the converted nodes. Then it says why other norms of MXNet stay.
    """
    converted, left = [], []
    for index in graph.plain_norms():
        node = graph.nodes[index]
        name, reason = node["name"], why_not(graph, index)
        if reason is not None:
            left.append(f"{name} is left as it is: {node['op']} {reason}")
        elif node["op"] in operators:
            attributes = own_attributes(node.get("attrs", {}), name)
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


def set_groups(graph: Graph, size: int | None) -> None:
    """Let the SyncBatchNorm nodes of a graph synchronize within groups of `size` devices."""
    for index in graph.norms():
        attributes = graph.nodes[index]["attrs"]
        attributes.pop("sync_group_size", None)
        attributes.update({} if size is None else {"sync_group_size": str(size)})


def meet_on_contexts(graph: Graph, block: gluon.SymbolBlock, num_devices: int | None) -> None:
    """Synchronize the SyncBatchNorm nodes of an imported or a fused network.

    They synchronize `num_devices`, by default the contexts of the parameters of `block`.
    """
    contexts = contexts_in(block)
    join_processes(graph)
    for index in graph.norms():
        attributes = graph.nodes[index]["attrs"]
        name, size = graph.nodes[index]["name"], graph.number(index, "sync_group_size")
        number = num_devices or len(contexts) or graph.number(index, "num_devices")
        if number == 1 < (size or 1):
            continue  # a network that was trained in groups is served on one context
        problem = find_problem(
            num_devices=number, sync_group_size=size, process_set=process_set_of(graph, index)
        )
        if problem is not None:
            raise ValueError(f"{name}: {problem}")
        attributes["num_devices"] = str(number)
        attributes.pop("device_ids", None)
        devices = device_ids(name, contexts, number or 0)
        attributes.update({} if devices is None else {"device_ids": devices})


def join_processes(graph: Graph) -> bool:
    """Let nodes that have no processes synchronize those of `init`; say whether there were any."""
    joins = [graph.nodes[i] for i in graph.norms() if graph.number(i, "process_set") is None]
    number = processes.default()
    if number is None:
        return False
    for node in joins:
        across = Identity(node["name"]).across(None)
        node["attrs"].update(process_set=str(number), across=across)
    return bool(joins)


def process_set_of(graph: Graph, index: int) -> int | None:
    """Return Horovod's number of the processes of a SyncBatchNorm node; None for this one alone."""
    number = graph.number(index, "process_set")
    if number is None:
        return processes.default()
    return None if number < 0 else number
