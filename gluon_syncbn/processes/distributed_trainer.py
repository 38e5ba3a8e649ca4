"""Horovod's trainer for processes that use several contexts each."""

from __future__ import annotations

from typing import Any

from ..mxnet_versions import context_of
from .horovod import require_horovod

hvd: Any = require_horovod()


class DistributedTrainer(hvd.DistributedTrainer):
    """Horovod's ``DistributedTrainer``, which also sums over the contexts of a process.

    Horovod's own trainer exchanges only the gradients of the first context. The other contexts use
    their own gradients, and drift apart. This trainer sums the gradients over the contexts and the
    processes. With one context per process it does what Horovod's own trainer does.

    As in Horovod, ``step(batch_size)`` divides the sum by the number of processes too. `batch_size`
    is the size of the whole batch divided by that number, even if processes have unequal shares.

    Parameters
    ----------
    *args, **kwargs
        The arguments of ``horovod.mxnet.DistributedTrainer``.

    Raises
    ------
    ImportError
        At its first use, if there is no Horovod that was built for MXNet.
    """

    def _allreduce_grads(self) -> None:
        spread = [
            parameter.list_grad()
            for parameter in self._params
            if parameter.grad_req != "null" and len(parameter.list_grad()) > 1
        ]
        for first, *others in spread:
            for other in others:
                first[:] += other.as_in_context(context_of(first))
        super()._allreduce_grads()
        for first, *others in spread:
            for other in others:
                first.copyto(other)
