"""Packaging entry point: metadata is in pyproject.toml, the native build in CMakeLists.txt.

The ``cmake_source_dir`` keyword comes from scikit-build-core's setuptools plugin, which runs CMake
and puts the library that CMake installs (``gluon_syncbn/libgluon_syncbn.so``) into the wheel.
"""

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class PlatformWheel(bdist_wheel):
    """Tag wheels ``py3-none-<platform>``: the native library does not use the Python C API."""

    def get_tag(self):
        """Return the wheel tag with the interpreter and ABI parts made generic."""
        return ("py3", "none", super().get_tag()[2])


setup(
    cmake_source_dir=".",
    cmdclass={"bdist_wheel": PlatformWheel},
    license="Apache-2.0",
)
