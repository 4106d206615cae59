"""How are the reasons for many recordings laid out on disk?

    SeriesEvidence, one channel after the other -> OUT/<recording>/report.html, report.pdf
                                                   OUT/<recording>/<channel>/evidence.json, windows.parquet, ...

Evidence passes by once, whatever is written of it, and is let go. A recording of one series has one folder.
Before this: report/ makes the page, pdf.py the PDF, ../series_evidence.py the rest.
Next: cli/explain.py asks for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from raxss._core.atomic import whole_folder
from raxss.data.series import Series
from raxss.errors import DataError, display_name
from raxss.explain.evidence import safe_name
from raxss.explain.export.pdf import N_CHANNELS, write_pdf
from raxss.explain.export.report import report_of
from raxss.explain.findings import RecordingFindings, watched
from raxss.explain.series_evidence import FORMATS, SeriesEvidence

Tell = Callable[[RecordingFindings], None]


def write_recordings(
    evidence: Iterable[SeriesEvidence],
    recordings: Iterable[tuple[str, Sequence[Series]]],
    out: Path | str,
    *,
    model: Mapping[str, Any],
    formats: Collection[str] = ("report", *FORMATS),
    positive: Any = None,
    top: int | None = 50,
    tell: Sequence[Tell] = (),
    overwrite: bool = False,
) -> Path:
    """Write a folder with one folder a recording in it; it appears whole or not at all.

    Parameters
    ----------
    evidence
        Of the series of ``recordings``, in their order.
    recordings
        Names and series, each asked for when the one before it is written, so that not all need be in memory.
    model
        What `raxss.explain.findings.told_of_model` tells.
    formats
        Of ``report`` and ``pdf`` for each recording, ``json``, ``parquet`` and ``figures`` for each series.
    positive
        The class that channels are ranked by; see `raxss.explain.findings.class_of`.
    top
        Keep the neighbour lists of so many windows; None keeps all.
    tell
        Who else wants to know of each recording that is done.

    Examples
    --------
    >>> import tempfile
    >>> from raxss import RAxSSClassifier
    >>> from raxss.data.datasets import load_synthetic
    >>> from raxss.explain.findings import by_recording
    >>> series = load_synthetic()
    >>> model = RAxSSClassifier("dlinear", window_length=128, stride=32, max_epochs=1, random_state=0).fit(series)
    >>> evidence, out = model.explain_each(series[:2]), Path(tempfile.mkdtemp()) / "why"
    >>> both = by_recording(series[:2]).items()
    >>> _ = write_recordings(evidence, both, out, model={}, formats=["report", "json"])
    >>> sorted(file.relative_to(out).as_posix() for file in out.glob("*/[er]*"))
    ['motif-000/evidence.json', 'motif-000/report.html', 'noise-001/evidence.json', 'noise-001/report.html']
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
            pdfs = {name: place / "report.pdf"} if "pdf" in formats else {}
            own = told(islice(passing, len(some)), tell, model=model, positive=positive, pdfs=pdfs)
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
    pdf: Path | None = None,
    tell: Sequence[Tell] = (),
    overwrite: bool = False,
) -> None:
    """Write the report of one recording alone, and its PDF where one is named."""
    pdfs = {} if pdf is None else {name: pdf}
    passing = told(evidence, tell, model=model, positive=positive, pdfs=pdfs)
    report_of(passing, name=name, model=model, positive=positive).save(out, overwrite=overwrite)


def told(
    evidence: Iterable[SeriesEvidence],
    tell: Sequence[Tell],
    *,
    model: Mapping[str, Any],
    positive: Any = None,
    pdfs: Mapping[str, Path] | None = None,
) -> Iterator[SeriesEvidence]:
    """Pass evidence on, and tell all who want to know when the last channel of a recording has passed.

    ``pdfs``: where to print which recordings.
    """
    if not (tell or pdfs):
        return iter(evidence)

    def tell_all(findings: RecordingFindings) -> None:
        for item in tell:
            item(findings)
        if pdfs:
            write_pdf(findings, pdfs[findings.name], model=model)

    return watched(evidence, tell_all, class_=positive, model=model, n_best=N_CHANNELS if pdfs else 0)


def _saved(
    evidence: Iterator[SeriesEvidence], folder: Path, top: int | None, formats: Collection[str]
) -> Iterator[SeriesEvidence]:
    """Write what is wanted of each series as it passes."""
    for item in evidence:
        if formats:
            item.save(folder, top=top, formats=formats)
        yield item
        del item  # or it would be held while the next is computed
