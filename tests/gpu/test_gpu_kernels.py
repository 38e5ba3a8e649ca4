"""The code that NVRTC makes of all kernels: results, accesses of 16 bytes, no races, no spills.

The compiler splits an access silently if it does not see the alignment of the data any more, and
then every other test passes, at a fraction of the bandwidth. No GPU and no driver is needed.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from gluon_syncbn import nvidia_libraries

from tests.support.processes import ROOT

NVRTC = os.environ.get("GLUON_SYNCBN_NVRTC") or nvidia_libraries.find_library("libnvrtc.so.11.2")
ACCESS = re.compile(r"^\s*(?:@\S+ )?(ld|st)(?!\.param|\.shared)(?:\.\w+?)*?(?:\.v(\d))?\.\w(\d+)\s")
ELEMENTS = {"float": "float", "double": "double", "half": "gluon_syncbn::Half"}

# The extra "test" installs it.
pytestmark = pytest.mark.skipif(not NVRTC, reason="no NVRTC of CUDA 11")


@pytest.fixture(scope="module")
def programs():
    """Build the native tests where scripts/test.sh builds them, if they are not there."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    options = "-DGLUON_SYNCBN_BUILD_TESTS=ON -DGLUON_SYNCBN_WERROR=ON"
    build = "source scripts/common.sh"
    for program in ("compile_kernels", "native_tests"):
        build += f" && build build/native-plain {program} {options}"
    result = subprocess.run(
        ["bash", "-c", build],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return ROOT / "build" / "native-plain"


def run(command: list, folder, **environment: str) -> subprocess.CompletedProcess:
    """Run a program that compiles kernels, or finds them in the folder."""
    variables = {"GLUON_SYNCBN_NVRTC": str(NVRTC), "XDG_CACHE_HOME": str(folder), **environment}
    return subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )


def run_ptx(programs, folder, cases: str, **environment: str) -> subprocess.CompletedProcess:
    """Run native tests on a fake GPU that is newer than NVRTC, which then compiles to PTX."""
    return run(
        [programs / "native_tests", f"--test-case={cases}"],
        folder,
        FAKE_CUDA_CAPABILITY="100",
        GLUON_SYNCBN_TEST_DEVICE="gpu",
        GLUON_SYNCBN_TEST_ELEMENTS="4000",  # Some channels have more than 64 partial sums to merge.
        **environment,
    )


def compile_all(programs, architecture: str, folder) -> dict[str, bytes]:
    """Return the code of each kernel, by the type of its body."""
    code = folder / architecture
    code.mkdir()
    result = run([programs / "compile_kernels", architecture, code], folder)
    assert result.returncode == 0, result.stderr
    kernels = {path.name.partition(".")[2]: path.read_bytes() for path in code.iterdir()}
    assert len(kernels) == 84
    return kernels


@pytest.fixture(scope="module")
def run_of_ptx(programs, tmp_path_factory):
    """The native tests that use all kernels, and the folder of these."""
    folder = tmp_path_factory.mktemp("ptx")
    cases = ["cuda kernels: " + case for case in ("moments*", "small outputs*", "at 0*")]
    cases += ["passes: the same bits*", "passes: in place*"]
    return run_ptx(programs, folder, ",".join(cases)), folder


@pytest.fixture(scope="module")
def all_ptx(programs, run_of_ptx):
    return compile_all(programs, "compute_90", run_of_ptx[1])


@pytest.fixture(scope="module")
def all_machine_code(programs, tmp_path_factory):
    return compile_all(programs, "sm_80", tmp_path_factory.mktemp("code"))


def test_kernels_are_right_and_have_no_races(run_of_ptx):
    result, folder = run_of_ptx
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(list((folder / "gluon_syncbn").iterdir())) == 84


def test_a_missing_barrier_is_a_race(programs, run_of_ptx):
    cases = "cuda kernels: moments*"
    result = run_ptx(programs, run_of_ptx[1], cases, FAKE_CUDA_IGNORE_BARRIERS="1")
    assert "kernel moments, block 0, thread 1: a race with another thread" in result.stderr


def of_elements(kernels: dict[str, bytes], element: str) -> dict[str, bytes]:
    """Choose the kernels for data of a type."""
    data = re.compile(rf"gluon_syncbn::cuda::\w+<gluon_syncbn::cuda::\w+,_{ELEMENTS[element]},")
    chosen = {name: code for name, code in kernels.items() if data.match(name)}
    assert len(chosen) == 24
    return chosen


@pytest.fixture(params=ELEMENTS)
def compiled(request, all_ptx):
    """The type of elements, and the PTX of each of its kernels."""
    chosen = of_elements(all_ptx, request.param)
    text = {name: code.decode().partition(".visible .entry")[2] for name, code in chosen.items()}
    return request.param, text


def test_sums_have_several_loads_of_16_bytes_under_way(compiled):
    element, kernels = compiled
    for name, body in kernels.items():
        assert "Elementwise" in name or any(
            is_fast(piece, in_double=element == "double")
            for piece in re.split(r"^\$L\w+:|\bbra\b.*", body, flags=re.MULTILINE)
        ), f"{name}: no piece without a branch has two loads of 16 bytes and no narrower access"


def test_rows_of_14_x_14_in_float16_are_loaded_by_8_bytes(all_ptx):
    for name, body in of_elements(all_ptx, "half").items():
        assert ("ChannelFirst" in name) == bool(re.search(rb"ld\.global\.v2\.u32", body)), name


def test_kernels_divide_no_integers(compiled):
    """GPUs have no instruction for that, and divide 64 bits in a hundred."""
    for name, body in compiled[1].items():
        assert not re.findall(r"\b(?:div|rem)\.[us]\d+", body), name


def test_steps_of_kernels_are_unrolled(compiled):
    """A loop over them would have one barrier, and the registers of all steps at once."""
    for name, body in compiled[1].items():
        barriers = 0 if "Elementwise" in name else 2
        assert body.count("bar.sync") == barriers, name


def test_kernels_access_no_single_bytes(all_ptx):
    """NVRTC 11 copies an aggregate with a base class so."""
    for name, code in all_ptx.items():
        assert not re.findall(rb"\b(?:ld|st)\.global\S*\.[us]8\b", code), name


def test_kernels_wait_for_no_more_than_they_need(compiled):
    """A fence waits for all memory. No kernel waits for another block."""
    for name, body in compiled[1].items():
        assert not re.findall(r"\b(?:membar|fence)\.\S+", body), name
        assert not re.findall(r"\b(?:atom|red|acquire|release)\b", body), name


@pytest.fixture(params=ELEMENTS)
def machine_code(request, all_machine_code):
    """The instructions of each kernel, for sm_80."""
    return {
        name: instructions(code)
        for name, code in of_elements(all_machine_code, request.param).items()
    }


def test_registers_are_enough(all_machine_code):
    """A kernel has the registers that its resident blocks leave, and spills none to memory."""
    for name, code in all_machine_code.items():
        threads, blocks = 128, 6
        if ",_double," in name or "PerChannel" in name or "MergeBlocks" in name:
            blocks = 3
        elif variant_of(name) not in (None, "YFrom 0", "DzFrom 0"):  # with an activation
            blocks = 5
        if "PerChannel" in name:
            threads = 32
        registers, local = registers_of(code)
        assert local == 0, f"{name} spills registers"
        # An SM of sm_80 has 65,536, and gives each warp a multiple of 256.
        assert (registers * 32 + 255) // 256 * 256 * threads // 32 * blocks <= 65536, name


def test_loads_of_inputs_do_not_wait_for_each_other(machine_code):
    """ptxas decides on that. A kernel begins with two loads of each input, and so does its loop."""
    for name, code in machine_code.items():
        if "Elementwise" not in name:
            continue
        variant = variant_of(name)
        inputs = {"DzFrom 2": 3, "YFrom 0": 1, "YFrom 1": 1}.get(variant, 2)  # norm/variants.h
        order = loads_and_uses(code)
        assert order.startswith("L" * 2 * inputs), (name, order)
        assert order.rstrip("u").endswith("L" * 2 * inputs), (name, order)


def test_kernels_are_short(machine_code):
    """Instruction caches hold few thousand instructions of 16 bytes. Once there were 9,000."""
    for name, code in machine_code.items():
        assert len(code) < 2400, name


def variant_of(name: str) -> str | None:
    """Return the variant of a kernel as in norm/variants.h, such as "DzFrom 2"."""
    found = re.search(r"\(gluon_syncbn::(\w+)\)(\d)", name)
    return f"{found[1]} {found[2]}" if found else None


def instructions(cubin: bytes) -> list[tuple[int, int]]:
    (code,) = (content for name, content, _ in sections(cubin) if name.startswith(".text."))
    return list(struct.iter_unpack("<QQ", code))


def registers_of(cubin: bytes) -> tuple[int, int]:
    """Return the number of registers, and of accesses to local memory, where spills go."""
    (info,) = (info for name, _, info in sections(cubin) if name.startswith(".text."))
    operations = [low & 0xFFF for low, _ in instructions(cubin)]
    return info >> 24, operations.count(0x983) + operations.count(0x387)  # LDL and STL


def sections(elf: bytes):
    """The name, the content and the field sh_info of each section of a 64-bit ELF file."""
    (begin,) = struct.unpack_from("<Q", elf, 0x28)
    number, names = struct.unpack_from("<HH", elf, 0x3C)
    headers = [struct.unpack_from("<I20xQQ4xI16x", elf, begin + 64 * i) for i in range(number)]
    for name, offset, size, info in headers:
        start = headers[names][1] + name
        yield elf[start : elf.index(b"\0", start)].decode(), elf[offset : offset + size], info


def loads_and_uses(code) -> str:
    """ "L" for each load of 16 bytes, and "u" where the first of its registers is needed.

    The operation is in the lowest 12 bits; registers follow in bits 16 (the result), 24, 32 and 64.
    """
    order = ""
    loaded: dict[int, int] = {}  # the load that fills a register
    for at, (low, high) in enumerate(code):
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
