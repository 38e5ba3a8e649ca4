"""Report what the compiler made of the GPU half's kernels, without a GPU.

Reads the built library with cuobjdump: registers, shared memory, spills and the occupancy that they
allow, for every architecture; and for one, from the disassembly, whether the loops of the kernels
that go through the data use accesses of 16 bytes, no local memory, and no arithmetic in double
where the data is not double. Exits with 1 where that is not so.

Where there is no cuobjdump, or the library has no GPU half, it says so and exits with 0; with
--require it exits with 1.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.report import format_table
from gpu_kernels.binary import (
    Kernel,
    UnavailableError,
    disassemble,
    find_tools,
    read_kernels,
    run_tool,
)
from gpu_kernels.loops import Loop, main_loop
from gpu_kernels.occupancy import occupancy

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "build" / "native-plain" / "libgluon_syncbn.so"
BYTES = {"float": 4, "double": 8, "Half": 2}
LEAST_LOADS = 2  # of 16 bytes under way at a time


def threads_of_block() -> int:
    """Return kThreads of the kernels."""
    source = (ROOT / "src" / "core" / "cuda" / "partition.h").read_text()
    found = re.search(r"constexpr int kThreads = (\d+);", source)
    assert found is not None, "src/core/cuda/partition.h has no kThreads"
    return int(found.group(1))


def element_of(kernel: Kernel) -> str | None:
    """Return the type of data that a kernel takes 16 bytes of at a time; None for others."""
    found = re.search(r"\b(float|double|Half), (\d+)", kernel.name)
    if found and BYTES[found.group(1)] * int(found.group(2)) == 16:
        return found.group(1)
    return None


def faults(kernel: Kernel, loop: Loop | None) -> list[str]:
    """Return what is wrong with a kernel that goes through the data."""
    found = []
    if kernel.local:
        found.append(f"{kernel.local} bytes of spills")
    if loop is None:
        return [*found, "no loop whose accesses all have 16 bytes"]
    if loop.wide_loads < LEAST_LOADS:
        found.append(f"{loop.wide_loads} loads of 16 bytes at a time, fewer than {LEAST_LOADS}")
    if loop.local:
        found.append(f"{loop.local} accesses to local memory in the loop")
    if loop.double and element_of(kernel) != "double":
        found.append(f"{loop.double} operations in double in the loop")
    return found


def table(kernels: Sequence[Kernel], loops: Mapping[str, Loop | None], threads: int) -> str:
    """Tabulate what each kernel uses by architecture, and what the main loops of `loops` do."""
    architectures = sorted({kernel.architecture for kernel in kernels})
    of_names: dict[str, dict[int, Kernel]] = {}
    for kernel in kernels:
        of_names.setdefault(kernel.name, {})[kernel.architecture] = kernel

    def cell(kernel: Kernel | None) -> str:
        if kernel is None:
            return "-"
        share = occupancy(kernel.architecture, kernel.registers, kernel.shared, threads)
        return f"{kernel.registers}, {'?' if share is None else f'{share:.0%}'}"

    head = ["kernel", "shared", "spills", *(f"sm_{each}" for each in architectures)]
    head += ["loads", "stores", "operations"]
    lines = []
    for name, of_name in sorted(of_names.items()):
        loop = loops.get(name)
        lines.append(
            [
                name,
                str(max(kernel.shared for kernel in of_name.values())),
                str(max(kernel.local for kernel in of_name.values())),
                *(cell(of_name.get(each)) for each in architectures),
                *(
                    ["-"] * 3
                    if loop is None
                    else map(str, (loop.wide_loads, loop.wide_stores, len(loop.operations)))
                ),
            ]
        )
    return format_table(head, lines)


def report(options: argparse.Namespace) -> int:
    """Print the tables; return the number of faults."""
    tools = find_tools()
    kernels = read_kernels(tools, options.library)
    of_architecture = [each for each in kernels if each.architecture == options.architecture]
    if not of_architecture:
        raise UnavailableError(f"{options.library} has no kernels for sm_{options.architecture}")
    hot = [kernel for kernel in of_architecture if element_of(kernel)]
    missing = sorted(set(BYTES) - {element_of(kernel) for kernel in hot})
    for element in missing:
        print(f"gpu_report: no kernel takes 16 bytes of {element} at a time", file=sys.stderr)
    if missing:
        return len(missing)
    text = disassemble(tools, options.library, hot)
    loops = [(kernel, main_loop(text[kernel.symbol])) for kernel in hot]
    version = re.search(r"release [\d.]+, V[\d.]+", run_tool(tools, "--version"))
    if not options.quiet:
        threads = threads_of_block()
        shown = [kernel for kernel in kernels if element_of(kernel) or not options.wide]
        by_name = {kernel.name: loop for kernel, loop in loops}
        print(
            f"{datetime.date.today()}, cuobjdump {version.group() if version else '?'}, "
            f"{' '.join(sys.argv)}\n\n"
            f"Registers of a thread and occupancy with {threads} threads a block; bytes of shared "
            f"memory of a block and\nof spills of a thread, the most of all architectures; loads "
            f"and stores of 16 bytes and all operations of\nthe loop over full units on "
            f"sm_{options.architecture}.\n\n{table(shown, by_name, threads)}\n"
        )
    wrong = 0
    for kernel, loop in loops:
        for fault in faults(kernel, loop):
            print(f"gpu_report: sm_{kernel.architecture}, {kernel.name}: {fault}", file=sys.stderr)
            wrong += 1
    if not wrong:
        print(f"gpu_report: {len(hot)} kernels for sm_{options.architecture}: ok")
    return wrong


def main(arguments: list[str] | None = None) -> int:
    """Report; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", type=Path, default=LIBRARY, help="(default: %(default)s)")
    parser.add_argument(
        "--architecture", type=int, default=80, help="whose loops to read (default: %(default)s)"
    )
    parser.add_argument(
        "--wide", action="store_true", help="show kernels that take 16 bytes at a time only"
    )
    parser.add_argument("--quiet", action="store_true", help="print what is wrong only")
    parser.add_argument("--require", action="store_true", help="fail where nothing can be read")
    options = parser.parse_args(arguments)
    try:
        return int(report(options) > 0)
    except UnavailableError as error:
        print(f"gpu_report: skipped: {error}", file=sys.stderr)
        return int(options.require)


if __name__ == "__main__":
    sys.exit(main())
