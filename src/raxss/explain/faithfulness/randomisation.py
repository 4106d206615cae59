"""Retrieval randomisation and parameter randomisation: how far scores and evidence move.

    shuffled      each window gets the list, and so the support, of another window of its series
    other series  the most similar windows of other series in place of those of its own
    inverted      what was supported most counts least (weights softmax(-s / tau))

Neighbours that can be swapped without effect are no reasons. Evidence that stays while the network is destroyed
shows the signal, or the method, and not the model (Adebayo et al., 2018); weights from the signal alone stay by
construction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from raxss.data.series import Series
from raxss.explain.faithfulness.model_adapter import (
    ModelAdapter,
    WindowAttribution,
    WindowModelAdapter,
    scrambled,
)
from raxss.explain.faithfulness.timeline import rank_correlation, top_overlap
from raxss.method.aggregation import Aggregation
from raxss.method.inference import Prediction, Predictor
from raxss.method.retrieval.search import Retrieval
from raxss.method.weighting.protocol import weighting_named
from raxss.method.windows import windows_of

Floats = NDArray[np.float64]
SHUFFLED, OTHERS, INVERTED = CONTROLS = ("shuffled", "other series", "inverted")
WINDOWS_OF_A_SERIES = 200  # in the bank of other series, at most
WINDOWS_AT_ONCE = 1024
MOST_STEPS = 8


def randomised_retrieval(
    adapter: ModelAdapter, series: Sequence[Series], *, seed: int = 0
) -> Iterator[list[dict[str, Any]]]:
    """For each series a row for each control: what moved, and how far.

    ``other series`` needs two series at least, ``inverted`` a weighting that has an inverse.

    Rows: ``control``; ``moved``, the distance of the probability of the class that was predicted;
    ``weights_moved``, half the sum of the changes of weights, from 0 to 1; ``rank_correlation`` and
    ``top_overlap`` of contributions; ``flipped``; ``probability``, of each class.
    """
    assert isinstance(adapter, WindowModelAdapter), "no other adapter has neighbours"
    predictor = adapter.predictor
    inverse = weighting_named(predictor.weighting).inverse
    generator = np.random.default_rng(seed)
    predictions = list(predictor.predictions(list(series)))
    vectors = [compared_by(predictor, prediction) for prediction in predictions]
    for place, prediction in enumerate(predictions):
        changed = {SHUFFLED: _shuffled(predictor, prediction, generator)}
        if inverse is not None:
            changed[INVERTED] = _again(replace(predictor, weighting=inverse), prediction, _lists(prediction))
        if len(predictions) > 1:
            changed[OTHERS] = _of_others(predictor, predictions, vectors, place, generator)
        yield [_row(name, prediction.aggregation, changed[name]) for name in CONTROLS if name in changed]


def compared_by(predictor: Predictor, prediction: Prediction) -> Floats:
    """Rows of length 1 ``(n_windows, d)`` whose products are similarities: features, or centred windows."""
    if predictor.retrieval.space == "features":
        scores = next(predictor.window_scores([prediction.series], with_features=True))
        assert scores.features is not None, "with_features=True returns them"
        rows = predictor.compared(scores.features)
    else:
        scaled = predictor.scaling.apply(prediction.series)
        windows = windows_of(scaled, window_length=predictor.window_length, stride=predictor.stride).samples
        rows = np.nan_to_num(np.asarray(windows, dtype=np.float64))
        if predictor.retrieval.measure == "pearson":
            rows = rows - rows.mean(axis=-1, keepdims=True)
        rows = rows.reshape(len(rows), -1)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)


def _again(
    predictor: Predictor, prediction: Prediction, retrieval: Retrieval, posteriors: Floats | None = None
) -> Aggregation:
    """Aggregate a prediction again, with another predictor, other lists or other posteriors."""
    own = prediction.aggregation
    posteriors = own.posteriors if posteriors is None else posteriors
    return predictor.aggregate(prediction.series, prediction.windows, posteriors, retrieval, own.gate)


def _lists(prediction: Prediction) -> Retrieval:
    assert prediction.retrieval is not None, "predictions have lists by default"
    return prediction.retrieval


def _shuffled(predictor: Predictor, prediction: Prediction, generator: np.random.Generator) -> Aggregation:
    retrieval = _lists(prediction)
    usable = np.flatnonzero(~np.isnan(retrieval.support))
    dealt = np.arange(len(retrieval.support))
    dealt[usable] = generator.permutation(usable)
    dealt_out = replace(retrieval, support=retrieval.support[dealt], neighbors=retrieval.neighbors[dealt])
    return _again(predictor, prediction, dealt_out)


def _of_others(
    predictor: Predictor,
    predictions: Sequence[Prediction],
    vectors: Sequence[Floats],
    place: int,
    generator: np.random.Generator,
) -> Aggregation:
    """Aggregation with neighbours from windows of other series."""
    # some of each, so that one long series is not the whole bank
    some = {
        k: generator.permutation(len(vectors[k]))[:WINDOWS_OF_A_SERIES]
        for k in range(len(predictions))
        if k != place
    }
    bank = np.concatenate([vectors[k][rows] for k, rows in some.items()])
    bank_posteriors = np.concatenate(
        [predictions[k].aggregation.posteriors[rows] for k, rows in some.items()]
    )
    m = min(predictor.retrieval.n_neighbors, len(bank))
    own = predictions[place].aggregation
    support, neighbor_posteriors = np.empty(len(own.support)), np.empty_like(own.posteriors)
    for first in range(0, len(support), WINDOWS_AT_ONCE):
        which = slice(first, first + WINDOWS_AT_ONCE)
        similarity = vectors[place][which] @ bank.T
        best = np.argpartition(-similarity, m - 1, axis=1)[:, :m]
        support[which] = np.take_along_axis(similarity, best, axis=1).mean(axis=1)
        neighbor_posteriors[which] = bank_posteriors[best].mean(axis=1)
    support[np.isnan(own.support)] = np.nan
    smoothing = predictor.smoothing
    # smoothed here, by posteriors of others
    posteriors = (1 - smoothing) * own.posteriors + smoothing * neighbor_posteriors
    found = replace(_lists(predictions[place]), support=support)
    return _again(replace(predictor, smoothing=0.0), predictions[place], found, posteriors)


def _row(control: str, before: Aggregation, after: Aggregation) -> dict[str, Any]:
    class_ = int(before.series_probability.argmax())
    contributions = [
        item.contributions[:, class_] - item.weights * item.series_probability[class_]
        for item in (before, after)
    ]
    return {
        "control": control,
        "moved": float(abs(after.series_probability[class_] - before.series_probability[class_])),
        "weights_moved": float(np.abs(after.weights - before.weights).sum() / 2),
        "rank_correlation": rank_correlation(*contributions),
        "top_overlap": top_overlap(*contributions),
        "flipped": bool(after.series_probability.argmax() != class_),
        "probability": after.series_probability.round(8).tolist(),
    }


def layers_from_the_top(network: nn.Module, n_most: int = MOST_STEPS) -> list[list[str]]:
    """Names of modules that hold parameters themselves, the last first, in at most so many portions."""
    own: dict[str, None] = {}
    for name, _ in network.named_parameters():
        own.setdefault(name.rpartition(".")[0] or name)
    names = [*own][::-1]
    portions = np.array_split(np.arange(len(names)), min(n_most, len(names))) if names else []
    return [[names[place] for place in some] for some in portions]


def randomised_network(
    adapter: ModelAdapter, attributions: Sequence[WindowAttribution], *, seed: int = 0
) -> Iterator[list[dict[str, Any]]]:
    """For each step of the cascade a list with a row for each series.

    Rows: ``step``, from 1; ``layers``, those that were scrambled last; ``share``, of the layers scrambled so far;
    ``rank_correlation`` and ``top_overlap`` of contributions to the class that was predicted before;
    ``posterior_correlation``, ``weight_correlation`` (None where weights are equal); ``moved`` as in
    `randomised_retrieval`; ``probability``.
    """
    portions = layers_from_the_top(adapter.network)
    series: list[Series] = [item.series for item in attributions]
    gone: list[str] = []
    for step, names in enumerate(portions, start=1):
        gone += names
        other = adapter.with_network(scrambled(adapter.network, gone, seed=seed))
        facts = {"step": step, "layers": ", ".join(names), "share": len(gone) / sum(map(len, portions))}
        yield [
            {**facts, **_compared(before, after)}
            for before, after in zip(attributions, other.attributions(series), strict=True)
        ]


def _compared(before: WindowAttribution, after: WindowAttribution) -> dict[str, Any]:
    class_ = before.predicted
    both = before.contributions(class_), after.contributions(class_)
    weighs = before.weights_differ
    return {
        "rank_correlation": rank_correlation(*both),
        "top_overlap": top_overlap(*both),
        "posterior_correlation": rank_correlation(before.posteriors[:, class_], after.posteriors[:, class_]),
        "weight_correlation": rank_correlation(before.weights, after.weights) if weighs else None,
        "moved": float(abs(after.probability[class_] - before.probability[class_])),
        "probability": after.probability.round(8).tolist(),
    }
