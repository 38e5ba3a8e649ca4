"""Make the norm layers of a network synchronized, and plain again."""

from __future__ import annotations

import gc
import logging
import uuid
import warnings
from typing import Any, Callable, Iterator

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon.nn.basic_layers import _BatchNorm

from .block import SHARED_ATTRIBUTES, SyncBatchNorm
from .mxnet_versions import PLAIN_NORMS, children_of, name_of, names_in
from .symbols.graph import Graph, meet_on_contexts

_logger = logging.getLogger(__name__)
_FORWARD = {"forward", "hybrid_forward"}
_PARAMETERS = ("gamma", "beta", "running_mean", "running_var")
# Attributes of the operators of MXNet's layers, as in layer._kwargs. cudnn_off chooses a library.
_ATTRIBUTES = {*SHARED_ATTRIBUTES, "cudnn_off", "ndev", "key"}
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
    parameters, so references, trainers and checkpoints stay valid. The logger ``gluon_syncbn``
    lists them. What the program has set on them stays: hooks, attributes, and the settings of
    parameters. Norms that compute something else, layers with methods or parameters of their own,
    and SymbolBlocks with BatchNorm nodes stay as they are, and a warning names each. Another one
    says that a network has no norms. If a subclass has a ``forward`` or ``hybrid_forward`` of its
    own, the function calls it with symbols and with small arrays, on a copy of the layer.

    In a SymbolBlock, such as an imported network, SyncBatchNorm nodes then synchronize
    `num_devices`, by default the current contexts of its parameters. All hybridized networks that
    contain a converted layer build their graphs again at the next call.

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
        least 1 that divides `num_devices`.

    See Also
    --------
    revert_sync_batchnorm : The inverse.
    """
    # Raises before anything has changed. With a prefix it does not count as the next layer made.
    example = SyncBatchNorm(
        num_devices=num_devices, sync_group_size=sync_group_size, prefix="convert_sync_batchnorm_"
    )
    num_devices, sync_group_size = example.num_devices, example.sync_group_size
    converted = []
    layers = list(norm_layers(net))
    names = names_in(net)
    for layer in layers:
        if isinstance(layer, SyncBatchNorm):
            continue
        difference = difference_from_batchnorm(layer)
        if difference is None:
            synchronize(layer, names[layer], num_devices, sync_group_size)
            converted.append(layer.name)
        else:
            _warn_of_left(layer, f"{type(layer).__name__} {difference}")
    symbols = [block for block in blocks_of(net) if isinstance(block, gluon.SymbolBlock)]
    if not layers and not symbols:
        warnings.warn(f"{name_of(net)} has no BatchNorm to convert", UserWarning, stacklevel=2)
    for block in symbols:
        meet_on_contexts(block, num_devices, sync_group_size)
        kinds = [node["op"] for node in Graph(block._cached_graph[1]).nodes]
        number = kinds.count("BatchNorm") + kinds.count("_contrib_SyncBatchNorm")
        if number:
            _warn_of_left(
                block,
                f"a SymbolBlock has no layers, and this one has {number} BatchNorm nodes. "
                "Convert the network before it becomes a symbol, or make it with SyncBatchNorm",
            )
    _finish("converted to SyncBatchNorm", net, converted)
    return net


def difference_from_batchnorm(layer: Any) -> str | None:
    """Say why `layer` cannot become a SyncBatchNorm, or return None if it can.

    Its instance attributes, hooks and parameters stay in any case, with all that was set on them.
    """
    known = {*_BatchNorm.__mro__, *PLAIN_NORMS}
    own = {name for each in type(layer).__mro__ if each not in known for name in vars(each)}
    methods = sorted(name for name in own - _FORWARD if _is_lost(name))
    if methods:
        return f"has methods of its own: {', '.join(methods)}"
    functions = sorted(_FORWARD & vars(layer).keys())
    if functions:
        return f"has a function of its own as {' and '.join(functions)}"
    parameters = sorted(layer._reg_params.keys() - _PARAMETERS)
    if parameters:
        return f"has parameters of its own: {', '.join(parameters)}"
    if getattr(layer, "fuse_relu", False):  # later versions of MXNet 2 have no such layer
        return "computes a ReLU too: replace it by SyncBatchNorm(activation='relu')"
    if layer._kwargs.keys() - _ATTRIBUTES:
        return "does not compute what BatchNorm computes"
    inherits = isinstance(layer, PLAIN_NORMS) and not own & _FORWARD
    if inherits or _computes_batchnorm(layer):
        return None
    return "does not compute what BatchNorm computes"


def _is_lost(name: str) -> bool:
    """Whether a layer of another class would miss `name`, which its class adds or replaces."""
    if name.startswith("__"):
        return name not in _OF_ANY_CLASS
    return not name.startswith("_") or (hasattr(_BatchNorm, name) and name != "_alias")


def _computes_batchnorm(layer: Any) -> bool:
    """Whether `layer` computes BatchNorm with its own attributes, of symbols and of arrays."""
    try:
        with mx.autograd.pause(), mx.cpu(0):
            inputs = _small_inputs(layer)
            probe = _with_parameters(layer, inputs)
            return all(_is_batchnorm(probe, inputs, training) for training in (False, True))
    except Exception:  # of a user's forward; in MXNet 2 none takes symbols
        return False


def _is_batchnorm(probe: Any, inputs: dict[str, gluon.Parameter], training: bool) -> bool:
    """Whether `probe` is one BatchNorm as a symbol, and computes the same with arrays."""
    data = mx.sym.var("data")
    with mx.autograd.pause(train_mode=training):
        # Not probe(data), which would call hooks.
        symbol = probe.forward(data.as_np_ndarray() if mx.util.is_np_array() else data)
    if not _is_one_node(symbol, probe._kwargs):
        return False
    operator = mx.nd.CachedOp(symbol)
    parameters = [inputs[name].data() for name in _PARAMETERS]
    expected = _step(lambda x: operator(x, *parameters), inputs, training)
    return _step(probe.forward, inputs, training) == expected


def _small_inputs(layer: Any) -> dict[str, gluon.Parameter]:
    """Return arrays for data and for the parameters of `layer`, as parameters."""
    axis, channels = layer._kwargs.get("axis", 1), max(layer.gamma.shape[0], 0) or 2
    shape = [2] * max(4, axis + 1, -axis)
    shape[axis] = channels
    shapes = {"data": shape, **dict.fromkeys(_PARAMETERS, (channels,))}
    inputs = {
        name: gluon.Parameter(name, "null" if "running" in name else "write", shape)
        for name, shape in shapes.items()
    }
    for each in inputs.values():
        each.initialize(mx.init.Zero())
    return inputs


def _with_parameters(layer: Any, parameters: dict[str, gluon.Parameter]) -> Any:
    """Return a layer that shares all with `layer` but its graph and its parameters.

    It is alone: MXNet's SyncBatchNorm would wait for other devices.
    """
    own = {name: parameters[name] for name in _PARAMETERS}
    alone = {"ndev": 1, "key": uuid.uuid4().hex} if "ndev" in layer._kwargs else {}
    other = object.__new__(type(layer))
    vars(other).update({**vars(layer), **own})
    vars(other).update(_active=False, _reg_params=own, _kwargs={**layer._kwargs, **alone})
    return other


def _is_one_node(symbol: Any, expected: dict[str, Any]) -> bool:
    """Whether a symbol is one BatchNorm with the parameters of a layer and these attributes."""
    if not isinstance(symbol, mx.sym.Symbol):
        return False
    *inputs, norm = Graph(symbol).nodes
    attributes = dict(norm.get("attrs", {}))
    attributes.pop("cudnn_off", None)  # chooses a library, not a formula
    return (
        norm["op"] in ("BatchNorm", "_contrib_SyncBatchNorm")
        and [node["name"] for node in inputs] == ["data", *_PARAMETERS]
        and attributes == {name: str(value) for name, value in expected.items()}
    )


def _step(compute: Callable, inputs: dict[str, gluon.Parameter], training: bool) -> list[bytes]:
    """Return the bits of the output, gradients and statistics of a training step or inference."""
    rng = np.random.default_rng(0)
    for each in inputs.values():
        each.set_data(rng.uniform(1, 2, each.shape))
    x = inputs["data"].data()
    with (mx.autograd.record if training else mx.autograd.pause)():
        out = compute(x)
    if training:
        out.backward(x * x)
    left = [each.data() if each.grad_req == "null" else each.grad() for each in inputs.values()]
    return [array.asnumpy().tobytes() for array in (out, *left)]


def synchronize(
    layer: Any, name: str, num_devices: int | None, sync_group_size: int | None
) -> None:
    """Make a layer that computes BatchNorm a SyncBatchNorm, in place."""
    before = layer._kwargs
    layer._before_conversion = (type(layer), before)
    layer._name = name
    layer.__class__ = SyncBatchNorm
    layer._begin(process_set=None)
    # MXNet's SyncBatchNorm has no attribute `axis`; its channels are axis 1.
    layer._kwargs = {name: before.get(name, 1) for name in SHARED_ATTRIBUTES}
    layer._kwargs.update(num_devices=num_devices, sync_group_size=sync_group_size)


def _revert(layer: Any) -> None:
    """Make a layer what it was before `synchronize`, or a BatchNorm if it is not converted."""
    now = {name: layer._kwargs[name] for name in SHARED_ATTRIBUTES}
    layer.__class__, before = getattr(layer, "_before_conversion", (gluon.nn.BatchNorm, now))
    # Settings that the program has changed since, such as use_global_stats, stay changed.
    layer._kwargs = {name: now.get(name, value) for name, value in before.items()}


def _warn_of_left(block: gluon.Block, why: str) -> None:
    warnings.warn(f"{name_of(block)} is left as it is: {why}", UserWarning, stacklevel=3)


def revert_sync_batchnorm(net: gluon.Block) -> gluon.Block:
    """Undo the conversion of every :class:`gluon_syncbn.SyncBatchNorm` of a network, in place.

    Layers that were made as SyncBatchNorm become ``gluon.nn.BatchNorm``. Layers of a subclass stay
    as they are. BatchNorm has neither
    ``momentum=None`` nor an activation: set `momentum` to a number first, and use
    :func:`gluon_syncbn.export` for networks with activations in the norm.

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
        If a layer has ``momentum=None`` or an activation. The network stays as it was.

    See Also
    --------
    convert_sync_batchnorm : The inverse.
    """
    layers = [layer for layer in norm_layers(net) if type(layer) is SyncBatchNorm]
    for layer in layers:
        if layer.momentum is None:
            raise ValueError(
                f"{layer.name}: momentum=None, the average over all batches, has no counterpart in "
                "BatchNorm; set layer.momentum to a number first"
            )
        if layer.activation is not None:
            raise ValueError(
                f"{layer.name}: activation={layer.activation!r} has no counterpart in BatchNorm; "
                "gluon_syncbn.export writes the network with MXNet's own operators"
            )
    names = [layer.name for layer in layers]
    for layer in layers:
        _revert(layer)
    _finish("reverted from SyncBatchNorm", net, names)
    return net


def blocks_of(net: gluon.Block) -> Iterator[gluon.Block]:
    """Every block of `net` once."""
    if not isinstance(net, gluon.Block):
        raise TypeError(f"net={net!r} should be a gluon.Block")
    seen: set[int] = set()
    waiting: list[Any] = [net]
    while waiting:
        block = waiting.pop()
        if id(block) not in seen:
            seen.add(id(block))
            waiting.extend(reversed(children_of(block)))
            yield block


def norm_layers(net: gluon.Block) -> Iterator[Any]:
    """Every BatchNorm of `net` once, of any class."""
    return (block for block in blocks_of(net) if isinstance(block, _BatchNorm))


def _finish(action: str, net: gluon.Block, names: list[str]) -> None:
    """Drop the graphs of the changed layers, and log their names."""
    if names:
        changed = {id(block) for block in blocks_of(net)}
        # Networks that contain `net` have graphs too, and only the collector knows them.
        hybrid = (each for each in gc.get_objects() if issubclass(type(each), gluon.HybridBlock))
        for block in [*blocks_of(net), *hybrid]:
            if getattr(block, "_cached_graph", None) and changed & {*map(id, blocks_of(block))}:
                block._clear_cached_op()
    _logger.info(
        "%s in %s: %d layers: %s", action, name_of(net), len(names), ", ".join(names) or "none"
    )
