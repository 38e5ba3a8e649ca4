"""Running statistics of a whole data set."""

from __future__ import annotations

import warnings
from collections import defaultdict
from typing import Any, Iterable, Iterator, Sequence, Sized

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from .. import processes
from ..block import SyncBatchNorm
from ..convert import blocks_of, norm_layers
from ..library import LIBRARY
from ..mxnet_versions import context_of, name_of


def update_statistics(
    net: gluon.Block,
    loader: Iterable[Any],
    ctx: Sequence[mx.Context] | None = None,
    progress: bool = True,
) -> None:
    """Compute the running statistics of a network over a whole data set.

    After training, the running statistics average the last batches, for which the weights still
    changed. This function runs the network over `loader` in training mode, without gradients. Every
    :class:`gluon_syncbn.SyncBatchNorm` gets the mean and the biased variance of all its inputs,
    each value with the same weight ("Precise BN" [1]_). Weights do not change.

    All devices get the same statistics, even with `sync_group_size`. With
    :func:`gluon_syncbn.init`, all processes call this function with their own parts of the data
    set, in the same number of batches. If anything fails, the statistics stay as they were.

    Parameters
    ----------
    net : Block
        An initialized network, hybridized or not. Instead of the result of
        :func:`gluon_syncbn.fuse`, give the original network: they share their statistics.
    loader : iterable
        Yields batches, such as a ``gluon.data.DataLoader``: arrays, or tuples that begin with one.
        Each batch is split over the contexts. A batch with fewer images than contexts joins the one
        before it.
    ctx : sequence of mxnet.Context, optional
        The contexts of the parameters, which is the default.
    progress : bool, default True
        Show a progress bar if tqdm is installed.

    Raises
    ------
    ValueError
        If `net` has no SyncBatchNorm, `ctx` has other contexts than the parameters, or `loader`
        has fewer images than there are contexts.
    TypeError
        If a batch does not begin with an array.

    References
    ----------
    .. [1] Y. Wu and J. Johnson, "Rethinking 'Batch' in BatchNorm", 2021, section 3.
    """
    layers = _layers(net)
    own = layers[0].running_mean.list_ctx()
    contexts = own if ctx is None else list(ctx)
    if sorted(map(str, contexts)) != sorted(map(str, own)):
        raise ValueError(f"ctx={contexts} should be the contexts of the parameters, {own}")
    hybrid = [block for block in blocks_of(net) if isinstance(block, gluon.HybridBlock)]
    active = [block._active for block in hybrid]
    seen: list[_Seen] = []
    done = False
    try:
        seen.extend(map(_Seen, layers))
        for block in hybrid:  # a compiled network calls no hooks of its layers
            block._active = False
        with autograd.pause(train_mode=True):
            for batch in _shown(_batches(loader, len(contexts)), loader, progress):
                for shard in gluon.utils.split_and_load(batch, contexts, even_split=False):
                    net(shard)
                for each in seen:
                    each.merge_waiting()
        _merge_processes(seen)
        done = True
    finally:
        if not done:
            # Fails devices that wait for others, and removes errors, which would keep the engine
            # from writing the statistics.
            LIBRARY.drop_step()
        for each in seen:
            each.leave(done)
        for block, was_active in zip(hybrid, active):
            block._active = was_active


def _layers(net: gluon.Block) -> list[SyncBatchNorm]:
    """Find the layers to update; warn of other norms, which keep their statistics."""
    gathering = [each for each in norm_layers(net) if not each._kwargs["use_global_stats"]]
    layers = [each for each in gathering if isinstance(each, SyncBatchNorm)]
    if not layers:
        raise ValueError(
            f"{name_of(net)} has no SyncBatchNorm that gathers statistics: convert it with "
            "gluon_syncbn.convert_sync_batchnorm, or give the network that it was fused from"
        )
    for each in gathering:
        if not isinstance(each, SyncBatchNorm):
            warnings.warn(
                f"{name_of(each)} keeps its statistics: {type(each).__name__} is no SyncBatchNorm",
                UserWarning,
                stacklevel=3,
            )
    return layers


def _batches(loader: Iterable[Any], fewest: int) -> Iterator[mx.nd.NDArray]:
    """Yield the arrays of `loader`; join one that has too few images for the devices."""
    held: Any = None
    for number, batch in enumerate(loader):
        data = batch[0] if isinstance(batch, (list, tuple)) and batch else batch
        if not isinstance(data, mx.nd.NDArray):
            raise TypeError(f"batch {number} of loader begins with {type(data).__name__}, no array")
        if held is not None and min(len(data), len(held)) >= fewest:
            yield held
            held = None
        if held is not None:
            numpy = isinstance(data, mx.np.ndarray)
            data = mx.np.concatenate([held, data]) if numpy else mx.nd.concat(held, data, dim=0)
        held = data
    if held is None or len(held) < fewest:
        number = 0 if held is None else len(held)
        raise ValueError(f"loader has {number} images where at least {fewest} are expected")
    yield held


def _shown(batches: Iterator[Any], loader: Iterable[Any], progress: bool) -> Iterable[Any]:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return batches
    total = len(loader) if isinstance(loader, Sized) else None
    return tqdm(batches, "running statistics", total, disable=not progress)


class _Seen:
    """Gathers the moments of a layer's inputs.

    With momentum 0, the running statistics of the layer are those of its last input.
    """

    def __init__(self, layer: SyncBatchNorm) -> None:
        self.layer = layer
        self._parameters = [layer.running_mean, layer.running_var]
        self._before = [[array.copy() for array in p.list_data()] for p in self._parameters]
        self._momentum = layer._kwargs["momentum"]
        self._counter = layer._reg_params.pop("num_batches_tracked", None)
        self._waiting: list[tuple[int, list[mx.nd.NDArray]]] = []
        self._uses = 0
        self.moments = np.zeros((3, layer.running_mean.shape[0]))  # count, mean and M2
        layer._kwargs["momentum"] = 0.0
        self._set(self._parameters, [0.0, 0.0])  # a NaN would stay one
        self._hook = layer.register_forward_hook(self._note)

    def _note(self, layer: SyncBatchNorm, inputs: tuple, _output: Any) -> None:
        x = inputs[0]
        count = x.size // x.shape[layer._kwargs["axis"]]
        self._waiting.append((count, [p.data(context_of(x)).copy() for p in self._parameters]))

    def merge_waiting(self) -> None:
        """Add the moments of all devices, after all of them were called."""
        for count, statistics in self._waiting:
            mean, var = (array.asnumpy().astype(np.float64) for array in statistics)
            self.merge(np.stack([np.full_like(mean, count), mean, count * var]))
        self._uses += len(self._waiting) // len(self._before[0])
        self._waiting.clear()

    def merge(self, others: np.ndarray) -> None:
        """Add another count, mean and M2, by Chan's formula."""
        (count, mean, m2), (more, other, m2_other) = self.moments, others
        share = more / np.maximum(count + more, 1)
        change = other - mean
        self.moments = np.stack(
            [count + more, mean + share * change, m2 + m2_other + change**2 * count * share]
        )

    def leave(self, done: bool) -> None:
        """Restore the layer, and set its new statistics if all is done."""
        self._hook.detach()
        self.layer._kwargs["momentum"] = self._momentum
        if self._counter is not None:
            self.layer._reg_params["num_batches_tracked"] = self._counter
        count, mean, m2 = self.moments
        if not done or not count.all():
            for parameter, arrays in zip(self._parameters, self._before):
                for now, before in zip(parameter.list_data(), arrays):
                    now[:] = before
            return
        self._set(self._parameters, [mean, m2 / count])
        if self._counter is not None:
            self._set([self._counter], [float(self._uses)])

    @staticmethod
    def _set(parameters: list[gluon.Parameter], values: list[Any]) -> None:
        for parameter, value in zip(parameters, values):
            for array in parameter.list_data():
                array[:] = value


def _merge_processes(seen: list[_Seen]) -> None:
    """Add the moments of other processes, in one exchange for each set of processes."""
    sets: dict[int, list[_Seen]] = defaultdict(list)
    for each in seen:
        number = each.layer._processes()
        if number is not None:
            sets[number].append(each)
    for number, members in sorted(sets.items()):
        every = processes.gather(np.concatenate([each.moments for each in members], axis=1), number)
        for each in members:
            width = each.moments.shape[1]
            each.moments = np.zeros((3, width))
            for others in every:  # in the order of ranks, for the same bits in all processes
                each.merge(others[:, :width])
            every = every[:, :, width:]
