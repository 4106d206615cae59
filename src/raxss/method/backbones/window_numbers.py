"""Numbers of a window as inputs of a network, each only where it is switched on.

    share_missing=True   the share of missing samples, from the mask in the row behind the variates
    context=True         position, level and amplitude in the series, from the last row (../context.py)
    windows (batch, rows, length) -> logits of the network + weights · numbers

Each number has one weight an output: the same as further features before a linear head. Without ``share_missing`` a
network has no number to read gaps from, see `WindowPool.plant_gaps`. Window classifiers have the same numbers as
features of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raxss.method.backbones.protocol import features_of, handles_missing, has_head, n_features, split_mask
from raxss.method.context import N_CONTEXT, split_context


class WithNumbers(nn.Module):
    """A network, and one weight an output for each number of a window.

    Parameters
    ----------
    network
        ``(batch, n_variates, length) -> (batch, n_outputs)``; the mask reaches it if it takes one.
    share_missing, context
        Which numbers; one of them at least.

    Examples
    --------
    >>> from raxss.method.backbones import build_backbone
    >>> dlinear = build_backbone("dlinear", n_variates=1, window_length=8, n_outputs=1)
    >>> network = WithNumbers(dlinear, 1, 8, 1, share_missing=True)
    >>> windows = torch.zeros(1, 2, 8)  # no sample is present
    >>> bool(network(windows) == dlinear(windows[:, :1]) + network.share.weight[0])
    True
    """

    handles_missing = True
    context_mean: Tensor

    def __init__(
        self,
        network: nn.Module,
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        share_missing: bool = False,
        context: bool = False,
    ) -> None:
        super().__init__()
        self.network, self.n_variates, self.n_outputs = network, n_variates, n_outputs
        self.takes_context = context
        names = ["the share of missing samples"] * share_missing + ["context"] * context
        self.describe_as = f"{type(network).__name__} with {' and '.join(names)}"
        self.share = nn.Linear(1, n_outputs, bias=False) if share_missing else None
        self.context = nn.Linear(N_CONTEXT, n_outputs, bias=False) if context else None
        if context:
            self.register_buffer("context_mean", torch.zeros(N_CONTEXT))
        self.n_numbers = share_missing + N_CONTEXT * context
        self.capturable = getattr(network, "capturable", False)
        self.has_features = callable(getattr(network, "features", None))
        n_inner = n_features(network, n_variates, window_length) if self.has_features else 0
        self.widths = [n_inner + self.n_numbers] if self.has_features else None
        if not self.has_features:
            self.features = None  # type: ignore[assignment]

    def split(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """What the network gets, and the numbers of each window ``(batch, n_numbers)``."""
        numbers = []
        if self.takes_context:
            windows, context = split_context(windows, self.n_variates)
            numbers.append(self.context_mean.expand(len(windows), -1) if context is None else context)
        values, present = split_mask(windows, self.n_variates)
        if self.share is not None:
            share = values.new_zeros(len(values), 1) if present is None else 1 - present.mean(dim=2)
            numbers.insert(0, share)
        inner = windows if handles_missing(self.network) else values
        return inner, numbers[0] if len(numbers) == 1 else torch.cat(numbers, dim=1)

    def forward(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates or more, length)`` -> logits ``(batch, n_outputs)``."""
        inner, numbers = self.split(windows)
        return self.added(self.network(inner), numbers)

    def features(self, windows: Tensor) -> Tensor:
        """``(batch, d + n_numbers)``: those of the network and the numbers."""
        inner, numbers = self.split(windows)
        vectors = features_of(self.network, inner)
        return torch.cat([vectors, numbers.to(vectors.dtype)], dim=1)

    def added(self, logits: Tensor, numbers: Tensor) -> Tensor:
        """Logits of the network and of the numbers, which of two logits for two classes is the second's."""
        heads = [(self.share, numbers[:, :1]), (self.context, numbers[:, -N_CONTEXT:])]
        for head, some in heads:
            if head is None:
                continue
            more: Tensor = head(some)
            if logits.shape[1] > self.n_outputs:
                more = torch.cat([torch.zeros_like(more), more], dim=1)
            logits = logits + more
        return logits

    def look_at(self, windows: Tensor) -> None:
        """Keep the mean context of training windows; show them to the network, if it wants to see some."""
        inner, numbers = self.split(windows)
        if self.takes_context:
            self.context_mean.copy_(numbers[:, -N_CONTEXT:].mean(dim=0))
        look_at = getattr(self.network, "look_at", None)
        if callable(look_at):
            look_at(inner)


class WithNumbersAndHead(WithNumbers):
    """The same of a network whose head can be called by itself, so that one pass gives features and logits."""

    def logits_of(self, features: Tensor) -> Tensor:
        """``(batch, d + n_numbers)`` -> logits ``(batch, n_outputs)``."""
        logits: Tensor = self.network.logits_of(features[:, : -self.n_numbers])  # type: ignore[operator]
        return self.added(logits, features[:, -self.n_numbers :])


def with_numbers(
    network: nn.Module,
    n_variates: int,
    window_length: int,
    n_outputs: int,
    *,
    share_missing: bool = False,
    context: bool = False,
) -> nn.Module:
    """The network with the numbers that are switched on as inputs; the network itself where none is."""
    if not (share_missing or context):
        return network
    kind = WithNumbersAndHead if has_head(network) else WithNumbers
    shape = network, n_variates, window_length, n_outputs
    return kind(*shape, share_missing=share_missing, context=context)
