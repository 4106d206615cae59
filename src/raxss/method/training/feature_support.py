"""Support in feature space during training, recomputed from the current network after every epoch.

    learner, pools -> features of every window (n_windows, d), standardised -> support -> pool.influence
                   -> their mean and deviation (d,) -> learner.heads

A function of the current weights alone, so that a resumed run has the same supports. Prediction (../inference.py)
retrieves the same way in float64. Next: loop.py calls it before the first epoch and after every one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raxss._core.memory import available_bytes, gigabytes
from raxss.errors import TrainingError
from raxss.method.backbones.protocol import features_of
from raxss.method.feature_heads import FeatureHeads
from raxss.method.retrieval.batch import feature_support
from raxss.method.training.step import Learner, mixed_precision
from raxss.method.training.window_pool import WindowPool
from raxss.method.weighting.protocol import weighting_named
from raxss.method.window_scorer import exact_arithmetic

MOST_FOR_MOMENTS = 2**17  # windows whose features are averaged; more would not change the third digit
WINDOWS_A_PART = 2**13  # whose features are converted to float64 together

#: (learner, training pool, validation pool or None, type for mixed precision or None): writes pool.influence.
Refresh = Callable[[Learner, WindowPool, WindowPool | None, torch.dtype | None], None]


@dataclass(frozen=True, kw_only=True)
class EpochRefresh:
    """Recompute support and feature moments from the current network."""

    n_neighbors: int
    exclusion: int  # in samples
    weighting: str
    of_training: bool  # write the influence of training windows, where the loss uses it
    of_validation: bool  # write the influence of validation windows: retrieval is in feature space
    seed: int  # of the shuffled and random controls

    def __call__(
        self,
        learner: Learner,
        pool: WindowPool,
        validation: WindowPool | None,
        autocast: torch.dtype | None,
    ) -> None:
        """Write influence into the pools and moments into the learner, in place for recorded steps."""
        backbone, held = learner.backbone, validation if self.of_validation else None
        if learner.heads is None and not self.of_training and held is None:
            return
        learner.eval()  # heads in training standardise by the batch
        features = pool_features(backbone, pool, autocast=autocast) if self.of_training else None
        mean, scale = moments(
            _some_features(backbone, pool) if features is None else features.split(WINDOWS_A_PART)
        )
        heads = learner.heads or FeatureHeads(len(mean)).to(pool.device).eval()
        heads.standardise_by(mean, scale)
        if features is not None:
            self._write(pool, features, heads)
            del features  # frees their memory for those of validation
        if held is not None:
            self._write(held, pool_features(backbone, held, autocast=autocast), heads)

    def _write(self, pool: WindowPool, features: Tensor, heads: FeatureHeads) -> None:
        """Write the influence of every window of a pool, without the gate."""
        with torch.no_grad(), exact_arithmetic():
            support = feature_support(
                features,
                pool.series,
                pool.starts,
                pool.flat,
                compared=lambda some: heads.compared(heads.standardised(some)),
                n_windows=pool.n_windows.tolist(),
                n_neighbors=self.n_neighbors,
                exclusion=self.exclusion,
                device=pool.device,
            )
        weighting = weighting_named(self.weighting)
        supports = np.split(support.double().cpu().numpy(), np.cumsum(pool.n_windows)[:-1])
        influence = [weighting.pool_influence(item, seed=self.seed + i) for i, item in enumerate(supports)]
        pool.influence.copy_(torch.from_numpy(np.concatenate(influence)))


def pool_features(backbone: nn.Module, pool: WindowPool, *, autocast: torch.dtype | None = None) -> Tensor:
    """Features ``(n_windows, d)`` of every window of a pool, on its device; dropout off."""
    place, done = pool.starts.device, 0
    features = torch.zeros(0)
    for windows in pool.all_windows():
        part = _features(backbone, windows, autocast)
        if done == 0:
            _refuse_too_many(len(pool), part.shape[1], place)
            features = torch.empty((len(pool), part.shape[1]), device=place)
        features[done : done + len(part)] = part
        done += len(part)
    return features


def pool_gates(learner: Learner, pool: WindowPool, *, autocast: torch.dtype | None = None) -> Tensor:
    """Gate ``(n_windows,)`` of each window of a pool, on the training device; dropout off."""
    heads = learner.heads
    assert heads is not None, "the learner has no heads"
    assert heads.gate is not None, "the learner has no gate"
    learner.eval()
    with torch.no_grad():
        return torch.cat(
            [
                heads.gate(heads.standardised(_features(learner.backbone, windows, autocast)))
                for windows in pool.all_windows()
            ]
        )


def feature_moments(backbone: nn.Module, pool: WindowPool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation ``(d,)`` of each feature over (at most 131,072) windows of a pool, in float64.

    The deviation of a constant feature is 1.
    """
    mean, scale = moments(_some_features(backbone, pool))
    return mean.cpu().numpy(), scale.cpu().numpy()


def _some_features(backbone: nn.Module, pool: WindowPool) -> Iterator[Tensor]:
    """Features of at most `MOST_FOR_MOMENTS` evenly spread windows, a part at a time."""
    for windows in pool.all_windows(every=math.ceil(len(pool) / MOST_FOR_MOMENTS)):
        yield _features(backbone, windows, None)


def _features(backbone: nn.Module, windows: Tensor, autocast: torch.dtype | None) -> Tensor:
    backbone.eval()
    with torch.no_grad(), mixed_precision(windows.device, autocast) if autocast else exact_arithmetic():
        return features_of(backbone, windows).float()


def moments(parts: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and deviation ``(d,)`` of each column over all parts, in float64; 1 in place of a deviation of 0."""
    mean = squares = torch.zeros((), dtype=torch.float64)
    n_seen = 0
    for part in parts:
        # Chan's update: plain sums would lose digits.
        variance, centre = torch.var_mean(part.double(), dim=0, correction=0)
        shift, n_both = centre - mean.to(centre.device), n_seen + len(part)
        squares = squares.to(centre.device) + variance * len(part) + shift**2 * (n_seen * len(part) / n_both)
        mean, n_seen = mean.to(centre.device) + shift * (len(part) / n_both), n_both
    scale = (squares / n_seen).sqrt()
    return mean, torch.where(scale > 0, scale, 1.0)


def _refuse_too_many(n_windows: int, width: int, place: torch.device) -> None:
    needed, free = 4 * n_windows * width, available_bytes(place)
    if free is not None and needed > free:
        raise TrainingError(
            f"the features of {n_windows:,} windows, {width:,} numbers each, need {gigabytes(needed)} of memory to "
            f"be compared, and {gigabytes(free)} are free. Set refresh='never', a longer stride, or a network with "
            "fewer features."
        )
