"""Train a YOLOv3 of GluonCV on several devices, a few images on each.

The data is a folder that holds VOC2007 and VOC2012, as gluoncv's scripts/datasets/pascal_voc.py
makes it. By default the program draws small images of discs and boxes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
from gluoncv.data import VOCDetection
from gluoncv.data.batchify import Pad, Stack, Tuple
from gluoncv.data.transforms.presets.yolo import YOLO3DefaultTrainTransform, load_test
from gluoncv.model_zoo import yolo3_mobilenet0_25_custom
from gluoncv.utils.viz import plot_bbox
from mxnet import autograd, gluon
from PIL import Image, ImageDraw

SHAPES = ("disc", "box")


def main() -> None:
    """Train, print the four losses of YOLOv3, and draw detections."""
    options = parse_arguments()
    make_context = mx.gpu if options.gpus else mx.cpu
    ctx = [make_context(i) for i in range(options.devices)]
    batch_size = options.images_per_device * len(ctx)
    options.out.mkdir(parents=True, exist_ok=True)
    np.random.seed(0)
    mx.random.seed(0)
    if options.data == "generated":
        dataset = gluon.data.SimpleDataset([draw_scene(options.side) for _ in range(64)])
        classes = SHAPES
    else:
        dataset = VOCDetection(options.data, splits=[(2007, "trainval"), (2012, "trainval")])
        classes = VOCDetection.CLASSES

    net = yolo3_mobilenet0_25_custom(
        classes,
        pretrained_base=False,
        norm_layer=gluon_syncbn.SyncBatchNorm,
        norm_kwargs={},  # num_devices is the number of contexts, which is 1 until reset_ctx
    )
    net.initialize(mx.init.Xavier())
    # It calls the network once on one device, which ends the deferred initialization.
    transform = YOLO3DefaultTrainTransform(options.side, options.side, net)
    net.collect_params().reset_ctx(ctx)
    net.hybridize()
    # An image, five arrays of targets, and the boxes, of which images have different numbers.
    batchify = Tuple(*[Stack() for _ in range(6)], Pad(axis=0, pad_val=-1))
    loader = gluon.data.DataLoader(
        dataset.transform(transform),
        batch_size,
        shuffle=True,
        batchify_fn=batchify,
        last_batch="discard",  # the last batch has to have images for all devices
        num_workers=options.workers,
    )

    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": options.lr})
    for epoch in range(options.epochs):
        totals = np.zeros(4)
        for batch in loader:
            images, *targets, boxes = (gluon.utils.split_and_load(each, ctx) for each in batch)
            with autograd.record():
                # All devices are called before a result of one is read.
                outputs = [net(x, box, *rest) for x, box, *rest in zip(images, boxes, *targets)]
                losses = [sum(parts) for parts in outputs]
            autograd.backward(losses)
            trainer.step(batch_size)
            totals += [
                sum(float(each.sum().asscalar()) for each in parts) for parts in zip(*outputs)
            ]
        means = totals / (len(loader) * batch_size)
        names = ("objectness", "center", "scale", "class")
        text = ", ".join(f"{name} {mean:.2f}" for name, mean in zip(names, means))
        print(f"epoch {epoch}: {text} on {len(ctx)} devices", flush=True)

    net.save_parameters(str(options.out / "net.params"))
    draw_detections(options.out, net, ctx[0], options.side, classes)


def draw_scene(side: int) -> tuple[Any, np.ndarray]:
    """Draw an image, and rows of (left, top, right, bottom, class)."""
    image = Image.fromarray(np.random.randint(60, 120, (side, side, 3), dtype=np.uint8))
    draw = ImageDraw.Draw(image)
    rows = []
    for number in np.random.permutation(len(SHAPES)):
        left, top = np.random.randint(0, side // 2, 2)
        width, height = np.random.randint(side // 4, side // 2, 2)
        box = [int(v) for v in (left, top, left + width, top + height)]
        fill = (230, int(np.random.randint(40, 140)), 60) if number == 0 else (70, 90, 230)
        (draw.ellipse if number == 0 else draw.rectangle)(box, fill)
        rows.append([*box, number])
    return mx.nd.array(np.asarray(image), dtype="uint8"), np.asarray(rows, dtype=np.float32)


def draw_detections(out: Path, net: Any, device: Any, side: int, classes: tuple) -> None:
    """Detect in four new images, and draw the two boxes with the best scores."""
    from matplotlib import pyplot as plt

    net.set_nms(nms_thresh=0.45, nms_topk=100)
    figure, axes = plt.subplots(1, 4, figsize=(12, 3.2))
    for axis in axes:
        image, _ = draw_scene(side)
        path = out / "scene.png"
        Image.fromarray(image.asnumpy()).save(path)
        x, shown = load_test(str(path), short=side)
        ids, scores, boxes = (each[0] for each in net(x.as_in_context(device)))
        plot_bbox(shown, boxes[:2], scores[:2], ids[:2], thresh=0, class_names=classes, ax=axis)
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(out / "detection.png", dpi=80)
    print(f"detections: {out / 'detection.png'}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="generated", help="folder with VOC2007 and VOC2012")
    parser.add_argument("--devices", type=int, default=2, help="number of devices (2)")
    parser.add_argument("--gpus", action="store_true", help="GPU contexts, not CPU contexts")
    parser.add_argument("--images-per-device", type=int, default=2, help="images of a step (2)")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the images (20)")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate (0.002)")
    parser.add_argument("--side", type=int, default=96, help="side of an image (96)")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data (0)")
    parser.add_argument("--out", type=Path, default=Path("runs/detection"), help="folder for files")
    return parser.parse_args()


if __name__ == "__main__":
    main()
