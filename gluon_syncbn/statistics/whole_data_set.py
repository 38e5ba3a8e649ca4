"""Running statistics of a whole data set."""

from __future__ import annotations

import warnings
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from typing import Any, Iterable, Iterator, Sequence, Sized

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from .. import processes
from ..library import LIBRARY
from ..naming import name_of, named_blocks
from ..norms import IN_BODY, Norm, norms_of
from ..standstill import other_processes_take_part
from .gathering import Moments, noting_layer, noting_nodes


def update_statistics(
    net: gluon.Block,
    loader: Iterable[Any],
    ctx: mx.Context | Sequence[mx.Context] | None = None,
    progress: bool = True,
) -> None:
    """Compute the running statistics of a network over a whole data set.

    After training, the running statistics average the last batches, for which the weights still
    changed. This function runs the network over `loader` in training mode, without gradients. Every
    :class:`gluon_syncbn.SyncBatchNorm`, and every node of a SymbolBlock that is one, gets the mean
    and the biased variance of all its inputs, each value with the same weight ("Precise BN" [1]_).
    Norms that share their statistics get those of all their inputs. Weights do not change.

    All devices get the same statistics, even with `sync_group_size`. With
    :func:`gluon_syncbn.init`, all processes call this function with their own parts of the data
    set, in the same number of batches. If anything fails, the statistics stay as they were.

    Parameters
    ----------
    net : Block
        An initialized network, hybridized or not.
    loader : iterable
        Yields batches, such as a ``gluon.data.DataLoader``: arrays, or tuples that begin with one.
        A ``mx.io.DataIter`` is reset first. Each batch is split over the contexts. A batch with
        fewer images than contexts joins the next one, and the last one joins that before it.
    ctx : mxnet.Context or sequence of them, optional
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
    by_statistics = _gathering_norms(net)
    own = next(iter(by_statistics)).list_ctx()
    given = [ctx] if isinstance(ctx, type(own[0])) else ctx
    contexts = own if given is None else list(given)
    if sorted(map(str, contexts)) != sorted(map(str, own)):
        raise ValueError(f"ctx={contexts} should be the contexts of the parameters, {own}")
    with ExitStack() as stack:
        nodes = defaultdict(list)
        gathered = []
        for norms in by_statistics.values():
            moments = Moments(norms)
            gathered.append(moments)
            stack.push(moments.finish)
            for norm in norms:
                if not norm.is_synchronized:
                    continue
                if norm.node is None:
                    stack.enter_context(noting_layer(norm.block, moments))
                else:
                    nodes[norm.block].append((norm.node, moments))
        for block, noted in nodes.items():
            stack.enter_context(noting_nodes(block, noted))
        stack.enter_context(_running(net))
        for batch in _shown(_batches(loader, len(contexts)), loader, progress):
            for shard in gluon.utils.split_and_load(batch, contexts, even_split=False):
                net(shard)
            for each in gathered:
                each.merge_waiting()
        _merge_processes(gathered)
    for each in gathered:
        for name in each.unreached():
            message = f"{name} keeps its statistics: no batch of loader has reached it"
            warnings.warn(message, UserWarning, stacklevel=2)


def _gathering_norms(net: gluon.Block) -> dict[gluon.Parameter, list[Norm]]:
    """Group the norms that gather statistics by their running mean; warn of plain norms.

    MXNet may move the statistics of a BatchNorm in a forward pass. `Moments` restores them.
    """
    found = defaultdict(list)
    for norm in norms_of(net):
        if not norm.use_global_stats:
            found[norm.running_mean].append(norm)
    plain = [n for n in found.values() if not any(norm.is_synchronized for norm in n)]
    if len(plain) == len(found):
        raise ValueError(
            f"{name_of(net)} has no SyncBatchNorm that gathers statistics: convert it with "
            "gluon_syncbn.convert_sync_batchnorm"
        )
    for norm, *_ in plain:
        why = IN_BODY if norm.is_in_body else f"{norm.kind} is not gluon_syncbn.SyncBatchNorm"
        left = f"{norm.name} keeps its statistics: {why}"
        warnings.warn(left, UserWarning, stacklevel=3)
    return found


@contextmanager
def _running(net: gluon.Block) -> Iterator[None]:
    """Let every layer be called in training mode, and end a failed step."""
    hybrid = [block for block in named_blocks(net) if isinstance(block, gluon.HybridBlock)]
    active = [block._active for block in hybrid]
    try:
        for block in hybrid:  # a compiled network calls no hooks of its layers
            block._active = False
        with autograd.pause(train_mode=True):
            yield
    except BaseException:
        # Fails devices that wait for others, and removes errors, which would keep the engine from
        # writing the statistics.
        LIBRARY.drop_step(other_processes_take_part())
        raise
    finally:
        for block, was_active in zip(hybrid, active):
            block._active = was_active


def _batches(loader: Iterable[Any], fewest: int) -> Iterator[mx.nd.NDArray]:
    """Yield arrays of `loader` with enough images for the devices; join smaller ones."""
    if isinstance(loader, mx.io.DataIter):  # without images that an epoch has left over
        getattr(loader, "hard_reset", loader.reset)()
    ready: Any = None  # waits, because a small array at the end joins it
    rest: Any = None
    for number, batch in enumerate(loader):
        data = _images(batch)
        if not isinstance(data, mx.nd.NDArray):
            raise TypeError(f"batch {number} of loader begins with {type(data).__name__}, no array")
        # A copy, because the loader may reuse the array for its next batch.
        rest = data.copy() if rest is None else _joined(rest, data)
        if len(rest) >= fewest:
            if ready is not None:
                yield ready
            ready, rest = rest, None
    if ready is None:
        number = 0 if rest is None else len(rest)
        raise ValueError(f"loader has {number} images where at least {fewest} are expected")
    yield ready if rest is None else _joined(ready, rest)


def _joined(first: mx.nd.NDArray, second: mx.nd.NDArray) -> mx.nd.NDArray:
    if isinstance(first, mx.np.ndarray):
        return mx.np.concatenate([first, second])
    return mx.nd.concat(first, second, dim=0)


def _images(batch: Any) -> Any:
    if isinstance(batch, mx.io.DataBatch):
        images = batch.data[0]
        return images[: len(images) - (batch.pad or 0)]  # the last ones are there a second time
    return batch[0] if isinstance(batch, (list, tuple)) and batch else batch


def _shown(batches: Iterator[Any], loader: Iterable[Any], progress: bool) -> Iterable[Any]:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return batches
    total = len(loader) if isinstance(loader, Sized) else None
    return tqdm(batches, "running statistics", total, disable=not progress)


def _merge_processes(gathered: list[Moments]) -> None:
    """Add the moments of other processes, in one exchange for each set of processes."""
    sets: dict[int, list[Moments]] = defaultdict(list)
    for each in gathered:
        if each.process_set is not None:
            sets[each.process_set].append(each)
    for number, members in sorted(sets.items()):
        every = processes.gather(np.concatenate([each.values for each in members], axis=1), number)
        for each in members:
            width = each.values.shape[1]
            each.values = np.zeros((3, width))
            for others in every:  # in the order of ranks, for the same bits in all processes
                each.merge(others[:, :width])
            every = every[:, :, width:]
