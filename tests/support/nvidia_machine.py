"""A machine with NVIDIA's libraries and an MXNet, which are made up.

The libraries are small ones of the same names that need each other alike.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from mxnet import libinfo

from tests.support.processes import ROOT, run_python

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

    def run(self, program: str = "import gluon_syncbn", status: int = 0, **environment: str) -> str:
        """What a Python says that has no other MXNet and no other packages of NVIDIA's."""
        result = run_python(
            program,
            status=status,
            PYTHONPATH=os.pathsep.join((str(self.site), str(ROOT))),
            LD_LIBRARY_PATH=str(self.system),
            **environment,
        )
        return result.stderr if status else result.stdout
