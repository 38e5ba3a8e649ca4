"""Command line: ``python -m gluon_syncbn``."""

from __future__ import annotations

import argparse
import sys

from . import diagnose


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
    parser.parse_args(arguments)
    return diagnose.main()


if __name__ == "__main__":
    sys.exit(main())
