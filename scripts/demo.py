"""Train a small U-Net on one device, and on several with and without SyncBatchNorm.

All three networks begin with the same weights and see the same whole batches of 8 images. Writes
their predictions to a picture. Exits with 1 unless the first loss with SyncBatchNorm equals that of
one device.

--sweep trains on 1, 2, 4 and 8 devices with several seeds instead, and plots mIoU over images per
device. It continues an earlier sweep of the same folder.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from pathlib import Path

import mxnet as mx
from gluon_syncbn import SyncBatchNorm, prepare_cpu_contexts
from mxnet.gluon import nn

from aerial.pictures import draw_predictions, draw_sweep
from aerial.scenes import Scenes, make_scenes
from aerial.training import BATCH, Way, train, ways

TOLERANCE = 1e-5  # relative, for the first loss, which no training step has changed
DEVICES = (1, 2, 4, 8)


def main() -> int:
    """Run the demo or the sweep; return the exit status."""
    options = parse_arguments()
    if not options.gpus:
        prepare_cpu_contexts()
    options.out.mkdir(parents=True, exist_ok=True)
    scenes = make_scenes(options.scenes, 1, options.out)
    valid = make_scenes(options.scenes // 10, 2, options.out)
    return sweep(options, scenes, valid) if options.sweep else demo(options, scenes, valid)


def demo(options: argparse.Namespace, scenes: Scenes, valid: Scenes) -> int:
    """Train the network in three ways, and compare the results."""
    three = ways(options.devices, mx.gpu if options.gpus else mx.cpu)
    results = [train(way, scenes, valid, options.steps, options.seed) for way in three]
    print(f"\n{'':28}{'first loss':>12}{'last 20':>10}{'mIoU':>8}")
    for way, result in zip(three, results):
        last = sum(result.losses[-20:]) / len(result.losses[-20:])
        print(f"{way.title:28}{result.losses[0]:12.6f}{last:10.4f}{result.miou:8.3f}")
    one, synchronized = (result.losses[0] for result in results[:2])
    difference = abs(synchronized - one) / one
    print(f"\nThe first loss with SyncBatchNorm differs from one device's by {difference:.1e}.")
    picture = options.out / "predictions.png"
    draw_predictions(picture, valid, three, results)
    print(f"Predictions of the networks: {picture}")
    if difference > TOLERANCE:
        print(f"FAILED: more than {TOLERANCE:g}", file=sys.stderr)
        return 1
    return 0


def sweep(options: argparse.Namespace, scenes: Scenes, valid: Scenes) -> int:
    """Train the cases that the table lacks, and plot the table."""
    table = options.out / "sweep.csv"
    scores = read(table)
    context = mx.gpu if options.gpus else mx.cpu
    for seed in range(options.seeds):
        for devices in DEVICES:
            for norm in (SyncBatchNorm, nn.BatchNorm):
                if seed in scores[norm.__name__, devices]:
                    continue
                way = Way(norm, [context(i) for i in range(devices)])
                miou = train(way, scenes, valid, options.steps, seed).miou
                scores[norm.__name__, devices][seed] = miou
                with table.open("a", newline="") as file:
                    csv.writer(file).writerow([norm.__name__, devices, seed, f"{miou:.4f}"])
                print(f"{way.title}, seed {seed}: mIoU {miou:.3f}", flush=True)
    plot = options.out / "sweep.png"
    draw_sweep(plot, {key: list(seeds.values()) for key, seeds in scores.items()})
    print(f"mIoU over images per device: {plot}, {table}")
    return 0


def read(table: Path) -> dict[tuple[str, int], dict[int, float]]:
    """Read the scores of each seed, by norm and number of devices."""
    scores: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    if table.exists():
        with table.open(newline="") as file:
            for norm, devices, seed, miou in csv.reader(file):
                scores[norm, int(devices)][int(seed)] = float(miou)
    return scores


def parse_arguments() -> argparse.Namespace:
    """Read the command line; if it is impossible, end the program with a message."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=8, help="2, 4 or 8 devices (8)")
    parser.add_argument("--gpus", action="store_true", help="GPU contexts instead of CPU contexts")
    parser.add_argument("--steps", type=int, default=150, help="training steps of each way (150)")
    parser.add_argument("--scenes", type=int, default=1200, help="training scenes (1200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batches (0)")
    parser.add_argument("--sweep", action="store_true", help="plot mIoU over images per device")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds of the sweep (3)")
    parser.add_argument("--out", type=Path, default=Path("runs/aerial"), help="folder of all files")
    options = parser.parse_args()
    if options.devices not in DEVICES[1:]:
        parser.error(f"--devices {options.devices}: {BATCH} images divide among 2, 4 or 8 devices")
    for name, least in (("steps", 1), ("scenes", 10 * BATCH), ("seeds", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} {getattr(options, name)}: should be {least} or more")
    needed = max(DEVICES) if options.sweep else options.devices
    if options.gpus and mx.context.num_gpus() < needed:
        parser.error(f"--gpus: needs {needed} GPUs, and MXNet sees {mx.context.num_gpus()}")
    return options


if __name__ == "__main__":
    sys.exit(main())
