"""Horovod's trainer for processes that use several contexts each."""

from __future__ import annotations

from typing import Any

from ..mxnet_versions import context_of
from .horovod import require_horovod

hvd: Any = require_horovod()


class DistributedTrainer(hvd.DistributedTrainer):
    """Horovod's ``DistributedTrainer``, which also sums over the contexts of a process.

    Horovod's own trainer exchanges only the gradients of the first context. The other contexts use
    their own gradients, and drift apart. This trainer first sums the gradients over the contexts,
    and gives all contexts the average of the processes. With one context per process it does what
    Horovod's own trainer does.

    As in Horovod, ``step(batch_size)`` also divides by the number of processes. `batch_size` is the
    size of the whole batch divided by the number of processes, even if their shares differ.

    Parameters
    ----------
    *args, **kwargs
        The arguments of ``horovod.mxnet.DistributedTrainer``.

    Raises
    ------
    ImportError
        On import of this module, if there is no Horovod that was built for MXNet.
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
