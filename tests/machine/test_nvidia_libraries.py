"""Importing gluon_syncbn where NVIDIA's libraries are in Python packages, or nowhere."""

from __future__ import annotations

import re

import pytest

from tests.support.nvidia_machine import MXNET, Machine
from tests.support.processes import run_python


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


DRIVER, CUBLAS, CUDNN, CUSOLVER = (
    f"lib{name}" for name in ("cuda.so.1", "cublas.so.11", "cudnn.so.8", "cusolver.so.11")
)


@pytest.mark.parametrize(
    ("system", "from_packages"),
    [
        ([DRIVER], ["cublas", "cudnn", "cusolver"]),
        ([DRIVER, CUDNN, CUBLAS], ["cusolver"]),  # those of the system come first
    ],
)
def test_where_libraries_come_from(machine, system, from_packages):
    machine.to_system(*system)
    machine.packages()
    maps = machine.run()
    assert maps.startswith("42\n")
    found = re.findall(rf"{machine.site}/nvidia/(\w+)/lib/", maps)
    assert sorted(set(found)) == from_packages
    for library in system:
        assert f"{machine.system}/{library}" in maps


def test_a_toolkit_and_no_packages(machine):
    machine.to_system(DRIVER, CUDNN, CUBLAS, CUSOLVER)
    assert machine.run().startswith("42\n")


@pytest.mark.parametrize("packages", [True, False])
def test_no_driver(machine, packages):
    if packages:
        machine.packages()
    message = machine.run(status=1)
    assert "there is no NVIDIA driver here" in message
    assert "pip install 'gluon_syncbn[cpu]'" in message
    assert "in one call" not in message  # that is about NumPy


INSTALL = "pip install 'gluon_syncbn[cu112]'"


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ([DRIVER], f"needs {CUDNN}, which is neither among the system's libraries"),
        ([DRIVER, CUDNN, CUSOLVER], f"needs {CUBLAS}, which is neither"),  # by a library
    ],
)
def test_a_library_is_missing(machine, system, words):
    machine.to_system(*system)
    message = machine.run(status=1)
    assert words in message
    assert INSTALL in message


@pytest.mark.parametrize("when", ["before", "after", "alone"])
def test_a_package_for_another_cuda_in_the_same_place(machine, when):
    """For example beside PyTorch for CUDA 12; the last one installed wins."""
    machine.to_system(DRIVER, *([CUBLAS, CUDNN] if when == "alone" else []))
    if when == "after":
        machine.packages()
    machine.package("nvidia-cusolver-cu12", CUSOLVER, b"another")
    if when == "before":
        machine.packages()
        assert machine.run().startswith("42\n")
        return
    message = machine.run(status=1)
    assert "is the library of nvidia-cusolver-cu12" in message
    assert "MXNet for CUDA 11 needs that of nvidia-cusolver-cu11" in message


def test_mxnet_that_loads_its_libraries_itself(machine):
    """As MXNet 2 for CUDA 13; an error of such a library is MXNet's own."""
    other = "libcublas.so.13"
    machine.compile(machine.links / other)
    machine.compile(machine.site / "mxnet" / "libmxnet.so", other)
    assert f"{other}: cannot open shared object file" in machine.run(status=1)
    (machine.site / "mxnet" / other).write_bytes((machine.links / other).read_bytes())
    load = f"import ctypes\nctypes.CDLL({str(machine.site / 'mxnet' / other)!r})\n"
    (machine.site / "mxnet" / "__init__.py").write_text(load + MXNET)
    assert machine.run().startswith("42\n")


def test_a_failed_import_can_be_repeated(machine):
    machine.to_system("libcuda.so.1")
    machine.packages()
    hidden = machine.system / "libcuda.so.1"
    program = f"""
import os
os.rename({str(hidden)!r}, {str(hidden) + ".away"!r})
for attempt in range(2):
    try:
        import gluon_syncbn
    except ImportError as error:
        assert "no NVIDIA driver" in str(error)
        os.rename({str(hidden) + ".away"!r}, {str(hidden)!r})
"""
    assert machine.run(program).startswith("42\n")


@pytest.mark.parametrize("how", ["file", "folder", "before the package"])
def test_another_library_of_mxnet(machine, how):
    """MXNet takes a file that MXNET_LIBRARY_PATH names, but no folder."""
    machine.to_system(DRIVER)
    machine.packages()
    another = (machine.system if how == "before the package" else machine.links) / "libmxnet.so"
    (machine.site / "mxnet" / "libmxnet.so").rename(another)
    path = {"file": another, "folder": another.parent}.get(how)
    if how == "folder":
        (machine.site / "mxnet" / "libmxnet.so").write_bytes(another.read_bytes())
    maps = machine.run(**({} if path is None else {"MXNET_LIBRARY_PATH": str(path)}))
    assert maps.startswith("42\n")
    assert (str(another) in maps) == (how != "folder")


def test_mxnet_alone_loads_nothing_of_this_package():
    program = """
import sys
import mxnet
print([name for name in sys.modules if name.strip("_").startswith("gluon_syncbn")])
"""
    assert run_python(program).stdout == "[]\n"
