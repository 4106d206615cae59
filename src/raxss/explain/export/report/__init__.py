"""Report of one recording, a page that opens offline: contents.py, page.py (the file), viewer/ (its script)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from raxss.explain.evidence import Evidence
from raxss.explain.export.report.contents import report_contents
from raxss.explain.export.report.page import Report
from raxss.explain.export.report.signals import FULL_BYTES

__all__ = ["Report", "report_of"]


def report_of(
    evidence: Evidence | Iterable[Evidence],
    *,
    name: str | None = None,
    model: Mapping[str, Any] | None = None,
    positive: Any = None,
    full_bytes: int = FULL_BYTES,
) -> Report:
    """Make the report of one series, or of the series of one recording; parameters as in `report_contents`.

    Examples
    --------
    >>> from raxss import RAxSSClassifier
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic(8)
    >>> model = RAxSSClassifier("dlinear", window_length=128, stride=32, max_epochs=1, random_state=0).fit(series)
    >>> report_of(model.explain(series[0]))
    Report('motif-000', 1 channel)
    """
    each = [evidence] if isinstance(evidence, Evidence) else evidence
    return Report(report_contents(each, name=name, model=model, positive=positive, full_bytes=full_bytes))
