"""Check that each folder of src/ includes only itself and the folders that `MAY_INCLUDE` lists."""

from __future__ import annotations

import re
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "src"

MAY_INCLUDE: dict[str, set[str]] = {
    "common": set(),
    "norm": {"common"},
    "backend": {"common", "norm"},
    "cpu": {"common", "norm", "backend"},
    "cuda": {"common", "norm", "backend"},
    "distributed": {"common", "norm"},
    "sync": {"common", "norm", "backend", "distributed"},
    "mxnet": {"common", "cuda"},
    "horovod": {"distributed", "mxnet"},
    "operator": {"common", "norm", "backend", "cpu", "cuda", "distributed", "sync", "mxnet"},
    "exports.cc": {"common", "cpu", "cuda", "distributed", "sync", "mxnet", "horovod", "operator"},
}


def main() -> int:
    wrong = []
    for path in sorted(SOURCES.rglob("*.*")):
        folder = path.relative_to(SOURCES).parts[0]
        for included in re.findall(r'#include "([^"]+)"', path.read_text()):
            room = included.split("/")[0]
            if room != folder and room not in MAY_INCLUDE[folder]:
                wrong.append(f"src/{path.relative_to(SOURCES)} includes {included}")
    for line in wrong:
        print(f"{line}: src/{line.split('/')[1]}/ may not (scripts/check_includes.py)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
