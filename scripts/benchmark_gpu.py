"""Time the GPU backend beside PyTorch's batch normalization and plain copies, on one GPU.

Needs a GPU, PyTorch with CUDA and the library that scripts/check_gpu.sh builds; no MXNet and no
network. Contexts are streams of the GPU. Everything is compared with float64 first, then timed in
turns by CUDA events on arrays that are not in the cache. Prints tables of medians and quartiles,
and what is reached of what is wanted; writes JSON and a bar chart.

The floor of a row is the time of its least traffic at the bandwidth of a copy of the same data:
forward reads the data twice and writes it once, backward reads data and gradient twice and writes
one array. PyTorch's layers do not synchronize: on several contexts each normalizes its own part.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.report import Row, draw, format_table, time_table, write_json
from gpu_benchmarks.bridge import Bridge, BridgeError
from gpu_benchmarks.cases import BACKWARD, FORWARD, all_cases
from gpu_benchmarks.device import Device
from gpu_benchmarks.goals import HEAD, check_goals
from gpu_benchmarks.measuring import Peers, WrongResultError, arrays_bytes, measure
from gpu_benchmarks.torch_device import TorchDevice, UnavailableError
from gpu_benchmarks.torch_methods import torch_methods

LIBRARY = Path(__file__).parent.parent / "build" / "gpu" / "libgpu_bridge.so"
MOST_METHODS = 5


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small and few cases: does it work?")
    parser.add_argument("--turns", type=int, help="times that count (default: 15, quick: 3)")
    parser.add_argument("--library", type=Path, default=LIBRARY, help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs") / "benchmark-gpu")
    options = parser.parse_args(arguments)
    if options.turns is None:
        options.turns = 3 if options.quick else 15
    if options.turns < 1:
        parser.error(f"--turns: expected at least 1, got {options.turns}")
    return options


def run(options: argparse.Namespace, device: Device, bridge: Bridge, peers: Peers) -> list[Row]:
    """Measure all cases that the GPU has memory for."""
    rows = []
    cases = all_cases(options.quick)
    for i, case in enumerate(cases, 1):
        needed, free = arrays_bytes(case, bridge.cache_bytes(), MOST_METHODS), device.free_bytes()
        if needed > free:
            print(
                f"left out: {case.title} needs {needed >> 20} MiB, free are {free >> 20} MiB",
                flush=True,
            )
            continue
        rows.append(measure(case, device, bridge, peers, options.turns))
        step = rows[-1]["parts"][-1]
        ratios = ", ".join(f"{name} {value:.2f}" for name, value in step["ratios"].items())
        print(f"[{i}/{len(cases)}] {step['title']}: {ratios}", flush=True)
    return rows


def phase_table(rows: list[Row]) -> str:
    """Tabulate how near each phase comes to the bandwidth of a copy."""
    phases = (*FORWARD, *BACKWARD)
    head = ["case", "copy, GB/s", *(f"{phase}, of that" for phase in phases)]
    lines = [
        [
            row["title"],
            f"{row['copy_bytes_per_second'] / 1e9:.0f}",
            *(f"{row['phases'][phase]['of_copy']:.2f}" for phase in phases),
        ]
        for row in rows
    ]
    return format_table(head, lines)


def report(folder: Path, rows: list[Row], description: dict[str, str]) -> None:
    """Print and write all that was measured."""
    parts = [part for row in rows for part in row["parts"]]
    goals = check_goals(rows)
    print(f"\n{time_table(parts)}\n\n{phase_table(rows)}\n")
    print(format_table(HEAD, [goal.line() for goal in goals]))
    print(f"\n{', '.join(f'{key} {value}' for key, value in description.items())}")
    folder.mkdir(parents=True, exist_ok=True)
    verdicts = [{**goal._asdict(), "reached": goal.reached} for goal in goals]
    write_json(folder / "results.json", rows, {"device": description, "goals": verdicts})
    bars = {
        row["title"]: {
            method: result["median_ms"] for method, result in row["parts"][-1]["results"].items()
        }
        for row in rows
        if row["case"]["contexts"] == 1
    }
    try:
        draw(folder / "results.png", "forward + backward on one GPU", "ms", bars)
    except ImportError as error:
        print(f"no chart: {error}")
    print(f"results: {folder}")


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    options = parse_arguments(arguments)
    try:
        device = TorchDevice()
        rows = run(
            options,
            device,
            Bridge(options.library),
            lambda case, slots: torch_methods(device.torch, case, slots),
        )
    except (UnavailableError, BridgeError, WrongResultError) as error:
        print(f"benchmark_gpu: {error}", file=sys.stderr)
        return 1
    report(options.out, rows, device.describe())
    return 0


if __name__ == "__main__":
    sys.exit(main())
