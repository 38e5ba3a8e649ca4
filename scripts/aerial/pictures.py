"""The pictures of the demo, and of its sweep over numbers of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np

from aerial.scenes import Scenes, as_picture
from aerial.training import BATCH, Result, Way

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FixedLocator, NullLocator

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

# The colours of grass, sand, road, tree and tank.
PALETTE = np.array(
    [(110, 190, 120), (235, 215, 170), (125, 135, 145), (185, 90, 40), (50, 55, 110)], np.uint8
)
SYNCHRONIZED, LOCAL = "#1b6ca8", "#c8553d"


def draw_predictions(path: Path, valid: Scenes, ways: list[Way], results: list[Result]) -> None:
    """Draw scenes, their labels, and what each network sees in them.

    The scenes are the five with the most classes.
    """
    variety = [len(np.unique(labels)) for labels in valid.labels]
    chosen = np.argsort(variety)[::-1][:5]
    titles = ["scene", "label"]
    titles += [f"{way.title}\nmIoU {result.miou:.2f}" for way, result in zip(ways, results)]
    figure, axes = plt.subplots(len(chosen), len(titles), figsize=(11, 11.4))
    for row, scene in zip(axes, chosen):
        pictures = [as_picture(valid.images[scene]), PALETTE[valid.labels[scene]]]
        pictures += [PALETTE[result.predictions[scene]] for result in results]
        for ax, picture in zip(row, pictures):
            ax.imshow(picture, interpolation="nearest")
            ax.axis("off")
    for ax, title in zip(axes[0], titles):
        ax.set_title(title, fontsize=11)
    figure.suptitle(f"The same network, weights and batches of {BATCH} images", fontsize=15)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)


def draw_sweep(path: Path, scores: Mapping[tuple[str, int], Iterable[float]]) -> None:
    """Draw mIoU over images per device: means, and bands from the worst to the best seed.

    `scores` has the scores of all seeds, by the name of the norm and the number of devices.
    """
    figure, ax = plt.subplots(figsize=(8, 4.6))
    for norm, colour in (("SyncBatchNorm", SYNCHRONIZED), ("BatchNorm", LOCAL)):
        devices = sorted(count for name, count in scores if name == norm)
        values = [np.asarray(list(scores[norm, count])) for count in devices]
        images = [BATCH / count for count in devices]
        ax.fill_between(
            images, [v.min() for v in values], [v.max() for v in values], color=colour, alpha=0.2
        )
        ax.plot(images, [v.mean() for v in values], "o-", color=colour, linewidth=2.5, label=norm)
        last = float(values[-1].mean())
        ax.annotate(
            f"{last:.2f}",
            (images[-1], last),
            xytext=(10, -4),
            textcoords="offset points",
            color=colour,
            fontsize=13,
            fontweight="bold",
        )
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator([8, 4, 2, 1]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels(["8\n(1 device)", "4\n(2 devices)", "2\n(4 devices)", "1\n(8 devices)"])
    ax.set_xlim(9, 0.8)
    ax.set_ylim(0, 1)
    title = "SyncBatchNorm stays where one device is, BatchNorm falls"
    ax.set_title(title, fontsize=14, loc="left")
    ax.set_xlabel(f"images per device, of a whole batch of {BATCH}", fontsize=11)
    ax.set_ylabel("mIoU on new scenes", fontsize=11)
    ax.grid(alpha=0.25)
    ax.legend(loc="lower left", fontsize=12, frameon=False)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
