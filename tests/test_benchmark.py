"""The benchmark runs, and its results have the form that readers of its JSON count on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from .processes import ROOT, clean_environment


def start(command: str, out: Path) -> subprocess.Popen:
    arguments = [str(ROOT / "scripts" / "benchmark.py"), command, "--quick", "--out", str(out)]
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_op_accuracy_and_deploy(tmp_path):
    commands = ("op", "accuracy", "deploy")
    processes = {command: start(command, tmp_path / command) for command in commands}
    results = {}
    for command, process in processes.items():
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        assert "gluon_syncbn" in output
        results[command] = json.loads((tmp_path / command / "results.json").read_text())
        assert {"command", "date", "machine", "python", "rows"} <= results[command].keys()
        assert (tmp_path / command / "results.png").read_bytes().startswith(b"\x89PNG")

    training, inference = results["op"]["rows"]
    assert {"ours", "batchnorm", "batchnorm_onednn", "builtin", "copies"} <= set(
        training["results"]
    )
    assert {"ours", "batchnorm"} <= set(inference["results"])
    assert {"ours / BatchNorm", "contrib / ours", "ours / copies"} <= set(training["ratios"])
    for row in (training, inference):
        for result in row["results"].values():
            assert 0 < result["low_ms"] <= result["median_ms"] <= result["high_ms"]
            assert len(result["times_s"]) == 3

    for row in results["accuracy"]["rows"]:
        error = row["errors"]["ours"]
        assert error["out"] < 1e-6
        assert error["dx"] < 1e-6

    (row,) = results["deploy"]["rows"]
    assert set(row["results"]) == {
        "ours",
        "exported",
        "folded",
        "exported_onednn",
        "folded_onednn",
    }
