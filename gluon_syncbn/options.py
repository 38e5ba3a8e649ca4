"""The options of the command line, which need no MXNet."""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

from ._version import __version__
from .run import command

_COMMAND = "gluon-syncbn"


def is_command() -> bool:
    """Whether this process is ``gluon-syncbn`` or ``python -m gluon_syncbn``."""
    if sys.argv[:1] == ["-m"]:  # while Python imports the package
        return b"\0-m\0gluon_syncbn\0" in Path("/proc/self/cmdline").read_bytes()
    return _program() == _COMMAND


def _program() -> str:
    return Path("".join(sys.argv[:1])).name


@functools.lru_cache(maxsize=None)  # the import of the package looks for mistakes first
def parse(*arguments: str) -> argparse.Namespace:
    """Return the options, or end the process for ``--help``, ``--version`` and wrong options."""
    if arguments[:1] == ("convert",):
        print("warning: convert is now called export; the old name will go", file=sys.stderr)
        arguments = ("export", *arguments[1:])
    parser = argparse.ArgumentParser(
        prog=_COMMAND if _program() == _COMMAND else "python -m gluon_syncbn",
        description="Synchronized batch normalization for Apache MXNet.",
    )
    parser.add_argument("--version", action="version", version=f"gluon_syncbn {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "diagnose",
        help="print versions, the native library and settings, and run a self-test",
        description="Print versions, the native library and its build, and the settings for CPU "
        "contexts. Then train one step on two CPU contexts and on all GPUs. Exits with 1 if that "
        "fails.",
    )
    export = commands.add_parser(
        "export",
        help="make exported files loadable without this package",
        description="Turn the SyncBatchNorm nodes of exported files into BatchNorm nodes, so that "
        "MXNet loads them in any language without this package.",
    )
    export.add_argument("symbol", metavar="SYMBOL", help="such as net-symbol.json")
    export.add_argument("params", metavar="PARAMS", help="such as net-0000.params")
    export.add_argument("out", metavar="OUT", help="writes OUT-symbol.json and OUT-0000.params")
    export.add_argument(
        "--fold",
        action="store_true",
        help="fold the norms into the convolution or dense layers before them if that is exact, "
        "and print which",
    )
    export.add_argument(
        "--onnx",
        metavar="FILE",
        help="also write an ONNX file (needs the extra: pip install 'gluon_syncbn[onnx]')",
    )
    export.add_argument(
        "--input-shape",
        metavar="N,C,H,W",
        type=_shape,
        action="append",
        default=[],
        help="for --onnx: the fixed shape of the input in the ONNX file; once for every input",
    )
    command.add_command(commands)
    options = parser.parse_args(arguments)
    if options.command == "export" and bool(options.onnx) != bool(options.input_shape):
        export.error("--onnx and --input-shape (such as 1,3,480,480) need each other")
    return options


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise argparse.ArgumentTypeError(
            f"{text!r} should be whole numbers of at least 1, such as 1,3,480,480"
        )
    return tuple(map(int, sizes))
