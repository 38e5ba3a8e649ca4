"""Packaging entry point: metadata is in pyproject.toml, the native build in CMakeLists.txt.

The ``cmake_source_dir`` keyword comes from scikit-build-core's setuptools plugin, which runs CMake
and puts the library that CMake installs (``gluon_syncbn/libgluon_syncbn.so``) into the wheel.
"""

import os
import shutil

from scikit_build_core.errors import FailedLiveProcessError
from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

COMPILERS = ("c++", "g++", "clang++")


class PlatformWheel(bdist_wheel):
    """Tag wheels ``py3-none-<platform>``: the native library does not use the Python C API."""

    def get_tag(self):
        """Return the wheel tag with the interpreter and ABI parts made generic."""
        return ("py3", "none", super().get_tag()[2])


try:
    setup(
        cmake_source_dir=".",
        cmdclass={"bdist_wheel": PlatformWheel},
        license="Apache-2.0",
    )
except FailedLiveProcessError as error:
    # The last line that pip shows, in the place of a hundred lines of traceback.
    if "CXX" in os.environ or any(map(shutil.which, COMPILERS)):
        reason = f"{error}: the lines above with 'CMake Error' or 'error:' say why"
    else:
        reason = (
            "gluon_syncbn needs a C++ compiler, and there is none here. Install g++ (Debian and "
            "Ubuntu: apt-get install g++), or a wheel from another machine (docs/gpu.md, The wheel)"
        )
    raise SystemExit(f"error: {reason}") from None
