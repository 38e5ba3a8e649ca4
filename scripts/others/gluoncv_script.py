"""Runs a script of GluonCV as it is, with CPU contexts for GPUs and a few random images as VOC.

    gluoncv_script.py SCRIPT [ARGUMENT ...]

The home folder, which the environment gives, gets the images and the pretrained networks (random
ones).
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from gluoncv import model_zoo
from PIL import Image

IMAGES = 8
SIDE = 128
OBJECT = """<object><name>{}</name><difficult>0</difficult><bndbox><xmin>20</xmin><ymin>30</ymin>
<xmax>{}</xmax><ymax>110</ymax></bndbox></object>"""


def write_voc(folder: Path) -> None:
    """Write images, boxes and masks in the layout of VOC."""
    numbers = np.random.RandomState(1)
    for name in ("JPEGImages", "Annotations", "SegmentationClass"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for task, split in (
        ("Main", "trainval"),
        ("Main", "test"),
        ("Segmentation", "trainval"),
        ("Segmentation", "val"),
    ):
        file = folder / "ImageSets" / task / f"{split}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{number:06d}\n" for number in range(IMAGES)))
    for number in range(IMAGES):
        pixels = numbers.randint(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"JPEGImages/{number:06d}.jpg")
        mask = (
            numbers.randint(0, 21, (SIDE // 16, SIDE // 16), dtype=np.uint8)
            .repeat(16, 0)
            .repeat(16, 1)
        )
        Image.fromarray(mask).save(folder / f"SegmentationClass/{number:06d}.png")
        box = OBJECT.format(("dog", "cat")[number % 2], 60 + 8 * number)
        (folder / f"Annotations/{number:06d}.xml").write_text(
            f"<annotation><size><width>{SIDE}</width><height>{SIDE}</height></size>{box}</annotation>"
        )


def random_model_file(name: str, *_: Any, **__: Any) -> str:
    """Take the place of get_model_file, which downloads."""
    file = Path.home() / f"{name}.params"
    if not file.exists():
        net = model_zoo.get_model(name, pretrained=False)
        net.initialize(mx.init.Xavier())
        net(mx.nd.zeros((1, 3, 224, 224)))
        net.save_parameters(str(file))
    return str(file)


def main(script: str, *arguments: str) -> None:
    """Run the script."""
    for year in ("VOC2007", "VOC2012"):
        write_voc(Path.home() / ".mxnet/datasets/voc" / year)
    mx.gpu = mx.context.gpu = mx.cpu
    for name, module in list(sys.modules.items()):
        if name.startswith("gluoncv.model_zoo") and hasattr(module, "get_model_file"):
            vars(module)["get_model_file"] = random_model_file
    sys.argv[:] = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
