"""Write the sources of the CUDA libraries that a libmxnet.so needs, and print their sonames.

``libraries.py LIBMXNET FOLDER`` writes, for each of them, the C source of every function that
libmxnet.so leaves to it, and the linker's version script. A function that does no harm by doing
nothing succeeds; any other ends the process with its name, because nothing that came after it
could be believed. All are weak: what tests/gpu/fake_cuda has of them comes before them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from elftools.elf.elffile import ELFFile

# The fake has most of what is needed of these.
RUNTIME = "libcudart.so.11.0"
DRIVER = "libcuda.so.1"

# Of sonames, the functions that have no version in libmxnet.so.
UNVERSIONED = {"libnccl.so.2": "nccl[A-Z]", "libcuda.so.1": "cu[A-Z]", "libnvidia-ml.so.1": "nvml"}

LIBRARY = re.compile(r"lib(cu|nv|nccl)")

# What every stream of MXNet has of them, used or not, and what only watches.
HARMLESS = re.compile(
    r"(cublas|cudnn|cusolverDn)(Create|Destroy|SetStream|SetMathMode)(_v2)?$|nvtx|nvml"
)
WEAK = "__attribute__((weak))"


def missing(libmxnet: Path) -> dict[str, list[str]]:
    """Functions by the soname of the library that has to have them; of some it needs none."""
    with libmxnet.open("rb") as file:
        elf = ELFFile(file)
        tags = elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")
        sonames = [tag.needed for tag in tags if LIBRARY.match(tag.needed)]
        versions = {}
        for need, auxiliaries in elf.get_section_by_name(".gnu.version_r").iter_versions():
            for auxiliary in auxiliaries:
                versions[auxiliary["vna_other"]] = need.name
        version_of = elf.get_section_by_name(".gnu.version")
        functions: dict[str, list[str]] = {name: [] for name in sonames}
        for index, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
            if symbol["st_shndx"] != "SHN_UNDEF" or not symbol.name:
                continue
            soname = versions.get(version_of.get_symbol(index)["ndx"])
            if soname is None:
                soname = next((s for s, p in UNVERSIONED.items() if re.match(p, symbol.name)), None)
            if soname in functions:
                functions[soname].append(symbol.name)
    return functions


def source_of(function: str) -> str:
    """Its definition in C."""
    if function == "cudnnGetVersion":
        return f"{WEAK} unsigned long {function}(void) {{ return 8101; }}"
    if HARMLESS.match(function):
        return f"{WEAK} int {function}(void) {{ return 0; }}"
    return f'{WEAK} int {function}(void) {{ missing("{function}"); }}'


PROLOGUE = """\
#include <stdio.h>
#include <stdlib.h>

__attribute__((unused)) static _Noreturn void missing(const char* function) {
  fprintf(stderr, "fake CUDA: %s is not imitated\\n", function);
  abort();
}
"""


def main(libmxnet: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    libraries = missing(libmxnet)
    for soname, functions in libraries.items():
        lines = [PROLOGUE]
        lines += [source_of(function) for function in functions]
        (folder / f"{soname}.c").write_text("\n".join(lines) + "\n")
        version = "" if soname in UNVERSIONED or not functions else soname
        # NVRTC has more, which gluon_syncbn looks up.
        names = ["nvrtc*"] if "nvrtc" in soname else functions
        exports = " ".join(f"{name};" for name in names)
        exported = f"global: {exports} " if functions else ""
        (folder / f"{soname}.map").write_text(f"{version} {{ {exported}local: *; }};\n")
    print(";".join(soname for soname in libraries if soname not in (RUNTIME, DRIVER)), end="")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
