"""Raise an error for a GPU context that does not exist, where MXNet would end the process."""

from __future__ import annotations

import functools
from typing import Any, Callable

import mxnet as mx
from mxnet import gluon

from . import driver

__all__ = ["refuse"]


def refuse() -> None:
    """Make parameters of all networks refuse GPU contexts that do not exist.

    In MXNet for CUDA the first array on such a context ends the process. That is seldom a parameter
    of this package, so this function changes ``gluon.Parameter``.
    """
    for name in ("initialize", "reset_ctx", "_load_init"):
        setattr(gluon.Parameter, name, _checked(getattr(gluon.Parameter, name)))


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    # The position of `ctx`: initialize(init, ctx), _load_init(data, ctx), reset_ctx(ctx).
    position = 0 if method.__name__ == "reset_ctx" else 1

    @functools.wraps(method)
    def checked(self: gluon.Parameter, *args: Any, **kwargs: Any) -> Any:
        contexts = args[position] if len(args) > position else kwargs.get("ctx")
        if contexts is None:
            contexts = mx.current_context()
        for context in [contexts] if isinstance(contexts, mx.Context) else contexts:
            _require(context, self.name)
        return method(self, *args, **kwargs)

    return checked


def _require(context: mx.Context, parameter: str) -> None:
    if context.device_type != "gpu":
        return
    number = driver.count_gpus()
    if number == 0 and driver.is_forked():
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
