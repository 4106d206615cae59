"""Data augmentation: random changes of training windows that keep their class.

    windows (batch, n_variates, length) -> random draws for each -> windows of the same shape, changed

Every step draws anew for every window, on the device, in training alone. Retrieval in the signal sees the windows
unchanged; features within a step (``refresh="batch"``, a gate) are those of the changed windows.
Next: training/step.py changes a batch before the network sees it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from raxss._core.settings import is_number
from raxss.errors import ConfigError

AUTO: Literal["auto"] = "auto"
#: ``augmentation="auto"``: small changes for signals of any kind, chosen by cross-validation within the training
#: parts of eight public sets (mean accuracy .92 with them, .89 without).
LIGHT: Mapping[str, float] = MappingProxyType({"gain": 0.1, "noise": 0.1, "stretch": 0.1, "mask": 0.2})
#: The same from `MANY_SERIES` on. In inner folds of four sets (312 to 1800 training series) the default had a mean
#: accuracy of .792 with them, and of .771 with `LIGHT`.
STRONG: Mapping[str, float] = MappingProxyType(
    {"flip": 0.3, "gain": 0.3, "stretch": 0.2, "noise": 0.1, "mask": 0.3}
)
NEARLY_1 = 1 - 1e-3  # a mask, interpolated: less is not of present samples alone
#: Setting -> its largest value and meaning.
MEANINGS: Mapping[str, tuple[float, str]] = MappingProxyType(
    {
        "flip": (1.0, "the probability that a window changes sign"),
        "reverse": (1.0, "the probability that a window runs backwards"),
        "gain": (3.0, "the deviation of the logarithm of a window's factor"),
        "noise": (1e6, "the largest deviation of added noise, in units of the scaled signal"),
        "stretch": (0.9, "the share by which time is stretched or squeezed at most"),
        "mask": (0.9, "the largest share of a window that is masked"),
        "rotate": (math.pi, "the deviation of an angle in radians; a degree is 0.01745"),
        "drop": (0.9, "the probability that a variate is silent for a window"),
    }
)


@dataclass(frozen=True, kw_only=True)
class AugmentationConfig:
    """Random changes of training windows; by default none.

    Examples
    --------
    >>> AugmentationConfig(flip=0.5, stretch=0.1).flip
    0.5
    >>> AugmentationConfig(rotate=15)
    Traceback (most recent call last):
    ...
    raxss.errors.ConfigError: augmentation.rotate must be a number from 0 to 3.14159, got 15. It is the ...
    """

    flip: float = 0.0  # probability that the sign of all variates changes
    reverse: float = 0.0  # probability that time runs backwards
    gain: float = 0.0  # deviation of the logarithm of a factor; 0.1: mostly within a fifth
    noise: float = 0.0  # white, of a deviation between 0 and this, in units of the scaled signal
    stretch: float = 0.0  # time runs 1 - x to 1 + x times as fast
    mask: float = 0.0  # a stretch of up to this share of the window is hidden
    mirror: Sequence[int] = ()  # variates whose signs change together in every second window: left, right
    rotate: float = 0.0  # deviation in radians of a turn of the variates, three by three: axes of a sensor
    drop: float = 0.0  # probability, for each variate, that it is 0

    def __post_init__(self) -> None:
        for name, (most, meaning) in MEANINGS.items():
            value = getattr(self, name)
            if not (is_number(value) and 0 <= value <= most):
                raise ConfigError(
                    f"augmentation.{name} must be a number from 0 to {most:g}, got {value!r}. It is {meaning}."
                )
        variates = self.mirror if isinstance(self.mirror, list | tuple) else (None,)
        whole = all(is_number(item) and isinstance(item, int) and item >= 0 for item in variates)
        if not whole or len(set(variates)) < len(variates):
            raise ConfigError(
                f"augmentation.mirror must be a list of variates, numbered from 0, each once, got {self.mirror!r}. "
                "They are those whose signs change where left and right are exchanged."
            )
        object.__setattr__(self, "mirror", tuple(self.mirror))  # a file gives a list

    def check_variates(self, n_variates: int) -> None:
        """Refuse settings that do not suit series of ``n_variates``."""
        absent = [variate for variate in self.mirror if variate >= n_variates]
        if absent:
            raise ConfigError(
                f"augmentation.mirror names variate {absent[0]}, but the series have {n_variates}, numbered from "
                f"0 to {n_variates - 1}. Leave it out."
            )
        if self.rotate > 0 and n_variates % 3:
            raise ConfigError(
                f"augmentation.rotate turns variates three by three, but the series have {n_variates}. Set "
                "rotate = 0, or select variates that are the axes of sensors."
            )


def augment(
    windows: Tensor,  # (batch, n_variates, length)
    settings: AugmentationConfig,
) -> Tensor:  # (batch, n_variates, length)
    """Change each window at random, by torch's default generator; without any setting nothing is drawn.

    In float32 (bfloat16 has 8 bits), by deterministic operations that never synchronise with the device, so that a
    step that begins with this can be recorded as a CUDA graph.

    Examples
    --------
    >>> windows = torch.tensor([[[1.0, 2.0, 3.0]]])
    >>> augment(windows, AugmentationConfig(flip=1.0, reverse=1.0))
    tensor([[[-3., -2., -1.]]])
    >>> augment(windows, AugmentationConfig()) is windows
    True
    """
    return changed(windows, drawn(windows, settings))


def augment_with_gaps(
    windows: Tensor,  # (batch, n_variates, length), 0 where missing
    present: Tensor,  # (batch, 1, length) of 1 and 0
    settings: AugmentationConfig,
) -> tuple[Tensor, Tensor]:
    """`augment` of windows with missing samples, and their masks: a gap moves with time and stays a gap.

    A sample that is interpolated from a missing one is missing; means are over the samples that are present.

    Examples
    --------
    >>> windows, present = torch.tensor([[[1.0, 2.0, 0.0]]]), torch.tensor([[[1.0, 1.0, 0.0]]])
    >>> augment_with_gaps(windows, present, AugmentationConfig(flip=1.0, reverse=1.0))
    (tensor([[[-0., -2., -1.]]]), tensor([[[0., 1., 1.]]]))
    """
    for kind, draw in drawn(windows, settings).items():
        mean = (_mean(windows, present),) if kind == "mask" else ()
        windows = CHANGES[kind](windows, draw, *mean)
        if kind in ("stretch", "reverse"):
            present = (CHANGES[kind](present, draw) > NEARLY_1).to(present.dtype)
    return windows * present, present


def _mean(windows: Tensor, present: Tensor) -> Tensor:
    """Mean of each variate over the samples that are present, ``(batch, n_variates, 1)``."""
    return (windows * present).sum(dim=2, keepdim=True) / present.sum(dim=2, keepdim=True).clamp_min(1.0)


def drawn(windows: Tensor, settings: AugmentationConfig) -> dict[str, Tensor]:
    """Random draws for each window, by kind of change, in the order of the changes."""
    n_windows, n_variates, _ = windows.shape
    device, draws = windows.device, dict[str, Tensor]()

    def uniform(*shape: int) -> Tensor:
        return torch.rand(n_windows, *shape, device=device)

    def normal(*shape: int) -> Tensor:
        return torch.randn(n_windows, *shape, device=device)

    if settings.stretch:
        draws["stretch"] = 1 + settings.stretch * (2 * uniform() - 1)
    if settings.mirror:
        signs, sign = torch.ones(n_windows, n_variates, device=device), signs_of(uniform() < 0.5)
        for variate in settings.mirror:  # a list as an index would be copied to the device
            signs[:, variate] = sign
        draws["mirror"] = signs
    if settings.rotate:
        draws["rotate"] = rotations(normal(3), settings.rotate * normal())
    if settings.reverse:
        draws["reverse"] = uniform() < settings.reverse
    if settings.flip:
        draws["flip"] = signs_of(uniform() < settings.flip)
    if settings.gain:
        draws["gain"] = torch.exp(settings.gain * normal())
    if settings.mask:
        share = settings.mask * uniform()
        begin = (1 - share) * uniform()
        draws["mask"] = torch.stack([begin, begin + share], dim=1)
    if settings.drop:
        draws["drop"] = uniform(n_variates) < settings.drop
    if settings.noise:
        draws["noise"] = settings.noise * uniform(1, 1) * torch.randn_like(windows)
    return draws


def changed(windows: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
    """Apply changes that were `drawn`, one after the other."""
    for kind, draw in draws.items():
        windows = CHANGES[kind](windows, draw)
    return windows


def signs_of(chosen: Tensor) -> Tensor:
    """-1 where chosen, 1 elsewhere."""
    return 1 - 2 * chosen.float()


def rotations(
    axes: Tensor,  # (batch, 3), of any length
    angles: Tensor,  # (batch,)
) -> Tensor:  # (batch, 3, 3)
    """Rotation matrices by angles in radians about axes (Rodrigues).

    R = cos a · I + sin a · [u]× + (1 - cos a) · u uᵀ
    """
    unit = F.normalize(axes, dim=1)
    x, y, z = unit.unbind(dim=1)
    zero = torch.zeros_like(x)
    across = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=1).unflatten(1, (3, 3))
    outer = unit[:, :, None] * unit[:, None, :]
    cos, sin = angles.cos()[:, None, None], angles.sin()[:, None, None]
    return cos * torch.eye(3, device=axes.device) + sin * across + (1 - cos) * outer


# The changes: windows (batch, n_variates, length) and their draws -> windows -------------------------------------


def stretched(windows: Tensor, speeds: Tensor) -> Tensor:
    """Run time ``speeds (batch,)`` times as fast about the middle: interpolated linearly, reflected at the ends."""
    n_variates, length = windows.shape[1:]
    last = length - 1
    from_middle = torch.arange(length, device=windows.device) - last / 2
    places = (from_middle * speeds[:, None, None] + last / 2).abs()  # (batch, 1, length)
    places = last - (last - places).abs()
    before = places.floor().clamp(0, last)
    share = places - before
    index = before.long().expand(-1, n_variates, -1)
    following = (index + 1).clamp(max=last)
    return windows.gather(2, index) * (1 - share) + windows.gather(2, following) * share


def rotated(windows: Tensor, matrices: Tensor) -> Tensor:
    """Variates three by three, all by the window's matrix ``(batch, 3, 3)``: sensors that share their axes."""
    # Not a matrix product, which a GPU may take in fewer bits.
    axes = windows.unflatten(1, (-1, 3)).unbind(dim=2)  # x, y, z: (batch, n_variates / 3, length)
    columns = matrices[:, None, :, :, None].unbind(dim=3)  # (batch, 1, 3, 1)
    turned = sum(column * axis[:, :, None] for column, axis in zip(columns, axes, strict=True))
    assert isinstance(turned, Tensor), "there are three"
    return turned.flatten(1, 2)


def masked(windows: Tensor, spans: Tensor, mean: Tensor | None = None) -> Tensor:
    """Replace samples between two shares of the window's length, ``(batch, 2)``, by each variate's mean.

    Not by 0, which would be a step where a window rides on a slow wave.
    """
    length = windows.shape[2]
    middles = (torch.arange(length, device=windows.device) + 0.5) / length  # of samples
    begin, end = spans[:, None, :, None].unbind(dim=2)
    hidden = (middles >= begin) & (middles < end)  # (batch, 1, length)
    return torch.where(hidden, windows.mean(dim=2, keepdim=True) if mean is None else mean, windows)


CHANGES: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "stretch": stretched,
        "mirror": lambda windows, signs: windows * signs[:, :, None],
        "rotate": rotated,
        "reverse": lambda windows, chosen: torch.where(chosen[:, None, None], windows.flip(-1), windows),
        "flip": lambda windows, signs: windows * signs[:, None, None],
        "gain": lambda windows, factors: windows * factors[:, None, None],
        "mask": masked,
        "drop": lambda windows, chosen: windows.masked_fill(chosen[:, :, None], 0.0),
        "noise": torch.add,
    }
)
