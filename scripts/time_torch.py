"""Time PyTorch's batch normalization on the cases that ``time_gpu`` has written to a log.

Prints a table in microseconds for forward and backward of a layer: ours, the kernels of PyTorch's
``SyncBatchNorm`` on one GPU, and ``torch.nn.functional.batch_norm``, which may use cuDNN. All run
layer by layer, on as many arrays.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Callable, Tuple

import torch
from torch.nn import functional

ROW = re.compile(
    r"^\| \((\d+), (\d+), (\d+), \3\) (\w+)( channel-last)? \| (\d+) \| \w+ by layer \| ([\d.]+) ",
    re.MULTILINE,
)
EPS = 1e-5
REPEATS = 9
LAYERS = 20  # to time at least, so that one launch more or less does not matter

Case = Tuple[str, str, str, str, str, str]
Run = Callable[[], object]


def read_times(text: str) -> dict[Case, float]:
    """Return our microseconds, layer by layer, of each case without an activation."""
    times: dict[Case, float] = {}
    for *case, us in ROW.findall(text):
        key: Any = tuple(case)
        times[key] = times.get(key, 0) + float(us)
    return times


def microseconds(step: Run, layers: int) -> float:
    """Return the median time of a layer on the GPU, which is busy until all are launched."""
    step()
    steps = -(-LAYERS // layers)
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(50_000_000)  # about 30 ms
        begin.record()
        for _ in range(steps):
            step()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / (steps * layers))
    return sorted(times)[REPEATS // 2]


def arrays_of(case: Case) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return x and dy of as many layers as ``time_gpu`` has, so that the cache helps as little."""
    batch, channels, side = (int(word) for word in case[:3])
    order = torch.channels_last if case[4] else torch.contiguous_format
    shape = (batch, channels, side, side)

    def array() -> torch.Tensor:
        values = torch.randn(shape, device="cuda").to(getattr(torch, case[3]))
        return values.contiguous(memory_format=order)

    return [(array(), array()) for _ in range(int(case[5]))]


def steps(case: Case) -> list[Run]:
    """Return a step by the kernels of SyncBatchNorm, and one by batch_norm.

    A step is forward of all layers, and then backward of all layers.
    """
    batch, channels, side = (int(word) for word in case[:3])
    parameter = torch.float64 if case[3] == "float64" else torch.float32
    gamma, beta, mean, var = torch.ones(4, channels, device="cuda", dtype=parameter)
    # SyncBatchNorm casts the same way: the kernel demands the dtype of the running mean.
    count = torch.full((1,), batch * side * side, device="cuda", dtype=parameter)
    count_of_ranks = count.to(torch.int32)
    arrays = arrays_of(case)
    parameters = [one.detach().clone().requires_grad_() for one in (gamma, beta)]
    leaves = [x.detach().requires_grad_() for x, _ in arrays]

    def sync() -> None:
        merged = []
        for x, _ in arrays:
            own = [one[None] for one in torch.batch_norm_stats(x, EPS)]
            merged.append(
                torch.batch_norm_gather_stats_with_counts(x, *own, mean, var, 0.1, EPS, count)
            )
            torch.batch_norm_elemt(x, gamma, beta, *merged[-1], EPS)
        for (x, dy), statistics in zip(arrays, merged):
            given = (dy, x, *statistics, gamma)
            dy_sum, product, _, _ = torch.batch_norm_backward_reduce(*given, True, True, True)
            torch.batch_norm_backward_elemt(*given, dy_sum, product, count_of_ranks)

    def alone() -> None:
        outputs = [functional.batch_norm(x, mean, var, *parameters, True, 0.1, EPS) for x in leaves]
        for x, y, (_, dy) in zip(leaves, outputs, arrays):
            torch.autograd.grad(y, [x, *parameters], dy)

    return [sync, alone]


def main() -> int:
    print(f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}\n")
    print("| case | arrays | ours by layer, us | SyncBatchNorm's kernels | batch_norm | ", end="")
    print("ours / the former | latter |\n| --- | --- | --- | --- | --- | --- | --- |")
    failed = 0
    for case, ours in read_times(Path(sys.argv[1]).read_text()).items():
        name = f"({case[0]}, {case[1]}, {case[2]}, {case[2]}) {case[3]}{case[4]} | {case[5]}"
        try:
            found = [microseconds(step, int(case[5])) for step in steps(case)]
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
