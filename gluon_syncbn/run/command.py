"""The command and its options."""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any, NoReturn


def add_command(commands: Any) -> None:
    """Add ``run`` to the commands of ``python -m gluon_syncbn``."""
    parser = commands.add_parser(
        "run",
        usage="%(prog)s [-h] [--convert] [--num-devices N] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        help="run a script with this SyncBatchNorm instead of MXNet's",
        description="Run a script as Python does, with gluon_syncbn.SyncBatchNorm instead of "
        "MXNet's own. Options of the script come after the script. At the end, print which layers "
        "synchronized which devices.",
    )
    parser.add_argument(
        "--convert",
        action="store_true",
        help="also make a SyncBatchNorm of each gluon.nn.BatchNorm, for scripts without an "
        "option for it",
    )
    parser.add_argument(
        "--num-devices",
        metavar="N",
        type=_count,
        help="for --convert: the number of devices of a training step. By default, the number of "
        "contexts of the parameters",
    )
    parser.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        nargs=argparse.REMAINDER,
        help="a module to run instead of a script, as python -m does",
    )
    parser.add_argument(
        "script",
        metavar="SCRIPT",
        nargs=argparse.REMAINDER,
        help="the script and its arguments, or a folder or zip file with __main__.py",
    )
    parser.set_defaults(run=functools.partial(_run, parser))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} should be a whole number of at least 1")
    return int(text)


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> NoReturn:
    script = options.script[1:] if options.script[:1] == ["--"] else options.script
    # The arguments after -- belong to the module too.
    arguments = [*(options.module or ()), *(options.script if options.module else script)]
    if not arguments:
        parser.error("a script, or -m and a module, is missing")
    if options.num_devices is not None and not options.convert:
        parser.error("--num-devices belongs to --convert; scripts give num_devices to their layers")
    if sys.flags.ignore_environment or sys.flags.no_site:
        parser.error("Python's options -E, -I and -S keep run from reaching the program")
    file = f"{tempfile.gettempdir()}/gluon-syncbn-run-{uuid.uuid4().hex}"  # of child processes
    settings = (os.getpid(), int(options.convert), options.num_devices or 0, file)
    os.environ["GLUON_SYNCBN_RUN"] = " ".join(map(str, settings))
    folders = [str(Path(__file__).resolve().with_name("at_start")), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    # As multiprocessing passes the options of Python to its processes, and -u.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    flags += ["-u"] * getattr(sys.stdout, "write_through", False)
    arguments = [*flags, "--" if options.module is None else "-m", *arguments]
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()  # execv drops what sitecustomize.py has printed
    os.execv(sys.executable, [sys.executable, *arguments])
