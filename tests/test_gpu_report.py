"""scripts/gpu_report.py reads what cuobjdump prints, and finds what is wrong in it."""

from __future__ import annotations

import os
import re
import stat
import sys

import pytest

from .processes import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import gpu_report
from gpu_kernels import binary
from gpu_kernels.binary import Kernel
from gpu_kernels.loops import innermost_loops, main_loop
from gpu_kernels.occupancy import occupancy

RESOURCES = """
Fatbin elf code:
================
arch = sm_80
Resource usage:
 Common:
  GLOBAL:0
 Function _ZN12gluon_syncbn4cuda3runINS0_10RunMomentsIfLi4EEEEEvT_:
  REG:46 STACK:0 SHARED:5120 LOCAL:0 CONSTANT[0]:456 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _ZN12gluon_syncbn4cuda3runINS0_10RunMomentsINS_4HalfELi8EEEEEvT_:
  REG:42 STACK:8 SHARED:5120 LOCAL:16 CONSTANT[0]:456 TEXTURE:0 SURFACE:0 SAMPLER:0
arch = sm_90
 Function _ZN12gluon_syncbn4cuda3runINS0_10CountBatchIdEEEEvT_:
  REG:8 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:400 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


def test_resources_by_kernel_and_architecture():
    kernels = binary.parse_kernels(RESOURCES)
    assert [k[1:] for k in kernels] == [
        ("RunMoments<float, 4>", 80, 46, 5120, 0, 0),
        ("RunMoments<Half, 8>", 80, 42, 5120, 8, 16),
        ("CountBatch<double>", 90, 8, 0, 0, 0),
    ]
    assert [gpu_report.element_of(kernel) for kernel in kernels] == ["float", "Half", None]
    table = gpu_report.table(kernels, {"RunMoments<float, 4>": main_loop(listing(*GOOD))}, 256)
    first = next(line for line in table.splitlines() if line.startswith("| RunMoments<float, 4>"))
    cells = [cell.strip() for cell in first.strip("|").split("|")]
    assert cells[1:] == ["5120", "0", "46, 62%", "-", "2", "1", "5"]
    assert "8, 100%" in table


@pytest.mark.parametrize(
    ("architecture", "registers", "shared", "expected"),
    [
        # By hand: 65536 registers, given to warps 256 at a time, and the guide's other limits.
        (80, 32, 0, 1.0),
        (80, 33, 0, 0.75),
        (80, 128, 0, 0.25),
        (80, 32, 48 << 10, 0.375),
        (75, 64, 0, 1.0),
        (86, 32, 0, 1.0),
        (86, 32, 32 << 10, 0.5),
        (90, 255, 0, 0.125),
        (61, 40, 0, 0.75),
        (52, 32, 0, None),
    ],
)
def test_occupancy_of_blocks_of_256_threads(architecture, registers, shared, expected):
    assert occupancy(architecture, registers, shared, 256) == expected


def listing(*lines: str) -> str:
    """Instructions as cuobjdump prints them, 16 bytes each; @@N is the address of line N."""
    text = []
    for i, line in enumerate(lines):
        code = re.sub(r"@@(\d+);", lambda found: f"{16 * int(found.group(1)):#x} ;", line)
        text.append(f"        /*{16 * i:04x}*/          {code}    /* 0x000000000000794d */")
        text.append(" " * 80 + "/* 0x000fea0003800000 */")
    return "\n".join(text)


GOOD = (
    "LDG.E R3, [R2.64] ;",
    "LDG.E.128 R4, [R2.64] ;",
    "LDG.E.128.CONSTANT R8, [R2.64+0x10] ;",
    "FFMA R1, R4, R5, R6 ;",
    "STG.E.128 [R2.64], R4 ;",
    "@!P0 BRA @@1;",
    "DADD R2, R4, R6 ;",
    "EXIT ;",
    "BRA @@8;",
)


def test_the_loop_over_full_units():
    (loop,) = innermost_loops(listing(*GOOD))
    assert loop.operations == (
        "LDG.E.128",
        "LDG.E.128.CONSTANT",
        "FFMA",
        "STG.E.128",
        "BRA",
    )
    assert (loop.wide_loads, loop.wide_stores, loop.narrow) == (2, 1, 0)
    assert (loop.local, loop.double) == (0, 0)
    # One with a loop inside is not an innermost one.
    nested = (*GOOD[:6], "@P1 BRA @@0;")
    assert innermost_loops(listing(*nested)) == [loop]


KERNEL = Kernel("", "RunMoments<float, 4>", 80, 32, 0, 0, 0)


@pytest.mark.parametrize(
    ("line", "replacement", "kernel", "expected"),
    [
        (3, "NOP ;", KERNEL, []),
        (2, "LDG.E.64 R8, [R2.64] ;", KERNEL, ["no loop whose accesses all have 16 bytes"]),
        (4, "STG.E.U16 [R2.64], R4 ;", KERNEL, ["no loop whose accesses all have 16 bytes"]),
        (2, "NOP ;", KERNEL, ["1 loads of 16 bytes at a time, fewer than 2"]),
        (3, "STL [R1], R4 ;", KERNEL, ["1 accesses to local memory in the loop"]),
        (3, "DFMA R2, R4, R6, R8 ;", KERNEL, ["1 operations in double in the loop"]),
        (3, "F2F.F64.F32 R2, R4 ;", KERNEL, ["1 operations in double in the loop"]),
        (3, "DFMA R2, R4, R6, R8 ;", KERNEL._replace(name="RunMoments<double, 2>"), []),
        (3, "NOP ;", KERNEL._replace(local=8), ["8 bytes of spills"]),
    ],
)
def test_faults(line, replacement, kernel, expected):
    lines = [*GOOD[:line], replacement, *GOOD[line + 1 :]]
    assert gpu_report.faults(kernel, main_loop(listing(*lines))) == expected


def test_block_size_is_that_of_the_kernels():
    assert gpu_report.threads_of_block() % 32 == 0


def test_without_tools_it_is_skipped_with_the_reason(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binary.importlib.util, "find_spec", lambda name: None)
    assert gpu_report.main([]) == 0
    assert "gpu_report: skipped: no cuobjdump and nvdisasm" in capsys.readouterr().err
    assert gpu_report.main(["--require"]) == 1


def test_libraries_without_kernels(tmp_path, monkeypatch, capsys):
    for tool in ("cuobjdump", "nvdisasm"):
        path = tmp_path / tool
        path.write_text("#!/bin/sh\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    monkeypatch.setenv("CUDACXX", str(tmp_path / "nvcc"))
    assert gpu_report.main(["--library", "some.so"]) == 0
    assert "some.so has no kernels: it is built without" in capsys.readouterr().err
