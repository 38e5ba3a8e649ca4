"""The benchmark runs, and its results have the form that readers of its JSON count on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.waiting import lockstep
from tests.support.processes import ROOT, clean_environment


def start(command: str, out: Path, *options: str) -> subprocess.Popen:
    program = str(ROOT / "scripts" / "benchmark.py")
    arguments = [program, command, "--quick", "--out", str(out), *options]
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_lockstep_takes_the_longest_way_to_each_norm():
    # 3 and 5 seconds to the first norm, 4 and 1 to the second, 1 and 3 to the third; 2 after it.
    ends = [[3.0, 7.0, 8.0], [5.0, 6.0, 9.0]]
    assert lockstep(ends, 11.0) == 5.0 + 4.0 + 3.0 + 2.0
    assert lockstep([[8.0, 3.0, 7.0], ends[1]], 11.0) == 14.0
    assert lockstep([ends[0], ends[0]], 11.0) == 11.0  # nobody waits


@pytest.mark.parametrize("ends", [[[1.0], [1.0, 2.0]], [[], []]])
def test_lockstep_needs_the_same_norms_everywhere(ends):
    with pytest.raises(ValueError, match="as many norms on all contexts"):
        lockstep(ends, 3.0)


def test_quick_runs(tmp_path):
    commands = ("op", "fused", "accuracy", "waiting", "deploy", "inplace")
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

    assert len(results["fused"]["rows"]) == 2
    for row in results["fused"]["rows"]:
        assert set(row["results"]) == {"fused", "ours", "batchnorm", "batchnorm_onednn"}
        assert set(row["ratios"]) == {"fused / ours", "fused / BatchNorm"}

    planned, peak, before, sides = (row["values"] for row in results["inplace"]["rows"])
    assert planned["inplace"] <= 0.65 * planned["batchnorm"]
    assert all(peak[method] > before[method] for method in planned)
    assert sides["inplace"] >= sides["batchnorm"]

    for row in results["accuracy"]["rows"]:
        error = row["errors"]["ours"]
        assert error["out"] < 1e-6
        assert error["dx"] < 1e-6

    (row,) = results["waiting"]["rows"]
    assert set(row["results"]) == {"ours", "batchnorm", "traced", "lockstep"}
    steps = (row["results"][method]["times_s"] for method in ("traced", "lockstep"))
    for alone, waiting in zip(*steps):
        assert waiting > 0.999999 * alone  # but for rounding, nobody is faster by waiting

    (row,) = results["deploy"]["rows"]
    assert set(row["results"]) == {
        "ours",
        "exported",
        "folded",
        "exported_onednn",
        "folded_onednn",
    }
