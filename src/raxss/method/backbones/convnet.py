"""ConvNet: a small convolutional network with pooling over time.

    windows (batch, n_variates, length) -> seven convolutions -> maps (batch, 128, length / 64)
        -> features: mean and maximum over time (batch, 256) -> logits (batch, n_outputs)

The last place of the last layer has seen 1135 samples: a rhythm is a relation between beats, so a layer must
see several of them. Early strides keep it fast on two cores.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from raxss.method.backbones.protocol import FeatureNetwork, register_backbone, split_mask
from raxss.method.backbones.revin import RevIN
from raxss.method.backbones.sizes import check_at_least_1, check_at_most

# (widths, kernel, stride)
LAYERS = ((1, 15, 4), (2, 7, 2), (4, 7, 2), (4, 7, 2), (8, 7, 2), (8, 7, 1), (8, 7, 1))
ROW_LENGTH = 16  # up to here a window is a row of features, whose places mean different things
SHORTEST_MAP = 4  # do not stride below this: nothing would be left to take a mean of

HALF = 0.5 - 1e-5  # a mean of exactly a half is rounded otherwise on a GPU


@register_backbone("convnet")
class ConvNet(FeatureNetwork):
    """Seven convolutions, each with batch normalisation and ReLU, then mean and maximum over time.

    With the defaults, one variate and one output: 334,929 parameters. For windows from 1 sample up: strides are
    left out once little is left, and windows of at most 16 samples are treated as rows of features, whose every
    place reaches the head (a mean over places would erase which feature was large).

    Parameters
    ----------
    width
        Channels of the first layer; the last has eight times as many.
    dropout
        On the features, before the head.
    revin
        Normalise each window first (`RevIN`): for signals whose level and scale carry no information.

    Examples
    --------
    >>> network = ConvNet(1, 1024, 3)
    >>> network.features(torch.zeros(2, 1, 1024)).shape
    torch.Size([2, 256])
    """

    fewest_places = SHORTEST_MAP  # in time, that strides leave
    capturable = True  # no step waits for the device, so it can be replayed as a CUDA graph
    handles_missing = True  # mean and maximum are over the places that are present

    def __init__(
        self,
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        width: int = 16,
        dropout: float = 0.2,
        revin: bool = False,
    ) -> None:
        super().__init__()
        check_at_least_1(width=width)
        check_at_most(width=width)
        self.keeps_places = window_length <= ROW_LENGTH
        self.n_variates = n_variates
        self.revin = RevIN(n_variates) if revin else None
        self.layers, channels, length = convolutions(
            n_variates, window_length, width, fewest_places=self.fewest_places
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(channels * (length if self.keeps_places else 2), n_outputs)

    def features(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, 16 * width)``, or all places of a short window."""
        windows, present = split_mask(windows, self.n_variates)
        if self.revin is not None:
            windows = self.revin(windows, present)
        return over_time(self.layers(windows), keeps_places=self.keeps_places, present=present)


@register_backbone("convnet-fine")
class FineConvNet(ConvNet):
    """`ConvNet` that keeps at least 32 places in time, so that short windows are not blurred; the default.

    As many parameters as `ConvNet`, since strides have none; for windows under 2048 samples it takes longer.

    Examples
    --------
    >>> coarse, fine = ConvNet(1, 150, 1), FineConvNet(1, 150, 1)
    >>> coarse.layers(torch.zeros(2, 1, 150)).shape, fine.layers(torch.zeros(2, 1, 150)).shape
    (torch.Size([2, 128, 5]), torch.Size([2, 128, 38]))
    """

    fewest_places = 32  # in four places a beat or a gesture is one blur


def convolutions(
    n_channels: int, length: int, width: int, *, fewest_places: int = SHORTEST_MAP
) -> tuple[nn.Sequential, int, int]:
    """Seven convolutions for windows of this shape, and the channels and length of the maps that they give.

    Strides are left out for rows of features, and once little is left.
    """
    layers: list[nn.Module] = []
    keeps_places = length <= ROW_LENGTH
    for units, kernel, stride in LAYERS:
        if keeps_places or length // stride < fewest_places:
            stride = 1
        # no bias: the normalisation that follows has its own
        convolution = nn.Conv1d(n_channels, width * units, kernel, stride, padding=kernel // 2, bias=False)
        layers += [convolution, SteadyBatchNorm(width * units), nn.ReLU()]
        n_channels, length = width * units, (length - 1) // stride + 1
    return nn.Sequential(*layers), n_channels, length


def over_time(maps: Tensor, *, keeps_places: bool, present: Tensor | None = None) -> Tensor:
    """Mean and maximum over time, ``(batch, channels, length)`` -> ``(batch, 2 * channels)``; or every place.

    With the mask of the samples ``(batch, 1, n_samples)``, over the places that are present (`places_present`).
    """
    if present is not None:
        present = places_present(present, maps.shape[-1]).to(maps.dtype)
        maps = maps * present
    if keeps_places:
        return maps.flatten(1)
    if present is None:
        return torch.cat([maps.mean(dim=-1), maps.amax(dim=-1)], dim=1)
    mean = maps.sum(dim=-1) / present.sum(dim=-1).clamp_min(1.0)
    return torch.cat([mean, maps.amax(dim=-1)], dim=1)  # after a ReLU a place of 0 is never above another


def places_present(present: Tensor, n_places: int) -> Tensor:
    """Places of a map, 1 where at least half of their samples are present, 0 elsewhere: ``(batch, 1, n_places)``.

    >>> places_present(torch.tensor([[[1.0, 1.0, 1.0, 0.0, 0.0, 0.0]]]), 3)
    tensor([[[1., 1., 0.]]])
    """
    # Counted in whole numbers. `adaptive_avg_pool1d` reads other memory on a GPU where the mask is a view: of a
    # dimension of size 1 it uses the stride, which means nothing there.
    n_samples, places = present.shape[-1], torch.arange(n_places, device=present.device)
    begin, end = places * n_samples // n_places, -(-(places + 1) * n_samples // n_places)
    n_before = functional.pad(present.to(torch.int32).cumsum(dim=-1, dtype=torch.int32), (1, 0))
    n_present = n_before.index_select(-1, end) - n_before.index_select(-1, begin)
    return (2 * n_present >= end - begin).to(present.dtype)


class SteadyBatchNorm(nn.BatchNorm1d):
    """Batch normalisation that uses its running statistics where a batch holds a single value per channel.

    The last batch of an epoch may be one window of one sample, of which there is no deviation to take.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """``(batch, channels, length)`` -> the same."""
        if maps.shape[0] * maps.shape[2] > 1:
            return super().forward(maps)
        return functional.batch_norm(
            maps, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )
