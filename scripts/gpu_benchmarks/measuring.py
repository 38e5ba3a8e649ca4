"""Times the methods of a case in turns, after their results were compared with float64."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Sequence

from benchmarks.exact import exact, relative_error
from benchmarks.report import Row, ratio, summary
from gpu_benchmarks.bridge import EPS, Bridge
from gpu_benchmarks.cases import (
    BACKWARD,
    FORWARD,
    PASSES,
    Case,
    bandwidth,
    floor_seconds,
    slots,
)
from gpu_benchmarks.device import Device, Slot
from gpu_benchmarks.methods import Copy, Method, Ours

# Of results relative to the greatest true value. Peers in float32 lose digits in long sums.
TOLERANCE = {"float32": 1e-4, "float16": 4e-3}
PARTS = {"forward": FORWARD, "backward": BACKWARD, "step": FORWARD + BACKWARD}

Factories = Mapping[str, Callable[[], Method]]
Peers = Callable[[Case, Sequence[Slot]], Factories]
Times = Dict[str, Dict[str, "list[float]"]]


class WrongResultError(RuntimeError):
    """A method does not compute what it should."""


def arrays_bytes(case: Case, cache_bytes: int, methods: int) -> int:
    """Memory for a case: arrays of each slot, what methods keep, and float64 to compare with."""
    kept = (4 + 2 * methods) * slots(case, cache_bytes) * case.bytes
    return kept + 12 * case.batch * case.channels * case.side**2 * 8


def check_results(case: Case, name: str, results: Mapping[str, Any], exact_results: Row) -> float:
    """Return the greatest relative error of a method.

    Raises
    ------
    WrongResultError
        If it is beyond `TOLERANCE`, or not a number.
    """
    errors = {key: relative_error(results[key], exact_results[key]) for key in results}
    for key, error in errors.items():
        if not error <= TOLERANCE[case.dtype]:
            raise WrongResultError(
                f"{name}, {case.title}: relative error of {key} is {error:.2g}, "
                f"expected at most {TOLERANCE[case.dtype]:g}"
            )
    return max(errors.values(), default=0.0)


def compare(case: Case, device: Device, slot: Slot, methods: Mapping[str, Method]) -> Row:
    """Return the error of each method on a slot, the first of all."""
    shape = case.layout()
    x, dy = (device.double(array).reshape(shape) for array in (slot.x, slot.dy))
    expected = exact(x, dy, device.double(slot.gamma), device.double(slot.beta), EPS)
    errors = {}
    for name, method in methods.items():
        if "forward" in method.parts:
            method.parts["forward"](0)
            method.parts["backward"](0)
        device.finish()
        found = method.results(0)
        if found:
            doubles = {key: device.double(array) for key, array in found.items()}
            for key in ("y", "dx"):
                doubles[key] = doubles[key].reshape(shape)
            errors[name] = check_results(case, name, doubles, expected)
    return errors


def time_in_turns(device: Device, methods: Mapping[str, Method], number: int, turns: int) -> Times:
    """Seconds a step of each part of each method; the first turn is not counted."""
    times: Times = {name: {part: [] for part in methods[name].parts} for name in methods}
    names = list(methods)
    for turn in range(turns + 1):
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]
            method = methods[name]
            for part, step in method.parts.items():

                def work(step: Callable[[int], None] = step) -> None:
                    for slot in range(number):
                        step(slot)

                seconds = device.seconds(work, method.streams) / number
                if turn > 0:
                    times[name][part].append(seconds)
    return times


def measure(case: Case, device: Device, bridge: Bridge, peers: Peers, turns: int) -> Row:
    """Measure a case.

    Returns
    -------
    dict
        ``case`` and ``title``; ``errors`` of each method; ``parts``, which has rows for the table
        of times for forward, backward and both; ``phases``, which has for each of ours its times,
        and its traffic relative to that of a copy in the same time.

    Raises
    ------
    WrongResultError
        If a method's results are wrong. Nothing is timed then.
    """
    number = slots(case, bridge.cache_bytes())
    arrays = [Slot(case, device, seed) for seed in range(number)]
    methods: dict[str, Method] = {}
    try:
        methods["ours"] = Ours(case, device, arrays, bridge)
        methods["copy"] = Copy(device, arrays)
        for name, make in peers(case, arrays).items():
            methods[name] = make()
        errors = compare(case, device, arrays[0], methods)
        times = time_in_turns(device, methods, number, turns)
    finally:
        for method in methods.values():
            method.close()
    return {
        "title": case.title,
        "case": {**vars(case), "size": case.size},
        "slots": number,
        "errors": errors,
        **evaluate(case, times),
    }


def evaluate(case: Case, times: Times) -> Row:
    """Return `parts` and `phases` of a row, and the bandwidth of a copy in bytes a second."""
    copy = summary(times["copy"]["copy"])
    copy_seconds = copy["median_ms"] / 1e3
    parts = []
    for part, phases in PARTS.items():
        results = {
            name: summary(_part(each, part)) for name, each in times.items() if name != "copy"
        }
        row: Row = {"title": f"{case.title}, {part}", "part": part, "results": results}
        row["floor_ms"] = floor_seconds(case, phases, copy_seconds) * 1e3
        ratios = {
            "ours / floor": results["ours"]["median_ms"] / row["floor_ms"],
            "ours / primitives": ratio(row, "ours", ["torch_primitives"]),
            "ours / cuDNN": ratio(row, "ours", ["torch_cudnn"]),
        }
        row["ratios"] = {name: value for name, value in ratios.items() if value is not None}
        parts.append(row)
    phases_of_ours = {}
    for phase in (*FORWARD, *BACKWARD):
        result = summary(times["ours"][phase])
        speed = PASSES[phase] * case.bytes / (result["median_ms"] / 1e3)
        result["of_copy"] = speed / bandwidth(case, copy_seconds)
        phases_of_ours[phase] = result
    return {
        "parts": parts,
        "phases": phases_of_ours,
        "copy": copy,
        "copy_bytes_per_second": bandwidth(case, copy_seconds),
    }


def _part(times: Mapping[str, list[float]], part: str) -> list[float]:
    if part != "step":
        return times[part]
    return [sum(pair) for pair in zip(times["forward"], times["backward"])]
