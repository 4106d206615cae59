"""Share of missing samples as an input, only where it is switched on (``share_missing=True``).

    windows (batch, n_variates + 1, length), the last row a mask -> logits of the network + weight · share missing

One number a window, between 0 and 1, with one weight an output: the same as one more feature before a linear head.
Without it a network has no number to read gaps from, see `WindowPool.plant_gaps`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raxss.method.backbones.protocol import features_of, handles_missing, has_head, n_features, split_mask


class WithShareMissing(nn.Module):
    """A network, and one weight an output for the share of missing samples.

    Parameters
    ----------
    network
        ``(batch, n_variates, length) -> (batch, n_outputs)``; the mask reaches it if it takes one.

    Examples
    --------
    >>> from raxss.method.backbones import build_backbone
    >>> network = WithShareMissing(build_backbone("dlinear", n_variates=1, window_length=8, n_outputs=1), 1, 8, 1)
    >>> windows = torch.zeros(1, 2, 8)  # no sample is present
    >>> bool(network(windows) == network.network(windows[:, :1]) + network.share.weight[0])
    True
    """

    handles_missing = True

    def __init__(self, network: nn.Module, n_variates: int, window_length: int, n_outputs: int) -> None:
        super().__init__()
        self.network, self.n_variates, self.n_outputs = network, n_variates, n_outputs
        self.describe_as = f"{type(network).__name__} with the share of missing samples"
        self.share = nn.Linear(1, n_outputs, bias=False)
        self.capturable = getattr(network, "capturable", False)
        self.has_features = callable(getattr(network, "features", None))
        self.widths = [n_features(network, n_variates, window_length) + 1] if self.has_features else None
        if not self.has_features:
            self.features = None  # type: ignore[assignment]

    def split(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """What the network gets, and the share missing of each window ``(batch, 1)``."""
        values, present = split_mask(windows, self.n_variates)
        if present is None:
            return values, values.new_zeros(len(values), 1)
        return (windows if handles_missing(self.network) else values), 1 - present.mean(dim=2)

    def forward(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates or one more, length)`` -> logits ``(batch, n_outputs)``."""
        inner, share = self.split(windows)
        return self.added(self.network(inner), share)

    def features(self, windows: Tensor) -> Tensor:
        """``(batch, d + 1)``: those of the network and the share missing."""
        inner, share = self.split(windows)
        vectors = features_of(self.network, inner)
        return torch.cat([vectors, share.to(vectors.dtype)], dim=1)

    def added(self, logits: Tensor, share: Tensor) -> Tensor:
        """Logits of the network and of the share missing, which of two logits for two classes is the second's."""
        more: Tensor = self.share(share)
        if logits.shape[1] > self.n_outputs:
            more = torch.cat([torch.zeros_like(more), more], dim=1)
        return logits + more

    def look_at(self, windows: Tensor) -> None:
        """Show training windows to the network, if it wants to see some."""
        look_at = getattr(self.network, "look_at", None)
        if callable(look_at):
            look_at(self.split(windows)[0])


class WithShareAndHead(WithShareMissing):
    """The same of a network whose head can be called by itself, so that one pass gives features and logits."""

    def logits_of(self, features: Tensor) -> Tensor:
        """``(batch, d + 1)`` -> logits ``(batch, n_outputs)``."""
        logits: Tensor = self.network.logits_of(features[:, :-1])  # type: ignore[operator]
        return self.added(logits, features[:, -1:])


def share_added(network: nn.Module, n_variates: int, window_length: int, n_outputs: int) -> WithShareMissing:
    """The network with the share missing as an input."""
    kind = WithShareAndHead if has_head(network) else WithShareMissing
    return kind(network, n_variates, window_length, n_outputs)
