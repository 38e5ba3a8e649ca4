"""Single steps of a layer on devices where something goes wrong."""

from __future__ import annotations

from tests.gpu.steps import SHAPE, arrays, errors, new_layer, outputs, require_right

from . import fake


def require_that_it_works(devices: list[int]) -> None:
    """Also after a fault."""
    xs = arrays(devices)
    require_right(xs, outputs(new_layer(xs), xs))


def struck_by(faults: str, devices: list[int], channels: int = SHAPE[1]) -> tuple[int, list[str]]:
    """How often faults struck a forward pass, and how each device ended."""
    xs = arrays(devices, channels)
    layer = new_layer(xs)
    fake.inject(faults)
    outs = outputs(layer, xs)
    found = errors(outs)
    struck = fake.clear_faults()
    if not any(found):
        require_right(xs, outs)
    return struck, found


def count_wrong(cases: int) -> int:
    """Of so many calls of a layer, how many do not give what the oracle gives."""
    wrong = 0
    for seed in range(cases):
        xs = arrays([0, 1, 2, 3], seed=seed)
        try:
            require_right(xs, outputs(new_layer(xs), xs))
        except AssertionError:
            wrong += 1
    return wrong
