"""Compare the parameters of all devices, and average running statistics that differ."""

from __future__ import annotations

import weakref
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import gluon

from .. import processes
from ..naming import name_of
from ..norms import norms_of
from .gathering import set_everywhere

# Beyond the keys of any trainer, which counts parameters from 0.
_FIRST_KEY = 10**6
_keys: weakref.WeakKeyDictionary[Any, dict[int, int]] = weakref.WeakKeyDictionary()


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


def average_statistics(net: gluon.Block, kvstore: Any = None) -> None:
    """Average the running statistics of a network over its contexts, and over processes.

    Devices or workers have statistics of their own with plain BatchNorm, with `sync_group_size`, or
    with a parameter server. Call this function before you save or validate such a network. All
    contexts of all processes then hold the plain means of the running means and variances: every
    device has the same weight, however many images it had. A mean of variances misses the variance
    between the devices; :func:`gluon_syncbn.update_statistics` computes the variances of a whole
    data set. Waits until all devices are done.

    Parameters
    ----------
    net : Block
        An initialized network with BatchNorms, of any class or operator.
    kvstore : mxnet.kvstore.KVStore, optional
        The ``dist_sync`` store of the trainer, which has to have ``update_on_kvstore=False``. All
        workers call this function with the same network. By default, the processes of
        :func:`gluon_syncbn.init` take part, or this process alone.

    Raises
    ------
    TypeError
        If `kvstore` is no KVStore, such as the name of one.
    ValueError
        If `net` has no BatchNorm, or `kvstore` updates parameters itself.
    RuntimeError
        If a parameter is not initialized.
    """
    parameters = [each for n in norms_of(net) for each in (n.running_mean, n.running_var)]
    if not parameters:
        raise ValueError(f"{name_of(net)} has no BatchNorm, whose statistics could be averaged")
    if kvstore is not None and not isinstance(kvstore, mx.kv.KVStore):
        raise TypeError(
            f"kvstore={kvstore!r} should be the KVStore of the trainer: give the trainer the "
            "result of mx.kv.create, and this function the same"
        )
    means = [
        np.mean([array.asnumpy() for array in each.list_data()], axis=0, dtype=np.float64)
        for each in parameters
    ]
    values = np.concatenate(means)
    process_set = processes.default()
    if kvstore is not None:
        values = _average_over_workers(values, kvstore)
    elif process_set is not None:
        values = processes.gather(values, process_set).mean(axis=0)
    ends = np.cumsum([len(each) for each in means])
    set_everywhere(parameters, np.split(values, ends[:-1]))


def _average_over_workers(values: np.ndarray, store: Any) -> np.ndarray:
    """Let the server add the values of all workers, and divide."""
    # The 1 at the end becomes the number of workers, unless the server takes a push for a gradient.
    array = mx.nd.array(np.append(values, 1), mx.cpu(), "float64")
    keys = _keys.setdefault(store, {})
    if array.size not in keys:
        keys[array.size] = _FIRST_KEY + len(keys)
        store.init(keys[array.size], mx.nd.zeros_like(array))
    store.push(keys[array.size], array)
    store.pull(keys[array.size], array)
    *total, workers = array.asnumpy()
    if workers != store.num_workers:
        raise ValueError(
            f"kvstore={store} takes a push for a gradient: give the trainer "
            "update_on_kvstore=False, so that the store adds statistics"
        )
    return np.asarray(total) / workers
