"""Finds MXNet and the native library, and registers the operator."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib.util
import numbers
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet as mx

from . import cpu_contexts, missing_gpus

if TYPE_CHECKING:
    from collections.abc import Callable

_ArrayVisitor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_LiveArrays = ctypes.CFUNCTYPE(None, _ArrayVisitor)
_CpuContextCheck = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(ctypes.c_char), ctypes.c_int)

_TEXT = ctypes.c_char_p
# What each function of the library returns and takes; text is an error, or what the name says.
_FUNCTIONS = {
    "add_process_set": (_TEXT, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, _TEXT),
    "blas": (_TEXT,),
    "build_info": (_TEXT,),
    "drop_step": (_TEXT,),
    "give_cpu_contexts_pools": (_TEXT, _TEXT),
    "gpu_build": (_TEXT,),
    "gpu_devices": (_TEXT,),
    "leave_processes": (_TEXT,),
    "num_keys": (ctypes.c_size_t,),
    "register": (_TEXT, _TEXT, _CpuContextCheck, _LiveArrays),
    "retire": (_TEXT,),
    "set_timeout": (None, ctypes.c_double),
    "timeout": (ctypes.c_double,),
    "use_openblas": (_TEXT, _TEXT, _TEXT),
    "wait_for_errors": (None,),
}


def library_path() -> Path:
    """Path of this package's native library, or of ``GLUON_SYNCBN_LIBRARY`` in tests."""
    other = os.environ.get("GLUON_SYNCBN_LIBRARY")
    return Path(other) if other else Path(__file__).with_name("libgluon_syncbn.so")


def _load_library() -> ctypes.CDLL:
    path = library_path()
    if not path.exists():
        raise ImportError(
            f"gluon_syncbn was installed without its native library {path}; "
            "build and install it with: pip install ."
        )
    # The operator outlives this module: MXNet calls it until the process ends.
    library = ctypes.CDLL(str(path))
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, f"gluon_syncbn_{name}")
        function.restype, function.argtypes = result, arguments
        function.errcheck = _decoded
    return library


def _decoded(value: Any, *_: object) -> Any:
    return value.decode() if isinstance(value, bytes) else value


@_CpuContextCheck
def _check_cpu_contexts(several: int, message: ctypes.Array, size: int) -> None:
    try:
        problem = cpu_contexts.find_problem(several=bool(several))
    except Exception as error:  # an exception cannot leave through native code
        problem = f"the settings for CPU contexts could not be checked: {error!r}"
    text = (problem or "").encode()[: size - 1]
    ctypes.memmove(message, text + b"\0", len(text) + 1)


@_LiveArrays
def _visit_live_arrays(visitor: Callable[[int], None]) -> None:
    arrays = [each for each in gc.get_objects() if issubclass(type(each), mx.nd.NDArray)]
    for array in arrays:
        gradient = array.grad  # the program may not hold it
        visitor(array.handle)
        if gradient is not None:
            visitor(gradient.handle)


def set_timeout(seconds: float) -> None:
    """Set how long a device waits for the others.

    After a tenth of this time, a warning names the missing devices. At the end, every waiting
    device gets an ``MXNetError`` with the layer, the round, the devices that came, the missing ones
    and the usual causes. The next step works.

    Parameters
    ----------
    seconds : float
        Seconds from the arrival of the first device; 0 waits forever. The default is 300, or the
        environment variable ``GLUON_SYNCBN_TIMEOUT`` at import.

    Raises
    ------
    ValueError
        If `seconds` is negative or not a finite number.
    """
    is_number = isinstance(seconds, numbers.Real)
    if not is_number or not 0 <= seconds < float("inf"):
        raise ValueError(f"seconds={seconds!r} should be a finite number, 0 or greater")
    _LIBRARY.gluon_syncbn_set_timeout(float(seconds))


def get_timeout() -> float:
    """Return how many seconds a device waits for the others; 0 means forever."""
    return _LIBRARY.gluon_syncbn_timeout()


def drop_step() -> None:
    """Forget a step that was broken off, so that the next one is whole.

    If a step ends after the call of one device and before that of the next (a stopped cell of a
    notebook, an exception that is caught), the first device waits for the second, and would meet
    its call of the next step. This function waits until all that can still run has run, makes the
    devices that wait give up, and takes their errors. It takes about a second if there are any.

    Raises
    ------
    MXNetError
        If another operation has failed.
    """
    error = _LIBRARY.gluon_syncbn_drop_step()
    if error is not None:
        raise mx.base.MXNetError(error)


def num_keys() -> int:
    """Count the keys under which imperative operators synchronize now."""
    return _LIBRARY.gluon_syncbn_num_keys()


def add_process_set(
    allgather: ctypes.c_void_p, process_set: int, rank: int, size: int, ranks: str
) -> None:
    """Register one of Horovod's process sets with the operators.

    `allgather` is ``horovod_mxnet_allgather_async``. `rank` and `size` are this process's number in
    the set and the size of the set, and `ranks` has the ranks in the whole job, for messages.
    """
    words = ranks.encode()
    error = _LIBRARY.gluon_syncbn_add_process_set(allgather, process_set, rank, size, words)
    if error is not None:
        raise RuntimeError(f"process set {process_set} could not be added: {error}")


def leave_processes() -> None:
    """Start no more exchanges with other processes, because Horovod shuts down."""
    _EXPECTED_AT_EXIT.append(_LIBRARY.gluon_syncbn_leave_processes())


def _use_openblas() -> str | None:
    """Compute MXNet's matrix products in scipy-openblas32; return why not, if that fails.

    MXNet's own OpenBLAS dates from 2020. It has no kernels for AVX-512 or later processors, and
    several CPU contexts with several threads each can hang in it. Without oneDNN all networks
    depend on OpenBLAS, so the import replaces it, before the first convolution.
    """
    path, problem = None, None
    package = importlib.util.find_spec("scipy_openblas32")  # importing it would load it for all
    if os.environ.get("GLUON_SYNCBN_OPENBLAS") == "0":
        problem = "GLUON_SYNCBN_OPENBLAS is 0"
    elif package is None or package.origin is None:
        problem = "it is not installed"
    else:
        path = os.fsencode(Path(package.origin).with_name("lib") / "libscipy_openblas.so")
    error = _LIBRARY.gluon_syncbn_use_openblas(mx.base._LIB._name.encode(), path)
    return problem if error is None else error


def blas() -> str:
    """Name the library of MXNet's matrix products; if not scipy-openblas32, say why."""
    found = _LIBRARY.gluon_syncbn_blas()
    return found if _no_openblas is None else f"{found}; not scipy-openblas32: {_no_openblas}"


def build_info() -> str:
    """Version and compiler of the native library."""
    return _LIBRARY.gluon_syncbn_build_info()


def gpu_build() -> str:
    """CUDA version and architectures of the native library, or how to build it with CUDA."""
    return _LIBRARY.gluon_syncbn_gpu_build()


def gpu_devices() -> str:
    """Names of the GPUs that the native library finds, or why it finds none."""
    return _LIBRARY.gluon_syncbn_gpu_devices()


def _at_exit() -> None:
    """End all waiting at the end of the process, because MXNet would wait for it."""
    _EXPECTED_AT_EXIT.append(_LIBRARY.gluon_syncbn_retire())
    try:
        mx.nd.waitall()
    except mx.base.MXNetError as error:
        if not any(words in str(error) for words in _EXPECTED_AT_EXIT):
            raise
    finally:
        _LIBRARY.gluon_syncbn_wait_for_errors()


def _operators_have_run() -> bool:
    """Whether MXNet has started its engine, as its first operator does."""
    # Set when the engine makes its first BulkStatus, for any thread.
    store = "_ZGVZN4dmlc16ThreadLocalStoreIN5mxnet6engine14ThreadedEngine10BulkStatusEE"
    try:
        return bool(ctypes.c_uint8.in_dll(mx.base._LIB, f"{store}9SingletonEvE4inst").value)
    except ValueError:  # another build of MXNet; the first call of a layer finds it then
        return False


def _warn_of_operators_before() -> None:
    """Warn if the settings came too late, as in a notebook."""
    problem = cpu_contexts.find_problem(several=False)
    if problem is not None:
        warnings.warn(
            "operators of MXNet ran before gluon_syncbn was imported, so that its settings for CPU "
            "contexts came too late. Restart Python (in a notebook, the kernel) and import "
            f"gluon_syncbn first. What is wrong: {problem}",
            UserWarning,
            stacklevel=3,
        )


_LIBRARY = _load_library()
_too_late = "MXNET_MKLDNN_ENABLED" not in os.environ and _operators_have_run()
_EXPECTED_AT_EXIT: list[str] = []  # errors of operations that come too late
cpu_contexts.prepare(_LIBRARY)
_no_openblas = _use_openblas()  # before registering, which adds a handler of forks
_error = _LIBRARY.gluon_syncbn_register(
    mx.base._LIB._name.encode(), _check_cpu_contexts, _visit_live_arrays
)
if _error is not None:
    raise ImportError(f"gluon_syncbn could not register its operator: {_error}")
if mx.runtime.Features().is_enabled("CUDA"):
    missing_gpus.refuse()
atexit.register(_at_exit)  # behind MXNet's own handler, and so called before it
if "GLUON_SYNCBN_TIMEOUT" in os.environ:
    try:
        set_timeout(float(os.environ["GLUON_SYNCBN_TIMEOUT"]))
    except ValueError as error:
        raise ImportError(f"environment variable GLUON_SYNCBN_TIMEOUT: {error}") from error
if _too_late:
    _warn_of_operators_before()
