"""Train a segmentation network of GluonCV on VOC2012 (--data), or on images that it draws."""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.contrib import amp
from mxnet.gluon.data.vision import transforms
from PIL import Image, ImageDraw

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


def main() -> None:
    import gluoncv  # here: the demo, which has no GluonCV, calls train_step

    options = parse_arguments()
    if options.amp:  # before the network is made
        amp.init(fp32_ops=gluon_syncbn.amp_fp32_ops())
    ctx = [(mx.gpu if options.gpus else mx.cpu)(i) for i in range(options.devices)]
    out, side = options.out, options.crop_size
    root = options.data or draw_dataset(out, side)
    normalize = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    sizes = {"base_size": side, "crop_size": side}
    train = gluoncv.data.VOCSegmentation(root, "train", "train", normalize, **sizes)
    valid = gluoncv.data.VOCSegmentation(root, "val", "val", normalize, **sizes)
    size = {"batch_size": options.images_per_device * len(ctx), "num_workers": options.workers}
    # The last batch has to have images for all devices.
    loader = gluon.data.DataLoader(train, shuffle=True, last_batch="discard", **size)
    val_loader = gluon.data.DataLoader(valid, **size)
    mx.random.seed(0)
    kind = {"dataset": "pascal_voc", "backbone": options.backbone, "aux": False, "crop_size": side}
    norm = {"norm_layer": gluon_syncbn.SyncBatchNorm, "norm_kwargs": {"num_devices": len(ctx)}}
    make = gluoncv.model_zoo.segbase.get_segmentation_model
    net = make(options.model, **kind, **norm, pretrained_base=options.pretrained, ctx=ctx)
    if not options.pretrained:  # GluonCV initializes the head alone
        net.initialize(mx.init.Xavier(), ctx=ctx, force_reinit=True)
    net.collect_params().reset_ctx(ctx)
    net.hybridize(static_alloc=True)
    criterion = gluoncv.loss.MixSoftmaxCrossEntropyLoss(aux=False)
    rates = gluoncv.utils.LRScheduler("poly", options.lr, niters=len(loader) * options.epochs)
    settings = {"lr_scheduler": rates, "wd": 1e-4, "momentum": 0.9}
    trainer = gluon.Trainer(net.collect_params(), "sgd", settings, update_on_kvstore=False)
    if options.amp:
        amp.init_trainer(trainer)
    metric = gluoncv.utils.metrics.SegmentationMetric(train.num_class if options.data else 3)
    last, states, best = (str(out / name) for name in ("last.params", "last.states", "net.params"))
    progress = out / "last.json"
    first, highest = json.loads(progress.read_text()) if options.resume else (0, 0.0)
    if options.resume:
        net.load_parameters(last, ctx=ctx)
        trainer.load_states(states)
        trainer.optimizer.lr_scheduler = rates  # for all epochs: the file has the old one
    for epoch in range(first, options.epochs):
        loss = np.mean([train_step(net, criterion, trainer, batch, ctx) for batch in loader])
        miou = validate(net, val_loader, metric, ctx)
        print(f"epoch {epoch}: loss {loss:.3f} on {len(ctx)} devices, mIoU {miou:.3f}", flush=True)
        for file in [last, best] if miou >= highest else [last]:
            net.save_parameters(file)
        trainer.save_states(states)
        progress.write_text(json.dumps([epoch + 1, highest := max(miou, highest)]))
    net.load_parameters(best, ctx=ctx)
    draw_predictions(out / "segmentation.png", net, [valid[i] for i in range(6)], ctx[0])
    print(f"best: mIoU {highest:.3f}, {best}; images, labels, predictions: {out}/segmentation.png")


def validate(net: Any, loader: Any, metric: Any, ctx: list) -> float:
    """Return the mIoU, computed on all devices. A last batch may have fewer images than devices."""
    metric.reset()
    for batch in loader:
        xs, ys = (gluon.utils.split_and_load(a, ctx[: len(a)], even_split=False) for a in batch)
        metric.update(ys, [net(x)[0] for x in xs])
    return float(metric.get()[1])


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


def draw_dataset(root: Path, side: int) -> str:
    """Write 64 images of a disc and a box, and their labels, in the layout of VOC2012."""
    rng, folder = np.random.default_rng(0), root / "VOC2012"
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    names = [f"drawn_{i:03}" for i in range(64)]
    for name in names:
        label = Image.new("L", (side, side))
        for number in rng.permutation([1, 2]):
            draw, (x, y, right, below) = ImageDraw.Draw(label), rng.integers(0, side // 2, 4)
            box = [int(x), int(y), int(x + side // 4 + right // 2), int(y + side // 4 + below // 2)]
            (draw.ellipse if number == 1 else draw.rectangle)(box, int(number))
        colors = np.array([(0, 0, 0), (150, 20, 0), (0, 20, 150)])[np.asarray(label)]
        image = (rng.integers(60, 100, (side, side, 3)) + colors).astype(np.uint8)
        Image.fromarray(image).save(folder / "JPEGImages" / f"{name}.jpg", quality=95)
        label.save(folder / "SegmentationClass" / f"{name}.png")
    for split, chosen in (("trainval", names[:48]), ("val", names[48:])):
        (folder / "ImageSets/Segmentation" / f"{split}.txt").write_text("\n".join(chosen) + "\n")
    return str(root)


def draw_predictions(path: Path, net: Any, shown: list, ctx: mx.Context) -> None:
    palette = np.random.default_rng(3).integers(40, 255, (256, 3), dtype=np.uint8)
    palette[0], palette[255] = 0, 128
    columns = []
    for image, label in shown:
        predicted = net(image.expand_dims(0).as_in_context(ctx))[0].argmax(axis=1)[0]
        photo = (image.transpose((1, 2, 0)).asnumpy() * STD + MEAN).clip(0, 1) * 255
        colored = [palette[each.asnumpy().astype(np.uint8)] for each in (label, predicted)]
        columns.append(np.concatenate([photo.astype(np.uint8), *colored]))
    Image.fromarray(np.concatenate(columns, axis=1).repeat(2, 0).repeat(2, 1)).save(path)


def parse_arguments() -> argparse.Namespace:
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
    return parser.parse_args()


if __name__ == "__main__":
    main()
