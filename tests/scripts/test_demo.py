"""The demo on a small scale: scenes, three ways, the sweep, and its own check."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import demo
from aerial.scenes import CLASSES, make_scenes
from tests.support.processes import ROOT, run_interpreter

SMALL = ("--steps", "2", "--scenes", "80", "--devices", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the sprites are downloaded once for all tests."""
    return tmp_path_factory.mktemp("demo")


def run_demo(folder, *arguments: str):
    program = (str(ROOT / "scripts" / "demo.py"), "--out", str(folder), *SMALL)
    return run_interpreter(*program, *arguments)


def test_scenes_are_those_of_the_seed(folder):
    scenes, same, others = (make_scenes(20, seed, folder) for seed in (1, 1, 2))
    np.testing.assert_array_equal(scenes.images, same.images)
    np.testing.assert_array_equal(scenes.labels, same.labels)
    assert (scenes.labels != others.labels).mean() > 0.5
    shares = np.bincount(scenes.labels.ravel(), minlength=len(CLASSES)) / scenes.labels.size
    assert len(shares) == len(CLASSES)
    assert shares.min() > 0.05


def test_three_ways(folder):
    result = run_demo(folder)
    for title in ("1 device, BatchNorm", "2 devices, SyncBatchNorm", "2 devices, BatchNorm"):
        assert f"\n{title}  " in result.stdout
    assert "| 2/2 [" in result.stderr
    assert "\r" not in result.stderr  # a line for each state of a bar, in a file
    assert "The first loss with SyncBatchNorm differs from one device's by" in result.stdout
    assert (folder / "predictions.png").read_bytes().startswith(b"\x89PNG")


def test_another_norm_fails_the_check(folder, monkeypatch, capsys):
    """The demo's own check can fail."""
    monkeypatch.setattr(demo, "TOLERANCE", -1.0)
    monkeypatch.setattr(sys, "argv", ["demo.py", "--out", str(folder), *SMALL])
    assert demo.main() == 1
    assert "FAILED" in capsys.readouterr().err


def test_the_sweep_goes_on_where_it_ended(folder):
    table = folder / "sweep.csv"
    rows = [f"{norm},{n},0,0.5\n" for norm in ("SyncBatchNorm", "BatchNorm") for n in (1, 2, 4, 8)]
    table.write_text("".join(rows[:-1]))
    result = run_demo(folder, "--sweep", "--seeds", "1")
    assert result.stdout.count("seed 0: mIoU") == 1
    assert "8 devices, BatchNorm, seed 0: mIoU" in result.stdout
    assert table.read_text().count("\n") == len(rows)
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--devices", "3"), "--devices 3: 8 images divide among 2, 4 or 8 devices"),
        (("--steps", "0"), "--steps 0: should be 1 or more"),
        (("--gpus",), "--gpus: needs 8 GPUs, and MXNet sees 0"),
    ],
)
def test_wrong_options_are_named(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(demo.mx.context, "num_gpus", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["demo.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        demo.parse_arguments()
    assert message in capsys.readouterr().err
