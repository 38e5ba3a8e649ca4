"""Make the settings of MXNet that several CPU contexts need, and check that they are in effect.

Contexts ``cpu(0)``, ``cpu(1)``, ... run in parallel but share workspaces, and oneDNN keeps arrays
in layouts of its own. With MXNet's defaults an operation behind the synchronization on one device
can hold the workspace that another device needs to get there, and MXNet can hand an asynchronous
operator a temporary copy of its input. GPU contexts share neither.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
import warnings
from typing import TYPE_CHECKING

import mxnet as mx

from . import driver

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "SETTINGS",
    "allow_several",
    "find_problem",
    "prepare",
    "use_one_thread_each",
    "warn_of_static_shape",
]

# Enough for segmentation networks on ResNet-50 on four contexts, or on ResNet-101 on two. Users may
# choose fewer, which need less memory, but not so few that hardly any network can be trained.
WORKSPACES = 1024
FEWEST_WORKSPACES = 64

# A static_shape graph never gives its workspaces back, and other operators come upon them in turn.
STATIC_SHAPE_WORKSPACES = 65536

_FOR_ONE_CONTEXT = {
    "MXNET_MKLDNN_ENABLED": "0",
    # Without oneDNN every first convolution would print that it falls back.
    "MXNET_STORAGE_FALLBACK_LOG_VERBOSE": "0",
}
_FOR_SEVERAL_CONTEXTS = {
    "MXNET_CPU_TEMP_COPY": str(WORKSPACES),
    "MXNET_CPU_PARALLEL_RAND_COPY": "8",
}
SETTINGS = {**_FOR_ONE_CONTEXT, **_FOR_SEVERAL_CONTEXTS}

# How long unfinished operations of the user may keep a workspace before they count as stuck.
_PATIENCE_SECONDS = 20.0

_CONVOLUTION = json.dumps(
    {
        "nodes": [
            {"op": "null", "name": "data", "inputs": []},
            {"op": "null", "name": "weight", "inputs": []},
            {
                "op": "Convolution",
                "name": "convolution",
                "attrs": {"kernel": "(3, 3)", "num_filter": "16", "no_bias": "True"},
                "inputs": [[0, 0, 0], [1, 0, 0]],
            },
        ],
        "arg_nodes": [0, 1],
        "heads": [[2, 0, 0]],
        "attrs": {"mxnet_version": ["int", 10901]},
    }
)

_library: ctypes.CDLL | None = None


def allow_several() -> None:
    """Set the environment variables of MXNet that several CPU contexts need, unless you have.

    Call it before the first operator of MXNet runs, on a machine with GPUs. If MXNet finds no GPU,
    importing gluon_syncbn has done it.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


def prepare(library: ctypes.CDLL) -> None:
    """Set what CPU contexts need and the user has not set.

    MXNet reads the values when its first operator runs, so that this takes effect after
    ``import mxnet`` as well. Beside GPUs hardly anybody trains on several CPU contexts, and their
    workspaces would cost memory whenever large images are evaluated on one.
    """
    global _library  # noqa: PLW0603
    _library = library
    if not driver.has_gpus():
        allow_several()
        return
    for name, value in _FOR_ONE_CONTEXT.items():
        os.environ.setdefault(name, value)


def use_one_thread_each(contexts: Sequence[mx.Context] | None) -> None:  # noqa: ARG001
    """Do nothing: several CPU contexts no longer need this, with any norm layer."""
    warnings.warn(
        "use_one_thread_each() is not needed any more and does nothing",
        DeprecationWarning,
        stacklevel=2,
    )


def warn_of_static_shape() -> None:
    """Warn if CPU contexts have too few workspaces for ``static_shape=True``."""
    if driver.has_gpus() or _chosen_workspaces() >= STATIC_SHAPE_WORKSPACES:
        return
    warnings.warn(
        "static_shape=True on several CPU contexts: operators beside the network, such as a loss, "
        "come upon workspaces that it keeps, and a step can then wait for ever (until the timeout "
        "of gluon_syncbn). Hybridize with static_alloc=True alone, or set "
        f"MXNET_CPU_TEMP_COPY={STATIC_SHAPE_WORKSPACES} or more before the first operator runs",
        UserWarning,
        stacklevel=3,
    )


def find_problem(synchronized: bool) -> str | None:
    """Say what keeps operators on CPU contexts of this thread from being safe.

    Parameters
    ----------
    synchronized : bool
        Whether operators wait for other devices, which takes workspaces of their own.

    Returns
    -------
    str or None
        A message that says what to set, or None if all is well.
    """
    with mx.autograd.pause(), mx.engine.bulk(0):
        if _onednn_is_in_effect():
            return (
                "oneDNN is in effect, and its array layouts cannot be passed to an asynchronous "
                "operator on CPU contexts. Set the environment variable MXNET_MKLDNN_ENABLED=0 "
                "before the first operator of MXNet runs, or import gluon_syncbn before that"
            )
        if not synchronized:
            return None
        if os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine":  # which the check below would hang
            return "MXNET_ENGINE_TYPE=NaiveEngine cannot synchronize several devices"
        if "MXNET_CPU_TEMP_COPY" not in os.environ:  # 4 then, and the check below takes its time
            return (
                "several CPU contexts need more workspaces than MXNet has by default, and beside "
                "GPUs importing gluon_syncbn leaves them alone, because they cost memory. Call "
                "gluon_syncbn.cpu_contexts.allow_several(), or set the environment variable "
                f"MXNET_CPU_TEMP_COPY={WORKSPACES}, before the first operator of MXNet runs"
            )
        number = min(max(_chosen_workspaces(), FEWEST_WORKSPACES), WORKSPACES)
        if not _has_workspaces(number):
            return (
                f"MXNet has fewer than {number} workspaces for CPU contexts, so that one device "
                "can wait for ever for a workspace that another one holds. Set the environment "
                f"variable MXNET_CPU_TEMP_COPY={WORKSPACES} (or more; not less than "
                f"{FEWEST_WORKSPACES}) before the first operator of MXNet runs"
                f"{'' if driver.has_gpus() else ', or import gluon_syncbn before that'}"
            )
    return None


def _onednn_is_in_effect() -> bool:
    data = mx.nd.ones((1, 16, 8, 8), ctx=mx.cpu())
    weight = mx.nd.ones((16, 16, 3, 3), ctx=mx.cpu())
    # Not mx.nd.Convolution, to which automatic mixed precision hands arrays of another dtype.
    convolution = mx.nd.CachedOp(mx.sym.load_json(_CONVOLUTION))
    result = convolution(data, weight)
    result.wait_to_read()
    try:
        result.to_dlpack_for_read()
    except mx.base.MXNetError:  # arrays in layouts of oneDNN cannot be exported
        return True
    return False


def _chosen_workspaces() -> int:
    setting = os.environ.get("MXNET_CPU_TEMP_COPY", "")
    return int(setting) if setting.isdigit() else WORKSPACES


def _has_workspaces(number: int) -> bool:
    """Whether `number` operations can use a workspace while another one holds its own."""
    assert _library is not None
    busy = mx.nd.ones((2,), ctx=mx.cpu())
    free = mx.nd.ones((2,), ctx=mx.cpu())
    free.wait_to_read()
    hold = _library.gluon_syncbn_hold(busy.handle)
    if hold is None:
        raise RuntimeError("the engine of MXNet accepts no operation")
    try:
        blocked = mx.nd.sum(busy)  # keeps the workspace it was given until the hold ends
        others = [mx.nd.sum(free) for _ in range(number - 1)]
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while others and time.monotonic() < deadline:
            others = [result for result in others if not _is_ready(result)]
            if others:
                time.sleep(0.001)
    finally:
        _library.gluon_syncbn_release(hold)
    blocked.wait_to_read()
    return not others


def _is_ready(array: mx.nd.NDArray) -> bool:
    assert _library is not None
    return bool(_library.gluon_syncbn_is_ready(array.handle) == 1)
