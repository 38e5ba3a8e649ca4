"""What ``gluon-syncbn run`` says at the end of a program."""

from __future__ import annotations

import re
import sys
from collections import Counter

from ..library import LIBRARY

_NAMES_SHOWN = 3

made: list[str] = []  # layers and operators of the program that can synchronize
left_layers: Counter[str] = Counter()  # its other norm layers, by class
left_operators: Counter[str] = Counter()  # its other norm operators, by name


def summarize(converts: bool) -> None:
    """Print which layers synchronized; warn if none did."""
    if not say_rounds():
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
    for kind, number in left_layers.items():
        _say(
            f"{_count(number, 'layer')} of {kind} stayed: --convert converts layers that compute "
            "what BatchNorm computes"
        )
    for kind, number in left_operators.items():
        _say(
            f"{_count(number, 'operator')} {kind} stayed: of operators, SyncBatchNorm without "
            "output_mean_var is replaced"
        )


def say_rounds() -> bool:
    """Print which layers synchronized; return whether any did."""
    layers: dict[tuple[str, str], list[str]] = {}
    for line in LIBRARY.rounds().splitlines():
        layer, rounds, devices = line.split("\t")
        name = re.sub(r"^SyncBatchNorm '(.*?)'", r"\1", layer)
        layers.setdefault((rounds, devices), []).append(name)
    for (rounds, devices), names in layers.items():
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
        _say(
            f"{_count(len(names), 'layer')} ({shown}) synchronized {devices} in "
            f"{_count(int(rounds), 'round')}{' each' * (len(names) > 1)}"
        )
    return bool(layers)


def print_error(text: str) -> None:
    """Print to stderr; if the program was started without one, to nowhere."""
    if sys.stderr is not None:
        print(text, file=sys.stderr)


def _say(text: str) -> None:
    print_error(f"gluon_syncbn: {text}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
