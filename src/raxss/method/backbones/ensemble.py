"""Ensemble of networks: the mean of their posteriors.

    windows (batch, n_variates, length) -> posteriors of each member -> their mean -> logits (batch, n_outputs)

In training each window goes to one member, so an epoch costs as much as for one network, and members see different
batches. At prediction a window still has one posterior, so contributions add up.

Next: multiview.py is what an ensemble is usually made of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from raxss.errors import BackboneError, ConfigError
from raxss.method.backbones.protocol import (
    build_backbone,
    features_of,
    handles_missing,
    has_head,
    n_features,
    n_parameters,
    register_backbone,
)
from raxss.method.backbones.sizes import check_at_most

MOST_PARAMETERS = 2**28  # of all members together: one gigabyte


@register_backbone("ensemble")
class Ensemble(nn.Module):
    """Several networks of one kind; the mean of their posteriors.

    With the defaults, windows of 1024 samples, one variate and one output: 3,949,268 parameters.

    Parameters
    ----------
    of
        The kind of network: a registered name. It has ``features`` and ``logits_of``, as every network of the
        package has.
    members
        How many, all alike but for their initial weights; or a table of options for each.
    options
        Of every member; those of its own come on top.

    Notes
    -----
    In training, window k of a batch is for member k mod n. Where features are read too (a gate, a projection,
    support in feature space), all members see all windows, so a step costs n times as much; logits are still of
    one member.

    Examples
    --------
    >>> network = Ensemble(1, 256, 1, of="convnet", members=3)
    >>> network.eval()(torch.zeros(4, 1, 256)).shape
    torch.Size([4, 1])
    >>> network.features(torch.zeros(4, 1, 256)).shape  # those of its members, side by side
    torch.Size([4, 768])
    >>> Ensemble(1, 256, 1, of="convnet", members=[{"width": 8}, {"width": 16}], options={"revin": True}).widths
    [128, 256]
    """

    def __init__(
        self,
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        of: str = "multiview",
        members: int | Sequence[Mapping[str, Any]] = 4,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if of == "ensemble":
            raise ConfigError("an ensemble cannot be made of ensembles. Set of to another backbone.")
        shape = {"n_variates": n_variates, "window_length": window_length, "n_outputs": n_outputs}
        self.members = nn.ModuleList()
        tables = options_by_member(members, options or {})
        for table in tables:
            member = build_backbone(of, options=table, **shape)
            if not (callable(getattr(member, "features", None)) and has_head(member)):
                raise BackboneError(
                    f"an ensemble of {of!r} cannot be made: {type(member).__name__} lacks features(windows) -> "
                    "(batch, d) or logits_of(features), which belongs to its forward. Add both: the input of its "
                    "last layer, and that layer."
                )
            self.members.append(member)
            if n_parameters(self) * len(tables) > MOST_PARAMETERS * len(self.members):
                raise ConfigError(
                    f"{len(tables)} members of some {n_parameters(member):,} parameters are more than an ensemble "
                    f"may have, {MOST_PARAMETERS:,} in all. Choose fewer members, or smaller ones."
                )
        self.widths = [n_features(member, n_variates, window_length) for member in self.members]
        self.handles_missing = all(map(handles_missing, self.members))  # they are of one kind
        self.capturable = all(getattr(member, "capturable", False) for member in self.members)

    def forward(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> logits ``(batch, n_outputs)``; in training, each from one member."""
        if not self.training:
            return mean_posterior([member(windows) for member in self.members])
        n = len(self.members)
        return in_turn(
            [member(windows[k::n]) for k, member in enumerate(self.members) if k < max(len(windows), 1)]
        )

    def features(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, n_members * d)``."""
        return torch.cat([features_of(member, windows) for member in self.members], dim=1)

    def logits_of(self, features: Tensor) -> Tensor:
        """``(batch, n_members * d)`` -> logits ``(batch, n_outputs)``; in training, each from one member."""
        parts = zip(self.members, features.split(self.widths, dim=1), strict=True)
        if not self.training:
            return mean_posterior([member.logits_of(part) for member, part in parts])  # type: ignore[operator]
        n = len(self.members)
        return in_turn([member.logits_of(part[k::n]) for k, (member, part) in enumerate(parts)])  # type: ignore[operator]

    def look_at(self, windows: Tensor) -> None:
        """Show training windows ``(batch, n_variates, length)`` to the members that want to see some."""
        for member in self.members:
            if callable(getattr(member, "look_at", None)):
                member.look_at(windows)  # type: ignore[operator]


def options_by_member(
    members: int | Sequence[Mapping[str, Any]], common: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The options of each member."""
    each: Any = members
    if isinstance(members, int) and not isinstance(members, bool):
        check_at_most(members=members)
        each = [{}] * members
    listed = isinstance(each, Sequence) and all(isinstance(own, Mapping) for own in each)
    if not listed or not each or not isinstance(common, Mapping):
        raise ConfigError(
            f"members is {members!r} and options is {common!r}; needed is a number of members, at least 1, or a "
            "list with a table of options for each, and a table of options for all."
        )
    check_at_most(members=len(each))
    return [{**common, **own} for own in each]


def in_turn(parts: list[Tensor]) -> Tensor:
    """Rows of n tensors, interleaved: row 0 of each, then row 1 of each."""
    n_rows = sum(len(part) for part in parts)
    dealt = parts[0].new_empty(n_rows, parts[0].shape[1])
    for k, part in enumerate(parts):
        dealt[k :: len(parts)] = part
    return dealt


def mean_posterior(logits: list[Tensor]) -> Tensor:
    """Logits ``(batch, n_outputs)`` of the mean of the posteriors of several networks."""
    stacked = torch.stack(logits)
    if stacked.dtype in (torch.float16, torch.bfloat16):
        stacked = stacked.float()
    if stacked.shape[-1] == 1:
        both = torch.stack([functional.logsigmoid(stacked), functional.logsigmoid(-stacked)]).logsumexp(dim=1)
        return both[0] - both[1]
    return functional.log_softmax(stacked, dim=-1).logsumexp(dim=0) - math.log(len(logits))
