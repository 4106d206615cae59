"""MultiView: convolutions, a spectrogram and PPV features of fixed kernels, side by side.

    windows (batch, n_variates, length) -> the window, and its derivative at unit deviation
        -> shapes: seven convolutions, as in convnet.py           -> mean and maximum over time
        -> rhythms: log power of short frames, three convolutions -> mean, maximum and deviation over time
        -> ppv: proportion of values above thresholds (MiniROCKET) -> one learned linear map
        -> features, side by side (batch, d) -> logits (batch, n_outputs)

For datasets that are too small to learn every filter from. Next: ppv.py; ensemble.py averages several networks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raxss._core.settings import at_least
from raxss.errors import ConfigError, one_of
from raxss.method.backbones.convnet import HALF, ROW_LENGTH, SteadyBatchNorm, convolutions, over_time
from raxss.method.backbones.ppv import N_KERNELS, fitted_cuts, of_places_present, shares, spread_dilations
from raxss.method.backbones.protocol import FeatureNetwork, register_backbone, split_mask
from raxss.method.backbones.revin import RevIN
from raxss.method.backbones.sizes import check_allocation, check_at_least_1, check_at_most

VIEWS = ("shapes", "rhythms", "ppv")
_PPV = "textures"  # of its module, and so of its tensors in model folders: they keep their names
SHORTEST_FOR_FRAMES = 32  # below this there is no rhythm to see
LONGEST_FRAME = 4096  # its Fourier transform is a product with so many rows and columns
SHORTEST_FOR_SHARES = 16
ROWS_OF_A_DILATION = 4  # beyond so many channels, kernels see sums of some of them
WINDOWS_FOR_CUTS = 128
TINY = 1e-10  # of a variance or a power, in units of scaled signals


@register_backbone("multiview")
class MultiView(FeatureNetwork):
    """Convolutions, a spectrogram and shares of fixed kernels, side by side before one linear head.

    With the defaults, windows of 1024 samples, one variate and one output: 987,317 parameters.

    Thresholds of the fixed kernels come from some training windows (`look_at`), so a network that was not shown any
    still gives numbers, but poor ones.

    Parameters
    ----------
    views
        Which of ``"shapes"``, ``"rhythms"``, ``"ppv"`` there are. Windows of less than 32 samples have no
        rhythms, and of less than 16 no PPV.
    derivatives
        How many derivatives the first and the last of these see beside the window itself.
    width
        Channels of the first convolution on shapes.
    n_dilations, n_cuts
        Of the fixed kernels: distances between taps, and thresholds; 84 times both is the number of shares a
        channel.
    d_ppv
        Dimensions of the map that these are brought to.
    dropout
        On the shares, and on the features before the head.
    revin
        Normalise each window first (`RevIN`): for signals whose level and scale carry no information.

    Examples
    --------
    >>> network = MultiView(1, 256, 3)
    >>> network.features(torch.zeros(2, 1, 256)).shape
    torch.Size([2, 512])
    """

    capturable = True  # no step waits for the device, so it can be replayed as a CUDA graph
    handles_missing = True  # every view looks at the samples that are present

    def __init__(
        self,
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        views: str | Sequence[str] = VIEWS,
        derivatives: int = 1,
        width: int = 16,
        n_dilations: int = 16,
        n_cuts: int = 4,
        d_ppv: int = 64,
        dropout: float = 0.3,
        revin: bool = False,
    ) -> None:
        super().__init__()
        sizes = {"width": width, "n_dilations": n_dilations, "n_cuts": n_cuts, "d_ppv": d_ppv}
        check_at_most(derivatives=derivatives, **sizes)
        check_at_least_1(**sizes)
        at_least("derivatives", derivatives, 0)
        wanted = [one_of("views", view, VIEWS) for view in ([views] if isinstance(views, str) else views)]
        self.derivatives, self.n_variates = derivatives, n_variates
        self.revin = RevIN(n_variates, affine=False) if revin else None  # thresholds are fixed
        n_channels = n_variates * (1 + derivatives)
        made: dict[str, nn.Module] = {}
        if "shapes" in wanted:
            made["shapes"] = Shapes(n_channels, window_length, width)
        if "rhythms" in wanted and window_length >= SHORTEST_FOR_FRAMES:
            made["rhythms"] = Rhythms(n_variates, window_length)
        if "ppv" in wanted and window_length >= SHORTEST_FOR_SHARES:
            made[_PPV] = Textures(n_channels, window_length, n_dilations, n_cuts, d_ppv, dropout)
        if not made:
            raise ConfigError(
                f"views {wanted} leave nothing to read a window of {window_length} samples with. Add 'shapes', "
                "which reads windows of any length."
            )
        self.views = nn.ModuleDict(made)
        self.dropout = nn.Dropout(dropout)
        self.d = sum(view.d for view in made.values())  # type: ignore[misc]
        self.head = nn.Linear(self.d, n_outputs)

    def features(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, d)``."""
        windows, channels, present, known = self._channels(windows)
        found = [
            view(windows, present) if name == "rhythms" else view(channels, known)
            for name, view in self.views.items()
        ]
        return torch.cat([item.to(windows.dtype) for item in found], dim=1)

    def _channels(self, windows: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """The windows, those with derivatives, and the masks of both."""
        windows, present = split_mask(windows, self.n_variates)
        if self.revin is not None:
            windows = self.revin(windows, present)
        known = None if present is None else known_derivatives(present, self.derivatives)
        return windows, with_derivatives(windows, self.derivatives, present), present, known

    def look_at(self, windows: Tensor) -> None:
        """Take the thresholds of fixed kernels from these training windows, ``(batch, n_variates, length)``."""
        if _PPV in self.views:
            _, channels, _, known = self._channels(windows)
            self.views[_PPV].look_at(channels, known)  # type: ignore[operator]


def with_derivatives(windows: Tensor, n_orders: int, present: Tensor | None = None) -> Tensor:
    """The window and each derivative at unit deviation: ``(batch, n_variates * (1 + n_orders), length)``.

    In a derivative, the fast part of a signal that falls off as 1/f can be seen. With the mask of the samples,
    ``(batch, 1, length)``, a derivative is 0 where a sample that it is made of is missing.
    """
    found, last, known = [windows], windows, present
    for order in range(n_orders):
        steps = last[..., 1:] - last[..., :-1]
        last = torch.cat([torch.zeros_like(last[..., :1]), steps], dim=-1)
        if present is not None:
            known = known_derivatives(present, order + 1)
            last = last * known
        centred = last - _mean_over_time(last, known)
        centred = centred if known is None else centred * known
        found.append(centred * torch.rsqrt(_mean_over_time(centred.square(), known) + TINY))
    return torch.cat(found, dim=1)


def known_derivatives(present: Tensor, n_orders: int) -> Tensor:
    """The mask ``(batch, 1, length)`` of samples whose derivatives up to this order are known.

    >>> known_derivatives(torch.tensor([[[1.0, 1.0, 0.0, 1.0, 1.0]]]), 1)
    tensor([[[1., 1., 0., 0., 1.]]])
    """
    for _ in range(n_orders):
        present = torch.cat([present[..., :1], present[..., 1:] * present[..., :-1]], dim=-1)
    return present


def _mean_over_time(values: Tensor, present: Tensor | None) -> Tensor:
    """Mean over the last axis, which is kept; of values that are 0 where missing, over those present."""
    if present is None:
        return values.mean(dim=-1, keepdim=True)
    return values.sum(dim=-1, keepdim=True) / present.sum(dim=-1, keepdim=True).clamp_min(1.0)


class Shapes(nn.Module):
    """As in `ConvNet`: ``(batch, n_channels, length)`` -> mean and maximum over time (or all places)."""

    def __init__(self, n_channels: int, length: int, width: int) -> None:
        super().__init__()
        self.keeps_places = length <= ROW_LENGTH
        self.layers, n_maps, n_places = convolutions(n_channels, length, width)
        self.d = n_maps * (n_places if self.keeps_places else 2)

    def forward(self, channels: Tensor, present: Tensor | None = None) -> Tensor:
        """``(batch, n_channels, length)`` -> ``(batch, d)``."""
        maps = self.layers(channels).to(channels.dtype)  # sums over time need more than bfloat16's 8 bits
        return over_time(maps, keeps_places=self.keeps_places, present=present)


class Rhythms(nn.Module):
    """How power in bands comes and goes: ``(batch, n_variates, length)`` -> ``(batch, 3 * width)``.

    Log power of frames of a quarter of the window, 4096 samples at most, relative to the window's own power, so
    that loud and soft recordings look alike; frequencies are the channels of three convolutions over time.
    """

    waves: Tensor  # (frame, frame)
    bands: Tensor  # (frame / 2, n_bands)

    def __init__(
        self, n_variates: int, length: int, n_bands: int = 32, width: int = 64, kernel: int = 5
    ) -> None:
        super().__init__()
        self.frame = min(2 ** int(math.log2(length // 4)), LONGEST_FRAME)
        self.hop = max(self.frame // 8, 1)
        self.register_buffer("waves", sines_and_cosines(self.frame), persistent=False)
        self.register_buffer("bands", log_bands(self.frame // 2, n_bands), persistent=False)
        n_channels = n_variates * self.bands.shape[1]
        layers: list[nn.Module] = [SteadyBatchNorm(n_channels)]
        for _ in range(3):
            convolution = nn.Conv1d(n_channels, width, kernel, padding=kernel // 2, bias=False)
            layers += [convolution, SteadyBatchNorm(width), nn.ReLU()]
            n_channels = width
        self.layers = nn.Sequential(*layers)
        self.d = 3 * width

    def log_power(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, n_variates * n_bands, n_frames)``."""
        frames = windows.unfold(-1, self.frame, self.hop)  # (batch, n_variates, n_frames, frame)
        frames = frames - frames.mean(dim=-1, keepdim=True)
        power = self._power(frames)
        level = power.mean(dim=(-1, -2), keepdim=True)
        return torch.log(power / (level + TINY) + 1e-6).transpose(2, 3).flatten(1, 2)

    def present_log_power(self, windows: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """`log_power` of what is present, 0 in frames with less than half, and the mask of frames.

        Power is that of the samples present by their share, as if the others were like them.
        """
        masks = present.unfold(-1, self.frame, self.hop)  # (batch, 1, n_frames, frame)
        share = masks.mean(dim=-1, keepdim=True)
        known = (share > HALF).to(windows.dtype)
        frames = windows.unfold(-1, self.frame, self.hop) * masks
        frames = (frames - _mean_over_time(frames, masks)) * masks
        power = self._power(frames) / share.clamp_min(0.5)
        level = (power * known).sum(dim=(-1, -2), keepdim=True)
        level = level / (known.sum(dim=(-1, -2), keepdim=True) * power.shape[-1]).clamp_min(1.0)
        power = torch.log(power / (level + TINY) + 1e-6) * known
        return power.transpose(2, 3).flatten(1, 2), known[..., 0]

    def _power(self, frames: Tensor) -> Tensor:
        return (frames @ self.waves).unflatten(-1, (2, -1)).square().sum(dim=-2) @ self.bands

    def forward(self, windows: Tensor, present: Tensor | None = None) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, d)``."""
        known = None
        with torch.autocast(windows.device.type, enabled=False):
            if present is None:
                power = self.log_power(windows)
            else:
                power, known = self.present_log_power(windows, present)
        maps = self.layers(power).to(windows.dtype)
        maps = maps if known is None else maps * known
        mean = _mean_over_time(maps, known)
        centred = (maps - mean).square()
        variance = _mean_over_time(centred if known is None else centred * known, known)[..., 0]
        deviation = torch.sqrt(variance + 1e-5)  # a root of 0 has no slope
        return torch.cat([mean[..., 0], maps.amax(dim=-1), deviation], dim=1)


class Textures(nn.Module):
    """PPV features of fixed kernels: ``(batch, n_channels, length)`` -> shares -> ``(batch, d)``.

    Of many channels a kernel sees sums: for each dilation, four random sets of them.
    """

    rows: Tensor  # (n_groups,)
    dilations: Tensor  # (n_groups,)
    mixture: Tensor  # (n_groups, n_channels), or nothing where channels are seen as they are
    cuts: Tensor  # (n_groups, 84, n_cuts)
    mean: Tensor  # (n_shares,)
    deviation: Tensor  # (n_shares,)

    def __init__(
        self, n_channels: int, length: int, n_dilations: int, n_cuts: int, d: int, dropout: float
    ) -> None:
        super().__init__()
        dilations = spread_dilations(length, n_dilations)
        n_rows = min(n_channels, ROWS_OF_A_DILATION)
        self.mixes = n_channels > n_rows
        rows = [row + n_rows * k * self.mixes for k in range(len(dilations)) for row in range(n_rows)]
        steps = [dilation for dilation in dilations for _ in range(n_rows)]
        check_allocation(len(rows) * n_channels if self.mixes else 0)  # of the mixture
        self.distances = steps  # the same on the host
        self.register_buffer("rows", torch.tensor(rows, dtype=torch.int32), persistent=False)
        self.register_buffer("dilations", torch.tensor(steps, dtype=torch.int32), persistent=False)
        self.register_buffer("mixture", some_of(n_channels, len(rows) if self.mixes else 0))
        self.register_buffer("cuts", torch.zeros(len(rows), N_KERNELS, n_cuts))
        self.register_buffer("mean", torch.full((self.cuts.numel(),), 0.5))
        self.register_buffer("deviation", torch.full((self.cuts.numel(),), 0.5))
        self.dropout = nn.Dropout(dropout)
        self.map = nn.Linear(self.cuts.numel(), d)
        self.d = d

    def look_at(self, channels: Tensor, present: Tensor | None = None) -> None:
        """Thresholds from these windows ``(batch, n_channels, length)``, and mean and deviation of their shares."""
        with torch.no_grad():
            x = self.mixed(channels, present)
            self.cuts.copy_(fitted_cuts(x[:WINDOWS_FOR_CUTS], self.rows, self.dilations, self.cuts.shape[2]))
            found = shares(x, self.rows, self.dilations, self.cuts)
            if present is None:
                found = found.flatten(1)
                self.mean.copy_(found.mean(dim=0))
                self.deviation.copy_(found.std(dim=0, correction=0) + 0.01)
                return
            found = of_places_present(
                found, present, self.distances, otherwise=torch.tensor(torch.nan)
            ).flatten(1)
            mean = found.nanmean(dim=0)
            deviation = (found - mean).square().nanmean(dim=0).sqrt() + 0.01
            self.mean.copy_(mean.nan_to_num(0.5))  # where no place of any window is whole
            self.deviation.copy_(deviation.nan_to_num(0.5))

    def mixed(self, channels: Tensor, present: Tensor | None = None) -> Tensor:
        """The rows that kernels look at; NaN, which is above no threshold, where a sample is missing."""
        rows = torch.einsum("rc,bct->brt", self.mixture, channels) if self.mixes else channels
        return rows if present is None else rows.masked_fill(present == 0, torch.nan)

    def forward(self, channels: Tensor, present: Tensor | None = None) -> Tensor:
        """``(batch, n_channels, length)`` -> ``(batch, d)``."""
        with torch.no_grad(), torch.autocast(channels.device.type, enabled=False):
            found = shares(self.mixed(channels, present), self.rows, self.dilations, self.cuts)
            if present is not None:
                mean = self.mean.view_as(self.cuts)
                found = of_places_present(found, present, self.distances, otherwise=mean)
            found = found.flatten(1)
            found = found.to(self.mean.dtype).sub_(self.mean).div_(self.deviation)  # they are many: no copies
        mapped: Tensor = self.map(self.dropout(found))
        return mapped


def some_of(n_channels: int, n_rows: int) -> Tensor:
    """``(n_rows, n_channels)`` of ones and zeros: each row a random set, small ones as likely as large ones.

    Divided by the root of the set's size, so that sums are about as large as what is summed.
    """
    largest = math.log2(n_channels + 1)
    sizes = (2 ** (torch.rand(n_rows) * largest)).long().clamp(1, n_channels)
    order = torch.rand(n_rows, n_channels).argsort(dim=1)
    return (order < sizes[:, None]).float() / sizes[:, None].sqrt()


def sines_and_cosines(frame: int) -> Tensor:
    """``(frame, 2 * frame / 2)``: a Fourier transform under a Hann window as one product, without the mean."""
    t = torch.arange(frame, dtype=torch.float64)
    angle = 2 * math.pi * t[:, None] * torch.arange(1, frame // 2 + 1, dtype=torch.float64) / frame
    hann = torch.sin(math.pi * (t + 0.5) / frame) ** 2
    return (hann[:, None] * torch.cat([angle.cos(), angle.sin()], dim=1) / math.sqrt(frame)).float()


def log_bands(n_frequencies: int, n_most: int) -> Tensor:
    """``(n_frequencies, n_bands)``: means over frequencies that lie together on a logarithmic scale."""
    octaves = torch.log2(torch.arange(1, n_frequencies + 1, dtype=torch.float64))
    width = math.log2(n_frequencies + 1) / n_most
    # bands without a frequency are left out
    band = torch.unique((octaves / width).long(), return_inverse=True)[1]
    member = torch.nn.functional.one_hot(band).double()
    return (member / member.sum(dim=0)).float()
