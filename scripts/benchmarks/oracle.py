"""Batch normalization by its definition."""

from __future__ import annotations

from typing import Any

AXES = (0, 2)  # of the data, whose axis 1 is that of the channels


def exact(x: Any, dy: Any, gamma: Any, beta: Any, eps: float) -> dict[str, Any]:
    """Results of a training step on float64 arrays of shape (outer, channels, inner).

    S. Ioffe and C. Szegedy, "Batch Normalization", 2015, algorithm 1 and the gradients that follow.
    """
    mean = x.mean(AXES)
    centered = x - mean[None, :, None]
    var = (centered * centered).mean(AXES)
    deviation = ((var + eps) ** 0.5)[None, :, None]
    normalized = centered / deviation
    product = dy * normalized
    mean_dy, mean_product = dy.mean(AXES)[None, :, None], product.mean(AXES)[None, :, None]
    return {
        "y": normalized * gamma[None, :, None] + beta[None, :, None],
        "dx": gamma[None, :, None] / deviation * (dy - mean_dy - normalized * mean_product),
        "dgamma": product.sum(AXES),
        "dbeta": dy.sum(AXES),
        "mean": mean,
        "var": var,
    }


def relative_error(actual: Any, expected: Any) -> float:
    """Greatest difference, relative to the greatest number expected; NaN stays."""
    return float(abs(actual - expected).max()) / max(float(abs(expected).max()), 1e-30)
