"""Synchronized batch normalization for Apache MXNet: many devices normalize as one.

Importing this package registers the operator ``SyncBatchNorm`` with MXNet, so that symbols exported
from networks with :class:`SyncBatchNorm` load in any process that has imported it.
"""

import _gluon_syncbn_nvidia as _nvidia  # where Python has not read gluon_syncbn.pth

try:
    import mxnet as _mxnet
except _nvidia.LibraryError:
    raise
except (ImportError, OSError) as error:
    raise ImportError(
        "gluon_syncbn needs Apache MXNet 1.9.1, which could not be imported: "
        f"{error}. Install it together with gluon_syncbn, in one call, so that pip picks a NumPy "
        "that MXNet can use: pip install 'gluon_syncbn[cpu]' or 'gluon_syncbn[cu112]'."
    ) from error
if not _mxnet.__version__.startswith("1.9.1"):
    raise ImportError(f"gluon_syncbn needs MXNet 1.9.1; this is MXNet {_mxnet.__version__}")

from ._native import get_timeout, set_timeout
from ._version import __version__
from .amp import amp_fp32_ops
from .block import SyncBatchNorm
from .convert import convert_sync_batchnorm, revert_sync_batchnorm
from .export import export, to_batchnorm
from .fold import fold_batchnorm
from .fuse import fuse
from .horovod import init
from .in_sync import check_in_sync
from .update_statistics import update_statistics

__all__ = [
    "SyncBatchNorm",
    "__version__",
    "amp_fp32_ops",
    "check_in_sync",
    "convert_sync_batchnorm",
    "export",
    "fold_batchnorm",
    "fuse",
    "get_timeout",
    "init",
    "revert_sync_batchnorm",
    "set_timeout",
    "to_batchnorm",
    "update_statistics",
]
