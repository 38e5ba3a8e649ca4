"""Train a GluonCV segmentation network on one device, and on several with and without SyncBN.

The network is trained three times from the same weights on the same batches: on one device with
gluon.nn.BatchNorm, on several devices with gluon_syncbn.SyncBatchNorm, and on several devices with
gluon.nn.BatchNorm, which normalizes each device's part of the batch by itself. The run prints and
draws how the three compare, exports the network trained with SyncBatchNorm, and loads the export.

Started with "horovodrun -np N" or "mpirun -np N", the several devices are those of all processes:
every process takes its part of each batch, and the first one trains on one device and reports.

It is also a check: the exit status is 1 unless the loss with SyncBatchNorm follows that of one
device as closely as rounding lets it, and the loaded export predicts what the network does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from gluon_syncbn import SyncBatchNorm
from gluon_syncbn.fuse import FusedNetwork

from demo.checks import (
    EARLY_STEPS,
    EXPORT_TOLERANCE,
    FACTOR,
    LAG,
    ExportCheck,
    FollowCheck,
    check_export,
    check_follows,
)
from demo.job import Job, join_job
from demo.networks import Design, Norm, save_initial_weights
from demo.options import parse_arguments
from demo.report import draw_curves, draw_predictions, format_table, table, write_json
from demo.scenes import Scenes, load_scenes
from demo.training import Outcome, Schedule, Variant, losses_in_reverse, train


def main() -> int:
    """Run the job; return the exit status."""
    begin = time.perf_counter()
    job = join_job()
    options = parse_arguments(__doc__, job)
    recipe = (options.image_size, options.scenes, options.valid_scenes, options.seed)
    try:
        if job.local_rank == 0:
            scenes = load_scenes(options.data, *recipe)
        job.wait_for_all()  # the others read what the first of their machine has made
        if job.local_rank != 0:
            scenes = load_scenes(options.data, *recipe)
        design = Design(options.model, options.backbone, len(scenes.class_names), scenes.side)
        design.check()
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    schedule = Schedule(
        epochs=options.epochs,
        batch=options.batch_size,
        rate=options.lr,
        seed=options.seed,
        hybridize=None
        if options.no_hybridize
        else {
            "static_alloc": options.static,
            "static_shape": options.static,
        },
    )
    if not schedule.steps(scenes):
        print(f"error: no batch of {schedule.batch} in the training scenes", file=sys.stderr)
        return 2
    folder = options.out or Path("runs") / "-".join(filter(None, (design.model, design.backbone)))
    folder.mkdir(parents=True, exist_ok=True)
    print(
        f"{design.model} {design.backbone}: {schedule.steps(scenes)} steps of {schedule.batch} "
        f"scenes ({scenes.source}), {scenes.side}x{scenes.side} pixels, {design.classes} classes"
    )

    outcomes, follow = run_ways(options, job, design, scenes, schedule)
    if not job.is_first:
        return 0
    rows = table(outcomes)
    synchronized = [outcome for outcome in outcomes if outcome.way.key == "sync"]
    if options.fuse and synchronized:
        print(report_fused(synchronized[0].net))
    export = check_export(synchronized[0], scenes, folder) if synchronized else None
    draw_curves(folder / "curves.png", outcomes, follow)
    draw_predictions(folder / "predictions.png", scenes, outcomes)
    configuration = {key: str(value) for key, value in vars(options).items()}
    write_json(folder / "table.json", rows, outcomes, configuration, follow, export)
    print(f"\n{format_table(rows)}\n")
    print(f"dloss: difference of the loss from that of “{outcomes[0].way.title}”, at most")
    passed = report_checks(follow, export)
    print(f"results: {folder}; {time.perf_counter() - begin:.0f} s in all")
    return 0 if passed else 1


def run_ways(
    options: argparse.Namespace, job: Job, design: Design, scenes: Scenes, schedule: Schedule
) -> tuple[list[Outcome], FollowCheck | None]:
    """Train all ways that were asked for, and compare the synchronized one with one device.

    Only the first process gets the outcomes of all ways.
    """
    contexts = tuple(options.contexts)
    sync = Norm(SyncBatchNorm, {"num_devices": len(contexts)}, fuse=options.fuse)
    layer = "SyncBatchNorm, fused" if options.fuse else "SyncBatchNorm"
    several = f"{len(contexts)} devices"
    if job.size > 1:
        several = f"{job.size} processes with {several}"
    ways = {
        "batch": Variant("batch", "1 device, BatchNorm", Norm(), contexts[:1]),
        "sync": Variant("sync", f"{several}, {layer}", sync, contexts, job),
        "unsync": Variant("unsync", f"{several}, BatchNorm", Norm(), contexts, job),
    }
    # What the first process does alone comes last, so that no other waits for it.
    order = sorted(options.ways, key=lambda key: ways[key].job.size < job.size)
    if not job.is_first:
        order = [key for key in order if ways[key].job.size == job.size]
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "initial.params"
        save_initial_weights(design, schedule.seed, weights)
        done = {}
        for key in order:
            done[key] = train(ways[key], design, scenes, schedule, weights)
            if key != "sync":
                done[key].net = None  # only the synchronized one is exported; frees its memory
        follow = None
        if "batch" in done and "sync" in done:
            reverse = losses_in_reverse(
                ways["batch"], design, scenes, schedule, weights, EARLY_STEPS + LAG
            )
            follow = check_follows(done["batch"].losses, done["sync"].losses, reverse)
    return [done[key] for key in options.ways if key in done], follow


def report_fused(net: FusedNetwork) -> str:
    """Say what was fused, by what the norms have taken in."""
    counts = Counter(what for _, what in net.fused)
    kinds = ", ".join(f"{number} with {what}" for what, number in counts.most_common())
    return f"fused: {len(net.fused)} of {len(net.fused) + len(net.left)} norms ({kinds or 'none'})"


def report_checks(follow: FollowCheck | None, export: ExportCheck | None) -> bool:
    """Print the results of the checks; return whether all that were made passed."""
    passed = True
    if follow is None:
        print("follows one device: not checked (takes the ways batch and sync)")
    else:
        steps = len(follow.differences)
        largest = max(follow.differences)
        print(
            f"follows one device: step 1 differs by {follow.differences[0]:.1e}, the first {steps} "
            f"by at most {largest:.1e}; rounding alone (batches reversed) makes "
            f"{follow.rounding[0]:.1e} and {max(follow.rounding):.1e} (all relative)"
        )
        if follow.failing_step is not None:
            passed = False
            step = follow.failing_step
            print(
                f"FAILED: with SyncBatchNorm the loss of step {step} differs from one device's by "
                f"{follow.differences[step - 1]:.1e}; {FACTOR:g} times what rounding does allows "
                f"{follow.allowed[step - 1]:.1e}",
                file=sys.stderr,
            )
    if export is None:
        print("export: not checked (takes the way sync)")
    else:
        print(
            f"export: loaded on one context it predicts the same but for {export.absolute:.1e} "
            f"({export.relative:.1e} relative)"
        )
        if not export.passed:
            passed = False
            print(f"FAILED: more than {EXPORT_TOLERANCE:g} relative", file=sys.stderr)
    return passed


if __name__ == "__main__":
    sys.exit(main())
