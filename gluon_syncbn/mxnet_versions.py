"""What differs between MXNet 1.9.1 and MXNet 2.

Calls of the layer differ in ``block.py``, names in ``naming.py``, and what a program may replace in
``run``. ``src/mxnet/c_api.cc`` has what differs in their C functions.
"""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx
from mxnet import gluon

IS_2 = mx.__version__.startswith("2.")

# The environment variables that switch oneDNN off, for all operators and for RNN.
ONEDNN = "MXNET_ONEDNN_ENABLED" if IS_2 else "MXNET_MKLDNN_ENABLED"
ONEDNN_RNN = "MXNET_USE_ONEDNN_RNN" if IS_2 else "MXNET_USE_MKLDNN_RNN"

# The norm layers of MXNet that SyncBatchNorm replaces.
PLAIN_NORMS = (gluon.nn.BatchNorm, (gluon if IS_2 else gluon.contrib).nn.SyncBatchNorm)

load_symbol: Callable[[str], Any] = mx.sym.fromjson if IS_2 else mx.sym.load_json


def context_of(array: Any) -> Any:
    """Return the context of an array. In MXNet 2 the old name of the attribute warns."""
    return array.device if IS_2 else array.context


def new_array(values: Any, ctx: Any, dtype: str | None = None) -> Any:
    """Return an array that Gluon layers accept: of ``mx.np`` if that is in use."""
    # In MXNet 2 threads that have not called npx.set_np() know of no arrays of mx.np.
    array = mx.np.array if IS_2 or mx.util.is_np_array() else mx.nd.array
    return array(values, ctx=ctx, dtype=dtype)


def children_of(block: gluon.Block) -> list[gluon.Block]:
    """List the blocks that `block` consists of."""
    children = block._children.values()
    return [child() for child in children] if IS_2 else list(children)


def require_symbolic_calls(function: str, instead: str) -> None:
    """Raise an error in MXNet 2, whose networks cannot be called with symbols."""
    if IS_2:
        raise RuntimeError(
            f"gluon_syncbn.{function} needs MXNet 1.9.1: networks of MXNet 2 cannot be called with "
            f"symbols. Instead, {instead}"
        )


def custom_operator(traced: bool) -> Any:
    """Return MXNet's operator Custom for the arrays or symbols of this call."""
    if IS_2:
        return mx.nd.np._internal.Custom
    module = mx.sym if traced else mx.nd
    return module.np._internal.Custom if mx.util.is_np_array() else module.Custom


def is_tracing() -> bool:
    """Whether MXNet 2 is building a graph on this thread."""
    return IS_2 and bool(mx._deferred_compute.is_deferred_compute())
