"""What no warning of ptxas tells of kernels: whether they move 16 bytes at a time, and wait little.

The compiler splits an access silently if it does not see the alignment of the data any more, and
then every other test passes, at a fraction of the bandwidth.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

NVCC = os.environ.get("GLUON_SYNCBN_CUDA") != "OFF" and shutil.which(
    os.environ.get("CUDACXX", "nvcc")
)
ACCESS = re.compile(r"^\s*(?:@\S+ )?(ld|st)(?!\.param|\.shared)(?:\.\w+?)*?(?:\.v(\d))?\.\w(\d+)\s")


pytestmark = pytest.mark.skipif(not NVCC, reason="no CUDA compiler")


@pytest.fixture(scope="module")
def folder():
    """Where scripts/test.sh builds the native tests, with what is not there yet."""
    target = ROOT / "build" / "native-plain"
    target.parent.mkdir(exist_ok=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    build = 'source scripts/native_tests.sh; build_native_tests plain Release "" kernels_ptx "$@"'
    options = ["-DGLUON_SYNCBN_WERROR=ON"]
    options += [f"-DGLUON_SYNCBN_CUDA={os.environ.get('GLUON_SYNCBN_CUDA', 'AUTO')}"]
    architectures = os.environ.get("GLUON_SYNCBN_CUDA_ARCHITECTURES", "80-real")
    options += [f"-DGLUON_SYNCBN_CUDA_ARCHITECTURES={architectures}"]
    command = ["bash", "-c", build, "bash", f"{target}.log", *options]
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests of another process build here too
        environment = {**os.environ, "PATH": path}
        result = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    assert result.returncode == 0, result.stdout + result.stderr
    return target


@pytest.fixture(scope="module", params=["float", "double", "half"])
def compiled(request, folder):
    """The type of elements, and the PTX of each of its kernels."""
    element = request.param
    (ptx,) = folder.rglob(f"{element}.ptx")
    kernels = dict(
        re.findall(r"^\.visible \.entry (\w+)(.*?)^}", ptx.read_text(), re.DOTALL | re.MULTILINE)
    )
    assert len(kernels) == 24
    return element, kernels


def test_sums_have_several_loads_of_16_bytes_under_way(compiled):
    element, kernels = compiled
    for name, body in kernels.items():
        assert "Elementwise" in name or any(
            is_fast(piece, in_double=element == "double")
            for piece in re.split(r"^\$L\w+:|\bbra\b.*", body, flags=re.MULTILINE)
        ), f"{name}: no piece without a branch has two loads of 16 bytes and no narrower access"


def test_kernels_divide_no_integers(compiled):
    """GPUs have no instruction for that, and divide 64 bits in a hundred."""
    for name, body in compiled[1].items():
        assert not re.findall(r"\b(?:div|rem)\.[us]\d+", body), name


def test_steps_of_kernels_are_unrolled(compiled):
    """A loop over them would have one barrier, and the registers of all steps at once."""
    for name, body in compiled[1].items():
        barriers = 0 if "Elementwise" in name else 2
        assert body.count("bar.sync") == barriers, name


def test_kernels_wait_for_no_more_than_they_need(compiled):
    """A fence waits for all memory. No kernel waits for another block."""
    for name, body in compiled[1].items():
        assert not re.findall(r"\b(?:membar|fence)\.\S+", body), name
        assert not re.findall(r"\b(?:atom|red|acquire|release)\b", body), name


@pytest.fixture(scope="module")
def machine_code(folder, compiled, tmp_path_factory):
    """The instructions of each kernel, for sm_80."""
    (ptx,) = folder.rglob(f"{compiled[0]}.ptx")
    cubin = tmp_path_factory.mktemp("cubin") / "kernels.cubin"
    subprocess.run([NVCC, "-arch=sm_80", "-cubin", "-o", str(cubin), str(ptx)], check=True)
    kernels = {
        name: list(struct.iter_unpack("<QQ", code))
        for name, code in sections(cubin.read_bytes())
        if name.startswith(".text.")
    }
    assert len(kernels) == 24
    return kernels


def test_loads_of_inputs_do_not_wait_for_each_other(machine_code):
    """ptxas decides on that. A kernel begins with two loads of each input, and so does its loop."""
    for name, instructions in machine_code.items():
        if "Elementwise" not in name:
            continue
        inputs = 3 if "ByOutput" in name else 2 if "Gradient" in name or "Lb1E" in name else 1
        order = loads_and_uses(instructions)
        assert order.startswith("L" * 2 * inputs), (name, order)
        assert order.rstrip("u").endswith("L" * 2 * inputs), (name, order)


def test_kernels_are_short(machine_code):
    """Instruction caches hold few thousand instructions of 16 bytes. Once there were 9,000."""
    for name, instructions in machine_code.items():
        assert len(instructions) < 2400, name


def sections(elf: bytes):
    """The name and the content of each section of a 64-bit ELF file."""
    (begin,) = struct.unpack_from("<Q", elf, 0x28)
    number, names = struct.unpack_from("<HH", elf, 0x3C)
    headers = [struct.unpack_from("<I20xQQ24x", elf, begin + 64 * i) for i in range(number)]
    for name, offset, size in headers:
        start = headers[names][1] + name
        yield elf[start : elf.index(b"\0", start)].decode(), elf[offset : offset + size]


def loads_and_uses(instructions) -> str:
    """ "L" for each load of 16 bytes, and "u" where the first of its registers is needed.

    The operation is in the lowest 12 bits; registers follow in bits 16 (the result), 24, 32 and 64.
    """
    order = ""
    loaded: dict[int, int] = {}  # the load that fills a register
    for at, (low, high) in enumerate(instructions):
        operation = low & 0xFFF
        sources = [low >> 24 & 0xFF, high & 0xFF]
        if operation >> 9 == 1:  # the second source is a register as well
            sources.append(low >> 32 & 0xFF)
        if operation == 0x981:  # LDG
            if high >> 9 & 7 == 6:  # 128 bits
                order += "L"
                loaded.update(dict.fromkeys(range(low >> 16 & 0xFF, (low >> 16 & 0xFF) + 4), at))
        elif needed := {loaded[source] for source in sources if source in loaded}:
            order += "u"
            loaded = {register: load for register, load in loaded.items() if load not in needed}
    return order


def is_fast(piece: str, in_double: bool) -> bool:
    found = [ACCESS.match(line) for line in piece.splitlines()]
    sizes = [(m[1], int(m[2] or 1) * int(m[3]) // 8) for m in found if m]
    loads = sizes.count(("ld", 16))
    return (
        loads >= 2 and all(size == 16 for _, size in sizes) and (in_double or ".f64" not in piece)
    )
