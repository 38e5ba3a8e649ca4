"""Time PyTorch's batch normalization on the cases that ``time_gpu`` has written to a log.

Prints a table in microseconds: our four phases together, the kernels of PyTorch's ``SyncBatchNorm``
on one GPU, and ``torch.nn.functional.batch_norm``, which may use cuDNN.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Callable, Tuple

import torch
from torch.nn import functional

ROW = re.compile(
    r"^\| \((\d+), (\d+), (\d+), \3\) (\w+)( channel-last)? \| [\w ]+ \| ([\d.]+) ", re.MULTILINE
)
EPS = 1e-5
REPEATS = 9

Case = Tuple[str, str, str, str, str]


def read_times(text: str) -> dict[Case, float]:
    """Return our microseconds for all phases of each case without an activation."""
    times: dict[Case, float] = {}
    for *case, us in ROW.findall(text):
        key: Any = tuple(case)
        times[key] = times.get(key, 0) + float(us)
    return times


def microseconds(step: Callable[[], object], number: int) -> float:
    """Return the median time of a step on the GPU, which is busy until all steps are launched."""
    step()
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(50_000_000)  # about 30 ms
        begin.record()
        for _ in range(number):
            step()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / number)
    return sorted(times)[REPEATS // 2]


def steps(case: Case) -> list[Callable[[], object]]:
    """Return forward and backward by the kernels of SyncBatchNorm, and the same by batch_norm."""
    batch, channels, side = (int(word) for word in case[:3])
    dtype, parameter = getattr(torch, case[3]), torch.float32
    if dtype == torch.float64:
        parameter = dtype
    order = torch.channels_last if case[4] else torch.contiguous_format
    x, dy = (
        torch.randn(batch, channels, side, side, device="cuda")
        .to(dtype)
        .contiguous(memory_format=order)
        for _ in range(2)
    )
    gamma, beta, mean, var = torch.ones(4, channels, device="cuda", dtype=parameter)
    # SyncBatchNorm casts the same way: the kernel demands the dtype of the running mean.
    count = torch.full((1,), batch * side * side, device="cuda", dtype=parameter)
    count_of_ranks = count.to(torch.int32)
    leaves = [one.detach().clone().requires_grad_() for one in (x, gamma, beta)]

    def sync() -> object:
        own = [one[None] for one in torch.batch_norm_stats(x, EPS)]
        merged = torch.batch_norm_gather_stats_with_counts(x, *own, mean, var, 0.1, EPS, count)
        torch.batch_norm_elemt(x, gamma, beta, *merged, EPS)
        arrays = (dy, x, *merged, gamma)
        dy_sum, product, _, _ = torch.batch_norm_backward_reduce(*arrays, True, True, True)
        return torch.batch_norm_backward_elemt(*arrays, dy_sum, product, count_of_ranks)

    def alone() -> object:
        y = functional.batch_norm(leaves[0], mean, var, *leaves[1:], True, 0.1, EPS)
        return torch.autograd.grad(y, leaves, dy)

    return [sync, alone]


def main() -> int:
    print(f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}\n")
    print("| case | ours, us | SyncBatchNorm's kernels | batch_norm | ours / the former | latter |")
    print("| --- | --- | --- | --- | --- | --- |")
    failed = 0
    for case, ours in read_times(Path(sys.argv[1]).read_text()).items():
        name = f"({case[0]}, {case[1]}, {case[2]}, {case[2]}) {case[3]}{case[4]}"
        try:
            found = [microseconds(step, 20) for step in steps(case)]
        except RuntimeError as error:  # so that the other cases are still timed
            print(f"| {name} | {ours:.1f} | failed: {str(error).splitlines()[0]} | | | |")
            failed += 1
            continue
        ratios = " | ".join(f"{ours / one:.2f}" for one in found)
        row = " | ".join(f"{t:.1f}" for t in found)
        print(f"| {name} | {ours:.1f} | {row} | {ratios} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
