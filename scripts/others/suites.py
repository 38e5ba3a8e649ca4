"""Runs tests of another project plainly, after an import of gluon_syncbn, and under its run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, Dict, Iterator, Sequence, Tuple

from .outcomes import NO_RESULT

# What comes between "python" and the options for pytest.
MODES: dict[str, tuple[str, ...]] = {
    "plain": ("-m", "pytest"),
    "imported": ("-m", "pytest", "-p", "gluon_syncbn"),
    "run --convert": ("-m", "gluon_syncbn", "run", "--convert", "-m", "pytest"),
}

HERE = str(Path(__file__).parent)
Outcomes = Dict[str, Tuple[str, str]]  # of each test: passed, failed, ..., and its message


def copy_tests(source: Path, folder: Path) -> Path:
    """Copy tests, because they write files and would import the sources beside them."""
    return Path(shutil.copytree(source, folder / source.name, dirs_exist_ok=True))


def compare(
    program: str, tests: Path, files: Sequence[tuple[Path, Sequence[str]]]
) -> Iterator[tuple[str, str, str]]:
    """Run test files in all modes, and yield a row for each mode but the plain one."""
    outcomes: dict[str, Outcomes] = {mode: {} for mode in MODES}
    for file, options in files:
        for mode, known in outcomes.items():
            known.update(run_file(tests / file, mode, tests.parent, options))
        print(
            f"{file}: {differences(outcomes['plain'], outcomes['run --convert'])}", file=sys.stderr
        )
    plain = outcomes.pop("plain")
    failed = sum(outcome not in ("passed", "skipped") for outcome, _ in plain.values())
    how = f"{len(files)} files, {len(plain)} tests, {failed} of which fail plainly"
    for mode, ours in outcomes.items():
        yield program, f"{mode}: {how}", "; ".join(differences(plain, ours)) or "nothing"


def differences(plain: Outcomes, ours: Outcomes) -> list[str]:
    """Say which tests have another outcome."""
    missing = ("did not run", "")
    return [
        f"{test}: {ours.get(test, missing)[0]}, plainly {plain.get(test, missing)[0]}"
        for test in {**plain, **ours}
        if ours.get(test, missing)[0] != plain.get(test, missing)[0]
    ]


def run_file(
    file: Path, mode: str, folder: Path, options: Sequence[str] = (), timeout: int = 3600
) -> Outcomes:
    """Run the tests of a file in a process, and go on after a test that ends the process."""
    written = folder / mode / f"{file.stem}.jsonl"
    written.parent.mkdir(parents=True, exist_ok=True)
    written.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "MXNET_HOME": str(folder / "home"),  # what tests download
        "MXNET_MODULE_SEED": "1",
        "MXNET_TEST_SEED": "1",
        "OTHERS_OUTCOMES": str(written),
        "PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]),
    }
    pytest: tuple[str, ...] = ("-q", "-p", "outcomes", "-p", "no:cacheprovider", "-c", os.devnull)
    # The method ends the process, because a test that hangs in MXNet answers to nothing else.
    pytest += ("--timeout", "300", "--timeout-method", "thread", f"--rootdir={file.parent}")
    outcomes: Outcomes = {}
    with written.with_suffix(".log").open("wb") as log:
        while True:
            command = [*MODES[mode], *pytest, *options, file.name]
            status = run_python(command, file.parent, log, environment, timeout)
            before = len(outcomes)
            outcomes = read(written)
            if len(outcomes) == before and status not in (0, 5):  # 5: no test is left
                return {**outcomes, f"{file.name}": ("failed", f"status {status}")}
            if NO_RESULT not in [outcome for outcome, _ in outcomes.values()][before:]:
                return outcomes


def read(file: Path) -> Outcomes:
    """Read what the plugin has written: the last outcome of a test holds."""
    outcomes: Outcomes = {}
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            test, outcome, message = json.loads(line)
            outcomes[test] = (outcome, message)
    return outcomes


def run_python(
    arguments: Sequence[Any], folder: Path, log: IO, environment: dict[str, str], timeout: int
) -> int:
    """Run Python in a folder, and return its status; 124 says that it took too long."""
    command = [sys.executable, *map(str, arguments)]
    try:
        return subprocess.run(
            command,
            check=False,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=timeout,
        ).returncode
    except subprocess.TimeoutExpired:
        return 124
