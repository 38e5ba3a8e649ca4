"""The benchmark runs, and its results have the form that readers of its JSON count on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.processes import ROOT, clean_environment

COMMANDS = ("op", "fused", "accuracy", "net", "inplace")


def start(command: str, out: Path) -> subprocess.Popen:
    program = str(ROOT / "scripts" / "benchmark.py")
    return subprocess.Popen(
        [sys.executable, program, command, "--quick", "--out", str(out)],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_quick_runs(tmp_path):
    processes = {command: start(command, tmp_path / command) for command in COMMANDS}
    results = {}
    for command, process in processes.items():
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        assert "gluon_syncbn" in output
        results[command] = json.loads((tmp_path / command).read_text())
        assert {"command", "date", "machine", "python", "rows"} <= results[command].keys()

    training, inference = results["op"]["rows"]
    assert {"ours", "batchnorm", "batchnorm_onednn", "builtin", "copies"} <= {*training["results"]}
    assert {"ours", "batchnorm"} <= {*inference["results"]}
    assert {"ours / BatchNorm", "contrib / ours", "ours / copies"} <= {*training["ratios"]}
    for row in (training, inference):
        for result in row["results"].values():
            assert 0 < result["low_ms"] <= result["median_ms"] <= result["high_ms"]
            assert len(result["times_s"]) == 3

    assert len(results["fused"]["rows"]) == 2
    for row in results["fused"]["rows"]:
        assert {*row["results"]} == {"fused", "ours", "batchnorm", "batchnorm_onednn"}
        assert {"fused / ours", "fused / BatchNorm"} <= {*row["ratios"]}

    (row,) = results["net"]["rows"]
    methods = {"ours", "fused", "ours_whole", "batchnorm_onednn", "batchnorm_whole_onednn"}
    assert {*row["results"]} == {*row["peak_mb"]} == {*methods, "builtin"}

    planned, peak, before, sides = (row["values"] for row in results["inplace"]["rows"])
    assert planned["inplace"] <= 0.65 * planned["batchnorm"]
    assert all(peak[method] > before[method] for method in planned)
    assert sides["inplace"] >= sides["batchnorm"]

    for row in results["accuracy"]["rows"]:
        assert row["errors"]["ours"] < 1e-6
    assert results["accuracy"]["rows"][1]["errors"]["builtin"] > 1e-3
