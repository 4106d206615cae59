"""Streaming pooling and resampling, block by block, of signals that do not fit into memory.

    blocks (n_channels, any length), one after the other -> blocks of output, float32

    stream = Pooling(24, 12, n_samples)          stream.push(block) for every block, then stream.finish()

What comes out does not depend, to the last bit, on how the signal was cut into blocks: every output sample is the
same sum, in float64 and in the same order. An output sample whose support touches one that is not finite is NaN;
no other is. Next: preprocessing.py chooses among these.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from raxss.errors import ConfigError, SignalWarning

Block = NDArray[np.floating]  # (n_channels, n_samples of this block)
Output = NDArray[np.float32]  # (n_channels, n_samples that are ready)

DRIFT = 5e-9  # of the time passed, at most: 0.00125 samples in 1000 s at 250 Hz, 0.43 in 24 h at 1 kHz
PASSED, STOPPED = 0.8, 1.0  # of the lower Nyquist frequency: kept up to here, gone from here
ATTENUATION = 80.0  # dB beyond STOPPED; the passband ripples by as little
REACH = 26  # samples of the slower side that the filter looks to each side (Kaiser's formula for the above)
MOST_TAPS = 20_000_000  # of a filter; reached by ratios of rates that are a mistake


def gaps_as_nan(samples: Block, value: float) -> NDArray[np.float64]:
    """Samples with NaN in place of a value that means missing, or of the float32 next to it, as files have it."""
    numbers = np.asarray(samples, dtype=np.float64)
    return np.where((numbers == value) | (numbers == np.float32(value)), np.nan, numbers)


class Stream(ABC):
    """A signal of ``n_samples`` on its way through, block by block; ``n_out`` samples come out.

    With ``centred`` each channel's first finite sample is taken away before anything else: float32 has seven
    digits, and would not hold a small signal on a large offset. For z-scores, which have no offset in the end.
    """

    def __init__(self, n_samples: int, n_out: int) -> None:
        self.n_samples, self.n_out = n_samples, n_out
        self.centred = False
        self.gap: float | None = None  # samples of this value are missing
        self._n_channels = 0
        self._offset: NDArray[np.float64] | None = None

    def push(self, block: Block) -> Output:
        """Take the next samples in, give those out that are ready."""
        samples = np.asarray(block, dtype=np.float64)
        if self.gap is not None:
            samples = gaps_as_nan(samples, self.gap)
        self._n_channels = len(samples)
        return _stored(self._push(self._less_offset(samples) if self.centred else samples))

    def _less_offset(self, block: NDArray[np.float64]) -> NDArray[np.float64]:
        if self._offset is None:
            self._offset = np.full((len(block), 1), np.nan)
        for row in np.flatnonzero(np.isnan(self._offset)):
            finite = np.flatnonzero(np.isfinite(block[row]))
            if len(finite):
                self._offset[row] = block[row, finite[0]]
        with np.errstate(over="ignore", invalid="ignore"):
            return block - np.nan_to_num(self._offset)

    def finish(self) -> Output:
        """What is left, once all samples were pushed."""
        return _stored(self._finish())

    @abstractmethod
    def _push(self, block: NDArray[np.float64]) -> NDArray[np.float64]: ...

    def _finish(self) -> NDArray[np.float64]:
        return np.empty((self._n_channels, 0))


def _stored(block: NDArray[np.float64]) -> Output:
    """As it is kept: float32, and NaN for all that is no number there."""
    with np.errstate(over="ignore"):
        out = block.astype(np.float32)
    out[~np.isfinite(out)] = np.nan
    return out


class Unchanged(Stream):
    """Every sample as it is."""

    def __init__(self, n_samples: int) -> None:
        super().__init__(n_samples, n_samples)

    def _push(self, block: NDArray[np.float64]) -> NDArray[np.float64]:
        return block


class Pooling(Stream):
    """The mean of ``kernel`` samples every ``stride``; a last kernel that is not full is dropped."""

    def __init__(self, kernel: int, stride: int, n_samples: int) -> None:
        super().__init__(n_samples, max(0, (n_samples - kernel) // stride + 1))
        self._kernel, self._stride = kernel, stride
        self._carry: NDArray[np.float64] | None = None
        self._skip = 0  # samples between kernels that are still to come, where stride > kernel

    def _push(self, block: NDArray[np.float64]) -> NDArray[np.float64]:
        skipped = min(self._skip, block.shape[1])
        self._skip -= skipped
        block = block[:, skipped:]
        samples = block if self._carry is None else np.concatenate([self._carry, block], axis=1)
        n_ready = max(0, (samples.shape[1] - self._kernel) // self._stride + 1)
        total = np.zeros((len(samples), n_ready))
        finite = np.where(np.isfinite(samples), samples, np.nan)
        for place in range(self._kernel if n_ready else 0):  # one order of summation, wherever a block begins
            total += finite[:, place :: self._stride][:, :n_ready]
        used = n_ready * self._stride
        self._skip += max(0, used - samples.shape[1])
        self._carry = samples[:, used:].copy()
        return total / self._kernel


class Resampling(Stream):
    """Another rate, by a linear-phase polyphase filter whose delay is taken out.

    Output sample m lies where input sample m · rate / target would be, so an impulse stays in place. Frequencies
    up to .8 of the lower Nyquist frequency pass; from that frequency on they are 80 dB down, and
    so cannot fold back. A constant stays constant. Beyond its ends the signal is taken to go on at its first
    and last value. The ratio of rates is a fraction; where that is not exact, time drifts by less than `DRIFT`.
    """

    def __init__(self, rate: float, target: float, n_samples: int) -> None:
        ratio = rate_ratio(rate, target)
        self._up, self._down = ratio.numerator, ratio.denominator
        super().__init__(n_samples, max(0, (n_samples - 1) * self._up // self._down + 1))
        if target > rate:
            warnings.warn(
                f"{rate:g} Hz is below the {target:g} Hz asked for: samples are interpolated, and nothing is "
                f"gained above {rate / 2:g} Hz.",
                SignalWarning,
                stacklevel=3,
            )
        self._filter = _filter(self._up, self._down)
        self._half = len(self._filter) // 2
        self._n_held = -(-self._half // self._up)  # copies of the end values that the filter can see
        self._samples: NDArray[np.float64] | None = None
        self._first = -self._n_held  # position of the first of these samples in the signal
        self._n_done = 0

    def _push(self, block: NDArray[np.float64]) -> NDArray[np.float64]:
        if self._samples is None:
            if block.shape[1] == 0:
                return block
            self._samples = np.repeat(block[:, :1], self._n_held, axis=1)
        self._samples = np.concatenate([self._samples, block], axis=1)
        end = self._first + self._samples.shape[1]
        # Output m sees inputs up to (m · down + half) / up; all of those must be here.
        n_ready = (end * self._up - 1 - self._half) // self._down + 1
        return self._take(min(max(n_ready, self._n_done), self.n_out))

    def _finish(self) -> NDArray[np.float64]:
        if self._samples is None:
            return super()._finish()
        held = np.repeat(self._samples[:, -1:], self._n_held, axis=1)
        self._samples = np.concatenate([self._samples, held], axis=1)
        return self._take(self.n_out)

    def _take(self, n_ready: int) -> NDArray[np.float64]:
        """Outputs from where we are up to ``n_ready``, and forget what no later one sees."""
        from scipy.signal import upfirdn

        assert self._samples is not None
        if n_ready == self._n_done:
            return np.empty((len(self._samples), 0))
        up, down, half = self._up, self._down, self._half
        finite = np.isfinite(self._samples)
        samples = self._samples if finite.all() else np.where(finite, self._samples, 0.0)
        # upfirdn gives sum_k h[j down - k up] x[k]. With zeros in front of h, j down falls on our m down.
        lead = (self._first * up - half) % down
        offset = (half + lead - self._first * up) // down  # j - m
        filtered = upfirdn(np.concatenate([np.zeros(lead), self._filter]), samples, up, down, axis=1)
        out: NDArray[np.float64] = filtered[:, self._n_done + offset : n_ready + offset].copy()
        if not finite.all():
            places = np.arange(self._n_done, n_ready) * down
            low = np.maximum(-((half - places) // up) - self._first, 0)
            high = (places + half) // up - self._first + 1
            n_lost = np.cumsum(~finite, axis=1)
            n_lost = np.concatenate([np.zeros((len(n_lost), 1), dtype=n_lost.dtype), n_lost], axis=1)
            out[n_lost[:, high] > n_lost[:, low]] = np.nan
        first = max(self._first, -((half - n_ready * down) // up))
        self._samples = self._samples[:, first - self._first :].copy()
        self._first, self._n_done = first, n_ready
        return out


def rate_ratio(rate: float, target: float) -> Fraction:
    """target / rate as the simplest fraction by which time drifts less than `DRIFT`."""
    exact = Fraction(target) / Fraction(rate)
    largest = 1
    while True:
        ratio = exact.limit_denominator(largest)
        if ratio and abs(ratio / exact - 1) <= DRIFT:
            break
        largest *= 2
    if max(ratio.numerator, ratio.denominator) * 2 * REACH > MOST_TAPS:
        raise ConfigError(
            f"resampling from {rate:g} to {target:g} Hz would need a filter of more than {MOST_TAPS:,} taps. "
            "Choose a rate nearer to that of the recordings."
        )
    return ratio


@lru_cache(maxsize=4)  # of a dataset, few rates differ
def _filter(up: int, down: int) -> NDArray[np.float64]:
    """Low-pass taps at ``up`` times the input rate; each of its ``up`` phases sums to 1."""
    from scipy.signal import firwin, kaiser_beta

    slower = max(up, down)
    if slower == 1:
        return np.ones(1)
    half = REACH * slower
    taps = firwin(2 * half + 1, (PASSED + STOPPED) / 2 / slower, window=("kaiser", kaiser_beta(ATTENUATION)))
    phases = np.zeros(-(-len(taps) // up) * up)
    phases[: len(taps)] = taps
    sums = phases.reshape(-1, up).sum(axis=0)
    taps /= np.resize(sums, len(taps))
    taps.flags.writeable = False
    return taps
