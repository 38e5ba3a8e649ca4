"""Command line: ``gluon-syncbn`` or ``python -m gluon_syncbn``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import __version__
from .diagnose import report
from .run import command
from .symbols import onnx
from .symbols.exporting import PlainFiles

_COMMAND = "gluon-syncbn"


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["convert"]:
        print("warning: convert is now called export; the old name will go", file=sys.stderr)
        arguments = ["export", *arguments[1:]]
    parser = argparse.ArgumentParser(
        prog=_COMMAND if Path(sys.argv[0]).name == _COMMAND else "python -m gluon_syncbn",
        description="Synchronized batch normalization for Apache MXNet.",
    )
    parser.add_argument("--version", action="version", version=f"gluon_syncbn {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "diagnose",
        help="print versions, the native library and settings, and run a self-test",
        description="Print versions, the native library and its build, and the settings for CPU "
        "contexts. Then train one step on two contexts. Exits with 1 if that fails.",
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
    if options.command == "run":
        options.run(options)  # starts another program in this process
    return report.main() if options.command == "diagnose" else _export(options)


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise argparse.ArgumentTypeError(
            f"{text!r} should be whole numbers of at least 1, such as 1,3,480,480"
        )
    return tuple(map(int, sizes))


def _export(options: argparse.Namespace) -> int:
    files = [f"{options.out}-symbol.json", f"{options.out}-0000.params"]
    written = [*files, options.onnx] if options.onnx else files
    try:
        _check_writable(written, [options.symbol, options.params])
        if options.onnx:
            onnx.check_onnx()
        plain = PlainFiles(options.symbol, options.params, options.fold)
        if options.onnx:
            onnx.write_onnx(plain.symbol, plain.args, plain.aux, options.onnx, options.input_shape)
        plain.write(*files)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not plain.converted:
        print(f"nothing to convert: {options.symbol} has no SyncBatchNorm")
    if options.fold:
        print(plain.report)
    print(f"written: {', '.join(written)}")
    return 0


def _check_writable(files: list[str], read: list[str]) -> None:
    """Refuse files in folders that do not exist, and input files."""
    for name in files:
        path = Path(name)
        if not path.parent.is_dir():
            raise ValueError(f"{name} cannot be written: there is no folder {path.parent}")
        if path.resolve() in [Path(other).resolve() for other in read]:
            raise ValueError(f"{name} would be overwritten, but is an input: choose another OUT")


if __name__ == "__main__":
    sys.exit(main())
