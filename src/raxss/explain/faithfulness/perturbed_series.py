"""Scores of many perturbed copies of a series, in one pass over the windows that differ.

Copies differ in some stretches, so most of their windows are the same, sample by sample, and the network scores
these once. Scaled windows are compared: where a copy is scaled by its own deviation, all its windows are new.
The same numbers as `Predictor.predictions`, up to the last bits of float32: windows are batched otherwise. Lists
of neighbours are exact in both. The cache of retrievals is not used: no copy comes again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raxss.data.series import Series
from raxss.method.backbones.protocol import handles_missing, logits_and_features
from raxss.method.context import add_context
from raxss.method.inference import Predictor
from raxss.method.retrieval.search import Retrieval
from raxss.method.window_scorer import WINDOWS_A_PASS, context_for, exact_arithmetic, strip_for
from raxss.method.windows import Windows, network_strip, window_starts, windows_of

Floats = NDArray[np.float64]
FEATURE_BYTES = 2**29  # of the windows of copies that are looked at together
SAMPLES_A_PASS = 2**23  # of all windows of a pass on a GPU
WINDOWS_AT_ONCE = 2**16  # of all copies that are looked at together, the same or not
N_FINGERPRINTS = 2  # of 64 bits: two windows that differ have the same ones once in 2^66 pairs at most


@dataclass(frozen=True, eq=False)
class Distinct:
    """Every window that occurs in some copies of a series, once."""

    strips: Tensor  # (n_copies, n_variates, n_samples) as the network sees them
    length: int
    stride: int
    copies: NDArray[np.int64]  # (n_distinct,) a copy that has the window
    windows: NDArray[np.int64]  # (n_distinct,) its place in that copy
    places: NDArray[np.int64]  # (n_copies, n_windows) which of the distinct windows each is
    context: Tensor | None = None  # (n_copies, n_windows, 3), for a network that takes it

    def __len__(self) -> int:
        return len(self.copies)

    def passes(self, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
        """All of them, ``(n, n_variates, length)`` at a time on the device; the strips go there once."""
        cut = self.strips.to(device).unfold(2, self.length, self.stride).transpose(1, 2)
        copies, windows = (torch.from_numpy(item).to(device) for item in (self.copies, self.windows))
        context = None if self.context is None else self.context.to(device)
        at_once = WINDOWS_A_PASS
        if device.type != "cpu":
            at_once = max(SAMPLES_A_PASS // (self.strips.shape[1] * self.length), 1)
        for first in range(0, len(self), at_once):
            which = slice(first, first + at_once)
            some = copies[which], windows[which]
            yield which, add_context(cut[some], None if context is None else context[some])


def portions(
    copies: Sequence[Series], *, window_length: int, stride: int, most: int = WINDOWS_AT_ONCE
) -> Iterator[list[int]]:
    """Which copies to look at together: of one length, with so many windows at most; one copy at least."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for place, copy in enumerate(copies):
        by_shape.setdefault(copy.samples.shape, []).append(place)
    for (_, n_samples), places in by_shape.items():
        step = max(most // len(window_starts(n_samples, window_length=window_length, stride=stride)), 1)
        for first in range(0, len(places), step):
            yield places[first : first + step]


def distinct_windows(
    of_copies: Sequence[Windows], *, with_mask: bool = False, context: Sequence[Tensor] | None = None
) -> Distinct:
    """Find the windows that differ, of copies with the same number of samples.

    Only windows with the same start are compared, by sums of their samples' bits times random numbers, which are
    differences of running sums: no window is looked at. ``with_mask``: for a network that takes a mask of missing
    samples, which is there where any copy has gaps. ``context``: of the windows of each copy ``(n_windows, 3)``,
    for networks that take it. Windows that differ in it are different ones; a copy that differs anywhere has
    another mean, so that few are the same then.
    """
    item = of_copies[0]
    with_mask = with_mask and any(windows.has_gaps for windows in of_copies)
    strips = np.stack([network_strip(windows.strip, with_mask=with_mask) for windows in of_copies])
    n_copies, n_windows = len(of_copies), len(item)
    keys = [np.broadcast_to(np.arange(n_windows, dtype=np.uint64), (n_copies, n_windows))]
    generator = np.random.default_rng(0)
    for _ in range(N_FINGERPRINTS):
        factors = generator.integers(0, 2**64, size=strips.shape[1:], dtype=np.uint64)
        sums = np.zeros((n_copies, strips.shape[2] + 1), dtype=np.uint64)  # they wrap around
        np.cumsum((strips.view(np.uint32) * factors).sum(axis=1), axis=1, out=sums[:, 1:])
        keys.append(sums[:, item.starts + item.length] - sums[:, item.starts])
    every = None if context is None else torch.stack(list(context))
    if every is not None:
        keys += [*np.ascontiguousarray(every.numpy()).view(np.uint32).astype(np.uint64).transpose(2, 0, 1)]
    table = np.stack([key.ravel() for key in keys])
    order = np.lexsort(table[::-1])
    new = np.append(True, (np.diff(table[:, order], axis=1) != 0).any(axis=0))
    first = np.minimum.reduceat(
        order, np.flatnonzero(new)
    )  # the first that has it, so that copies are in order
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    places = np.empty(len(order), dtype=np.int64)
    places[order] = rank[np.cumsum(new) - 1]
    first = np.sort(first).astype(np.int64)
    return Distinct(
        torch.from_numpy(strips),
        item.length,
        item.stride,
        first // n_windows,
        first % n_windows,
        places.reshape(n_copies, n_windows),
        every,
    )


def probabilities_of_copies(predictor: Predictor, copies: Sequence[Series]) -> Floats:
    """Sums over windows ``(n_copies, C)``, before any calibration of series.

    Copies may have different lengths; those of one length are looked at together.
    """
    most = WINDOWS_AT_ONCE
    if _needs_features(predictor):
        most = min(most, FEATURE_BYTES // (8 * max(len(predictor.feature_mean), 1)))
    found: Floats | None = None
    sizes = {"window_length": predictor.window_length, "stride": predictor.stride}
    for places in portions(copies, **sizes, most=most):
        some = [copies[place] for place in places]
        streamed = predictor.n_windows(some[0]) > WINDOWS_AT_ONCE  # and so need not be held
        scores = one_by_one(predictor, some) if streamed else _at_once(predictor, some)
        if found is None:
            found = np.empty((len(copies), scores.shape[1]))
        found[places] = scores
    assert found is not None, "callers give one copy at least"
    return found


def one_by_one(predictor: Predictor, copies: list[Series]) -> Floats:
    """The same sums with one series in memory at a time."""
    found = predictor.predictions(copies, with_lists=False)
    return np.stack([item.aggregation.series_probability for item in found])


def _needs_features(predictor: Predictor) -> bool:
    in_features = predictor.retrieves and predictor.retrieval.space == "features"
    return predictor.gated or in_features


def _at_once(predictor: Predictor, copies: list[Series]) -> Floats:
    """Of copies of one length."""
    scaled = [predictor.scaling.apply(copy) for copy in copies]
    cut = [
        windows_of(item, window_length=predictor.window_length, stride=predictor.stride) for item in scaled
    ]
    seen = [replace(item, strip=strip_for(predictor.backbone, item)) for item in cut]
    context = [context_for(predictor.backbone, item, predictor.context) for item in cut]
    distinct = distinct_windows(
        seen,
        with_mask=handles_missing(predictor.backbone),
        context=[item for item in context if item is not None] or None,
    )
    logits, features = _scored(predictor, distinct)
    gate = predictor.standardise(features)
    _, posteriors = predictor.window_posteriors(logits)
    lists: Sequence[Retrieval | None] = [None] * len(copies)
    if predictor.retrieves:
        compared = None if features is None else predictor.compared(features)
        lists = predictor.neighbors_of(
            scaled, None if compared is None else [compared[rows] for rows in distinct.places]
        )
    aggregations = [
        predictor.aggregate(copy, windows, posteriors[rows], found, None if gate is None else gate[rows])
        for copy, windows, rows, found in zip(copies, cut, distinct.places, lists, strict=True)
    ]
    return np.stack([item.series_probability for item in aggregations])


def _scored(predictor: Predictor, distinct: Distinct) -> tuple[torch.Tensor, Floats | None]:
    """Logits ``(n_distinct, n_outputs)`` on the CPU, and features ``(n_distinct, d)`` where they are needed."""
    network = predictor.backbone.to(predictor.device).eval()
    wanted = _needs_features(predictor)
    logits, features = [], []
    with torch.inference_mode(), exact_arithmetic():
        for _, windows in distinct.passes(predictor.device):
            if wanted:
                some, vectors = logits_and_features(network, windows)
                features.append(vectors.double().cpu())
            else:
                some = network(windows)
            logits.append(some if some.dtype == torch.float64 else some.float())
        return torch.cat(logits).cpu(), torch.cat(features).numpy() if wanted else None
