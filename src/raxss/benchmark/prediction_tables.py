"""How do the answers of many fits become tables that can be compared?

    Probed results -> a row for each answer, with its figures
                   -> by dataset and system, the figures of every question in the same draws of groups

Next: reweighting_report.py and robustness_report.py compare them, each in its own way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from raxss._core.atomic import write_bytes
from raxss.benchmark.analyses.probe import Probed
from raxss.benchmark.pages.markdown import Markdown, table
from raxss.benchmark.pages.report import csv_text, failed_row
from raxss.benchmark.result import CellResult
from raxss.metrics import METRICS, weighted_scores

Frame = pd.DataFrame


def headline(result: CellResult) -> str:
    """The figure that a study of these classes is about.

    AUC of two classes; of more the F1 of some, where a study names them, else accuracy.
    """
    if len(result.classes) == 2:
        return "auc"
    return "f1" if result.f1_classes else "accuracy"


def answers_table(probed: Sequence[Probed]) -> Frame:
    """A row for each answer: dataset, system, seed, fold, the question, its figures, those on validation."""
    rows = []
    for one in probed:
        result = one.result
        facts = {name: getattr(result, name) for name in ("dataset", "system", "seed", "fold")}
        for answer in one.answers:
            figures = weighted_scores(
                result.labels,
                answer.probabilities,
                classes=result.classes,
                positive=result.positive,
                f1_classes=result.f1_classes,
            )
            judged = {f"validation_{name}": value for name, value in answer.validation.items()}
            tested = {name: float(figures[name][0]) for name in METRICS}
            rows.append({**facts, **told(answer.question), **tested, **judged})
    return pd.DataFrame(rows)


def told(question: Mapping[str, Any]) -> dict[str, Any]:
    """A question as tables have it; exclusion as text, since 1 sample and 1.0 windows are not the same.

    >>> told({"space": "signal", "exclusion": 1.0})
    {'space': 'signal', 'exclusion': '1.0'}
    """
    return {name: str(value) if name == "exclusion" else value for name, value in question.items()}


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


def write_all(
    out: Path | str, tables: Mapping[str, Frame], files: Mapping[str, bytes], page: str
) -> list[Path]:
    """Write tables as CSV, other files, and the page last; each appears whole."""
    contents = {f"{name}.csv": csv_text(one).encode() for name, one in tables.items() if len(one.columns)}
    contents |= {**files, "README.md": page.encode()}
    for name, content in contents.items():
        write_bytes(Path(out) / name, content)
    return [Path(out) / name for name in contents]
