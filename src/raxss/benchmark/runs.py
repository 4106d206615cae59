"""Runs: one system with one seed on one split, fitted, scored and kept.

    View, System, seed, choice -> plan_run -> Run -> execute -> RunResult, a file named after the hash of its setup
    the same with a Probe                                    -> EvaluatedRun

The final model predicts the test series once, without their labels. A trial is a run that predicts the validation
series only, by which the settings of a system are chosen. A run with a probe has further evaluations of its model.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import random
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from raxss._core.atomic import canonical_hash, json_ready, make_folder, sha256_of, write_json
from raxss._core.jobs.local import threads_limited
from raxss._core.renames import former_settings
from raxss._core.version import __version__
from raxss.benchmark.analyses.evaluation import EvaluatedRun, FittedModel, Probe
from raxss.benchmark.evaluation_set import View, bootstrap_groups, slug
from raxss.benchmark.packed import is_kept, read_run
from raxss.benchmark.result import RunResult
from raxss.benchmark.study import BUILT_IN, Study, load_extensions
from raxss.benchmark.systems import System
from raxss.data.prepare.folder import read_prepared
from raxss.data.series import Series, SeriesCollection
from raxss.data.splits import PARTS, Split, weak_parts
from raxss.errors import DataError, LabelError, SignalError
from raxss.estimator.config import without_additions
from raxss.method.backbones.protocol import describe, n_parameters
from raxss.method.training.step import reproducible
from raxss.method.window_scorer import pick_device
from raxss.metrics import score

#: Part of the hash of every run. Raise it where the same data, split, settings, seed and device come to give other
#: numbers for many systems, so that all runs are computed anew; for one system, raise its `System.revision`. A new
#: version of the package, or a new setting with a neutral value (`ADDED_LATER`), is no reason.
RESULTS_VERSION = 1
FIRST_VERSION = "0.1"  # written for 1: hashes had the version of the package then


logger = logging.getLogger("raxss")


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """One fit, as it is sent to a worker."""

    view: View
    system: System
    seed: int
    choice: Mapping[str, Any] = field(default_factory=dict)  # settings chosen on validation of the first seed
    settings: Mapping[str, Any] = field(default_factory=dict)  # every parameter of the estimator
    config_hash: str  # of data, split, settings, seed, threads, device and `RESULTS_VERSION`
    n_threads: int
    device: str
    extensions: tuple[tuple[Path, str], ...] = ()  # files, and the digests that the hash was made of
    place: Path  # file of its result, until it is packed with others
    trial: bool = False  # only the validation series are predicted
    probe: Probe | None = None

    @property
    def split(self) -> Split:
        """Split of this seed."""
        return self.view.splits[self.seed]

    @property
    def facts_place(self) -> Path:
        """File with duration and hardware."""
        return self.place.with_suffix(".facts.json")

    @property
    def parts_place(self) -> Path:
        """Folder with the parts of a fit that can be resumed; removed when it is done."""
        return self.place.with_suffix(".parts")

    @property
    def error_place(self) -> Path:
        """File with its error."""
        return self.place.with_suffix(".error.json")

    def __str__(self) -> str:
        choice = "".join(f", {name} {value}" for name, value in self.choice.items())
        trial = " (trial)" if self.trial else ""
        return f"{self.view.name}, {self.system.name}, seed {self.seed}{choice}{trial}"


def plan_run(
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
) -> Run:
    """The run of one system and seed; its file is in ``choices`` for trials, else in ``cells``."""
    choice = dict(choice or {})
    device = device if system.uses_device else "cpu"  # the others know no GPU: theirs are the same numbers
    view = view.seen_by(system)
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
    chosen = "".join(f"-{value}" for value in choice.values()) if trial else ""
    folder = out / ("choices" if trial else "cells")
    return Run(
        view=view,
        system=system,
        seed=seed,
        choice=choice,
        settings=settings,
        config_hash=digest,
        n_threads=study.n_threads,
        device=device,
        extensions=extensions,
        place=place_of(folder, view.name, system.name, f"{seed}{chosen}", digest),
        trial=trial,
        probe=probe,
    )


def place_of(folder: Path, dataset: str, system: str, seed: int | str, config_hash: str) -> Path:
    """The file of a run in a folder of runs.

    >>> place_of(Path("cells"), "bonn", "sss", 1, "0123456789ab").as_posix()
    'cells/bonn/sss-1-0123456789ab.json'
    """
    return folder / slug(dataset) / f"{slug(system)}-{seed}-{config_hash}.json"


def done(run: Run) -> Any:
    """The kept `RunResult`, or `EvaluatedRun` with a probe; None if there is none, or a damaged one."""
    if not is_kept(run.place):
        return None
    try:
        kind: Any = RunResult if run.probe is None else EvaluatedRun
        result = read_run(run.place, kind)
    except DataError as error:
        logger.warning("%s It is computed again.", error)
        return None
    return result if result.config_hash == run.config_hash else None


# Running one --------------------------------------------------------------------------------------------------


def execute(run: Run) -> RunResult | EvaluatedRun:
    """Fit, predict the test series, evaluate the probe, and write the result; deterministic.

    Duration, hardware and warnings go into a file beside it.
    """
    clock = _Clock()
    with (
        threads_limited(run.n_threads),
        warnings.catch_warnings(record=True) as caught,
        _seeded(run.seed),
        reproducible(torch.device(run.device)),  # for prediction too, which sums over windows
    ):
        warnings.simplefilter("default")
        _load_extensions(run)
        collection = read_prepared(run.view.folder)
        if collection.collection_hash != run.view.content:
            raise DataError(
                f"the prepared data of {run.view.name!r} changed after the study began. Run the study again."
            )
        weak = weak_parts(collection, run.split)
        for part in ("train", "validation" if run.trial else "test"):
            if part in weak:
                raise LabelError(
                    f"{weak[part]} (split: {run.split.description}); no figure exists there. Choose other "
                    "fractions, a narrower split.by, or other seeds."
                )
        clock.lap("load")
        model, validation = _fitted(run, collection)
        clock.lap("fit")
        judges = collection[[] if "validation" in weak else run.split.validation]
        figures: dict[str, float] = {}
        if len(judges) and len(validation):
            figures = score(judges.labels, validation, **run.view.scoring)
        clock.lap("validation")
        tested = _result(run, collection, model, figures)
        result: RunResult | EvaluatedRun = tested
        clock.lap("test")
        if run.probe is not None:
            fitted = FittedModel(
                model=model,
                test=_without_labels(collection[run.split.test]),
                validation=judges,
                positive=run.view.positive,
                f1_classes=run.view.f1_classes,
                window_length=int(run.view.windows.window_length),
            )
            result = EvaluatedRun(result=tested, evaluations=tuple(run.probe.evaluate(fitted)))
            clock.lap("probe")
    # Facts first: a result that is there has its facts.
    facts = _facts(run, clock, [str(item.message) for item in caught])
    write_json(run.facts_place, facts | (chosen_by(model) if run.system.is_on_its_own else {}))
    result.write(run.place)
    run.error_place.unlink(missing_ok=True)
    shutil.rmtree(run.parts_place, ignore_errors=True)
    return result


def fit_run(run: Run) -> tuple[Any, SeriesCollection]:
    """The model of a run, fitted as in `execute`, and its test series with the groups of a bootstrap."""
    with threads_limited(run.n_threads), _seeded(run.seed), reproducible(torch.device(run.device)):
        _load_extensions(run)
        collection = read_prepared(run.view.folder)
        model, _ = _fitted(run, collection)
    groups = bootstrap_groups(collection, run.split)
    test = [
        replace(item, group=group) for item, group in zip(collection[run.split.test], groups, strict=True)
    ]
    return model, SeriesCollection(test)


def _load_extensions(run: Run) -> None:
    """Run the extensions that the hash of the run was made of."""
    for file, digest in run.extensions:
        if sha256_of(file) != digest:
            raise DataError(
                f"the extension {file.name!r} changed after the study began. Run the study again: what depends on "
                "it is computed anew."
            )
    load_extensions([file for file, _ in run.extensions])


def _fitted(run: Run, collection: SeriesCollection) -> tuple[Any, NDArray[np.float64]]:
    """The final model, and its probabilities of the validation series."""
    train, validation = collection[run.split.train], collection[run.split.validation]
    judged = run.trial or run.probe is not None  # on validation series, so not trained on them
    if run.system.learns_from_all(run.settings) and not judged:
        return _learned(run, SeriesCollection([*train, *validation]), validation=[]), np.zeros((0, 0))
    model = _learned(run, train, validation)
    return model, _probabilities(run, model, validation)


def _learned(run: Run, train: SeriesCollection, validation: Sequence[Series]) -> Any:
    model = run.system.estimator(run.settings, seed=run.seed, device=run.device)
    if run.system.keeps_parts:
        model.set_params(folder=make_folder(run.parts_place) / "search")  # its lock lies beside it
    if run.system.is_on_its_own:  # it sets validation series aside by itself, as for any user
        model.fit(train)
    else:
        model.fit(train, validation=validation)
    if getattr(model, "interrupted_", False):  # it kept the best so far, which is not the result of this run
        raise KeyboardInterrupt
    found = np.asarray(model.classes_).tolist()
    if found != list(run.view.classes):
        raise LabelError(
            f"system {run.system.name!r} learned the classes {found}, but the data has "
            f"{list(run.view.classes)}. Each needs a training series."
        )
    return model


def _probabilities(run: Run, model: Any, series: SeriesCollection) -> NDArray[np.float64]:
    """``(n_series, C)``; the model does not see the labels."""
    probabilities = np.asarray(model.predict_proba(_without_labels(series)), dtype=np.float64)
    expected = len(series), len(run.view.classes)
    if probabilities.shape != expected or not np.isfinite(probabilities).all():
        raise SignalError(
            f"system {run.system.name!r} gave probabilities of shape {probabilities.shape}, "
            f"{int((~np.isfinite(probabilities)).sum())} of them not finite; needed are {expected}, all finite."
        )
    return probabilities


def _result(run: Run, collection: SeriesCollection, model: Any, figures: Mapping[str, float]) -> RunResult:
    split = run.split
    described = {name: getattr(split, name) for name in ("description", "by", "leaky", "balance", "seed")}
    described["fractions"] = list(split.fractions)
    test = collection[[] if run.trial else split.test]
    network = getattr(model, "backbone_", None) or getattr(model, "network_", None)
    return RunResult(
        dataset=run.view.name,
        system=run.system.name,
        seed=run.seed,
        fold=split.fold,
        config_hash=run.config_hash,
        **run.view.scoring,
        changes=dict(run.view.changes),
        settings={**json_ready(run.settings), "n_threads": run.n_threads, "choice": dict(run.choice)},
        split=described | {f"n_{part}": len(getattr(split, part)) for part in (*PARTS, "dropped")},
        names=tuple(test.names),
        labels=tuple(item.label for item in test),
        groups=() if run.trial else tuple(bootstrap_groups(collection, split)),
        probabilities=_probabilities(run, model, test) if len(test) else np.zeros((0, len(run.view.classes))),
        window_accuracy=_window_accuracy(model, test) if run.system.scores_windows and len(test) else None,
        validation=dict(figures),
        n_parameters=n_parameters(network) if isinstance(network, torch.nn.Module) else None,
    )


def _without_labels(series: SeriesCollection) -> SeriesCollection:
    return SeriesCollection(replace(item, label=None) for item in series)


def _window_accuracy(model: Any, test: SeriesCollection) -> float | None:
    """Share of all test windows whose most likely class is that of their series."""
    if not hasattr(model, "window_probabilities"):
        return None
    classes = np.asarray(model.classes_)
    n_right = n_windows = 0
    for item, probabilities in zip(test, model.window_probabilities(_without_labels(test)), strict=True):
        n_right += int((classes[probabilities.argmax(axis=1)] == item.label).sum())
        n_windows += len(probabilities)
    return n_right / n_windows if n_windows else None


# What surrounds a fit -----------------------------------------------------------------------------------------


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, and restore them afterwards."""
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

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """Record the time since the last call as that of this part."""
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds[part], self._last = now - self._last, now


def _facts(run: Run, clock: _Clock, messages: Sequence[str]) -> dict[str, Any]:
    """Durations, hardware and versions; nothing that names the host."""
    device = pick_device(run.device)
    return {
        "cell": str(run),
        "seconds": round(sum(clock.seconds.values()), 3),
        "seconds_by_part": {part: round(value, 3) for part, value in clock.seconds.items()},
        "n_threads": run.n_threads,
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
        "warnings": sorted(set(messages)),
    }


def chosen_by(model: Any) -> dict[str, Any]:
    """What a model on its own has chosen from the data: windows, backbone, and of a search the candidates as well.

    Facts for readers: the hash of a run does not depend on them.
    """
    search = getattr(model, "search_report_", None)
    if search is None:
        return {"model": _described(model)}
    rows = [
        {
            "candidate": row.name,
            "rung": row.n_folds,
            "score": None if row.loss is None else -row.loss,
            "difference": row.difference,
            "outcome": row.outcome,
            "seconds": row.fit_seconds,
        }
        for row in search.rows
    ]
    found = {"chosen": search.chosen.name, "best_params": model.best_params_, "candidates": rows}
    # through JSON: parameters of candidates of one's own may be any objects
    found = json.loads(json.dumps(json_ready(found), default=str))
    return {"model": _described(model.best_estimator_), "search": found}


def _described(model: Any) -> dict[str, Any]:
    return {
        "window_length": int(model.window_length_),
        "stride": int(model.stride_),
        "backbone": describe(model.backbone_),
    }


@cache
def source_digest() -> str:
    """Hash of the package's Python files."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root).as_posix()}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
