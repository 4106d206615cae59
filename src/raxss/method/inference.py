"""Inference: scores of series from a fitted network, one series after the other.

    series -> scaled windows -> posteriors (calibrated, smoothed), support -> series probability and its parts

A GPU retrieves for many short series at once and is a few series ahead of what is added up; the CPU does one after
the other. Neither changes a score. `Predictor.aggregate` is the one path from windows to a
score. Next: estimator/classifier.py makes the predictor.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from raxss.data.prepare.preprocessing import Scaling
from raxss.data.series import Series
from raxss.method.aggregation import Aggregation, aggregate, posteriors_of
from raxss.method.feature_heads import FeatureHeads
from raxss.method.retrieval.cache import cached_retrieve, cached_retrieve_many
from raxss.method.retrieval.front import RetrievalConfig, retrieve_many
from raxss.method.retrieval.search import Retrieval
from raxss.method.weighting.protocol import weighting_named
from raxss.method.weighting.support import UNIFORM
from raxss.method.window_scorer import Scorer, Scores
from raxss.method.windows import Windows, window_starts, windows_of

LISTED_AT_ONCE = 2**23  # neighbors of short series that a GPU finds together: 128 MB
SERIES_AHEAD = {"cpu": 0, "cuda": 3}  # a GPU works on the next while those before are added up and written
WINDOWS_OF_A_LONG_SERIES = 200_000  # from here on one ahead is enough: the lists of each take 32 MB and more
PAIRS_A_SCORE = 300_000  # windows compared in the time of scoring one, roughly, on CPU and GPU alike


class ProbabilityMap(Protocol):
    """A fitted calibration, as far as inference needs it."""

    method: ClassVar[str]

    def __call__(self, posteriors: ArrayLike) -> NDArray[np.float64]:
        """``(n, C)`` -> ``(n, C)``."""
        ...


@dataclass(frozen=True, eq=False)
class Prediction:
    """One series and its score.

    Attributes
    ----------
    retrieval
        None where only the score is wanted and its weights need no neighbours.
    uncalibrated
        ``(n_windows, C)`` the posteriors as the network gave them; None where no calibration came after.
    calibrated
        ``(C,)`` what a calibration of series made of the sum; None where there is none.
    """

    series: Series
    windows: Windows
    retrieval: Retrieval | None
    aggregation: Aggregation
    uncalibrated: NDArray[np.float64] | None
    calibrated: NDArray[np.float64] | None = None

    @property
    def probability(self) -> NDArray[np.float64]:
        """``(C,)`` the answer: the sum of the contributions, calibrated where series are."""
        return self.aggregation.series_probability if self.calibrated is None else self.calibrated

    @property
    def usable_posteriors(self) -> NDArray[np.float64]:
        """``(n_usable_windows, C)``."""
        return self.aggregation.posteriors[~np.isnan(self.aggregation.influence)]


@dataclass(frozen=True, eq=False)
class WindowScores:
    """What the network said about the windows of one series, before any weight.

    Attributes
    ----------
    series, scaled, windows
        As it was given, as it was looked at, and its windows.
    posteriors
        ``(n_windows, C)``, calibrated where the model is.
    features
        ``(n_windows, d)``, standardised; None where they were not asked for.
    gate
        ``(n_windows,)`` what the gate adds to the support of each; None without a gate, or without features.
    """

    series: Series
    scaled: Series
    windows: Windows
    posteriors: NDArray[np.float64]
    features: NDArray[np.float64] | None
    gate: NDArray[np.float64] | None


@dataclass(frozen=True, eq=False)
class _Work:
    """One series on its way from samples to score; a GPU may still be at work on it."""

    series: Series
    windows: Windows
    scores: Scores
    retrieval: Retrieval | None
    gate: NDArray[np.float64] | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Predictor:
    """What was fitted, and the settings of the moment.

    Attributes
    ----------
    feature_mean, feature_scale
        ``(d,)`` of the training windows, for retrieval in feature space.
    calibration, series_calibration
        Maps of window posteriors, and of the sum; None: as they are.
    heads
        What was learned on features, on the CPU in float64; None: nothing.
    seed
        For the ``shuffled`` and ``random`` controls.
    """

    backbone: nn.Module
    device: torch.device
    scaling: Scaling
    window_length: int
    stride: int
    retrieval: RetrievalConfig
    weighting: str
    temperature: float
    smoothing: float
    calibration: ProbabilityMap | None
    feature_mean: NDArray[np.float64]
    feature_scale: NDArray[np.float64]
    heads: FeatureHeads | None
    seed: int
    series_calibration: ProbabilityMap | None = None

    def n_windows(self, series: Series) -> int:
        """How many windows a series is cut into."""
        return len(window_starts(series.n_samples, window_length=self.window_length, stride=self.stride))

    def predictions(
        self,
        series: list[Series],
        *,
        with_lists: bool = True,
        on_progress: Callable[[float], None] | None = None,
    ) -> Iterator[Prediction]:
        """Samples -> windows -> posteriors and support -> series probability, one series after the other.

        Parameters
        ----------
        with_lists
            False leaves retrieval out where the weights do not depend on it.
        on_progress
            Told the share of all work done, also within a series.
        """
        retrieves = with_lists or self.retrieves
        scorer = Scorer(self.backbone, self.device)
        n_scored = sum(map(self.n_windows, series))
        progress = _ShareDone(n_scored + (sum(map(self._effort, series)) if retrieves else 0.0), on_progress)
        launched: deque[_Work] = deque()
        for group in self.groups(series):
            for work in self._launched(group, scorer, progress, retrieves):
                n_ahead = SERIES_AHEAD[self.device.type]
                if len(work.windows) >= WINDOWS_OF_A_LONG_SERIES:
                    n_ahead = min(n_ahead, 1)
                launched.append(work)
                del work
                while len(launched) > n_ahead:
                    yield self._finished(launched.popleft())
        while launched:
            yield self._finished(launched.popleft())

    @property
    def retrieves(self) -> bool:
        """Whether weights, or what windows say, come from neighbours."""
        return weighting_named(self.weighting).needs_retrieval or self.smoothing > 0

    @property
    def gated(self) -> bool:
        """Whether a gate is part of the weights."""
        return weighting_named(self.weighting).needs_gate

    def window_probabilities(
        self, series: list[Series], *, on_progress: Callable[[float], None] | None = None
    ) -> Iterator[NDArray[np.float64]]:
        """Posteriors ``(n_usable_windows, C)`` of each series; they depend on no neighbours, so none are sought."""
        alone = replace(self, weighting=UNIFORM, smoothing=0.0)
        for prediction in alone.predictions(series, with_lists=False, on_progress=on_progress):
            yield prediction.usable_posteriors

    def window_scores(self, series: list[Series], *, with_features: bool = True) -> Iterator[WindowScores]:
        """One pass of the network over each series: everything that weights can be made of afterwards."""
        scorer = Scorer(self.backbone, self.device)
        launched: deque[tuple[Series, Series, Windows, Scores]] = deque()
        for item in series:
            scaled = self.scaling.apply(item)
            windows = windows_of(scaled, window_length=self.window_length, stride=self.stride)
            launched.append((item, scaled, windows, scorer.launch(windows, with_features=with_features)))
            while len(launched) > SERIES_AHEAD[self.device.type]:
                yield self._scored(*launched.popleft())
        while launched:
            yield self._scored(*launched.popleft())

    def _scored(self, series: Series, scaled: Series, windows: Windows, scores: Scores) -> WindowScores:
        gate = self.standardise(scores.features)
        _, posteriors = self.window_posteriors(scores.logits())
        return WindowScores(series, scaled, windows, posteriors, scores.features, gate)

    def window_posteriors(self, logits: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Posteriors ``(n_windows, C)`` of any windows: as the network gives them, and calibrated.

        The same where windows are not calibrated.
        """
        posteriors: NDArray[np.float64] = posteriors_of(logits.double()).numpy()
        return posteriors, posteriors if self.calibration is None else self.calibration(posteriors)

    def standardise(self, features: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        """Standardise features ``(n_windows, d)`` in place; returns what the gate says of them ``(n_windows,)``.

        None without features, and without a gate.
        """
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
        """Neighbours within each of several series, kept in no cache.

        Parameters
        ----------
        compared
            In feature space: of each series what its windows are compared by, see `compared`.
        """
        settings = self._retrieval_settings
        if self.retrieval.space == "features":
            settings |= {"measure": "cosine", "features": compared}
        return retrieve_many([item.samples for item in scaled], **settings)

    def groups(self, series: list[Series]) -> Iterator[list[Series]]:
        """Series to retrieve together: one by one, but short ones of a GPU in one launch."""
        alone = SERIES_AHEAD[self.device.type] == 0 or self.retrieval.space == "features"
        group: list[Series] = []
        n_listed = 0
        for item in series:
            more = self.n_windows(item) * self.retrieval.n_neighbors
            if group and (alone or n_listed + more > LISTED_AT_ONCE):
                yield group
                group, n_listed = [], 0
            group.append(item)
            n_listed += more
        yield group

    def _launched(
        self, group: list[Series], scorer: Scorer, progress: _ShareDone, retrieves: bool
    ) -> Iterator[_Work]:
        """Retrieval for all of them, then the network for one after the other."""
        in_features, gated = retrieves and self.retrieval.space == "features", self.gated
        settings = self._retrieval_settings
        scaled = [self.scaling.apply(item) for item in group]
        found: list[Retrieval | None] = [None] * len(group)
        if retrieves and not in_features:
            samples, told = [item.samples for item in scaled], progress.part(sum(map(self._effort, group)))
            found = [*cached_retrieve_many(samples, **settings, on_progress=told)]
        for place, item in enumerate(group):
            windows = windows_of(scaled[place], window_length=self.window_length, stride=self.stride)
            told = progress.part(len(windows))
            scores = scorer.launch(windows, with_features=in_features or gated, on_progress=told)
            gate = self.standardise(scores.features)
            if in_features and scores.features is not None:
                settings |= {"measure": "cosine", "features": self.compared(scores.features)}
                told = progress.part(self._effort(item))
                found[place] = cached_retrieve(scaled[place].samples, **settings, on_progress=told)
            yield _Work(item, windows, scores, found[place], gate)
            found[place] = None

    def _finished(self, work: _Work) -> Prediction:
        """Add the windows of one series up."""
        uncalibrated, posteriors = self.window_posteriors(work.scores.logits())
        aggregation = self.aggregate(work.series, work.windows, posteriors, work.retrieval, work.gate)
        return Prediction(
            work.series,
            work.windows,
            work.retrieval,
            aggregation,
            None if self.calibration is None else uncalibrated,
            self.calibrate(aggregation.series_probability) if self.series_calibration else None,
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

        Prediction, reweighting, retrieval randomisation and perturbation all come through here; with other settings
        by `dataclasses.replace`. Training validates through `raxss.method.aggregation.aggregate_batch`.

        Parameters
        ----------
        posteriors
            ``(n_windows, C)`` from `window_posteriors`.
        retrieval
            Without it all usable windows have the same support.
        gate
            ``(n_windows,)`` from `standardise`; not looked at under weightings without a gate.
        """
        support = np.where(windows.nonfinite, np.nan, 0.0) if retrieval is None else retrieval.support
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
        """Series probabilities ``(..., C)`` after a calibration of series; unchanged where there is none."""
        if self.series_calibration is None:
            return probabilities
        rows = probabilities.reshape(-1, probabilities.shape[-1])
        return self.series_calibration(rows).reshape(probabilities.shape)

    def seed_of(self, series: Series) -> int:
        """What the controls of one series are drawn from, whatever else is predicted."""
        return self.seed + zlib.crc32(np.ascontiguousarray(series.samples).data)

    def compared(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Standardised features -> what windows are compared by: their projection, where there is one in use."""
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
        """What retrieval for one series takes, in windows that could be scored meanwhile."""
        n = self.n_windows(series)
        bounded = self.retrieval.bank in ("local", "sampled")
        return n * (min(n, self.retrieval.bank_size) if bounded else n) / PAIRS_A_SCORE


def retrieval_settings(
    settings: RetrievalConfig, *, window_length: int, stride: int, device: torch.device
) -> dict[str, Any]:
    """Settings of `retrieve` (Eq. 1) from those of the estimator.

    >>> cpu = torch.device("cpu")
    >>> retrieval_settings(RetrievalConfig(), window_length=64, stride=8, device=cpu)["exclusion"]
    32
    """
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
    """Adds what retrieval and network tell about one series after the other up to a share of all work."""

    def __init__(self, total: float, on_progress: Callable[[float], None] | None) -> None:
        self._total, self._done, self._on_progress = total, 0.0, on_progress

    def part(self, amount: float) -> Callable[[float], None] | None:
        """For the next part of the work, which is so much of it; None where nobody wants to know."""
        before, tell = self._done, self._on_progress
        self._done += amount
        return None if tell is None else lambda share: tell((before + share * amount) / self._total)
