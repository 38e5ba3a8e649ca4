"""The names of MXNet 1.9.1 that tests use, for MXNet 2 too: the same tests run on both."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.mxnet_versions import IS_2
from mxnet import gluon

# For tests of what MXNet 2 does not have: Module, networks that are called with symbols or copied.
only_1 = pytest.mark.skipif(IS_2, reason="MXNet 2 has no such interface")


class _Functions:
    """For arrays of ``mx.np``, what ``mx.nd`` has for its own."""

    NDArray = mx.np.ndarray if IS_2 else mx.nd.NDArray
    load = staticmethod(mx.npx.load)
    square = staticmethod(mx.np.square)
    tanh = staticmethod(mx.np.tanh)
    waitall = staticmethod(mx.nd.waitall)
    where = staticmethod(mx.np.where)
    zeros_like = staticmethod(mx.np.zeros_like)
    dot = staticmethod(mx.np.dot)
    broadcast_mul = staticmethod(mx.np.multiply)
    npx = mx.npx
    Dropout = staticmethod(mx.npx.dropout)
    LeakyReLU = staticmethod(mx.npx.leaky_relu)
    Activation = staticmethod(mx.npx.activation)
    relu = staticmethod(mx.npx.relu)

    @property
    def random(self) -> _Functions:
        return self

    def array(self, values: Any, ctx: Any = None, dtype: Any = None) -> Any:
        if dtype is None:  # as mx.nd
            dtype = values.dtype if isinstance(values, mx.nd.NDArray) else "float32"
        values = values.asnumpy() if isinstance(values, mx.nd.NDArray) else np.asarray(values)
        return mx.np.array(values.astype(dtype), ctx=ctx or mx.current_context(), dtype=dtype)

    def full(self, shape: Any, value: float, ctx: Any = None, dtype: Any = "float32") -> Any:
        return mx.np.full(shape, value, ctx=ctx or mx.current_context(), dtype=dtype)

    def ones(self, shape: Any, ctx: Any = None, dtype: Any = "float32") -> Any:
        return self.full(shape, 1, ctx, dtype)

    def zeros(self, shape: Any, ctx: Any = None, dtype: Any = "float32") -> Any:
        return self.full(shape, 0, ctx, dtype)

    def normal(
        self, loc: float = 0, scale: float = 1, shape: Any = (), ctx: Any = None, dtype: Any = None
    ) -> Any:
        ctx = ctx or mx.current_context()
        # The fake CUDA has no generator for this (scripts/test.sh --cu112).
        where = mx.cpu() if ctx.device_type == "gpu" else ctx
        return mx.np.random.normal(loc, scale, shape, dtype, where).to_device(ctx)

    def uniform(
        self, low: float = 0, high: float = 1, shape: Any = (), ctx: Any = None, dtype: Any = None
    ) -> Any:
        where = {"device": ctx or mx.current_context()}
        return mx.np.random.uniform(low, high, shape, dtype=dtype, **where)

    def stack(self, *arrays: Any) -> Any:
        return mx.np.stack(arrays)

    def concat(self, *arrays: Any, dim: int = 1) -> Any:
        return mx.np.concatenate(arrays, axis=dim)

    def add_n(self, *arrays: Any) -> Any:
        return sum(arrays[1:], arrays[0])

    def Custom(self, *arrays: Any, **attributes: Any) -> Any:  # noqa: N802
        return mx.nd.np._internal.Custom(*arrays, **attributes)


nd: Any = _Functions() if IS_2 else mx.nd


class _HybridBlock2(gluon.HybridBlock):
    """Calls a subclass's ``hybrid_forward``, which may have no such name in MXNet 2."""

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        assert params is None
        super().__init__()

    def __init_subclass__(cls) -> None:
        if "hybrid_forward" in cls.__dict__:
            cls._compute = cls.hybrid_forward
            del cls.hybrid_forward

    def name_scope(self) -> Any:
        return contextlib.nullcontext()

    def forward(self, x: Any, *inputs: Any) -> Any:
        own = {name: each.data(x.device) for name, each in self._reg_params.items()}
        return self._compute(nd, x, *inputs, **own)


HybridBlock: Any = _HybridBlock2 if IS_2 else gluon.HybridBlock


@contextlib.contextmanager
def numpy_interface(active: bool = True) -> Iterator[None]:
    """``npx.set_np()``, which MXNet 2 has for good."""
    before = mx.util.is_np_shape(), mx.util.is_np_array()
    mx.npx.set_np(active, active)
    try:
        yield
    finally:
        mx.npx.set_np(*before)


def reset_ctx(net: gluon.Block, contexts: list) -> None:
    """Move the parameters of a network."""
    for parameter in net.collect_params().values():
        parameter.reset_ctx(contexts)


def error_of(call: Callable[[], Any]) -> str:
    """Return the message of MXNet's error, or "" if there is none."""
    try:
        call()
    except mx.base.MXNetError as error:
        return str(error)
    return ""


def on_a_thread(function: Callable[[], Any]) -> Any:
    """Return the result of `function` on a thread that lives for this call."""
    results = []

    def call() -> None:
        if IS_2:  # which has an interface per thread
            mx.npx.set_np()
        results.append(function())

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return results[0]
