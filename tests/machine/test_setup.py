"""scripts/setup.sh installs Debian's nvcc where that does no harm."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.processes import shell_function

PACKAGES = "Inst gcc-11 (11.3 Debian)\nInst nvidia-cuda-dev (11.8 Debian)\n"


def ask(folder, candidate: str, changes: str, driver: str, known: bool = True) -> str:
    """What system_nvcc of setup.sh installs, where apt-cache and apt-get say this."""
    answers = {
        "apt-cache": f"nvidia-cuda-toolkit:\n  Installed: (none)\n  Candidate: {candidate}\n",
        "apt-get": changes,
    }
    for name, answer in answers.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}END\nexit {int(not known)}\n")
        program.chmod(0o755)
    program = 'set -euo pipefail\nsystem_packages() { echo "$2"; }\n'
    program += f"{shell_function('setup.sh', 'system_nvcc')}system_nvcc {driver} || echo nothing\n"
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = ["bash", "-c", program]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert not result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize(
    ("candidate", "driver", "changes", "installed"),
    [
        ("11.8.89~11.8.0-5~deb12u1", "12.2", PACKAGES, True),
        ("11.2.2-3+deb11u3", "11.2", PACKAGES, True),
        ("11.8.89~11.8.0-5~deb12u1", "11.4", PACKAGES, True),  # CUDA 11 runs on all its drivers
        ("12.0.140~12.0.1-4build4", "11.4", PACKAGES, False),
        ("10.1.243-3", "12.2", PACKAGES, False),
        ("(none)", "12.2", PACKAGES, False),
        # A driver comes along, in the place of the one that is here.
        ("11.8.89~11.8.0-5~deb12u1", "12.2", PACKAGES + "Inst libcuda1 (535 Debian)\n", False),
        ("11.5.1-1ubuntu1", "12.2", PACKAGES + "Inst libnvidia-compute-495 (510 Ub)\n", False),
        ("11.8.89~11.8.0-5~deb12u1", "12.2", PACKAGES + "Remv nvidia-driver [550]\n", False),
    ],
)
def test_nvcc_of_the_system(candidate, driver, changes, installed, tmp_path):
    expected = "nvidia-cuda-toolkit" if installed else "nothing"
    assert ask(tmp_path, candidate, changes, driver) == expected


def test_nvcc_that_apt_cannot_install(tmp_path):
    assert ask(tmp_path, "11.8.89~11.8.0-5~deb12u1", "", "12.2", known=False) == "nothing"
