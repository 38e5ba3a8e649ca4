"""Prepare MXNet for several CPU contexts, and check the result.

MXNet's CPU contexts share their workspaces and random numbers; each GPU context has its own. oneDNN
can pass an asynchronous operator a temporary copy of its input.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import warnings
from pathlib import Path

import mxnet as mx

from .library import LIBRARY
from .mxnet_versions import ONEDNN, SYMBOL_VERSION, load_symbol

SETTINGS = {
    ONEDNN: "0",
    # Without oneDNN every first convolution would print that it falls back.
    "MXNET_STORAGE_FALLBACK_LOG_VERBOSE": "0",
}

# Not mx.nd.Convolution, to which automatic mixed precision hands arrays of another dtype.
_CONVOLUTION = """{
  "nodes": [
    {"op": "null", "name": "data", "inputs": []},
    {"op": "null", "name": "weight", "inputs": []},
    {"op": "Convolution", "name": "convolution", "inputs": [[0, 0, 0], [1, 0, 0]],
     "attrs": {"kernel": "(3, 3)", "num_filter": "16", "no_bias": "True"}}
  ],
  "arg_nodes": [0, 1],
  "heads": [[2, 0, 0]],
  "attrs": {"mxnet_version": ["int", %d]}
}"""

_pools_error: str | None = None  # why CPU contexts have no workspaces of their own
_openblas_error: str | None = None  # why MXNet's products stay in its own OpenBLAS


def prepare_at_import() -> None:
    """Prepare CPU contexts; warn if MXNet had read its settings before."""
    too_late = ONEDNN not in os.environ and _operators_have_run()
    _prepare()
    problem = find_problem(several=False) if too_late else None
    if problem is not None:
        warnings.warn(
            "operators of MXNet ran before gluon_syncbn was imported, so that its settings for CPU "
            "contexts came too late. Restart Python (in a notebook, the kernel) and import "
            f"gluon_syncbn first. What is wrong: {problem}",
            UserWarning,
            stacklevel=4,
        )


def _prepare() -> None:
    """Switch oneDNN off, unless the user has set it, and give each CPU context its own pools.

    MXNet reads the settings when its first operator runs, so they also work after ``import mxnet``.
    The pools are prepared now, so that seeds reach contexts that are used later. Each pool is made
    when its context is first used, and ``cpu(0)`` keeps MXNet's.
    """
    global _pools_error, _openblas_error  # noqa: PLW0603
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    _pools_error = LIBRARY.gluon_syncbn_give_cpu_contexts_pools(mx.base._LIB._name.encode())
    _openblas_error = _use_openblas()


def _use_openblas() -> str | None:
    """Compute MXNet's matrix products in scipy-openblas32; return why not, if that fails.

    MXNet's own OpenBLAS dates from 2020. It has no kernels for AVX-512 or later processors, and
    several CPU contexts with several threads each can hang in it. Without oneDNN all networks
    depend on OpenBLAS, so this replaces it, before the first convolution.
    """
    path, problem = None, None
    package = importlib.util.find_spec("scipy_openblas32")  # importing it would load it for all
    if os.environ.get("GLUON_SYNCBN_OPENBLAS") == "0":
        problem = "GLUON_SYNCBN_OPENBLAS is 0"
    elif package is None or package.origin is None:
        problem = "it is not installed"
    else:
        path = os.fsencode(Path(package.origin).with_name("lib") / "libscipy_openblas.so")
    error = LIBRARY.gluon_syncbn_use_openblas(mx.base._LIB._name.encode(), path)
    return problem if error is None else error


def blas() -> str:
    """Name the library of MXNet's matrix products; if not scipy-openblas32, say why."""
    found = LIBRARY.gluon_syncbn_blas()
    return found if _openblas_error is None else f"{found}; not scipy-openblas32: {_openblas_error}"


def _operators_have_run() -> bool:
    """Whether MXNet has started its engine, as its first operator does."""
    # Set when the engine makes its first BulkStatus, for any thread.
    store = "_ZGVZN4dmlc16ThreadLocalStoreIN5mxnet6engine14ThreadedEngine10BulkStatusEE"
    try:
        return bool(ctypes.c_uint8.in_dll(mx.base._LIB, f"{store}9SingletonEvE4inst").value)
    except ValueError:  # another build of MXNet; the first call of a layer finds it then
        return False


def find_problem(several: bool) -> str | None:
    """Say why operators on CPU contexts are not safe, and what to do; None if all is well.

    If `several` devices of this process wait for each other, they need their own pools.
    """
    with mx.autograd.pause(), mx.engine.bulk(0):
        if _onednn_is_in_effect():
            return (
                "oneDNN is in effect, and its array layouts cannot be passed to an asynchronous "
                f"operator on CPU contexts. Set the environment variable {ONEDNN}=0 "
                "before the first operator of MXNet runs, or import gluon_syncbn before that"
            )
    if not several:
        return None
    if os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine":
        return "MXNET_ENGINE_TYPE=NaiveEngine cannot synchronize several devices"
    if _pools_error is not None:
        return (
            "several CPU contexts cannot have workspaces of their own with MXNet "
            f"{mx.__version__} of {mx.base._LIB._name}, and could wait for each other forever: "
            f"{_pools_error}. Use one CPU context, or install MXNet 1.9.1 from its packages"
        )
    return None


def _onednn_is_in_effect() -> bool:
    data = mx.nd.ones((1, 16, 8, 8), ctx=mx.cpu())
    weight = mx.nd.ones((16, 16, 3, 3), ctx=mx.cpu())
    convolution = mx.nd.CachedOp(load_symbol(_CONVOLUTION % SYMBOL_VERSION))
    try:
        convolution(data, weight).to_dlpack_for_read()
    except mx.base.MXNetError:  # arrays in layouts of oneDNN cannot be exported
        return True
    return False
