"""Time gluon_syncbn.SyncBatchNorm beside MXNet's layers, plain copies of memory and PyTorch.

The methods take turns on the same machine, so that their ratios hold even if it is busy. Prints a
table of medians and quartiles.

  op        forward and backward of one layer, shapes of segmentation networks
  fused     the same followed by a ReLU, and by a sum and a ReLU: in one pass, or one by one
  net       training steps of FCN, PSPNet and DeepLabV3 on ResNet-50, and peak memory; with
            --models resnet50 of MXNet's ResNet-50, which runs on MXNet 2 too
  inplace   memory of training FCN-ResNet50 with leaky ReLU, in place and not
  accuracy  errors against float64, by the mean of the data
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
from tqdm import tqdm

from benchmarks import charts, layers, networks
from benchmarks.layers import Case
from benchmarks.report import format_table
from benchmarks.worker import ONE_WORKSPACE, Worker, peak_mb, settings_of, take_turns

# The order of the columns.
TITLES = {
    "ours": "gluon_syncbn",
    "fused": "gluon_syncbn, fused",
    "inplace": "gluon_syncbn, in place",
    "ours_whole": "gluon_syncbn",
    "batchnorm": "BatchNorm",
    "batchnorm_onednn": "BatchNorm, oneDNN",
    "batchnorm_whole_onednn": "BatchNorm, oneDNN",
    "builtin": "contrib SyncBatchNorm",
    "copies": "8 copies",
    "torch": "PyTorch",
}

MAIN_SHAPES = ((4, 64, 64, 64), (2, 256, 60, 60), (8, 64, 128, 128))
# Further activations of networks on ResNet: the first layer and the last, at a crop of 480.
NETWORK_SHAPES = ((2, 64, 240, 240), (2, 2048, 60, 60), (4, 2048, 7, 7))
TINY = (2, 4, 2, 2)  # Its time is the fixed cost of a round.
SMALL = (2, 8, 16, 16)

# Norms of whole networks, each with the number of contexts that share the batch. BatchNorm runs in
# MXNet as it comes, with oneDNN.
NETWORK_BASE = "batchnorm_whole_onednn"
NETWORKS = (
    ("ours", 2),
    ("fused", 2),
    ("ours_whole", 1),
    ("batchnorm_onednn", 2),
    (NETWORK_BASE, 1),
    ("builtin", 2),
)

Times = Dict[str, List[float]]
Table = Tuple[List[str], List[List[Any]]]  # the head, and the lines


def ratio(times: Times, method: str, *others: str) -> float | None:
    """Median of a method over the least median of others; None if one is missing."""
    medians = [float(np.median(times[other])) for other in others if other in times]
    return float(np.median(times[method])) / min(medians) if method in times and medians else None


def methods_of(case: Case) -> dict[str, list[str]]:
    """List the methods that each worker times for a case: those that can compute it."""
    if case.tail:
        return {"plain": ["fused", "ours", "batchnorm"], "onednn": ["batchnorm_onednn"]}
    methods = {"plain": ["ours", "batchnorm", "copies"]}
    if case.axis == 1 and case.dtype == "float32":
        methods["onednn"] = ["batchnorm_onednn"]
        if case.training:  # In inference MXNet's SyncBatchNorm is the same as its BatchNorm.
            methods["builtin"] = ["builtin"]  # alone, because it may wait forever
    if importlib.util.find_spec("torch") and case.dtype != "float16":
        methods["torch"] = ["torch"]
    return methods


def time_layers(cases: list[Case], ratios: dict[str, tuple[str, ...]], quick: bool) -> Table:
    """Time the cases of one layer on all workers in turns, and add ratios."""
    turns, rounds = (1, 3) if quick else (3, 5)
    found: list[Times] = []
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(settings_of(name)))
            for name in sorted({name for case in cases for name in methods_of(case)})
        }
        for case in tqdm(cases, unit="case"):
            tasks = [(workers[name], case, methods) for name, methods in methods_of(case).items()]
            found.append(take_turns(layers.make_step, tasks, range(turns), rounds))
    methods = [method for method in TITLES if any(method in times for times in found)]
    lines = []
    for case, times in zip(cases, found):
        shares = [ratio(times, *names) for names in ratios.values()]
        lines.append([case.title, *shares, *map(times.get, methods)])
    return ["case", *ratios, *(f"{TITLES[method]}, ms" for method in methods)], lines


def run_op(options: argparse.Namespace) -> Table:
    """Time one layer on arrays of real networks."""
    cases = [Case(shape, contexts) for contexts in (2, 4, 1) for shape in MAIN_SHAPES]
    cases += [Case(shape) for shape in NETWORK_SHAPES]
    cases += [Case(TINY, contexts) for contexts in (1, 2, 4, 8)]
    cases += [Case((n, h, w, c), axis=-1) for n, c, h, w in MAIN_SHAPES]
    cases += [Case(shape, dtype="float16") for shape in MAIN_SHAPES]
    cases += [Case(MAIN_SHAPES[1], dtype="float64")]
    cases += [Case(shape, training=False) for shape in MAIN_SHAPES]
    if options.quick:
        cases = [Case(SMALL), Case((2, 16, 16, 8), axis=-1, training=False)]
    ratios = {
        "ours / BatchNorm": ("ours", "batchnorm", "batchnorm_onednn"),
        "contrib / ours": ("builtin", "ours"),
        "ours / copies": ("ours", "copies"),
    }
    return time_layers(cases, ratios, options.quick)


def run_fused(options: argparse.Namespace) -> Table:
    """Time a norm followed by a ReLU, and by the sum of a residual block and a ReLU."""
    cases = [
        Case(shape, contexts, tail=tail)
        for tail in ("ReLU", "add and ReLU")
        for contexts in ((2,) if options.quick else (2, 4))
        for shape in ((SMALL,) if options.quick else MAIN_SHAPES)
    ]
    ratios = {
        "fused / ours": ("fused", "ours"),
        "fused / BatchNorm": ("fused", "batchnorm", "batchnorm_onednn"),
    }
    return time_layers(cases, ratios, options.quick)


def run_net(options: argparse.Namespace) -> Table:
    """Time training steps of whole networks on the same batch, and their peak memory.

    The ratios compare with BatchNorm on one context.
    """
    images = 2 if options.quick else 4
    models = options.models or (["fcn"] if options.quick else ["fcn", "psp", "deeplab"])
    rounds = options.rounds or (2 if options.quick else 12)
    lines: list[list[Any]] = []
    for model, side in itertools.product(models, options.sides or [32 if options.quick else 96]):
        title = f"{model}-resnet50, {images} images of {side}x{side}".replace("resnet50-", "")
        methods = [each for each in NETWORKS if (model, each[0]) != ("resnet50", "fused")]
        with contextlib.ExitStack() as stack:
            tasks = []
            for name, contexts in methods:
                worker = stack.enter_context(Worker(settings_of(name)))
                tasks.append((worker, networks.Case(model, side, images, contexts), [name]))
            turns = tqdm(range(rounds), desc=title)
            times = take_turns(networks.training_step, tasks, turns, 1)
            memory = {name: worker.ask(peak_mb) for worker, _, (name,) in tasks if name in times}
        for name, contexts in methods:
            line = [title, TITLES[name], contexts]
            if name in times:
                line += [times[name], ratio(times, name, NETWORK_BASE)]
                lines.append([*line, memory[name], memory[name] / memory[NETWORK_BASE]])
            else:
                lines.append([*line, *4 * [None]])
    return ["case", "norm", "contexts", "ms", "ratio", "peak MB", "ratio"], lines


def run_inplace(options: argparse.Namespace) -> Table:
    """Measure the memory of training steps of FCN-ResNet50 with leaky ReLU, on one context."""
    (side,) = options.sides or [64 if options.quick else 480]
    case = networks.Case("fcn", side, images=1 if options.quick else 4, leaky=True)
    rounds = options.rounds or (1 if options.quick else 3)
    methods = ["batchnorm", "fused", "inplace"]
    with Worker(ONE_WORKSPACE) as worker:
        planned = [worker.ask(networks.planned_mb, method, case) for method in methods]
        sides = [
            worker.ask(networks.largest_side, method, case, planned[0]) for method in methods[1:]
        ]
    peaks = []
    for method in tqdm(methods):
        with Worker(ONE_WORKSPACE) as worker:
            peaks.append(worker.ask(networks.measure_peak, method, case, rounds))
    kinds = {
        "planned by MXNet, MB": planned,
        "peak of the process, MB": [peak for peak, _ in peaks],
        "the same before the first step, MB": [before for _, before in peaks],
        "side of a crop that fits BatchNorm's plan": [side, *sides],
    }
    titles = [TITLES[method] for method in methods]
    case_title = f"{case.images} x {side}x{side}"
    return (
        ["FCN-ResNet50, leaky ReLU", *titles, "in place / BatchNorm"],
        [[f"{case_title}, {kind}", *v, v[-1] / v[0]] for kind, v in kinds.items()],
    )


def run_accuracy(options: argparse.Namespace) -> Table:
    """Compare float32 outputs with float64, by the mean of the data."""
    # BatchNorm gets all data on one context, because it does not synchronize.
    methods = {"ours": 2, "batchnorm": 1, "batchnorm_onednn": 1, "builtin": 2}
    means = (0, 1000) if options.quick else (0, 10, 100, 1000, 10000)
    lines = [[f"mean {mean}"] for mean in means]
    for method, contexts in tqdm(methods.items()):
        with Worker(settings_of(method)) as worker:
            for mean, line in zip(means, lines):
                case = Case((8 // contexts, 8, 32, 32), contexts, mean=mean)
                line.append(f"{worker.ask(layers.largest_error, method, case):.1e}")
    return ["data, deviation 1", *(TITLES[method] for method in methods)], lines


COMMANDS: dict[str, Callable[[argparse.Namespace], Table]] = {
    "op": run_op,
    "fused": run_fused,
    "net": run_net,
    "inplace": run_inplace,
    "accuracy": run_accuracy,
}


def main() -> None:
    """Run a benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=COMMANDS, nargs="?")
    parser.add_argument("--quick", action="store_true", help="a few small cases, as a test")
    parser.add_argument("--csv", type=Path, help="of op and net: keep the medians in this file")
    parser.add_argument("--plot", type=Path, help="draw bar charts of --csv into this folder")
    group = parser.add_argument_group("net and inplace")
    group.add_argument("--models", nargs="+", choices=("fcn", "psp", "deeplab", "resnet50"))
    group.add_argument(
        "--sides", nargs="+", type=int, help="sides of images (default: 96, inplace: 480)"
    )
    group.add_argument("--rounds", type=int, help="runs of each (default: 12, inplace: 3)")
    options = parser.parse_args()
    if options.command is None and not options.plot:
        parser.error("a benchmark, or --plot, is missing")
    if options.plot and not options.csv:
        parser.error("--plot draws what --csv names")
    if options.command:
        head, lines = COMMANDS[options.command](options)
        print("\n" + format_table(head, lines))
        if options.csv and options.command in charts.CHARTS:
            charts.write(options.csv, charts.medians_of(options.command, head, lines))
    if options.plot:
        print("written:", *charts.draw(options.plot, charts.read(options.csv)))


if __name__ == "__main__":
    main()
