"""Symbols as editable graphs."""

from __future__ import annotations

import json
from typing import Any

import mxnet as mx
from mxnet import gluon

from ..block import OP_TYPE, contexts_of, device_ids
from ..device_groups import groups_are_whole
from ..mxnet_versions import load_symbol

SHORTCUT = 3  # the input of this package's operator that is the shortcut, if there is one


def last_line(error: Exception) -> str:
    """Return the message of an error of MXNet, without the stack trace before it."""
    return str(error).strip().splitlines()[-1]


def meet_on_contexts(block: gluon.SymbolBlock, num_devices: int | None, size: int | None) -> None:
    """Synchronize the SyncBatchNorm nodes of a block over the contexts of its parameters.

    The block is an imported or a fused network, `size` that of groups.
    """
    inputs, symbol = block._cached_graph
    graph, parameters = Graph(symbol), block.collect_params()
    for index in graph.norms():
        attributes = graph.nodes[index]["attrs"]
        contexts = contexts_of(parameters[graph.nodes[graph.running_mean(index)]["name"]]) or []
        number = num_devices or len(contexts)
        group = size or int(graph.attribute(index, "sync_group_size", str(number)))
        if number == 0 or not groups_are_whole(number, group):
            continue
        attributes["num_devices"] = str(number)
        if size is not None:
            attributes["sync_group_size"] = str(size)
        devices = device_ids(contexts, number)
        attributes.pop("device_ids", None)
        attributes.update({} if devices is None else {"device_ids": devices})
    if graph.norms():
        block._cached_graph = inputs, graph.to_symbol()
        block._clear_cached_op()


def number_devices(symbol: mx.sym.Symbol, number: int) -> mx.sym.Symbol:
    """Complete the norms whose number of devices was not known when the symbol was made."""
    graph = Graph(symbol)
    incomplete = [i for i in graph.norms() if graph.attribute(i, "num_devices", "1") == "None"]
    for index in incomplete:
        graph.nodes[index]["attrs"]["num_devices"] = str(number)
    return graph.to_symbol() if incomplete else symbol


def is_true(attribute: str | None) -> bool:
    """Whether an attribute of a node says True, in one of MXNet's spellings."""
    return attribute in ("True", "true", "1")


class Graph:
    """A symbol's JSON. Nodes keep their index until `to_symbol` sorts and renumbers them."""

    def __init__(self, symbol: mx.sym.Symbol) -> None:
        self._is_numpy = isinstance(symbol, mx.sym.np._Symbol)
        graph = json.loads(symbol.tojson())
        self.nodes: list[dict[str, Any]] = graph["nodes"]
        self.heads = graph["heads"]
        self._attributes = graph.get("attrs", {})

    def attribute(self, index: int, name: str, default: str) -> str:
        """Return an attribute of a node."""
        return str(self.nodes[index].get("attrs", {}).get(name, default))

    def flag(self, index: int, name: str, default: str = "False") -> bool:
        """Return an attribute of a node that is True or False."""
        return is_true(self.attribute(index, name, default))

    def norms(self) -> list[int]:
        """List the nodes that are this package's operator."""
        # MXNet copies the attributes of an operator to the variables that it makes for it.
        custom = [index for index, node in enumerate(self.nodes) if node["op"] == "Custom"]
        return [index for index in custom if self.attribute(index, "op_type", "") == OP_TYPE]

    def running_mean(self, index: int) -> int:
        """Return the node of a SyncBatchNorm's running mean, which identifies the layer."""
        return self.nodes[index]["inputs"][SHORTCUT + self.flag(index, "shortcut")][0]

    def consumers(self, index: int) -> list[tuple[int, int]]:
        """(node, output) of all readers of a node's outputs; -1 stands for a head."""
        read = [(-1, head[1]) for head in self.heads if head[0] == index]
        for other, node in enumerate(self.nodes):
            read += [(other, entry[1]) for entry in node["inputs"] if entry[0] == index]
        return read

    def add(self, op: str, name: str, inputs: list[list[int]], **attributes: Any) -> int:
        """Add a node; return its index."""
        attrs = {key: str(value) for key, value in attributes.items()}
        self.nodes.append({"op": op, "name": name, "inputs": inputs, "attrs": attrs})
        return len(self.nodes) - 1

    def redirect(self, index: int, source: list[int]) -> None:
        """Make all readers of the node `index` read `source`, and the node itself nothing."""
        for entries in [self.heads, *(node["inputs"] for node in self.nodes)]:
            for entry in entries:
                if entry[0] == index:
                    entry[:2] = source[:2]
        self.nodes[index]["inputs"] = []

    def to_symbol(self) -> mx.sym.Symbol:
        """Return a symbol of all that the heads need."""
        order = {index: place for place, index in enumerate(self.order())}
        nodes = []
        for index in order:
            inputs = [[order[entry[0]], *entry[1:]] for entry in self.nodes[index]["inputs"]]
            nodes.append({**self.nodes[index], "inputs": inputs})
        graph = {
            "nodes": nodes,
            "arg_nodes": [i for i, node in enumerate(nodes) if node["op"] == "null"],
            "node_row_ptr": list(range(len(nodes) + 1)),
            "heads": [[order[head[0]], *head[1:]] for head in self.heads],
            "attrs": self._attributes,
        }
        symbol = load_symbol(json.dumps(graph))
        return symbol.as_np_ndarray() if self._is_numpy else symbol

    def order(self) -> list[int]:
        """List the nodes that the heads need, in the order in which MXNet runs them."""
        order: dict[int, None] = {}
        for head in self.heads:
            stack = [(head[0], False)]
            while stack:
                index, inputs_done = stack.pop()
                if index in order:
                    continue
                if inputs_done:
                    order[index] = None
                    continue
                stack.append((index, True))
                stack += [(entry[0], False) for entry in reversed(self.nodes[index]["inputs"])]
        return list(order)
