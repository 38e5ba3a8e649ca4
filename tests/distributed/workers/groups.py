"""Two groups in four processes, each with a batch of its own."""

from __future__ import annotations

import sys

import gluon_syncbn
import horovod.mxnet as hvd
import mxnet as mx
import pytest

from tests.distributed.workers.equality import check
from tests.distributed.workers.job import init, report


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
    # A process that ends shuts Horovod down for all.
    hvd.allreduce(mx.nd.ones((1,)), name="end together").wait_to_read()
    report(sys.argv[1], done=True)


if __name__ == "__main__":
    main()
