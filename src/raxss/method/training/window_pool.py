"""Pool of training windows: one strip of samples on the training device, from which batches are gathered.

    scaled series, class indices, influence -> WindowPool; indices (batch,) -> Batch

Next: step.py takes one step with a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raxss._core.memory import available_bytes, gigabytes, refuse_too_large
from raxss.data.series import Series
from raxss.method.windows import window_starts, windows_of

#: Scored at once where nothing is learned; on a GPU 8192 windows of 1024.
SAMPLES_A_PASS = {"cpu": 2**19, "cuda": 2**23}
SHARE_FOR_THE_POOL = 0.5  # of a GPU's free memory; the rest is for the steps
BYTES_A_WINDOW = 8 + 8 + 8 + 4 + 1  # start, series and place in the epoch's order, influence, flat

logger = logging.getLogger("raxss")


class Batch(NamedTuple):
    """Some windows of a pool, on the training device."""

    windows: Tensor  # (batch, n_variates, window_length)
    series: Tensor  # (batch,)
    starts: Tensor  # (batch,)
    influence: Tensor  # (batch,)
    flat: Tensor  # (batch,)


class WindowPool:
    """All windows of a set of series, as one strip of samples; a window is copied when a batch is gathered.

    Parameters
    ----------
    series, targets
        Scaled series, padded with zeros to ``window_length``, and their class indices ``(n_series,)``.
    influence, flat
        For each series logits of the weights, and windows without a shape, ``(n_windows_i,)`` each. Windows of NaN
        influence are left out.
    device
        Of the batches.
    on_host
        Keep the strip in the host's memory and copy each batch to the device, which is slower; by default where a
        GPU has no room for the pool.
    """

    def __init__(
        self,
        series: Sequence[Series],
        targets: NDArray[np.int64],
        influence: Sequence[NDArray[np.float64]],
        flat: Sequence[NDArray[np.bool_]],
        *,
        window_length: int,
        stride: int,
        device: torch.device,
        on_host: bool | None = None,
    ) -> None:
        self.window_length = window_length
        self.device = device
        self.n_series = len(series)
        self.n_samples = np.array([item.n_samples for item in series])
        usable = [~np.isnan(values) for values in influence]
        self.n_windows = np.array([mask.sum() for mask in usable])
        self.on_host = self._too_large(series) if on_host is None else on_host
        place = torch.device("cpu") if self.on_host else device
        strips, starts, offset = [], [], 0
        for item, mask in zip(series, usable, strict=True):
            strip = np.nan_to_num(item.samples.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
            strip = np.pad(strip, ((0, 0), (0, max(window_length - item.n_samples, 0))))
            within = window_starts(item.n_samples, window_length=window_length, stride=stride)[mask]
            strips.append(strip)
            starts.append(within + offset)
            offset += strip.shape[1]
        self.strip = torch.from_numpy(np.concatenate(strips, axis=1)).to(place)
        self.starts = torch.from_numpy(np.concatenate(starts)).to(place)
        self.series = torch.from_numpy(np.repeat(np.arange(self.n_series), self.n_windows)).to(place)
        kept = np.concatenate(usable)
        self.influence = torch.from_numpy(np.concatenate(influence)[kept].astype(np.float32)).to(place)
        self.flat = torch.from_numpy(np.concatenate(flat)[kept]).to(place)
        self.targets = torch.from_numpy(np.asarray(targets, dtype=np.int64)).to(device)

    @classmethod
    def of_equals(
        cls,
        series: Sequence[Series],
        targets: NDArray[np.int64],
        *,
        window_length: int,
        stride: int,
        device: torch.device,
    ) -> Self:
        """A pool whose usable windows have the same influence, 0; flat ones are not marked."""
        cut = [windows_of(item, window_length=window_length, stride=stride) for item in series]
        influence = [np.where(item.unusable, np.nan, 0.0) for item in cut]
        flat = [np.zeros(len(item), dtype=np.bool_) for item in cut]
        return cls(
            series, targets, influence, flat, window_length=window_length, stride=stride, device=device
        )

    def __len__(self) -> int:
        return len(self.starts)

    def _too_large(self, series: Sequence[Series]) -> bool:
        """Whether a GPU has no room for this pool, with a warning; refuses what does not fit on the host either."""
        n_values = sum(item.n_variates * max(item.n_samples, self.window_length) for item in series)
        needed = 4 * n_values + BYTES_A_WINDOW * int(self.n_windows.sum())
        refuse_too_large(
            needed + 4 * n_values,  # while it is built
            f"training on {int(self.n_windows.sum()):,} windows of {len(series)} series",
            "Train on fewer series, or with a longer stride.",
        )
        free = available_bytes(self.device)
        if self.device.type != "cuda" or free is None or needed <= SHARE_FOR_THE_POOL * free:
            return False
        logger.warning(
            "the windows of %d series need %s of memory and %s has %s free; they stay in the host's memory and "
            "every batch is copied, which is slower",
            len(series),
            gigabytes(needed),
            self.device,
            gigabytes(free),
        )
        return True

    def gather(self, indices: Tensor) -> Tensor:
        """Windows ``(batch, n_variates, window_length)`` by their index in the pool."""
        views = self.strip.unfold(1, self.window_length, 1)
        return self._on_device(views[:, self.starts[indices]].transpose(0, 1))

    def take(self, indices: Tensor) -> Batch:
        """Windows, series, starts, influence and flat by index; the indices are on the device of the pool."""
        columns = (self.series, self.starts, self.influence, self.flat)
        return Batch(self.gather(indices), *(self._on_device(column[indices]) for column in columns))

    def all_windows(self, *, every: int = 1) -> Iterator[Tensor]:
        """Every n-th window in order, in passes of bounded size."""
        n_at_once = max(SAMPLES_A_PASS[self.device.type] // (len(self.strip) * self.window_length), 1)
        for indices in torch.arange(0, len(self), every, device=self.starts.device).split(n_at_once):
            yield self.gather(indices)

    def _on_device(self, values: Tensor) -> Tensor:
        if self.on_host and self.device.type == "cuda":  # from pinned memory a copy does not stop the host
            return values.pin_memory().to(self.device, non_blocking=True)
        return values
