"""Importing gluon_syncbn where NVIDIA's libraries are in Python packages, or nowhere.

MXNet and the libraries are made up here: small ones of the same names that need each other alike.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from mxnet import libinfo

from tests.support.processes import ROOT, run_python

IMPORT = "import gluon_syncbn"
# Ends the program, because there is no more of this MXNet.
MXNET = """
import ctypes
from .libinfo import find_lib_path
print(ctypes.CDLL(find_lib_path()[0]).answer())
print(open("/proc/self/maps").read())
raise SystemExit
"""


class Machine:
    """Folders of a machine: the system's libraries, and a place for Python's packages."""

    def __init__(self, folder: Path) -> None:
        self.system = folder / "system"
        self.site = folder / "site"
        self.links = folder / "links"  # for the linker alone
        for made in (self.system, self.site / "mxnet", self.links):
            made.mkdir(parents=True)
        (self.site / "mxnet" / "__init__.py").write_text(MXNET)
        (self.site / "mxnet" / "libinfo.py").write_text(Path(libinfo.__file__).read_text())
        for library in ("libcuda.so.1", "libcublas.so.11", "libcudnn.so.8"):
            self.compile(self.links / library)
        self.compile(self.links / "libcusolver.so.11", "libcublas.so.11")
        needed = ("libcudnn.so.8", "libcuda.so.1", "libcusolver.so.11")
        self.compile(self.site / "mxnet" / "libmxnet.so", *needed)

    def compile(self, path: Path, *needed: str) -> None:
        source = "int answer() { return 42; }" if path.name == "libmxnet.so" else ""
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
        command += [f"-Wl,-soname,{path.name}", "-Wl,--no-as-needed", f"-L{self.links}"]
        command += [f"-Wl,-rpath-link,{self.links}", *(f"-l:{name}" for name in needed)]
        subprocess.run(command, input=source, text=True, check=True)

    def to_system(self, *libraries: str) -> None:
        for library in libraries:
            (self.system / library).write_bytes((self.links / library).read_bytes())

    def package(self, name: str, library: str, extra: bytes = b"") -> None:
        """Install a package as pip does, over what is there; `extra` makes it another file."""
        part = name.split("-")[1]
        path = self.site / "nvidia" / part / "lib" / library
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((self.links / library).read_bytes() + extra)
        info = self.site / f"{name.replace('-', '_')}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        record = f"nvidia/{part}/lib/{library},sha256=x,{path.stat().st_size}\n"
        (info / "RECORD").write_text(record)

    def packages(self) -> None:
        self.package("nvidia-cublas-cu11", "libcublas.so.11")
        self.package("nvidia-cudnn-cu11", "libcudnn.so.8")
        self.package("nvidia-cusolver-cu11", "libcusolver.so.11")

    def run(self, program: str = IMPORT, status: int = 0, **environment: str) -> str:
        """What a Python says that has no other MXNet and no other packages of NVIDIA's."""
        result = run_python(
            program,
            status=status,
            PYTHONPATH=os.pathsep.join((str(self.site), str(ROOT))),
            LD_LIBRARY_PATH=str(self.system),
            **environment,
        )
        return result.stderr if status else result.stdout


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
