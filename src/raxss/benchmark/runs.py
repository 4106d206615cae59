"""How does one system, with one seed on one split, get its numbers, and are they there already?

    View, System, seed, choice -> Cell -> run_cell -> CellResult, a file named after all that decides it
    the same with a Probe                          -> Probed, likewise

The test part is opened once, by a model that is final, and without its labels. A trial is a cell that never opens
it: it scores the validation part, by which a system's choice is made. A cell with a probe asks its model more.
Next: table.py runs them all; pages/report.py makes the table.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from raxss._core.atomic import canonical_hash, json_ready, sha256_of, write_json
from raxss._core.jobs.local import threads_limited
from raxss._core.renames import former_settings
from raxss._core.version import __version__
from raxss.benchmark.analyses.probe import Answer, Asked, Probe, Probed
from raxss.benchmark.evaluation_set import View, bootstrap_groups, slug
from raxss.benchmark.packed import is_kept, read_cell
from raxss.benchmark.result import CellResult
from raxss.benchmark.study import BUILT_IN, Study, load_extensions
from raxss.benchmark.systems import System
from raxss.data.prepare.folder import read_prepared
from raxss.data.series import Series, SeriesCollection
from raxss.data.splits import PARTS, Split, weak_parts
from raxss.errors import DataError, LabelError, SignalError
from raxss.estimator.config import without_additions
from raxss.method.backbones.protocol import n_parameters
from raxss.method.training.step import reproducible
from raxss.method.window_scorer import pick_device
from raxss.metrics import score

#: Part of the hash of every cell. Raise it where the same data, split, settings, seed and device come to give other
#: numbers for many systems, so that all cells are computed anew; for one system, raise its `System.revision`. A new
#: version of the package, or a new setting with a neutral value (`ADDED_LATER`), is no reason.
RESULTS_VERSION = 1
FIRST_VERSION = "0.1"  # stands for 1 in hashes, which were made of the version of the package then

Kept = TypeVar("Kept", CellResult, Probed)
logger = logging.getLogger("raxss")


@dataclass(frozen=True, eq=False, kw_only=True)
class Cell:
    """One fit, with everything that a worker must know about it; can be sent to another process.

    Attributes
    ----------
    choice
        What was chosen for this system on the first seed's validation part.
    settings
        Every parameter of the estimator, as resolved.
    config_hash
        Of data, split, settings, seed, threads, device and `RESULTS_VERSION`.
    place
        The file that its result goes to, until it is packed with others.
    trial
        Whether only the validation part is scored.
    probe
        What else is asked of the fitted model; None: nothing.
    """

    view: View
    system: System
    seed: int
    choice: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    config_hash: str
    n_threads: int
    device: str
    extensions: tuple[tuple[Path, str], ...] = ()  # files, and the digests that the hash was made of
    place: Path
    trial: bool = False
    probe: Probe | None = None

    @property
    def split(self) -> Split:
        """Of this seed."""
        return self.view.splits[self.seed]

    @property
    def facts_place(self) -> Path:
        """How long it took, and where."""
        return self.place.with_suffix(".facts.json")

    @property
    def error_place(self) -> Path:
        """Why it has no result."""
        return self.place.with_suffix(".error.json")

    def __str__(self) -> str:
        told = "".join(f", {name} {value}" for name, value in self.choice.items())
        return (
            f"{self.view.name}, {self.system.name}, seed {self.seed}{told}{' (trial)' if self.trial else ''}"
        )


def cell_of(
    study: Study,
    view: View,
    system: System,
    seed: int,
    out: Path,
    *,
    device: str = "cpu",
    choice: Mapping[str, Any] | None = None,
    trial: bool = False,
    probe: Probe | None = None,
) -> Cell:
    """The cell of one system and seed; trials lie in ``choices``, results in ``cells``."""
    choice = dict(choice or {})
    device = device if system.uses_device else "cpu"  # the others know no GPU: theirs are the same numbers
    settings = system.parameters(
        view.windows, training=study.training, choice=choice, longest=view.longest, positive=view.positive
    )
    split = view.splits[seed]
    foreign = system.name not in BUILT_IN or system.name in study.settings  # may use what an extension brings
    extensions = tuple((file, sha256_of(file)) for file in study.extensions)
    decides = {
        "version": FIRST_VERSION if RESULTS_VERSION == 1 else RESULTS_VERSION,
        "data": view.content,
        "classes": [list(view.classes), view.positive],
        "split": [getattr(split, part).tolist() for part in PARTS],
        "system": [
            system.kind,
            json_ready(former_settings(without_additions(settings))),
            *([system.revision] if system.revision else []),
            *(["learns from all"] if probe is None and system.learns_from_all(settings) else []),
        ],
        "seed": seed,
        "n_threads": study.n_threads,
        "device": device,
        "extensions": [digest for _, digest in extensions] if foreign else [],
        "trial": trial,
        **({"f1_classes": list(view.f1_classes)} if view.f1_classes else {}),  # choices are made by F1
        **({"probe": json_ready(probe.decides())} if probe is not None else {}),
    }
    digest = canonical_hash(decides)[:12]
    told = "".join(f"-{value}" for value in choice.values()) if trial else ""
    folder = out / ("choices" if trial else "cells")
    return Cell(
        view=view,
        system=system,
        seed=seed,
        choice=choice,
        training=study.training,
        settings=settings,
        config_hash=digest,
        n_threads=study.n_threads,
        device=device,
        extensions=extensions,
        place=place_of(folder, view.name, system.name, f"{seed}{told}", digest),
        trial=trial,
        probe=probe,
    )


def place_of(folder: Path, dataset: str, system: str, seed: int | str, config_hash: str) -> Path:
    """The file of a cell in a folder of cells.

    >>> place_of(Path("cells"), "bonn", "sss", 1, "0123456789ab").as_posix()
    'cells/bonn/sss-1-0123456789ab.json'
    """
    return folder / slug(dataset) / f"{slug(system)}-{seed}-{config_hash}.json"


def done(cell: Cell) -> CellResult | None:
    """The result of an earlier run, if it is there and whole."""
    return _kept(cell, CellResult)


def answered(cell: Cell) -> Probed | None:
    """The same of a cell with a probe."""
    return _kept(cell, Probed)


def is_done(cell: Cell) -> bool:
    """Whether there is nothing left to do for a cell, with a probe or without."""
    return (done(cell) if cell.probe is None else answered(cell)) is not None


def _kept(cell: Cell, kind: type[Kept]) -> Kept | None:
    if not is_kept(cell.place):
        return None
    try:
        result = read_cell(cell.place, kind)
    except DataError as error:
        logger.warning("%s It is computed again.", error)
        return None
    return result if result.config_hash == cell.config_hash else None


# Running one --------------------------------------------------------------------------------------------------


def run_cell(cell: Cell) -> CellResult | Probed:
    """Fit on training and validation, score the test part once, ask what the probe asks, and write the result.

    The same cell gives the same bytes. What a reader should know of time, place and warnings lies beside it.
    """
    clock = _Clock()
    with (
        threads_limited(cell.n_threads),
        warnings.catch_warnings(record=True) as told,
        _seeded(cell.seed),
        reproducible(
            torch.device(cell.device)
        ),  # prediction too: sums over windows have no order of their own
    ):
        warnings.simplefilter("default")
        _load_extensions(cell)
        collection = read_prepared(cell.view.folder)
        if collection.collection_hash != cell.view.content:
            raise DataError(
                f"the prepared data of {cell.view.name!r} changed after the study began. Run the study again."
            )
        weak = weak_parts(collection, cell.split)
        for part in ("train", "validation" if cell.trial else "test"):
            if part in weak:
                raise LabelError(
                    f"{weak[part]} (split: {cell.split.description}); no figure exists there. Choose other "
                    "fractions, a narrower split.by, or other seeds."
                )
        clock.lap("load")
        model, validation = _fitted(cell, collection)
        clock.lap("fit")
        labels = collection[cell.split.validation].labels
        figures: dict[str, float] = {}
        if "validation" not in weak and len(validation):
            figures = score(
                labels,
                validation,
                classes=np.asarray(model.classes_),
                positive=cell.view.positive,
                f1_classes=cell.view.f1_classes,
            )
        clock.lap("validation")
        tested = _result(cell, collection, model, figures)
        clock.lap("test")
        result: CellResult | Probed = tested
        if cell.probe is not None:
            judges = collection[[] if "validation" in weak else cell.split.validation]
            result = Probed(result=tested, answers=_answers(cell, cell.probe, collection, judges, model))
            clock.lap("probe")
    # Facts first: a result that is there has its facts.
    write_json(cell.facts_place, _facts(cell, clock, [str(item.message) for item in told]))
    result.write(cell.place)
    cell.error_place.unlink(missing_ok=True)
    return result


def fit_cell(cell: Cell) -> tuple[Any, SeriesCollection]:
    """The model of a cell, fitted as `run_cell` fits it, and its test series, in groups that a bootstrap draws."""
    with threads_limited(cell.n_threads), _seeded(cell.seed), reproducible(torch.device(cell.device)):
        _load_extensions(cell)
        collection = read_prepared(cell.view.folder)
        model, _ = _fitted(cell, collection)
    groups = bootstrap_groups(collection, cell.split)
    test = [
        replace(item, group=group) for item, group in zip(collection[cell.split.test], groups, strict=True)
    ]
    return model, SeriesCollection(test)


def _load_extensions(cell: Cell) -> None:
    """Run the extensions that the cell's hash stands for, and no others."""
    for file, digest in cell.extensions:
        if sha256_of(file) != digest:
            raise DataError(
                f"the extension {file.name!r} changed after the study began. Run the study again: what depends on "
                "it is computed anew."
            )
    load_extensions([file for file, _ in cell.extensions])


def _fitted(cell: Cell, collection: SeriesCollection) -> tuple[Any, NDArray[np.float64]]:
    """The final model, and its probabilities of the validation series. The test part is not in sight here."""
    train, validation = collection[cell.split.train], collection[cell.split.validation]
    judged = cell.trial or cell.probe is not None  # by validation series, which it must not have learned from
    if cell.system.learns_from_all(cell.settings) and not judged:
        return _learned(cell, SeriesCollection([*train, *validation]), validation=[]), np.zeros((0, 0))
    model = _learned(cell, train, validation)
    return model, _probabilities(cell, model, validation)


def _learned(cell: Cell, train: SeriesCollection, validation: Sequence[Series]) -> Any:
    """The system of a cell, fitted."""
    model = cell.system.make(
        cell.view.windows,
        seed=cell.seed,
        device=cell.device,
        training=cell.training,
        choice=cell.choice,
        longest=cell.view.longest,
        positive=cell.view.positive,
    )
    model.fit(train, validation=validation)
    if getattr(model, "interrupted_", False):  # it kept the best so far, which is not the result of this cell
        raise KeyboardInterrupt
    found = np.asarray(model.classes_).tolist()
    if found != list(cell.view.classes):
        raise LabelError(
            f"system {cell.system.name!r} learned the classes {found}, but the data has "
            f"{list(cell.view.classes)}. Each needs a training series."
        )
    return model


def _probabilities(cell: Cell, model: Any, series: SeriesCollection) -> NDArray[np.float64]:
    """``(n_series, C)`` of series whose labels are taken off."""
    bare = SeriesCollection(replace(item, label=None) for item in series)
    probabilities = np.asarray(model.predict_proba(bare), dtype=np.float64)
    expected = len(series), len(cell.view.classes)
    if probabilities.shape != expected or not np.isfinite(probabilities).all():
        raise SignalError(
            f"system {cell.system.name!r} gave probabilities of shape {probabilities.shape}, "
            f"{int((~np.isfinite(probabilities)).sum())} of them not finite; needed are {expected}, all finite."
        )
    return probabilities


def _result(cell: Cell, collection: SeriesCollection, model: Any, figures: Mapping[str, float]) -> CellResult:
    """Open the test part, unless this is a trial."""
    split = cell.split
    test = collection[[] if cell.trial else split.test]
    network = getattr(model, "backbone_", None) or getattr(model, "network_", None)
    return CellResult(
        dataset=cell.view.name,
        system=cell.system.name,
        seed=cell.seed,
        fold=split.fold,
        config_hash=cell.config_hash,
        classes=cell.view.classes,
        positive=cell.view.positive,
        f1_classes=cell.view.f1_classes,
        changes=dict(cell.view.changes),
        settings={**json_ready(cell.settings), "n_threads": cell.n_threads, "choice": dict(cell.choice)},
        split=_told(split),
        names=tuple(test.names),
        labels=tuple(item.label for item in test),
        groups=() if cell.trial else tuple(bootstrap_groups(collection, split)),
        probabilities=_probabilities(cell, model, test)
        if len(test)
        else np.zeros((0, len(cell.view.classes))),
        window_accuracy=_window_accuracy(model, test) if cell.system.scores_windows and len(test) else None,
        validation=dict(figures),
        n_parameters=n_parameters(network) if isinstance(network, torch.nn.Module) else None,
    )


def _answers(
    cell: Cell, probe: Probe, collection: SeriesCollection, validation: SeriesCollection, model: Any
) -> tuple[Answer, ...]:
    """Ask a model that is final, about test series without their labels."""
    asked = Asked(
        model=model,
        test=SeriesCollection(replace(item, label=None) for item in collection[cell.split.test]),
        validation=validation,
        positive=cell.view.positive,
        f1_classes=cell.view.f1_classes,
        window_length=cell.view.windows.window_length,
    )
    return tuple(probe.ask(asked))


def _told(split: Split) -> dict[str, Any]:
    """What a reader of the table should know about a split."""
    counts = {f"n_{part}": len(getattr(split, part)) for part in (*PARTS, "dropped")}
    return {
        "description": split.description,
        "by": split.by,
        "leaky": split.leaky,
        "balance": split.balance,
        "seed": split.seed,
        "fractions": list(split.fractions),
        **counts,
    }


def _window_accuracy(model: Any, test: SeriesCollection) -> float | None:
    """Share of all test windows whose most likely class is that of their series."""
    if not hasattr(model, "window_probabilities"):
        return None
    classes = np.asarray(model.classes_)
    bare = SeriesCollection(replace(item, label=None) for item in test)
    n_right = n_windows = 0
    for item, probabilities in zip(test, model.window_probabilities(bare), strict=True):
        n_right += int((classes[probabilities.argmax(axis=1)] == item.label).sum())
        n_windows += len(probabilities)
    return n_right / n_windows if n_windows else None


# What surrounds a fit -----------------------------------------------------------------------------------------


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Global generators too, for whatever draws from them; set back, because the caller may use them."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


class _Clock:
    """Seconds by part of the work."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now, self._last = now, now()
        self.seconds: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """What went by since the last call was this part."""
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now = self._now()
        self.seconds[part], self._last = now - self._last, now


def _facts(cell: Cell, clock: _Clock, told: Sequence[str]) -> dict[str, Any]:
    """Durations, hardware and versions; nothing that names the host."""
    device = pick_device(cell.device)
    return {
        "cell": str(cell),
        "seconds": round(sum(clock.seconds.values()), 3),
        "seconds_by_part": {part: round(value, 3) for part, value in clock.seconds.items()},
        "n_threads": cell.n_threads,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "machine": f"{platform.system()} {platform.machine()}",
        "n_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": version("scipy"),
        "scikit-learn": version("scikit-learn"),
        "raxss": __version__,
        "source": source_digest(),
        "warnings": sorted(set(told)),
    }


@cache
def source_digest() -> str:
    """Of the package's Python files: two results with the same are from the same code."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root).as_posix()}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
