"""Names: of blocks in messages, of a layer for its devices, and of its uses for other processes."""

from __future__ import annotations

import itertools
import sys
import uuid
import weakref
from collections import defaultdict
from types import FrameType
from typing import Any, ClassVar, Iterator

import mxnet as mx
from mxnet import gluon

from .mxnet_versions import IS_2, children_of


def name_of(block: gluon.Block) -> str:
    """Return a name for messages. In MXNet 2 only layers of this package have names."""
    return str(getattr(block, "name", None) or type(block).__name__)


def named_blocks(net: gluon.Block, prefix: str = "") -> dict[gluon.Block, str]:
    """List every block of `net` once, and name it: by itself, or in MXNet 2 by its place."""
    if not isinstance(net, gluon.Block):
        raise TypeError(f"net={net!r} should be a gluon.Block")
    names = {net: prefix or name_of(net)} if IS_2 else {net: net.name}
    for key, child in zip(net._children, children_of(net)):
        for block, name in named_blocks(child, f"{prefix}.{key}".lstrip(".")).items():
            names.setdefault(block, name)
    return names


class Identity:
    """Identifies a block by a token that no copy shares, so that a copy does not join its original.

    `place` numbers the blocks of one prefix. Unlike the token, it is the same in all processes that
    run the same program. Processes may destroy blocks at different times, so counts never go back.
    """

    _counters: ClassVar[defaultdict[str, Iterator[int]]] = defaultdict(itertools.count)

    def __init__(self, prefix: str) -> None:
        self.token = uuid.uuid4().hex
        self.first_devices: str | None = None
        self.place = next(self._counters[prefix])
        self.networks: weakref.WeakSet[Any] = weakref.WeakSet()  # whose graphs have the block
        self._prefix = prefix
        self.forget_uses()

    def forget_uses(self) -> None:
        """Begin again at use 0."""
        self._uses: weakref.WeakKeyDictionary[Any, tuple[Any, int]] = weakref.WeakKeyDictionary()
        self._alone = itertools.count()

    def next_use(self, layer: Any) -> str:
        """Name the next use of the block in the graph that is being traced.

        The name is the same in all processes that trace this graph.
        """
        frame = _frame_of_trace()
        if frame is not None:
            self.networks.add(frame.f_locals["self"])
        scope, trace, graph, alone = _current_graph(layer, frame)
        latest, use = self._uses.get(scope, (trace, 0))
        use = use if latest is trace else 0
        self._uses[scope] = trace, use + 1
        # All graphs of a block that is called by itself have one name, so their uses share a count.
        return f"{graph}/{next(self._alone) if alone else use}"

    def across(self, use: str | None) -> str:
        """Name the layer for other processes, or one of its uses.

        Each use is a node of its own, and may run beside other uses.
        """
        return f"{self._prefix}#{self.place}" + ("" if use is None else f"@{use}")

    def __reduce__(self) -> tuple:  # of copy.deepcopy too
        return (Identity, (self._prefix,))


class Named(gluon.HybridBlock):
    """A layer with names. In MXNet 2 it has the `name` and `prefix` of MXNet 1.9.1 too."""

    _identity: Identity
    _numbers: ClassVar[Iterator[int]] = itertools.count()

    if IS_2:

        def __init__(self, prefix: str | None = None, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            if prefix is not None:
                self._name = prefix.rstrip("_")

        @property
        def name(self) -> str:
            """The prefix, or the layer's place in the network that was converted, or its number."""
            if "_name" not in self.__dict__:
                self._name = f"{type(self).__name__.lower()}{next(self._numbers)}"
            return self._name

        @property
        def prefix(self) -> str:
            """As in MXNet 1.9.1."""
            return f"{self.name}_"

    @property
    def key(self) -> str:
        """Name under which the devices of this block synchronize, unique among all blocks."""
        return f"{self.prefix}{self._identity.token}"

    def _get_graph(self, *args: Any) -> Any:
        # This block builds its own graph, in which its uses count from 0 again.
        self._identity.forget_uses()
        return super()._get_graph(*args)


def _frame_of_trace() -> FrameType | None:
    """Return the frame of MXNet's function that builds the graph of its block, if one does.

    A wrapper around that function would not reach the layers that have copies of it
    (mx.util.use_np), and would change MXNet for programs without this layer.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not gluon.HybridBlock._get_graph.__code__:
        frame = frame.f_back
    return frame


def _current_graph_1(layer: gluon.Block, _frame: FrameType | None) -> tuple[Any, Any, str, bool]:
    """Say for which graph MXNet is calling `layer`, if it builds one.

    Returns an object that builds graphs, and another one for each graph that it builds if these are
    several. Then it returns a name of the graph that is the same in all processes, and whether
    `layer` is called by itself.
    """
    # Gluon enters a scope of names with each block that has a prefix. The outermost one belongs to
    # the trace.
    scope = current = mx.name.NameManager.current
    while isinstance(current, mx.name.Prefix):
        scope, current = current, current._old_manager
    graph = getattr(scope, "_prefix", "")
    return scope, None, graph, graph == layer.prefix


def _current_graph_2(layer: gluon.Block, frame: FrameType | None) -> tuple[Any, Any, str, bool]:
    # There are no scopes: deferred compute is a switch of the thread that names no graph, and a
    # symbol exists only at the end.
    if frame is None:
        return gluon.Block, None, "", False  # the class stands for no graph
    block = frame.f_locals["self"]
    name = f"{type(block).__name__}.{named_blocks(block).get(layer, name_of(layer))}"
    return block, frame.f_locals["symbol_inputs"], name, block is layer


_current_graph = _current_graph_2 if IS_2 else _current_graph_1
