"""Nothing grows; scripts/soak.py is the same for longer."""

from __future__ import annotations

import json

from tests.support.processes import run_python

SOAK = """
import runpy, sys
sys.path.insert(0, "scripts")
sys.argv = ["soak.py", *sys.argv[1:]]
runpy.run_path("scripts/soak.py", run_name="__main__")
"""


def test_nothing_grows(tmp_path):
    modes = ["imperative", "dynamic", "static_alloc"]
    result = run_python(
        SOAK, "--steps", "400", "--contexts", "2", "--out", str(tmp_path), "--modes", *modes
    )
    assert result.stdout.count(": ok") == 12
    report = json.loads((tmp_path / "soak.json").read_text())
    assert set(report["samples"]) == set(modes)
    assert all(sample["keys"] <= 6 for samples in report["samples"].values() for sample in samples)
    assert (tmp_path / "soak.png").stat().st_size > 10000


def test_a_leak_is_found():
    """A slow one is, in spite of steps; steps alone are not taken for one."""
    program = """
import runpy
import pandas as pd
soak = runpy.run_path("scripts/soak.py")
def growth(rss):
    samples = [(rss(i), 5 + i // 90, 6, 0) for i in range(200)]
    return soak["growth"](pd.DataFrame(samples, columns=list(soak["TOLERANCE"])))
leak = growth(lambda i: 300 + i / 30 + 20 * (i > 100))
steps = growth(lambda i: 300 + 20 * (i > 100) + 3 * (i > 150))
assert leak["rss_mib"] > soak["TOLERANCE"]["rss_mib"], leak
assert steps["rss_mib"] <= soak["TOLERANCE"]["rss_mib"], steps
assert leak["threads"] == 0
"""
    run_python(program)
