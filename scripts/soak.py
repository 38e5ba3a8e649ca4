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
import sys
import time
from pathlib import Path

import gluon_syncbn
import mxnet as mx
import numpy as np
import pandas as pd
from gluon_syncbn import _native
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
TITLES = ("resident memory [MiB]", "threads", "open files", "keys")


def measure(step: int) -> dict[str, float]:
    """Take stock of what this process holds."""
    mx.nd.waitall()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "step": step,
        "rss_mib": int(status["VmRSS"].split()[0]) / 1024,
        "threads": int(status["Threads"]),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "keys": _native.num_keys(),
    }


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


def run(mode: str, steps: int, number: int, progress: bool = True) -> pd.DataFrame:
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
    return pd.DataFrame(samples)


def growth(samples: pd.DataFrame) -> dict[str, float]:
    """Smallest growth of everything from one fifth of the samples to the next, after warm-up."""
    fifths = samples[list(TOLERANCE)].groupby(np.arange(len(samples)) * 5 // len(samples))
    return fifths.median()[1:].diff().min().to_dict()


def draw(results: dict[str, pd.DataFrame], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    for axis, name, title in zip(figure.subplots(2, 2).flat, TOLERANCE, TITLES):
        for mode, samples in results.items():
            axis.plot(samples["step"], samples[name], label=mode)
        axis.set(title=title, xlabel="step", ylim=(0, None))
    figure.axes[0].legend()
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
        "samples": {mode: samples.to_dict("records") for mode, samples in results.items()},
    }
    (options.out / "soak.json").write_text(json.dumps(report, indent=1))
    draw(results, options.out / "soak.png")

    failed = False
    for mode, values in grown.items():
        last = results[mode].iloc[-1]
        print(
            f"{mode}: at the end {last.rss_mib:.1f} MiB, {last.threads:.0f} threads, "
            f"{last.files:.0f} files, {last['keys']:.0f} keys"
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
