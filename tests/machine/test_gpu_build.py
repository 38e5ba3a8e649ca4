"""Which kernels a build from sources has: those for the GPUs of this machine.

The GPUs here are made up: a libcuda.so.1 of a few lines, in place of the driver's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from tests.support.processes import ROOT

NVCC = shutil.which(os.environ.get("CUDACXX", "nvcc"))
# Functions of CUDA's driver, and the two numbers of a compute capability among its attributes.
DRIVER = """
static const int capabilities[] = {%s};
static const int number = sizeof capabilities / sizeof *capabilities - 1;
int cuInit(unsigned flags) { return number ? flags : 100; }
int cuDeviceGetCount(int* count) { return *count = number, 0; }
int cuDeviceGet(int* device, int index) { return *device = 7 + index, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const int capability = capabilities[device - 7];
  *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability %% 10 : -1;
  return 0;
}
"""
CUDA_11 = [35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86]
CUDA_13 = [75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121]


def architectures(known: list[int], gpus: list[int], tmp_path) -> str:
    script = tmp_path / "script.cmake"
    script.write_text(
        f'include("{ROOT}/cmake/gpu_architectures.cmake")\n'
        f'architectures_for(chosen "{";".join(map(str, known))}" "{";".join(map(str, gpus))}")\n'
        'message("chosen: ${chosen}")\n'
    )
    command = ["cmake", "-P", str(script)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return result.stderr.partition("chosen: ")[2].strip()


@pytest.mark.parametrize(
    ("known", "gpus", "expected"),
    [
        (CUDA_11, [80], "80-real"),
        (CUDA_11, [80, 80, 70], "70-real;80-real"),
        (CUDA_11, [89], "86-real"),  # code for 8.6 runs there
        (CUDA_11, [90], "86-virtual"),  # the driver compiles it for Hopper
        (CUDA_11, [61, 90, 121], "61-real;86-virtual"),
        (CUDA_13, [90, 100], "90-real;100-real"),
        (CUDA_13, [121], "121-real"),
        (CUDA_13, [70], ""),
        (CUDA_13, [70, 80], "80-real"),
        (CUDA_13, [], ""),
    ],
)
def test_architectures_for_gpus(known, gpus, expected, tmp_path):
    assert architectures(known, gpus, tmp_path) == expected


def configure(tmp_path, *options: str, gpus: list[int] | None = None, **environment: str) -> str:
    """What the build says of GPU contexts, on a machine with these GPUs, or without a driver."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("GLUON_SYNCBN_CUDA")}
    if gpus is not None:
        source = DRIVER % ", ".join(map(str, [*gpus, 0]))
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(tmp_path / "libcuda.so.1")]
        subprocess.run(command, input=source, text=True, check=True)
        variables["LD_LIBRARY_PATH"] = str(tmp_path)
    variables.update(environment)
    command = ["cmake", "-S", str(ROOT), "-B", str(tmp_path / "build"), *options]
    result = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    return re.findall(r"^-- GPU contexts: (.*)$", result.stdout, re.MULTILINE)[-1]


@pytest.mark.parametrize("gpus", [None, []])
def test_without_a_gpu_there_are_no_kernels(gpus, tmp_path):
    if gpus is None and has_driver():
        pytest.skip("here is a driver")
    line = configure(tmp_path, gpus=gpus)
    assert line == (
        "not built, because no GPU is here; GLUON_SYNCBN_CUDA=ON builds for all GPUs, "
        "GLUON_SYNCBN_CUDA_ARCHITECTURES for those that it lists"
    )


def has_driver() -> bool:
    libraries = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True)
    return "libcuda.so.1" in libraries.stdout


@pytest.mark.skipif(not NVCC, reason="no CUDA compiler")
@pytest.mark.parametrize(
    ("options", "gpus", "environment", "expected"),
    [
        ([], [86, 80], {}, r"architectures 80-real;86-real"),
        ([], [80], {"GLUON_SYNCBN_CUDA_ARCHITECTURES": "90-real"}, r"architectures 90-real"),
        ([], [80], {"GLUON_SYNCBN_CUDA": "ON"}, r"architectures \S+;\S+-virtual"),
        (["-DGLUON_SYNCBN_PORTABLE=ON"], [80], {}, r"architectures \S+;\S+-virtual"),
        ([], [30], {}, r"not built, because CUDA \S+ has no code .* \(compute capability 3\.0\)"),
    ],
)
def test_kernels_for_the_gpus_here(options, gpus, environment, expected, tmp_path):
    assert re.search(expected, configure(tmp_path, *options, gpus=gpus, **environment))
