"""Raise an error for a GPU context that does not exist, where MXNet would end the process."""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any, Callable

import mxnet as mx
from mxnet import gluon

_IMPORTED_IN = os.getpid()


def count_gpus() -> int:
    """Count the GPUs that MXNet can use; 0 if MXNet raises an error of the driver."""
    try:
        return int(mx.context.num_gpus())
    except mx.base.MXNetError:
        return 0


def refuse() -> None:
    """Make parameters of all networks refuse GPU contexts that do not exist.

    In MXNet for CUDA the first array on such a context ends the process. That is seldom a parameter
    of this package, so this function changes ``gluon.Parameter``.
    """
    for name in ("initialize", "reset_ctx", "_load_init"):
        setattr(gluon.Parameter, name, _checked(getattr(gluon.Parameter, name)))


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def checked(self: gluon.Parameter, *args: Any, **kwargs: Any) -> Any:
        contexts = signature.bind(self, *args, **kwargs).arguments.get("ctx")
        if contexts is None:
            contexts = mx.current_context()
        for context in [contexts] if isinstance(contexts, mx.Context) else contexts:
            if context.device_type == "gpu":
                _require(context, self.name)
        return method(self, *args, **kwargs)

    return checked


def _require(context: mx.Context, parameter: str) -> None:
    number = count_gpus()
    if number == 0 and os.getpid() != _IMPORTED_IN:
        raise mx.base.MXNetError(
            f"{parameter} cannot live on ctx={context}: MXNet finds no GPU in this forked process. "
            "CUDA serves no process that was forked after CUDA had been called; start this one "
            "with the method 'spawn' of multiprocessing"
        )
    if context.device_id >= number:
        raise mx.base.MXNetError(
            f"{parameter} cannot live on ctx={context}: MXNet finds {number} GPUs here; "
            "python -m gluon_syncbn diagnose says more"
        )
