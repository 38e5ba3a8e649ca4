"""What ``gluon-syncbn run`` says at the end of a program.

It imports nothing of the package: it also runs where mxnet has not been imported.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Collection

_NAMES_SHOWN = 3

made: set[str] = set()  # the names of the program's layers and nodes that can synchronize
left_layers: dict[str, str] = {}  # the classes of its other norm layers, by their names
left_operators: dict[str, str] = {}  # its other norm operators, by the names of nodes or blocks
rounds: Callable[[], str] = str  # of the library, once mxnet is imported


def report(root: int, file: str) -> None:
    """Add to `file` what a child process of `root` has done; the last line of a process counts."""
    counts = [rounds(), sorted(made), left_layers, left_operators]
    if os.getpid() != root and any(counts):
        line = json.dumps([os.getpid(), *counts]) + "\n"
        with Path(file).open("ab", buffering=0) as stream:  # one write, which others cannot break
            stream.write(line.encode())


def summarize(converts: bool, file: str) -> None:
    """Print which layers synchronized, here and in the children; warn if none did."""
    children = _read_reports(file)
    for _, names, layers, operators in children:
        made.update(names)
        left_layers.update(layers)
        left_operators.update(operators)
    _say_rounds(rounds())
    alike = Counter(text for text, *_ in children)
    for text, number in alike.items():
        _say_rounds(text, f"{_count(number, 'other process', 'es')}: ")
    if not rounds() and not any(alike):
        if made:
            _say(
                f"warning: nothing was synchronized, although the program made "
                f"{_count(len(made), 'SyncBatchNorm')}: none was trained on several devices"
            )
        elif converts:
            _say("warning: nothing was synchronized, because the program made no BatchNorm layer")
        else:
            _say(
                "warning: nothing was synchronized, because the program made no SyncBatchNorm. "
                "Does it need an option, such as --syncbn? run --convert converts plain BatchNorm "
                "layers"
            )
    for left, noun, of, advice in (
        (
            left_layers,
            "layer",
            " of",
            "--convert converts layers that compute what BatchNorm computes",
        ),
        (
            left_operators,
            "operator",
            "",
            "run replaces SyncBatchNorm without output_mean_var, and --convert the BatchNorms of "
            "SymbolBlocks and Modules",
        ),
    ):
        for kind in dict.fromkeys(left.values()):
            names = [name for name in left if left[name] == kind]
            _say(f"{_count(len(names), noun)}{of} {kind} stayed ({_shown(names)}): {advice}")


def _shown(names: list[str]) -> str:
    return ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")


def _read_reports(file: str) -> Collection[list[Any]]:
    if not Path(file).exists():
        return []
    reports = [json.loads(line) for line in Path(file).read_text().splitlines()]
    Path(file).unlink()
    return {process: counts for process, *counts in reports}.values()


def _say_rounds(text: str, process: str = "") -> None:
    layers: dict[tuple[str, str], list[str]] = {}
    for line in text.splitlines():
        layer, number, devices = line.split("\t")
        name = re.sub(r"^SyncBatchNorm '(.*?)'", r"\1", layer)
        layers.setdefault((number, devices), []).append(name)
    for (number, devices), names in layers.items():
        _say(
            f"{process}{_count(len(names), 'layer')} ({_shown(names)}) synchronized {devices} in "
            f"{_count(int(number), 'round')}{' each' * (len(names) > 1)}"
        )


def _say(text: str) -> None:
    if sys.stderr is not None:  # the program may have been started without
        print(f"gluon_syncbn: {text}", file=sys.stderr)


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural * (number != 1)}"
