"""What the library wants to reach on GPUs, and whether it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.report import Row

PHASE_OF_COPY = 0.85
LAST_OF_FIRST = 1.05
ROUND_OF_EIGHT = 1.3


class Goal(NamedTuple):
    """One goal on one case.

    Attributes
    ----------
    name, case : str
        What is wanted, and where.
    value : float or None
        What was measured; None where it was not.
    limit : float
        What is wanted: at most, or at least where `at_least`.
    """

    name: str
    case: str
    value: float | None
    limit: float
    at_least: bool = False

    @property
    def reached(self) -> bool | None:
        """None where nothing was measured."""
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value < self.limit

    def line(self) -> list[str]:
        """Return cells of a table."""
        sign = ">=" if self.at_least else "<"
        verdict = {None: "not measured", True: "reached", False: "not reached"}[self.reached]
        value = "-" if self.value is None else f"{self.value:.2f}"
        return [self.name, self.case, value, f"{sign} {self.limit:g}", verdict]


HEAD = ["goal", "case", "measured", "wanted", "result"]


def check_goals(rows: Sequence[Row]) -> list[Goal]:
    """Return all goals for what `measuring.measure` returned for each case."""
    large = [row for row in rows if row["case"]["size"] == "large"]
    goals = [
        Goal(
            f"{phase}, of a copy's speed",
            row["title"],
            result["of_copy"],
            PHASE_OF_COPY,
            True,
        )
        for row in large
        for phase, result in row["phases"].items()
    ]
    for row in large:
        value = _step(row)["ratios"].get("ours / primitives")
        goals.append(Goal("step, ours / torch's primitives", row["title"], value, 1))
    goals.append(_most(large))
    goals.extend(
        _pairs(large, "channel_last", True, False, "step, channel-last / first", LAST_OF_FIRST)
    )
    small = [row for row in rows if row["case"]["size"] == "small"]
    goals.extend(_pairs(small, "contexts", 8, 1, "step, 8 contexts / 1", ROUND_OF_EIGHT))
    return goals


def _step(row: Row) -> Row:
    (step,) = (part for part in row["parts"] if part["part"] == "step")
    return step


def _most(large: Sequence[Row]) -> Goal:
    ratios = [_step(row)["ratios"].get("ours / cuDNN") for row in large]
    found = [value for value in ratios if value is not None]
    share = sum(value < 1 for value in found) / len(found) if found else None
    name = "step, share of cases faster than cuDNN"
    return Goal(name, f"{len(found)} of 16 MiB and more", share, 0.5, True)


def _pairs(
    rows: Sequence[Row], key: str, one: Any, other: Any, name: str, limit: float
) -> Iterator[Goal]:
    """Compare cases that differ in one key alone."""
    for row in rows:
        if row["case"][key] != one:
            continue
        for partner in rows:
            if partner["case"] == {**row["case"], key: other}:
                times = [_step(r)["results"]["ours"]["median_ms"] for r in (row, partner)]
                yield Goal(name, row["title"], times[0] / times[1], limit)
