"""Finds NVIDIA's libraries for MXNet for CUDA: in the system, else in Python packages.

The dynamic linker does not look in the packages of the extra ``cu112``, but takes a library that is
loaded already. So if MXNet cannot be imported, gluon_syncbn loads them and imports it again.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import runpy
import sys
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from pathlib import Path

_CUDA_11 = "-cu11"
# The driver, and the libraries that MXNet for CUDA 11 is linked to.
_KNOWN = re.compile(
    r"(libcuda\.so\.1|libcudart\.so\.11\.0|libcudnn\.so\.8|lib(?:cublas|cublasLt|cusolver|cusparse)"
    r"\.so\.11|lib(?:cufft|curand)\.so\.10|libnvrtc\.so\.11\.2|libnvToolsExt\.so\.1|libnccl\.so\.2)"
    r": cannot open"
)

_loaded: list[ctypes.CDLL] = []  # keeps the libraries loaded


class LibraryError(ImportError):
    """A library that MXNet needs is missing, or is the library of another CUDA."""


def load() -> None:
    """Load libmxnet.so, and before it the libraries that the dynamic linker does not find.

    Raises
    ------
    LibraryError
        If a library is missing, or another package has overwritten it.
    OSError
        If libmxnet.so does not load for another reason.
    """
    spec = PathFinder.find_spec("mxnet")
    for folder in (spec and spec.submodule_search_locations) or ():
        # The part of MXNet that finds its library, which needs no library itself.
        find_libraries = runpy.run_path(str(Path(folder, "libinfo.py")))["find_lib_path"]
        with contextlib.suppress(RuntimeError):  # without a library, MXNet raises it again
            library = Path(find_libraries()[0])
            _load(library, library)


def _load(path: Path, needed_by: Path) -> None:
    tried: set[str] = set()
    while True:
        try:
            _loaded.append(ctypes.CDLL(str(path)))
            return
        except OSError as error:
            missing = _KNOWN.match(str(error))
            if not missing or missing[1] in tried:
                raise
            tried.add(missing[1])
            _require_driver(needed_by)
            found = find_library(missing[1])
            if found is None:
                raise LibraryError(
                    f"{needed_by} needs {missing[1]}, which is neither among the system's "
                    "libraries nor in a package of NVIDIA's: pip install 'gluon_syncbn[cu112]' "
                    "brings it with MXNet 1.9.1; for MXNet 2, install the packages nvidia-*-cu11 "
                    "which that extra names"
                ) from error
            _require_cuda_11(found)
            _load(found, needed_by)


def _require_driver(needed_by: Path) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LibraryError(
            f"there is no NVIDIA driver here ({error}), which {needed_by} needs, because it is "
            "MXNet for CUDA. Install the driver, or MXNet for CPUs in its place: "
            "pip uninstall mxnet-cu112, then pip install 'gluon_syncbn[cpu]' (or mxnet2)"
        ) from error


def find_library(library: str) -> Path | None:
    """Return the file of a library in NVIDIA's packages."""
    for folder in sys.path:
        for path in sorted(Path(folder or ".", "nvidia").glob(f"*/lib/{library}")):
            return path
    return None


def _require_cuda_11(path: Path) -> None:
    """Raise if a package for another CUDA has overwritten this library with its own."""
    owners = _owners(path)
    ours = [owner for owner in owners if owner.endswith(_CUDA_11)]
    others = [owner for owner in owners if not owner.endswith(_CUDA_11)]
    if not others or (ours and owners[ours[0]] == path.stat().st_size):
        return
    wanted = ours[0] if ours else others[0].rpartition("-")[0] + _CUDA_11
    raise LibraryError(
        f"{path} is the library of {' or '.join(others)}, and MXNet for CUDA 11 needs that of "
        f"{wanted}; both packages write the same file, and the last one installed wins. Use an "
        f"environment of its own for MXNet, or uninstall {' and '.join(others)} and then "
        f"pip install --force-reinstall --no-deps {wanted} in the version that gluon_syncbn[cu112] "
        "names"
    )


def _owners(path: Path) -> dict[str, int | None]:
    """Return the installed packages of NVIDIA that list this file, with the size in their lists."""
    owners: dict[str, int | None] = {}
    for distribution in distributions(path=[str(path.parents[3])]):
        name = (distribution.metadata["Name"] or "").lower()
        if name.startswith("nvidia-"):
            for file in distribution.files or ():
                if file.name == path.name and distribution.locate_file(file) == path:
                    owners[name] = file.size
    return owners
