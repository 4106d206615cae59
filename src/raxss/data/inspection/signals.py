"""Inspection of signals: channels that are flat, railed, not numbers or mostly mains hum.

    an open recording -> blocks of samples, in bounded memory -> flat, railed, nan-run, line-noise, by channel

Each rule measures how much of a channel is affected, wherever that lies: one long stretch, or many short ones that
add up. A warning says what was seen; whether a channel is bad is for a person to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raxss.data.formats.opening import open_recording
from raxss.data.problems import Problem
from raxss.data.recording import Recording
from raxss.errors import display_name, join_names

BLOCK_SAMPLES = 2**20  # of all channels together that are in memory at a time
LONG_SECONDS = 5.0  # one stretch this long is worth a warning: ten heart beats, half a page of EEG
# Flat is judged in frames: longer than the quiet between two heart beats, shorter than dropouts of a loose lead.
FLAT_FRAME_SECONDS = 0.5
FLAT_SHARE = 0.1
MIN_FRAME_SAMPLES = 8
# A healthy channel touches its largest value once or twice. At the limit for three samples in a row it was cut off;
# 0.5 % of such samples are what peaks of an ECG reach that are clipped at every beat.
RAILED_RUN = 3
RAILED_SHARE = 0.005
# Single samples beyond the limits that a header gives are peaks; a header with limits of another file has many.
BEYOND_SHARE = 0.005
MIN_LEVELS = 32  # a switch, a counter or a percentage sits at its largest value by nature
# Mains hum: more than half of a window's power above 1 Hz lies within 1 Hz of the mains' frequency or its
# multiples, in a tenth of the windows or more.
LINE_WINDOW_SECONDS = 4.0
LINE_SHARE_OF_POWER = 0.5
LINE_SHARE_OF_WINDOWS = 0.1
MAINS = (50.0, 60.0)
LOWEST_HERTZ = 1.0  # drift below this is no argument for or against hum
N_LINE_WINDOWS = 500  # looked at in each channel, spread over all of it
MOST_STRETCHES = 2000  # segments, times different rates, that are looked at; decoders take milliseconds each
MOST = 1e30  # in any unit; no converter gives more, and its square still is a number
KINDS = {  # code of a problem -> what messages say of the channels that have it
    "nan-run": "with samples that are not numbers or beyond 1e30",
    "beyond-limits": "with samples outside of the limits in the header",
    "flat": "without any change for 5 s or a tenth of the time",
    "railed": "cut off at the limits of the converter",
    "line-noise": "with mostly mains hum, 50 or 60 Hz",
}


def inspect_signals(path: Path, root: Path) -> tuple[list[Problem], list[str]]:
    """Open a recording that was not refused and look at its samples, a block at a time: problems, and notes."""
    path = path.absolute()  # a decoder may take a leading '~' for a home
    with open_recording(path, root=root, inspect=False) as recording:
        every, _ = _sampled(recording)
        notes = [f"the signals of one in {every} segments were looked at"] if every > 1 else []
        problems = signal_problems(recording, limits=recording.limits())
        return [*problems, *recording.disagreements()], notes


def signal_problems(
    recording: Recording, *, limits: Sequence[tuple[float, float]] | None = None
) -> list[Problem]:
    """Channels that are flat, railed, not numbers or mostly mains hum; ``limits`` are those of their converters.

    >>> from raxss.data.recording import ArrayRecording
    >>> samples = np.random.default_rng(0).normal(size=(2, 2000))
    >>> samples[1, 500:1500] = 0.0
    >>> toy = ArrayRecording("toy", samples, rate=100.0, names=["C3", "C4"])
    >>> print(signal_problems(toy)[0].message)
    'toy' has 1 channel without any change for 5 s or a tenth of the time: 'C4' (1), 50 %.
    """
    looks = [
        _Look(channel.rate, limits[place] if limits is not None else None)
        for place, channel in enumerate(recording.channels)
    ]
    every, by_rate = _sampled(recording)
    for same_rate in by_rate:
        for segment in range(0, len(recording.segments), every):
            for place in same_rate:
                looks[place].begin_segment(recording.n_samples(place, segment))
            for places, start, stop in _blocks(recording, same_rate, segment):
                samples = recording.read(places, segment=segment, start=start, stop=stop)
                for place, row in zip(places, samples, strict=True):
                    looks[place].see(row)
    problems = []
    by_kind = zip(*(look.shares() for look in looks), strict=True)
    for (code, what), shares in zip(KINDS.items(), by_kind, strict=False):
        named = [
            f"{channel.name!r} ({place}), {100 * share:.3g} %"
            for place, (channel, share) in enumerate(zip(recording.channels, shares, strict=True))
            if share > 0
        ]
        if named:
            found = f"has {'1 channel' if len(named) == 1 else f'{len(named)} channels'} {what}"
            problems.append(Problem(code, f"{display_name(recording.name)} {found}: {join_names(named)}."))
    return problems


def _sampled(recording: Recording) -> tuple[int, list[list[int]]]:
    """Every which segment is looked at (of very many not each), and the channels of each rate."""
    by_rate: dict[float, list[int]] = {}
    for place, channel in enumerate(recording.channels):
        by_rate.setdefault(channel.rate, []).append(place)
    n_stretches = len(recording.segments) * len(by_rate)
    return max(1, -(-n_stretches // MOST_STRETCHES)), list(by_rate.values())


def _blocks(
    recording: Recording, places: Sequence[int], segment: int
) -> Iterator[tuple[Sequence[int], int, int]]:
    """Which channels are read together, from where to where: few enough samples for any memory."""
    length, rate = recording.n_samples(places[0], segment), recording.channels[places[0]].rate
    window = _window(rate)  # blocks are cut between windows, so that windows are whole
    n_together = max(1, min(len(places), BLOCK_SAMPLES // window))
    at_once = max(1, BLOCK_SAMPLES // n_together // window) * window
    for start in range(0, length, at_once):
        for first in range(0, len(places), n_together):
            yield places[first : first + n_together], start, min(start + at_once, length)


def _frame(rate: float) -> int:
    """Samples that are judged together to be flat or not."""
    return max(MIN_FRAME_SAMPLES, round(FLAT_FRAME_SECONDS * rate))


def _window(rate: float) -> int:
    """Samples whose spectrum is taken together: whole frames, so that a block of windows has whole frames too."""
    return _frame(rate) * max(1, round(LINE_WINDOW_SECONDS * rate / _frame(rate)))


class _Look:
    """What was seen of one channel so far. Blocks come in order."""

    def __init__(self, rate: float, limits: tuple[float, float] | None) -> None:
        self.n_samples = self.n_not_finite = self.n_beyond = 0
        self.step = np.inf  # smallest difference of two neighbours: the converter's, or next to nothing
        self.flatness = _Flatness(rate)
        self.rails = (_Rail(-1, limits), _Rail(1, limits))
        self.hum = _Hum(rate)
        self.rate, self.limits = rate, limits

    def begin_segment(self, length: int) -> None:
        """Nothing goes on across a gap."""
        self.flatness.run = 0
        for rail in self.rails:
            rail.run = 0
        self.hum.every = max(1, length // _window(self.rate) // N_LINE_WINDOWS)

    def see(self, samples: NDArray[np.float64]) -> None:  # (n,)
        """Take in the next block."""
        finite = np.abs(samples) <= MOST  # never true of NaN
        self.n_samples += len(samples)
        self.n_not_finite += len(samples) - int(finite.sum())
        samples = np.where(finite, samples, np.nan)
        if self.limits is not None:
            low, high = self.limits
            rounding = 1e-3 * (high - low)  # limits are text of eight characters, which some writers cut
            self.n_beyond += int(((samples < low - rounding) | (samples > high + rounding)).sum())
        steps = np.abs(np.diff(samples))
        self.step = float(np.min(steps, where=steps > 0, initial=self.step))
        self.flatness.see(samples, self.step)
        for rail in self.rails:
            rail.see(samples)
        self.hum.see(samples)

    def shares(self) -> list[float]:
        """How much of a channel is affected, one number for each of `KINDS`; 0 if it is too little to matter."""
        low, high = self.rails
        n_samples = max(self.n_samples, 1)
        beyond, railed = self.n_beyond / n_samples, (low.n_stuck + high.n_stuck) / n_samples
        is_railed = railed >= RAILED_SHARE
        is_railed |= max(low.longest, high.longest) >= max(LONG_SECONDS * self.rate, RAILED_RUN)
        if self.limits is None:  # extremes that come back too often to be peaks
            is_railed &= bool(high.value - low.value >= MIN_LEVELS * self.step)
        frames = self.flatness
        flat, hum = frames.n_flat / max(frames.n_frames, 1), self.hum.n_hum / max(self.hum.n_windows, 1)
        is_flat = flat >= FLAT_SHARE or frames.longest * frames.frame >= LONG_SECONDS * self.rate
        return [
            self.n_not_finite / n_samples,
            beyond if beyond >= BEYOND_SHARE else 0.0,
            flat if is_flat else 0.0,
            railed if is_railed else 0.0,
            hum if hum >= LINE_SHARE_OF_WINDOWS else 0.0,
        ]


class _Flatness:
    """How many frames do not change by more than one step of the converter."""

    def __init__(self, rate: float) -> None:
        self.frame = _frame(rate)
        self.n_frames = self.n_flat = self.run = self.longest = 0

    def see(self, samples: NDArray[np.float64], step: float) -> None:
        if self.n_frames == 0:  # a recording shorter than a frame is better judged than not
            self.frame = min(self.frame, len(samples))
        frames = samples[: len(samples) // self.frame * self.frame].reshape(-1, self.frame)
        span = frames.max(axis=1) - frames.min(axis=1)
        flat = span <= (step * (1 + 1e-6) if np.isfinite(step) else 0.0)  # never true of NaN
        self.n_frames += len(flat)
        self.n_flat += int(flat.sum())
        lengths, self.run = _runs(flat, self.run)
        self.longest = int(lengths.max(initial=self.longest))


class _Rail:
    """How many samples stay at the lower (-1) or upper (1) limit, or at the extreme where no limit is known."""

    def __init__(self, sign: int, limits: tuple[float, float] | None) -> None:
        self.sign, self.is_known = sign, limits is not None
        low, high = limits or (np.inf, -np.inf)
        # text of eight characters and floats in between: not to the last digit
        self.value = (high if sign > 0 else low) - (sign * 1e-6 * (high - low) if limits else 0.0)
        self.n_stuck = self.run = self.longest = 0

    def see(self, samples: NDArray[np.float64]) -> None:
        if not self.is_known:
            extreme = self.sign * np.max(self.sign * samples, where=~np.isnan(samples), initial=-np.inf)
            if self.sign * extreme > self.sign * self.value:
                self.value, self.n_stuck, self.run, self.longest = extreme, 0, 0, 0
        before = self.run
        lengths, self.run = _runs(self.sign * samples >= self.sign * self.value, before)
        stuck = lengths[lengths >= RAILED_RUN]
        goes_on = before >= RAILED_RUN and self.sign * samples[0] >= self.sign * self.value
        self.n_stuck += int(stuck.sum()) - (before if goes_on else 0)  # counted with the block before
        self.longest = int(stuck.max(initial=self.longest))


class _Hum:
    """In how many windows most of the power is that of the mains."""

    def __init__(self, rate: float) -> None:
        self.rate, self.every = rate, 1
        self.n_windows = self.n_hum = 0

    def see(self, samples: NDArray[np.float64]) -> None:
        length = _window(self.rate)
        above, near = _bands(self.rate)
        if not near or len(samples) < length:
            return
        windows = samples[: len(samples) // length * length].reshape(-1, length)[:: self.every]
        windows = windows[np.isfinite(windows).all(axis=1)]
        centred = windows - windows.mean(axis=1, keepdims=True)
        power = np.abs(np.fft.rfft(centred * np.hanning(length), axis=1)) ** 2
        hum = np.max([power[:, item].sum(axis=1) for item in near], axis=0)
        self.n_windows += len(windows)
        self.n_hum += int((hum > LINE_SHARE_OF_POWER * power[:, above].sum(axis=1)).sum())


@lru_cache(maxsize=64)
def _bands(rate: float) -> tuple[NDArray[np.bool_], list[NDArray[np.bool_]]]:
    """Frequencies that count, and those of each mains and its multiples; none where the rate is too low for it."""
    hertz = np.fft.rfftfreq(_window(rate), 1 / rate)
    near = [
        (np.abs(hertz - mains * np.round(hertz / mains)) <= 1) & (hertz >= mains - 1)
        for mains in MAINS
        if mains + 1 < rate / 2
    ]
    return hertz >= LOWEST_HERTZ, near


def _runs(mask: NDArray[np.bool_], before: int) -> tuple[NDArray[np.int64], int]:
    """Lengths of all stretches of True, ``before`` added to one at the start; and that of one at the end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    starts, ends = edges[::2], edges[1::2]
    lengths = ends - starts
    if len(lengths) and starts[0] == 0:
        lengths[0] += before
    return lengths, int(lengths[-1]) if len(lengths) and ends[-1] == len(mask) else 0
