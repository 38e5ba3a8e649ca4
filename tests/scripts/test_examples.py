"""Every example runs, on a small scale, and does what its README says."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path

import pytest
from gluon_syncbn.cpu_contexts import SETTINGS

from tests.distributed.launch import start
from tests.support.processes import ROOT, run_interpreter

EXAMPLES = ROOT / "examples"
LONGEST = 150  # lines: an example is to be read and copied
PNG = b"\x89PNG"


def run(name: str, *arguments: str, folder: Path) -> str:
    """Run an example in an empty folder; return what it printed."""
    command = ("-W", "ignore", str(EXAMPLES / name), *arguments)
    return run_interpreter(*command, folder=folder, PYTHONPATH=str(ROOT)).stdout


def test_examples_are_short_and_listed():
    page = (EXAMPLES / "README.md").read_text()
    for example in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb"), *EXAMPLES.glob("Docker*")]:
        assert f"]({example.name})" in page, example
        if example.suffix == ".py":
            assert len(example.read_text().splitlines()) <= LONGEST, example


def test_segmentation(tmp_path):
    sizes = ("--crop-size", "32", "--images-per-device", "12", "--epochs", "1")
    said = run("segmentation.py", *sizes, "--out", str(tmp_path), folder=tmp_path)
    (loss,) = map(float, re.findall(r"epoch 0: loss ([\d.]+) on 2 devices", said))
    assert 0 < loss < 10  # from random weights, log(21) = 3
    assert "best: mIoU 0." in said
    for name in ("segmentation.png", "net.params", "last.params", "last.states"):
        assert (tmp_path / name).stat().st_size > 0
    sizes = (*sizes[:-1], "2", "--resume")
    again = run("segmentation.py", *sizes, "--out", str(tmp_path), folder=tmp_path)
    assert re.findall(r"epoch (\d)", again) == ["1"]
    _, optimizer = pickle.loads((tmp_path / "last.states").read_bytes())
    resumed_at = optimizer.num_update // 2
    assert optimizer.lr_scheduler(resumed_at) > 0  # the rates of two epochs, not of one


def test_detection(tmp_path):
    sizes = ("--side", "64", "--images-per-device", "16", "--epochs", "2", "--out", str(tmp_path))
    said = run("detection.py", *sizes, folder=tmp_path)
    first, last = map(float, re.findall(r"objectness ([\d.]+)", said))
    assert last < first
    assert (tmp_path / "detection.png").read_bytes().startswith(PNG)


def test_fcn_numpy(tmp_path):
    picture = tmp_path / "fcn.png"
    small = ("--side", "32", "--steps", "11", "--out", str(picture))
    said = run("fcn_numpy.py", *small, folder=tmp_path)
    first, last = map(float, re.findall(r"loss ([\d.]+) on 2 devices", said))
    assert last < first
    assert "devices in sync: True" in said
    assert picture.read_bytes().startswith(PNG)


def test_serving(tmp_path):
    pytest.importorskip("onnxruntime")
    said = run("serving.py", "--side", "32", "--out", str(tmp_path), folder=tmp_path)
    errors = [float(text) for text in re.findall(r"differs by (\S+)", said)]
    assert len(errors) == 3
    assert max(errors) < 1e-5
    assert (tmp_path / "serving.png").read_bytes().startswith(PNG)


def test_processes(tmp_path):
    job = start("", 2, "--out", str(tmp_path / "p"), program=EXAMPLES / "processes.py")
    assert job.status == 0, job.output
    assert "processes and contexts in sync: True" in job.output
    assert (tmp_path / "p").stat().st_size > 0


def test_the_notebook(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=where).execute()
    said = "".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )
    assert (tmp_path / "runs" / "quickstart.png").read_bytes().startswith(PNG)
    assert "SyncBatchNorm [-1.342, -0.447, 0.447, 1.342]" in said
    first, last = map(
        float, re.search(r"loss ([\d.]+) at first, ([\d.]+) at the end", said).groups()
    )
    assert last < first / 2
    assert "{}" in said
    assert float(re.search(r"largest difference: (\S+)", said)[1]) < 1e-5
