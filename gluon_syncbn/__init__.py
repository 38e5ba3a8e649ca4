"""Synchronized batch normalization for Apache MXNet.

The import registers the operator ``SyncBatchNorm`` with MXNet. Exported networks with
:class:`SyncBatchNorm` load in any process that has imported this package.
"""

import os as _os
import sys as _sys

from . import nvidia_libraries as _nvidia_libraries
from . import options as _options

if _options.is_command():
    _options.parse(*_sys.argv[1:])  # --help, --version and mistakes, before MXNet takes seconds

try:
    try:
        import mxnet as _mxnet
    except OSError:
        _nvidia_libraries.load()
        import mxnet as _mxnet
except (ImportError, OSError, AttributeError) as error:
    from .diagnose.report import explain as _explain
    from .diagnose.report import failed_import as _failed_import

    _explained = isinstance(error, _nvidia_libraries.LibraryError)
    _told = error if _explained else ImportError(_explain(error))
    raise _failed_import(_told) from error

try:
    from . import library as _library  # noqa: F401
except (ImportError, OSError) as error:
    from .diagnose.report import failed_import as _failed_import

    raise _failed_import(error) from None

if not _mxnet.__version__.startswith(("1.9.1", "2.")):
    raise ImportError(f"gluon_syncbn needs MXNet 1.9.1 or 2; this is MXNet {_mxnet.__version__}")

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from ._version import __version__
from .amp import amp_fp32_ops
from .block import SyncBatchNorm
from .convert import convert_sync_batchnorm, revert_sync_batchnorm
from .cpu_contexts import prepare_cpu_contexts
from .environment import warn_of_unknown as _warn_of_unknown
from .processes import init
from .registration import start as _start
from .statistics.devices import average_statistics, check_in_sync
from .statistics.whole_data_set import update_statistics
from .symbols.exporting import export, to_batchnorm
from .symbols.folding import fold_batchnorm
from .symbols.fusing import fuse
from .timeout import drop_step, get_timeout, set_timeout
from .torch_weights import load_torch

if _TYPE_CHECKING:
    from .processes.distributed_trainer import DistributedTrainer as DistributedTrainer

__all__ = [
    "SyncBatchNorm",
    "__version__",
    "amp_fp32_ops",
    "average_statistics",
    "check_in_sync",
    "convert_sync_batchnorm",
    "drop_step",
    "export",
    "fold_batchnorm",
    "fuse",
    "get_timeout",
    "init",
    "load_torch",
    "prepare_cpu_contexts",
    "revert_sync_batchnorm",
    "set_timeout",
    "to_batchnorm",
    "update_statistics",
]

_warn_of_unknown()
if "GLUON_SYNCBN_RUN" in _os.environ:  # gluon-syncbn run has started the program
    from .run.preparation import prepare as _prepare

    _prepare()
_start()


def __getattr__(name: str) -> _Any:
    """Import the trainer at its first use, because it needs Horovod."""
    if name != "DistributedTrainer":
        raise AttributeError(name)
    from .processes.distributed_trainer import DistributedTrainer

    return DistributedTrainer
