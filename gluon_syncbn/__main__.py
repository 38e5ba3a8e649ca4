"""Command line: ``python -m gluon_syncbn``."""

from __future__ import annotations

import argparse
import sys

from . import deploy, diagnose


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
        help="fold the norms into the convolution or dense layers before them where that is exact, "
        "and print which",
    )
    options = parser.parse_args(arguments)
    return diagnose.main() if options.command == "diagnose" else _convert(options)


def _convert(options: argparse.Namespace) -> int:
    files = (f"{options.out}-symbol.json", f"{options.out}-0000.params")
    try:
        report = deploy.convert_files(options.symbol, options.params, *files, fold=options.fold)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.fold:
        print(report)
    print(f"written: {files[0]}, {files[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
