"""scripts/benchmark_gpu.py on emulated GPUs, and what it computes from times."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from .host_device import HostDevice
from .native_build import build
from .processes import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import benchmark_gpu
from gpu_benchmarks import cases, goals, measuring
from gpu_benchmarks.bridge import Bridge, BridgeError
from gpu_benchmarks.cases import Case
from gpu_benchmarks.device import Slot
from gpu_benchmarks.methods import Ours


@pytest.fixture(scope="module")
def bridge():
    return Bridge(build("gpu_bridge_emulated") / "libgpu_bridge_emulated.so")


def test_cases_are_those_of_the_goals():
    listed = cases.all_cases(quick=False)
    assert len(set(listed)) == len(listed)
    assert {c.channels for c in listed} >= {64, 256, 512, 1024, 2048}
    assert {c.side for c in listed} >= {60, 90, 119, 179}
    assert {c.batch for c in listed} >= {1, 2, 4, 8, 16}
    assert {c.contexts for c in listed} == {1, 2, 4, 8}
    kinds = {(c.dtype, c.channel_last) for c in listed}
    assert len(kinds) == 4
    for case in listed:
        assert case.batch % case.contexts == 0
    for number in (1, 8):
        for size in ("large", "small"):
            found = {
                (c.dtype, c.channel_last) for c in listed if (c.contexts, c.size) == (number, size)
            }
            assert found == kinds


def test_floor_is_the_least_traffic_at_the_speed_of_a_copy():
    case = Case(4, 8, 16)
    assert case.bytes == 4 * 8 * 16 * 16 * 4
    # The copy moves the data twice: read x twice and write y; x and dy twice and dx.
    assert cases.floor_seconds(case, cases.FORWARD, 2.0) == pytest.approx(3.0)
    assert cases.floor_seconds(case, cases.BACKWARD, 2.0) == pytest.approx(5.0)
    assert cases.bandwidth(case, 2.0) == pytest.approx(case.bytes)
    assert Case(4, 8, 16, "float16").bytes == case.bytes / 2


@pytest.mark.parametrize("case", [Case(16, 64, 119), Case(2, 64, 90), Case(16, 2048, 60)])
def test_arrays_in_turns_are_larger_than_the_cache(case):
    cache = 50 << 20
    number = cases.slots(case, cache)
    assert number >= 2
    assert (number - 1) * case.bytes >= cache
    assert number * 4 * case.bytes <= measuring.arrays_bytes(case, cache, 0)


def test_small_cases_do_not_take_endless_arrays():
    assert cases.slots(Case(8, 512, 1), 50 << 20) == 100


def timed(ours, **others):
    times = {
        "ours": dict(ours, moments=[1.0], normalize=[1.0], gradient_sums=[1.0]),
        "copy": {"copy": [1.0]},
    }
    times["ours"]["input_gradient"] = [2.0]
    times.update({name: {"forward": [f], "backward": [b]} for name, (f, b) in others.items()})
    return times


def row_of(case, times):
    return {
        "title": case.title,
        "case": {**vars(case), "size": case.size},
        **measuring.evaluate(case, times),
    }


def test_evaluation_and_goals():
    large = Case(16, 64, 119)
    times = timed(
        {"forward": [2.0], "backward": [3.0]}, torch_primitives=(3, 3), torch_cudnn=(2, 2)
    )
    row = row_of(large, times)
    forward, backward, step = row["parts"]
    assert forward["floor_ms"] == pytest.approx(1500)
    assert backward["floor_ms"] == pytest.approx(2500)
    assert step["ratios"] == pytest.approx(
        {"ours / floor": 5 / 4, "ours / primitives": 5 / 6, "ours / cuDNN": 5 / 4}
    )
    of_copy = {phase: result["of_copy"] for phase, result in row["phases"].items()}
    assert of_copy == pytest.approx(
        {"moments": 0.5, "normalize": 1, "gradient_sums": 1, "input_gradient": 0.75}
    )

    last = row_of(
        Case(16, 64, 119, channel_last=True), timed({"forward": [2.0], "backward": [3.5]})
    )
    small = [
        row_of(Case(8, 512, 1, contexts=k), timed({"forward": [t], "backward": [1.0]}))
        for k, t in ((1, 1.0), (8, 1.5))
    ]
    found = goals.check_goals([row, last, *small])
    verdicts = {(g.name, g.case): g.reached for g in found}
    assert verdicts["moments, of a copy's speed", large.title] is False
    assert verdicts["normalize, of a copy's speed", large.title] is True
    assert verdicts["step, ours / torch's primitives", large.title] is True
    assert verdicts["step, ours / torch's primitives", last["title"]] is None
    assert verdicts["step, channel-last / first", last["title"]] is False
    assert verdicts["step, 8 contexts / 1", small[1]["title"]] is True
    (most,) = (g for g in found if "share" in g.name)
    assert (most.value, most.reached) == (0, False)
    assert not any(g.case == small[0]["title"] for g in found if g.name != "step, 8 contexts / 1")
    words = {line[-1] for line in (g.line() for g in found)}
    assert words == {"reached", "not reached", "not measured"}


def test_whole_benchmark_on_emulated_gpus(bridge, tmp_path, monkeypatch, capsys):
    quick = [
        Case(8, 5, 7, dtype, last, contexts)
        for dtype in ("float32", "float16")
        for last in (False, True)
        for contexts in (1, 8)
    ]
    monkeypatch.setattr(benchmark_gpu, "all_cases", lambda _: quick)
    device = HostDevice(bridge)
    options = benchmark_gpu.parse_arguments(["--quick", "--turns", "2", "--out", str(tmp_path)])
    rows = benchmark_gpu.run(options, device, bridge, lambda case, slots: {})
    benchmark_gpu.report(options.out, rows, device.describe())

    printed = capsys.readouterr().out
    results = json.loads((tmp_path / "results.json").read_text())
    assert [row["title"] for row in results["rows"]] == [case.title for case in quick]
    for case, row in zip(quick, results["rows"]):
        assert case.title in printed
        assert 0 < row["errors"]["ours"] <= measuring.TOLERANCE[case.dtype]
        assert [part["part"] for part in row["parts"]] == ["forward", "backward", "step"]
        for part in row["parts"]:
            assert len(part["results"]["ours"]["times_s"]) == 2
        assert set(row["phases"]) == set(cases.PASSES)
    assert {goal["name"] for goal in results["goals"]} >= {"step, 8 contexts / 1"}
    assert "not reached" in printed or "reached" in printed
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    # Work of 8 contexts is waited for on all of their streams; the copy has none.
    assert {len(streams) for streams in device.timed} == {0, 1, 8}


def test_a_wrong_result_is_not_timed(bridge, monkeypatch):
    class Wrong(Ours):
        def results(self, slot):
            found = super().results(slot)
            return {**found, "dx": found["dx"] + np.float32(0.01)}

    monkeypatch.setattr(measuring, "Ours", Wrong)
    device = HostDevice(bridge)
    with pytest.raises(measuring.WrongResultError, match=r"ours, 1 ctx.*relative error of dx is"):
        measuring.measure(Case(4, 3, 5), device, bridge, lambda case, slots: {}, 1)
    assert not device.timed


def test_cases_without_memory_are_named(bridge, monkeypatch, capsys):
    device = HostDevice(bridge)
    monkeypatch.setattr(device, "free_bytes", lambda: 1 << 20)
    monkeypatch.setattr(benchmark_gpu, "all_cases", lambda _: [Case(4, 3, 64)])
    options = benchmark_gpu.parse_arguments(["--quick"])
    assert benchmark_gpu.run(options, device, bridge, lambda case, slots: {}) == []
    assert "left out: 1 ctx, (4, 3, 64, 64)" in capsys.readouterr().out


def test_errors_of_the_library_are_raised(bridge):
    device = HostDevice(bridge)
    case = Case(2, 3, 4)
    with pytest.raises(BridgeError, match=r"there is no gpu\(-1\)"):
        bridge.stream(-1)
    with pytest.raises(BridgeError, match=r"check_gpu\.sh builds it"):
        Bridge(ROOT / "no-such.so")
    slot = Slot(case, device, 0)
    assert slot.shard(slot.x, 0).shape == (2, 3, 4, 4)


@pytest.mark.parametrize(
    ("script", "arguments", "status", "message"),
    [
        ("benchmark_gpu", ["--quick"], 1, "benchmark_gpu: needs PyTorch, which cannot be imported"),
        ("benchmark_gpu", ["--turns", "0"], 2, "--turns: expected at least 1, got 0"),
        ("check_gpu_torch", ["some.so"], 1, "check_gpu_torch: needs PyTorch, which cannot be"),
        ("check_gpu_torch", ["some.so", "--device", "tpu"], 2, "invalid choice: 'tpu'"),
    ],
)
def test_messages_without_gpu_and_for_wrong_arguments(
    script, arguments, status, message, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it was not installed
    try:
        found = importlib.import_module(script).main(arguments)
    except SystemExit as error:
        found = error.code
    assert found == status
    assert message in capsys.readouterr().err


def test_check_gpu_says_what_is_missing(tmp_path):
    bash = shutil.which("bash")
    (tmp_path / "dirname").symlink_to(shutil.which("dirname"))

    def run(*arguments):
        result = subprocess.run(
            [bash, str(ROOT / "scripts" / "check_gpu.sh"), *arguments],
            env={"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        return result.returncode, result.stderr

    assert run("--no") == (2, "check_gpu: unknown option --no (try --help)\n")
    status, error = run()
    assert status == 1
    assert "check_gpu: no GPU that nvidia-smi knows" in error
    there = ["nvidia-smi", "nvcc", "cmake", "ninja"]
    for tool, missing in zip(there, [*there[1:], "compute-sanitizer"]):
        (tmp_path / tool).write_text("#!/bin/sh\n")
        (tmp_path / tool).chmod(0o755)
        status, error = run()
        assert status == 1
        assert f"check_gpu: no {missing} in PATH" in error
