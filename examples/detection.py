"""Train a YOLOv3 of GluonCV on several devices, a few images on each.

The data (--data) is a folder that holds VOC2007 and VOC2012, as gluoncv's
scripts/datasets/pascal_voc.py makes it. By default the program draws images of discs and boxes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
from gluoncv.data import VOCDetection
from gluoncv.data.batchify import Pad, Stack, Tuple
from gluoncv.data.transforms.presets.yolo import YOLO3DefaultTrainTransform, transform_test
from gluoncv.model_zoo import yolo3_mobilenet0_25_custom
from gluoncv.utils.viz import plot_bbox
from mxnet import autograd, gluon
from PIL import Image, ImageDraw
from tqdm import tqdm

SHAPES = ("disc", "box")
SPLITS = ((2007, "trainval"), (2012, "trainval"))
LOSSES = ("objectness", "center", "scale", "class")
SHOWN = 4  # images that the program does not train on


def main() -> None:
    """Train, print the four losses of YOLOv3, and draw detections."""
    options = parse_arguments()
    make_context = mx.gpu if options.gpus else mx.cpu
    ctx = [make_context(i) for i in range(options.devices)]
    np.random.seed(0)
    mx.random.seed(0)

    train_set, shown = load_data(options)
    options.out.mkdir(parents=True, exist_ok=True)
    classes = VOCDetection.CLASSES if options.data else SHAPES
    net = make_network(classes)
    # It calls the network once on one device, which ends the deferred initialization.
    transform = YOLO3DefaultTrainTransform(options.side, options.side, net)
    net.collect_params().reset_ctx(ctx)
    net.hybridize()
    loader = gluon.data.DataLoader(
        train_set.transform(transform),
        options.devices * options.images_per_device,
        shuffle=True,
        # An image, five arrays of targets, and the boxes, of which images have different numbers.
        batchify_fn=Tuple(*[Stack() for _ in range(6)], Pad(axis=0, pad_val=-1)),
        last_batch="discard",  # the last batch has to have images for all devices
        num_workers=options.workers,
    )
    # The rate falls to 0 after all steps, which MXNet counts from 1.
    rates = mx.lr_scheduler.CosineScheduler(len(loader) * options.epochs + 1, options.lr)
    settings = {"learning_rate": options.lr, "lr_scheduler": rates}
    trainer = gluon.Trainer(net.collect_params(), "adam", settings)

    for epoch in range(options.epochs):
        batches = tqdm(loader, f"epoch {epoch}", leave=False)
        means = np.mean([train_step(net, trainer, batch, ctx) for batch in batches], axis=0)
        text = ", ".join(f"{name} {mean:.2f}" for name, mean in zip(LOSSES, means))
        if not np.isfinite(means).all():
            sys.exit(f"epoch {epoch}: {text}: not saved; try a smaller --lr than {options.lr}")
        print(f"epoch {epoch}: {text} on {len(ctx)} devices", flush=True)

    net.save_parameters(str(options.out / "net.params"))
    picture = options.out / "detection.png"
    draw_detections(picture, net, shown, classes, options.side, ctx[0])
    print(f"detections: {picture}")


def load_data(options: argparse.Namespace) -> tuple[Any, list]:
    """Return the images for training, and those to show; end the program if they are too few."""
    if options.data:
        images = VOCDetection(options.data, splits=SPLITS)
    else:
        images = gluon.data.SimpleDataset([draw_scene(options.side) for _ in range(64 + SHOWN)])
    number = max(len(images) - SHOWN, 0)
    batch_size = options.devices * options.images_per_device
    if number < batch_size:
        root = options.data or "the drawn data set"
        too_few = f"{root} has {number} images for training, and a batch has {batch_size}"
        sys.exit(f"{too_few}: use fewer --devices or --images-per-device")
    shown = [images[i][0] for i in range(number, len(images))]
    return images.take(number), shown


def make_network(classes: tuple) -> Any:
    """Make a network with a SyncBatchNorm in each place of a BatchNorm, on one device."""
    net = yolo3_mobilenet0_25_custom(
        classes,
        pretrained_base=False,
        norm_layer=gluon_syncbn.SyncBatchNorm,
        norm_kwargs={},  # num_devices is the number of contexts, which is 1 until reset_ctx
    )
    net.initialize(mx.init.Xavier())
    return net


def train_step(net: Any, trainer: gluon.Trainer, batch: Any, ctx: list) -> np.ndarray:
    """Train on a batch, an equal part on each device; return the mean of each loss."""
    images, *targets, boxes = (gluon.utils.split_and_load(each, ctx) for each in batch)
    with autograd.record():
        # All devices are called before a result of one is read.
        outputs = [net(x, box, *rest) for x, box, *rest in zip(images, boxes, *targets)]
        losses = [sum(parts) for parts in outputs]
    autograd.backward(losses)
    batch_size = len(batch[0])
    trainer.step(batch_size)
    sums = [sum(float(each.sum().asscalar()) for each in parts) for parts in zip(*outputs)]
    return np.array(sums) / batch_size


def draw_scene(side: int) -> tuple[Any, np.ndarray]:
    """Draw a disc and a box, one in each half, and return rows of (left, ..., bottom, class)."""
    image = Image.fromarray(np.random.randint(60, 120, (side, side, 3), dtype=np.uint8))
    draw = ImageDraw.Draw(image)
    half = side // 2
    rows = []
    for start, number in zip((0, half), np.random.permutation(len(SHAPES))):
        width, height = (int(v) for v in np.random.randint(side // 4, half, 2))
        left = start + int(np.random.randint(half - width))
        top = int(np.random.randint(side - height))
        box = [left, top, left + width, top + height]
        fill = (230, int(np.random.randint(40, 140)), 60) if number == 0 else (70, 90, 230)
        (draw.ellipse if number == 0 else draw.rectangle)(box, fill)
        rows.append([*box, number])
    return mx.nd.array(np.asarray(image), dtype="uint8"), np.asarray(rows, dtype=np.float32)


def draw_detections(
    path: Path, net: Any, shown: list, classes: tuple, side: int, device: mx.Context
) -> None:
    """Detect in the images, and draw the two boxes with the best scores."""
    from matplotlib import pyplot as plt

    net.set_nms(nms_thresh=0.45, nms_topk=100)
    figure, axes = plt.subplots(1, SHOWN, figsize=(12, 3.2))
    for axis, image in zip(axes, shown):
        x, pixels = transform_test(image, short=side, stride=32)  # as the feature maps need
        rows = mx.nd.concat(*net(x.as_in_context(device)), dim=-1)[0]
        # GluonCV keeps boxes of two classes at one place.
        best = mx.nd.contrib.box_nms(rows, overlap_thresh=0.45, id_index=0, force_suppress=True)[:2]
        ids, scores, boxes = best[:, 0], best[:, 1], best[:, 2:]
        plot_bbox(pixels, boxes, scores, ids, thresh=0, class_names=classes, ax=axis)
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def parse_arguments() -> argparse.Namespace:
    """Read the command line; if it is impossible, end the program with a message."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="", help="folder with VOC2007, VOC2012 (draws images)")
    parser.add_argument("--devices", type=int, default=2, help="number of devices (2)")
    parser.add_argument("--gpus", action="store_true", help="GPU contexts, not CPU contexts")
    parser.add_argument("--images-per-device", type=int, default=2, help="images of a step (2)")
    parser.add_argument("--epochs", type=int, default=50, help="passes over the images (50)")
    parser.add_argument("--lr", type=float, default=0.01, help="first learning rate (0.01)")
    parser.add_argument("--side", type=int, default=64, help="side of an image (64)")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data (0)")
    parser.add_argument("--out", type=Path, default=Path("runs/detection"), help="folder for files")
    options = parser.parse_args()
    least = {"devices": 1, "images_per_device": 1, "epochs": 1, "side": 32, "workers": 0}
    for name, number in least.items():
        value = getattr(options, name)
        if value < number:
            parser.error(f"--{name.replace('_', '-')} {value}: should be {number} or more")
    if options.gpus and (seen := mx.context.num_gpus()) < options.devices:
        parser.error(f"--gpus: needs {options.devices} GPUs, and MXNet sees {seen}")
    for year, split in SPLITS if options.data else ():
        path = Path(options.data, f"VOC{year}", "ImageSets", "Main", f"{split}.txt")
        if not path.is_file():
            parser.error(f"--data: {path} does not exist")
    return options


if __name__ == "__main__":
    main()
