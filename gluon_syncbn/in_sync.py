"""Tell whether all devices hold the same parameters."""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet import gluon

__all__ = ["check_in_sync"]


def check_in_sync(net: gluon.Block) -> dict[str, str]:
    """Compare the parameters and running statistics of a network across its contexts, bit by bit.

    Waits for what the devices are still doing.

    Parameters
    ----------
    net : Block
        An initialized network.

    Returns
    -------
    dict of str to str
        For each parameter that is not the same everywhere: the contexts that differ from the first
        one, and by how much at most. Empty if all devices are in sync.

    Raises
    ------
    RuntimeError
        If a parameter is not initialized.
    """
    mx.nd.waitall()
    differences = {}
    for name, parameter in net.collect_params().items():
        first, *others = [array.asnumpy() for array in parameter.list_data()]
        differing = [
            f"{context} by {_largest_difference(first, other):.3g}"
            for context, other in zip(parameter.list_ctx()[1:], others)
            if other.tobytes() != first.tobytes()
        ]
        if differing:
            differences[name] = f"from {parameter.list_ctx()[0]}: {', '.join(differing)}"
    return differences


def _largest_difference(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max())
