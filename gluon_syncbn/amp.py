"""How ``mxnet.contrib.amp`` is told that SyncBatchNorm takes data of either precision."""

from __future__ import annotations

__all__ = ["amp_fp32_ops"]


def amp_fp32_ops() -> list[str]:
    """Return MXNet's list of operators that mixed precision keeps in float32, less custom ones.

    By default ``mxnet.contrib.amp`` casts the data of every custom operator, and so of
    SyncBatchNorm, to float32: right, but with twice the memory and a cast on either side. With this
    list the data stays float16 through SyncBatchNorm; parameters and statistics stay float32. The
    list holds for all custom operators of the process or the network.

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
    # Here, because MXNet does not load it on import either.
    from mxnet.contrib import amp

    return [name for name in amp.list_fp32_ops("float16") if name != "Custom"]
