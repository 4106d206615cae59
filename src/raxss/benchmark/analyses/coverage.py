"""Analysis of coverage: do probabilities, prediction sets and warnings keep what they promise on series held out?

    series, settings -> folds -> one fit each -> every calibration of it -> a row a fold, series and way
    rows             -> calibration figures; coverage of sets against the nominal; false alarms
    collections      -> how often series of one are called unlike those of another

One network a fold: its calibrations are fitted one after the other on the same validation part, since none changes
the network. Test series are seen by nothing before they are scored. Next: scripts/measure_doubt.py runs it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from raxss.benchmark.analyses.analysis import Analysis, Plots, register_analysis
from raxss.benchmark.analyses.probe import Answer, Asked, Probed
from raxss.benchmark.pages.markdown import data_table
from raxss.benchmark.pages.tidy import Row, fit_of, over_seeds, part, tidy, wide
from raxss.benchmark.prediction_tables import by_dataset, by_system
from raxss.benchmark.statistics import N_RESAMPLES
from raxss.data.series import SeriesCollection
from raxss.data.splits import folds
from raxss.errors import ConfigError, one_of
from raxss.estimator.classifier import RAxSSClassifier
from raxss.estimator.config import Config
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
from raxss.uncertainty.ood import OODDetector
from raxss.uncertainty.reliability import calibration_figures
from raxss.uncertainty.summary import ScoredSeries, UncertaintySummary

WAYS = (("none", "window"), *((method, level) for level in LEVELS for method in CALIBRATIONS))
ALPHAS = (0.05, 0.1, 0.2)


def calibrated_otherwise(prediction: Prediction, calibration: Calibration | None, level: str) -> Prediction:
    """The prediction of a chain without calibration, as it would have been with one.

    Examples
    --------
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic()
    >>> model = RAxSSClassifier(window_length=128, stride=64, max_epochs=1, random_state=0, device="cpu")
    >>> model = model.set_params(calibration="temperature").fit(series[:30], validation=series[30:])
    >>> said = model.predict_proba(series[:1])[0]
    >>> (plain,) = model.set_params(calibration="none").predictor().predictions(list(series[:1]))
    >>> bool(np.allclose(calibrated_otherwise(plain, model.calibration_, "window").probability, said))
    True
    """
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


def held_out_answers(
    series: SeriesCollection,
    settings: Config,
    *,
    n_folds: int = 5,
    validation: float = 0.2,
    seed: int = 69421,
    ways: Iterable[tuple[str, str]] = WAYS,
    alphas: Sequence[float] = ALPHAS,
    device: str = "auto",
) -> Iterator[pd.DataFrame]:
    """One table a fold: a row for each test series and way of calibrating.

    Columns: ``fold, series, n_validation, calibration, level, target, probability_<place>...,
    set_<alpha>_<place>..., low, high, warned``. ``target`` is the place of the label among the classes; low and
    high are the interval of the most likely class.
    """
    for place, split in enumerate(folds(series, n_folds=n_folds, validation=validation, seed=seed)):
        train, held, test = split.parts(series)
        model = RAxSSClassifier.from_config(settings, random_state=seed, device=device)
        model.fit(train, validation=held)
        rows: list[dict[str, Any]] = []
        for (method, level), answers in recalibrated(model, held, test, ways=ways, alphas=alphas):
            for item, answer in zip(test, answers, strict=True):
                row = {"fold": place, "series": item.name, "n_validation": len(held)}
                row |= {"calibration": method, "level": level, "target": _place(model, item.label)}
                rows.append(row | answer)
        yield pd.DataFrame(rows)


def recalibrated(
    model: RAxSSClassifier,
    held: SeriesCollection,
    test: SeriesCollection,
    *,
    ways: Iterable[tuple[str, str]] = WAYS,
    alphas: Sequence[float] = ALPHAS,
) -> Iterator[tuple[tuple[str, str], list[dict[str, Any]]]]:
    """A fitted model without calibration, under each: what it says of every test series, as columns of a row.

    Parameters
    ----------
    held
        Labelled series that the model has not learned from; calibrations and sets are fitted on them.
    """
    predictor = model.predictor()
    tried, tested = validation_predictions(predictor, list(held)), list(predictor.predictions(list(test)))
    for method, level in ways:
        map_ = _fitted(model, tried, method, level)
        doubt = _doubt_of(model, tried, method, level, map_)
        said = (doubt.answer(calibrated_otherwise(item, map_, level)) for item in tested)
        yield (method, level), [_columns(answer, doubt, alphas) for answer in said]


def _fitted(
    model: RAxSSClassifier, tried: Sequence[Prediction], method: str, level: str
) -> Calibration | None:
    """What `RAxSSClassifier.fit` would have fitted on this validation part."""
    targets = np.array([_place(model, item.series.label) for item in tried])
    if method == "none":
        return None
    if level == "series":
        return fitted_series_calibration(method, tried, targets)
    return fitted_on_windows(calibration_named(method), [item.usable_posteriors for item in tried], targets)


def _doubt_of(
    model: RAxSSClassifier, tried: Sequence[Prediction], method: str, level: str, map_: Calibration | None
) -> UncertaintySummary:
    """What the model would know of its limits with this calibration."""
    targets = np.array([_place(model, item.series.label) for item in tried])
    tables: dict[str, Any] = {"calibration": {"calibration": method, "calibration_level": level}}
    trial = validation_report_of(
        tried,
        targets,
        groups_or_own([item.series for item in tried]),
        model.config_.updated(tables),
        n_classes=len(model.classes_),
        seed=model.seed_,
    )
    by_series = map_ if level == "series" else None
    return replace(
        model.uncertainty_summary(),
        validation_report=trial,
        calibrated=method != "none",
        series_calibration=by_series,
    )


def _place(model: RAxSSClassifier, label: Any) -> int:
    return int(np.flatnonzero(model.classes_ == label)[0])


def _columns(answer: ScoredSeries, doubt: UncertaintySummary, alphas: Sequence[float]) -> dict[str, Any]:
    best, found = int(answer.probability.argmax()), answer.interval
    row: dict[str, Any] = {f"probability_{c}": float(p) for c, p in enumerate(answer.probability)}
    for alpha in alphas:
        sets = doubt.sets(answer.probability, alpha)
        row |= {f"set_{alpha}_{c}": bool(inside) for c, inside in enumerate(sets)}
    row["low"] = np.nan if found is None else float(found.low[best])
    row["high"] = np.nan if found is None else float(found.high[best])
    return row | {"warned": bool(answer.notes)}


def figures_of(answers: pd.DataFrame) -> pd.DataFrame:
    """Calibration on the series held out, all folds together: a row a way.

    ``brier, ece, log_loss, accuracy``; ``width`` the mean width of the intervals, ``warned`` the share of series
    that were called unlike the training data.
    """
    rows = []
    for (method, level), some in answers.groupby(["calibration", "level"], sort=False):
        said, targets = _probabilities(some), some["target"].to_numpy()
        row = {"calibration": method, "level": "" if method == "none" else level, "n": len(some)}
        row |= calibration_figures(targets, said)
        row["accuracy"] = float((said.argmax(axis=1) == targets).mean())
        row["width"] = float((some["high"] - some["low"]).mean())
        rows.append(row | {"warned": float(some["warned"].mean())})
    return pd.DataFrame(rows)


def coverage_of(answers: pd.DataFrame) -> pd.DataFrame:
    """How often prediction sets held the truth, against the nominal: a row a way and level.

    ``coverage`` with its standard error over folds, ``least`` of the classes, ``size`` the mean number of classes
    in a set, ``abstains`` the share of sets without a single answer, ``right`` the share of right ones among the
    answers.
    """
    all_columns = [str(answer) for answer in answers]
    names = [
        all_column.split("_")[1]
        for all_column in all_columns
        if all_column.startswith("set_") and all_column.endswith("_0")
    ]
    rows = []
    for (method, level), some in answers.groupby(["calibration", "level"], sort=False):
        targets = some["target"].to_numpy()
        for name in names:
            columns = [all_column for all_column in all_columns if all_column.startswith(f"set_{name}_")]
            sets = some[columns].to_numpy(dtype=bool)
            held, alone = sets[np.arange(len(sets)), targets], sets.sum(axis=1) == 1
            by_fold = pd.Series(held).groupby(some["fold"].to_numpy()).mean()
            by_class = pd.Series(held).groupby(targets).mean()
            rows.append(
                {
                    "calibration": method,
                    "level": "" if method == "none" else level,
                    "nominal": 1 - float(name),
                    "coverage": float(held.mean()),
                    "error": float(by_fold.std() / np.sqrt(len(by_fold))),
                    "least": float(by_class.min()),
                    "size": float(sets.sum(axis=1).mean()),
                    "abstains": float(1 - alone.mean()),
                    "right": float(held[alone].mean()) if alone.any() else np.nan,
                }
            )
    return pd.DataFrame(rows)


def alarms(
    collections: Mapping[str, SeriesCollection], *, share: float = 0.7, most: int = 200, seed: int = 69421
) -> pd.DataFrame:
    """How often series are called unlike those learned from, by length and spectrum alone: a row a pair.

    ``learned, given, n, length, spectrum``: what a share of was learned from, what was given (of the same
    collection the rest: false alarms), up to ``most`` series of it, and the share of them that was warned of for
    either. Rates, which would give most foreign series away, are left aside.

    Examples
    --------
    >>> from raxss.data.datasets import load_sample, load_synthetic
    >>> found = alarms({"ecg": load_sample()[:60], "noise": load_synthetic()})
    >>> found.query("learned != given")["spectrum"].tolist()
    [1.0, 1.0]
    """
    rows = []
    drawn = {
        name: np.random.default_rng(seed).permutation(len(collection))
        for name, collection in collections.items()
    }
    for learned, own in collections.items():
        n_known = int(share * len(own))
        familiar = OODDetector.of([own[int(place)] for place in drawn[learned][:n_known]])
        for given, series in collections.items():
            left = drawn[given][n_known:] if given == learned else drawn[given]
            notes = [familiar.notes(series[int(place)]) for place in left[:most]]
            told = [{item.split()[1] for item in some} for some in notes]  # the recording, its spectrum
            rows.append(
                {
                    "learned": learned,
                    "given": given,
                    "n": len(told),
                    "length": float(np.mean(["recording" in item for item in told])),
                    "spectrum": float(np.mean(["spectrum" in item for item in told])),
                }
            )
    return pd.DataFrame(rows)


def _probabilities(answers: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.float64]]:
    columns = [item for item in map(str, answers) if item.startswith("probability_")]
    return answers[columns].to_numpy(dtype=np.float64)


# As an analysis of a study ------------------------------------------------------------------------------------


@register_analysis("coverage")
@dataclass(frozen=True, kw_only=True)
class Coverage(Analysis):
    """Every calibration of each fitted model, fitted on its validation part: what it promises and what it keeps.

    Attributes
    ----------
    ways
        Calibration and level (``window`` or ``series``).
    alphas
        Of prediction sets: one minus the nominal coverage.
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

    def ask(self, asked: Asked) -> list[Answer]:
        """One answer a calibration; beside probabilities, who is in which set, intervals and warnings."""
        if not len(asked.validation):
            raise ConfigError(
                "the validation part has one class alone or no series, and calibrations are fitted on it. Choose "
                "other fractions."
            )
        model = copy.copy(asked.model).set_params(calibration="none")
        answers = []
        for (method, level), found in recalibrated(
            model, asked.validation, asked.test, ways=self.ways, alphas=self.alphas
        ):
            table = pd.DataFrame(found).astype(np.float64)
            values = {str(name): table[name].to_numpy() for name in table if not _is_probability(name)}
            question = {"calibration": method, "level": level}
            answers.append(Answer(question=question, probabilities=_probabilities(table), values=values))
        return answers

    def rows(self, probed: Sequence[Probed], *, n_resamples: int = N_RESAMPLES) -> pd.DataFrame:
        """Calibration and coverage of each fit, and of all test predictions of a system together."""
        rows: list[Row] = []
        for dataset, of_dataset in by_dataset(probed):
            for system, own in by_system(of_dataset):
                answers = pd.concat([_answers(item) for item in own], ignore_index=True)
                counts = {"n_seeds": answers["fold"].nunique(), "n_series": answers["series"].nunique()}
                at = {"dataset": dataset, "system": system}
                rows += [at | counts | row for row in _melted(answers)]
                rows += [fit_of(item.result) | row for item in own for row in _melted(_answers(item))]
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


def _is_probability(name: Any) -> bool:
    return str(name).startswith("probability_")


def _answers(probed: Probed) -> pd.DataFrame:
    """The answers of one fit as `held_out_answers` has them; its seed is the fold."""
    result = probed.result
    targets = [result.classes.index(label) for label in result.labels]
    parts = []
    for answer in probed.answers:
        said = {f"probability_{c}": answer.probabilities[:, c] for c in range(len(result.classes))}
        about = {"fold": result.seed, "series": result.names, **answer.question, "target": targets}
        values = {
            name: some.astype(bool) if name.startswith(("set_", "warned")) else some
            for name, some in answer.values.items()
        }
        parts.append(pd.DataFrame({**about, **said, **values}))
    return pd.concat(parts, ignore_index=True)


def _melted(answers: pd.DataFrame) -> list[Row]:
    """Figures and coverage of some answers, a row for each number."""
    rows = []
    for table in (figures_of(answers), coverage_of(answers)):
        for item in table.drop(columns="n", errors="ignore").to_dict("records"):
            at = {str(name): item.pop(name) for name in ("calibration", "level", "nominal") if name in item}
            rows += [at | {"metric": str(name), "value": value} for name, value in item.items()]
    return rows
