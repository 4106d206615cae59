"""Writer of output folders: one folder per recording, with its report and the evidence of its series.

    SeriesEvidence, one channel after the other -> OUT/<recording>/report.html
                                                   OUT/<recording>/<channel>/evidence.json, windows.parquet, ...

Evidence is read once, whatever is written of it, and released. A recording of one series has one folder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from raxss._core.atomic import whole_folder
from raxss.data.series import Series
from raxss.errors import DataError, display_name
from raxss.explain.evidence import safe_name
from raxss.explain.export.report import report_of
from raxss.explain.findings import WhenDone, watched
from raxss.explain.series_evidence import FORMATS, SeriesEvidence


def write_recordings(
    evidence: Iterable[SeriesEvidence],
    recordings: Iterable[tuple[str, Sequence[Series]]],
    out: Path | str,
    *,
    model: Mapping[str, Any],
    formats: Collection[str] = ("report", *FORMATS),
    positive: Any = None,
    top: int | None = 50,
    when_done: WhenDone | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a folder with one folder per recording in it; it appears whole or not at all.

    ``evidence`` is of the series of ``recordings``, in their order. Both are read recording by recording, so that
    not all need be in memory.
    """
    tables = [item for item in FORMATS if item in formats]
    passing = iter(evidence)
    with whole_folder(out, overwrite=overwrite) as folder:
        for name, some in recordings:
            place = folder / safe_name(some[0].name if len(some) == 1 else name)
            if place.exists():
                raise DataError(
                    f"two recordings are called {display_name(name)}, and each needs a folder of its own in "
                    f"{display_name(Path(out))}. Explain them one by one, or rename one."
                )
            own = watched(islice(passing, len(some)), when_done, class_=positive, model=model)
            each = _saved(own, place if len(some) > 1 else folder, top, tables)
            if "report" in formats:
                report_of(each, name=name, model=model, positive=positive).save(place / "report.html")
            else:
                deque(each, maxlen=0)
    return Path(out)


def write_report(
    evidence: Iterable[SeriesEvidence],
    out: Path,
    *,
    name: str,
    model: Mapping[str, Any],
    positive: Any = None,
    when_done: WhenDone | None = None,
    overwrite: bool = False,
) -> None:
    """Write the report of one recording alone."""
    passing = watched(evidence, when_done, class_=positive, model=model)
    report_of(passing, name=name, model=model, positive=positive).save(out, overwrite=overwrite)


def _saved(
    evidence: Iterator[SeriesEvidence], folder: Path, top: int | None, formats: Collection[str]
) -> Iterator[SeriesEvidence]:
    """Write each series in these formats, and pass it on."""
    for item in evidence:
        if formats:
            item.save(folder, top=top, formats=formats)
        yield item
        del item  # or it would be held while the next is computed
