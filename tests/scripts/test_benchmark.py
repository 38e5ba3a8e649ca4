"""The benchmark runs, and finds what does not depend on the machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.support.processes import ROOT, run_interpreter

COMMANDS = ("op", "fused", "accuracy", "net", "inplace")


def rows(output: str) -> list[dict[str, str]]:
    """The table in the output, row by row."""
    lines = [line[2:-2] for line in output.splitlines() if line.startswith("| ")]
    head, _, *found = [[text.strip() for text in line.split(" | ")] for line in lines]
    return [dict(zip(head, texts)) for texts in found]


def test_quick_runs(tmp_path):
    charts = {command: [f"--csv={command}.csv", "--plot=."] for command in ("op", "net")}

    def table(command: str) -> list[dict[str, str]]:
        program = (str(ROOT / "scripts" / "benchmark.py"), command, "--quick")
        options = charts.get(command, ())
        return rows(run_interpreter(*program, *options, folder=tmp_path, timeout=600).stdout)

    with ThreadPoolExecutor() as pool:
        tables = dict(zip(COMMANDS, pool.map(table, COMMANDS)))

    for name in ("layer.png", "step.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    kept = (tmp_path / "op.csv").read_text()
    assert 'op,"2 x (2, 8, 16, 16)",contrib SyncBatchNorm,' in kept

    training, inference = tables["op"]
    ratios = {"ours / BatchNorm", "contrib / ours", "ours / copies"}
    assert all(float(training[name]) > 0 for name in ratios)
    peers = {"gluon_syncbn, ms", "BatchNorm, ms", "8 copies, ms"}
    for name in {*peers, "BatchNorm, oneDNN, ms", "contrib SyncBatchNorm, ms"}:
        assert training[name] != "-"
        assert (inference[name] != "-") == (name in peers)
    for row in tables["fused"]:
        assert float(row["fused / ours"]) > 0
        assert float(row["fused / BatchNorm"]) > 0
    assert len(tables["fused"]) == 2
    assert len(tables["net"]) == 6
    assert all(float(row["peak MB"]) > 0 for row in tables["net"])

    planned, peak, before, sides = tables["inplace"]
    assert float(planned["in place / BatchNorm"]) <= 0.65
    for name in ("BatchNorm", "gluon_syncbn, in place"):
        assert float(peak[name]) > float(before[name])
    assert float(sides["gluon_syncbn, in place"]) >= float(sides["BatchNorm"])

    for row in tables["accuracy"]:
        assert float(row["gluon_syncbn"]) < 1e-6
    assert float(tables["accuracy"][1]["contrib SyncBatchNorm"]) > 1e-3
