"""Parquet tables of evidence: of one series, or of many series in one folder with three tables.

Tables of many series have a column that names the series. Series are written by a thread for each file while the
next are computed; the folder appears whole or not at all.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raxss._core.atomic import json_ready, whole_folder
from raxss.errors import DataError
from raxss.explain.evidence import FORMAT, NOTE, Evidence
from raxss.explain.neighbour_lists import Columns

#: A dictionary of doubles takes longer than writing them; only names repeat.
HOW_TO_WRITE: Mapping[str, Any] = {"compression": "zstd", "use_dictionary": ["series"]}
ROWS_A_GROUP = 2**16  # at least; readers skip and unpack whole groups
WINDOWS_WAITING = 2**15  # to be written while the next series is computed; a longer series is waited for
#: Columns of windows that evidence has only where there is something to say: in one table every series has them.
WHERE_PRESENT = ("missing_share", "disturbed_share")


def write_tables(
    evidence: Iterable[Evidence], folder: Path | str, *, top: int | None = 50, overwrite: bool = False
) -> int:
    """Write the evidence of many series into one folder: ``windows``, ``neighbors``, ``summary.parquet``.

    The first two are those of `SeriesEvidence` with a column ``series`` before the others; ``missing_share`` and
    ``disturbed_share`` are there for every series, 0 where its evidence has none. The summary has one row a series:
    what was predicted and how sure, whether the model was fitted on it, how many windows were effective, warnings,
    settings.

    Parameters
    ----------
    evidence
        As `RAxSSClassifier.explain_each` gives it. The next is computed while a few short ones are still being
        written, but a long one is written, and released, first.
    top
        Number of windows of each series, by weight, whose neighbour lists are written, besides the first window of
        each class; None: all.

    Returns
    -------
    Number of series.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from raxss import RAxSSClassifier
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic(8)
    >>> model = RAxSSClassifier("dlinear", window_length=128, stride=32, max_epochs=1, random_state=0).fit(series)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     n_series = write_tables(model.explain_each(series[:3]), f"{place}/why")
    ...     summary = pd.read_parquet(f"{place}/why/summary.parquet")
    ...     windows = pd.read_parquet(f"{place}/why/windows.parquet")
    >>> summary["series"].tolist(), float(windows["weight"].sum().round(9))  # 1 for each series
    (['motif-000', 'noise-001', 'motif-002'], 3.0)
    """
    rows: list[dict[str, Any]] = []
    classes: tuple[Any, ...] = ()
    with whole_folder(folder, overwrite=overwrite) as place:
        with _File(place / "windows.parquet") as windows, _File(place / "neighbors.parquet") as neighbors:
            waiting: deque[tuple[int, Future[None], Future[None]]] = deque()  # windows of a series, its rows
            for item in evidence:
                classes = classes or item.classes
                if item.classes != classes:
                    raise DataError(
                        f"series {item.name!r} has the classes {', '.join(map(repr, item.classes))}, and those "
                        f"before it {', '.join(map(repr, classes))}; one table holds the evidence of one model. "
                        "Write them apart."
                    )
                rows.append(_summary_row(item))
                name = _text(item.name)
                listed = neighbors.later(item.list_columns(top), name)
                columns = _with_every_share(item.columns)
                waiting.append((len(columns["window"]), windows.later([columns], name), listed))
                del item, columns  # or they would be held while the next is computed
                while sum(n_windows for n_windows, *_ in waiting) > WINDOWS_WAITING:
                    for written in waiting.popleft()[1:]:
                        written.result()  # or the error
            for _, *both in waiting:
                for written in both:
                    written.result()
        if not rows:
            raise DataError("there is no evidence to write: no series were given. Give one at least.")
        pq.write_table(_summary_table(rows), place / "summary.parquet")
    return len(rows)


def write_parquet(path: Path, parts: Iterable[Columns]) -> None:
    """Columns to a Parquet file, part by part."""
    with _File(path) as file:
        file.append(parts)


def _with_every_share(columns: Columns) -> Columns:
    """Columns of windows in which those of `WHERE_PRESENT` come last, 0 where the series has none."""
    none = np.zeros(len(columns["window"]))
    others = {name: values for name, values in columns.items() if name not in WHERE_PRESENT}
    return others | {name: columns.get(name, none) for name in WHERE_PRESENT}


class _File:
    """A Parquet file that gets its columns from the first table. Short tables share a row group."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: pq.ParquetWriter | None = None
        self._gathered: list[pa.Table] = []
        self._thread = ThreadPoolExecutor(1)  # one, so that rows stay in order

    def append(self, parts: Iterable[Columns], name: str | None = None) -> None:
        """Write the rows of one series; with a name, their first column names the series."""
        for columns in parts:
            series = {} if name is None else {"series": pa.repeat(name, len(columns["window"]))}
            self._gathered.append(
                pa.table(series | {key: pa.array(values) for key, values in columns.items()})
            )
            if sum(map(len, self._gathered)) >= ROWS_A_GROUP:
                self._write_gathered()

    def later(self, parts: Iterable[Columns], name: str) -> Future[None]:
        """Append the rows of one series, made and written by the thread of this file."""
        return self._thread.submit(self.append, parts, name)

    def _write_gathered(self) -> None:
        if self._gathered:
            table, self._gathered = pa.concat_tables(self._gathered), []
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._path, table.schema, **HOW_TO_WRITE)
            self._writer.write_table(table)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)
        if kind is None:  # else the file is thrown away
            self._write_gathered()
        if self._writer is not None:
            self._writer.close()


def _summary_row(evidence: Evidence) -> dict[str, Any]:
    chances = zip(evidence.classes, evidence.probability, strict=True)
    return {
        "series": _text(evidence.name),
        "label": evidence.label,
        "predicted": evidence.predicted,
        **{f"probability_{class_}": float(chance) for class_, chance in chances},
        "rate": evidence.rate,
        "seconds": evidence.seconds if evidence.rate != 1.0 else math.nan,  # 1 Hz: the rate is not known
        "n_windows": len(evidence.columns["window"]),
        "effective_windows": evidence.effective_windows,
        "effective_share": evidence.effective_share,
        "overlap_share": evidence.overlap_share,
        **_uncertainty_columns(evidence),
        "warnings": [_text(warning) for warning in evidence.warnings],
        "settings": json.dumps(json_ready(evidence.settings), default=str),
    }


def _uncertainty_columns(evidence: Evidence) -> dict[str, Any]:
    """As ``raxss predict`` has them: seen in training, the sum where it was calibrated, the interval, the set.

    And what comes from the context of windows, where the model takes it.
    """
    columns: dict[str, Any] = {"seen_in_training": evidence.seen_in_training}
    if evidence.calibrated_probability is not None:
        sums = zip(evidence.classes, evidence.series_probability, strict=True)
        columns |= {f"uncalibrated_{class_}": float(item) for class_, item in sums}
    if evidence.from_context is not None:
        moved = zip(evidence.classes, evidence.from_context, strict=True)
        columns |= {f"from_context_{class_}": float(item) for class_, item in moved}
    found = evidence.interval
    for place, class_ in enumerate(evidence.classes):
        columns[f"low_{class_}"] = None if found is None else float(found.low[place])
        columns[f"high_{class_}"] = None if found is None else float(found.high[place])
    columns["interval"] = None if found is None else found.method
    held = evidence.prediction_set
    if held is not None:
        columns |= {f"in_set_{class_}": class_ in held for class_ in evidence.classes}
        columns["abstains"] = evidence.abstains
    return columns


def _summary_table(rows: list[dict[str, Any]]) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # labels of several types
            columns[name] = pa.array([None if value is None else _text(str(value)) for value in values])
    return pa.table(columns).replace_schema_metadata({"format": FORMAT, "note": NOTE})


def _text(value: str) -> str:
    """Text that UTF-8 can hold: names from file systems may carry half characters."""
    return value.encode("utf-8", "backslashreplace").decode()
