"""Disturbances: windows with noise and artefacts of many kinds, for classifiers that are to know such windows.

    windows (batch, n_variates, length), seed -> windows of the same shape, one disturbance in each

White noise lies in the whole window; a sine, a slow wave, a step that decays and a held value in a random stretch
of it. Sizes are relative to the deviation of the variate within the window. Augmentation (augmentation.py) changes
windows less, so that they still look like recordings; these are signals that went wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

MOST_DECIBELS = 25.0  # signal to white noise, from 0
STRETCH = (0.05, 0.8)  # share of the window that the others take
FREQUENCIES = (0.02, 0.4)  # of a sine, in cycles a sample
LARGEST_SINE = 2.5  # amplitude, in deviations of the variate
LARGEST_WAVE = 6.0  # of a slow wave
LARGEST_STEP = 10.0
DECAY = 4.0  # time constants that a step has until its stretch ends


def disturbed(windows: Tensor, *, seed: int) -> Tensor:
    """``(batch, n_variates, length)`` -> each window with one disturbance, drawn by the seed on the CPU.

    Examples
    --------
    >>> windows = torch.randn(8, 2, 100, generator=torch.Generator().manual_seed(0))
    >>> found = disturbed(windows, seed=1)
    >>> found.shape, bool((found != windows).flatten(1).any(dim=1).all())
    (torch.Size([8, 2, 100]), True)
    >>> torch.equal(found, disturbed(windows, seed=1))
    True
    """
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(len(DISTURBANCES), (len(windows),), generator=generator)
    found = windows.clone()
    for number in kinds.unique().tolist():
        rows = (kinds == number).nonzero()[:, 0].to(windows.device)
        some = windows[rows]
        draw = _Draws(some, generator)
        deviation = some.std(dim=2, keepdim=True, correction=0)
        found[rows] = DISTURBANCES[number](some, deviation, draw.places(some.shape[2]), draw)
    return found


class _Draws:
    """Random numbers for each window of a batch, ``(batch, 1, 1)``, the same on every device."""

    def __init__(self, windows: Tensor, generator: torch.Generator) -> None:
        self.n_windows, self.device = len(windows), windows.device
        self.generator = generator

    def between(self, low: float, high: float) -> Tensor:
        """Uniform numbers."""
        drawn = torch.rand(self.n_windows, 1, 1, generator=self.generator)
        return (low + (high - low) * drawn).to(self.device)

    def signs(self) -> Tensor:
        """-1 or 1."""
        drawn = torch.randint(2, (self.n_windows, 1, 1), generator=self.generator)
        return (2.0 * drawn - 1.0).to(self.device)

    def normal(self, windows: Tensor) -> Tensor:
        """Normal numbers of the shape of the windows."""
        return torch.randn(windows.shape, generator=self.generator).to(self.device)

    def places(self, length: int) -> Tensor:
        """Where each sample is in a random stretch, ``(batch, 1, length)``: from 0 to 1 within it."""
        share = self.between(*STRETCH)
        begin = (1 - share) * self.between(0, 1)
        middles = (torch.arange(length, device=self.device) + 0.5) / length  # of samples
        return (middles - begin) / share


def _within(windows: Tensor, added: Tensor, place: Tensor) -> Tensor:
    """Add to the stretch alone."""
    return torch.where((place >= 0) & (place < 1), windows + added, windows)


def white_noise(windows: Tensor, deviation: Tensor, place: Tensor, draw: _Draws) -> Tensor:
    """White noise in the whole window, 0 to 25 dB below the signal."""
    return windows + deviation * 10 ** (-draw.between(0, MOST_DECIBELS) / 20) * draw.normal(windows)


def sine(windows: Tensor, deviation: Tensor, place: Tensor, draw: _Draws) -> Tensor:
    """A sine of any frequency, as of mains."""
    time = torch.arange(windows.shape[2], device=windows.device)
    phase = 2 * math.pi * (draw.between(*FREQUENCIES) * time + draw.between(0, 1))
    return _within(windows, draw.between(0, LARGEST_SINE) * deviation * torch.sin(phase), place)


def slow_wave(windows: Tensor, deviation: Tensor, place: Tensor, draw: _Draws) -> Tensor:
    """Up or down and back, once, as where an electrode drifts."""
    wave = (1 - torch.cos(2 * math.pi * place)) / 2
    return _within(windows, draw.signs() * draw.between(0, LARGEST_WAVE) * deviation * wave, place)


def step(windows: Tensor, deviation: Tensor, place: Tensor, draw: _Draws) -> Tensor:
    """A step that decays, as where a contact was touched."""
    decay = torch.exp(-DECAY * place.clamp(0, 1))
    return _within(windows, draw.signs() * draw.between(0, LARGEST_STEP) * deviation * decay, place)


def held_value(windows: Tensor, deviation: Tensor, place: Tensor, draw: _Draws) -> Tensor:
    """The first value of the stretch, held to its end."""
    first = (place < 0).sum(dim=2, keepdim=True).clamp(max=windows.shape[2] - 1)
    held = windows.gather(2, first.expand(-1, windows.shape[1], -1))
    return _within(windows, held - windows, place)


Disturbance = Callable[[Tensor, Tensor, Tensor, _Draws], Tensor]
#: Each window gets one of them, with equal probability.
DISTURBANCES: tuple[Disturbance, ...] = (white_noise, sine, slow_wave, step, held_value)
