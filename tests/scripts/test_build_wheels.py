"""scripts/build_wheels.sh shows what failed first."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.processes import ROOT

COMPILER = "/s/x.cc:3:10: fatal error: nope.h: No such file or directory"
CMAKE = "  CMake Error at CMakeLists.txt:3 (find_package):"
LINKER = "x.cc:(.text+0x1): undefined reference to `g()'"


@pytest.mark.parametrize("first", [COMPILER, CMAKE, LINKER])
def test_first_error(first, tmp_path):
    script = (ROOT / "scripts" / "build_wheels.sh").read_text()
    function = re.search(r"^first_error\(\) \{.*?^\}", script, re.MULTILINE | re.DOTALL)
    assert function is not None
    log = tmp_path / "log"
    log.write_text(f"c++ -Werror -c x.cc\n{first}\nninja: stopped\nerror: subprocess-exited\n" * 9)
    shell = ["bash", "-c", f"{function[0]}; first_error {log}"]
    shown = subprocess.run(shell, capture_output=True, text=True, check=True).stdout
    assert shown.startswith(f"{first}\nninja: stopped\n")
    assert shown.count("\n") <= 7
