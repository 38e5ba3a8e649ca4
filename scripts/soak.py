"""Train a small network for thousands of steps and watch that nothing grows.

Each mode of hybridize is run for the given number of steps on several CPU contexts, with a fresh
block that lives for a few steps only beside it, and every few steps the process is measured:
resident memory, threads, open files, and keys under which operators meet. The first fifth of the
samples is warm-up. What leaks grows in every fifth after it; what settles in steps, as the heap and
MXNet's pool of threads for custom operators do, does not. So the smallest growth of the median from
one fifth to the next counts. The run writes DIR/soak.json and DIR/soak.png, and its exit status is
1 where something has grown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import gluon_syncbn
import mxnet as mx
from gluon_syncbn import cpu_contexts, runtime
from mxnet import autograd, gluon
from mxnet.gluon import nn

MODES: dict[str, dict | None] = {
    "imperative": None,
    "dynamic": {},
    "static_alloc": {"static_alloc": True},
}
SAMPLES = 200

# Largest growth from one fifth to the next: 1 MiB is 0.5 kB for each step of a full run.
TOLERANCE = {"rss_mib": 1.0, "threads": 0, "files": 0, "keys": 0}


@dataclass
class Sample:
    step: int
    rss_mib: float
    threads: int
    files: int
    keys: int


def measure(step: int) -> Sample:
    """Take stock of what this process holds."""
    mx.nd.waitall()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return Sample(
        step=step,
        rss_mib=int(status["VmRSS"].split()[0]) / 1024,
        threads=int(status["Threads"]),
        files=len(list(Path("/proc/self/fd").iterdir())),
        keys=runtime.num_keys(),
    )


class Training:
    """A network of two synchronized layers, one of them used twice."""

    def __init__(self, contexts: list[mx.Context], mode: dict | None) -> None:
        self.contexts = contexts
        shared = gluon_syncbn.SyncBatchNorm()
        self.net = nn.HybridSequential()
        self.net.add(
            nn.Conv2D(8, 3, padding=1),
            gluon_syncbn.SyncBatchNorm(),
            nn.Activation("relu"),
            nn.Conv2D(8, 3, padding=1),
            shared,
            nn.Activation("relu"),
            nn.Conv2D(8, 1),
            shared,
            nn.GlobalAvgPool2D(),
            nn.Dense(4),
        )
        self.net.initialize(ctx=contexts)
        if mode is not None:
            self.net.hybridize(**mode)
        self.loss = gluon.loss.SoftmaxCrossEntropyLoss()
        self.trainer = gluon.Trainer(self.net.collect_params(), "sgd", {"learning_rate": 0.01})
        self.data = [mx.nd.random.normal(shape=(2, 3, 8, 8), ctx=c) for c in contexts]
        self.labels = [mx.nd.array([0, 1], ctx=c) for c in contexts]

    def step(self) -> None:
        with autograd.record():
            losses = [self.loss(self.net(x), y) for x, y in zip(self.data, self.labels)]
        autograd.backward(losses)
        self.trainer.step(2 * len(self.contexts))


def short_life(contexts: list[mx.Context]) -> None:
    """Use a block once and forget it; its key has to be forgotten too."""
    layer = gluon_syncbn.SyncBatchNorm(in_channels=2)
    layer.initialize(ctx=contexts)
    with autograd.record():
        outs = [layer(mx.nd.ones((2, 2), ctx=c)) for c in contexts]
    autograd.backward(outs)


def run(mode: str, steps: int, number: int, progress: bool = True) -> list[Sample]:
    """Train for `steps` and measure SAMPLES times."""
    contexts = [mx.cpu(i) for i in range(number)]
    training = Training(contexts, MODES[mode])
    every = max(1, steps // SAMPLES)
    samples = []
    steps_done = range(1, steps + 1)
    if progress:
        from progress import progress as shown

        steps_done = shown(steps_done, desc=mode)
    for step in steps_done:
        training.step()
        if step % every == 0:
            short_life(contexts)
            samples.append(measure(step))
    return samples


def growth(samples: list[Sample]) -> dict[str, float]:
    """Smallest growth of everything from one fifth of the samples to the next, after warm-up."""
    fifth = len(samples) // 5
    result = {}
    for name in TOLERANCE:
        values = [getattr(sample, name) for sample in samples]
        medians = [statistics.median(values[i * fifth : (i + 1) * fifth]) for i in range(1, 5)]
        result[name] = min(after - before for before, after in zip(medians, medians[1:]))
    return result


def draw(results: dict[str, list[Sample]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    titles = {
        "rss_mib": "resident memory [MiB]",
        "threads": "threads",
        "files": "open files",
        "keys": "keys",
    }
    figure, axes = plt.subplots(2, 2, figsize=(10, 6), sharex=True, constrained_layout=True)
    for axis, (name, title) in zip(axes.flat, titles.items()):
        for mode, samples in results.items():
            axis.plot([s.step for s in samples], [getattr(s, name) for s in samples], label=mode)
        axis.set_title(title)
        axis.set_ylim(bottom=0)
    for axis in axes[1]:
        axis.set_xlabel("step")
    axes[0, 0].legend()
    figure.savefig(path, dpi=120)


def main() -> int:
    """Run the job; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10000, help="for each mode (default 10000)")
    parser.add_argument("--contexts", type=int, default=4, help="CPU contexts (default 4)")
    parser.add_argument(
        "--modes", nargs="+", choices=MODES, default=["dynamic", "static_alloc"], metavar="MODE"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/soak"), metavar="DIR")
    options = parser.parse_args()
    if options.steps < SAMPLES:
        parser.error(f"--steps should be at least {SAMPLES}")

    cpu_contexts.allow_several()
    results = {}
    begin = time.perf_counter()
    for mode in options.modes:
        results[mode] = run(mode, options.steps, options.contexts)
    grown = {mode: growth(samples) for mode, samples in results.items()}
    options.out.mkdir(parents=True, exist_ok=True)
    report = {
        "steps": options.steps,
        "contexts": options.contexts,
        "seconds": time.perf_counter() - begin,
        "growth": grown,
        "tolerance": TOLERANCE,
        "samples": {mode: [asdict(s) for s in samples] for mode, samples in results.items()},
    }
    (options.out / "soak.json").write_text(json.dumps(report, indent=1))
    draw(results, options.out / "soak.png")

    failed = False
    for mode, values in grown.items():
        last = results[mode][-1]
        print(
            f"{mode}: at the end {last.rss_mib:.1f} MiB, {last.threads} threads, "
            f"{last.files} files, {last.keys} keys"
        )
        for name, value in values.items():
            verdict = "ok" if value <= TOLERANCE[name] else "GROWN"
            failed = failed or verdict != "ok"
            print(
                f"  {name:<8} grew by {value:+.2f} a fifth (at most {TOLERANCE[name]:g}): {verdict}"
            )
    print(f"wrote {options.out / 'soak.json'} and {options.out / 'soak.png'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
