"""Train a segmentation network of GluonCV on VOC2012 (--data), or on images that it draws."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.contrib import amp
from mxnet.gluon.data.vision import transforms
from PIL import Image, ImageDraw
from tqdm import tqdm

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
LISTS = "VOC2012/ImageSets/Segmentation"
RUN = ("last.json", "last.params", "last.states", "net.params")  # what --resume needs


def main() -> None:
    # Not at the top: the demo, which has no GluonCV, calls train_step.
    from gluoncv.loss import MixSoftmaxCrossEntropyLoss
    from gluoncv.utils.metrics import SegmentationMetric

    options = parse_arguments()
    if options.amp:  # before the network is made
        amp.init(fp32_ops=gluon_syncbn.amp_fp32_ops())
    make_context = mx.gpu if options.gpus else mx.cpu
    ctx = [make_context(i) for i in range(options.devices)]

    train_set, valid_set = load_data(options)
    options.out.mkdir(parents=True, exist_ok=True)
    batch_size = options.devices * options.images_per_device
    load = {"batch_size": batch_size, "num_workers": options.workers}
    # The last batch has to have images for all devices.
    loader = gluon.data.DataLoader(train_set, shuffle=True, last_batch="discard", **load)
    valid_loader = gluon.data.DataLoader(valid_set, **load)

    mx.random.seed(0)
    net = make_network(options, ctx)
    trainer = make_trainer(net, options, steps=len(loader) * options.epochs)
    criterion = MixSoftmaxCrossEntropyLoss(aux=False)
    metric = SegmentationMetric(train_set.num_class if options.data else 3)
    best = options.out / "net.params"
    done, highest = restore(options.out, net, trainer, ctx) if options.resume else (0, 0.0)
    for epoch in range(done, options.epochs):
        batches = tqdm(loader, f"epoch {epoch}", leave=False)
        loss = train_epoch(net, criterion, trainer, batches, ctx)
        miou = validate(net, valid_loader, metric, ctx)
        if not math.isfinite(loss + miou):
            found = f"epoch {epoch}: loss {loss:.3f}, mIoU {miou:.3f}"
            sys.exit(f"{found}: not saved; try a smaller --lr than {options.lr}")
        print(f"epoch {epoch}: loss {loss:.3f} on {len(ctx)} devices, mIoU {miou:.3f}", flush=True)
        if miou >= highest:
            highest = miou
            net.save_parameters(str(best))
        save(options.out, net, trainer, epoch + 1, highest)

    net.load_parameters(str(best), ctx=ctx)
    picture = options.out / "segmentation.png"
    draw_predictions(picture, net, [valid_set[i] for i in range(min(6, len(valid_set)))], ctx[0])
    print(f"best: mIoU {highest:.3f}, {best}; images, labels, predictions: {picture}")


def load_data(options: argparse.Namespace) -> tuple[Any, Any]:
    """Return the images for training and for validation; end the program if they are too few."""
    from gluoncv.data import VOCSegmentation

    side = options.crop_size
    root = options.data or draw_dataset(options.out, side)
    normalize = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    sizes = {"base_size": side, "crop_size": side}
    train_set = VOCSegmentation(root, "train", "train", normalize, **sizes)
    valid_set = VOCSegmentation(root, "val", "val", normalize, **sizes)
    batch_size = options.devices * options.images_per_device
    if len(train_set) < batch_size:
        too_few = f"{root} has {len(train_set)} images for training, and a batch has {batch_size}"
        sys.exit(f"{too_few}: use fewer --devices or --images-per-device")
    if len(valid_set) == 0:
        sys.exit(f"{root}/{LISTS}/val.txt has no images: validation needs one or more")
    return train_set, valid_set


def make_network(options: argparse.Namespace, ctx: list) -> Any:
    """Make a network with a SyncBatchNorm in each place of a BatchNorm."""
    from gluoncv.model_zoo.segbase import get_segmentation_model

    net = get_segmentation_model(
        options.model,
        dataset="pascal_voc",
        backbone=options.backbone,
        pretrained_base=options.pretrained,
        aux=False,
        crop_size=options.crop_size,
        norm_layer=gluon_syncbn.SyncBatchNorm,
        norm_kwargs={"num_devices": len(ctx)},
        ctx=ctx,
    )
    if not options.pretrained:  # GluonCV initializes the head alone
        net.initialize(mx.init.Xavier(), ctx=ctx, force_reinit=True)
    net.collect_params().reset_ctx(ctx)
    net.hybridize(static_alloc=True)
    return net


def make_trainer(net: Any, options: argparse.Namespace, steps: int) -> gluon.Trainer:
    """Make a trainer whose learning rate falls to 0 after all steps."""
    rates = mx.lr_scheduler.PolyScheduler(steps + 1, options.lr)  # MXNet counts steps from 1
    settings = {"lr_scheduler": rates, "wd": 1e-4, "momentum": 0.9}
    trainer = gluon.Trainer(net.collect_params(), "sgd", settings, update_on_kvstore=False)
    if options.amp:
        amp.init_trainer(trainer)
    return trainer


def train_epoch(net: Any, criterion: Any, trainer: Any, batches: tqdm, ctx: list) -> float:
    """Train on all batches; return the mean loss."""
    losses = []
    for batch in batches:
        losses.append(train_step(net, criterion, trainer, batch, ctx))
        batches.set_postfix(loss=f"{losses[-1]:.3f}")
    return float(np.mean(losses))


def train_step(net: Any, criterion: Any, trainer: Any, batch: Any, ctx: list) -> float:
    """Train on images and labels, an equal part on each device; return the mean loss."""
    xs, ys = (gluon.utils.split_and_load(each, ctx) for each in batch)
    mixed = hasattr(trainer, "_amp_loss_scaler")
    with autograd.record():
        # All devices are called before a result of one is read.
        losses = [criterion(*net(x), y).mean() for x, y in zip(xs, ys)]
        with amp.scale_loss(losses, trainer) if mixed else contextlib.nullcontext(losses) as scaled:
            autograd.backward(scaled)
    trainer.step(len(ctx))  # each loss is a mean over its device's images
    return sum(float(loss.asscalar()) for loss in losses) / len(ctx)


def validate(net: Any, loader: Any, metric: Any, ctx: list) -> float:
    """Return the mIoU, computed on all devices, or nan if the network's scores are not finite."""
    metric.reset()
    finite = True
    for batch in tqdm(loader, "validation", leave=False):
        # A last batch may have fewer images than devices.
        xs, ys = (gluon.utils.split_and_load(a, ctx[: len(a)], even_split=False) for a in batch)
        scores = [net(x)[0] for x in xs]
        metric.update(ys, scores)
        finite = finite and all(np.isfinite(each.asnumpy()).all() for each in scores)
    return float(metric.get()[1]) if finite else math.nan


def save(out: Path, net: Any, trainer: gluon.Trainer, done: int, highest: float) -> None:
    """Save what --resume needs after `done` epochs."""
    net.save_parameters(str(out / "last.params"))
    trainer.save_states(str(out / "last.states"))
    (out / "last.json").write_text(json.dumps([done, highest]))


def restore(out: Path, net: Any, trainer: gluon.Trainer, ctx: list) -> tuple[int, float]:
    """Load the last epoch; return the number of epochs, and the highest mIoU."""
    rates = trainer.optimizer.lr_scheduler
    net.load_parameters(str(out / "last.params"), ctx=ctx)
    trainer.load_states(str(out / "last.states"))
    trainer.optimizer.lr_scheduler = rates  # for all epochs: the file has the old one
    done, highest = json.loads((out / "last.json").read_text())
    return done, highest


def draw_dataset(root: Path, side: int) -> str:
    """Write 64 images of a disc and a box, and their labels, in the layout of VOC2012."""
    rng = np.random.default_rng(0)
    photos, labels = root / "VOC2012" / "JPEGImages", root / "VOC2012" / "SegmentationClass"
    for folder in (photos, labels, root / LISTS):
        folder.mkdir(parents=True, exist_ok=True)
    names = [f"drawn_{i:03}" for i in range(64)]
    for name in names:
        label = Image.new("L", (side, side))
        draw = ImageDraw.Draw(label)
        for number in rng.permutation([1, 2]):
            left, top, width, height = (int(v) for v in rng.integers(0, side // 2, 4))
            right, below = left + side // 4 + width // 2, top + side // 4 + height // 2
            shape = draw.ellipse if number == 1 else draw.rectangle
            shape([left, top, right, below], int(number))
        colors = np.array([(0, 0, 0), (150, 20, 0), (0, 20, 150)])[np.asarray(label)]
        image = (rng.integers(60, 100, (side, side, 3)) + colors).astype(np.uint8)
        Image.fromarray(image).save(photos / f"{name}.jpg", quality=95)
        label.save(labels / f"{name}.png")
    for split, chosen in (("trainval", names[:48]), ("val", names[48:])):
        (root / LISTS / f"{split}.txt").write_text("\n".join(chosen) + "\n")
    return str(root)


def draw_predictions(path: Path, net: Any, shown: list, ctx: mx.Context) -> None:
    """Draw a column for each image: the image, its label, and the prediction."""
    palette = np.random.default_rng(3).integers(40, 255, (256, 3), dtype=np.uint8)
    palette[0], palette[255] = 0, 128
    columns = []
    for image, label in shown:
        predicted = net(image.expand_dims(0).as_in_context(ctx))[0].argmax(axis=1)[0]
        photo = (image.transpose((1, 2, 0)).asnumpy() * STD + MEAN).clip(0, 1) * 255
        # The ignored class, -1, becomes 255.
        classes = [each.asnumpy().astype(np.int32).astype(np.uint8) for each in (label, predicted)]
        columns.append(np.concatenate([photo.astype(np.uint8), *(palette[c] for c in classes)]))
    Image.fromarray(np.concatenate(columns, axis=1).repeat(2, 0).repeat(2, 1)).save(path)


def parse_arguments() -> argparse.Namespace:
    """Read the command line; if it is impossible, end the program with a message."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="", help="folder with VOC2012 (draws images)")
    parser.add_argument("--devices", type=int, default=2, help="number of devices (2)")
    parser.add_argument("--gpus", action="store_true", help="GPU contexts, not CPU contexts")
    parser.add_argument("--images-per-device", type=int, default=2, help="images of a step (2)")
    parser.add_argument("--epochs", type=int, default=6, help="passes over the images (6)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate (0.02)")
    parser.add_argument("--model", default="fcn", help="fcn, psp, deeplab, ... (fcn)")
    parser.add_argument("--backbone", default="resnet50", help="of GluonCV (resnet50)")
    parser.add_argument("--pretrained", action="store_true", help="load the backbone's weights")
    parser.add_argument("--crop-size", type=int, default=64, help="side of an image (64)")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data (0)")
    parser.add_argument("--amp", action="store_true", help="mixed precision, with --gpus")
    parser.add_argument("--resume", action="store_true", help="go on after the last epoch in --out")
    parser.add_argument("--out", type=Path, default=Path("runs/segmentation"), help="for files")
    options = parser.parse_args()
    least = {"devices": 1, "images_per_device": 1, "epochs": 1, "crop_size": 8, "workers": 0}
    for name, number in least.items():
        value = getattr(options, name)
        if value < number:
            parser.error(f"--{name.replace('_', '-')} {value}: should be {number} or more")
    if options.gpus and (seen := mx.context.num_gpus()) < options.devices:
        parser.error(f"--gpus: needs {options.devices} GPUs, and MXNet sees {seen}")
    if options.amp and not options.gpus:
        parser.error("--amp: needs --gpus")
    lists = [Path(options.data, LISTS, f"{split}.txt") for split in ("trainval", "val")]
    needed = [("--data", path) for path in lists if options.data]
    needed += [("--resume", options.out / name) for name in RUN if options.resume]
    for option, path in needed:
        if not path.is_file():
            parser.error(f"{option}: {path} does not exist")
    return options


if __name__ == "__main__":
    main()
