"""Packaging entry point: metadata is in pyproject.toml, the native build in CMakeLists.txt.

The ``cmake_source_dir`` keyword comes from scikit-build-core's setuptools plugin, which runs CMake
and puts the library that CMake installs (``gluon_syncbn/libgluon_syncbn.so``) into the wheel.
"""

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

PATH_FILE = "gluon_syncbn.pth"


class PlatformWheel(bdist_wheel):
    """Tag wheels ``py3-none-<platform>``: the native library does not use the Python C API."""

    def get_tag(self):
        """Return the wheel tag with the interpreter and ABI parts made generic."""
        return ("py3", "none", super().get_tag()[2])


class WithPathFile(build_py):
    """Puts the ``.pth`` file beside the packages, the only place where Python reads it.

    An editable install ignores the build folder. It installs the files that lie in the folder for
    libraries.
    """

    def run(self):
        """Build, and copy the file."""
        super().run()
        editable = getattr(self, "editable_mode", False)
        folder = self.get_finalized_command("install").install_lib if editable else self.build_lib
        self.copy_file(PATH_FILE, folder)


setup(
    cmake_source_dir=".",
    cmdclass={"bdist_wheel": PlatformWheel, "build_py": WithPathFile},
    license="Apache-2.0",
)
