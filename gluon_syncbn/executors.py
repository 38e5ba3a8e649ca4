"""Let the queued passes of an executor of MXNet 1.9.1 keep their mode."""

from __future__ import annotations

import functools
from typing import Any

import mxnet as mx

from .mxnet_versions import IS_2
from .symbols.graph import Graph


def keep_modes() -> None:
    """Let ``Executor.forward`` wait for the last pass if it changes between training and inference.

    An operation reads the mode when it runs. All passes of an executor share it (``RunOps`` in
    mxnet/src/executor/graph_executor.cc). So ``forward_backward; update; forward(is_train=False)``
    of a Module would turn the training pass into inference on the devices that have not run it yet,
    and the other devices would wait for them. Executors without the layer stay as they are.
    """
    if IS_2:  # which has another executor
        return
    forward = mx.executor.Executor.forward

    @functools.wraps(forward)
    def wait_and_forward(self: Any, is_train: bool = False, **arrays: Any) -> Any:
        changes = is_train != getattr(self, "_gluon_syncbn_mode", is_train)
        if changes and Graph(self._symbol).norms():
            for output in self.outputs:
                output.wait_to_read()
        self._gluon_syncbn_mode = is_train
        return forward(self, is_train, **arrays)

    mx.executor.Executor.forward = wait_and_forward
