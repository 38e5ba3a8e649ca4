"""The subcommands of scripts/benchmark.py."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report import TITLES, Row, format_table, ratio, summary
from benchmarks.worker import (
    ONE_WORKSPACE,
    WITH_ONEDNN,
    WITHOUT_BULKS,
    WITHOUT_ONEDNN,
    Worker,
)
from progress import progress

BETWEEN_WORKERS = 0.05  # seconds in which threads of one process stop looking for work

MAIN_SHAPES = ((4, 64, 64, 64), (2, 256, 60, 60), (8, 64, 128, 128))
# Further activations of networks on ResNet: the first layer and the last, at a crop of 480.
NETWORK_SHAPES = ((2, 64, 240, 240), (2, 512, 60, 60), (2, 2048, 60, 60), (4, 2048, 7, 7))


def case_title(case: Mapping[str, Any]) -> str:
    """Name a case."""
    parts = [f"{case['contexts']} x {tuple(case['shape'])}"]
    if case.get("dtype", "float32") != "float32":
        parts.append(case["dtype"])
    if case.get("axis", 1) != 1:
        parts.append("channel last")
    if case.get("mode", "training") != "training":
        parts.append(case["mode"])
    if "tail" in case:
        parts.append(f"norm, {case['tail']}")
    return ", ".join(parts)


def op_cases(quick: bool) -> list[dict[str, Any]]:
    """List the cases of `op`, the goals' shapes first."""
    if quick:
        small = {"shape": (2, 8, 16, 16), "contexts": 2}
        return [small, {**small, "shape": (2, 16, 16, 8), "axis": -1, "mode": "inference"}]
    cases = [{"shape": s, "contexts": k} for k in (2, 4) for s in MAIN_SHAPES]
    cases += [{"shape": s, "contexts": 1} for s in MAIN_SHAPES]
    cases += [{"shape": s, "contexts": 2} for s in NETWORK_SHAPES]
    last = [(n, h, w, c) for n, c, h, w in MAIN_SHAPES]
    cases += [{"shape": s, "contexts": 2, "axis": -1} for s in last]
    cases += [{"shape": s, "contexts": 2, "dtype": "float16"} for s in MAIN_SHAPES]
    cases += [{"shape": MAIN_SHAPES[1], "contexts": 2, "dtype": "float64"}]
    cases += [{"shape": s, "contexts": k, "mode": "inference"} for k in (1, 2) for s in MAIN_SHAPES]
    return cases


def op_methods(case: Mapping[str, Any]) -> dict[str, list[str]]:
    """List what each worker times for a case: not what a peer cannot do."""
    plain = ["ours", "batchnorm", "copies"]
    # MXNet's own synchronized layer knows float data with the channel second only; in inference it
    # is BatchNorm.
    if (
        case.get("dtype", "float32") == "float32"
        and case.get("axis", 1) == 1
        and case.get("mode", "training") == "training"
    ):
        plain.insert(2, "builtin")
    methods = {"plain": plain}
    if case.get("axis", 1) == 1 and case.get("dtype", "float32") == "float32":
        methods["onednn"] = ["batchnorm_onednn"]
    if importlib.util.find_spec("torch") and case.get("dtype", "float32") != "float16":
        methods["torch"] = ["torch"]
    return methods


def time_case(
    workers: Mapping[str, Worker],
    methods: Mapping[str, Sequence[str]],
    case: Mapping[str, Any],
    turns: int,
    rounds: int,
) -> dict[str, Any]:
    """Time a case on all workers in turns."""
    times: dict[str, list[float]] = {}
    for _ in range(turns):
        for name, wanted in methods.items():
            time.sleep(BETWEEN_WORKERS)
            answer = workers[name].ask("op", case=case, methods=wanted, warm_up=2, rounds=rounds)
            for method, seconds in answer["times"].items():
                times.setdefault(method, []).extend(seconds)
    return {method: summary(values) for method, values in times.items()}


def start(stack: contextlib.ExitStack, names: Sequence[str]) -> dict[str, Worker]:
    """Start a worker for each name; ``onednn`` is the one with oneDNN."""
    return {
        name: stack.enter_context(Worker(WITH_ONEDNN if name == "onednn" else WITHOUT_ONEDNN))
        for name in names
    }


def run_op(options: argparse.Namespace) -> list[Row]:
    """Time one layer on arrays of real networks."""
    cases = op_cases(options.quick)
    turns, rounds = (1, 3) if options.quick else (3, 5)
    needed = sorted({name for case in cases for name in op_methods(case)})
    rows = []
    with contextlib.ExitStack() as stack:
        workers = start(stack, needed)
        for case in progress(cases, desc="op", unit="case"):
            results = time_case(workers, op_methods(case), case, turns, rounds)
            rows.append({"title": case_title(case), "case": case, "results": results})
    for row in rows:
        ratios = {
            "ours / BatchNorm": ratio(row, "ours", ["batchnorm", "batchnorm_onednn"]),
            "contrib / ours": ratio(row, "builtin", ["ours"]),
            "ours / copies": ratio(row, "ours", ["copies"]),
        }
        row["ratios"] = {name: value for name, value in ratios.items() if value is not None}
    return rows


def run_fused(options: argparse.Namespace) -> list[Row]:
    """Time a norm with the ReLU behind it, and with the sum of a residual block in between."""
    shapes = ((2, 8, 16, 16),) if options.quick else MAIN_SHAPES
    contexts = (2,) if options.quick else (2, 4)
    turns, rounds = (1, 3) if options.quick else (3, 5)
    methods = {"plain": ["fused", "ours", "batchnorm"], "onednn": ["batchnorm_onednn"]}
    cases = [
        {"shape": shape, "contexts": number, "tail": tail}
        for tail in ("ReLU", "add and ReLU")
        for number in contexts
        for shape in shapes
    ]
    rows = []
    with contextlib.ExitStack() as stack:
        workers = start(stack, list(methods))
        for case in progress(cases, desc="fused", unit="case"):
            results = time_case(workers, methods, case, turns, rounds)
            rows.append({"title": case_title(case), "case": case, "results": results})
    for row in rows:
        row["ratios"] = {
            "fused / ours": ratio(row, "fused", ["ours"]),
            "fused / BatchNorm": ratio(row, "fused", ["batchnorm", "batchnorm_onednn"]),
        }
    return rows


def run_overhead(options: argparse.Namespace) -> list[Row]:
    """Time one round on an array that takes no time itself."""
    rows = []
    methods = {"plain": ["ours", "builtin1", "batchnorm"]}
    contexts = (1, 2) if options.quick else (1, 2, 4, 8)
    turns, rounds = (1, 5) if options.quick else (5, 60)
    with contextlib.ExitStack() as stack:
        workers = start(stack, list(methods))
        for number in progress(contexts, desc="overhead", unit="case"):
            case = {"shape": (2, 4, 2, 2), "contexts": number}
            results = time_case(workers, methods, case, turns, rounds)
            rows.append({"title": case_title(case), "case": case, "results": results})
    for row in rows:
        row["ratios"] = {"ours / contrib1": ratio(row, "ours", ["builtin1"])}
    return rows


def network_options(options: argparse.Namespace, side: int) -> tuple[list[str], int, int]:
    """Say which models to run how often on images of which side, by default `side`."""
    models = options.models or (["fcn"] if options.quick else ["fcn", "psp", "deeplab"])
    rounds = options.rounds or (2 if options.quick else 12)
    return models, rounds, options.side or (32 if options.quick else side)


def design(model: str, side: int, quick: bool) -> dict[str, Any]:
    """Describe a network: on ResNet-50, unless a smaller one will do."""
    backbone = "resnet18" if quick and model == "fcn" else "resnet50"
    return {"model": model, "backbone": backbone, "side": side}


def training_row(model: str, side: int, quick: bool) -> Row:
    """Begin the row of a network's training steps on two contexts."""
    case = {**design(model, side, quick), "images": 1 if quick else 2, "contexts": 2}
    return {
        "title": f"{model}-{case['backbone']}, 2 x {case['images']} images of {side}x{side}",
        "case": case,
    }


def run_net(options: argparse.Namespace) -> list[Row]:
    """Time hybridized training steps of whole networks, and their peak memory."""
    models, rounds, side = network_options(options, 96)
    rows = []
    for model in models:
        row = training_row(model, side, options.quick)
        times: dict[str, list[float]] = {}
        memory = {}
        with contextlib.ExitStack() as stack:
            methods = ["ours", "ours1", "batchnorm", "builtin"]
            if options.fuse:
                methods.insert(0, "fused")
            workers = {name: stack.enter_context(Worker(WITHOUT_ONEDNN)) for name in methods}
            for turn in progress(range(rounds), desc=model, unit="round"):
                for i in range(len(methods)):
                    name = methods[(turn + i) % len(methods)]
                    answer = workers[name].ask(
                        "net", case=row["case"], methods=[name], warm_up=1, rounds=1
                    )
                    times.setdefault(name, []).extend(answer["times"][name])
                    memory[name] = answer["peak_mb"]
        row["results"] = {method: summary(values) for method, values in times.items()}
        row["peak_mb"] = memory
        row["ratios"] = {
            "ours / BatchNorm": ratio(row, "ours", ["batchnorm"]),
            # The same work without waiting for each other.
            "ours1 / BatchNorm": ratio(row, "ours1", ["batchnorm"]),
            "contrib / ours": ratio(row, "builtin", ["ours"]),
            "memory, ours / BatchNorm": memory["ours"] / memory["batchnorm"],
            "memory, contrib / ours": memory["builtin"] / memory["ours"],
        }
        if options.fuse:
            row["ratios"]["fused / BatchNorm"] = ratio(row, "fused", ["batchnorm"])
            row["ratios"]["memory, fused / BatchNorm"] = memory["fused"] / memory["batchnorm"]
        rows.append(row)
    return rows


def run_waiting(options: argparse.Namespace) -> list[Row]:
    """Time training steps beside what they would take if BatchNorm's contexts met at each norm."""
    models, rounds, side = network_options(options, 96)
    rows = []
    for model in progress(models, desc="waiting", unit="network"):
        row = training_row(model, side, options.quick)
        times: dict[str, list[float]] = {}
        for settings, task, methods in (
            (WITHOUT_ONEDNN, "net", ["ours", "batchnorm"]),
            (WITHOUT_BULKS, "lockstep", []),
        ):
            with Worker(settings) as worker:
                answer = worker.ask(
                    task, case=row["case"], methods=methods, warm_up=1, rounds=rounds
                )
            times.update(answer["times"])
        row["results"] = {method: summary(values) for method, values in times.items()}
        row["ratios"] = {
            "ours / BatchNorm": ratio(row, "ours", ["batchnorm"]),
            "lockstep / traced": ratio(row, "lockstep", ["traced"]),
        }
        rows.append(row)
    return rows


def run_deploy(options: argparse.Namespace) -> list[Row]:
    """Time inference of networks before and after export and folding."""
    models, rounds, side = network_options(options, 240)
    # The first worker comes first, because it exports.
    methods = {
        "plain": ["ours", "exported", "folded"],
        "onednn": ["exported_onednn", "folded_onednn"],
    }
    rows = []
    for model in models:
        times: dict[str, list[float]] = {}
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            case = {**design(model, side, options.quick), "images": 1, "folder": folder}
            workers = start(stack, list(methods))
            for _ in progress(range(rounds), desc=model, unit="round"):
                for name, wanted in methods.items():
                    answer = workers[name].ask(
                        "deploy", case=case, methods=wanted, warm_up=1, rounds=1
                    )
                    for method, seconds in answer["times"].items():
                        times.setdefault(method, []).extend(seconds)
        row: Row = {
            "title": f"{model}-{case['backbone']}, one image of {side}x{side}",
            "case": {key: value for key, value in case.items() if key != "folder"},
            "results": {method: summary(values) for method, values in times.items()},
        }
        row["ratios"] = {
            "exported / ours": ratio(row, "exported", ["ours"]),
            "folded / exported": ratio(row, "folded", ["exported"]),
            "folded / exported, oneDNN": ratio(row, "folded_onednn", ["exported_onednn"]),
        }
        rows.append(row)
    return rows


def run_accuracy(options: argparse.Namespace) -> list[Row]:
    """Compare float32 output and input gradient with float64, by the mean of the data."""
    means = (0, 1e3) if options.quick else (0, 10, 100, 1e3, 1e4)
    methods = {"plain": ["ours", "builtin", "batchnorm"], "onednn": ["batchnorm_onednn"]}
    if importlib.util.find_spec("torch"):
        methods["torch"] = ["torch"]
    rows = []
    with contextlib.ExitStack() as stack:
        workers = start(stack, list(methods))
        for mean in progress(means, desc="accuracy", unit="case"):
            errors: dict[str, Any] = {}
            for name, wanted in methods.items():
                # BatchNorm is measured on one context: it does not synchronize.
                synchronized = [m for m in wanted if not m.startswith("batchnorm")]
                alone = [m for m in wanted if m.startswith("batchnorm")]
                for group, contexts in ((synchronized, 2), (alone, 1)):
                    if group:
                        case = {"shape": (8 // contexts, 8, 32, 32), "contexts": contexts}
                        case["mean"] = mean
                        answer = workers[name].ask("accuracy", case=case, methods=group)
                        errors.update(answer["errors"])
            rows.append({"title": f"mean {mean:g}", "case": {"mean": mean}, "errors": errors})
    return rows


def accuracy_table(rows: Sequence[Row]) -> str:
    """Tabulate errors of output and input gradient."""
    methods = [key for key in TITLES if any(key in row["errors"] for row in rows)]
    head = ["data, deviation 1", *(f"{TITLES[m]}: out, dx" for m in methods)]
    lines = [
        [
            row["title"],
            *(f"{row['errors'][m]['out']:.1e}, {row['errors'][m]['dx']:.1e}" for m in methods),
        ]
        for row in rows
    ]
    return format_table(head, lines)


def run_memory(options: argparse.Namespace) -> list[Row]:
    """Measure what one layer of a chain adds to the peak memory of training."""
    shapes = ((2, 16, 32, 32),) if options.quick else MAIN_SHAPES
    rows = []
    for shape in progress(shapes, desc="memory", unit="case"):
        case = {"shape": shape, "contexts": 2}
        memory = {}
        for method in ("ours", "batchnorm", "builtin"):
            with Worker(WITHOUT_ONEDNN) as worker:
                answer = worker.ask("memory", case=case, methods=[method])
                memory[method] = answer["layer_mb"]
        rows.append({"title": case_title(case), "case": case, "layer_mb": memory})
    return rows


def memory_table(rows: Sequence[Row]) -> str:
    """Tabulate memory."""
    methods = ("ours", "batchnorm", "builtin")
    head = ["case", *(f"{TITLES[method]}, MB a layer" for method in methods)]
    lines = [[r["title"], *(f"{r['layer_mb'][method]:.1f}" for method in methods)] for r in rows]
    return format_table(head, lines)


def run_inplace(options: argparse.Namespace) -> list[Row]:
    """Measure the memory of training steps of FCN-ResNet50 with leaky ReLU, on one context."""
    methods = ("batchnorm", "inplace") if options.quick else ("batchnorm", "fused", "inplace")
    rounds = options.rounds or (1 if options.quick else 3)
    case = {"side": options.side or (64 if options.quick else 480)}
    case["images"] = 1 if options.quick else 4
    planned, peak, before = {}, {}, {}
    sides = {"batchnorm": case["side"]}
    with Worker(ONE_WORKSPACE) as worker:
        for method in methods:
            planned[method] = worker.ask("plan", case=case, methods=[method])["mb"]
        for method in methods[1:]:
            request = {"case": case, "methods": [method], "largest_mb": planned["batchnorm"]}
            sides[method] = worker.ask("plan", **request)["side"]
    for method in progress(methods, desc="inplace", unit="method"):
        with Worker(ONE_WORKSPACE) as worker:
            answer = worker.ask("peak", case=case, methods=[method], rounds=rounds)
        peak[method], before[method] = answer["mb"], answer["before_mb"]
    kinds = (
        ("planned by MXNet, MB", planned),
        ("peak of the process, MB", peak),
        ("the same before the first step, MB", before),
        ("side of a crop that fits BatchNorm's plan", sides),
    )
    title = f"{case['images']} x {case['side']}x{case['side']}"
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
