"""Reads kernels from a library with NVIDIA's cuobjdump."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class UnavailableError(RuntimeError):
    """A tool or the GPU half is not there; says which."""


class Kernel(NamedTuple):
    """What the compiler says of a kernel.

    Attributes
    ----------
    symbol, name : str
        As in the library, and for people: the body that it runs, such as ``RunMoments<float, 4>``.
    architecture : int
        As in ``sm_80``.
    registers : int
        Of a thread.
    shared, stack, local : int
        Bytes of shared memory of a block; of stack, and of local memory for what finds no room in
        registers, of a thread.
    """

    symbol: str
    name: str
    architecture: int
    registers: int
    shared: int
    stack: int
    local: int


def find_tools() -> Path:
    """Return the folder of cuobjdump and nvdisasm, which it calls.

    They are looked for beside nvcc, in PATH, and in the packages ``nvidia-cuda-cuobjdump`` and
    ``nvidia-cuda-nvdisasm`` of this Python.

    Raises
    ------
    UnavailableError
        If they are in none of these.
    """
    nvcc = shutil.which(os.environ.get("CUDACXX", "nvcc"))
    folders = [Path(nvcc).resolve().parent] if nvcc else []
    folders += [Path(p) for p in os.environ.get("PATH", "").split(os.pathsep) if p]
    package = importlib.util.find_spec("nvidia")
    for root in (package.submodule_search_locations or []) if package else []:
        folders.extend(sorted(Path(root).glob("*/bin")))
    for folder in folders:
        if all(os.access(folder / tool, os.X_OK) for tool in ("cuobjdump", "nvdisasm")):
            return folder
    raise UnavailableError(
        "no cuobjdump and nvdisasm (of CUDA's binary utilities) beside nvcc, in PATH or from the "
        "packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm"
    )


def run_tool(tools: Path, *arguments: str) -> str:
    """Return what cuobjdump prints."""
    path = os.pathsep.join([str(tools), os.environ.get("PATH", "")])
    result = subprocess.run(
        [str(tools / "cuobjdump"), *arguments],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise UnavailableError(f"cuobjdump failed: {result.stderr.strip()}")
    return result.stdout


def demangle(symbols: Iterable[str]) -> dict[str, str]:
    """Return the body that each kernel runs; other kernels keep their names."""
    listed = list(dict.fromkeys(symbols))
    program = shutil.which("c++filt")
    if program is None:
        raise UnavailableError("no c++filt (of the binutils) in PATH")
    text = subprocess.run(
        [program], input="\n".join(listed), capture_output=True, text=True, check=True
    ).stdout
    names = {}
    for symbol, long_name in zip(listed, text.splitlines()):
        short = re.sub(r"\w+::", "", long_name).replace(" >", ">")
        body = re.match(r"void run<(.*)>\(", short)
        names[symbol] = body.group(1) if body else short
    return names


def parse_kernels(text: str) -> list[Kernel]:
    """Return the kernels that ``cuobjdump -res-usage`` lists."""
    found = []
    architecture, symbol = 0, ""
    for line in text.splitlines():
        if line.startswith("arch = sm_"):
            architecture = int(re.sub(r"\D", "", line))
        elif line.startswith(" Function "):
            symbol = line[len(" Function ") :].rstrip(":")
        elif "REG:" in line:
            values = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", line)}
            numbers = [values[key] for key in ("REG", "SHARED", "STACK", "LOCAL")]
            found.append(Kernel(symbol, "", architecture, *numbers))
    names = demangle(kernel.symbol for kernel in found)
    return [kernel._replace(name=names[kernel.symbol]) for kernel in found]


def read_kernels(tools: Path, library: Path) -> list[Kernel]:
    """Return all kernels of a library, for every architecture.

    Raises
    ------
    UnavailableError
        If there are none.
    """
    kernels = parse_kernels(run_tool(tools, "-res-usage", str(library)))
    if not kernels:
        raise UnavailableError(f"{library} has no kernels: it is built without the GPU half")
    return kernels


def disassemble(tools: Path, library: Path, kernels: Iterable[Kernel]) -> dict[str, str]:
    """Return the instructions of kernels of one architecture, by symbol."""
    wanted = list(kernels)
    symbols = ",".join(kernel.symbol for kernel in wanted)
    architecture = f"sm_{wanted[0].architecture}"
    text = run_tool(tools, "-sass", "-arch", architecture, "-fun", symbols, str(library))
    pieces = re.split(r"^\s*Function : (\S+)$", text, flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2]))
