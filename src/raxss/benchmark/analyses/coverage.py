"""Analysis of coverage: calibration of probabilities, coverage of prediction sets and false alarms on test series.

    a fitted model without calibration, its validation series -> each calibration -> probabilities, sets, intervals
    evaluations -> tidy rows -> calibration.csv, coverage.csv, README.md

No calibration changes the network, so one fit serves all of them. scripts/measure_doubt.py measures the same over
folds of a dataset.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from raxss.benchmark.analyses.analysis import Analysis, Plots, register_analysis
from raxss.benchmark.analyses.evaluation import EvaluatedRun, Evaluation, FittedModel
from raxss.benchmark.pages.markdown import data_table
from raxss.benchmark.pages.tidy import Row, fit_of, over_seeds, part, runs_by, tidy, wide
from raxss.benchmark.statistics import N_RESAMPLES
from raxss.data.series import SeriesCollection
from raxss.errors import ConfigError, one_of
from raxss.estimator.classifier import RAxSSClassifier
from raxss.estimator.fit import (
    fitted_on_windows,
    fitted_series_calibration,
    validation_predictions,
    validation_report_of,
)
from raxss.estimator.inputs import groups_or_own
from raxss.method.inference import Prediction
from raxss.uncertainty.calibration import CALIBRATIONS, LEVELS, calibration_named
from raxss.uncertainty.calibration.maps import Calibration
from raxss.uncertainty.reliability import calibration_figures
from raxss.uncertainty.summary import ScoredSeries, UncertaintySummary

WAYS = (("none", "window"), *((method, level) for level in LEVELS for method in CALIBRATIONS))
ALPHAS = (0.05, 0.1, 0.2)


def calibrated_otherwise(prediction: Prediction, calibration: Calibration | None, level: str) -> Prediction:
    """A prediction of an uncalibrated model, with a calibration of windows or of series."""
    parts = prediction.aggregation
    if parts.smoothing > 0:
        raise ConfigError(f"smoothing is {parts.smoothing}; other calibrations can be tried where it is 0.")
    if calibration is None:
        return prediction
    if level == "series":
        return replace(prediction, calibrated=calibration(parts.series_probability[None])[0])
    posteriors = calibration(parts.posteriors)
    contributions = parts.weights[:, None] * posteriors
    sums = {"contributions": contributions, "series_probability": contributions.sum(axis=0)}
    return replace(prediction, aggregation=replace(parts, posteriors=posteriors, **sums))


def recalibrated(
    model: RAxSSClassifier,
    held: SeriesCollection,
    test: SeriesCollection,
    *,
    ways: Iterable[tuple[str, str]] = WAYS,
    alphas: Sequence[float] = ALPHAS,
) -> Iterator[tuple[tuple[str, str], list[dict[str, Any]]]]:
    """Predictions of an uncalibrated model under each calibration: columns of a row for each test series.

    ``held`` are labelled series that the model was not fitted on; calibrations and sets are fitted on them.
    """
    predictor = model.predictor()
    tried, tested = validation_predictions(predictor, list(held)), list(predictor.predictions(list(test)))
    targets = np.array([class_index(model, item.series.label) for item in tried])
    for method, level in ways:
        calibration = _fitted(method, level, tried, targets)
        tables: dict[str, Any] = {"calibration": {"calibration": method, "calibration_level": level}}
        report = validation_report_of(
            tried,
            targets,
            groups_or_own([item.series for item in tried]),
            model.config_.updated(tables),
            n_classes=len(model.classes_),
            seed=model.seed_,
        )
        summary = replace(
            model.uncertainty_summary(),
            validation_report=report,
            calibrated=method != "none",
            series_calibration=calibration if level == "series" else None,
        )
        scored = (summary.score(calibrated_otherwise(item, calibration, level)) for item in tested)
        yield (method, level), [_columns(item, summary, alphas) for item in scored]


def _fitted(
    method: str, level: str, tried: Sequence[Prediction], targets: np.ndarray[Any, Any]
) -> Calibration | None:
    """The calibration that `RAxSSClassifier.fit` would fit on these validation series."""
    if method == "none":
        return None
    if level == "series":
        return fitted_series_calibration(method, tried, targets)
    return fitted_on_windows(calibration_named(method), [item.usable_posteriors for item in tried], targets)


def class_index(model: RAxSSClassifier, label: Any) -> int:
    """Column of a class."""
    return int(np.flatnonzero(model.classes_ == label)[0])


def _columns(scored: ScoredSeries, summary: UncertaintySummary, alphas: Sequence[float]) -> dict[str, Any]:
    best, found = int(scored.probability.argmax()), scored.interval
    row: dict[str, Any] = {f"probability_{c}": float(p) for c, p in enumerate(scored.probability)}
    for alpha in alphas:
        sets = summary.sets(scored.probability, alpha)
        row |= {f"set_{alpha}_{c}": bool(inside) for c, inside in enumerate(sets)}
    row["low"] = np.nan if found is None else float(found.low[best])
    row["high"] = np.nan if found is None else float(found.high[best])
    return row | {"warned": bool(scored.notes)}


def figures_of(predictions: pd.DataFrame) -> pd.DataFrame:
    """Calibration on test series, all folds together: a row for each calibration.

    ``brier, ece, log_loss, accuracy``; ``width``: mean width of the intervals; ``warned``: share of series
    called unlike the training data.
    """
    rows = []
    for (method, level), some in predictions.groupby(["calibration", "level"], sort=False):
        probabilities, targets = _probabilities(some), some["target"].to_numpy()
        row = {"calibration": method, "level": "" if method == "none" else level, "n": len(some)}
        row |= calibration_figures(targets, probabilities)
        row["accuracy"] = float((probabilities.argmax(axis=1) == targets).mean())
        row["width"] = float((some["high"] - some["low"]).mean())
        rows.append(row | {"warned": float(some["warned"].mean())})
    return pd.DataFrame(rows)


def coverage_of(predictions: pd.DataFrame) -> pd.DataFrame:
    """Coverage of prediction sets against the nominal: a row for each calibration and level.

    ``coverage`` with its standard error over folds, ``least`` of the classes, ``size``: mean number of classes in a
    set, ``abstains``: share of sets without a single class, ``right``: accuracy of sets of one class.
    """
    columns = [str(name) for name in predictions if str(name).startswith("set_")]
    alphas = dict.fromkeys(name.split("_")[1] for name in columns)
    rows = []
    for (method, level), some in predictions.groupby(["calibration", "level"], sort=False):
        targets = some["target"].to_numpy()
        for alpha in alphas:
            own = [name for name in columns if name.startswith(f"set_{alpha}_")]
            sets = some[own].to_numpy(dtype=bool)
            held, alone = sets[np.arange(len(sets)), targets], sets.sum(axis=1) == 1
            by_fold = pd.Series(held).groupby(some["fold"].to_numpy()).mean()
            by_class = pd.Series(held).groupby(targets).mean()
            rows.append(
                {
                    "calibration": method,
                    "level": "" if method == "none" else level,
                    "nominal": 1 - float(alpha),
                    "coverage": float(held.mean()),
                    "error": float(by_fold.std() / np.sqrt(len(by_fold))),
                    "least": float(by_class.min()),
                    "size": float(sets.sum(axis=1).mean()),
                    "abstains": float(1 - alone.mean()),
                    "right": float(held[alone].mean()) if alone.any() else np.nan,
                }
            )
    return pd.DataFrame(rows)


def _probabilities(predictions: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.float64]]:
    return predictions.filter(regex="^probability_").to_numpy(dtype=np.float64)


# As an analysis of a study ------------------------------------------------------------------------------------


@register_analysis("coverage")
@dataclass(frozen=True, kw_only=True)
class Coverage(Analysis):
    """Every calibration of each fitted model, fitted on its validation series.

    ``ways`` are calibrations with their level (``window`` or ``series``), ``alphas`` those of prediction sets: one
    minus the nominal coverage.
    """

    title: ClassVar[str] = "do probabilities and prediction sets keep what they promise?"
    template: ClassVar[str] = "coverage.md.j2"
    outputs: ClassVar[tuple[str, str]] = ("{name}/README.md", "{name}/coverage.csv")

    ways: tuple[tuple[str, str], ...] = WAYS
    alphas: tuple[float, ...] = ALPHAS

    def __post_init__(self) -> None:
        for method, level in self.ways:
            one_of("the calibration", method, ("none", *CALIBRATIONS))
            one_of("the level of a calibration", level, LEVELS)

    def evaluate(self, fitted: FittedModel) -> list[Evaluation]:
        """One evaluation a calibration; its values are prediction sets, intervals and warnings."""
        if not len(fitted.validation):
            raise ConfigError(
                "the validation set has one class alone or no series, and calibrations are fitted on it. Choose "
                "other fractions."
            )
        model = copy.copy(fitted.model).set_params(calibration="none")
        ways = recalibrated(model, fitted.validation, fitted.test, ways=self.ways, alphas=self.alphas)
        evaluations = []
        for (method, level), found in ways:
            table = pd.DataFrame(found).astype(np.float64)
            values = {
                str(name): table[name].to_numpy()
                for name in table
                if not str(name).startswith("probability_")
            }
            settings = {"calibration": method, "level": level}
            evaluations.append(
                Evaluation(settings=settings, probabilities=_probabilities(table), values=values)
            )
        return evaluations

    def rows(self, runs: Sequence[EvaluatedRun], *, n_resamples: int = N_RESAMPLES) -> pd.DataFrame:
        """Calibration and coverage of each fit, and of all test predictions of a system together."""
        rows: list[Row] = []
        for dataset, of_dataset in runs_by("dataset", runs):
            for system, own in runs_by("system", of_dataset):
                tables = [_predictions(run) for run in own]
                pooled = pd.concat(tables, ignore_index=True)
                counts = {"n_seeds": pooled["fold"].nunique(), "n_series": pooled["series"].nunique()}
                rows += [{"dataset": dataset, "system": system} | counts | row for row in _melted(pooled)]
                rows += [
                    fit_of(run.result) | row
                    for run, table in zip(own, tables, strict=True)
                    for row in _melted(table)
                ]
        return tidy(rows)

    def tables(self, rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """``calibration`` and ``coverage``, of all test predictions of a system together."""
        whole, index = over_seeds(rows, differences=False), ["dataset", "system", "calibration", "level"]
        return {
            "calibration": wide(whole[whole["nominal"].isna()], index),
            "coverage": wide(whole[whole["nominal"].notna()], [*index, "nominal"]),
        }

    def page(self, rows: pd.DataFrame, metric: str) -> tuple[dict[str, Any], Plots]:
        """Both tables of each system."""
        systems = []
        for system in dict.fromkeys(rows["system"]):
            tables = self.tables(part(rows, system=system))
            shown = {
                name: data_table(table.drop(columns=["dataset", "system"])) for name, table in tables.items()
            }
            systems.append({"name": system, **shown})
        return {"systems": systems}, {}


def _predictions(run: EvaluatedRun) -> pd.DataFrame:
    """Predictions of one run, a row for each calibration and series; its seed is the fold."""
    result = run.result
    targets = [result.classes.index(label) for label in result.labels]
    parts = []
    for evaluation in run.evaluations:
        about = {"fold": result.seed, "series": result.names, **evaluation.settings, "target": targets}
        probabilities = {f"probability_{c}": column for c, column in enumerate(evaluation.probabilities.T)}
        values = {
            name: some.astype(bool) if name.startswith(("set_", "warned")) else some
            for name, some in evaluation.values.items()
        }
        parts.append(pd.DataFrame({**about, **probabilities, **values}))
    return pd.concat(parts, ignore_index=True)


def _melted(predictions: pd.DataFrame) -> list[Row]:
    """Calibration and coverage of some predictions, a row for each number."""
    rows = []
    for table in (figures_of(predictions), coverage_of(predictions)):
        for row in table.drop(columns="n", errors="ignore").to_dict("records"):
            at = {str(name): row.pop(name) for name in ("calibration", "level", "nominal") if name in row}
            rows += [at | {"metric": str(name), "value": value} for name, value in row.items()]
    return rows
