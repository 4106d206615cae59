"""Inference: scores of series from a fitted network, one series after the other.

    series -> scaled windows -> posteriors (calibrated, smoothed), support -> series probability and its parts

A GPU retrieves for many short series at once and works a few series ahead; the CPU takes one after the other.
That does not change a score. `Predictor.aggregate` is the one path from windows to a score.
"""

from __future__ import annotations

import functools
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from raxss._core.memory import in_batches
from raxss.data.prepare.preprocessing import Scaling
from raxss.data.series import Series
from raxss.method.aggregation import Aggregation, aggregate, posteriors_of
from raxss.method.context import ContextRule, constant_context, mean_context, takes_context
from raxss.method.feature_heads import FeatureHeads
from raxss.method.retrieval.cache import cached_retrieve_many
from raxss.method.retrieval.front import RetrievalConfig, retrieve_many
from raxss.method.retrieval.search import Retrieval
from raxss.method.weighting.protocol import weighting_named
from raxss.method.weighting.support import UNIFORM
from raxss.method.window_scorer import Scorer, Scores
from raxss.method.windows import Windows, window_starts, windows_of

LISTED_AT_ONCE = 2**23  # neighbors of short series that a GPU finds together: 128 MB
SERIES_AHEAD = {"cpu": 0, "cuda": 3}  # launched before the first of them is aggregated
WINDOWS_OF_A_LONG_SERIES = 200_000  # from here on one ahead is enough: the lists of each take 32 MB and more
PAIRS_A_SCORE = 300_000  # window pairs compared in the time of scoring one window, roughly, on CPU and GPU


class ProbabilityMap(Protocol):
    """A fitted calibration, as far as inference needs it."""

    method: ClassVar[str]

    def __call__(self, posteriors: ArrayLike) -> NDArray[np.float64]:
        """``(n, C)`` -> ``(n, C)``."""
        ...


@dataclass(frozen=True, eq=False)
class Prediction:
    """One series and its score."""

    series: Series
    windows: Windows
    retrieval: Retrieval | None  # None where only the score was requested and needs no neighbours
    aggregation: Aggregation
    uncalibrated: NDArray[np.float64] | None  # (n_windows, C); None without a calibration of windows
    calibrated: NDArray[np.float64] | None = None  # (C,); None without a calibration of series
    features: NDArray[np.float32] | None = (
        None  # (n_windows, d) as the network gives them, where they were kept
    )

    @property
    def probability(self) -> NDArray[np.float64]:
        """``(C,)`` the series probability, calibrated where there is a calibration of series."""
        return self.aggregation.series_probability if self.calibrated is None else self.calibrated

    @property
    def usable_posteriors(self) -> NDArray[np.float64]:
        """``(n_usable_windows, C)``."""
        return self.aggregation.posteriors[~np.isnan(self.aggregation.influence)]


@dataclass(frozen=True, eq=False)
class WindowScores:
    """Network output for the windows of one series, before any weight."""

    series: Series  # as given
    scaled: Series
    windows: Windows
    posteriors: NDArray[np.float64]  # (n_windows, C), calibrated where the model is
    features: NDArray[np.float64] | None  # (n_windows, d), standardised; None where not requested
    gate: NDArray[np.float64] | None  # (n_windows,) added to the support; None without a gate or features


@dataclass(frozen=True, eq=False)
class _Work:
    """One series between launch and aggregation; a GPU may still be working on it."""

    series: Series
    scaled: Series
    windows: Windows
    scores: Scores
    retrieval: Retrieval | None = None
    gate: NDArray[np.float64] | None = None
    features: NDArray[np.float32] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Predictor:
    """A fitted network with the settings of prediction."""

    backbone: nn.Module
    device: torch.device
    scaling: Scaling
    window_length: int
    stride: int
    retrieval: RetrievalConfig
    weighting: str
    temperature: float
    smoothing: float
    calibration: ProbabilityMap | None  # of window posteriors
    feature_mean: NDArray[np.float64]  # (d,) of the training windows, for retrieval in feature space
    feature_scale: NDArray[np.float64]  # (d,)
    heads: FeatureHeads | None  # projection and gate, on the CPU in float64
    seed: int  # of the shuffled and random controls
    series_calibration: ProbabilityMap | None = None  # of series probabilities
    context: ContextRule | None = None  # of windows, in place of their own, where the backbone takes context

    def n_windows(self, series: Series) -> int:
        """Number of windows of a series."""
        return len(window_starts(series.n_samples, window_length=self.window_length, stride=self.stride))

    def predictions(
        self,
        series: list[Series],
        *,
        with_lists: bool = True,
        keep_features: bool = False,
        on_progress: Callable[[float], None] | None = None,
    ) -> Iterator[Prediction]:
        """Samples -> windows -> posteriors and support -> series probability, one series after the other.

        Without ``with_lists`` retrieval is skipped where the score does not depend on it. With ``keep_features``
        a prediction has the features of its windows, which come from the same pass as the score.
        ``on_progress`` is called with the share of all work done, also within a series.
        """
        retrieves = with_lists or self.retrieves
        with_features = keep_features or self.gated or (retrieves and self.retrieval.space == "features")
        n_scored = sum(map(self.n_windows, series))
        progress = _ShareDone(n_scored + (sum(map(self._effort, series)) if retrieves else 0.0), on_progress)
        launched = self._launched(
            series, progress, retrieves=retrieves, with_features=with_features, keep_features=keep_features
        )
        yield from map(self._finished, self._behind(launched))

    @property
    def retrieves(self) -> bool:
        """Whether weights or posteriors depend on neighbours."""
        return weighting_named(self.weighting).needs_retrieval or self.smoothing > 0

    @property
    def gated(self) -> bool:
        """Whether a gate is part of the weights."""
        return weighting_named(self.weighting).needs_gate

    @property
    def takes_context(self) -> bool:
        """Whether scores depend on where windows are, and how they differ from the rest of their series."""
        return takes_context(self.backbone)

    def with_neutral_context(self) -> Predictor:
        """The same with the mean context of the training windows for every window."""
        neutral = functools.partial(constant_context, values=mean_context(self.backbone))
        return replace(self, context=neutral)

    def with_features_as_they_are(self) -> Predictor:
        """The same with the features that the network gives, not standardised, and without gate and projection."""
        zero, one = np.zeros(1), np.ones(1)  # x - 0 and x / 1 are x, bit for bit
        return replace(self, feature_mean=zero, feature_scale=one, heads=None, weighting=UNIFORM)

    def window_probabilities(
        self, series: list[Series], *, on_progress: Callable[[float], None] | None = None
    ) -> Iterator[NDArray[np.float64]]:
        """Posteriors ``(n_usable_windows, C)`` of each series, unsmoothed; nothing is retrieved."""
        unsmoothed = replace(self, weighting=UNIFORM, smoothing=0.0)
        for prediction in unsmoothed.predictions(series, with_lists=False, on_progress=on_progress):
            yield prediction.usable_posteriors

    def window_scores(self, series: list[Series], *, with_features: bool) -> Iterator[WindowScores]:
        """One pass of the network over each series: all that any weighting needs afterwards."""
        launched = self._launched(series, _ShareDone(1.0, None), retrieves=False, with_features=with_features)
        for work in self._behind(launched):
            _, posteriors = self.window_posteriors(work.scores.logits())
            features = work.scores.features
            yield WindowScores(work.series, work.scaled, work.windows, posteriors, features, work.gate)

    def _behind(self, launched: Iterator[_Work]) -> Iterator[_Work]:
        """The same series, each after a few more were launched, so that a GPU is never idle."""
        waiting: deque[_Work] = deque()
        for work in launched:
            n_ahead = SERIES_AHEAD[self.device.type]
            if len(work.windows) >= WINDOWS_OF_A_LONG_SERIES:
                n_ahead = min(n_ahead, 1)
            waiting.append(work)
            del work
            while len(waiting) > n_ahead:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()

    def window_posteriors(self, logits: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Posteriors ``(n_windows, C)`` from logits: uncalibrated, and calibrated where windows are."""
        posteriors: NDArray[np.float64] = posteriors_of(logits.double()).numpy()
        return posteriors, posteriors if self.calibration is None else self.calibration(posteriors)

    def standardise(self, features: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        """Standardise features ``(n_windows, d)`` in place; return their gate ``(n_windows,)`` or None."""
        if features is None:
            return None
        features -= self.feature_mean
        features /= self.feature_scale
        if self.heads is None or self.heads.gate is None:
            return None
        with torch.inference_mode():
            gate: NDArray[np.float64] = self.heads.gate(torch.from_numpy(features)).numpy()
        return gate

    def neighbors_of(
        self, scaled: Sequence[Series], compared: Sequence[NDArray[np.float64]] | None = None
    ) -> list[Retrieval]:
        """Retrieval within each series, uncached; in feature space by the vectors ``compared`` of each series."""
        settings = self._retrieval_settings
        if self.retrieval.space == "features":
            settings |= {"measure": "cosine", "features": compared}
        return retrieve_many([item.samples for item in scaled], **settings)

    def groups(self, series: list[Series]) -> Iterator[list[Series]]:
        """Series to retrieve together: on a GPU short ones in one launch, else one by one."""
        alone = SERIES_AHEAD[self.device.type] == 0 or self.retrieval.space == "features"
        return in_batches(
            series,
            lambda item: self.n_windows(item) * self.retrieval.n_neighbors,
            0 if alone else LISTED_AT_ONCE,
        )

    def _launched(
        self,
        series: list[Series],
        progress: _ShareDone,
        *,
        retrieves: bool,
        with_features: bool,
        keep_features: bool = False,
    ) -> Iterator[_Work]:
        """Retrieval for a group of series, then the network for one after the other."""
        scorer, settings = Scorer(self.backbone, self.device, context=self.context), self._retrieval_settings
        in_features = retrieves and self.retrieval.space == "features"
        for group in self.groups(series):
            scaled = [self.scaling.apply(item) for item in group]
            found: list[Retrieval | None] = [None] * len(group)
            if retrieves and not in_features:
                on_progress = progress.part(sum(map(self._effort, group)))
                found = [*cached_retrieve_many(scaled, **settings, on_progress=on_progress)]
            for which, item in enumerate(group):
                windows = windows_of(scaled[which], window_length=self.window_length, stride=self.stride)
                on_progress = progress.part(len(windows))
                scores = scorer.launch(windows, with_features=with_features, on_progress=on_progress)
                kept = None  # a copy: they are standardised in place
                if keep_features and scores.features is not None:
                    kept = scores.features.astype(np.float32)
                gate = self.standardise(scores.features)
                if in_features and scores.features is not None:
                    settings |= {"measure": "cosine", "features": [self.compared(scores.features)]}
                    on_progress = progress.part(self._effort(item))
                    (found[which],) = cached_retrieve_many(
                        [scaled[which]], **settings, on_progress=on_progress
                    )
                yield _Work(item, scaled[which], windows, scores, found[which], gate, kept)
                found[which] = None

    def _finished(self, work: _Work) -> Prediction:
        """Aggregate the windows of one series, waiting for its logits."""
        uncalibrated, posteriors = self.window_posteriors(work.scores.logits())
        aggregation = self.aggregate(work.series, work.windows, posteriors, work.retrieval, work.gate)
        return Prediction(
            work.series,
            work.windows,
            work.retrieval,
            aggregation,
            None if self.calibration is None else uncalibrated,
            self.calibrate(aggregation.series_probability) if self.series_calibration else None,
            work.features,
        )

    def aggregate(
        self,
        series: Series,
        windows: Windows,
        posteriors: NDArray[np.float64],
        retrieval: Retrieval | None,
        gate: NDArray[np.float64] | None,
    ) -> Aggregation:
        """From windows to the score of one series, under the settings of this predictor (Alg. 2).

        Prediction, reweighting, retrieval randomisation and perturbation all use this, with other settings by
        `dataclasses.replace`. Without ``retrieval`` all usable windows have the same support.
        """
        support = np.where(windows.unusable, np.nan, 0.0) if retrieval is None else retrieval.support
        return aggregate(
            posteriors,
            support,
            temperature=self.temperature,
            weighting=self.weighting,
            seed=self.seed_of(series),
            gate=gate,
            smoothing=self.smoothing,
            neighbors=None if retrieval is None else retrieval.neighbors,
            flat=None if retrieval is None else retrieval.flat,
        )

    def calibrate(self, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
        """Calibrated series probabilities ``(..., C)``; unchanged without a calibration of series."""
        if self.series_calibration is None:
            return probabilities
        rows = probabilities.reshape(-1, probabilities.shape[-1])
        return self.series_calibration(rows).reshape(probabilities.shape)

    def seed_of(self, series: Series) -> int:
        """Seed of the controls of one series, whatever else is predicted."""
        return self.seed + zlib.crc32(np.ascontiguousarray(series.samples).data)

    def compared(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Standardised features -> the vectors compared in feature space: projected where that is in use."""
        if self.heads is None or self.retrieval.projection == 0:
            return features
        with torch.inference_mode():
            return self.heads.compared(torch.from_numpy(features)).numpy()

    @property
    def _retrieval_settings(self) -> dict[str, Any]:
        return retrieval_settings(
            self.retrieval, window_length=self.window_length, stride=self.stride, device=self.device
        )

    def _effort(self, series: Series) -> float:
        """Time of retrieval for one series, in windows scored."""
        n = self.n_windows(series)
        bounded = self.retrieval.bank in ("local", "sampled")
        return n * (min(n, self.retrieval.bank_size) if bounded else n) / PAIRS_A_SCORE


def retrieval_settings(
    settings: RetrievalConfig, *, window_length: int, stride: int, device: torch.device
) -> dict[str, Any]:
    """Settings of `retrieve` (Eq. 1) from those of the estimator."""
    return {
        "window_length": window_length,
        "stride": stride,
        "bank": "series" if settings.bank == "batch" else settings.bank,
        "bank_size": settings.bank_size,
        "measure": settings.measure,
        "n_neighbors": settings.n_neighbors,
        "exclusion": settings.samples_of("exclusion", window_length),
        "spread": settings.samples_of("spread", window_length),
        "device": str(device),
    }


class _ShareDone:
    """Progress of the parts of a work, as shares of the whole."""

    def __init__(self, total: float, on_progress: Callable[[float], None] | None) -> None:
        self._total, self._done, self._on_progress = total, 0.0, on_progress

    def part(self, amount: float) -> Callable[[float], None] | None:
        """Callback for the next part of the work; None without a callback for the whole."""
        before, report = self._done, self._on_progress
        self._done += amount
        return None if report is None else lambda share: report((before + share * amount) / self._total)
