"""Mixed precision: ``mxnet.contrib.amp`` keeps the data of SyncBatchNorm in float16."""

from __future__ import annotations

import importlib
from types import ModuleType

from .mxnet_versions import IS_2


def mixed_precision() -> ModuleType:
    """Return MXNet's module of mixed precision, which MXNet does not load on import."""
    return importlib.import_module("mxnet.amp" if IS_2 else "mxnet.contrib.amp")


def amp_fp32_ops() -> list[str]:
    """Return MXNet's list of operators that mixed precision keeps in float32, without ``Custom``.

    By default ``mxnet.contrib.amp`` casts the data of every custom operator to float32, and so that
    of SyncBatchNorm. That is correct, but takes twice the memory and two casts. With this list the
    data stays float16; parameters and statistics stay float32. The list applies to all custom
    operators of the process or the network.

    Returns
    -------
    list of str
        For the argument ``fp32_ops`` of ``amp.init``, ``amp.convert_model`` and
        ``amp.convert_hybrid_block``, with target_dtype float16.

    Examples
    --------
    >>> import gluon_syncbn
    >>> from mxnet.contrib import amp
    >>> amp.init(fp32_ops=gluon_syncbn.amp_fp32_ops())
    """
    return [name for name in mixed_precision().list_fp32_ops("float16") if name != "Custom"]
