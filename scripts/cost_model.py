#!/usr/bin/env python
"""Estimate what synchronizing adds to a training step, up to thousands of processes.

    .venv/bin/python scripts/cost_model.py               # prints the tables
    .venv/bin/python scripts/cost_model.py --write       # and puts them into docs/distributed.md
    .venv/bin/python scripts/cost_model.py --out runs/cost_model   # and plots

The model: layers that do not wait for each other exchange in one message; a message waits for the
last process to begin a cycle of Horovod, then Horovod finds out what is ready everywhere, then the
network carries it. Parameters and their sources are in scripts/scaling/.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import doc_table
from scaling import report


def main() -> None:
    """Print, write and plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cycle-time",
        type=float,
        nargs="+",
        default=report.CYCLES,
        help="HOROVOD_CYCLE_TIME in ms; the plot takes the last",
    )
    parser.add_argument(
        "--budget",
        type=float,
        nargs="+",
        default=report.BUDGETS,
        help="milliseconds a step that synchronizing may take",
    )
    parser.add_argument(
        "--per-machine", type=int, default=report.PER_MACHINE, help="processes on a machine"
    )
    parser.add_argument("--write", action="store_true", help="put the tables into the docs")
    parser.add_argument("--out", type=Path, help="folder for the plot, cost_model.svg")
    options = parser.parse_args()
    text = report.tables(options.cycle_time, options.budget, options.per_machine)
    print(text)
    if options.write:
        doc_table.write(report.PATH, report.BEGIN, text)
    if options.out:
        report.plot(options.out, options.cycle_time[-1], options.per_machine)


if __name__ == "__main__":
    main()
