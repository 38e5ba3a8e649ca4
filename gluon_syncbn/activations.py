"""The activations that a norm can compute with its output, each in one row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Activation:
    """How the operators name an activation; whether it has a slope, and an inverse."""

    act_type: str  # attribute of this package's operator and of MXNet's own
    op: str  # MXNet's own operator, with the attributes `act_type` and perhaps `slope`
    alpha: float | None = None  # default of the layer for `slope`; None without a slope
    invertible: bool = True  # if its slope is above 0

    def is_invertible(self, slope: float) -> bool:
        """Whether the argument is recoverable from the output, as `inplace` needs."""
        return self.invertible and (self.alpha is None or slope > 0)


# By the names that the layer takes. src/norm/activation.h has their formulas.
ACTIVATIONS = {
    "relu": Activation("relu", "Activation", invertible=False),
    "leaky_relu": Activation("leaky", "LeakyReLU", alpha=0.01),
    "elu": Activation("elu", "LeakyReLU", alpha=1.0),
}
BY_NODE = {(each.op, each.act_type): each for each in ACTIVATIONS.values()}
WITH_ALPHA = [name for name, each in ACTIVATIONS.items() if each.alpha is not None]
BY_TYPE = {each.act_type: each for each in ACTIVATIONS.values()}
INVERTIBLE = "None, or {} with an alpha above 0".format(
    " or ".join(repr(name) for name in WITH_ALPHA if ACTIVATIONS[name].invertible)
)

DEFAULT_SLOPE = "0.25"  # of this package's operator and of LeakyReLU
DEFAULT_EPS = "1e-3"  # of this package's operator and of MXNet's BatchNorm
