"""Synchronize several processes over Horovod."""

from __future__ import annotations

import atexit
import ctypes
from typing import Any

import mxnet as mx
import numpy as np

from ..library import LIBRARY, PAGES
from ..mxnet_versions import new_array

_SHOWN_RANKS = 16

# By the number of the set: the set, its ranks, and the rank of this process in it.
_registered: dict[int, tuple[Any, list[int], int]] = {}
_default: int | None = None


def init(process_set: Any = None) -> None:
    """Make every layer synchronize the devices of all processes.

    Call it in all processes, after ``horovod.mxnet.init()`` and before the first call of a network.
    ``num_devices`` stays the number of devices of this process. A layer with its own `process_set`
    keeps it. After another call with other processes, call ``hybridize()`` of a network again. An
    imported network joins by :func:`gluon_syncbn.convert_sync_batchnorm`.

    Parameters
    ----------
    process_set : horovod.mxnet.ProcessSet, optional
        The processes to synchronize, including this one. By default, all.

    Raises
    ------
    ImportError
        If there is no Horovod that was built for MXNet.
    RuntimeError
        If Horovod has not been initialized.
    ValueError
        If Horovod does not know `process_set`, or this process is not in it.
    """
    global _default  # noqa: PLW0603
    _default = register(process_set)


def default() -> int | None:
    """Return the number of the set that :func:`init` registered; None for this process alone."""
    return _default


def register(process_set: Any = None) -> int | None:
    """Register a process set with the native library, by default all processes.

    Returns Horovod's number of the set, or None if this process is alone in it. Raises as `init`.
    """
    hvd = require_horovod()
    if not hvd.is_initialized():
        raise RuntimeError(
            "Horovod has not been initialized; call horovod.mxnet.init() before gluon_syncbn "
            "synchronizes with other processes"
        )
    chosen = hvd.global_process_set if process_set is None else process_set
    number = getattr(chosen, "process_set_id", None)
    if number is None:
        raise ValueError(
            f"process_set={process_set!r} should be a horovod.mxnet.ProcessSet that Horovod knows; "
            "give it to horovod.mxnet.init(process_sets=[...])"
        )
    if chosen.ranks is not None and not chosen.included():
        raise ValueError(
            f"process_set={chosen} does not include this process, which has rank {hvd.rank()}"
        )
    # A graph that was traced before may use the number.
    if chosen.size() == 1 and number not in _registered:
        return None
    ranks = list(chosen.ranks or [])
    added = chosen, ranks, chosen.rank()
    if _registered.get(number) == added:
        return int(number)
    if not _registered:
        # Registered after Horovod's handler, so called before it. Otherwise MXNet would wait
        # forever for exchanges that no other process joins.
        atexit.register(_leave)
    from horovod.mxnet.mpi_ops import MPI_MXNET_LIB_CTYPES

    text = ", ".join(map(str, ranks[:_SHOWN_RANKS]))
    text = f"{text}, ..." if len(ranks) > _SHOWN_RANKS else text or "unknown"
    function = ctypes.cast(MPI_MXNET_LIB_CTYPES.horovod_mxnet_allgather_async, ctypes.c_void_p)
    error = LIBRARY.add_process_set(function, number, chosen.rank(), chosen.size(), text.encode())
    if error is not None:
        raise RuntimeError(f"process set {number} could not be added: {error}")
    _registered[number] = added
    return int(number)


def gather(values: np.ndarray, number: int) -> np.ndarray:
    """Return the values of all processes of a set, in the order of ranks; all have one shape."""
    mine = new_array(values[None], mx.cpu(), "float64")
    gathered = require_horovod().allgather(
        mine, name="gluon_syncbn.gather", process_set=_registered[number][0]
    )
    return np.asarray(gathered.asnumpy())


def require_horovod() -> Any:
    """Return ``horovod.mxnet``, or raise an `ImportError` that says how to install it."""
    try:
        import horovod.mxnet
    except ImportError as error:
        raise ImportError(
            "synchronizing with other processes needs Horovod 0.28.1 built for MXNet, which could "
            f"not be imported: {error}. Install it where MXNet is installed, with a C++ compiler "
            "and CMake there: HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 pip install "
            f"--no-build-isolation horovod==0.28.1; see {PAGES / 'distributed.md'}"
        ) from error
    return horovod.mxnet


def _leave() -> None:
    LIBRARY.leave_processes()
    require_horovod().shutdown()
