"""Pool of training windows: one strip of samples on the training device, from which batches are gathered.

    scaled series, class indices, influence -> WindowPool; indices (batch,) -> Batch

Next: step.py takes one step with a batch.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raxss._core.memory import available_bytes, gigabytes, refuse_too_large
from raxss.data.series import Series
from raxss.method.backbones.protocol import handles_missing
from raxss.method.context import N_CONTEXT, add_context, n_context_rows, takes_context, window_context
from raxss.method.windows import missing_samples, network_strip, window_starts, windows_of

#: Scored at once where nothing is learned; on a GPU 8192 windows of 1024.
SAMPLES_A_PASS = {"cpu": 2**19, "cuda": 2**23}
SHARE_FOR_THE_POOL = 0.5  # of a GPU's free memory; the rest is for the steps
BYTES_A_WINDOW = 8 + 8 + 8 + 4 + 1  # start, series and place in the epoch's order, influence, flat

logger = logging.getLogger("raxss")


class Batch(NamedTuple):
    """Some windows of a pool, on the training device."""

    windows: Tensor  # (batch, n_variates, window_length), with rows for mask and context behind the variates
    series: Tensor  # (batch,)
    starts: Tensor  # (batch,)
    influence: Tensor  # (batch,)
    flat: Tensor  # (batch,)
    present: Tensor | None = None  # (batch, 1, window_length) of 1 and 0; None where the pool has no gaps
    with_mask: bool = False  # whether the row behind the variates is that mask
    context: Tensor | None = None  # (batch, 3), where the last row of the windows is that

    @property
    def values(self) -> Tensor:
        """``(batch, n_variates, window_length)``, without mask and context."""
        n_rows = 0 if self.context is None else n_context_rows(self.windows.shape[2])
        return self.windows[:, : self.windows.shape[1] - n_rows - self.with_mask]

    def changed(self, values: Tensor, present: Tensor | None) -> Tensor:
        """Other samples and masks of these windows, as `windows` has them; the context stays."""
        masked = values if present is None or not self.with_mask else torch.cat([values, present], dim=1)
        return add_context(masked, self.context)


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
    with_mask
        Whether windows have their mask of missing samples as one more row, for a network that takes it; it can be
        set later.
    marks_padding
        Whether the padding behind short series counts as missing in this mask.
    with_context
        Whether windows have their context in a last row, for a backbone that takes it. It is that of the windows as
        they are, also where training changes them.
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
        with_mask: bool = False,
        marks_padding: bool = False,
        with_context: bool = False,
        on_host: bool | None = None,
    ) -> None:
        self.window_length = window_length
        self.n_variates = series[0].n_variates
        self.has_gaps = any(
            bool(missing_samples(item.samples).any()) or (marks_padding and item.n_samples < window_length)
            for item in series
        )
        self.with_mask = with_mask
        self.with_context = with_context
        self.plants_gaps = False  # on windows in training: `plant_gaps`
        self.device = device
        self.n_series = len(series)
        self.n_samples = np.array([item.n_samples for item in series])
        usable = [~np.isnan(values) for values in influence]
        self.n_windows = np.array([mask.sum() for mask in usable])
        self.has_neighbors = np.ones(len(series), dtype=bool)  # series with a support that was measured
        self.on_host = self._too_large(series) if on_host is None else on_host
        place = torch.device("cpu") if self.on_host else device
        strips, starts, contexts, offset = [], [], [], 0
        for item, mask in zip(series, usable, strict=True):
            n_padded, filler = max(window_length - item.n_samples, 0), np.nan if marks_padding else 0.0
            padded = (
                np.pad(item.samples, ((0, 0), (0, n_padded)), constant_values=filler)
                if n_padded
                else item.samples
            )
            strip = network_strip(padded, with_mask=self.has_gaps)
            within = window_starts(item.n_samples, window_length=window_length, stride=stride)[mask]
            strips.append(strip)
            starts.append(within + offset)
            if with_context:
                contexts.append(
                    window_context(windows_of(item, window_length=window_length, stride=stride))[mask]
                )
            offset += strip.shape[1]
        self.strip = torch.from_numpy(np.concatenate(strips, axis=1)).to(place)
        self.starts = torch.from_numpy(np.concatenate(starts)).to(place)
        self.context = torch.from_numpy(np.concatenate(contexts)).to(place) if with_context else None
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
        marks_padding: bool = False,
        with_context: bool = False,
    ) -> Self:
        """A pool whose usable windows have the same influence, 0; flat ones are not marked."""
        cut = [windows_of(item, window_length=window_length, stride=stride) for item in series]
        influence = [np.where(item.unusable, np.nan, 0.0) for item in cut]
        flat = [np.zeros(len(item), dtype=np.bool_) for item in cut]
        cutting: dict[str, Any] = {"window_length": window_length, "stride": stride, "device": device}
        cutting |= {"marks_padding": marks_padding, "with_context": with_context}
        return cls(series, targets, influence, flat, **cutting)

    def __len__(self) -> int:
        return len(self.starts)

    def _too_large(self, series: Sequence[Series]) -> bool:
        """Whether a GPU has no room for this pool, with a warning; refuses what does not fit on the host either."""
        n_values = sum(item.n_variates * max(item.n_samples, self.window_length) for item in series)
        a_window = BYTES_A_WINDOW + 4 * N_CONTEXT * self.with_context
        needed = 4 * n_values + a_window * int(self.n_windows.sum())
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

    def has_rows_for(self, backbone: nn.Module) -> None:
        """Let windows have the rows that a backbone takes, behind the variates: a mask, their context."""
        self.with_mask = handles_missing(backbone)
        self.with_context = takes_context(backbone)
        assert self.context is not None or not self.with_context, "the pool was made without context"

    def gather(self, indices: Tensor) -> Tensor:
        """Windows ``(batch, n_variates, window_length)`` by their index in the pool, as the network gets them.

        With a mask as one more row where samples are missing in the pool and the network takes it, and with the
        context in a last row where it takes that.
        """
        rows = self.strip if self.with_mask else self.strip[: self.n_variates]
        return add_context(self._cut(rows, indices), self._context(indices))

    def _context(self, indices: Tensor) -> Tensor | None:
        """Context ``(batch, 3)`` by index, where windows have it."""
        if self.context is None or not self.with_context:
            return None
        return self._on_device(self.context[indices])

    def present(self, indices: Tensor) -> Tensor | None:
        """Masks ``(batch, 1, window_length)`` by index, 1 where present; None where the pool has no gaps."""
        return self._cut(self.strip[self.n_variates :], indices) if self.has_gaps else None

    def _cut(self, rows: Tensor, indices: Tensor) -> Tensor:
        views = rows.unfold(1, self.window_length, 1)
        return self._on_device(views[:, self.starts[indices]].transpose(0, 1))

    def take(self, indices: Tensor) -> Batch:
        """Windows, series, starts, influence, flat and masks by index, which is on the device of the pool."""
        series, starts, influence, flat = (
            self._on_device(column[indices])
            for column in (self.series, self.starts, self.influence, self.flat)
        )
        return Batch(
            self.gather(indices),
            series,
            starts,
            influence,
            flat,
            self.present(indices),
            self.with_mask and self.has_gaps,
            self._context(indices),
        )

    def training_windows(self, indices: Tensor, *, seed: int) -> Tensor:
        """Windows by index, as in training: with the gaps of other classes where these are planted."""
        batch = self.take(indices)
        if not self.plants_gaps:
            return batch.windows
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.plant_gaps(batch).windows

    def plant_gaps(self, batch: Batch) -> Batch:
        """A batch whose windows also miss what one random window of every other class misses.

        A window of class c then has the gaps of one window of each class, whatever c is: masks are drawn from the
        same distribution in every class, so there is nothing about the class to be learned from them. Padding is no
        gap: that of other windows is not planted.
        """
        if batch.present is None:
            return batch
        by_class, firsts, counts = self._by_class
        place, present = self.starts.device, batch.present
        own = self.targets[batch.series].to(place)
        for step in range(1, len(counts)):
            other = (own + step) % len(counts)
            drawn = (torch.rand(len(own), device=place) * counts[other]).long()
            mask = self._without_padding(by_class[(firsts[other] + drawn).clamp_max(len(self) - 1)])
            present = torch.where(self._on_device(counts[other] > 0)[:, None, None], present * mask, present)
        return batch._replace(windows=batch.changed(batch.values * present, present), present=present)

    def _without_padding(self, indices: Tensor) -> Tensor:
        """Masks as of `present`, in which padding is 1."""
        length = self._on_device(self._lengths[self.series[indices]])
        padded = (
            torch.arange(self.window_length, device=length.device) >= length[:, None]
        )  # of a single window
        return self._cut(self.strip[self.n_variates :], indices).masked_fill(padded[:, None], 1.0)

    @functools.cached_property
    def _lengths(self) -> Tensor:
        return torch.from_numpy(self.n_samples).to(self.series.device)

    @functools.cached_property
    def _by_class(self) -> tuple[Tensor, Tensor, Tensor]:
        """Windows in the order of their classes, the first of each class, and how many it has."""
        targets = self.targets.cpu().numpy()
        classes = targets[self.series.cpu().numpy()]
        counts = np.bincount(classes, minlength=int(targets.max()) + 1)
        order, firsts = np.argsort(classes, kind="stable"), np.cumsum(counts) - counts
        by_class, first, count = (
            torch.from_numpy(item).to(self.series.device) for item in (order, firsts, counts)
        )
        return by_class, first, count

    def all_windows(self, *, every: int = 1) -> Iterator[Tensor]:
        """Every n-th window in order, in passes of bounded size."""
        return self.windows_at(np.arange(0, len(self), every))

    def windows_at(self, places: NDArray[np.int64]) -> Iterator[Tensor]:
        """Windows by their index ``(n,)``, in passes of bounded size."""
        n_at_once = max(SAMPLES_A_PASS[self.device.type] // (len(self.strip) * self.window_length), 1)
        for indices in torch.from_numpy(places).to(self.starts.device).split(n_at_once):
            yield self.gather(indices)

    def _on_device(self, values: Tensor) -> Tensor:
        if self.on_host and self.device.type == "cuda":  # from pinned memory a copy does not stop the host
            return values.pin_memory().to(self.device, non_blocking=True)
        return values
