"""The activations that a norm can compute together with its output, each in one row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Activation:
    """The names of an activation in the operators, its default slope, and its inverse."""

    act_type: str  # attribute of this package's operator and of MXNet's own
    op: str  # MXNet's own operator, with the attributes `act_type` and perhaps `slope`
    alpha: float | None = None  # default of the layer for `slope`; None without a slope
    invertible: bool = True  # with a slope above 0, if it has one

    def is_invertible(self, slope: float | None) -> bool:
        """Whether `inplace` can recover the argument from the output; None is the default slope."""
        return self.invertible and (self.alpha is None or slope != 0)


# The keys are values of the argument `activation`. src/norm/activation.h has the formulas.
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
