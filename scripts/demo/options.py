"""The command line of the segmentation job."""

from __future__ import annotations

import argparse
from pathlib import Path

import mxnet as mx

from demo.job import Job
from demo.networks import FAMILIES
from demo.scenes import DIGIT_SIDES

WAYS = ("batch", "sync", "unsync")
DATA_HELP = """\
data:
  DIR is where the scenes made from scikit-learn's digits are kept. A file DIR/scenes.npz is taken
  instead of them; it holds train_images and valid_images (uint8, N x S x S x 3), train_labels and
  valid_labels (uint8, N x S x S, classes counted from 0) and, optionally, class_names.

models and backbones:
"""


def parse_arguments(description: str | None, job: Job) -> argparse.Namespace:
    """Read the command line; an impossible one ends the program with a message.

    Beside the options as they were given, ``ways`` and ``contexts`` are made from them.
    """
    models = "".join(
        f"  {name}: {', '.join(family.backbones) or 'has its own trunk'}\n"
        for name, family in FAMILIES.items()
    )
    parser = argparse.ArgumentParser(
        description=description,
        epilog=DATA_HELP + models,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="fcn", help="GluonCV network, see below (fcn)")
    parser.add_argument("--backbone", help="its backbone, see below (the first one listed)")
    parser.add_argument(
        "--norm",
        default="all",
        metavar="WAYS",
        help=f"ways to train: all, or some of {','.join(WAYS)} (all)",
    )
    devices = parser.add_mutually_exclusive_group()
    devices.add_argument(
        "--num-devices",
        type=int,
        default=4,
        metavar="K",
        help="CPU contexts to train on, in each process (4)",
    )
    devices.add_argument(
        "--gpus",
        metavar="LIST",
        help="GPUs to train on instead, such as 0,1,2; the processes of a machine share them out",
    )
    parser.add_argument(
        "--batch-size", type=int, metavar="N", default=4, help="scenes, over all devices (4)"
    )
    parser.add_argument(
        "--epochs", type=int, metavar="N", default=2, help="passes over the scenes (2)"
    )
    parser.add_argument("--lr", type=float, default=0.02, help="highest learning rate (0.02)")
    parser.add_argument(
        "--image-size", type=int, metavar="S", help="scene's side in pixels (48, or 64)"
    )
    parser.add_argument(
        "--scenes", type=int, metavar="N", default=900, help="training scenes to make (900)"
    )
    parser.add_argument(
        "--valid-scenes", type=int, metavar="N", default=96, help="validation scenes to make (96)"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", default=0, help="seed of everything random (0)"
    )
    parser.add_argument(
        "--data", type=Path, default=Path("runs/data"), metavar="DIR", help="see below (runs/data)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for the results (runs/MODEL-BACKBONE)"
    )
    parser.add_argument(
        "--fuse",
        action="store_true",
        help="compute SyncBatchNorm and the activation behind it in one pass (gluon_syncbn.fuse)",
    )
    graph = parser.add_mutually_exclusive_group()
    graph.add_argument("--no-hybridize", action="store_true", help="train imperatively")
    graph.add_argument(
        "--static",
        action="store_true",
        help="hybridize with static_alloc and static_shape",
    )
    options = parser.parse_args()
    problem = _complete(options, job)
    if problem:
        parser.error(problem)
    return options


def _complete(options: argparse.Namespace, job: Job) -> str | None:
    """Complete `options`, and say what is wrong with them."""
    for name in ("batch_size", "epochs", "scenes", "valid_scenes", "num_devices"):
        if getattr(options, name) < 1:
            return f"--{name.replace('_', '-')} must be at least 1"
    if not options.lr > 0:
        return "--lr must be above 0"
    if options.seed < 0:
        return "--seed must not be negative"
    options.ways = list(WAYS) if options.norm == "all" else options.norm.split(",")
    if not set(options.ways) <= set(WAYS) or len(set(options.ways)) < len(options.ways):
        return f"--norm {options.norm}: give all, or some of {','.join(WAYS)}"
    options.ways.sort(key=WAYS.index)
    options.contexts = [mx.cpu(number) for number in range(options.num_devices)]
    if options.gpus is not None:
        try:
            numbers = [int(number) for number in options.gpus.split(",")]
        except ValueError:
            return f"--gpus {options.gpus}: give numbers, such as 0,1,2"
        there = mx.context.num_gpus()
        if min(numbers) < 0 or max(numbers) >= there or len(set(numbers)) < len(numbers):
            build = "" if mx.runtime.Features().is_enabled("CUDA") else " (MXNet is a CPU build)"
            return f"--gpus {options.gpus}: MXNet sees {there} GPUs here{build}"
        if len(numbers) % job.local_size:
            return (
                f"--gpus {options.gpus}: {job.local_size} processes on a machine cannot share "
                f"{len(numbers)} GPUs out evenly"
            )
        options.contexts = [mx.gpu(number) for number in job.share_of_machine(numbers)]
    devices = len(options.contexts) * job.size
    if options.batch_size < devices and options.ways != ["batch"]:
        return f"--batch-size {options.batch_size} leaves some of {devices} devices without a scene"
    if options.model not in FAMILIES:
        return f"--model {options.model}: choose from {', '.join(FAMILIES)}"
    family = FAMILIES[options.model]
    if options.backbone is None:
        options.backbone = family.backbones[0] if family.backbones else ""
    if options.image_size is None:
        options.image_size = family.default_side
    if options.image_size < max(DIGIT_SIDES):
        return f"--image-size {options.image_size}: digits are up to {max(DIGIT_SIDES)} pixels high"
    return None
