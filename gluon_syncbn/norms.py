"""The norms of a network: its layers, and the nodes of its symbols."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator

from mxnet import gluon
from mxnet.gluon.nn.basic_layers import _BatchNorm

from .block import SyncBatchNorm
from .naming import named_blocks
from .symbols.graph import Graph


@dataclass(frozen=True)
class Norm:
    """A batch normalization of any class or operator, which a layer or a node computes.

    Norms that share their running mean normalize by the same statistics.
    """

    name: str
    kind: str  # class of the layer, or operator of the node
    block: Any  # the layer, or the SymbolBlock with the node
    node: int | None  # the index in the symbol, or None for a layer
    running_mean: gluon.Parameter
    running_var: gluon.Parameter
    count: gluon.Parameter | None  # of batches, with momentum=None
    is_synchronized: bool
    use_global_stats: bool
    sync_group_size: int | None
    process_set: int | None


def norms_of(net: gluon.Block) -> list[Norm]:
    """List every norm of a network once."""
    norms: list[Norm] = []
    for block, name in named_blocks(net).items():
        if isinstance(block, _BatchNorm):
            norms.append(_of_layer(block, name))
        elif isinstance(block, gluon.SymbolBlock):
            norms += _of_nodes(block)
    return norms


def _of_layer(layer: Any, name: str) -> Norm:
    synchronized = isinstance(layer, SyncBatchNorm)
    return Norm(
        name=getattr(layer, "name", None) or name,
        kind=type(layer).__name__,
        block=layer,
        node=None,
        running_mean=layer.running_mean,
        running_var=layer.running_var,
        count=layer._reg_params.get("num_batches_tracked"),
        is_synchronized=synchronized,
        use_global_stats=layer._kwargs["use_global_stats"],
        sync_group_size=layer.sync_group_size if synchronized else None,
        process_set=layer._processes() if synchronized else None,
    )


def _of_nodes(block: gluon.SymbolBlock) -> Iterator[Norm]:
    graph, parameters = Graph(block._cached_graph[1]), block.collect_params()
    own = {*graph.norms()}
    for index in sorted([*own, *graph.plain_norms()]):
        names = graph.statistics(index)
        if not parameters.keys() >= {*names}:  # statistics that are inputs of the block
            continue
        mean, var, *count = (parameters[name] for name in names)
        size = graph.attribute(index, "sync_group_size", "None")
        process_set = graph.attribute(index, "process_set", "-1")
        yield Norm(
            name=graph.nodes[index]["name"],
            kind=graph.nodes[index]["op"],
            block=block,
            node=index,
            running_mean=mean,
            running_var=var,
            count=count[0] if count else None,
            is_synchronized=index in own,
            use_global_stats=graph.flag(index, "use_global_stats"),
            sync_group_size=int(size) if size.isdecimal() else None,
            process_set=int(process_set) if process_set.isdecimal() else None,
        )
