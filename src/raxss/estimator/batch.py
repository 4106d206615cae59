"""Batch prediction of many recordings, resumable, in several processes or on a cluster.

    model folder, inputs -> one job per recording -> a part of a store each -> one table, in input order

A job reads one recording, so that a worker never holds more. Parts are addressed by content: the model, the
settings, the recording's files. A rerun computes what is missing. The table has the bytes that a run without an
engine writes. _core/jobs/ runs the jobs; cli/predict.py writes the table.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from raxss._core.atomic import canonical_hash, make_folder, sha256_of
from raxss._core.jobs import check_engine, each_result
from raxss._core.jobs.outcome import Failure
from raxss._core.progress import with_progress
from raxss._core.sealing import FACTS, MOST_BYTES, WEIGHTS, open_plain
from raxss._core.store import Store
from raxss.data.bids import is_bids_root, plan_to_read
from raxss.data.files import Line, distinct_names, lines_of_inputs, read_lines
from raxss.data.formats.opening import files_of
from raxss.data.plan import RecordingPlan, read_planned
from raxss.data.prepare.folder import PreparedCollection, is_prepared, read_prepared
from raxss.data.prepare.preprocessing import is_rate_known
from raxss.data.prepare.rates import ModelPreparation
from raxss.data.selection import sidecar_files
from raxss.data.series import Series
from raxss.errors import ConfigError, DataError, RAxSSWarning, RecordingError, display_name
from raxss.estimator.classifier import RAxSSClassifier
from raxss.estimator.persistence import versions
from raxss.method.window_scorer import pick_device
from raxss.uncertainty.summary import ScoredSeries

FORMAT = "raxss part 3"


@dataclass(frozen=True)
class ModelSettings:
    """A model folder, and the settings of `predict_archive` that decide the numbers."""

    folder: Path
    digest: str  # of the folder's content
    device: str
    bank: str | None
    bank_size: int | None
    n_threads: int  # of the network: the last digits depend on them
    resample: bool = False
    gap: float | None = None  # value of missing samples


def predict_archive(
    model: Path,
    inputs: Sequence[Path],
    parts: Path,
    *,
    engine: str = "local",
    n_workers: int | None = None,
    n_threads: int | None = None,
    address: str | None = None,
    device: str = "auto",
    bank: str | None = None,
    bank_size: int | None = None,
    only: Collection[str] | None = None,
    rate: float | None = None,
    resample: bool = False,
    gap: float | None = None,
) -> tuple[pd.DataFrame, dict[str, Failure]]:
    """Predict recording by recording; parts of earlier runs are not computed again.

    ``parts`` is a folder for one file per recording; on a cluster every node must see it, the model and the
    recordings under the same paths. ``engine``, ``n_workers`` and ``address`` are those of `each_result`,
    ``n_threads`` those of each worker (None: as many as this process has, since the last digits depend on them),
    ``only`` the names of series wanted of prepared folders; the rest is as ``raxss predict`` has it.

    Returns one row per series, in input order, and the failures, by name of the recording.
    """
    settings = ModelSettings(
        Path(os.path.abspath(model)),
        model_digest(model),
        device,
        bank,
        bank_size,
        n_threads or torch.get_num_threads(),
        resample,
        gap,
    )
    check_engine(engine, address)
    classes = _loaded(settings).classes_
    sources = list(sources_of(inputs, only=only, rate=rate))
    parts = make_folder(os.path.abspath(parts))
    done: dict[int, dict[str, Any]] = {}
    failures: dict[int, Failure] = {}
    results = each_result(
        partial(predict_recording, settings, parts),
        sources,
        engine=engine,
        n_workers=n_workers,
        n_threads=settings.n_threads,
        address=address,
        shared_folder=parts,
    )
    counted = with_progress(results, len(sources), "predicting", unit="recordings")
    with closing(counted):
        for position, result in counted:
            if isinstance(result, Failure):
                failures[position] = result
            else:
                done[position] = _parts(parts).require(result, result)
    rows = [row for position in sorted(done) for row in done[position]["rows"]]
    _refuse_repeated(sources, done)
    for text in dict.fromkeys(text for position in sorted(done) for text in done[position]["warnings"]):
        warnings.warn(text, RAxSSWarning, stacklevel=2)
    table = prediction_table(classes, rows)
    names = Counter(sources[position].name for position in failures)
    return table, {
        sources[position].name
        + (f" (input {position + 1})" if names[sources[position].name] > 1 else ""): failure
        for position, failure in sorted(failures.items())
    }


def open_model(
    folder: Path, device: str, bank: str | None = None, bank_size: int | None = None, *, verbose: int = 0
) -> RAxSSClassifier:
    """The model, with another bank where one is given."""
    model = RAxSSClassifier.from_pretrained(folder, device=device)
    changes: dict[str, Any] = {"bank": bank, "bank_size": bank_size}
    model.set_params(verbose=verbose, **{name: value for name, value in changes.items() if value is not None})
    _ = model.config  # a wrong setting is refused before recordings are read
    return model


def model_digest(folder: Path) -> str:
    """Hash of the files that decide a model's predictions."""
    digests = {}
    for name in (FACTS, WEIGHTS):
        if (folder / name).is_file():
            label = f"{name} in model {folder.name!r}"
            with open_plain(folder / name, label, most=MOST_BYTES[name]) as file:
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return canonical_hash(digests)


def prediction_rows(model: RAxSSClassifier, series: Sequence[Series]) -> list[dict[str, Any]]:
    """Scores of each series and columns about their uncertainty, as plain values."""
    rule = decision_columns(model)
    return [
        {
            "name": scored.series.name,
            "predicted": scored.predicted,
            "probabilities": scored.probability.tolist(),
            "seconds": seconds_of(scored.series),
            "label": scored.series.label,
            "doubt": rule | uncertainty_columns(model.classes_, scored),  # parts keep their first name
        }
        for scored in model.score_series(series)
    ]


def decision_columns(model: RAxSSClassifier) -> dict[str, float]:
    """Columns about a tuned decision threshold: of the second class, or a factor for each; empty for argmax."""
    decision = model.uncertainty_summary().decision
    if decision is None:
        return {}
    if decision.threshold is not None:
        return {f"threshold_{model.classes_[1]}": decision.threshold}
    return {
        f"factor_{label}": float(factor)
        for label, factor in zip(model.classes_, decision.factors, strict=True)
    }


def prediction_table(classes: Sequence[Any] | NDArray[Any], rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One row a series, from `prediction_rows`.

    >>> row = {"name": "a", "predicted": 1, "probabilities": [0.25, 0.75], "seconds": 2.0, "label": None}
    >>> row["doubt"] = {}
    >>> prediction_table(["ill", "well"], [row]).to_dict("records")
    [{'name': 'a', 'predicted': 'well', 'probability_ill': 0.25, 'probability_well': 0.75, 'seconds': 2.0}]
    """
    table = []
    for row in rows:
        place = row.get(
            "predicted", int(np.argmax(row["probabilities"]))
        )  # parts of earlier versions have none
        columns = {"name": row["name"], "predicted": classes[place]}
        pairs = zip(classes, row["probabilities"], strict=True)
        columns |= {f"probability_{label}": probability for label, probability in pairs}
        seconds = row["seconds"]  # numbers only, or the column has no type
        columns["seconds"] = math.nan if seconds is None else seconds
        columns |= {} if row["label"] is None else {"label": row["label"]}
        table.append(columns | row["doubt"])
    return pd.DataFrame(table)


def uncertainty_columns(classes: Sequence[Any] | NDArray[Any], scored: ScoredSeries) -> dict[str, Any]:
    """Columns of the table about the uncertainty of one score; those of the interval are empty for short series."""
    columns: dict[str, Any] = {"seen_in_training": scored.seen_in_training}
    if scored.probability is not scored.series_probability:
        uncalibrated = zip(classes, scored.series_probability, strict=True)
        columns |= {f"uncalibrated_{label}": float(p) for label, p in uncalibrated}
    interval = scored.interval
    for place, label in enumerate(classes):
        columns[f"low_{label}"] = None if interval is None else float(interval.low[place])
        columns[f"high_{label}"] = None if interval is None else float(interval.high[place])
    columns["interval"] = None if interval is None else interval.method
    if scored.prediction_set is not None:
        members = zip(classes, scored.prediction_set, strict=True)
        columns |= {f"in_set_{label}": bool(p) for label, p in members} | {"abstains": scored.abstains}
    notes = list(scored.notes)
    if seconds_of(scored.series) is None and not any("is not known" in note for note in notes):
        name = scored.series.name
        notes.append(f"the rate of series {name!r} is not known, and so are its seconds. Give it: --rate.")
    return columns | {"warnings": " ".join(notes)}


def seconds_of(series: Series) -> float | None:
    """How long a series is; None where its rate is not known."""
    return series.seconds if is_rate_known(series.rate, series.preparation) else None


# One recording ------------------------------------------------------------------------------------------------


def predict_recording(settings: ModelSettings, parts: Path, source: RecordingSource) -> str:
    """Write the part of one recording, unless it exists, and return its key; runs in a worker."""
    model, key = _loaded(settings), _key(settings, source)

    def predicted() -> dict[str, Any]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            series = source.read(model.preparation_of_model(resample=settings.resample, gap=settings.gap))
            rows = prediction_rows(model, series)
        texts = [str(warning.message) for warning in caught if issubclass(warning.category, RAxSSWarning)]
        return {"rows": rows, "warnings": texts}

    _parts(parts).get(key, key, predicted)
    return key


def _parts(folder: Path) -> Store:
    return Store(folder, format=FORMAT, entries={"rows": list, "warnings": list})


@lru_cache(maxsize=1)
def _loaded(settings: ModelSettings) -> RAxSSClassifier:
    """The model, read once a process."""
    if model_digest(settings.folder) != settings.digest:
        raise DataError(
            f"the model {display_name(settings.folder)} that this worker sees is another one than where the "
            "command was given; it was changed since, or the folder is not shared. Give the same model to all."
        )
    return open_model(settings.folder, settings.device, settings.bank, settings.bank_size)


def _key(settings: ModelSettings, source: RecordingSource) -> str:
    """Hash of everything that decides the numbers, but not of paths and dates."""
    return canonical_hash(
        {
            "format": FORMAT,
            "model": settings.digest,
            "bank": settings.bank,
            "bank_size": settings.bank_size,
            "device": pick_device(settings.device).type,
            "threads": settings.n_threads,
            "resample": settings.resample,
            **({} if settings.gap is None else {"gap": repr(settings.gap)}),
            "versions": versions(),
            "series": source.wanted(),
            "files": [[file.name, sha256_of(file)] for file in source.files() if os.path.isfile(file)],
        }
    )


# Which recordings there are -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FromLines:
    """A recording given as a file, or by lines of a manifest."""

    name: str
    lines: tuple[Line, ...]

    def files(self) -> Sequence[Path]:
        return (*files_of(self.lines[0].path), *sidecar_files(self.lines[0].path))

    def wanted(self) -> Any:
        return [[self.name, line.number > 0, line.label, line.rate, str(line.channel)] for line in self.lines]

    def read(self, preparation: ModelPreparation) -> list[Series]:
        names = {os.path.abspath(line.path): self.name for line in self.lines}
        return [preparation.apply(item) for item in read_lines(list(self.lines), names)]


@dataclass(frozen=True)
class FromPlan:
    """A recording of a BIDS tree."""

    plan: RecordingPlan
    group_by: str | None

    @property
    def name(self) -> str:
        """Its name, for messages."""
        return self.plan.name

    def files(self) -> Sequence[Path]:
        """All files that the samples come from."""
        return self.plan.files

    def wanted(self) -> Any:
        """What is read from them, as plain values."""
        return [[item.name, item.channels, item.segment, item.label, item.crop] for item in self.plan.series]

    def read(self, preparation: ModelPreparation) -> list[Series]:
        """Its series, prepared as the model's training data were."""
        with self.plan.open_recording() as recording:
            series = [read_planned(recording, item, group_by=self.group_by) for item in self.plan.series]
        return [preparation.apply(item) for item in series]


@dataclass(frozen=True)
class _FromPrepared:
    """The series of a prepared folder that lie in one file."""

    folder: Path
    file: str
    positions: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.folder.name}/{self.file}"

    def files(self) -> Sequence[Path]:
        return [self.folder / self.file]

    def wanted(self) -> Any:
        columns = ("name", "label", "rate", "offset", "n_variates", "n_samples", "start_seconds")
        table = _prepared(self.folder).table.iloc[list(self.positions)]
        return [[str(item) for item in row] for row in table[list(columns)].itertuples(index=False)]

    def read(self, preparation: ModelPreparation) -> list[Series]:
        collection = _prepared(self.folder)  # whose series are prepared already
        if sha256_of(self.folder / self.file) != collection.facts["outputs"][self.file]["sha256"]:
            raise RecordingError(
                f"the prepared folder {display_name(self.folder)} is damaged: {display_name(self.file)} was "
                "changed after it was written. Remove it, and prepare it again."
            )
        return [collection[position] for position in self.positions]


RecordingSource = _FromLines | FromPlan | _FromPrepared
"""The series of one recording, which a worker reads."""


@lru_cache(maxsize=4)
def _prepared(folder: Path) -> PreparedCollection:
    """Opened once a process: there may be thousands of recordings in it."""
    return read_prepared(folder)


def sources_of(
    inputs: Sequence[Path], *, only: Collection[str] | None = None, rate: float | None = None
) -> Iterator[RecordingSource]:
    """The recordings that inputs hold, in the order in which ``raxss predict`` has their series.

    Prepared folders and BIDS roots come first, then single files. ``rate``: of files that have none.
    """
    named: list[Path] = []
    for path in inputs:
        if is_prepared(path):
            yield from _of_prepared(Path(os.path.abspath(path)), only)
        elif is_bids_root(path):
            plan = plan_to_read(Path(os.path.abspath(path)), only_labelled=False)
            yield from (FromPlan(recording, plan.group_by) for recording in plan.recordings)
        else:
            named.append(path)
    refuse_unused_rate(rate, named)
    if named or not inputs:
        lines = lines_of_inputs(named, rate=rate)
        names = distinct_names(lines)
        for path, some in groupby(lines, key=lambda line: os.path.abspath(line.path)):
            yield _FromLines(names[path], tuple(replace(line, path=Path(path)) for line in some))


def refuse_unused_rate(rate: float | None, named: Sequence[Path]) -> None:
    """Refuse a rate that is no number above 0, or that no input would use."""
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise ConfigError(f"--rate is {rate:g}; samples per second, a number above 0, are needed.")
    if rate is not None and not named:
        raise ConfigError(
            f"--rate {rate:g} is for files that tell no rate; BIDS roots and prepared folders have one. Leave "
            "it out, or to change a rate use --resample."
        )


def _of_prepared(folder: Path, only: Collection[str] | None) -> Iterator[_FromPrepared]:
    table = _prepared(folder).table
    rows = enumerate(zip(table["file"], table["name"], strict=True))
    kept = [(file, position) for position, (file, name) in rows if only is None or name in only]
    for file, some in groupby(kept, key=lambda row: row[0]):
        yield _FromPrepared(folder, file, tuple(position for _, position in some))


def _refuse_repeated(sources: Sequence[RecordingSource], done: Mapping[int, dict[str, Any]]) -> None:
    """Refuse a channel that a manifest gives twice, once by name and once by position."""
    counts = Counter(
        row["name"]
        for position in done
        if isinstance(sources[position], _FromLines)
        for row in done[position]["rows"]
    )
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise RecordingError(
            f"the series {display_name(repeated[0])} is given twice; once is needed. Remove one of them."
        )
