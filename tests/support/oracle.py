"""Batch normalization of the whole batch in float64 NumPy.

Written from the definition (Ioffe and Szegedy 2015, algorithm 1, and the gradients of section 3),
not from the code under test. The gradient of the input is the chain rule written out term by term.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Expected:
    """The results of one device on the whole batch."""

    out: np.ndarray
    dx: np.ndarray
    dgamma: np.ndarray
    dbeta: np.ndarray
    running_mean: np.ndarray
    running_var: np.ndarray
    largest_scale: float  # the largest |gamma| / std
    dshortcut: np.ndarray
    before_activation: np.ndarray


def batch_norm(
    x: np.ndarray,
    dy: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    running_mean: np.ndarray,
    running_var: np.ndarray,
    *,
    axis: int = 1,
    eps: float = 1e-5,
    momentum: float = 0.9,
    fix_gamma: bool = False,
    batch_statistics: bool = True,
    shortcut: np.ndarray | float = 0.0,
    act_type: str | None = None,
    slope: float = 0.25,
) -> Expected:
    """Compute forward and backward for the gradient `dy` of the output."""
    x, dy, gamma, beta, running_mean, running_var = (
        np.asarray(a, dtype=np.float64) for a in (x, dy, gamma, beta, running_mean, running_var)
    )
    others = tuple(i for i in range(x.ndim) if i != axis % x.ndim)
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    scale = np.ones_like(gamma) if fix_gamma else gamma
    n = x.size // x.shape[axis]

    mean, var = (x.mean(others), x.var(others)) if batch_statistics else (running_mean, running_var)
    centered = x - mean.reshape(shape)
    std = np.sqrt(var + eps).reshape(shape)
    z = scale.reshape(shape) * (centered / std) + beta.reshape(shape) + np.asarray(shortcut)
    out, steepness = activate(z, act_type, slope)
    dy = dy * steepness

    dxhat = dy * scale.reshape(shape)
    dx = dxhat / std
    if batch_statistics:
        dvar = (dxhat * centered * -0.5 / std**3).sum(others, keepdims=True)
        dmean = (-dxhat / std).sum(others, keepdims=True)
        dmean += dvar * (-2.0 * centered).sum(others, keepdims=True) / n
        dx = dx + dvar * 2.0 * centered / n + dmean / n
    dgamma = (dy * centered / std).sum(others)
    update = momentum if batch_statistics else 1.0
    return Expected(
        out=out,
        dx=dx,
        dgamma=np.zeros_like(dgamma) if fix_gamma else dgamma,
        dbeta=dy.sum(others),
        running_mean=running_mean * update + mean * (1 - update),
        running_var=running_var * update + var * (1 - update),
        largest_scale=float(np.abs(scale.reshape(shape) / std).max()),
        dshortcut=dy,
        before_activation=z,
    )


def normalize(x: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """Return the output of a layer with the initial parameters."""
    ones, zeros = np.ones(x.shape[1]), np.zeros(x.shape[1])
    return batch_norm(x, x, ones, zeros, zeros, ones, eps=eps).out


def activate(z: np.ndarray, act_type: str | None, slope: float) -> tuple[np.ndarray, np.ndarray]:
    """Return value and derivative of an activation, by MXNet's names; at 0 the one from below."""
    z = np.asarray(z, dtype=np.float64)
    if act_type is None:
        return z, np.ones_like(z)
    below = np.minimum(z, 0.0)
    value, derivative = {
        "relu": (np.zeros_like(z), np.zeros_like(z)),
        "leaky": (slope * below, np.full_like(z, slope)),
        "elu": (slope * np.expm1(below), slope * np.exp(below)),
    }[act_type]
    return np.where(z > 0, z, value), np.where(z > 0, 1.0, derivative)


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference, relative to the largest expected value or 1e-30."""
    difference = np.abs(np.asarray(actual, dtype=np.float64) - expected).max(initial=0.0)
    return float(difference / max(float(np.abs(expected).max(initial=0.0)), 1e-30))
