"""Scores of many perturbed copies of a series, in one pass over the windows that differ.

    Predictor, copies -> distinct windows -> logits and features of each, once -> neighbours of all copies at once
        -> series probabilities (n_copies, C)

The same numbers as `Predictor.predictions`, up to the last bits of float32: windows are batched otherwise. Lists of
neighbours are exact in both. The cache of retrievals is not used: no copy comes again.
Next: model_adapter.py scores copies in this way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from raxss.data.series import Series
from raxss.explain.faithfulness.distinct_windows import WINDOWS_AT_ONCE, Distinct, distinct_windows, portions
from raxss.method.backbones.protocol import logits_and_features
from raxss.method.inference import Predictor
from raxss.method.retrieval.search import Retrieval
from raxss.method.window_scorer import exact_arithmetic
from raxss.method.windows import windows_of

Floats = NDArray[np.float64]
FEATURE_BYTES = 2**29  # of the windows of copies that are looked at together


def probabilities_of_copies(predictor: Predictor, copies: Sequence[Series]) -> Floats:
    """Sums over windows ``(n_copies, C)``, before any calibration of series.

    Copies may have different lengths; those of one length are looked at together.
    """
    most = WINDOWS_AT_ONCE
    if _needs_features(predictor):
        most = min(most, FEATURE_BYTES // (8 * max(len(predictor.feature_mean), 1)))
    found: Floats | None = None
    sizes = {"window_length": predictor.window_length, "stride": predictor.stride}
    for places in portions(copies, **sizes, most=most):
        some = [copies[place] for place in places]
        streamed = predictor.n_windows(some[0]) > WINDOWS_AT_ONCE  # and so need not be held
        scores = one_by_one(predictor, some) if streamed else _at_once(predictor, some)
        if found is None:
            found = np.empty((len(copies), scores.shape[1]))
        found[places] = scores
    assert found is not None, "callers give one copy at least"
    return found


def one_by_one(predictor: Predictor, copies: list[Series]) -> Floats:
    """The same sums with one series in memory at a time."""
    found = predictor.predictions(copies, with_lists=False)
    return np.stack([item.aggregation.series_probability for item in found])


def _needs_features(predictor: Predictor) -> bool:
    in_features = predictor.retrieves and predictor.retrieval.space == "features"
    return predictor.gated or in_features


def _at_once(predictor: Predictor, copies: list[Series]) -> Floats:
    """Of copies of one length."""
    scaled = [predictor.scaling.apply(copy) for copy in copies]
    cut = [
        windows_of(item, window_length=predictor.window_length, stride=predictor.stride) for item in scaled
    ]
    distinct = distinct_windows(cut)
    logits, features = _scored(predictor, distinct)
    gate = predictor.standardise(features)
    _, posteriors = predictor.window_posteriors(logits)
    lists: Sequence[Retrieval | None] = [None] * len(copies)
    if predictor.retrieves:
        compared = None if features is None else predictor.compared(features)
        lists = predictor.neighbors_of(
            scaled, None if compared is None else [compared[rows] for rows in distinct.places]
        )
    aggregations = [
        predictor.aggregate(copy, windows, posteriors[rows], found, None if gate is None else gate[rows])
        for copy, windows, rows, found in zip(copies, cut, distinct.places, lists, strict=True)
    ]
    return np.stack([item.series_probability for item in aggregations])


def _scored(predictor: Predictor, distinct: Distinct) -> tuple[torch.Tensor, Floats | None]:
    """Logits ``(n_distinct, n_outputs)`` on the CPU, and features ``(n_distinct, d)`` where they are needed."""
    network = predictor.backbone.to(predictor.device).eval()
    wanted = _needs_features(predictor)
    logits, features = [], []
    with torch.inference_mode(), exact_arithmetic():
        for _, windows in distinct.passes(predictor.device):
            if wanted:
                some, vectors = logits_and_features(network, windows)
                features.append(vectors.double().cpu())
            else:
                some = network(windows)
            logits.append(some.float())
        return torch.cat(logits).cpu(), torch.cat(features).numpy() if wanted else None
