"""Mixture of window classifiers and a network: the weighted mean of their posteriors.

    windows (batch, n_variates, length) -> posteriors of each member -> sum of w_i p_i -> logits (batch, n_outputs)

A window has one posterior, a convex combination over members, so contributions of windows still add up to the
score. The weights are those with the largest likelihood of series that the members were not fitted on: out of fold,
or on the validation set where a network is a member (mixture_weights.py). Where a window looks disturbed, other
members are used that know such windows (disturbed_members.py). Next: window_classifiers.py has the members;
ensemble.py is a mean of networks that are trained together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raxss.errors import ConfigError, one_of
from raxss.method.aggregation import posteriors_of
from raxss.method.backbones.disturbed_members import DISTURBED, DisturbedMembers, DisturbedShare
from raxss.method.backbones.mixture_weights import mixture_weights
from raxss.method.backbones.protocol import (
    build_backbone,
    handles_missing,
    logits_and_features,
    n_features,
    register_classifier,
    split_mask,
)
from raxss.method.backbones.sizes import check_at_most
from raxss.method.backbones.views import computed_once
from raxss.method.backbones.window_classifiers import (
    Floats,
    HeldOut,
    TrainingWindows,
    is_fitted_at_once,
    logits_of_posteriors,
)
from raxss.method.context import add_context, split_context, takes_context
from raxss.method.windows import LONGEST_WHOLE, MANY_SERIES, usual_longest

#: Members of every mixture: PPV features and statistics, of windows as they are and at unit deviation.
CLASSIFIERS: tuple[Mapping[str, Any], ...] = (
    {"backbone": "ridge", "view": "ppv"},
    {"backbone": "ridge", "view": "ppv", "normalise": True},
    {"backbone": "extra-trees", "view": "statistics"},
    {"backbone": "extra-trees", "view": "statistics", "normalise": True},
)
#: Members that join where series are short and few: ridge regression on more features of each PPV kernel, and on
#: competing kernels. In inner folds of 13 such sets accuracy rose by .007, log loss fell by .037; on long
#: recordings and on larger sets they changed nothing, for three times the time.
MORE_VIEWS: tuple[Mapping[str, Any], ...] = (
    {"backbone": "ridge", "view": "multirocket"},
    {"backbone": "ridge", "view": "hydra", "normalise": True},
)
MOST_SAMPLES_OF_MORE_VIEWS = 2**19  # of all series, padded to the longest, and variates
#: Members that join where series show heart beats (`beats.shows_beats`). In inner folds of two sets of ECGs they
#: raised F1 from .63 to .78 and from .90 to .96.
BEATS: tuple[Mapping[str, Any], ...] = (
    {"backbone": "extra-trees", "view": "beats"},
    {"backbone": "logistic", "view": "beats"},
)
#: The member that joins where there are enough series to judge it by a validation set.
NETWORK: Mapping[str, Any] = {"backbone": "multiview", "views": ["shapes", "rhythms"]}


@register_classifier("mixture")
class Mixture(nn.Module):
    """Window classifiers, and where there is enough data a network, as a weighted mean of their posteriors.

    With the defaults: 0 parameters that are trained.

    Parameters
    ----------
    members
        A table for each member: ``backbone``, a name, and its options. ``"auto"``: ridge regression on PPV
        features and extra trees on statistics, both of windows as they are and of windows at unit deviation; `fit`
        adds ridge regression on two more views where series are short and few, extra trees and logistic
        regression on the view ``"beats"`` where series show heart beats, and a network from 400 series on
        (`members_for`). At most one member is trained by gradients.
    disturbed
        Tables of window classifiers for windows with noise or artefacts (`DisturbedMembers`); none by default.
        Where members are ``"auto"``, `fit` adds ridge regression on PPV features and extra trees on statistics,
        and where series show heart beats extra trees on the view ``"beats"``.

    Examples
    --------
    >>> mixture = Mixture(1, 64, 3, members=[{"backbone": "ridge"}, {"backbone": "convnet", "width": 8}])
    >>> mixture.eval()(torch.zeros(4, 1, 64)).shape
    torch.Size([4, 3])
    >>> mixture.describe_as
    'mixture of .50 Ridge on ppv, .50 ConvNet'
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
        disturbed: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__()
        tables = _checked_members(members)
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
        n_trained = len(self._trained)
        nested = any(isinstance(member, Mixture) for member in self.members)
        if nested or n_trained > 1 or n_trained == len(tables):
            raise ConfigError(
                f"a mixture of {[table['backbone'] for table in tables]} cannot be made: its members are one or "
                "more window classifiers and at most one network, and no mixture. For several networks, use one "
                "'ensemble'."
            )
        self.widths = [n_features(member, n_variates, window_length) for member in self.members]
        self.register_buffer("weights", torch.full((len(tables),), 1 / len(tables), dtype=torch.float64))
        self.disturbed: DisturbedMembers | None = None
        if len(disturbed):
            shape = n_variates, window_length, n_outputs
            self.disturbed = DisturbedMembers(*shape, tables=_checked_tables("disturbed", disturbed))

    @property
    def describe_as(self) -> str:
        """Members with their weights: ``"mixture of .60 Ridge on ppv, .40 ExtraTrees on statistics"``."""
        found = f"mixture of {described(self.weights, self.members)}"
        if self.disturbed is None:
            return found
        return f"{found}; of disturbed windows {described(self.disturbed.weights, self.disturbed.members)}"

    @property
    def _trained(self) -> list[nn.Module]:
        return [member for member in self.members if not is_fitted_at_once(member)]

    @property
    def network(self) -> nn.Module | None:
        """The member that is trained by gradients, or None."""
        return next(iter(self._trained), None)

    @property
    def disturbed_share(self) -> DisturbedShare | None:
        """How far posteriors are those of members for disturbed windows; None without such members."""
        return None if self.disturbed is None else DisturbedShare(self.disturbed)

    @property
    def share_missing(self) -> bool:
        """Whether the share of missing samples is a feature of a member."""
        return any(getattr(member, "share_missing", False) for member in self.members)

    @property
    def takes_context(self) -> bool:
        """Whether the context of windows is a feature of a member."""
        return any(map(takes_context, self.members))

    @property
    def context_mean(self) -> Tensor:
        """Mean context of the training windows ``(3,)``, which are those of every member."""
        found: Tensor = next(member for member in self.members if takes_context(member)).context_mean  # type: ignore[assignment]
        return found

    def fit_windows(self, training: TrainingWindows) -> Floats:
        """Fit the window classifiers; unless a network is a member, weigh them by their out-of-fold posteriors.

        Returns the out-of-fold posteriors ``(n, C)`` of the mixture of the window classifiers, a network left out;
        NaN for windows in no fold.
        """
        fitted: list[Any] = [member for member in self.members if is_fitted_at_once(member)]
        found = np.stack(
            [
                member.fit_windows(replace(training, windows=self._seen_by(member, training.windows)))
                for member in fitted
            ]
        )
        self.weights.fill_(1 / len(self.members))
        if self.disturbed is not None:
            self.disturbed.fit_windows(replace(training, windows=self._without_context(training.windows)))
        if self.network is not None:
            return found.mean(axis=0)
        held_out = training.folds >= 0
        if held_out.any():
            self.weigh(
                found[:, held_out],
                training.targets[held_out],
                training.series[held_out],
                training.weights[held_out],
            )
        return np.tensordot(self.weights.cpu().numpy(), found, axes=1)

    def weigh(
        self,
        posteriors: Floats,  # (n_members, n, C)
        targets: NDArray[np.int64],  # (n,)
        series: NDArray[np.int64],  # (n,)
        weights: Floats | None = None,  # (n,)
    ) -> None:
        """Set the weights by posteriors of windows that the members were not fitted on (`mixture_weights`)."""
        self.weights.copy_(torch.from_numpy(mixture_weights(posteriors, targets, series, weights)))

    def weigh_by_validation(
        self,
        windows: Sequence[Tensor],
        targets: NDArray[np.int64],  # (n,)
        series: NDArray[np.int64],  # (n,)
        weights: Floats | None = None,  # (n,) class weights
    ) -> None:
        """Set the weights by validation windows, given in batches; those for disturbed windows by copies."""
        self.eval()
        with torch.inference_mode():
            found = [
                torch.stack([self._member(k, some)[0] for k in range(len(self.members))]).cpu()
                for some in windows
            ]
            if self.disturbed is not None:
                inner = [self._without_context(some) for some in windows]
                self.disturbed.weigh_by_validation(inner, targets, series, weights)
        self.weigh(torch.cat(found, dim=1).numpy(), targets, series, weights)

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
        """Logits of the mixture, and features of its members side by side, without those of `disturbed`."""
        with computed_once():
            every = [self._member(k, windows, fold=fold) for k in range(len(self.members))]
            posteriors, features = zip(*every, strict=True)
            mixed = torch.tensordot(self.weights, torch.stack(posteriors), dims=1)
            if self.disturbed is not None:
                mixed = self.disturbed.mixed_into(mixed, self._without_context(windows), fold=fold)
        return logits_of_posteriors(mixed, self.n_outputs), torch.cat(features, dim=1)

    def _member(self, place: int, windows: Tensor, *, fold: int | None = None) -> tuple[Tensor, Tensor]:
        """Posteriors ``(batch, C)`` in float64, and features in float32, of one member."""
        member = self.members[place]
        windows = self._seen_by(member, windows)
        if fold is None or not is_fitted_at_once(member):
            logits, features = logits_and_features(member, windows)
        else:
            logits, features = member.logits_and_features(windows, fold=fold)  # type: ignore[operator]
        return posteriors_of(logits.double()), features.float()

    def _without_context(self, windows: Tensor) -> Tensor:
        return split_context(windows, self.n_variates)[0] if self.takes_context else windows

    def _seen_by(self, member: nn.Module, windows: Tensor) -> Tensor:
        """Windows with those of the rows for mask and context that a member takes."""
        if handles_missing(member) and takes_context(member) == self.takes_context:
            return windows
        inner, context = split_context(windows, self.n_variates) if self.takes_context else (windows, None)
        if not handles_missing(member):
            inner = split_mask(inner, self.n_variates)[0]
        return add_context(inner, context) if takes_context(member) else inner


def _checked_members(members: str | Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A table for each member."""
    if isinstance(members, str):
        one_of("members", members, ("auto",))
        return list(members_for([]))
    return _checked_tables("members", members)


def _checked_tables(option: str, given: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    tables: list[Any] = list(given)
    if not tables or not all(isinstance(table, Mapping) and "backbone" in table for table in tables):
        raise ConfigError(
            f"{option} is {given!r}; needed is a table for each member with its backbone and options. Set "
            f"{option} = [{{'backbone': 'ridge', 'view': 'ppv'}}, {{'backbone': 'extra-trees'}}], for example."
        )
    check_at_most(members=len(tables))
    return tables


def described(weights: Tensor, members: nn.ModuleList) -> str:
    """Members with their weights, in words."""
    parts = [
        f"{weight:.2f} {getattr(member, 'describe_as', type(member).__name__)}".removeprefix("0")
        for weight, member in zip(weights.tolist(), members, strict=True)
    ]
    return ", ".join(parts)


def resolved(
    options: Mapping[str, Any], lengths: Sequence[int], n_variates: int, *, has_beats: bool = False
) -> dict[str, Any]:
    """Options of a mixture fitted on series of these lengths: where members are ``"auto"``, they are named.

    >>> resolved({}, [9000] * 50, 1)["disturbed"]
    [{'backbone': 'ridge', 'view': 'ppv'}, {'backbone': 'extra-trees', 'view': 'statistics'}]
    >>> resolved({}, [9000] * 50, 1, has_beats=True)["disturbed"][2:]
    [{'backbone': 'extra-trees', 'view': 'beats'}]
    """
    if options.get("members", "auto") != "auto":
        return dict(options)
    disturbed = [dict(table) for table in (*DISTURBED, *(BEATS[:1] if has_beats else ()))]
    members = members_for(lengths, n_variates, has_beats=has_beats)
    return {"disturbed": disturbed} | dict(options) | {"members": members}


def members_for(
    lengths: Sequence[int], n_variates: int = 1, *, has_beats: bool = False
) -> list[dict[str, Any]]:
    """Members of a mixture that is fitted on series of these lengths.

    `CLASSIFIERS`; `MORE_VIEWS` where series (but for a tenth at most) have no more than 1536 samples and all
    together, padded to the longest of those, have at most 524,288 over their variates; `BEATS` where series show
    heart beats in windows that hold them; `NETWORK` from 400 series on.

    >>> [member["backbone"] for member in members_for([9000] * 400)]
    ['ridge', 'ridge', 'extra-trees', 'extra-trees', 'multiview']
    >>> [member["view"] for member in members_for([150] * 50)]
    ['ppv', 'ppv', 'statistics', 'statistics', 'multirocket', 'hydra']
    """
    longest = usual_longest(lengths)
    is_small = len(lengths) * longest * n_variates <= MOST_SAMPLES_OF_MORE_VIEWS
    more = MORE_VIEWS if lengths and longest <= LONGEST_WHOLE and is_small else ()
    beats = BEATS if has_beats else ()
    networks = (NETWORK,) if len(lengths) >= MANY_SERIES else ()
    return [dict(table) for table in (*CLASSIFIERS, *more, *beats, *networks)]
