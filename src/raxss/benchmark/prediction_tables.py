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
    for dataset in dict.fromkeys(item.result.dataset for item in probed):
        yield dataset, [item for item in probed if item.result.dataset == dataset]


def by_system(probed: Sequence[Probed]) -> Iterator[tuple[str, list[Probed]]]:
    """Likewise, of one dataset."""
    for system in dict.fromkeys(item.result.system for item in probed):
        yield system, [item for item in probed if item.result.system == system]


def about(probed: Sequence[Probed]) -> dict[str, Any]:
    """What a page says of one dataset before any comparison."""
    results = [entry.result for entry in probed]
    seeds = sorted({item.seed for item in results})
    return {
        "seeds": ", ".join(map(str, seeds)),
        "n_seeds": len(seeds),
        "n_groups": len({group for item in results for group in item.groups}),
        "n_series": len({name for item in results for name in item.names}),
        "split": results[0].split.get("description") or "not told",
        "leaky": any(item.split.get("leaky") for item in results),
        "positive": results[0].positive,
    }


def failures(errors: Sequence[Mapping[str, Any]]) -> Markdown:
    """A table of what failed."""
    rows = [
        [row["dataset"], row["system"], row["seed"], item.get("split", "–"), row["error"]]
        for item, row in ((error, failed_row(error)) for error in errors)
    ]
    return table(["dataset", "system", "seed", "split", "error"], rows)


def devices_in(facts: Sequence[Mapping[str, Any]]) -> str:
    """What the fits ran on."""
    return "; ".join(sorted({str(fact["device"]) for fact in facts if "device" in fact}))
