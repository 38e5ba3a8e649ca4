"""The benchmark runs, and finds what does not depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.processes import ROOT, clean_environment

COMMANDS = ("op", "fused", "accuracy", "net", "inplace")


def test_quick_runs(tmp_path):
    processes = {
        command: subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "benchmark.py"), command, "--quick"],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in COMMANDS
    }
    tables = {}
    for command, process in processes.items():
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        assert "| gluon_syncbn" in output
        results = json.loads((tmp_path / "runs" / f"benchmark-{command}.json").read_text())
        assert {"command", "date", "machine", "python"} < results.keys()
        tables[command] = [dict(zip(results["head"], line)) for line in results["lines"]]

    training, inference = tables["op"]
    ratios = {"ours / BatchNorm", "contrib / ours", "ours / copies"}
    assert all(training[name] > 0 for name in ratios)
    peers = {"gluon_syncbn, ms", "BatchNorm, ms", "8 copies, ms"}
    for name in {*peers, "BatchNorm, oneDNN, ms", "contrib SyncBatchNorm, ms"}:
        assert len(training[name]) == 3
        assert (inference[name] is not None) == (name in peers)
    for row in tables["fused"]:
        assert row["fused / ours"] > 0
        assert row["fused / BatchNorm"] > 0
    assert len(tables["fused"]) == 2
    assert len(tables["net"]) == 6
    assert all(len(row["ms"]) == 2 and row["peak MB"] > 0 for row in tables["net"])

    planned, peak, before, sides = tables["inplace"]
    assert planned["in place / BatchNorm"] <= 0.65
    for name in ("BatchNorm", "gluon_syncbn, in place"):
        assert peak[name] > before[name]
    assert sides["gluon_syncbn, in place"] >= sides["BatchNorm"]

    for row in tables["accuracy"]:
        assert float(row["gluon_syncbn"]) < 1e-6
    assert float(tables["accuracy"][1]["contrib SyncBatchNorm"]) > 1e-3
