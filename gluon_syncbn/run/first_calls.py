"""Lets one thread at a time trace a network and initialize its parameters.

GluonCV's ``DataParallelModel(sync=True)`` calls the network on one thread per device. Each thread
could build a graph of its own, and devices with different graphs never meet. Calls of a network
that has its graph hold the lock only while they fetch parameters.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable

from mxnet import gluon

LOCK = threading.RLock()


def serialize() -> None:
    """Wrap the methods of Gluon that begin a network."""

    def locked(function: Callable) -> Callable:
        @functools.wraps(function)
        def with_lock(*args: Any, **kwargs: Any) -> Any:
            with LOCK:
                return function(*args, **kwargs)

        return with_lock

    def building_once(call_graph: Callable) -> Callable:
        @functools.wraps(call_graph)
        def build_once_and_call(block: Any, *args: Any) -> Any:
            if block._cached_op is None:
                with LOCK:
                    if block._cached_op is None:
                        block._build_cache(*args)
            return call_graph(block, *args)

        return build_once_and_call

    wrap_method(gluon.HybridBlock, "_call_cached_op", building_once)
    wrap_method(gluon.HybridBlock, "infer_shape", locked)
    wrap_method(gluon.Parameter, "_finish_deferred_init", locked)
    # While a parameter is initialized, for a moment it has neither data nor a deferred
    # initialization, and then data without a gradient.
    wrap_method(gluon.Parameter, "data", locked)


def wrap_method(cls: type, name: str, wrap: Callable) -> None:
    """Wrap a method of a class, and those of its subclasses.

    The layers of MXNet 2 have copies of the methods that they inherit (``mx.util.use_np``).
    """
    if name in vars(cls):
        setattr(cls, name, wrap(vars(cls)[name]))
    for subclass in cls.__subclasses__():
        wrap_method(subclass, name, wrap)
