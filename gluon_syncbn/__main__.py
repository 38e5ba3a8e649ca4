"""Command line: ``python -m gluon_syncbn``."""

from __future__ import annotations

import argparse
import sys

from . import diagnose, onnx
from .export import convert_files


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gluon_syncbn",
        description="Synchronized batch normalization for Apache MXNet.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "diagnose",
        help="print versions, the native library and settings, and run a self-test",
        description="Print versions, the native library, what it was built with and the settings "
        "for CPU contexts, and train one step on two contexts. Exits with 1 if that fails.",
    )
    convert = commands.add_parser(
        "convert",
        help="make exported files loadable without this package",
        description="Make the SyncBatchNorm nodes of exported files plain BatchNorm nodes, which "
        "MXNet loads in any language without this package.",
    )
    convert.add_argument("symbol", metavar="SYMBOL", help="such as net-symbol.json")
    convert.add_argument("params", metavar="PARAMS", help="such as net-0000.params")
    convert.add_argument("out", metavar="OUT", help="writes OUT-symbol.json and OUT-0000.params")
    convert.add_argument(
        "--fold",
        action="store_true",
        help="fold the norms into the convolution or dense layers before them if that is exact, "
        "and print which",
    )
    convert.add_argument(
        "--onnx",
        metavar="FILE",
        help="also write an ONNX file (needs the extra: pip install 'gluon_syncbn[onnx]')",
    )
    convert.add_argument(
        "--input-shape",
        metavar="N,C,H,W",
        type=_shape,
        action="append",
        default=[],
        help="for --onnx: shape of the input, which the ONNX file keeps; once for every input",
    )
    options = parser.parse_args(arguments)
    if options.command == "convert" and bool(options.onnx) != bool(options.input_shape):
        convert.error("--onnx and --input-shape (such as 1,3,480,480) need each other")
    return diagnose.main() if options.command == "diagnose" else _convert(options)


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise argparse.ArgumentTypeError(
            f"{text!r} should be whole numbers of at least 1, such as 1,3,480,480"
        )
    return tuple(map(int, sizes))


def _convert(options: argparse.Namespace) -> int:
    files = (f"{options.out}-symbol.json", f"{options.out}-0000.params")
    try:
        if options.onnx:
            onnx.check_onnx()  # before anything is written
        plain = convert_files(options.symbol, options.params, *files, fold=options.fold)
    except (OSError, ValueError) as error:
        return _fail(error)
    if options.fold:
        print(plain.report)
    print(f"written: {files[0]}, {files[1]}")
    if options.onnx:
        try:
            onnx.write_onnx(plain.symbol, plain.args, plain.aux, options.onnx, options.input_shape)
        except (OSError, ValueError) as error:
            return _fail(error)
        print(f"written: {options.onnx}")
    return 0


def _fail(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
