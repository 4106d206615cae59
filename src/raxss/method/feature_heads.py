"""Gate and projection: learned heads on the features of a window.

    standardised features (n_windows, d) -> projection (n_windows, p), compared in retrieval
                                         -> gate (n_windows,), added to support

Both are learned by the series loss together with the network and the temperature; the paper names them as future
work. Weights stay a softmax and evidence stays a sum. Next: training/step.py trains them, inference.py uses them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raxss.errors import ConfigError
from raxss.method.weighting.protocol import weighting_named

GATE_WIDTH = 64  # hidden units of the gate
LEAST_VARIANCE = 1e-8  # of a feature within a batch, as a share of the mean over features


class Gate(nn.Module):
    """Gated attention on a window's features, as in attention-based multiple-instance learning.

    g(h) = w · (tanh(V h + b) × sigmoid(U h + c))

    w begins at 0, so that training begins with support alone.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.what = nn.Linear(width, GATE_WIDTH)
        self.whether = nn.Linear(width, GATE_WIDTH)
        self.total = nn.Linear(GATE_WIDTH, 1, bias=False)
        nn.init.zeros_(self.total.weight)

    def forward(self, features: Tensor) -> Tensor:
        """``(n_windows, d)`` -> ``(n_windows,)``."""
        hidden = torch.tanh(self.what(features)) * torch.sigmoid(self.whether(features))
        gate: Tensor = self.total(hidden)
        return gate[:, 0]


class FeatureHeads(nn.Module):
    """A projection, a gate, or both, on the features of a network.

    Windows are compared by the cosine of ``projection`` linear combinations of the features, or of the features
    themselves where it is 0. In a training step features are standardised by the mean and deviation of the batch,
    elsewhere by those of all training windows (`standardise_by`), which follow from the weights and are no state.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, width: int, *, projection: int = 0, gated: bool = False) -> None:
        super().__init__()
        if projection > width:
            raise ConfigError(
                f"retrieval.projection is {projection}, but the network has {width} features; a projection has at "
                f"most as many. Set it to {width} or less."
            )
        self.register_buffer("mean", torch.zeros(width), persistent=False)
        self.register_buffer("scale", torch.ones(width), persistent=False)
        self.projection = nn.Linear(width, projection, bias=False) if projection else None
        if self.projection is not None:
            nn.init.orthogonal_(self.projection.weight)  # cosines begin near those of the features themselves
        self.gate = Gate(width) if gated else None

    def standardise_by(self, mean: Tensor, scale: Tensor) -> None:
        """Set mean and deviation ``(d,)`` in place, where a recorded step reads them."""
        self.mean.copy_(mean)
        self.scale.copy_(scale)

    def standardised(self, features: Tensor) -> Tensor:
        """Features of the network -> mean 0 and deviation 1 over the batch, or over the training windows.

        With batch normalisation, features in training differ from those at prediction by orders of magnitude
        before the first steps, so that each needs its own moments. Gradients pass through both moments of a batch;
        a feature that never changes in it becomes 0.
        """
        features = features.to(self.mean.dtype)
        if not self.training:
            return (features - self.mean) / self.scale
        variance, mean = torch.var_mean(features, dim=0, correction=0)
        # Else a feature that changes by rounding alone would have a gradient too large by 1 / rounding.
        variance = variance + LEAST_VARIANCE * variance.mean()
        return (features - mean) / torch.where(variance > 0, variance, 1.0).sqrt()

    def compared(self, features: Tensor) -> Tensor:
        """Standardised features -> the vectors whose cosine is the similarity."""
        return features if self.projection is None else self.projection(features)


def heads_in_use(fitted: FeatureHeads | None, *, projection: int, weighting: str) -> FeatureHeads | None:
    """The fitted heads; refuses a projection or a gate that was not learned."""
    known = 0 if fitted is None or fitted.projection is None else fitted.projection.out_features
    if projection not in (0, known):
        raise ConfigError(
            f"projection is {projection}, but the model was fitted with projection = {known}. Fit again with "
            f"projection={projection}, or set_params(projection={known})."
        )
    chosen = weighting_named(weighting)
    if chosen.needs_gate and (fitted is None or fitted.gate is None):
        raise ConfigError(
            f"weighting is {weighting!r}, but the model was fitted without a gate. Fit again with "
            f"weighting={chosen.family!r}, or set_params(weighting='support')."
        )
    return fitted
