"""How do the answers of many fits become tables that can be compared?

    Probed results -> a row for each answer, with its figures
                   -> by dataset and system, the figures of every question in the same draws of groups

Next: pages/tidy.py makes one table of them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from raxss.benchmark.analyses.probe import Probed
from raxss.benchmark.pages.markdown import Markdown, table
from raxss.benchmark.pages.report import failed_row

Frame = pd.DataFrame


def by_dataset(probed: Sequence[Probed]) -> Iterator[tuple[str, list[Probed]]]:
    """In the order in which they are named first."""
    for dataset in dict.fromkeys(one.result.dataset for one in probed):
        yield dataset, [one for one in probed if one.result.dataset == dataset]


def by_system(probed: Sequence[Probed]) -> Iterator[tuple[str, list[Probed]]]:
    """Likewise, of one dataset."""
    for system in dict.fromkeys(one.result.system for one in probed):
        yield system, [one for one in probed if one.result.system == system]


def about(probed: Sequence[Probed]) -> dict[str, Any]:
    """What a page says of one dataset before any comparison."""
    results = [one.result for one in probed]
    seeds = sorted({one.seed for one in results})
    return {
        "seeds": ", ".join(map(str, seeds)),
        "n_seeds": len(seeds),
        "n_groups": len({group for one in results for group in one.groups}),
        "n_series": len({name for one in results for name in one.names}),
        "split": results[0].split.get("description") or "not told",
        "leaky": any(one.split.get("leaky") for one in results),
        "positive": results[0].positive,
    }


def failures(errors: Sequence[Mapping[str, Any]]) -> Markdown:
    """A table of what failed."""
    rows = [
        [row["dataset"], row["system"], row["seed"], one.get("split", "–"), row["error"]]
        for one, row in ((one, failed_row(one)) for one in errors)
    ]
    return table(["dataset", "system", "seed", "split", "error"], rows)


def devices_in(facts: Sequence[Mapping[str, Any]]) -> str:
    """What the fits ran on."""
    return "; ".join(sorted({str(one["device"]) for one in facts if "device" in one}))
