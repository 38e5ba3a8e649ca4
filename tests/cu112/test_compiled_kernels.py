"""Kernels are compiled in the first step of a machine, once for all GPUs, and kept."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.processes import ROOT, run_python

# Of both directions: sums and outputs in two tilings, merges of blocks and of devices.
KERNELS = 12
STEP = """
import mxnet as mx
from mxnet import autograd
from tests.cu112 import fake_cuda
from tests.cu112.faults import arrays, new_layer
xs = arrays(range(8))
for x in xs:
    x.attach_grad()
layer = new_layer(xs)
for _ in range(2):
    with autograd.record():
        ys = [layer(x) for x in xs]
    autograd.backward(ys)
    mx.nd.waitall()
print("compiled:", fake_cuda.count("nvrtcCompileProgram"))
"""


def compiled(cache) -> int:
    output = run_python(STEP, XDG_CACHE_HOME=str(cache)).stdout
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
    command = [sys.executable, "-c", STEP]
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
    ("settings", "message"),
    [
        (
            {"GLUON_SYNCBN_NVRTC": "/nowhere/libnvrtc.so.11.2"},
            "GPU contexts need NVRTC: GLUON_SYNCBN_NVRTC names no library that loads: /nowhere",
        ),
        (
            {"GLUON_SYNCBN_NVRTC": "libm.so.6"},
            "GPU contexts need NVRTC: libm.so.6 has no nvrtcVersion, which NVRTC of CUDA 11.2",
        ),
        (
            {"FAKE_CUDA_CAPABILITY": "37"},
            "compiles for no GPU of compute capability 3.7: use an earlier CUDA",
        ),
    ],
)
def test_what_is_missing_is_the_error_of_the_first_call(settings, message):
    program = f"""
import mxnet as mx
from tests.cu112.faults import arrays, errors, new_layer, outputs
xs = arrays([0, 1])
try:
    found = errors(outputs(new_layer(xs), xs))
except mx.base.MXNetError as error:
    found = [str(error)] * 2
assert all({message!r} in error for error in found), found
"""
    run_python(program, **settings)
