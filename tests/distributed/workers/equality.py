"""One layer on all devices of all processes, against float64 NumPy on the whole batch."""

from __future__ import annotations

import sys
import zlib
from typing import Any

import gluon_syncbn
import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from tests.distributed.workers.job import agree, contexts, init, report, shares
from tests.support.step import after, compare, expect, make_case, make_layer, train_step

TOLERANCES = {"float64": 1e-11, "float32": 2e-6, "float16": 2e-3}


def check(
    numbers: int | list[int], mode: str, dtype: str, mean: float, process_set: Any = None
) -> None:
    """Compare steps with the oracle; `numbers` counts contexts, in each process or in all."""
    group = process_set or hvd.global_process_set
    what = f"{numbers} contexts, {mode}, {dtype}, mean {mean:g}"
    if isinstance(numbers, int):
        numbers = [numbers] * group.size()
    number = numbers[group.rank()]
    sizes = tuple(size for rank, each in enumerate(numbers) for size in shares(rank, each))
    case = make_case(np.random.default_rng(sum(numbers)), (sum(sizes), 5, 4, 3), sizes, dtype, mean)
    ctx, first = contexts(number), sum(numbers[: group.rank()])
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
    bits = {name: zlib.crc32(first.tobytes()) for name, (first, *_) in found.running.items()}
    agree(f"{what}, running statistics", bits, process_set)


def main() -> None:
    folder = sys.argv[1]
    _, size = init()
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
    check([1 + each % 2 for each in range(size)], "imperative", "float32", 0.0)
    report(folder, cases=cases + 1, size=size)


if __name__ == "__main__":
    main()
