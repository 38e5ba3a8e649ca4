"""Two groups in four processes, each with a batch of its own."""

from __future__ import annotations

import sys

import gluon_syncbn
import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import pytest

from tests.distributed.workers.equality import check
from tests.distributed.workers.job import contexts, init, report
from tests.support.oracle import normalize
from tests.support.step import Case, require_close, run


def regroup(rank: int) -> None:
    """A layer goes on in sets that have the numbers of removed sets."""
    data = np.random.default_rng(1).standard_normal((hvd.size(), 2, 3)).astype("float32")
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, prefix="regrouped_")
    layer.initialize(ctx=contexts(1))
    for groups in ([[0, 1], [2, 3]], [[0, 2, 3], [1]], [[0, 1], [2, 3]]):
        sets = [hvd.add_process_set(ranks) for ranks in groups]
        mine = next(each for each in sets if each.included())
        gluon_syncbn.init(mine)
        layer.hybridize(static_alloc=True, static_shape=True)
        for _ in range(2):
            (out,) = run(layer, Case(data[rank], (2,)), contexts(1))["out"]
            whole = normalize(data[mine.ranks].reshape(-1, 3)).reshape(-1, 2, 3)
            expected = whole[mine.ranks.index(rank)]
            require_close(f"among {mine.ranks}", out.asnumpy(), expected, 1e-6)
        hvd.allreduce(mx.nd.ones((1,)), name="remove together").wait_to_read()
        for each in sets:
            hvd.remove_process_set(each)


def main() -> None:
    sets = [hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 3])]
    rank, _ = init(process_sets=sets)
    mine, other = sets[rank % 2], sets[1 - rank % 2]
    assert mine.size() == 2
    with pytest.raises(ValueError, match="does not include this process, which has rank"):
        gluon_syncbn.init(other)
    with pytest.raises(ValueError, match="give it to horovod"):
        gluon_syncbn.SyncBatchNorm(process_set=hvd.ProcessSet([0, 1]))
    for number, mode in ((1, "imperative"), (2, "static_alloc")):
        check(number, mode, "float32", 3.0, mine)  # given to the layer
        gluon_syncbn.init(mine)
        check(number, mode, "float32", 3.0, mine)
    # The two groups need not take the same number of steps.
    for _ in range(rank % 2):
        check(1, "hybridized", "float32", 0.0, mine)
    for process_set in sets:
        hvd.remove_process_set(process_set)
    regroup(rank)
    # A process that ends shuts Horovod down for all.
    hvd.allreduce(mx.nd.ones((1,)), name="end together").wait_to_read()
    report(sys.argv[1], done=True)


if __name__ == "__main__":
    main()
