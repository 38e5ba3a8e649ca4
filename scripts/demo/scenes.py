"""Scenes of handwritten digits with a class for every pixel.

The digits are scikit-learn's bundled scans (8x8 pixels, ten classes). Each is enlarged, coloured
and set on a textured, noisy background; a pixel's class is 0 for background and ``1 + digit`` for
the ink. A digit's scan is used either for training scenes or for validation scenes, never both.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from progress import progress

OWN_FILE = "scenes.npz"
REQUIRED_KEYS = ("train_images", "train_labels", "valid_images", "valid_labels")
DIGIT_CLASSES = ("background", *(str(digit) for digit in range(10)))
DIGIT_SIDES = (28, 32)
INK_THRESHOLD = 0.35
VALID_SHARE = 0.2
RECIPE = 1  # part of the cache's file name: raise it when the scenes change


@dataclass(frozen=True)
class Scenes:
    """Training and validation scenes.

    Images are ``uint8`` of shape (N, height, width, 3), labels ``uint8`` of shape (N, height,
    width). `class_names` are in the order of the labels.
    """

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    valid_images: NDArray[np.uint8]
    valid_labels: NDArray[np.uint8]
    class_names: tuple[str, ...]
    source: str

    @property
    def side(self) -> int:
        """Height, and width, of the images in pixels."""
        return int(self.train_images.shape[1])


def load_scenes(folder: Path, side: int, train: int, valid: int, seed: int) -> Scenes:
    """Load the scenes in `folder`, making them first when they are not there.

    `folder` holds a ``scenes.npz`` of one's own, to which the other arguments do not apply, or the
    scenes made here. Raises a `ValueError` if the file does not hold what it must.
    """
    own = folder / OWN_FILE
    if own.exists():
        return _read(own)
    cache = folder / f"digits-v{RECIPE}-{side}px-{train}+{valid}-seed{seed}.npz"
    if not cache.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = _make(side, train, valid, seed)
        unfinished = cache.with_suffix(f".{os.getpid()}.npz")
        np.savez_compressed(unfinished, **made)
        unfinished.replace(cache)
    return _read(cache)


def _read(path: Path) -> Scenes:
    """Read one file of scenes and check what it holds."""
    with np.load(path, allow_pickle=False) as stored:
        missing = [key for key in REQUIRED_KEYS if key not in stored]
        if missing:
            raise ValueError(f"{path} lacks {', '.join(missing)}")
        arrays = {key: stored[key] for key in REQUIRED_KEYS}
        names = [str(name) for name in stored["class_names"]] if "class_names" in stored else None
    for part in ("train", "valid"):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
            raise ValueError(f"{path}: {part}_images must be uint8 of shape (N, S, S, 3)")
        if images.shape[1] != images.shape[2]:
            raise ValueError(f"{path}: {part}_images must be square")
        if labels.shape != images.shape[:3] or labels.dtype != np.uint8:
            raise ValueError(f"{path}: {part}_labels must be uint8 of shape (N, S, S)")
        if not len(images):
            raise ValueError(f"{path}: {part}_images holds no image")
    if arrays["train_images"].shape[1:] != arrays["valid_images"].shape[1:]:
        raise ValueError(f"{path}: training and validation images differ in size")
    highest = max(int(arrays["train_labels"].max()), int(arrays["valid_labels"].max()))
    if names is None:
        names = [str(index) for index in range(highest + 1)]
    if highest >= len(names):
        raise ValueError(f"{path}: label {highest} has no name among {len(names)} classes")
    return Scenes(**arrays, class_names=tuple(names), source=str(path))


def _make(side: int, train: int, valid: int, seed: int) -> dict[str, NDArray[np.generic]]:
    """Make the scenes of both parts from disjoint sets of digit scans."""
    scans = load_digits()
    ink = (scans.images / 16.0).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(ink))
    held_out = round(VALID_SHARE * len(order))
    made: dict[str, NDArray[np.generic]] = {"class_names": np.array(DIGIT_CLASSES)}
    parts = (("train", train, order[held_out:], 1), ("valid", valid, order[:held_out], 2))
    for part, count, chosen, stream in parts:
        rng = np.random.default_rng((seed, stream))
        images, labels = _compose(ink[chosen], scans.target[chosen], count, side, rng, part)
        made[f"{part}_images"] = images
        made[f"{part}_labels"] = labels
    return made


def _compose(
    ink: NDArray[np.float32],
    digits: NDArray[np.int64],
    count: int,
    side: int,
    rng: np.random.Generator,
    part: str,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Set digits on backgrounds: returns the images and the class of every pixel."""
    images, paper = _backgrounds(count, side, rng)
    labels: NDArray[np.uint8] = np.zeros((count, side, side), np.uint8)
    enlarged = {size: _enlarge(ink, size) for size in DIGIT_SIDES}
    most = max(1, (side // min(DIGIT_SIDES)) ** 2)
    for index in progress(range(count), desc=f"scenes: {part}", unit="scene"):
        taken: NDArray[np.bool_] = np.zeros((side, side), bool)
        pen = _pen(paper[index], rng)
        for _ in range(rng.integers(max(1, most // 2), most + 1)):
            which = int(rng.integers(len(digits)))
            cover = enlarged[int(rng.choice(DIGIT_SIDES))][which]
            place = _free_place(taken, cover > 0, rng)
            if place is None:
                continue
            taken[place] |= cover > 0
            opaque = cover[..., None]
            images[index][place] = (1 - opaque) * images[index][place] + opaque * pen
            labels[index][place][cover > INK_THRESHOLD] = 1 + digits[which]
    images += rng.normal(0, 0.03, images.shape).astype(np.float32)
    return np.rint(np.clip(images, 0, 1) * 255).astype(np.uint8), labels


def _backgrounds(
    count: int, side: int, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Make textured backgrounds: returns the images and each one's mean colour."""
    light = rng.uniform(0.1, 0.5, (count, 1))
    paper: NDArray[np.float32] = (light + rng.uniform(-0.1, 0.1, (count, 3))).astype(np.float32)
    images = np.broadcast_to(paper[:, None, None], (count, side, side, 3)).copy()
    strength: NDArray[np.float32] = rng.uniform(0.04, 0.12, (count, 1, 1, 1)).astype(np.float32)
    for cells in (2, 4, 8, 16):
        coarse: NDArray[np.float32] = rng.normal(size=(count * 3, cells, cells)).astype(np.float32)
        layer = _enlarge(coarse, side).reshape(count, 3, side, side).transpose(0, 2, 3, 1)
        images += strength * layer / 2
    return images, paper


def _pen(paper: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Choose a pen colour lighter than `paper` in every channel."""
    contrast = rng.uniform(0.4, 0.6) + rng.uniform(-0.05, 0.05, 3)
    return np.minimum(paper + contrast, 1).astype(np.float32)


def _free_place(
    taken: NDArray[np.bool_], shape: NDArray[np.bool_], rng: np.random.Generator, tries: int = 30
) -> tuple[slice, slice] | None:
    """Find a place where `shape` covers no digit that lies there already."""
    size = shape.shape[0]
    room = taken.shape[0] - size + 1
    for top, left in rng.integers(0, room, (tries, 2)):
        place = (slice(top, top + size), slice(left, left + size))
        if not (taken[place] & shape).any():
            return place
    return None


def _enlarge(images: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Enlarge square images of shape (N, s, s) to `size` pixels a side, bilinearly."""
    short = images.shape[1]
    centre = np.clip((np.arange(size) + 0.5) * short / size - 0.5, 0, short - 1)
    weights = np.maximum(0, 1 - np.abs(centre[:, None] - np.arange(short))).astype(np.float32)
    enlarged: NDArray[np.float32] = weights @ images @ weights.T
    return enlarged
