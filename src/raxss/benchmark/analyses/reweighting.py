"""Reweighting: predictions of a fitted model under every setting of retrieval and aggregation.

    a fitted model, series -> one pass of the network, one retrieval for each space and exclusion
        -> the probability of every series under every setting, one row each

A weighting that carries information does worse when it is inverted or shuffled, so both controls are included; and
three poolings without it: equal weights, a mean of log-odds, the surest tenth of the windows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raxss.errors import ConfigError, SignalError, did_you_mean, one_of
from raxss.estimator.classifier import RAxSSClassifier
from raxss.method.aggregation import smooth_posteriors
from raxss.method.feature_heads import heads_in_use
from raxss.method.inference import Predictor, WindowScores
from raxss.method.retrieval.search import Retrieval
from raxss.method.weighting.protocol import WEIGHTINGS, influence, weighting_named
from raxss.method.weighting.support import UNIFORM

SUREST = 1e-12  # least probability inside a logarithm
TENTH = 0.1  # share of windows of the pooling "top tenth"

Space = Literal["signal", "features"]


def twins() -> dict[str, tuple[str, str, str]]:
    """Each registered weighting with its inverted and its shuffled control.

    >>> twins()["support"]
    ('support', 'inverse', 'shuffled')
    """
    return {
        name: (name, item.inverse, item.shuffled)
        for name, item in WEIGHTINGS.items()
        if item.inverse is not None and item.shuffled is not None
    }


@dataclass(frozen=True, kw_only=True)
class Cross:
    """A cross of settings."""

    weightings: Sequence[str] = ("support",)  # keys of `twins`; "gated" is for models fitted with a gate
    spaces: Sequence[Space] = ("signal", "features")
    exclusions: Sequence[int | float] = (0, 0.5)  # in samples (int) or window lengths (float)
    temperatures: Sequence[float] = (0.02, 0.05, 0.1, 0.2, 0.5)
    smoothings: Sequence[float] = (0.0, 0.5)  # 0 should be among them: no smoothing

    def __post_init__(self) -> None:
        for name in self.weightings:
            one_of("weightings", name, tuple(twins()))
        for name in ("weightings", "spaces", "exclusions", "temperatures", "smoothings"):
            if not len(getattr(self, name)):
                raise ConfigError(f"{name} of the cross is empty; give at least one value, or leave it out.")
        if min(self.temperatures) <= 0:
            raise ConfigError(f"temperatures of the cross must be above 0, got {min(self.temperatures)}.")
        if not 0 <= min(self.smoothings) <= max(self.smoothings) <= 1:
            raise ConfigError(
                f"smoothings of the cross must lie between 0 and 1, got {list(self.smoothings)}."
            )

    @property
    def lists(self) -> list[tuple[Space, int | float]]:
        """Settings of the retrievals: each space with each exclusion."""
        return list(itertools.product(self.spaces, self.exclusions))

    def rows(self) -> pd.DataFrame:
        """One row a setting, in the order in which `reweigh` computes them."""
        found = []
        for space, exclusion in self.lists:
            named = [twin for name in self.weightings for twin in twins()[name]]
            weights = [*itertools.product(named, self.temperatures), (UNIFORM, np.nan)]
            ways = [(*item, pooling) for item in weights for pooling in ("mean", "logit")]
            ways.append((UNIFORM, np.nan, "top tenth"))
            for (weighting, temperature, pooling), smoothing in itertools.product(ways, self.smoothings):
                found.append((space, exclusion, weighting, temperature, pooling, smoothing))
        columns = ["space", "exclusion", "weighting", "temperature", "pooling", "smoothing"]
        table = pd.DataFrame(found, columns=columns)
        # As numbers of one kind, 1 sample and 1.0 windows of exclusion would be the same.
        return table.assign(exclusion=pd.Series([item[1] for item in found], dtype=object))


def cross_for(model: RAxSSClassifier, cross: Cross) -> Cross:
    """The cross with the weighting family of the model, such as gated weights."""
    own = weighting_named(model.weighting).family
    if own not in cross.weightings:
        return replace(cross, weightings=(*cross.weightings, own))
    return cross


def reweigh(
    model: RAxSSClassifier, X: Any, cross: Cross | None = None, *, positive: Any = None
) -> pd.DataFrame:
    """The probabilities of series under every setting of a cross, from one pass of the network.

    Parameters
    ----------
    model
        Fitted. Number of neighbours, measure, spread, bank, calibration and stride are as they stand.
    X
        Series, in any of the forms that ``model.predict_proba`` takes.
    positive
        Of two classes the one of the pooling ``"top tenth"``; by default the last of ``model.classes_``.

    Returns
    -------
    One row a series and setting: ``series, label, space, exclusion, weighting, temperature, pooling, smoothing,
    probability_<class>...``. Under the pooling ``"mean"`` a row is what ``model.set_params(...)`` with its settings
    predicts. ``"logit"``: the weighted mean of the logarithms of the posteriors, softmax back; for two classes that
    is the mean log-odds. ``"top tenth"``: the mean over the tenth of the windows in which a class is most likely
    (of two ``positive``; of several each, and the means are scaled to sum 1). ``uniform`` stands in every
    block of space, exclusion and smoothing, so that each has its own to be compared with.

    Examples
    --------
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic()
    >>> model = RAxSSClassifier(window_length=128, stride=32, max_epochs=1, random_state=0).fit(series)
    >>> table = reweigh(model, series[:3], Cross(spaces=["signal"], temperatures=[0.1], smoothings=[0.0]))
    >>> table.loc[table["series"] == "motif-000", ["exclusion", "weighting", "pooling"]].drop_duplicates().shape
    (18, 3)
    """
    cross = cross or Cross()
    rows = cross.rows()
    series = model.known_series(X)
    found = reweighted(model, series, cross, positive=positive)
    columns = [f"probability_{name}" for name in model.classes_]
    tables = [
        rows.assign(series=item.name, label=item.label, **dict(zip(columns, found[:, k].T, strict=True)))
        for k, item in enumerate(series)
    ]
    return pd.concat(tables, ignore_index=True)[["series", "label", *rows, *columns]]


def reweighted(
    model: RAxSSClassifier, X: Any, cross: Cross, *, positive: Any = None
) -> NDArray[np.float64]:  # (n_settings, n_series, C)
    """The probabilities of `reweigh` alone, settings in the order of ``cross.rows()``."""
    predictor = model.predictor()
    gated = needs_gate(model, cross.weightings)
    classes = model.classes_.tolist()
    positive = classes[-1] if positive is None else positive
    if positive not in classes:
        raise ConfigError(f"positive is {positive!r}{did_you_mean(str(positive), list(map(str, classes)))}")
    series = model.known_series(X)
    scores = list(predictor.window_scores(series, with_features=gated or "features" in cross.spaces))
    found = [_retrieved(predictor, scores, *item) for item in cross.lists]
    column = classes.index(positive)
    parts = [
        np.concatenate([_one_list(predictor, score, lists[place], cross, column) for lists in found])
        for place, score in enumerate(scores)
    ]
    return np.stack(parts, axis=1)


def weighed(
    model: RAxSSClassifier, X: Any, weightings: Sequence[str]
) -> NDArray[np.float64]:  # (n_weightings, n_series, C)
    """Series probabilities under several weightings, all else as the model stands, from one pass of the network."""
    predictor = model.predictor()
    gated = needs_gate(model, weightings)
    space, exclusion = predictor.retrieval.space, predictor.retrieval.exclusion
    retrieves = predictor.smoothing > 0 or any(weighting_named(item).needs_retrieval for item in weightings)
    in_features = retrieves and space == "features"
    series = model.known_series(X)
    scores = list(predictor.window_scores(series, with_features=in_features or gated))
    found: Sequence[Retrieval | None] = [None] * len(scores)
    if retrieves:
        found = _retrieved(predictor, scores, space, exclusion)

    def probability(weighting: str, score: WindowScores, lists: Retrieval | None) -> NDArray[np.float64]:
        other = replace(predictor, weighting=weighting)
        parts = other.aggregate(score.series, score.windows, score.posteriors, lists, score.gate)
        return other.calibrate(parts.series_probability)

    pairs = list(zip(scores, found, strict=True))
    return np.stack([[probability(name, *pair) for pair in pairs] for name in weightings])


def needs_gate(model: RAxSSClassifier, weightings: Sequence[str]) -> bool:
    """Whether any of these weightings needs a gate; raise if the model has none."""
    for name in weightings:
        heads_in_use(model.heads_, projection=0, weighting=name)
    return any(weighting_named(name).needs_gate for name in weightings)


def _retrieved(
    predictor: Predictor, scores: list[WindowScores], space: Space, exclusion: int | float
) -> list[Retrieval]:
    """The neighbours of every window of every series, in one space with one exclusion."""
    other = replace(predictor, retrieval=replace(predictor.retrieval, space=space, exclusion=exclusion))
    compared = [other.compared(score.features) for score in scores if score.features is not None]
    return other.neighbors_of([score.scaled for score in scores], compared if space == "features" else None)


def _one_list(
    predictor: Predictor, scores: WindowScores, retrieval: Retrieval, cross: Cross, positive: int
) -> NDArray[np.float64]:  # (n_settings of one list, C)
    """One series with one retrieval under all weights, temperatures, poolings and smoothings.

    Twin of `Predictor.aggregate` for all settings, as a few matrix products; the pooling ``"mean"`` is the same sum
    (Eq. 3) up to rounding.
    """
    usable = ~np.isnan(retrieval.support)
    if not usable.any():
        raise SignalError(
            f"none of the {len(usable)} windows of series {scores.series.name!r} can be used: more than half "
            "of the samples of each are missing. Leave this series out, or fill its gaps."
        )
    posteriors = np.where(usable[:, None], scores.posteriors, 0.0)
    if not np.isfinite(posteriors).all():
        raise SignalError(
            f"posteriors of series {scores.series.name!r} are not finite; the network has diverged. Check the "
            "scaling, or lower lr."
        )
    smoothed = np.stack(  # (S, n, C)
        [
            smooth_posteriors(posteriors, retrieval.neighbors, smoothing, left_out=~usable | retrieval.flat)
            for smoothing in cross.smoothings
        ]
    )[:, usable]
    weights = np.concatenate(list(_weights(predictor, scores, retrieval, cross)))[:, usable]  # (W, n)
    means, logs = (
        np.tensordot(weights, item, axes=(1, 1))  # (W, S, C)
        for item in (smoothed, np.log(np.maximum(smoothed, SUREST)))
    )
    powers = np.exp(logs - logs.max(axis=-1, keepdims=True))
    both = np.stack([means, powers / powers.sum(axis=-1, keepdims=True)], axis=1)  # (W, 2, S, C)
    n_classes = posteriors.shape[1]
    return predictor.calibrate(np.concatenate([both.reshape(-1, n_classes), _top_tenth(smoothed, positive)]))


def _weights(
    predictor: Predictor, scores: WindowScores, retrieval: Retrieval, cross: Cross
) -> Iterator[NDArray[np.float64]]:  # (n_temperatures, n_windows)
    """Weights (Eq. 2) of each weighting and control at each temperature, then equal ones."""
    sharpness = 1.0 / np.array(cross.temperatures)[:, None]
    for twin in itertools.chain.from_iterable(twins()[name] for name in cross.weightings):
        seed = predictor.seed_of(scores.series)
        values = influence(retrieval.support, twin, seed=seed, gate=scores.gate)
        powers = np.exp(np.nan_to_num((values - np.nanmax(values)) * sharpness, nan=-np.inf))
        yield powers / powers.sum(axis=1, keepdims=True)
    usable = ~np.isnan(retrieval.support)
    yield (usable / usable.sum())[None]


def _top_tenth(posteriors: NDArray[np.float64], positive: int) -> NDArray[np.float64]:  # (S, n, C) -> (S, C)
    """Mean over the tenth of the windows, one at least, that are surest of a class."""
    n_windows = posteriors.shape[1]
    n_top = max(round(TENTH * n_windows), 1)
    means = -np.sort(-posteriors, axis=1)[:, :n_top].mean(axis=1)
    if means.shape[1] == 2:
        sure = means[:, positive]
        return np.stack([sure, 1.0 - sure] if positive == 0 else [1.0 - sure, sure], axis=1)
    return means / means.sum(axis=1, keepdims=True)
