"""Data of the programs in this folder, and the file that they leave."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from tests.support.either_mxnet import nd

ctx = [mx.cpu(0), mx.cpu(1)]
x, dy = (np.random.default_rng(i).normal(1, 2, (4, 4, 5, 5)) for i in range(2))


def split(values: np.ndarray) -> list[Any]:
    """Arrays of one image and of three."""
    return [nd.array(values[:1], ctx=ctx[0]), nd.array(values[1:], ctx=ctx[1])]


def save(outs: list[Any], **more: Any) -> None:
    """Write the arrays that tests/layer/test_run.py compares with one device."""
    joined = {
        name: np.concatenate([each.asnumpy() for each in arrays])
        for name, arrays in {"out": outs, **more}.items()
    }
    joined["out"] = joined["out"].reshape(x.shape)
    np.savez("found.npz", x=x, dy=dy, **joined)
