"""Time gluon_syncbn.SyncBatchNorm beside MXNet's layers, plain copies of memory and PyTorch.

Everything is timed in turns on the same machine, so that ratios mean something where times do not.
Prints a table of medians and quartiles, and writes JSON.

  op        forward and backward of one layer, shapes of segmentation networks
  fused     the same with the ReLU after it, and with a sum in between: in one pass, or one by one
  net       training steps of FCN, PSPNet and DeepLabV3 on ResNet-50, and peak memory
  inplace   memory of training FCN-ResNet50 with leaky ReLU, in place and not
  accuracy  errors against float64, by the mean of the data
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.report import (
    TITLES,
    Row,
    cell,
    format_table,
    ratio,
    summary,
    time_table,
    write_json,
)
from benchmarks.worker import ONE_WORKSPACE, WITH_ONEDNN, WITHOUT_ONEDNN, Worker, settings_of

BETWEEN_WORKERS = 0.05  # seconds in which threads of one process stop looking for work

MAIN_SHAPES = ((4, 64, 64, 64), (2, 256, 60, 60), (8, 64, 128, 128))
# Further activations of networks on ResNet: the first layer and the last, at a crop of 480.
NETWORK_SHAPES = ((2, 64, 240, 240), (2, 2048, 60, 60), (4, 2048, 7, 7))
TINY = (2, 4, 2, 2)  # takes no time itself, so that the fixed cost of a round is left

# Norms of whole networks, with the contexts that share the batch. BatchNorm is MXNet as it comes.
NETWORK_BASE = "batchnorm_whole_onednn"
NETWORKS = (
    ("ours", 2),
    ("fused", 2),
    ("ours_whole", 1),
    ("batchnorm_onednn", 2),
    (NETWORK_BASE, 1),
    ("builtin", 2),
)


def case_title(case: Mapping[str, Any]) -> str:
    """Name a case."""
    parts = [f"{case['contexts']} x {tuple(case['shape'])}"]
    if "dtype" in case:
        parts.append(case["dtype"])
    if "axis" in case:
        parts.append("channel last")
    if "mode" in case:
        parts.append(case["mode"])
    if "tail" in case:
        parts.append(f"norm, {case['tail']}")
    return ", ".join(parts)


def op_cases(quick: bool) -> list[dict[str, Any]]:
    """List the cases of `op`, the goals' shapes first."""
    if quick:
        small = {"shape": (2, 8, 16, 16), "contexts": 2}
        return [small, {**small, "shape": (2, 16, 16, 8), "axis": -1, "mode": "inference"}]
    cases: list[dict[str, Any]] = [
        {"shape": s, "contexts": k} for k in (2, 4, 1) for s in MAIN_SHAPES
    ]
    cases += [{"shape": s, "contexts": 2} for s in NETWORK_SHAPES]
    cases += [{"shape": TINY, "contexts": k} for k in (1, 2, 4, 8)]
    cases += [{"shape": (n, h, w, c), "contexts": 2, "axis": -1} for n, c, h, w in MAIN_SHAPES]
    cases += [{"shape": s, "contexts": 2, "dtype": "float16"} for s in MAIN_SHAPES]
    cases += [{"shape": MAIN_SHAPES[1], "contexts": 2, "dtype": "float64"}]
    cases += [{"shape": s, "contexts": 2, "mode": "inference"} for s in MAIN_SHAPES]
    return cases


def op_methods(case: Mapping[str, Any]) -> dict[str, list[str]]:
    """List what each worker times for a case: not what a peer cannot do."""
    methods = {"plain": ["ours", "batchnorm", "copies"]}
    if "axis" not in case and "dtype" not in case:
        methods["onednn"] = ["batchnorm_onednn"]
        if "mode" not in case:  # in inference it is BatchNorm
            methods["plain"].append("builtin")
    if importlib.util.find_spec("torch") and case.get("dtype") != "float16":
        methods["torch"] = ["torch"]
    return methods


def fused_methods(_: Mapping[str, Any]) -> dict[str, list[str]]:
    """List what each worker times of a norm with what follows it."""
    return {"plain": ["fused", "ours", "batchnorm"], "onednn": ["batchnorm_onednn"]}


def time_layers(cases: Sequence[dict[str, Any]], list_methods: Any, quick: bool) -> list[Row]:
    """Time the cases of one layer on all workers in turns."""
    turns, rounds = (1, 3) if quick else (3, 5)
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(settings_of(name)))
            for name in sorted({name for case in cases for name in list_methods(case)})
        }
        for case in tqdm(cases, unit="case"):
            times: dict[str, list[float]] = {}
            for _ in range(turns):
                for name, methods in list_methods(case).items():
                    time.sleep(BETWEEN_WORKERS)
                    request = {"case": case, "methods": methods, "warm_up": 2, "rounds": rounds}
                    for method, found in workers[name].ask("op", **request)["times"].items():
                        times.setdefault(method, []).extend(found)
            results = {method: summary(found) for method, found in times.items()}
            rows.append({"title": case_title(case), "case": case, "results": results})
    for row in rows:
        best = "fused" if "fused" in row["results"] else "ours"
        row["ratios"] = {
            f"{best} / BatchNorm": ratio(row, best, "batchnorm", "batchnorm_onednn"),
            "fused / ours": ratio(row, "fused", "ours"),
            "contrib / ours": ratio(row, "builtin", "ours"),
            "ours / copies": ratio(row, "ours", "copies"),
        }
        row["ratios"] = {name: value for name, value in row["ratios"].items() if value is not None}
    return rows


def run_op(options: argparse.Namespace) -> list[Row]:
    """Time one layer on arrays of real networks."""
    return time_layers(op_cases(options.quick), op_methods, options.quick)


def run_fused(options: argparse.Namespace) -> list[Row]:
    """Time a norm with the ReLU after it, and with the sum of a residual block in between."""
    cases = [
        {"shape": shape, "contexts": contexts, "tail": tail}
        for tail in ("ReLU", "add and ReLU")
        for contexts in ((2,) if options.quick else (2, 4))
        for shape in (((2, 8, 16, 16),) if options.quick else MAIN_SHAPES)
    ]
    return time_layers(cases, fused_methods, options.quick)


def run_net(options: argparse.Namespace) -> list[Row]:
    """Time training steps of whole networks on the same batch, and their peak memory."""
    images = 2 if options.quick else 4
    models = options.models or (["fcn"] if options.quick else ["fcn", "psp", "deeplab"])
    rows: list[Row] = []
    for model, side in itertools.product(models, options.sides or [32 if options.quick else 96]):
        times: dict[str, list[float]] = {}
        memory: dict[str, float] = {}
        with contextlib.ExitStack() as stack:
            # Each in a process of its own, with the settings of settings_of().
            workers = {name: stack.enter_context(Worker(settings_of(name))) for name, _ in NETWORKS}
            rounds = range(options.rounds or (2 if options.quick else 12))
            for turn in tqdm(rounds, desc=f"{model}, {side}x{side}"):
                for i in range(len(NETWORKS)):
                    name, contexts = NETWORKS[(turn + i) % len(NETWORKS)]
                    case = {"model": model, "side": side, "contexts": contexts}
                    case["images"] = images // contexts
                    request = {"case": case, "methods": [name], "warm_up": 1, "rounds": 1}
                    answer = workers[name].ask("net", **request)
                    times.setdefault(name, []).extend(answer["times"][name])
                    memory[name] = answer["peak_mb"]
        title = f"{model}-resnet50, {images} images of {side}x{side}"
        results = {method: summary(found) for method, found in times.items()}
        rows.append({"title": title, "results": results, "peak_mb": memory})
    return rows


def net_table(rows: Sequence[Row]) -> str:
    """Tabulate each network, with ratios to one context with BatchNorm."""
    head = ["case", "norm", "contexts", "ms", "ratio", "peak MB", "ratio"]
    lines = []
    for row in rows:
        memory = row["peak_mb"]
        for name, contexts in NETWORKS:
            line = [row["title"], TITLES[name], str(contexts), cell(row["results"][name])]
            line += [f"{ratio(row, name, NETWORK_BASE):.2f}", f"{memory[name]:.0f}"]
            lines.append([*line, f"{memory[name] / memory[NETWORK_BASE]:.2f}"])
    return format_table(head, lines)


def run_inplace(options: argparse.Namespace) -> list[Row]:
    """Measure the memory of training steps of FCN-ResNet50 with leaky ReLU, on one context."""
    methods = ("batchnorm", "inplace") if options.quick else ("batchnorm", "fused", "inplace")
    (side,) = options.sides or [64 if options.quick else 480]
    case = {"model": "fcn", "side": side, "contexts": 1, "images": 1 if options.quick else 4}
    case["leaky"] = True
    rounds = options.rounds or (1 if options.quick else 3)
    planned, peak, before = {}, {}, {}
    sides = {"batchnorm": side}
    with Worker(ONE_WORKSPACE) as worker:
        for method in methods:
            planned[method] = worker.ask("plan", case=case, methods=[method])["mb"]
        for method in methods[1:]:
            request = {"case": case, "methods": [method], "largest_mb": planned["batchnorm"]}
            sides[method] = worker.ask("plan", **request)["side"]
    for method in tqdm(methods):
        with Worker(ONE_WORKSPACE) as worker:
            answer = worker.ask("peak", case=case, methods=[method], rounds=rounds)
        peak[method], before[method] = answer["mb"], answer["before_mb"]
    kinds = (
        ("planned by MXNet, MB", planned),
        ("peak of the process, MB", peak),
        ("the same before the first step, MB", before),
        ("side of a crop that fits BatchNorm's plan", sides),
    )
    title = f"{case['images']} x {side}x{side}"
    return [{"title": f"{title}, {kind}", "case": case, "values": v} for kind, v in kinds]


def inplace_table(rows: Sequence[Row]) -> str:
    """Tabulate memory of networks, with ratios to BatchNorm."""
    methods = [method for method in TITLES if method in rows[0]["values"]]
    head = ["FCN-ResNet50, leaky ReLU", *(TITLES[m] for m in methods), "in place / BatchNorm"]
    lines = []
    for row in rows:
        values = row["values"]
        share = values["inplace"] / values["batchnorm"]
        lines.append([row["title"], *(f"{values[m]:.0f}" for m in methods), f"{share:.2f}"])
    return format_table(head, lines)


def run_accuracy(options: argparse.Namespace) -> list[Row]:
    """Compare float32 outputs with float64, by the mean of the data."""
    rows: list[Row] = []
    # BatchNorm has all of it on one context: it does not synchronize.
    groups = (
        (WITHOUT_ONEDNN, ["ours", "builtin"], 2),
        (WITHOUT_ONEDNN, ["batchnorm"], 1),
        (WITH_ONEDNN, ["batchnorm_onednn"], 1),
    )
    for mean in tqdm((0, 1e3) if options.quick else (0, 10, 100, 1e3, 1e4), unit="case"):
        errors: dict[str, float] = {}
        for settings, methods, contexts in groups:
            case = {"shape": (8 // contexts, 8, 32, 32), "contexts": contexts, "mean": mean}
            with Worker(settings) as worker:
                errors.update(worker.ask("accuracy", case=case, methods=methods)["errors"])
        rows.append({"title": f"mean {mean:g}", "case": {"mean": mean}, "errors": errors})
    return rows


def accuracy_table(rows: Sequence[Row]) -> str:
    """Tabulate errors."""
    methods = [key for key in TITLES if key in rows[0]["errors"]]
    head = ["data, deviation 1", *(TITLES[method] for method in methods)]
    return format_table(
        head, [[row["title"], *(f"{row['errors'][m]:.1e}" for m in methods)] for row in rows]
    )


COMMANDS = {
    "op": (run_op, time_table),
    "fused": (run_fused, time_table),
    "net": (run_net, net_table),
    "inplace": (run_inplace, inplace_table),
    "accuracy": (run_accuracy, accuracy_table),
}


def main() -> int:
    """Run a benchmark; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--quick", action="store_true", help="small and few cases: does it work?")
    parser.add_argument("--out", type=Path, help="file for results (runs/benchmark-COMMAND.json)")
    networks = parser.add_argument_group("net and inplace")
    networks.add_argument("--models", nargs="+", choices=("fcn", "psp", "deeplab"))
    networks.add_argument(
        "--sides", nargs="+", type=int, help="sides of images (default: 96, inplace: 480)"
    )
    networks.add_argument("--rounds", type=int, help="runs of each (default: 12, inplace: 3)")
    options = parser.parse_args()
    run, tabulate = COMMANDS[options.command]
    rows = run(options)
    print(f"\n{tabulate(rows)}\n")
    file = options.out or Path("runs") / f"benchmark-{options.command}.json"
    write_json(file, rows)
    print(f"results: {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
