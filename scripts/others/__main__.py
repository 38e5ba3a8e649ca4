"""Runs programs of others with and without gluon_syncbn; scripts/others.sh calls it."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator, Sequence, Tuple

import numpy as np

from . import suites
from .training import BLOCKS, SYMBOLS

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
BUILD = REPOSITORY / "build/others"
FOLDERS = ("mxnet", "gluoncv", "simpledet", "mxnext", "fork", "insightface", "resnest", "imgclsmob")

MXNET_LEFT_OUT = ("test_predictor", "test_tvm_op")  # need libraries that the wheel has not
# Its amp.init() asks for an operator that the library of 2.0.0b1 has not.
FORK_LEFT_OUT = "tests/layer/test_mixed_precision.py::test_amp"
GLUONCV_TESTS = (
    ("unittests/test_nn.py", ()),
    ("model_zoo/test_model_zoo.py", ("-k", "bn or yolo")),
)
GLUONCV_SCRIPTS = {
    "segmentation/train.py": "--dataset pascal_voc --model fcn --ngpus 2 --workers 2 "
    "--batch-size 4 --test-batch-size 4 --base-size 104 --crop-size 96 --epochs 1",
    "detection/yolo/train_yolo3.py": "--network mobilenet1.0 --data-shape 96 --no-random-shape "
    "--gpus 0,1 --num-workers 0 --batch-size 4 --epochs 1",
    "detection/ssd/train_ssd.py": "--network mobilenet1.0 --data-shape 512 --gpus 0,1 "
    "--num-workers 0 --batch-size 4 --epochs 1",
}

Row = Tuple[str, str, str]  # the program, how it ran, and what differs


def mxnet_tests(options: argparse.Namespace) -> Iterator[Row]:
    """Run MXNet's own tests in all modes, and compare the outcomes test by test."""
    tests = suites.copy_tests(options.mxnet / "tests/python", BUILD / "mxnet")
    names = [Path(f"unittest/test_{name}.py") for name in options.tests or ()]
    files = names or [file.relative_to(tests) for file in sorted(tests.glob("unittest/test_*.py"))]
    files = [file for file in files if file.stem not in MXNET_LEFT_OUT]
    yield from suites.compare("MXNet 1.9.1, tests/python/unittest", tests, [(f, ()) for f in files])


def gluoncv_tests(options: argparse.Namespace) -> Iterator[Row]:
    """Run GluonCV's tests that make networks with a norm_layer."""
    tests = suites.copy_tests(options.gluoncv / "tests", BUILD / "gluoncv")
    files = [(Path(file), extra) for file, extra in GLUONCV_TESTS]
    yield from suites.compare("GluonCV, tests", tests, files)


def gluoncv_scripts(options: argparse.Namespace) -> Iterator[Row]:
    """Run GluonCV's training scripts with --syncbn on two CPU contexts."""
    for script, arguments in GLUONCV_SCRIPTS.items():
        folder = BUILD / "gluoncv-scripts" / Path(script).stem
        (folder / "home").mkdir(parents=True, exist_ok=True)
        command = [HERE / "gluoncv_script.py", options.gluoncv / "scripts" / script]
        command += [*arguments.split(), "--syncbn"]
        ours = run(
            ["-m", "gluon_syncbn", "run", *command], folder, folder / "log", HOME=folder / "home"
        )
        said = " ".join(re.findall("gluon_syncbn: (.*)", (folder / "log").read_text()))
        differs = (
            "nothing" if ours == 0 and "synchronized cpu(0), cpu(1)" in said else f"{ours}: {said}"
        )
        yield f"GluonCV, scripts/{script}", "--syncbn, 2 contexts, random images; ends", differs


def trainings(names: Sequence[str], folders: Sequence[Path]) -> Iterator[Row]:
    """Train networks, and compare all parameters with those of BatchNorm on one context."""
    for name in names:
        folder = BUILD / "trainings"
        folder.mkdir(parents=True, exist_ok=True)
        command = ["-m", "others.training", name]
        plain = folder / f"{name}.npz"
        run([*command, "1", plain, *folders], folder, folder / f"{name}.log")
        for contexts in (2, 4):
            ours = folder / f"{name} on {contexts}.npz"
            log = ours.with_suffix(".log")
            ours.unlink(missing_ok=True)
            status = run(
                ["-m", "gluon_syncbn", "run", "--convert", *command, str(contexts), ours, *folders],
                folder,
                log,
            )
            if not plain.exists():
                differs = "it does not run plainly"
            elif not ours.exists():
                differs = f"status {status}: {last_error(log)}"
            else:
                differs = difference(dict(np.load(plain)), dict(np.load(ours)))
            yield name, f"{contexts} contexts beside 1, float64", differs


def difference(plain: dict[str, Any], ours: dict[str, Any]) -> str:
    """Say which arrays differ by more than rounding, and how much."""
    if set(plain) != set(ours):
        return "names: " + ", ".join(sorted(set(plain) ^ set(ours))[:4])
    errors = {}
    for name, expected in plain.items():
        # The gradient of a bias in front of a norm is zero, and rounding is all that it has.
        scale = max(float(np.abs(expected).max()), 1e-6)
        errors[name] = float(np.abs(ours[name] - expected).max()) / scale
    # MXNet's BatchNorm holds the momentum of its moving averages in float32.
    is_float32 = [bool(re.search("(moving|running)_|inference", name)) for name in errors]
    far = [
        f"{name} ({error:.0e})"
        for (name, error), float32 in zip(errors.items(), is_float32)
        if not error < (1e-5 if float32 else 1e-6)
    ]
    return "nothing" if not far else f"{len(far)} of {len(errors)} arrays: " + ", ".join(far[:3])


def fork(options: argparse.Namespace) -> Iterator[Row]:
    """Run this project's tests for MXNet 2 with the fork's Python package on MXNet 2's library."""
    package = BUILD / "fork"
    suites.copy_tests(options.fork / "python", package)
    base = package / "python/mxnet/base.py"
    base.write_text(base.read_text().replace("MXConfigureFlushDenorms", "MXSetFlushDenorms"))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    mxnet2 = REPOSITORY / f".venv-mxnet2/lib/{version}/site-packages/mxnet"
    for library in mxnet2.glob("lib*.so*"):  # its libgfortran too
        link = package / "python/mxnet" / library.name
        link.unlink(missing_ok=True)
        link.symlink_to(library)
    written = package / "outcomes.jsonl"
    written.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "MXNET2_PACKAGES": os.pathsep.join([str(package / "python"), str(HERE)]),
        "OTHERS_OUTCOMES": str(written),
    }
    with (package / "log").open("wb") as log:
        command = ["bash", str(REPOSITORY / "scripts/test.sh"), "--mxnet2"]
        command += ["-q", "-p", "outcomes", "--deselect", FORK_LEFT_OUT]
        subprocess.run(
            command,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    outcomes = suites.read(written)
    wrong = [
        test for test, (outcome, _) in outcomes.items() if outcome not in ("passed", "skipped")
    ]
    how = f"its Python on the library of 2.0.0b1: {len(outcomes)} of our tests"
    yield "smolix/mxnet", how, "; ".join(wrong) or ("nothing" if outcomes else "no test ran")


def run(arguments: list[Any], folder: Path, log: Path, **environment: Any) -> int:
    """Run Python with arguments in a folder, and return the status (124: it took too long)."""
    variables = {**os.environ, "PYTHONPATH": f"{BUILD / 'ours'}{os.pathsep}{HERE.parent}"}
    variables.update({name: str(value) for name, value in environment.items()})
    with log.open("wb") as file:
        return suites.run_python(arguments, folder, file, variables, timeout=1200)


def last_error(log: Path) -> str:
    """Return the last line of a log that says why a program failed."""
    lines = [line for line in log.read_text().splitlines() if not line.startswith("gluon_syncbn:")]
    return (lines or ["no message"])[-1][:120]


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Run what the given folders allow."""
    if options.simpledet and options.mxnext:
        names = [name for name in SYMBOLS if name.startswith("SimpleDet")]
        yield from trainings(names, [options.simpledet, options.mxnext])
    if options.insightface:
        folder = options.insightface / "recognition/arcface_mxnet"
        names = [name for name in SYMBOLS if name.startswith("insightface")]
        yield from trainings(names, [folder, folder / "symbol"])
    for name, folder in (("ResNeSt", options.resnest), ("imgclsmob", options.imgclsmob)):
        if folder:
            names = [each for each in BLOCKS if each.startswith(name)]
            yield from trainings(names, [folder, folder / "gluon"])
    if options.gluoncv:
        yield from gluoncv_scripts(options)
        yield from gluoncv_tests(options)
    if options.fork:
        yield from fork(options)
    if options.mxnet:
        if not options.tests:
            names = [name for name in SYMBOLS if name.startswith("MXNet example")]
            yield from trainings(names, [options.mxnet / "example/image-classification"])
        yield from mxnet_tests(options)


def main() -> None:
    """Run, keep the rows, and print the table of all rows kept."""
    parser = argparse.ArgumentParser(prog="scripts/others.sh", description=__doc__)
    for name in FOLDERS:
        parser.add_argument(f"--{name}", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--tests", nargs="+", metavar="NAME", help="of MXNet's test files, these only"
    )
    options = parser.parse_args()
    for name in FOLDERS:
        folder = getattr(options, name)
        setattr(options, name, folder and folder.resolve())
    kept = BUILD / "rows.json"
    for program, how, differs in rows(options):
        print(f"{program} | {how}: {differs}", file=sys.stderr)
        # Reads it again, because another run may write to it at the same time.
        table = json.loads(kept.read_text()) if kept.exists() else {}
        table[f"{program} | {how}"] = [differs, datetime.date.today().isoformat()]
        kept.write_text(json.dumps(table, indent=1))
    print("| program | how | what differs | date |\n| --- | --- | --- | --- |")
    for case, (differs, date) in sorted(json.loads(kept.read_text()).items()):
        print(f"| {case} | {differs} | {date} |")


if __name__ == "__main__":
    main()
