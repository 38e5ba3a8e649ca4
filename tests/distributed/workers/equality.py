"""One layer on all devices of all processes, against float64 NumPy on the whole batch."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any

import gluon_syncbn
import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from gluon_syncbn.norms import norms_of
from mxnet.gluon import nn

from tests.distributed.workers.job import agree, contexts, init, report, shares
from tests.support.networks import import_files
from tests.support.oracle import normalize
from tests.support.step import (
    after,
    compare,
    expect,
    make_case,
    make_layer,
    require_close,
    train_step,
)

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


def make_nodes(folder: Path) -> dict[str, Any]:
    """Networks whose norms are nodes that know of no other processes."""
    path, ctx = folder / f"nodes{hvd.rank()}", contexts(2)
    nets = {}
    for name, norm in (("imported", gluon_syncbn.SyncBatchNorm), ("converted", nn.BatchNorm)):
        net = nn.HybridSequential()
        net.add(norm(in_channels=5), nn.LeakyReLU(1.0))
        net.initialize(ctx=ctx)
        if name == "imported":
            nets["fused"] = gluon_syncbn.fuse(net)
        net.hybridize()
        net(mx.nd.ones((2, 5), ctx=ctx[0]))
        net.export(str(path))
        nets[name] = import_files(path, ctx)
    gluon_syncbn.convert_sync_batchnorm(nets["converted"])
    return nets


def check_nodes(nets: dict[str, Any]) -> None:
    """Nodes that were made before `init` synchronize with other processes after it."""
    rank, size = hvd.rank(), hvd.size()
    sizes = tuple(each for number in range(size) for each in shares(number, 2))
    case = make_case(np.random.default_rng(0), (sum(sizes), 5, 4), sizes, "float32", 3.0)
    expected, first, ctx = normalize(case.x), 2 * rank, contexts(2)
    mine = slice(case.bounds(first).start, case.bounds(first + 1).stop)
    for name, net in nets.items():
        # Without another call for the statistics, as for layers.
        gluon_syncbn.update_statistics(net, [mx.nd.array(case.x[mine])], progress=False)
        (norm,) = norms_of(net)
        mean = norm.running_mean.data(ctx[0]).asnumpy()
        require_close(f"mean of {name}", mean, case.x.mean((0, 2), dtype="float64"), 1e-6)
        if name == "fused":
            net.hybridize()
        else:
            gluon_syncbn.convert_sync_batchnorm(net)
        with mx.autograd.record():
            outs = [net(mx.nd.array(case.x[case.bounds(first + i)], ctx=ctx[i])) for i in (0, 1)]
        found = np.concatenate([out.asnumpy() for out in outs])
        require_close(name, found, expected[mine], 1e-5)


def main() -> None:
    folder = sys.argv[1]
    _, size = init()
    nets = make_nodes(Path(folder))
    gluon_syncbn.init()
    check_nodes(nets)
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
