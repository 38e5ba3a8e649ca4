"""Prepare MXNet for SyncBatchNorm on CPU contexts, or leave MXNet as it is.

The preparation works around three faults of MXNet, which GPU contexts do not have:

- With oneDNN, an asynchronous operator can get a copy of its input that MXNet frees too early
  (PushOperator in mxnet/src/imperative/imperative_utils.h).
- All CPU contexts share workspaces and random numbers (mxnet/src/resource.cc), so devices can wait
  for each other forever.
- The OpenBLAS in MXNet's packages can hang if several contexts use it.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import threading
import warnings
from pathlib import Path

import mxnet as mx

from . import gpu_contexts
from .environment import switch
from .library import LIBRARY
from .mxnet_versions import ONEDNN, ONEDNN_RNN
from .symbols.graph import Graph

# Otherwise every first convolution would print that it runs without oneDNN.
_VERBOSE = "MXNET_STORAGE_FALLBACK_LOG_VERBOSE"
# The environment variables that are set to 0.
SETTINGS = (ONEDNN, _VERBOSE, ONEDNN_RNN)

_LIBMXNET = mx.base._LIB._name.encode()
_GPU_FILES = ("/dev/nvidia[0-9]*", "/proc/driver/nvidia/gpus/*")

# Part of the error about an array in a layout of oneDNN (SetTBlob in mxnet/src/ndarray/ndarray.cc).
_LAYOUT_ERROR = "generate TBlob for"

_RESTART = "Restart Python (in a notebook, the kernel), and"  # MXNet reads its settings once
_PREPARE = "gluon_syncbn.prepare_cpu_contexts() before the first operator"

_choice = ""  # why CPU contexts are prepared, or why not
_prepared = False
_workspaces_error: str | None = None  # why CPU contexts share MXNet's workspaces
_openblas_error: str | None = None  # why matrix products stay in MXNet's own library


def prepare_cpu_contexts() -> None:
    """Prepare MXNet for :class:`gluon_syncbn.SyncBatchNorm` on CPU contexts.

    Call it before the first operator of MXNet runs. It switches oneDNN off, unless the environment
    variable ``MXNET_MKLDNN_ENABLED`` is set (in MXNet 2, ``MXNET_ONEDNN_ENABLED``). It gives each
    CPU context its own workspaces and random numbers. It moves matrix products to the OpenBLAS of
    ``scipy-openblas32``, which is not possible with MXNet 2.0.0b1.

    The import of gluon_syncbn calls this function, unless MXNet was built for CUDA and the machine
    has an NVIDIA GPU. The environment variable ``GLUON_SYNCBN_CPU_CONTEXTS`` decides otherwise: 1
    prepares CPU contexts at the import, 0 leaves MXNet as it is. A second call prepares nothing
    again.

    Raises
    ------
    RuntimeError
        If operators ran before, and oneDNN therefore stays in effect.
    """
    global _choice, _prepared, _workspaces_error, _openblas_error  # noqa: PLW0603
    late = LIBRARY.operators_have_run(_LIBMXNET)
    for name in (ONEDNN, _VERBOSE):
        os.environ.setdefault(name, "0")
    off = os.environ[ONEDNN] == "0"
    too_late = off and late and _onednn_is_in_effect()
    if off and not too_late:
        # RNN has a variable of its own, and fails if it disagrees with the other operators about
        # oneDNN (RNNStorageType in mxnet/src/operator/rnn.cc).
        os.environ.setdefault(ONEDNN_RNN, "0")
    if not _prepared:
        _workspaces_error = LIBRARY.give_cpu_contexts_workspaces(_LIBMXNET)
        _openblas_error = _use_openblas()
        _prepared = True
        _choice = "the program called prepare_cpu_contexts()"
    if too_late:
        raise RuntimeError(
            "operators of MXNet ran before CPU contexts were prepared, so oneDNN stays in effect. "
            f"{_RESTART} import gluon_syncbn or call {_PREPARE}"
        )


def prepare_at_import() -> None:
    """Prepare CPU contexts if the machine or the user wants it; warn of what cannot work."""
    global _choice  # noqa: PLW0603
    wanted, why = _choose()
    try:
        if wanted:
            prepare_cpu_contexts()
        elif _gpus_here() and (problem := gpu_contexts.find_problem()):
            raise RuntimeError(
                f"there is an NVIDIA GPU, but GPU contexts of gluon_syncbn do not work: {problem}"
            )
    except RuntimeError as error:
        warnings.warn(str(error), UserWarning, stacklevel=4)
    _choice = why


def _choose() -> tuple[bool, str]:
    """Decide whether the import prepares CPU contexts, and say why."""
    wanted = switch("GLUON_SYNCBN_CPU_CONTEXTS")
    if wanted is not None:
        return wanted, f"GLUON_SYNCBN_CPU_CONTEXTS is {int(wanted)}"
    if _gpus_here():
        return False, "MXNet was built for CUDA and there is an NVIDIA GPU"
    return True, "MXNet was built without CUDA, or there is no NVIDIA GPU"


def _gpus_here() -> bool:
    # CUDA is not asked, because a process that has called it cannot use GPUs after a fork.
    return mx.runtime.Features().is_enabled("CUDA") and any(map(glob.glob, _GPU_FILES))


def _use_openblas() -> str | None:
    """Compute MXNet's matrix products in scipy-openblas32; return why not, if that fails.

    MXNet's own OpenBLAS dates from 2020 and has no kernels for AVX-512 or later processors. Without
    oneDNN, convolutions are such products.
    """
    path, problem = None, None
    # An import would load the library for the whole process.
    package = importlib.util.find_spec("scipy_openblas32")
    if switch("GLUON_SYNCBN_OPENBLAS") is False:
        problem = "GLUON_SYNCBN_OPENBLAS is 0"
    elif package is None or package.origin is None:
        problem = "it is not installed"
    else:
        path = os.fsencode(Path(package.origin).with_name("lib") / "libscipy_openblas.so")
    error = LIBRARY.use_openblas(_LIBMXNET, path)
    return error or problem


def find_problem(several: bool) -> str | None:
    """Say why operators on CPU contexts are not safe, and what to do; None if all is well.

    If `several` devices of this process wait for each other, they need their own workspaces.
    """
    onednn = _onednn_is_in_effect()
    if not _prepared and (several or onednn):
        call = f"{_RESTART} call" if onednn else "Call"
        return (
            f"CPU contexts are not prepared, because {_choice}. {call} {_PREPARE}, or set the "
            "environment variable GLUON_SYNCBN_CPU_CONTEXTS=1 before gluon_syncbn is imported"
        )
    if onednn:
        return (
            "oneDNN is in effect, and its array layouts cannot be passed to an asynchronous "
            f"operator on CPU contexts. {_RESTART} import gluon_syncbn or call {_PREPARE}, with "
            f"the environment variable {ONEDNN}=0"
        )
    if not several:
        return None
    if os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine":
        return "MXNET_ENGINE_TYPE=NaiveEngine cannot synchronize several devices"
    if _workspaces_error is not None:
        return (
            "several CPU contexts cannot have workspaces of their own with MXNet "
            f"{mx.__version__} of {mx.base._LIB._name}, and could wait for each other forever: "
            f"{_workspaces_error}. Use one CPU context, or install MXNet 1.9.1 from its packages"
        )
    return None


def describe() -> dict[str, str]:
    """Say for ``diagnose`` which preparations are in effect, and why."""
    shared, kept = _workspaces_error, _openblas_error
    if not _prepared:
        shared = kept = "CPU contexts are not prepared"
        LIBRARY.use_openblas(_LIBMXNET, None)  # only finds the library of the products
    products = LIBRARY.blas()
    return {
        "CPU contexts": f"{'' if _prepared else 'not '}prepared: {_choice}",
        "oneDNN": "in effect" if _onednn_is_in_effect() else "off",
        "workspaces of CPU contexts": f"shared: {shared}" if shared else "own",
        "matrix products on CPU contexts": products
        + (f"; not scipy-openblas32: {kept}" if kept else ""),
    }


def _onednn_is_in_effect() -> bool:
    """Find out whether a convolution returns an array in a layout of oneDNN.

    MXNet joins the operators that one thread calls, and an error of one fails all of them. So a new
    thread runs this convolution alone.
    """
    errors: list[Exception] = []
    # Unlike a ThreadPoolExecutor, a thread can start in a handler of atexit.
    thread = threading.Thread(target=_export_convolution, args=(errors,))
    thread.start()
    thread.join()
    for error in errors:
        if isinstance(error, mx.base.MXNetError) and _LAYOUT_ERROR in str(error):
            return True
        raise error
    return False


def _export_convolution(errors: list[Exception]) -> None:
    try:
        data = mx.nd.ones((1, 16, 8, 8), ctx=mx.cpu())
        weight = mx.nd.ones((16, 16, 3, 3), ctx=mx.cpu())
        # A node of a graph, because mixed precision changes the dtypes of MXNet's functions.
        graph = Graph(mx.sym.var("data"))
        inputs = [[0, 0, 0], [graph.add("null", "weight", []), 0, 0]]
        options = {"kernel": (3, 3), "num_filter": 16, "no_bias": True}
        graph.heads = [[graph.add("Convolution", "convolution", inputs, **options), 0, 0]]
        mx.nd.CachedOp(graph.to_symbol())(data, weight).to_dlpack_for_read()
    except Exception as error:
        errors.append(error)
