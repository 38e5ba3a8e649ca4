"""Lets one thread at a time trace a network and initialize its parameters.

GluonCV's ``DataParallelModel(sync=True)`` calls the network on one thread per device. Each thread
could build a graph of its own, and devices with different graphs never meet. ``operators.py`` makes
graphs under this lock. Calls of a network that has its graph hold it only while they fetch
parameters.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import Any, Callable

from mxnet import gluon

LOCK = threading.RLock()


def serialize() -> None:
    """Wrap the methods of Gluon that begin a network."""
    wrap_method(gluon.HybridBlock, "infer_shape", _locked)
    wrap_method(gluon.Parameter, "_finish_deferred_init", _locked)
    # While a parameter is initialized, for a moment it has neither data nor a deferred
    # initialization, and then data without a gradient.
    wrap_method(gluon.Parameter, "data", _locked)
    # In a child, a lock that another thread held would stay locked.
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release
    )


def _locked(theirs: Callable, *args: Any, **kwargs: Any) -> Any:
    with LOCK:
        return theirs(*args, **kwargs)


def wrap_method(cls: type, name: str, around: Callable) -> None:
    """Wrap a method of a class, and those of its subclasses, as `wrapped` does.

    The layers of MXNet 2 have copies of the methods that they inherit (``mx.util.use_np``).
    """
    if name in vars(cls):
        setattr(cls, name, wrapped(vars(cls)[name], around))
    for subclass in cls.__subclasses__():
        wrap_method(subclass, name, around)


def wrapped(theirs: Callable, around: Callable) -> Callable:
    """Return a function that calls `around` with the function `theirs`, then the arguments."""

    @functools.wraps(theirs)
    def call(*args: Any, **kwargs: Any) -> Any:
        return around(theirs, *args, **kwargs)

    return call
