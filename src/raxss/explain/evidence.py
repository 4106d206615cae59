"""Evidence of one prediction as data: windows, weights, contributions and neighbours. Files: series_evidence.py."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from raxss._core.memory import refuse_too_large
from raxss.data.series import Series
from raxss.data.training_overlap import UNKNOWN
from raxss.errors import ConfigError, DataError
from raxss.explain.neighbour_lists import BYTES_A_ROW, Columns, NeighborLists, columns_of
from raxss.uncertainty.bootstrap import Interval

NOTE = "Research use only. Not for diagnosis."
FORMAT = "raxss evidence 1"


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """One prediction, taken apart into windows, weights and neighbours (Eq. 4).

    Attributes
    ----------
    name, label, rate, seconds
        What the series was. ``label`` is the known one, or None.
    classes, series_probability, predicted
        C labels, sums of their contributions ``(C,)``, and the predicted label: that of the largest probability, or
        where the model has a tuned decision threshold that of the largest product of probability and
        ``settings["decision_factors"]``.
    calibrated_probability
        ``(C,)`` calibrated ``series_probability``; None where the model does not calibrate series. `probability` is
        what `predict_proba` returns in either case.
    interval
        Interval of the probability of each class, `raxss.uncertainty.bootstrap.Interval`; None where the series is
        too short for one.
    prediction_set
        Classes of the conformal set at level ``1 - settings["conformal_alpha"]``; None where the model has no sets.
        `abstains`: whether they are more than one, or none.
    windows
        One row a window, in time order: ``window, start_s, end_s, posterior_<class>..., support, weight,
        contribution_<class>..., flat, nonfinite, lonely, padded``. The contributions to a class sum to its
        probability. Where posteriors are calibrated, ``uncalibrated_<class>...`` are those of the network. Where
        they are smoothed, ``smoothed_<class>...`` are the ones that are weighted. Where samples are missing,
        ``missing_share`` is their share of the window, and ``nonfinite`` marks those with more than half. Under
        gated weights ``gate`` is added to the support, and ``influence`` goes into the softmax. Where the model
        takes the context of windows, this is ``context_position, context_level, context_amplitude``, and
        ``from_context_<class>...`` is how far it moves the posterior. Where windows look disturbed,
        ``disturbed_share`` is how far their posterior is that of members for such windows.
    neighbors
        One row a window and rank: ``window, rank, neighbor, start_s, end_s, similarity, overlaps,
        overlap_s, weight_without, weight_change``. Rank 1 is the best. ``overlap_s`` is the time shared with
        the query; ``weight_change`` is what the neighbour adds to the window's weight. It is negative for a
        neighbour below the mean of its list: without it the mean would be higher. Built on first use: 73 bytes a
        row, 1 GB for a day of signal; `leaderboard` builds the rows of one window.
    from_context
        ``(C,)`` `probability` less what it is with the mean context of the training windows for every window: how
        much of it comes from where windows are, and how they differ from the rest of the series. None where the
        model takes no context.
    effective_windows, effective_share
        1 / sum(alpha²), and its share of the usable windows: 1 is the SSS mean.
    overlap_share
        Share of the listed neighbours that overlap their query; NaN where none are listed.
    warnings
        Reasons for caution, in plain words.
    notes
        Those of the warnings that came with the prediction: how the series differs from the training data. None
        where that is not known.
    seen_in_training
        Whether the model was fitted on this series, known by content: ``training``, ``validation``, ``training or
        validation``, ``in part``, ``no`` or ``unknown``, as `raxss.data.training_overlap.STATES` describes them.
    settings
        Settings of retrieval, weighting and model, carried into outputs.
    columns
        Columns of `windows` by name.
    lists
        Source of `neighbors`: the lists as retrieval keeps them, or the table that `load` read.
    series
        The series itself, for the figures; None after `load` without it.
    """

    name: str
    label: Any
    rate: float
    seconds: float
    classes: tuple[Any, ...]
    series_probability: NDArray[np.float64]
    predicted: Any
    columns: Columns
    lists: NeighborLists | pd.DataFrame
    effective_windows: float
    effective_share: float
    overlap_share: float
    warnings: list[str]
    settings: dict[str, Any]
    series: Series | None = None
    calibrated_probability: NDArray[np.float64] | None = None
    interval: Interval | None = None
    prediction_set: tuple[Any, ...] | None = None
    notes: tuple[str, ...] | None = None
    seen_in_training: str = UNKNOWN
    from_context: NDArray[np.float64] | None = None

    @property
    def probability(self) -> NDArray[np.float64]:
        """``(C,)`` as `predict_proba` returns it: the sum of the contributions, calibrated where series are."""
        return self.series_probability if self.calibrated_probability is None else self.calibrated_probability

    @property
    def abstains(self) -> bool | None:
        """Whether the prediction set has several classes or none; None without a set."""
        return None if self.prediction_set is None else len(self.prediction_set) != 1

    @functools.cached_property
    def windows(self) -> pd.DataFrame:
        """One row a window, in time order."""
        return pd.DataFrame(self.columns)

    @functools.cached_property
    def neighbors(self) -> pd.DataFrame:
        """One row a window and rank, all of them."""
        if isinstance(self.lists, pd.DataFrame):
            return self.lists
        refuse_too_large(
            2 * BYTES_A_ROW * self.lists.n_rows,
            f"the table of the {self.lists.n_rows:,} neighbours of series {self.name!r}",
            "Use leaderboard(window) for those of one window, or write all to disk, to_parquet(folder, top=None).",
        )
        return pd.DataFrame(self.lists.columns())

    def leaderboard(self, window: int) -> pd.DataFrame:
        """The neighbours of one window, best first; empty where it has none."""
        if not 0 <= window < len(self.windows):
            raise DataError(
                f"series {self.name!r} has no window {window}; its windows are 0 to {len(self.windows) - 1}."
            )
        rows = self.leaderboards([window])
        row = self.windows.iloc[window]
        if rows.empty and not (row["lonely"] or row["nonfinite"]):
            raise DataError(
                f"the neighbours of window {window} of series {self.name!r} were not saved; "
                f"{self.neighbors['window'].nunique()} windows have theirs here. Save with top=None for all."
            )
        return rows

    def leaderboards(self, windows: ArrayLike) -> pd.DataFrame:
        """The neighbours of several windows, one below the other; those that were not saved are left out."""
        wanted = np.unique(np.asarray(windows, dtype=np.int64))
        if isinstance(self.lists, NeighborLists):
            return pd.DataFrame(self.lists.columns(wanted))
        return self.lists[self.lists["window"].isin(wanted)].reset_index(drop=True)

    def top_windows(self, n: int | None = 10, class_: Any = None) -> pd.DataFrame:
        """The windows that add most to a class (the predicted one by default); ties: the earlier first."""
        contribution = self.windows[f"contribution_{self.class_named(class_)}"].to_numpy()
        order = largest(contribution, n)
        return self.windows.iloc[order].reset_index(drop=True)

    def probability_of(self, class_: Any = None) -> float:
        """The probability of a class, the predicted one by default, as `predict_proba` returns it."""
        return float(self.probability[self.classes.index(self.class_named(class_))])

    def list_columns(self, top: int | None = 50) -> Iterator[Columns]:
        """The columns of `neighbors`, some windows at a time; ``top`` as in `to_json`."""
        if isinstance(self.lists, pd.DataFrame):
            yield columns_of(self.lists if top is None else self.leaderboards(self.strongest(top)))
        elif top is None:
            yield from self.lists.chunks()
        else:
            yield self.lists.columns(self.strongest(top))

    def class_named(self, class_: Any) -> Any:
        """The given class, or the predicted one."""
        if class_ is None:
            return self.predicted
        if class_ not in self.classes:
            raise ConfigError(
                f"{class_!r} is not a class of series {self.name!r}; its classes are "
                f"{', '.join(map(repr, self.classes))}."
            )
        return self.classes[self.classes.index(class_)]  # 1 and True are equal; the column has one name

    def strongest(self, top: int) -> NDArray[np.int64]:
        """Indices, ascending, of the ``top`` windows by weight and of the strongest window of each class."""
        chosen = largest(self.columns["weight"], top).tolist()
        chosen += [self.columns[f"contribution_{class_}"].argmax() for class_ in self.classes]
        return np.unique(chosen).astype(np.int64)


def safe_name(name: str) -> str:
    """A file or folder name for a series: the name itself if that is harmless, else a slug that is its own.

    Examples
    --------
    >>> safe_name("A00004"), safe_name("../../x"), safe_name("sub-01:C3")
    ('A00004', 'x-9cdf6a50', 'sub-01_C3-bba381c2')
    """
    slug = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._-")[:80]
    reserved = re.fullmatch(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", slug, flags=re.IGNORECASE)
    if slug and slug == name and not reserved:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{slug.partition('.')[0] if reserved else slug or 'series'}-{digest}"


def largest(values: NDArray[np.float64], n: int | None) -> NDArray[np.intp]:
    """Indices of the ``n`` largest values in descending order; ties in order of position."""
    if n is not None and 0 < n < len(values):
        least = np.partition(values, len(values) - n)[len(values) - n]
        candidates = np.flatnonzero(values >= least)  # with all that tie with the last
        return candidates[np.argsort(-values[candidates], kind="stable")[:n]]
    return np.argsort(-values, kind="stable")[:n]


def percent(share: float) -> str:
    """A share in percent, with three digits."""
    return f"{100 * share:.3g} %"
