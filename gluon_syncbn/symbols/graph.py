"""Symbols as editable graphs."""

from __future__ import annotations

import copy
import json
import weakref
from typing import Any, Iterator

import mxnet as mx
from mxnet import gluon

from ..block import OP_TYPE, SHARED_ATTRIBUTES
from ..mxnet_versions import load_symbol

SHORTCUT = 3  # the input of this package's operator that is the shortcut, if there is one
THEIR_SYNC_BATCH_NORM = "_contrib_SyncBatchNorm"
_PLAIN_NORMS = (
    *("BatchNorm", THEIR_SYNC_BATCH_NORM),
    *("BatchNorm_v1", "_contrib_BatchNormWithReLU"),  # these are not converted
)


def last_line(error: Exception) -> str:
    """Return the message of an error of MXNet, without the stack trace before it."""
    return str(error).strip().splitlines()[-1]


def is_true(attribute: str | None) -> bool:
    """Whether an attribute of a node says True, in one of MXNet's spellings."""
    return attribute in ("True", "true", "1")


def shared_attributes(attributes: dict[str, str]) -> dict[str, str]:
    """Return the attributes that BatchNorm and this package's operator share, and MXNet's own."""
    return {
        key: value
        for key, value in attributes.items()
        if (key in SHARED_ATTRIBUTES or key.startswith("__")) and value != "None"  # of momentum
    }


def has_norms(symbol: mx.sym.Symbol) -> bool:
    """Whether a symbol contains this package's operator; unlike a `Graph` it leaks no memory."""
    return any(each.get("op_type") == OP_TYPE for each in symbol.attr_dict().values())


# For each SymbolBlock, its symbol and the JSON of it, because MXNet's tojson leaks memory.
_known: weakref.WeakKeyDictionary[Any, tuple[Any, dict[str, Any]]] = weakref.WeakKeyDictionary()


def graph_of(block: gluon.SymbolBlock) -> Graph:
    """Return a copy of the graph of a block."""
    symbol = block._cached_graph[1]
    if block not in _known or _known[block][0] is not symbol:
        _known[block] = symbol, json.loads(symbol.tojson())
    return Graph(symbol, copy.deepcopy(_known[block][1]))


class Graph:
    """A symbol's JSON. Nodes keep their index until `to_json` sorts and renumbers them."""

    def __init__(self, symbol: mx.sym.Symbol, graph: dict[str, Any] | None = None) -> None:
        self._is_numpy = isinstance(symbol, mx.sym.np._Symbol)
        graph = json.loads(symbol.tojson()) if graph is None else graph
        self.nodes: list[dict[str, Any]] = graph["nodes"]
        self.heads = graph["heads"]
        self._attributes = graph.get("attrs", {})
        for node in self.nodes:  # of control flow: foreach, while_loop and cond
            node["subgraphs"] = [Graph(symbol, each) for each in node.get("subgraphs", ())]
        for index in self.norms():
            self._require_inputs(index)

    def all(self) -> Iterator[Graph]:
        """Yield this graph, then the bodies of control flow within it."""
        yield self
        for node in self.nodes:
            for body in node["subgraphs"]:
                yield from body.all()

    def attribute(self, index: int, name: str, default: str) -> str:
        """Return an attribute of a node."""
        return str(self.nodes[index].get("attrs", {}).get(name, default))

    def number(self, index: int, name: str) -> int | None:
        """Return an attribute of a node that is a whole number; None if it has none."""
        value = self.attribute(index, name, "None")
        return None if value == "None" else int(value)

    def flag(self, index: int, name: str, default: str = "False") -> bool:
        """Return an attribute of a node that is True or False."""
        return is_true(self.attribute(index, name, default))

    def norms(self) -> list[int]:
        """List the nodes that are this package's operator."""
        # MXNet copies the attributes of an operator to the variables that it makes for it.
        custom = [index for index, node in enumerate(self.nodes) if node["op"] == "Custom"]
        return [index for index in custom if self.attribute(index, "op_type", "") == OP_TYPE]

    def _require_inputs(self, index: int) -> None:
        """Check the number of inputs of a norm, as src/operator/property.cc does.

        MXNet does not, and may crash before it asks for shapes.
        """
        expected = ["data", "gamma", "beta", "moving_mean", "moving_var"]
        if self.flag(index, "shortcut"):
            expected.insert(SHORTCUT, "shortcut")
        if self.attribute(index, "momentum", "0.9") == "None":
            expected.append("num_batches_tracked")
        number = len(self.nodes[index]["inputs"])
        if number != len(expected):
            raise ValueError(
                f"{OP_TYPE} '{self.nodes[index]['name']}': the number of inputs is {number} where "
                f"{len(expected)} is expected: {', '.join(expected)}"
            )

    def plain_norms(self) -> list[int]:
        """List the nodes that are a batch normalization of MXNet's own."""
        return [index for index, node in enumerate(self.nodes) if node["op"] in _PLAIN_NORMS]

    def statistics(self, index: int) -> list[str]:
        """Name the nodes of a norm's running mean and variance, and of a count of batches."""
        first = SHORTCUT + self.flag(index, "shortcut")
        return [self.nodes[entry[0]]["name"] for entry in self.nodes[index]["inputs"][first:]]

    def consumers(self, index: int) -> list[tuple[int, int]]:
        """(node, output) of all readers of a node's outputs; -1 stands for a head."""
        read = [(-1, head[1]) for head in self.heads if head[0] == index]
        for other, node in enumerate(self.nodes):
            read += [(other, entry[1]) for entry in node["inputs"] if entry[0] == index]
        return read

    def add(self, op: str, name: str, inputs: list[list[int]], **attributes: Any) -> int:
        """Add a node; return its index."""
        attrs = {key: str(value) for key, value in attributes.items()}
        node = {"op": op, "name": name, "inputs": inputs, "attrs": attrs, "subgraphs": []}
        self.nodes.append(node)
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
        symbol = load_symbol(json.dumps(self.to_json()))
        return symbol.as_np_ndarray() if self._is_numpy else symbol

    def to_json(self) -> dict[str, Any]:
        """Return what `to_symbol` loads."""
        order = {index: place for place, index in enumerate(self.order())}
        nodes = []
        for index in order:
            inputs = [[order[entry[0]], *entry[1:]] for entry in self.nodes[index]["inputs"]]
            nodes.append({**self.nodes[index], "inputs": inputs})
            bodies = [body.to_json() for body in nodes[-1].pop("subgraphs")]
            nodes[-1].update({"subgraphs": bodies} if bodies else {})
        return {
            "nodes": nodes,
            "arg_nodes": [i for i, node in enumerate(nodes) if node["op"] == "null"],
            "node_row_ptr": list(range(len(nodes) + 1)),
            "heads": [[order[head[0]], *head[1:]] for head in self.heads],
            "attrs": self._attributes,
        }

    def variables(self) -> list[str]:
        """List the names of variables, in the order of their values."""
        nodes = (self.nodes[index] for index in self.order())
        return [node["name"] for node in nodes if node["op"] == "null"]

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
