"""One training step of the operator on several contexts, against the oracle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mxnet as mx
import numpy as np

from tests.conftest import DEVICE
from tests.support.oracle import Expected, batch_norm, relative_error

_keys = iter(range(10**9))


@dataclass
class Batch:
    """The inputs of one step; `shards` has the number of samples of each device."""

    x: np.ndarray
    dy: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    running_mean: np.ndarray
    running_var: np.ndarray
    shards: tuple[int, ...]
    axis: int = 1
    shortcut: np.ndarray | None = None

    def split(self, array: np.ndarray) -> list[np.ndarray]:
        """Cut along the axis of the batch: the first axis, or the second if channels come first."""
        return np.split(array, np.cumsum(self.shards)[:-1], axis=self.batch_axis)

    @property
    def batch_axis(self) -> int:
        return 1 if self.axis % self.x.ndim == 0 else 0


def make_batch(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    shards: tuple[int, ...],
    axis: int = 1,
    dtype: str = "float32",
    mean: float = 0.0,
) -> Batch:
    """Draw data of standard deviation 1 around `mean`; shape[batch axis] is the sum of shards."""
    channels = shape[axis]
    parameter = "float32" if dtype == "float16" else dtype

    def normal(*size: int) -> np.ndarray:
        return rng.standard_normal(size)

    return Batch(
        x=(normal(*shape) + mean).astype(dtype),
        dy=normal(*shape).astype(dtype),
        gamma=(1 + 0.5 * normal(channels)).astype(parameter),
        beta=normal(channels).astype(parameter),
        running_mean=normal(channels).astype(parameter),
        running_var=(0.5 + rng.random(channels)).astype(parameter),
        shards=shards,
        axis=axis,
    )


@dataclass
class Result:
    """The results of the devices. Lists have one entry for each device.

    Gradients are None where grad_req is null.
    """

    out: np.ndarray
    dx: np.ndarray | None
    dgamma: list[np.ndarray] | None
    dbeta: list[np.ndarray] | None
    running_mean: list[np.ndarray]
    running_var: list[np.ndarray]
    dshortcut: np.ndarray | None = None


@dataclass
class Options:
    """The attributes of the operator, and how to call it."""

    eps: float = 1e-5
    momentum: float = 0.9
    fix_gamma: bool = False
    use_global_stats: bool = False
    grad_req: dict[str, str] = field(default_factory=dict)
    train_mode: bool = True
    before: float = 0.0  # the value of gradients before backward
    device: str = DEVICE  # the type of the contexts
    act_type: str | None = None
    slope: float = 0.25
    inplace: bool = False

    def before_of(self, name: str) -> float:
        """The part of `before` that stays in the gradient of `name`."""
        return self.before if self.grad_req.get(name) == "add" else 0.0

    def attributes(self) -> dict[str, Any]:
        return {
            "eps": self.eps,
            "momentum": self.momentum,
            "fix_gamma": self.fix_gamma,
            "use_global_stats": self.use_global_stats,
            **({} if self.act_type is None else {"act_type": self.act_type, "slope": self.slope}),
            **({"inplace": True} if self.inplace else {}),
        }


def run(batch: Batch, options: Options) -> Result:
    """Run one forward and backward pass on ``len(batch.shards)`` contexts."""
    ctx = [mx.Context(options.device, i) for i in range(len(batch.shards))]
    key = f"test{next(_keys)}"

    def everywhere(array: np.ndarray) -> list[mx.nd.NDArray]:
        return [mx.nd.array(array, ctx=c, dtype=array.dtype) for c in ctx]

    def shards(array: np.ndarray) -> list[mx.nd.NDArray]:
        return [mx.nd.array(s, ctx=c, dtype=s.dtype) for s, c in zip(batch.split(array), ctx)]

    xs, dys = shards(batch.x), shards(batch.dy)
    shortcuts = [] if batch.shortcut is None else [shards(batch.shortcut)]
    gammas, betas = everywhere(batch.gamma), everywhere(batch.beta)
    means, variances = everywhere(batch.running_mean), everywhere(batch.running_var)
    marked = [("data", xs), ("gamma", gammas), ("beta", betas)]
    marked += [("shortcut", arrays) for arrays in shortcuts]
    for name, arrays in marked:
        for array in arrays:
            array.attach_grad(grad_req=options.grad_req.get(name, "write"))
            if array.grad is not None:
                array.grad[:] = options.before
    with mx.autograd.record(train_mode=options.train_mode):
        outs = [
            mx.nd.Custom(
                *arrays,
                op_type="SyncBatchNorm",
                key=key,
                num_devices=len(ctx),
                axis=batch.axis,
                **options.attributes(),
                **({"shortcut": True} if shortcuts else {}),
            )
            for arrays in zip(xs, gammas, betas, *shortcuts, means, variances)
        ]
    mx.autograd.backward(outs, dys, train_mode=options.train_mode)

    def gather(arrays: list[mx.nd.NDArray]) -> np.ndarray:
        return np.concatenate([a.asnumpy() for a in arrays], axis=batch.batch_axis)

    def gradients(arrays: list[mx.nd.NDArray]) -> list[np.ndarray] | None:
        return None if arrays[0].grad is None else [a.grad.asnumpy() for a in arrays]

    def joined(arrays: list[mx.nd.NDArray]) -> np.ndarray | None:
        parts = gradients(arrays)
        return None if parts is None else np.concatenate(parts, axis=batch.batch_axis)

    return Result(
        out=gather(outs),
        dx=joined(xs),
        dgamma=gradients(gammas),
        dbeta=gradients(betas),
        running_mean=[a.asnumpy() for a in means],
        running_var=[a.asnumpy() for a in variances],
        dshortcut=joined(shortcuts[0]) if shortcuts else None,
    )


def add_shortcut(rng: np.random.Generator, batch: Batch) -> None:
    """Give a batch random shortcuts."""
    batch.shortcut = rng.standard_normal(batch.x.shape).astype(batch.x.dtype)


def avoid_kinks(batch: Batch, options: Options) -> None:
    """Set gradients to 0 where rounding decides on which side of its kink an activation is."""
    z = expect(batch, options).before_activation
    batch.dy[np.abs(z) < 1e-2] = 0


def expect(batch: Batch, options: Options) -> Expected:
    """Return the expected results, from the oracle."""
    return batch_norm(
        batch.x,
        batch.dy,
        batch.gamma,
        batch.beta,
        batch.running_mean,
        batch.running_var,
        axis=batch.axis,
        eps=options.eps,
        momentum=options.momentum,
        fix_gamma=options.fix_gamma,
        batch_statistics=options.train_mode and not options.use_global_stats,
        shortcut=0.0 if batch.shortcut is None else batch.shortcut,
        act_type=options.act_type,
        slope=options.slope,
    )


def check(batch: Batch, options: Options, tolerance: float, out_tolerance: float = 0.0) -> None:
    """Run and compare everything; `out_tolerance` is for data whose dtype is coarser."""
    out_tolerance = out_tolerance or tolerance
    result, expected = run(batch, options), expect(batch, options)

    largest_dz = np.abs(batch.dy).max() * (
        max(1.0, options.slope) if options.act_type in ("leaky", "elu") else 1.0
    )

    assert result.out.dtype == batch.x.dtype
    assert relative_error(result.out, expected.out) <= out_tolerance
    if result.dx is not None:
        before = options.before_of("data")
        # dx is a difference of terms of this size, which may cancel.
        size = largest_dz * expected.largest_scale + abs(before)
        assert np.abs(result.dx - (expected.dx + before)).max() <= out_tolerance * size
    if result.dshortcut is not None:
        before = options.before_of("shortcut")
        error = np.abs(result.dshortcut - (expected.dshortcut + before)).max()
        assert error <= out_tolerance * (largest_dz + abs(before))
    for name, parts, whole in (
        ("gamma", result.dgamma, expected.dgamma),
        ("beta", result.dbeta, expected.dbeta),
    ):
        if parts is not None:
            total = np.sum(parts, axis=0, dtype=np.float64)
            expected_total = whole + len(parts) * options.before_of(name)
            # Sums may cancel, but the rounding errors of their terms do not.
            size = max(np.abs(parts).max(), np.abs(whole).max(), largest_dz)
            assert np.abs(total - expected_total).max() <= tolerance * size
    for mine, theirs in (
        (result.running_mean, expected.running_mean),
        (result.running_var, expected.running_var),
    ):
        assert relative_error(mine[0], theirs) <= tolerance
        for other in mine[1:]:
            assert other.tobytes() == mine[0].tobytes()
