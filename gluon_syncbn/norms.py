"""The norms of a network: its layers, and the nodes of its symbols."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator

from mxnet import gluon
from mxnet.gluon.nn.basic_layers import _BatchNorm

from . import processes
from .block import SyncBatchNorm
from .naming import named_blocks
from .symbols.conversion import process_set_of
from .symbols.graph import Graph, graph_of

# Why a norm in the body of an operator of control flow is not converted.
IN_BODY = "MXNet cannot train a norm in the body of control flow"


@dataclass(frozen=True)
class Norm:
    """A batch normalization of any class or operator, which a layer or a node computes.

    Norms that share their running mean normalize by the same statistics.
    """

    name: str
    kind: str  # class of the layer, or operator of the node
    block: Any  # the layer, or the SymbolBlock with the node
    node: int | None  # the index in the symbol, or None for a layer
    is_in_body: bool  # of an operator of control flow, which has its own nodes
    running_mean: gluon.Parameter
    running_var: gluon.Parameter
    count: gluon.Parameter | None  # of batches, with momentum=None
    is_synchronized: bool
    use_global_stats: bool
    sync_group_size: int | None
    process_set: int | None  # for a norm that is not synchronized, that of a conversion


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
        is_in_body=False,
        running_mean=layer.running_mean,
        running_var=layer.running_var,
        count=layer._reg_params.get("num_batches_tracked"),
        is_synchronized=synchronized,
        use_global_stats=layer._kwargs["use_global_stats"],
        sync_group_size=layer.sync_group_size if synchronized else None,
        process_set=layer._processes() if synchronized else processes.default(),
    )


def _of_nodes(block: gluon.SymbolBlock) -> Iterator[Norm]:
    for number, graph in enumerate(graph_of(block).all()):
        yield from _of_graph(block, graph, is_in_body=number > 0)


def _of_graph(block: gluon.SymbolBlock, graph: Graph, is_in_body: bool) -> Iterator[Norm]:
    parameters = block.collect_params()
    own = {*graph.norms()}
    for index in sorted([*own, *graph.plain_norms()]):
        names = graph.statistics(index)
        if not parameters.keys() >= {*names}:  # statistics that are inputs of the block
            continue
        mean, var, *count = (parameters[name] for name in names)
        yield Norm(
            name=graph.nodes[index]["name"],
            kind=graph.nodes[index]["op"],
            block=block,
            node=index,
            is_in_body=is_in_body,
            running_mean=mean,
            running_var=var,
            count=count[0] if count else None,
            is_synchronized=index in own and not is_in_body,
            use_global_stats=graph.flag(index, "use_global_stats"),
            sync_group_size=graph.number(index, "sync_group_size"),
            process_set=process_set_of(graph, index),
        )
