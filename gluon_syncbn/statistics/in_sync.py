"""Compare the parameters of all devices."""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet import gluon

from ..norms import norms_of


def check_in_sync(net: gluon.Block) -> dict[str, str]:
    """Compare the parameters and running statistics of a network across its contexts, bit by bit.

    Waits until all devices are done. With `sync_group_size` the running statistics differ between
    groups, and the text says whether the devices of each group agree.

    Parameters
    ----------
    net : Block
        An initialized network.

    Returns
    -------
    dict of str to str
        For each parameter that differs: the contexts that differ from the first one, and the
        largest difference. Empty if all devices are in sync.

    Raises
    ------
    RuntimeError
        If a parameter is not initialized.
    """
    mx.nd.waitall()
    groups = {
        id(parameter): norm.sync_group_size
        for norm in norms_of(net)
        if norm.sync_group_size is not None
        for parameter in (norm.running_mean, norm.running_var)
    }
    differences = {}
    for name, parameter in net.collect_params().items():
        first, *others = arrays = [array.asnumpy() for array in parameter.list_data()]
        differing = [
            f"{context} by {np.abs(first.astype(float) - other.astype(float)).max():.3g}"
            for context, other in zip(parameter.list_ctx()[1:], others)
            if other.tobytes() != first.tobytes()
        ]
        if differing:
            differences[name] = f"from {parameter.list_ctx()[0]}: {', '.join(differing)}"
            if id(parameter) in groups:
                differences[name] += _describe_groups(arrays, groups[id(parameter)])
    return differences


def _describe_groups(arrays: list[np.ndarray], size: int) -> str:
    bits = [array.tobytes() for array in arrays]
    if all(len({*bits[first : first + size]}) == 1 for first in range(0, len(bits), size)):
        return f"; expected with sync_group_size={size}: each group agrees"
    return f"; the devices of a group differ too (sync_group_size={size})"
