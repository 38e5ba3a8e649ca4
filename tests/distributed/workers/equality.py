"""One layer on all devices of all processes, against float64 NumPy on the whole batch."""

from __future__ import annotations

import sys
from typing import Any

import gluon_syncbn
import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from tests.distributed.workers.job import agree, bounds, checksum, close, contexts, init, report
from tests.support.oracle import batch_norm

MODES: dict[str, Any] = {
    "imperative": {"active": False},
    "hybridized": {},
    "static_alloc": {"static_alloc": True},
}
TOLERANCES = {"float64": 1e-11, "float32": 2e-6, "float16": 2e-3}


def check(number: int, mode: str, dtype: str, mean: float, process_set: Any = None) -> None:
    group = process_set or hvd.global_process_set
    rank, size = group.rank(), group.size()
    what = f"{number} contexts, {mode}, {dtype}, mean {mean:g}: "
    mine, total = bounds(rank, size, number)
    rng = np.random.default_rng(number)
    x = (rng.standard_normal((total, 5, 4, 3)) + mean).astype(dtype)
    dy = rng.standard_normal(x.shape).astype(dtype)
    ctx = contexts(number)
    layer = gluon_syncbn.SyncBatchNorm(in_channels=5, process_set=process_set)
    layer.initialize(ctx=ctx)
    layer.cast(dtype)
    gamma = (1 + rng.random(5)).astype(layer.gamma.dtype)
    layer.gamma.set_data(mx.nd.array(gamma, dtype=gamma.dtype))
    layer.hybridize(**MODES[mode])
    old = np.zeros(5), np.ones(5)
    for step in range(3):
        expected = batch_norm(x, dy, gamma, np.zeros(5), *old)
        old = expected.running_mean, expected.running_var
        xs = [mx.nd.array(x[part], ctx=c, dtype=dtype) for part, c in zip(mine, ctx)]
        dys = [mx.nd.array(dy[part], ctx=c, dtype=dtype) for part, c in zip(mine, ctx)]
        for array in xs:
            array.attach_grad()
        with mx.autograd.record():
            outs = [layer(array) for array in xs]
        mx.autograd.backward(outs, dys)
        tolerance = TOLERANCES[dtype]
        scale = float(np.abs(dy).max() * expected.largest_scale)
        for out, array, part in zip(outs, xs, mine):
            dx = array.grad.asnumpy()
            close(f"{what}output {step}", out.asnumpy(), expected.out[part], tolerance, 1)
            close(f"{what}gradient {step}", dx, expected.dx[part], tolerance, scale)
    fine = 1e-11 if dtype == "float64" else 2e-6
    for name, whole in (("gamma", expected.dgamma), ("beta", expected.dbeta)):
        local = sum(g.astype("float64").asnumpy() for g in getattr(layer, name).list_grad())
        every = hvd.allreduce(
            mx.nd.array(local, dtype="float64"),
            op=hvd.Sum,
            name=f"{what}{name}",
            **({"process_set": process_set} if process_set else {}),
        )
        close(f"{what}{name}", every.asnumpy(), whole, fine, 10)
    for context in ctx:
        close(f"{what}mean", layer.running_mean.data(context).asnumpy(), old[0], fine)
        close(f"{what}variance", layer.running_var.data(context).asnumpy(), old[1], fine)
    agree(f"{what}running statistics", checksum(layer), process_set)


def main() -> None:
    folder = sys.argv[1]
    rank, size = init()
    gluon_syncbn.init()
    cases = 0
    for number in (1, 2):
        for mode in MODES:
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
