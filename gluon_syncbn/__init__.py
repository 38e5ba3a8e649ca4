"""Synchronized batch normalization for Apache MXNet: many devices normalize as one.

Importing this package registers the operator ``SyncBatchNorm`` with MXNet, so that symbols exported
from networks with :class:`SyncBatchNorm` load in any process that has imported it.
"""

from ._version import __version__
from .block import SyncBatchNorm
from .runtime import get_timeout, set_timeout

__all__ = ["SyncBatchNorm", "__version__", "get_timeout", "set_timeout"]
