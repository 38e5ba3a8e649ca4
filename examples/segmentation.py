"""Train a segmentation network of GluonCV on several devices, one or a few images on each.

The data is a folder that holds VOC2012, as gluoncv's scripts/datasets/pascal_voc.py makes it. By
default the program draws small images in that layout.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon.data.vision import transforms
from PIL import Image, ImageDraw

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


def main() -> None:
    """Train, print losses and the mean intersection over union, and draw predictions."""
    import gluoncv  # here, because the demo, which has no GluonCV, calls train_step too

    options = parse_arguments()
    make_context = mx.gpu if options.gpus else mx.cpu
    ctx = [make_context(i) for i in range(options.devices)]
    batch_size = options.images_per_device * len(ctx)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.data == "generated":
        draw_dataset(options.out / "VOC2012", options.crop_size)
    root = str(options.out) if options.data == "generated" else options.data

    normalize = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    sizes = {"base_size": options.crop_size, "crop_size": options.crop_size}
    train = gluoncv.data.VOCSegmentation(root, "train", "train", normalize, **sizes)
    valid = gluoncv.data.VOCSegmentation(root, "val", "val", normalize, **sizes)
    # The last batch has to have images for all devices.
    loader = gluon.data.DataLoader(
        train, batch_size, shuffle=True, last_batch="discard", num_workers=options.workers
    )

    mx.random.seed(0)
    net = gluoncv.model_zoo.segbase.get_segmentation_model(
        options.model,
        dataset="pascal_voc",
        backbone=options.backbone,
        pretrained_base=options.pretrained,
        aux=False,
        crop_size=options.crop_size,
        ctx=ctx,
        norm_layer=gluon_syncbn.SyncBatchNorm,
        norm_kwargs={"num_devices": len(ctx)},
    )
    if not options.pretrained:  # GluonCV initializes the head alone
        net.initialize(mx.init.Xavier(), ctx=ctx, force_reinit=True)
    net.collect_params().reset_ctx(ctx)
    net.hybridize(static_alloc=True)

    criterion = gluoncv.loss.MixSoftmaxCrossEntropyLoss(aux=False)
    steps = len(loader) * options.epochs
    rates = gluoncv.utils.LRScheduler("poly", base_lr=options.lr, niters=steps)
    settings = {"lr_scheduler": rates, "wd": 1e-4, "momentum": 0.9}
    trainer = gluon.Trainer(net.collect_params(), "sgd", settings)
    for epoch in range(options.epochs):
        losses = [train_step(net, criterion, trainer, batch, ctx) for batch in loader]
        print(f"epoch {epoch}: loss {np.mean(losses):.3f} on {len(ctx)} devices", flush=True)

    net.save_parameters(str(options.out / "net.params"))
    classes = 3 if options.data == "generated" else train.num_class
    metric = gluoncv.utils.metrics.SegmentationMetric(classes)
    shown = []
    for image, label in valid:
        scores = net(image.expand_dims(0).as_in_context(ctx[0]))[0]
        metric.update([label.expand_dims(0).as_in_context(ctx[0])], [scores])
        shown.append((image, label, scores.argmax(axis=1)[0]))
    pixels, miou = metric.get()
    print(f"validation: {pixels:.3f} of the pixels are right, mIoU {miou:.3f}")
    draw_predictions(options.out / "segmentation.png", shown[:6])


def train_step(net: Any, criterion: Any, trainer: Any, batch: Any, ctx: list) -> float:
    """Train on images and labels, an equal part on each device; return the mean loss."""
    xs, ys = (gluon.utils.split_and_load(each, ctx) for each in batch)
    with autograd.record():
        # All devices are called before a result of one is read.
        losses = [criterion(*net(x), y).mean() for x, y in zip(xs, ys)]
    autograd.backward(losses)
    trainer.step(len(ctx))  # each loss is a mean over its device's images
    return sum(float(loss.asscalar()) for loss in losses) / len(ctx)


def draw_dataset(folder: Path, side: int) -> None:
    """Write 64 images of discs and boxes, and their labels, in the layout of VOC2012."""
    rng = np.random.default_rng(0)
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    names = [f"drawn_{i:03}" for i in range(64)]
    for name in names:
        image = Image.fromarray(rng.integers(60, 120, (side, side, 3), dtype=np.uint8))
        label = Image.new("L", (side, side))
        for number in rng.permutation([1, 2]):
            x, y = rng.integers(0, side // 2, 2)
            width, height = rng.integers(side // 4, side // 2, 2)
            box = [int(v) for v in (x, y, x + width, y + height)]
            color = (230, int(rng.integers(40, 140)), 60) if number == 1 else (70, 90, 230)
            for picture, fill in ((image, color), (label, int(number))):
                draw = ImageDraw.Draw(picture)
                (draw.ellipse if number == 1 else draw.rectangle)(box, fill)
        image.save(folder / "JPEGImages" / f"{name}.jpg", quality=95)
        label.save(folder / "SegmentationClass" / f"{name}.png")
    for split, chosen in (("trainval", names[:48]), ("val", names[48:])):
        (folder / "ImageSets/Segmentation" / f"{split}.txt").write_text("\n".join(chosen) + "\n")


def draw_predictions(path: Path, shown: list) -> None:
    """Draw images, labels and predictions below each other."""
    palette = np.random.default_rng(3).integers(40, 255, (256, 3), dtype=np.uint8)
    palette[0], palette[255] = 0, 128
    columns = []
    for image, label, predicted in shown:
        photo = (image.transpose((1, 2, 0)).asnumpy() * STD + MEAN).clip(0, 1) * 255
        colored = [palette[each.asnumpy().astype(np.uint8)] for each in (label, predicted)]
        columns.append(np.concatenate([photo.astype(np.uint8), *colored]))
    Image.fromarray(np.concatenate(columns, axis=1)).save(path)
    print(f"images, labels and predictions: {path}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="generated", help="folder with VOC2012 (generated)")
    parser.add_argument("--devices", type=int, default=2, help="number of devices (2)")
    parser.add_argument("--gpus", action="store_true", help="GPU contexts, not CPU contexts")
    parser.add_argument("--images-per-device", type=int, default=2, help="(2)")
    parser.add_argument("--epochs", type=int, default=6, help="(6)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate (0.02)")
    parser.add_argument("--model", default="fcn", help="fcn, psp, deeplab, ... (fcn)")
    parser.add_argument("--backbone", default="resnet50", help="(resnet50)")
    parser.add_argument("--pretrained", action="store_true", help="load the backbone's weights")
    parser.add_argument("--crop-size", type=int, default=64, help="side of an image (64)")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data (0)")
    parser.add_argument("--out", type=Path, default=Path("runs/segmentation"), help="for files")
    return parser.parse_args()


if __name__ == "__main__":
    main()
