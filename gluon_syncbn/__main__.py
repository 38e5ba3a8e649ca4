"""Command line: ``gluon-syncbn`` or ``python -m gluon_syncbn``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .diagnose import report
from .options import parse
from .symbols import onnx
from .symbols.exporting import PlainFiles


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse(*arguments)
    if options.command == "run":
        options.run(options)  # starts another program in this process
    return report.main() if options.command == "diagnose" else _export(options)


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
