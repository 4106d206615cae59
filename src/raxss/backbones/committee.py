"""What do several networks make of a window, when each has learned by itself?

    windows (batch, n_variates, length) -> posteriors of each member -> their mean -> logits (batch, n_outputs)

In training a window teaches one member, so an epoch costs what it costs for one network, and members have seen
different batches in a different order. At prediction all speak, and the posterior is the mean of theirs: a window
still has one posterior, so contributions add up as ever. Members fail on different windows; their mean is steadier than any of them.

Next: multiview.py is what a committee is usually made of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from raxss.backbones.protocol import build_backbone, features_of, register_backbone
from raxss.backbones.sizes import check_at_most
from raxss.errors import ConfigError


@register_backbone("committee")
class Committee(nn.Module):
    """Several networks of one kind; the mean of their posteriors.

    Parameters
    ----------
    of
        The kind of network: a registered name.
    members
        How many, all alike but for their initial weights; or a table of options for each.
    options
        Of every member; those of its own come on top.

    Examples
    --------
    >>> network = Committee(1, 256, 1, of="convnet", members=3)
    >>> network.eval()(torch.zeros(4, 1, 256)).shape
    torch.Size([4, 1])
    >>> network.features(torch.zeros(4, 1, 256)).shape  # those of its members, side by side
    torch.Size([4, 768])
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
        own: Sequence[Mapping[str, Any]] = [{}] * members if isinstance(members, int) else members
        if not own:
            raise ConfigError(
                f"members is {members!r}; a committee has at least one. Give a number, or a list."
            )
        if of == "committee":
            raise ConfigError("a committee cannot be made of committees. Set of to another backbone.")
        check_at_most(n_blocks=len(own))
        shape = {"n_variates": n_variates, "window_length": window_length, "n_outputs": n_outputs}
        made = [build_backbone(of, options={**(options or {}), **one}, **shape) for one in own]
        self.members = nn.ModuleList(made)
        self.capturable = all(getattr(member, "capturable", False) for member in made)

    def forward(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> logits ``(batch, n_outputs)``; in training, each from one member."""
        if not self.training:
            return mean_posterior([member(windows) for member in self.members])
        n = len(self.members)
        parts = [member(windows[k::n]) for k, member in enumerate(self.members) if k < len(windows)]
        logits = parts[0].new_empty(len(windows), parts[0].shape[1])
        for k, part in enumerate(parts):
            logits[k::n] = part
        return logits

    def features(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, n_members * d)``."""
        return torch.cat([features_of(member, windows) for member in self.members], dim=1)

    def logits_of(self, features: Tensor) -> Tensor:
        """``(batch, n_members * d)`` -> logits of the mean posterior, ``(batch, n_outputs)``."""
        parts = features.split([member.d for member in self.members], dim=1)
        return mean_posterior(
            [member.logits_of(part) for member, part in zip(self.members, parts, strict=True)]  # type: ignore[operator]
        )

    def look_at(self, windows: Tensor) -> None:
        """Show training windows ``(batch, n_variates, length)`` to the members that want to see some."""
        for member in self.members:
            if callable(getattr(member, "look_at", None)):
                member.look_at(windows)  # type: ignore[operator]


def mean_posterior(logits: list[Tensor]) -> Tensor:
    """Logits ``(batch, n_outputs)`` of the mean of the posteriors of several networks.

    >>> sure, unsure = torch.tensor([[math.log(9.0)]]), torch.tensor([[0.0]])  # .9 and .5
    >>> mean_posterior([sure, unsure]).sigmoid()
    tensor([[0.7000]])
    """
    stacked = torch.stack([one.float() for one in logits])
    if stacked.shape[-1] == 1:
        both = torch.stack([functional.logsigmoid(stacked), functional.logsigmoid(-stacked)]).logsumexp(dim=1)
        return both[0] - both[1]
    return functional.log_softmax(stacked, dim=-1).logsumexp(dim=0) - math.log(len(logits))
