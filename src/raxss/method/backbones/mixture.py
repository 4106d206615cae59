"""Mixture of window classifiers and a network: the weighted mean of their posteriors.

    windows (batch, n_variates, length) -> posteriors of each member -> sum of w_i p_i -> logits (batch, n_outputs)

A window has one posterior, a convex combination over members, so contributions of windows still add up to the score.
The weights are those with the largest likelihood of series that the members were not fitted on: out of fold, or on the
validation set where a network is a member. Next: window_classifiers.py has the members; ensemble.py is a mean of
networks that are trained together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raxss.errors import ConfigError
from raxss.method.aggregation import posteriors_of
from raxss.method.backbones.protocol import (
    build_backbone,
    handles_missing,
    logits_and_features,
    n_features,
    register_classifier,
    split_mask,
)
from raxss.method.backbones.sizes import check_at_most
from raxss.method.backbones.window_classifiers import (
    Floats,
    HeldOut,
    TrainingWindows,
    is_fitted_at_once,
    logits_of_posteriors,
)

#: Members of every mixture: PPV features and statistics, of windows as they are and at unit deviation.
CLASSIFIERS: tuple[Mapping[str, Any], ...] = (
    {"backbone": "ridge", "view": "ppv"},
    {"backbone": "ridge", "view": "ppv", "normalise": True},
    {"backbone": "extra-trees", "view": "statistics"},
    {"backbone": "extra-trees", "view": "statistics", "normalise": True},
)
#: The member that joins where there are enough series to judge it by a validation set.
NETWORK: Mapping[str, Any] = {"backbone": "multiview", "views": ["shapes", "rhythms"]}
SERIES_FOR_A_NETWORK = 400  # an eighth of which, 50, is the fewest validation series that choose an epoch
PRIOR = 2.0  # series that each member has explained before any was seen: weights start out equal


@register_classifier("mixture")
class Mixture(nn.Module):
    """Window classifiers, and where there is enough data a network, as a weighted mean of their posteriors.

    With the defaults: 0 parameters that are trained.

    Parameters
    ----------
    members
        A table for each member: ``backbone``, a name, and its options. ``"auto"``: ridge regression on PPV features
        and extra trees on statistics, both of windows as they are and of windows at unit deviation; `fit` adds a
        network from 400 series on. At most one member is trained by gradients.

    Examples
    --------
    >>> mixture = Mixture(1, 64, 3, members=[{"backbone": "ridge"}, {"backbone": "convnet", "width": 8}])
    >>> mixture.eval()(torch.zeros(4, 1, 64)).shape, mixture.weights
    (torch.Size([4, 3]), tensor([0.5000, 0.5000], dtype=torch.float64))
    """

    marks_padding = True
    handles_missing = True
    weights: Tensor

    def __init__(
        self,
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        members: str | Sequence[Mapping[str, Any]] = "auto",
    ) -> None:
        super().__init__()
        tables = members_for(0) if isinstance(members, str) else list(members)
        if isinstance(members, str) and members != "auto":
            raise ConfigError(
                f"members is {members!r}; needed is 'auto', or a list with a table for each member."
            )
        if not tables or not all(isinstance(table, Mapping) and "backbone" in table for table in tables):
            raise ConfigError(
                f"members is {members!r}; needed is a table for each member with its backbone and options, such as "
                "[{'backbone': 'ridge', 'view': 'ppv'}, {'backbone': 'extra-trees'}]."
            )
        check_at_most(members=len(tables))
        self.n_variates, self.n_outputs = n_variates, n_outputs
        self.n_classes = 2 if n_outputs == 1 else n_outputs
        self.members = nn.ModuleList(
            build_backbone(
                table["backbone"],
                n_variates=n_variates,
                window_length=window_length,
                n_outputs=n_outputs,
                options={name: value for name, value in table.items() if name != "backbone"},
            )
            for table in tables
        )
        if any(isinstance(member, Mixture) for member in self.members) or len(self._trained) > 1:
            raise ConfigError(
                f"a mixture of {[table['backbone'] for table in tables]} cannot be made: its members are window "
                "classifiers and at most one network, and no mixture. For several networks, use one 'ensemble'."
            )
        self.widths = [n_features(member, n_variates, window_length) for member in self.members]
        self.register_buffer("weights", torch.full((len(tables),), 1 / len(tables), dtype=torch.float64))

    @property
    def _trained(self) -> list[nn.Module]:
        return [member for member in self.members if not is_fitted_at_once(member)]

    @property
    def network(self) -> nn.Module | None:
        """The member that is trained by gradients, or None."""
        return next(iter(self._trained), None)

    def fit_windows(self, training: TrainingWindows) -> Floats:
        """Fit the window classifiers; weigh all members by their out-of-fold posteriors if no network is among them.

        Returns the out-of-fold posteriors of the mixture ``(n, C)``, NaN where nothing is held out.
        """
        found = [member.fit_windows(training) for member in self.members if is_fitted_at_once(member)]
        self.weights.fill_(1 / len(self.members))
        if self.network is None and training.n_folds:
            self.weigh(np.stack(found), training.targets, training.series)
        return np.tensordot(self.weights.cpu().numpy()[: len(found)], np.stack(found), axes=1)

    def weigh(self, posteriors: Floats, targets: NDArray[np.int64], series: NDArray[np.int64]) -> None:
        """Set the weights by posteriors ``(n_members, n, C)`` of windows that the members were not fitted on."""
        self.weights.copy_(torch.from_numpy(mixture_weights(posteriors, targets, series)))

    def weigh_by_validation(
        self, windows: Sequence[Tensor], targets: NDArray[np.int64], series: NDArray[np.int64]
    ) -> None:
        """Set the weights by validation windows, given in batches."""
        self.eval()
        with torch.inference_mode():
            found = [
                torch.stack([self._member(k, some)[0] for k in range(len(self.members))]).cpu()
                for some in windows
            ]
        self.weigh(torch.cat(found, dim=1).numpy(), targets, series)

    def held_out(self, fold: int) -> HeldOut:
        """The mixture of its members without a fold."""
        return HeldOut(self, fold)

    def forward(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> logits ``(batch, n_outputs)`` in float64."""
        return self.logits_and_features(windows)[0]

    def features(self, windows: Tensor) -> Tensor:
        """Those of the members, side by side."""
        return self.logits_and_features(windows)[1]

    def logits_and_features(self, windows: Tensor, *, fold: int | None = None) -> tuple[Tensor, Tensor]:
        """Logits of the mixture, and features of its members side by side."""
        posteriors, features = zip(
            *(self._member(k, windows, fold=fold) for k in range(len(self.members))), strict=True
        )
        mixed = torch.tensordot(self.weights, torch.stack(posteriors), dims=1)
        return logits_of_posteriors(mixed, self.n_outputs), torch.cat(features, dim=1)

    def _member(self, place: int, windows: Tensor, *, fold: int | None = None) -> tuple[Tensor, Tensor]:
        """Posteriors ``(batch, C)`` in float64, and features in float32, of one member."""
        member = self.members[place]
        if not handles_missing(member):
            windows = split_mask(windows, self.n_variates)[0]
        if fold is None or not is_fitted_at_once(member):
            logits, features = logits_and_features(member, windows)
        else:
            logits, features = member.logits_and_features(windows, fold=fold)  # type: ignore[operator]
        return posteriors_of(logits.double()), features.float()


def members_for(n_series: int) -> list[dict[str, Any]]:
    """Members of a mixture that is fitted on so many series.

    >>> [member["backbone"] for member in members_for(400)]
    ['ridge', 'ridge', 'extra-trees', 'extra-trees', 'multiview']
    """
    found = [dict(table) for table in CLASSIFIERS]
    return [*found, dict(NETWORK)] if n_series >= SERIES_FOR_A_NETWORK else found


def mixture_weights(
    posteriors: Floats,  # (n_members, n, C) of windows
    targets: NDArray[np.int64],  # (n,)
    series: NDArray[np.int64],  # (n,)
    *,
    n_rounds: int = 200,
) -> Floats:  # (n_members,)
    """Weights of the members with the largest likelihood of the series, by expectation maximisation.

    A series has the mean posterior of its windows. Each member starts out as if it had explained `PRIOR` series, so
    that a few series move the weights little.

    >>> right, wrong = np.array([[0.9, 0.1]] * 40), np.array([[0.2, 0.8]] * 40)
    >>> mixture_weights(np.stack([right, wrong]), np.zeros(40, dtype=int), np.arange(40)).round(2)
    array([0.95, 0.05])
    """
    names, place = np.unique(series, return_inverse=True)
    own = np.zeros((len(posteriors), len(names)))
    for row, found in zip(own, posteriors, strict=True):
        np.add.at(row, place, found[np.arange(len(targets)), targets])
    likelihood = np.clip(own / np.bincount(place), 1e-3, None)  # of the true class, (n_members, n_series)
    weights = np.full(len(posteriors), 1 / len(posteriors))
    for _ in range(n_rounds):
        share = weights[:, None] * likelihood
        share /= share.sum(axis=0)
        weights = (share.sum(axis=1) + PRIOR) / (len(names) + PRIOR * len(weights))
    return weights
