"""Every example runs, on a small scale, and does what its README says."""

from __future__ import annotations

import importlib
import os
import pickle
import re
import sys
from pathlib import Path

import pytest
from gluon_syncbn.cpu_contexts import SETTINGS

from tests.distributed.launch import start
from tests.support.processes import ROOT, run_interpreter

EXAMPLES = ROOT / "examples"
LONGEST = 250  # lines: an example is to be read and copied
PNG = b"\x89PNG"
ANNOTATION = """
<annotation>
  <size><width>60</width><height>40</height><depth>3</depth></size>
  <object>
    <name>cat</name>
    <difficult>0</difficult>
    <bndbox><xmin>11</xmin><ymin>6</ymin><xmax>40</xmax><ymax>30</ymax></bndbox>
  </object>
</annotation>
"""


def run(name: str, *arguments: str, folder: Path, status: int = 0) -> str:
    """Run an example in a folder; return what it printed."""
    command = ("-W", "ignore", str(EXAMPLES / name), *arguments)
    result = run_interpreter(*command, folder=folder, status=status, PYTHONPATH=str(ROOT))
    return result.stdout + result.stderr


def draw_voc(year: Path, **splits: int) -> None:
    """Write photos of a cat, a rectangle, and their labels in the layout of VOC."""
    from PIL import Image, ImageDraw

    tasks = ("ImageSets/Segmentation", "ImageSets/Main")
    for name in ("JPEGImages", "SegmentationClass", "Annotations", *tasks):
        (year / name).mkdir(parents=True)
    for split, number in splits.items():
        names = [f"{split}_{i}" for i in range(number)]
        for name in names:
            photo, label = Image.new("RGB", (60, 40), (60, 90, 60)), Image.new("L", (60, 40))
            ImageDraw.Draw(photo).rectangle((10, 5, 39, 29), (200, 80, 40))
            ImageDraw.Draw(label).rectangle((10, 5, 39, 29), 8, 255)  # VOC ignores outlines
            photo.save(year / "JPEGImages" / f"{name}.jpg")
            label.save(year / "SegmentationClass" / f"{name}.png")
            (year / "Annotations" / f"{name}.xml").write_text(ANNOTATION)
        for task in tasks:
            (year / task / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))


def test_examples_are_short_and_listed():
    page = (EXAMPLES / "README.md").read_text()
    for example in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb"), *EXAMPLES.glob("Docker*")]:
        assert f"]({example.name})" in page, example
        if example.suffix == ".py":
            assert len(example.read_text().splitlines()) <= LONGEST, example


def test_segmentation(tmp_path):
    sizes = ("--crop-size", "32", "--images-per-device", "12")
    said = run("segmentation.py", *sizes, "--epochs", "1", folder=tmp_path)
    (loss,) = map(float, re.findall(r"epoch 0: loss ([\d.]+) on 2 devices", said))
    assert 0 < loss < 10  # from random weights, log(21) = 3
    assert "best: mIoU 0." in said
    assert re.search(r"epoch 0: +50%\|", said)
    out = tmp_path / "runs" / "segmentation"
    for name in ("segmentation.png", "net.params", "last.params", "last.states"):
        assert (out / name).stat().st_size > 0
    again = run("segmentation.py", *sizes, "--epochs", "2", "--resume", folder=tmp_path)
    assert re.findall(r"epoch (\d): loss", again) == ["1"]
    _, optimizer = pickle.loads((out / "last.states").read_bytes())
    resumed_at = optimizer.num_update // 2
    assert optimizer.lr_scheduler(resumed_at) > 0  # the rates of two epochs, not of one


def test_segmentation_of_few_images(tmp_path):
    """One step in all, fewer images for validation than devices; then a run that diverges."""
    draw_voc(tmp_path / "VOC2012", trainval=2, val=1)
    options = ("--data", str(tmp_path), "--out", "new/out", "--crop-size", "32")
    options = (*options, "--images-per-device", "1", "--epochs")
    out = tmp_path / "new" / "out"
    assert "best: mIoU 0." in run("segmentation.py", *options, "1", folder=tmp_path)
    (out / "segmentation.png").unlink()
    again = run("segmentation.py", *options, "1", "--resume", folder=tmp_path)
    assert "epoch 0" not in again
    assert (out / "segmentation.png").read_bytes().startswith(PNG)
    names = ("net.params", "last.params", "last.states", "last.json")
    before = [(out / name).read_bytes() for name in names]
    diverging = (*options, "3", "--resume", "--lr", "1e30")
    said = run("segmentation.py", *diverging, folder=tmp_path, status=1)
    assert re.search(r"epoch 1: loss [\d.]+, mIoU nan: .* smaller --lr", said)
    assert [(out / name).read_bytes() for name in names] == before


def test_detection(tmp_path):
    sizes = ("--side", "64", "--images-per-device", "16", "--epochs", "2")
    said = run("detection.py", *sizes, folder=tmp_path)
    first, last = map(float, re.findall(r"objectness ([\d.]+)", said))
    assert last < first
    assert "overwritten" not in said  # MXNet speaks of a second learning rate
    assert re.search(r"epoch 0: +50%\|", said)
    assert (tmp_path / "runs/detection/detection.png").read_bytes().startswith(PNG)


def test_detection_of_few_images(tmp_path):
    """One step in all; the other four images are shown."""
    draw_voc(tmp_path / "VOC2007", trainval=3)
    draw_voc(tmp_path / "VOC2012", trainval=3)
    options = ("--data", str(tmp_path), "--out", "new/out", "--side", "64", "--epochs")
    options = (*options, "1", "--images-per-device", "1")
    run("detection.py", *options, folder=tmp_path)
    out = tmp_path / "new" / "out"
    assert (out / "detection.png").read_bytes().startswith(PNG)
    before = (out / "net.params").read_bytes()
    said = run("detection.py", *options, "--epochs", "2", "--lr", "1e30", folder=tmp_path, status=1)
    assert re.search(r"epoch 1: .* nan, .* smaller --lr", said)
    assert (out / "net.params").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("segmentation", "--devices 0", "--devices 0: should be 1 or more"),
        ("segmentation", "--images-per-device 0", "--images-per-device 0: should be 1 or more"),
        ("segmentation", "--epochs 0", "--epochs 0: should be 1 or more"),
        ("segmentation", "--crop-size 7", "--crop-size 7: should be 8 or more"),
        ("segmentation", "--workers -1", "--workers -1: should be 0 or more"),
        ("segmentation", "--gpus", "--gpus: needs 2 GPUs, and MXNet sees 0"),
        ("segmentation", "--amp", "--amp: needs --gpus"),
        ("segmentation", "--resume", "--resume: runs/segmentation/last.json does not exist"),
        ("segmentation", "--data .", "VOC2012/ImageSets/Segmentation/trainval.txt does not exist"),
        ("segmentation", "--data few", "few has 3 images for training, and a batch has 4: use"),
        ("segmentation", "--data blind", "VOC2012/ImageSets/Segmentation/val.txt has no image"),
        ("detection", "--devices 0", "--devices 0: should be 1 or more"),
        ("detection", "--images-per-device 33", "drawn data set has 64 images for training"),
        ("detection", "--side 31", "--side 31: should be 32 or more"),
        ("detection", "--gpus", "--gpus: needs 2 GPUs, and MXNet sees 0"),
        ("detection", "--data few", "VOC2007/ImageSets/Main/trainval.txt does not exist"),
        ("detection", "--data blind", "blind has 0 images for training, and a batch has 4: use"),
    ],
)
def test_wrong_options_are_named(name, arguments, message, tmp_path, monkeypatch, capsys):
    draw_voc(tmp_path / "few" / "VOC2012", trainval=3, val=1)
    draw_voc(tmp_path / "blind" / "VOC2012", trainval=4, val=0)
    draw_voc(tmp_path / "blind" / "VOC2007", trainval=0)
    example = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(example.mx.context, "num_gpus", lambda: 0)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        example.main()
    assert message in f"{ended.value} {capsys.readouterr().err}"
    assert not (tmp_path / "runs").exists()


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
