"""Members of a mixture for disturbed windows, and a forest that tells such windows.

    windows -> g, the probability that each is disturbed, and posteriors q of members that know disturbed windows
    mixture.py: (1 - g) p + g q

The members are fitted on training windows and disturbed copies of them (disturbances.py), the forest on which is
which. On windows like those of training g is about 0, so that they are classified as if there were no such members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raxss.errors import ConfigError
from raxss.method.aggregation import posteriors_of
from raxss.method.backbones.mixture_weights import mixture_weights
from raxss.method.backbones.protocol import WINDOW_CLASSIFIERS, build_backbone, split_mask
from raxss.method.backbones.window_classifiers import Floats, TrainingWindows
from raxss.method.disturbances import disturbed

#: Fewer than for other windows: those at unit deviation added nothing.
DISTURBED: tuple[Mapping[str, Any], ...] = (
    {"backbone": "ridge", "view": "ppv"},
    {"backbone": "extra-trees", "view": "statistics"},
)
#: At unit deviation: a forest on windows as they are took clean recordings of another gain for disturbed ones.
GATE: Mapping[str, Any] = {"backbone": "extra-trees", "view": "statistics", "n_trees": 100, "normalise": True}
PRIOR_OF_DISTURBED = 0.1  # half of the windows in fitting, and fewer in use
LEAST_SHARE = (
    0.05  # of the posterior: most windows of clean recordings are below, and cost no more than before
)
MOST_WINDOWS = 1500  # that are copied, so that there are twice as many


class DisturbedMembers(nn.Module):
    """Window classifiers fitted on windows and disturbed copies, and a forest that tells the two apart.

    Parameters
    ----------
    tables
        As of `Mixture`; window classifiers alone.

    Examples
    --------
    >>> members = DisturbedMembers(1, 64, 3, tables=DISTURBED)
    >>> windows = torch.zeros(4, 1, 64)
    >>> members.share(windows).shape, members(windows).shape  # not fitted yet
    (torch.Size([4]), torch.Size([4, 3]))
    """

    weights: Tensor

    def __init__(
        self, n_variates: int, window_length: int, n_outputs: int, *, tables: Sequence[Mapping[str, Any]]
    ) -> None:
        super().__init__()
        self.n_variates = n_variates
        wrong = [table["backbone"] for table in tables if table["backbone"] not in WINDOW_CLASSIFIERS]
        if wrong or any(table["backbone"] == "mixture" for table in tables):
            raise ConfigError(
                f"disturbed has the backbones {[table['backbone'] for table in tables]}; needed are window "
                "classifiers alone, and no mixture. Choose 'ridge', 'logistic', 'extra-trees' or 'forest'."
            )
        sizes = {"n_variates": n_variates, "window_length": window_length}

        def built(table: Mapping[str, Any], n_outputs: int) -> nn.Module:
            options = {name: value for name, value in table.items() if name != "backbone"}
            return build_backbone(table["backbone"], **sizes, n_outputs=n_outputs, options=options)

        self.members = nn.ModuleList(built(table, n_outputs) for table in tables)
        self.gate = built(GATE, 1)
        self.register_buffer("weights", torch.full((len(tables),), 1 / len(tables), dtype=torch.float64))

    def fit_windows(self, training: TrainingWindows) -> None:
        """Fit members and forest; weigh the members by their out-of-fold posteriors of the disturbed copies."""
        some = thinned(training)
        both, n = with_copies(some, self.n_variates), len(some.targets)
        gate: Any = self.gate
        gate.fit_windows(
            replace(both, targets=np.repeat([0, 1], n), n_classes=2, weights=np.ones(2 * n), groups=None)
        )
        classifiers: list[Any] = list(self.members)
        found = np.stack([member.fit_windows(both)[n:] for member in classifiers])
        held_out = some.folds >= 0
        if held_out.any():
            weights = mixture_weights(
                found[:, held_out], some.targets[held_out], some.series[held_out], some.weights[held_out]
            )
            self.weights.copy_(torch.from_numpy(weights))

    def weigh_by_validation(
        self,
        windows: Sequence[Tensor],
        targets: NDArray[np.int64],  # (n,)
        series: NDArray[np.int64],  # (n,)
        weights: Floats | None = None,  # (n,) class weights
    ) -> None:
        """Weigh the members by disturbed copies of validation windows, given in batches, in evaluation mode."""
        copies = [disturbed_copies(some, self.n_variates, seed=place) for place, some in enumerate(windows)]
        found = [
            torch.stack([_posteriors(member, some, None) for member in self.members]).cpu() for some in copies
        ]
        found_weights = mixture_weights(torch.cat(found, dim=1).numpy(), targets, series, weights)
        self.weights.copy_(torch.from_numpy(found_weights))

    def mixed_into(self, posteriors: Tensor, windows: Tensor, *, fold: int | None = None) -> Tensor:
        """Posteriors p ``(batch, C)`` by other members -> (1 - g) p + g q; p where a window looks clean."""
        g = self.share(windows, fold=fold)
        rows = g.nonzero()[:, 0]
        if not len(rows):
            return posteriors
        some = g[rows, None]
        mixed = posteriors.clone()
        mixed[rows] = (1 - some) * posteriors[rows] + some * self(windows[rows], fold=fold)
        return mixed

    def share(self, windows: Tensor, *, fold: int | None = None) -> Tensor:
        """g ``(batch,)``, the probability that a window is disturbed; 0 where it is below .05."""
        odds = _posteriors(self.gate, windows, fold)
        disturbed_odds = odds[:, 1] * PRIOR_OF_DISTURBED
        g = disturbed_odds / (disturbed_odds + odds[:, 0] * (1 - PRIOR_OF_DISTURBED))
        return torch.where(g < LEAST_SHARE, 0.0, g)

    def forward(self, windows: Tensor, *, fold: int | None = None) -> Tensor:
        """``(batch, n_variates, length)`` -> posteriors q ``(batch, C)`` in float64."""
        found = torch.stack([_posteriors(member, windows, fold) for member in self.members])
        return torch.tensordot(self.weights, found, dims=1)


class DisturbedShare(nn.Module):
    """The share g of `DisturbedMembers` as a module, for evidence: windows -> ``(batch, 1)``.

    Examples
    --------
    >>> members = DisturbedMembers(1, 64, 3, tables=DISTURBED)
    >>> DisturbedShare(members)(torch.zeros(4, 1, 64)).shape
    torch.Size([4, 1])
    """

    handles_missing = marks_padding = True

    def __init__(self, members: DisturbedMembers) -> None:
        super().__init__()
        self.members = members

    def forward(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> g ``(batch, 1)`` in float64."""
        return self.members.share(windows)[:, None]


def _posteriors(classifier: Any, windows: Tensor, fold: int | None) -> Tensor:
    return posteriors_of(classifier.logits_and_features(windows, fold=fold)[0].double())


def thinned(training: TrainingWindows) -> TrainingWindows:
    """At most 1500 training windows, or one of each series: the first of each, and others evenly spread."""
    n = len(training.targets)
    if n <= MOST_WINDOWS:
        return training
    first = np.unique(training.series, return_index=True)[1]
    others = np.setdiff1d(np.arange(n), first)
    n_others = max(MOST_WINDOWS - len(first), 0)
    spread = others[np.linspace(0, len(others) - 1, min(n_others, len(others))).astype(np.int64)]
    rows = np.sort(np.concatenate([first, spread]))
    weights = training.weights[rows]
    return replace(
        training,
        windows=training.windows[torch.from_numpy(rows)],
        targets=training.targets[rows],
        series=training.series[rows],
        folds=training.folds[rows],
        weights=weights / weights.mean(),
        groups=None if training.groups is None else training.groups[rows],
    )


def with_copies(training: TrainingWindows, n_variates: int) -> TrainingWindows:
    """The training windows, and behind them a disturbed copy of each; missing samples stay missing.

    >>> training = TrainingWindows(
    ...     windows=torch.randn(4, 1, 50), targets=np.array([0, 0, 1, 1]), series=np.arange(4),
    ...     folds=np.array([0, 1, 0, 1]), n_classes=2, weights=np.ones(4), seed=0)
    >>> both = with_copies(training, n_variates=1)
    >>> both.windows.shape, both.targets.tolist(), both.folds.tolist()
    (torch.Size([8, 1, 50]), [0, 0, 1, 1, 0, 0, 1, 1], [0, 1, 0, 1, 0, 1, 0, 1])
    """
    windows = training.windows.float()
    return replace(
        training,
        windows=torch.cat([windows, disturbed_copies(windows, n_variates, seed=training.seed % 2**63)]),
        targets=np.tile(training.targets, 2),
        series=np.tile(training.series, 2),
        folds=np.tile(training.folds, 2),
        weights=np.tile(training.weights, 2),
        groups=None if training.groups is None else np.tile(training.groups, 2),
    )


def disturbed_copies(windows: Tensor, n_variates: int, *, seed: int) -> Tensor:
    """`disturbed` windows, with their mask of missing samples or without; missing samples stay missing."""
    values, present = split_mask(windows, n_variates)
    copies = disturbed(values, seed=seed)
    return copies if present is None else torch.cat([copies * present, present], dim=1)
