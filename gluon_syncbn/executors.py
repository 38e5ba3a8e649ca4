"""Let the queued passes of an executor of MXNet 1.9.1 keep their mode."""

from __future__ import annotations

import functools
from typing import Any

from .mxnet_versions import EXECUTOR
from .symbols.graph import Graph


def keep_modes() -> None:
    """Let ``Executor.forward`` wait for the last pass if it changes between training and inference.

    An operation reads the mode when it runs. All passes of an executor share it (``RunOps`` in
    mxnet/src/executor/graph_executor.cc). So ``forward_backward; update; forward(is_train=False)``
    of a Module would turn the training pass into inference on the devices that have not run it yet,
    and the other devices would wait for them. Executors without the layer stay as they are.
    """
    if EXECUTOR is None:
        return
    forward = EXECUTOR.forward

    @functools.wraps(forward)
    def wait_and_forward(self: Any, is_train: bool = False, **arrays: Any) -> Any:
        if is_train != getattr(self, "_gluon_syncbn_mode", is_train) and _has_layer(self):
            for output in self.outputs:
                output.wait_to_read()
        self._gluon_syncbn_mode = is_train
        return forward(self, is_train, **arrays)

    EXECUTOR.forward = wait_and_forward


def _has_layer(executor: Any) -> bool:
    return bool(Graph(executor._symbol).norms())
