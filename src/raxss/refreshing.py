"""What is support in feature space, while the network that makes the features is still learning?

    learner, pools -> features of every window (n_windows, d), standardised -> support -> pool.influence

Asked for after every epoch, and before the first: a function of the weights as they stand, so a run that was
stopped goes on with the same supports. What prediction retrieves later with the finished network (predicting.py)
is the same, in float64. Next: training.py asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raxss.aggregation import Weighting, influence
from raxss.backbones import features_of
from raxss.errors import TrainingError
from raxss.memory import available_bytes, gigabytes
from raxss.pool import WindowPool
from raxss.prediction import exact_arithmetic
from raxss.retrieval.batch import feature_support
from raxss.stepping import Learner, mixed_precision

MOST_FOR_MOMENTS = 2**17  # windows whose features are averaged; more would not change the third digit
WINDOWS_A_PART = 2**13  # whose features are looked at together in float64

#: (learner, training pool, validation pool or None, type for mixed precision or None): writes pool.influence.
Refresh = Callable[[Learner, WindowPool, WindowPool | None, torch.dtype | None], None]


@dataclass(frozen=True, kw_only=True)
class EpochSupport:
    """Support in feature space of all windows, from the features as they are now.

    Attributes
    ----------
    n_neighbors, exclusion, weighting
        As at prediction; exclusion in samples.
    in_loss
        Whether the loss looks at the weights of training windows; else only those for validation are refreshed.
    seed
        For the ``shuffled`` and ``random`` controls.
    """

    n_neighbors: int
    exclusion: int
    weighting: Weighting
    in_loss: bool
    seed: int

    def __call__(
        self,
        learner: Learner,
        pool: WindowPool,
        validation: WindowPool | None,
        autocast: torch.dtype | None,
    ) -> None:
        """Write the influence of every window into both pools, in place: a recorded step looks there."""
        if not self.in_loss and validation is None:
            return
        features = pool_features(learner.backbone, pool, autocast=autocast)
        mean, scale = moments(features.split(WINDOWS_A_PART))
        if self.in_loss:
            self._write(pool, features, mean, scale)
        del features
        if validation is not None:
            self._write(
                validation, pool_features(learner.backbone, validation, autocast=autocast), mean, scale
            )

    def _write(self, pool: WindowPool, features: Tensor, mean: Tensor, scale: Tensor) -> None:
        features -= mean.to(features)
        features /= scale.to(features)
        support = feature_support(
            features,
            pool.series,
            pool.starts,
            pool.flat,
            n_windows=pool.n_windows.tolist(),
            n_neighbors=self.n_neighbors,
            exclusion=self.exclusion,
            device=pool.device,
        )
        of_each = np.split(support.cpu().numpy(), np.cumsum(pool.n_windows)[:-1])
        values = [influence(one, self.weighting, seed=self.seed + i) for i, one in enumerate(of_each)]
        pool.influence.copy_(torch.from_numpy(np.concatenate(values)))


def pool_features(backbone: nn.Module, pool: WindowPool, *, autocast: torch.dtype | None = None) -> Tensor:
    """Features ``(n_windows, d)`` of every window of a pool, where the pool lies; dropout off."""
    backbone.eval()
    place, done = pool.starts.device, 0
    features = torch.zeros(0)
    precision = mixed_precision(pool.device, autocast) if autocast else exact_arithmetic()
    with torch.no_grad(), precision:
        for windows in pool.all_windows():
            part = features_of(backbone, windows).float()
            if done == 0:
                _refuse_too_many(len(pool), part.shape[1], place)
                features = torch.empty((len(pool), part.shape[1]), device=place)
            features[done : done + len(part)] = part
            done += len(part)
    return features


def feature_moments(backbone: nn.Module, pool: WindowPool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation ``(d,)`` of each feature over the windows of a pool, for retrieval in feature space.

    Over evenly spread windows where there are more than 131,072. Summed on the device in float64; a feature that
    never changes gets the deviation 1.
    """
    backbone.eval()
    with torch.inference_mode(), exact_arithmetic():
        windows = pool.all_windows(every=math.ceil(len(pool) / MOST_FOR_MOMENTS))
        mean, scale = moments(features_of(backbone, some) for some in windows)
        return mean.cpu().numpy(), scale.cpu().numpy()


def moments(parts: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and deviation ``(d,)`` of each column, in float64, over all rows of all parts; 1 for no deviation.

    >>> mean, scale = moments(torch.tensor([[1.0, 5.0], [3.0, 5.0], [5.0, 5.0]]).split(2))
    >>> mean.tolist(), scale.round(decimals=3).tolist()
    ([3.0, 5.0], [1.633, 1.0])
    """
    mean = squares = torch.zeros((), dtype=torch.float64)
    n_seen = 0
    for part in parts:
        # Chan's update: all features at once would not fit into memory, plain sums would lose digits.
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
