"""Summary of a dataset: series, classes, rates, lengths and groups of a plan.

    CollectionPlan -> PlanSummary -> text or JSON

From headers and tables; no samples are kept. Next: dataset.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from raxss.data.plan import CollectionPlan, sample_range


class Summary(Protocol):
    """What ``raxss datasets summary`` prints."""

    def to_text(self) -> str:
        """For a terminal."""

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""


@dataclass(frozen=True)
class PlanSummary:
    """Numbers of a plan (`summarise_plan`), and the files that are absent."""

    name: str
    numbers: dict[str, Any]
    absent: tuple[str, ...] = ()
    where_to_get: str = ""

    def to_text(self) -> str:
        """For a terminal."""
        numbers = self.numbers
        classes = ", ".join(f"{label} {n}" for label, n in numbers["classes"].items())
        lines = [
            f"{self.name}: {numbers['series']} series of {count_variates(numbers['variates'])}",
            f"classes  {classes}",
            f"rate     {', '.join(f'{rate:g}' for rate in numbers['rates'])} Hz",
            f"length   {numbers['shortest']} to {numbers['longest']} samples, median {numbers['median']:g}",
            f"groups   {numbers['groups']}, by {numbers['group_by']}",
        ]
        if self.absent:
            lines.append(
                f"absent   {len(self.absent)} files, the first is {self.absent[0]}. {self.where_to_get}"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"name": self.name} | self.numbers


def count_variates(numbers: list[int]) -> str:
    """Numbers of variates in words.

    >>> count_variates([1]), count_variates([1, 2])
    ('1 variate', '1, 2 variates')
    """
    return f"{', '.join(map(str, numbers))} {'variate' if numbers == [1] else 'variates'}"


def summarise_plan(plan: CollectionPlan) -> dict[str, Any]:
    """Series, classes, rates, lengths and groups of a plan; opens every recording, reads no samples.

    Examples
    --------
    >>> from raxss.data.datasets.plans import plan_dataset
    >>> summarise_plan(plan_dataset("sample"))["classes"]
    {'AF': 200, 'normal': 200}
    """
    lengths: list[int] = []
    rates: set[float] = set()
    for planned in plan.recordings:
        with planned.open_recording() as recording:
            for series in planned.series:
                start, stop = sample_range(recording, series)
                lengths.append(stop - start)
                rates.add(recording.channels[series.channels[0]].rate)
    classes = Counter(str(series.label) for _, series in plan)
    groups = {series.origin.get(plan.group_by or "") for _, series in plan} - {None}
    return {
        "series": len(plan),
        "classes": dict(sorted(classes.items())),
        "variates": sorted({len(series.channels) for _, series in plan}),
        "rates": sorted(rates),
        "shortest": min(lengths, default=0),
        "median": float(np.median(lengths)) if lengths else 0.0,
        "longest": max(lengths, default=0),
        "group_by": plan.group_by,
        "groups": len(groups),
        "absent": len(plan.absent),
    }
