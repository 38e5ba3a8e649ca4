"""The main job on a small scale: three ways, curves, predictions, a table, and its own checks."""

from __future__ import annotations

import json
import subprocess
import sys

import mxnet as mx
import pytest

import train_segmentation
from tests.support.processes import ROOT, clean_environment


def run_demo(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "scripts" / "train_segmentation.py"), *arguments]
    return subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=300, check=False
    )


def test_three_ways(tmp_path):
    sizes = ("--image-size", "32", "--scenes", "16", "--valid-scenes", "4", "--epochs", "1")
    out = tmp_path / "run"
    result = run_demo(*sizes, "--data", str(tmp_path / "data"), "--out", str(out))
    assert result.returncode == 0, result.stdout + result.stderr
    table = json.loads((out / "table.json").read_text())
    assert [row["title"] for row in table["table"]] == [
        "1 device, BatchNorm",
        "4 devices, SyncBatchNorm",
        "4 devices, BatchNorm",
    ]
    assert "follows one device: step 1 differs by" in result.stdout
    assert "export: loaded on one context it predicts the same" in result.stdout
    for name in ("curves.png", "predictions.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")


def test_a_fused_network(tmp_path):
    sizes = ("--scenes", "8", "--valid-scenes", "4", "--epochs", "1", "--num-devices", "2")
    folders = ("--data", str(tmp_path / "data"), "--out", str(tmp_path / "run"))
    result = run_demo("--fuse", "--norm", "sync", *sizes, *folders)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "fused: 18 of 21 norms (10 with relu, 8 with sum and relu)" in result.stdout
    table = json.loads((tmp_path / "run" / "table.json").read_text())
    assert [row["title"] for row in table["table"]] == ["2 devices, SyncBatchNorm, fused"]
    assert "export: loaded on one context it predicts the same" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "unet"), "--model unet: choose from fcn"),
        (("--batch-size", "2"), "--batch-size 2 leaves some of 4 devices without a scene"),
        (("--gpus", "0"), "MXNet sees 0 GPUs here"),
        (("--norm", "group"), "--norm group: give all, or some of"),
    ],
)
def test_wrong_options_are_named(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["train_segmentation.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        train_segmentation.main()
    assert message in capsys.readouterr().err
