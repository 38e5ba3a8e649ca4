"""Kernels are compiled in the first step of a machine, once for all GPUs, and kept."""

from __future__ import annotations

import os
import subprocess
import sys

import mxnet as mx
import pytest

from tests.support.own_process import case
from tests.support.processes import ROOT, run_program

from .steps import arrays, errors, new_layer, outputs

# Of both directions: sums and outputs in two tilings, merges of blocks and of devices.
KERNELS = 12


def compiled(cache) -> int:
    output = run_program("gpus.two_steps", XDG_CACHE_HOME=str(cache)).stdout
    return int(output.rpartition("compiled: ")[2])


def test_once_for_all_gpus_and_processes(tmp_path):
    assert compiled(tmp_path) == KERNELS
    assert len(list((tmp_path / "gluon_syncbn").iterdir())) == KERNELS
    assert compiled(tmp_path) == 0


def test_in_each_process_without_a_folder(tmp_path):
    (tmp_path / "gluon_syncbn").write_text("a file")
    assert compiled(tmp_path) == KERNELS
    assert compiled(tmp_path) == KERNELS


def test_by_two_processes_at_once(tmp_path):
    command = [sys.executable, "-c", "from tests.programs import gpus; gpus.two_steps()"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        assert "compiled: " in output
    assert len(list((tmp_path / "gluon_syncbn").iterdir())) == KERNELS


@pytest.mark.parametrize(
    "message",
    [
        case(
            "GPU contexts need NVRTC: GLUON_SYNCBN_NVRTC names no library that loads: /nowhere",
            GLUON_SYNCBN_NVRTC="/nowhere/libnvrtc.so.11.2",
        ),
        case(
            "GPU contexts need NVRTC: libm.so.6 has no nvrtcVersion, which NVRTC of CUDA 11.2",
            GLUON_SYNCBN_NVRTC="libm.so.6",
        ),
        case(
            "compiles for no GPU of compute capability 3.7: use an earlier CUDA",
            FAKE_CUDA_CAPABILITY="37",
        ),
    ],
)
def test_what_is_missing_is_the_error_of_the_first_call(message):
    xs = arrays([0, 1])
    try:
        found = errors(outputs(new_layer(xs), xs))
    except mx.base.MXNetError as error:
        found = [str(error)] * 2
    assert all(message in error for error in found), found
