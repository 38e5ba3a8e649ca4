"""One layer on all devices of all processes, against float64 NumPy on the whole batch."""

from __future__ import annotations

import sys
from typing import Any

import gluon_syncbn
import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from tests.distributed.workers.job import agree, checksum, close, contexts, init, report, shares
from tests.support.step import after, compare, expect, make_case, make_layer, train_step

TOLERANCES = {"float64": 1e-11, "float32": 2e-6, "float16": 2e-3}


def check(number: int, mode: str, dtype: str, mean: float, process_set: Any = None) -> None:
    group = process_set or hvd.global_process_set
    what = f"{number} contexts, {mode}, {dtype}, mean {mean:g}"
    sizes = tuple(size for rank in range(group.size()) for size in shares(rank, number))
    case = make_case(np.random.default_rng(number), (sum(sizes), 5, 4, 3), sizes, dtype, mean)
    ctx, first = contexts(number), group.rank() * number
    layer = make_layer(case, ctx, mode, process_set=process_set)
    mine = slice(case.bounds(first).start, case.bounds(first + number - 1).stop)
    for step in range(3):
        found, expected = train_step(layer, case, ctx, first), expect(case)
        for name, parts in found.gradients.items():
            local = mx.nd.array(sum(each.astype("float64") for each in parts), dtype="float64")
            sets = {"process_set": process_set} if process_set else {}
            every = hvd.allreduce(local, op=hvd.Sum, name=f"{what}, {name} {step}", **sets)
            found.gradients[name] = [every.asnumpy()]
        expected.batch = {name: [whole[mine]] for name, (whole,) in expected.batch.items()}
        fine = 1e-11 if dtype == "float64" else 2e-6
        compare(found, expected, fine, TOLERANCES[dtype], fine)
        case = after(case, expected)
    agree(f"{what}, running statistics", checksum(layer), process_set)


def main() -> None:
    folder = sys.argv[1]
    rank, size = init()
    gluon_syncbn.init()
    cases = 0
    for number in (1, 2):
        for mode in ("imperative", "hybridized", "static_alloc"):
            for dtype, mean in (("float32", 0.0), ("float32", 1e4), ("float16", 2.0)):
                if mode != "imperative" and mean == 1e4:
                    continue
                check(number, mode, dtype, mean)
                cases += 1
        check(number, "imperative", "float64", 1e4)
        cases += 1
    # A process whose devices are more than another's.
    uneven(rank)
    report(folder, cases=cases + 1, size=size)


def uneven(rank: int) -> None:
    """As many contexts as the process has number, plus one."""
    number = 1 + rank % 2
    layer = gluon_syncbn.SyncBatchNorm(in_channels=2)
    layer.initialize(ctx=contexts(number))
    counts = [1 + r % 2 for r in range(hvd.size())]
    total = sum(counts)
    x = np.arange(total * 2, dtype="float32").reshape(total, 2)
    start = sum(counts[:rank])
    with mx.autograd.record():
        outs = [
            layer(mx.nd.array(x[start + i : start + i + 1], ctx=c))
            for i, c in enumerate(contexts(number))
        ]
    expected = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    for i, out in enumerate(outs):
        close("uneven", out.asnumpy()[0], expected[start + i], 1e-6)


if __name__ == "__main__":
    main()
