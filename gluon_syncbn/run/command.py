"""The command and its options."""

from __future__ import annotations

import argparse
import atexit
import functools
import sys
from typing import Any

from . import preparation, program, summary


def add_command(commands: Any) -> None:
    """Add ``run`` to the commands of ``python -m gluon_syncbn``."""
    parser = commands.add_parser(
        "run",
        usage="%(prog)s [-h] [--convert] [--num-devices N] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        help="run a script with SyncBatchNorm in the place of MXNet's own",
        description="Run a script as Python does, with gluon_syncbn.SyncBatchNorm in the place of "
        "MXNet's own, from wherever the script imports it. At the end, print which layers "
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


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    script = options.script[1:] if options.script[:1] == ["--"] else options.script
    # The arguments after -- belong to the module too.
    arguments = [*(options.module or ()), *(options.script if options.module else script)]
    if not arguments:
        parser.error("a script, or -m and a module, is missing")
    if options.num_devices is not None and not options.convert:
        parser.error("--num-devices belongs to --convert; scripts give num_devices to their layers")
    is_module = options.module is not None
    if not is_module and not program.is_readable(arguments[0]):
        summary.print_error(f"error: {arguments[0]} is not a file that can be read")
        sys.exit(2)
    summarize = functools.partial(summary.summarize, options.convert)
    preparation.prepare(options.convert, options.num_devices, summarize)
    try:
        program.run(arguments, is_module)
    except program.NothingToRunError as error:
        atexit.unregister(summarize)
        summary.print_error(f"{sys.executable}: {error}")
        sys.exit(1)
