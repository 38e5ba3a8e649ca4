"""scripts/build_wheels.sh shows what failed first, and writes checksums."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.processes import shell_function

COMPILER = "/s/x.cc:3:10: fatal error: nope.h: No such file or directory"
CMAKE = "  CMake Error at CMakeLists.txt:3 (find_package):"
LINKER = "x.cc:(.text+0x1): undefined reference to `g()'"


@pytest.mark.parametrize("first", [COMPILER, CMAKE, LINKER])
def test_first_error(first, tmp_path):
    function = shell_function("build_wheels.sh", "first_error")
    log = tmp_path / "log"
    log.write_text(f"c++ -Werror -c x.cc\n{first}\nninja: stopped\nerror: subprocess-exited\n" * 9)
    shell = ["bash", "-c", f"{function}first_error {log}"]
    shown = subprocess.run(shell, capture_output=True, text=True, check=True).stdout
    assert shown.startswith(f"{first}\nninja: stopped\n")
    assert shown.count("\n") <= 7


def test_checksums_find_a_changed_file(tmp_path):
    """They are of the files of this build, by names that hold in dist/ alone."""
    dist = tmp_path / "dist"
    dist.mkdir()
    for name in ("a.whl", "b.tar.gz", "earlier.whl"):
        (dist / name).write_text(name)
    function = shell_function("build_wheels.sh", "checksums")
    shell = ["bash", "-c", f"{function}checksums b.tar.gz a.whl"]
    subprocess.run(shell, cwd=tmp_path, check=True)
    lines = (dist / "SHA256SUMS").read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["b.tar.gz", "a.whl"]
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    assert subprocess.run(check, cwd=dist, check=False).returncode == 0
    (dist / "a.whl").write_text("changed")
    assert subprocess.run(check, cwd=dist, check=False).returncode == 1
