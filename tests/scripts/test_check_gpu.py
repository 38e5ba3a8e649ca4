"""scripts/check_gpu.sh on emulated GPUs, with programs that are missing, fail and hang."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from tests.support.native_build import build
from tests.support.processes import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import check_gpu
from benchmarks.oracle import exact, relative_error
from check_gpu import Case, Checks


@pytest.fixture(scope="module")
def library():
    return build("gpu_bridge_emulated") / "libgpu_bridge_emulated.so"


@pytest.fixture
def checks(tmp_path):
    (tmp_path / "results.jsonl").touch()
    return Checks(tmp_path, 60)


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


def results(folder: Path) -> dict[str, str]:
    lines = (folder / "results.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.endswith(" s |")]
    return {name: result for name, result, _ in cells}


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_whole_script_goes_on_whatever_fails_or_is_missing(library, tmp_path):
    tools, binaries, out = (tmp_path / name for name in ("tools", "binaries", "out"))
    for folder in (tools, binaries, tools / "torch"):
        folder.mkdir()
    (binaries / "libgpu_bridge.so").symlink_to(library)
    program(binaries / "cuda_tests", "echo 'MESSAGE: skipped: GPUs: none'")
    program(binaries / "mxnet_tests_on_gpus", "exit 3")
    program(tools / "ncu", "echo '==ERROR== ERR_NVGPUCTRPERM'")
    program(tools / "compute-sanitizer", 'while [[ "$1" == --* ]]; do shift; done; exec "$@"')
    (tools / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.13')")
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(tools),
        "OUT": str(out),
    }
    command = ["bash", ROOT / "scripts" / "check_gpu.sh", "--binaries", binaries]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    verdicts = results(out)
    times = {name: verdicts.pop(name) for name in list(verdicts) if name.startswith("times of")}
    assert list(times.values()) == ["passed"] * 12
    assert verdicts.pop("machine") == "FAILED: status 1"  # no driver
    assert verdicts == {
        "correctness": "passed",
        "native tests": "FAILED: skipped: ",
        "library on a fake MXNet": "FAILED: status 3",
        "PyTorch": "FAILED: status 1",
        "ncu": "FAILED: ==ERROR==",
        "memcheck": "passed",
        "racecheck": "passed",
        "synccheck": "passed",
        "initcheck": "passed",
        "nsys": "not run: no nsys",
    }
    timed = [row for row in rows(out) if row.get("method") == "ours"]
    assert len(timed) == 12
    assert all(row["step us"] > 0 and row["moments"] > 0 for row in timed)
    assert all(row["input gradient + ReLU"] > 0 for row in timed)
    assert all(row["error"] <= check_gpu.TOLERANCE[row["case"][3]] for row in timed)
    assert {row["case"][5] for row in timed} == {1, 8}
    log = (out / "log.txt").read_text()
    assert "libcudart.so.13" in log
    assert "libcuda.so.1" in log
    for line in (out / "results.md").read_text().splitlines():
        assert line in found.stdout


def test_without_a_compiler_and_a_gpu_nothing_is_built_and_all_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(check_gpu, "ROOT", tmp_path)
    monkeypatch.setattr(check_gpu, "build_command", lambda *_, **__: ["nvcc"])
    monkeypatch.setattr(sys, "argv", ["check_gpu", "--out", str(tmp_path / "out")])
    monkeypatch.setenv("PATH", "")
    handler = signal.getsignal(signal.SIGTERM)
    assert check_gpu.main() == 1
    signal.signal(signal.SIGTERM, handler)
    verdicts = results(tmp_path / "out")
    assert verdicts["kernels built"] == "not run: no architecture, nvcc"
    assert verdicts["correctness"] == "not run: no libgpu_bridge.so"
    assert verdicts["native tests built"].startswith("not run: no architecture, nvcc, cmake")
    assert verdicts["native tests"] == "not run: no cuda_tests"
    assert verdicts["memcheck"] == "not run: no libgpu_bridge.so, compute-sanitizer"


def test_a_program_that_hangs_is_ended_with_its_children(checks, tmp_path):
    hangs = program(tmp_path / "hangs", f"sleep 600 & echo $! >{tmp_path}/pid; wait")
    assert not checks.run("hangs", [hangs], 1)
    assert results(tmp_path)["hangs"] == "FAILED: not done in 1 s"
    state = Path("/proc") / (tmp_path / "pid").read_text().strip() / "stat"
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while state.read_text().split(") ")[1][0] != "Z":  # it dies when it is scheduled next
            time.sleep(0.01)


def test_results_are_there_before_the_next_check_begins(checks, tmp_path):
    program(tmp_path / "unusable", "").write_bytes(b"\x7fELF")
    assert not checks.run("first", [tmp_path / "unusable"], 9)
    assert checks.run("second", ["grep", "-q", "first | FAILED: ", tmp_path / "results.md"], 9)
    checks.end = 0
    assert not checks.run("third", ["true"], 9)
    assert results(tmp_path)["third"] == "not run: no time left"


def test_a_line_that_a_worker_left_unfinished_is_no_obstacle(checks, tmp_path):
    (tmp_path / "results.jsonl").write_text('{"case": [1, \n{"architecture": "90"}\n')
    assert list(checks.rows()) == [{"architecture": "90"}]


def arrays(layer):
    """Views of the arrays, which lie in memory of the host here, by name."""
    case = layer.case
    kind = "float64" if case.dtype == "float64" else "float32"
    found = {}
    for i, (name, (begin, size)) in enumerate(layer.at.items()):
        memory = (ctypes.c_char * size).from_address(begin)
        array = np.frombuffer(memory, dtype=case.dtype if i < 4 else kind)
        if i >= 4:
            found[name] = array.reshape(-1, case.channels)
        elif case.channels_are == "last":
            found[name] = array.reshape(case.batch, -1, case.channels).transpose(0, 2, 1)
        else:
            found[name] = array.reshape(case.batch, case.channels, -1)
    return found


@pytest.mark.parametrize("dtype", check_gpu.TOLERANCE)
@pytest.mark.parametrize("order", check_gpu.ORDERS)
@pytest.mark.parametrize("contexts", [1, 5])
def test_errors_are_those_against_float64(library, dtype, order, contexts):
    bridge = check_gpu.Bridge(str(library))
    layer = check_gpu.Layer(bridge, Case(4, 3, 7, dtype, order, contexts, 3.0))
    error = layer.error()
    found = {name: array.astype(np.float64) for name, array in arrays(layer).items()}
    inputs = (found[name] for name in ("x", "dy"))
    parameters = (found[name][0] for name in ("gamma", "beta"))
    expected = exact(*inputs, *parameters, check_gpu.EPS)
    expected["mean"] = np.tile(0.1 * expected["mean"], (contexts, 1))
    expected["var"] = np.tile(0.9 + 0.1 * expected["var"], (contexts, 1))
    for name in ("dgamma", "dbeta"):
        found[name] = found[name].sum(0)
    wanted = max(relative_error(found[name], expected[name]) for name in expected)
    assert error <= check_gpu.TOLERANCE[dtype]
    assert error == pytest.approx(wanted, rel=1e-2, abs=1e-14)
    assert not np.array_equal(found["x"][:, 0], found["x"][:, 1])

    for name, wrong in (("dx", np.nan), ("y", 100), ("dbeta", 1000), ("mean", 2), ("var", 5)):
        array = arrays(layer)[name]
        before = array[-1].copy()
        array[-1] += np.asarray(wrong, array.dtype)
        again = ctypes.c_double()
        bridge.call("error", layer.handle, ctypes.byref(again))
        assert again.value > 0.1, name
        array[-1] = before


@pytest.mark.parametrize("order", check_gpu.ORDERS)
def test_phases_with_relu(library, order):
    bridge = check_gpu.Bridge(str(library))
    layer = check_gpu.Layer(bridge, Case(4, 3, 7, "float32", order))
    layer.run()
    bridge.call("finish")
    found = arrays(layer)
    plain, dy = found["y"].copy(), found["dy"]
    layer.run(4, 5, 6)
    bridge.call("finish")
    np.testing.assert_array_equal(found["y"], np.maximum(plain, 0))
    dz = dy * (plain > 0)
    np.testing.assert_allclose(found["dbeta"][0], dz.sum((0, 2)), rtol=1e-4)
    # Sums of what comes out, as those of every batch normalization's.
    np.testing.assert_allclose(found["dx"].sum((0, 2)), np.zeros(3), atol=1e-3)


def test_wrong_results_fail_and_are_not_timed(library, tmp_path, monkeypatch):
    monkeypatch.setattr(check_gpu, "TOLERANCE", dict.fromkeys(check_gpu.TOLERANCE, 1e-12))
    assert not check_gpu.correctness(str(tmp_path), str(library), "few")
    *wrong, summary = rows(tmp_path)
    assert [row["case"] for row in wrong] == [list(case) for case in check_gpu.FEW]
    assert not summary["correct"]
    with pytest.raises(RuntimeError, match="not timed, as its relative error is"):
        check_gpu.time_case(str(tmp_path), str(library), "0")


def test_a_peer_that_fails_does_not_stop_the_next(library, tmp_path, monkeypatch):
    torch = MagicMock()
    memory = ctypes.create_string_buffer(1 << 16)
    torch.float32 = SimpleNamespace(itemsize=4)
    torch.empty.return_value.data_ptr.return_value = ctypes.addressof(memory)
    torch.batch_norm_stats.side_effect = RuntimeError("no kernel for this GPU")
    torch.nn.functional.batch_norm.side_effect = RuntimeError("no cuDNN")
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert check_gpu.time_case(str(tmp_path), str(library), "0", "beside torch")
    ours, *others = rows(tmp_path)
    assert ours["step us"] > 0
    assert [(row["method"], row["failed"]) for row in others] == [
        (check_gpu.PEERS[0], "RuntimeError: no kernel for this GPU"),
        (check_gpu.PEERS[1], "RuntimeError: no cuDNN"),
    ]


def test_cases_are_those_of_the_goals():
    assert len(set(check_gpu.TIMED)) == len(check_gpu.TIMED) == 12
    kinds = {(case.dtype, case.channels_are) for case in check_gpu.TIMED}
    assert kinds == set(check_gpu.KINDS)
    assert check_gpu.TIMED[-1]._replace(contexts=1) in check_gpu.TIMED
    assert {case.contexts for case in check_gpu.CORRECT} == {1, 2, 8}
    assert any(case.batch < case.contexts for case in check_gpu.CORRECT)


def test_nvcc_gets_the_sources_that_cmake_builds():
    command = check_gpu.build_command(Path("library.so"), "nvcc", "90")
    sources = {one.name for one in command if isinstance(one, Path) and one.exists()}
    kernels = {path.name for path in (ROOT / "src").rglob("*.cu")}
    assert kernels
    host = {"phases.cc", "tiling.cc", "runtime.cc", "thread_context.cc"}
    assert sources == kernels | host | {"gpu_bridge.cc", "device_cuda.cc"}
    assert "-arch=sm_90" in command
