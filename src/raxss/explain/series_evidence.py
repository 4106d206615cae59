"""Evidence of one series: as data, text, JSON, Parquet and figures, and loading again.

    SeriesEvidence: one prediction, taken apart
        windows    one row a window: times, posteriors, support, weight, contributions
        neighbors  one row a window and rank: times, similarity, overlap, the weight without this neighbour
    <-> evidence.json, windows.parquet, neighbors.parquet

The contributions add up to the score, each weight follows from a support, each support is the mean of a list
of neighbours: nothing here is fitted or approximated.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from raxss._core.atomic import json_ready, make_folder, read_parquet, whole_file, whole_folder, write_text
from raxss._core.memory import refuse_too_large
from raxss._core.renames import current_columns
from raxss.data.series import Series
from raxss.data.training_overlap import STATES, UNKNOWN
from raxss.errors import ConfigError, DataError, one_of
from raxss.explain.neighbour_lists import BYTES_A_ROW, WINDOWS_A_CHUNK, Columns, NeighborLists, columns_of
from raxss.explain.reading import columns_checked, read_head, summary_of
from raxss.uncertainty.bootstrap import Interval

NOTE = "Research use only. Not for diagnosis."
FORMAT = "raxss evidence 1"
FORMATS = ("json", "parquet", "figures")
WINDOWS_IN_JSON = 5000  # more than these are left to Parquet: a day of signal has 17 million
NOTEBOOK_BYTES = 1_000_000  # of samples in the page that a notebook shows and keeps

#: Fields that evidence of earlier versions does not have.
LATER = ("calibrated_probability", "interval", "prediction_set", "notes", "seen_in_training")


@dataclass(frozen=True, eq=False, repr=False)
class SeriesEvidence:
    """One prediction, taken apart into windows, weights and neighbours (Eq. 4); made by `trace`.

    Attributes
    ----------
    name, label, rate, seconds
        What the series was. ``label`` is the known one, or None.
    classes, series_probability, predicted
        C labels, sums of their contributions ``(C,)``, and the label with the largest probability.
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
        they are smoothed, ``smoothed_<class>...`` are the ones that are weighted. Under gated weights ``gate`` is
        added to the support, and ``influence`` goes into the softmax.
    neighbors
        One row a window and rank: ``window, rank, neighbor, start_s, end_s, similarity, overlaps,
        overlap_s, weight_without, weight_change``. Rank 1 is the best. ``overlap_s`` is the time shared with
        the query; ``weight_change`` is what the neighbour adds to the window's weight. It is negative for a
        neighbour below the mean of its list: without it the mean would be higher. Built on first use: 73 bytes a
        row, 1 GB for a day of signal; `leaderboard` builds the rows of one window.
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

    def to_json(self, path: Path | str | None = None, *, top: int | None = 50) -> str:
        """Everything as JSON text, also written to ``path`` if given.

        The lists of neighbours are those of the ``top`` windows by weight, and of the window that adds most to
        each class (None: of all), because a long recording has millions. The table of windows is whole up to 5,000
        windows, or with ``top=None``; of more it has the same ones as the lists, and ``windows_left_out`` says how
        many there are besides, and that `to_parquet` writes them all. Values that do not exist are null.
        """
        text = "".join(self._json_parts(top))
        if path is not None:
            write_text(path, text)
        return text

    def to_parquet(self, folder: Path | str, *, top: int | None = 50) -> None:
        """Write ``windows.parquet`` and ``neighbors.parquet`` into a folder; ``top`` as in `to_json`."""
        from raxss.explain.export.tables import write_parquet

        folder = make_folder(folder)
        for name, parts in (("windows", [self.columns]), ("neighbors", self.list_columns(top))):
            with whole_file(folder / f"{name}.parquet") as temporary:
                write_parquet(temporary, parts)

    def faithfulness(self, model: Any, *, seed: int = 0) -> Any:
        """Test whether the score of the model rests on this evidence: see `raxss.RAxSSClassifier.faithfulness`.

        The model is the fitted `raxss.RAxSSClassifier`, with the settings that it explained with.
        """
        if self.series is None:
            raise DataError(
                f"the evidence of series {self.name!r} was loaded without its samples, which must be changed to "
                "test it. Give them: SeriesEvidence.load(folder, series=series)."
            )
        made_by, current = self.settings.get("config_hash"), model.current_config.hash
        if made_by not in (None, current):
            raise ConfigError(
                f"the evidence of series {self.name!r} was made with the settings {made_by}, but the model has "
                f"{current} now. Explain again, or set the model's parameters back."
            )
        return model.faithfulness(self.series, seed=seed)

    def save(
        self,
        folder: Path | str,
        *,
        top: int | None = 50,
        figures: bool = True,
        formats: Collection[str] = FORMATS,
        overwrite: bool = False,
    ) -> Path:
        """Write JSON, Parquet and figures into a folder of their own inside ``folder``; return that folder.

        It is called `safe_name` of the series, and appears whole or not at all; ``top`` as in `to_json`.

        ``formats`` are some of ``"json"``, ``"parquet"`` and ``"figures"``; ``figures=False`` is short for those
        without the last. Without ``"json"``, evidence.json has the summary alone, which `load` needs beside the
        Parquet tables.
        """
        for item in formats:
            one_of("formats", item, FORMATS)
        place = Path(folder) / safe_name(self.name)
        with whole_folder(place, overwrite=overwrite) as temporary:
            with whole_file(temporary / "evidence.json") as file, open(file, "w", encoding="utf-8") as out:
                # without Parquet tables there is no other place that has all windows
                whole = "parquet" not in formats
                out.writelines(self._json_parts(top, with_tables="json" in formats, whole=whole))
            if "parquet" in formats:
                self.to_parquet(temporary, top=top)
            if "figures" in formats and figures and self.series is not None:
                from raxss.explain.figures import plot_contributions, plot_overlay

                plot_overlay(self).savefig(temporary / "overlay.png", dpi=150)
                staircase = plot_contributions(self).figure.canvas
                staircase.print_figure(temporary / "contributions.png", dpi=150)
        return place

    @classmethod
    def load(cls, folder: Path | str, *, series: Series | None = None) -> Self:
        """Read what `save` wrote; give the series again to draw figures."""
        folder = Path(folder)
        try:
            head = read_head(folder / "evidence.json")
            if head["format"] != FORMAT:
                raise ValueError(f"its format is {head['format']!r}, needed is {FORMAT!r}")
            summary = summary_of(head, SUMMARY, LATER)
            windows, neighbors = (
                current_columns(read_parquet(folder / f"{name}.parquet")) for name in ("windows", "neighbors")
            )
            summary["seen_in_training"] = head.get("seen_in_training", UNKNOWN)
            if summary["seen_in_training"] not in tuple(STATES):
                raise ValueError(f"seen_in_training is none of {', '.join(map(repr, STATES))}")
            columns = columns_checked(windows, neighbors, summary["classes"])
            return cls(**summary, columns=columns, lists=neighbors, series=series)
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            reason = str(error).removesuffix(".") if isinstance(error, DataError) else repr(error)
            raise DataError(
                f"{folder.name!r} cannot be read as evidence ({reason}); needed is a folder with "
                "evidence.json, windows.parquet and neighbors.parquet, as SeriesEvidence.save writes it."
            ) from error

    def __repr__(self) -> str:
        n = len(self.windows)
        label = "" if self.label is None else f", label={self.label!r}"
        probabilities = ", ".join(
            f"{class_} {probability:.3f}"
            for class_, probability in zip(self.classes, self.probability, strict=True)
        )
        lines = [
            f"SeriesEvidence({self.name!r}{label})",
            f"  predicted {self.predicted!r} ({probabilities})",
            f"  seen in training: {self.seen_in_training}",
            f"  {n} window{'' if n == 1 else 's'} over {self.seconds:.4g} s, of which "
            f"{self.effective_windows:.4g} effective ({percent(self.effective_share)} of the usable)",
        ]
        if not np.isnan(self.overlap_share):
            lines.append(f"  {percent(self.overlap_share)} of the listed neighbours overlap their query")
        lines += self._uncertainty_lines()
        best = self.top_windows(1).iloc[0]
        lines.append(
            f"  strongest: window {best['window']}, {best['start_s']:.4g} to {best['end_s']:.4g} s, weight "
            f"{best['weight']:.4g}, adds {best[f'contribution_{self.predicted}']:.4g}"
        )
        return "\n".join(lines + [f"  warning: {warning}" for warning in self.warnings])

    def _uncertainty_lines(self) -> list[str]:
        place, lines = self.classes.index(self.predicted), []
        if self.calibrated_probability is not None:
            lines.append(
                f"  calibrated ({self.settings['calibration']}); the windows add up to "
                f"{self.series_probability[place]:.3f} for {self.predicted!r}"
            )
        if self.interval is not None:
            low, high = self.interval.low[place], self.interval.high[place]
            level = "" if self.interval.level is None else f", {percent(self.interval.level)}"
            lines.append(
                f"  {self.predicted!r} between {low:.3f} and {high:.3f} ({self.interval.method}{level})"
            )
        if self.prediction_set is not None:
            held = ", ".join(map(repr, self.prediction_set)) or "no class"
            share = percent(1 - self.settings["conformal_alpha"])
            lines.append(f"  {share} set: {held}{'; abstains' if self.abstains else ''}")
        return lines

    def _repr_html_(self) -> str | None:
        """The page about this series, where Jupyter shows it; without its samples the text of `repr` will do."""
        from raxss.explain.export.report import report_of

        return None if self.series is None else report_of(self, full_bytes=NOTEBOOK_BYTES)._repr_html_()

    def _json_parts(self, top: int | None, *, with_tables: bool = True, whole: bool = False) -> Iterator[str]:
        """The text of `to_json`, piece by piece: of a long recording it is hundreds of megabytes."""
        head = {"format": FORMAT, "note": NOTE, "n_windows": len(self.columns["window"])}
        summary = {name: getattr(self, name) for name in SUMMARY}
        head |= {name: value for name, value in summary.items() if value is not None or name not in LATER}
        if self.interval is not None:
            head["interval"] = self.interval.to_json()
        if self.abstains is not None:
            head["abstains"] = self.abstains
        yield json.dumps(json_ready(head), indent=2, allow_nan=False, default=str).removesuffix("\n}")
        if with_tables:
            n = len(self.columns["window"])
            chosen = np.arange(n)
            if not whole and top is not None and n > WINDOWS_IN_JSON:
                chosen = self.strongest(top)
                left_out = {"n_windows": n - len(chosen), "all_are_in": "windows.parquet"}
                yield f',\n  "windows_left_out": {json.dumps(left_out)}'
            yield ',\n  "windows": ['
            chunks = (chosen[at : at + WINDOWS_A_CHUNK] for at in range(0, len(chosen), WINDOWS_A_CHUNK))
            yield from _json_rows(
                {name: values[some] for name, values in self.columns.items()} for some in chunks
            )
            yield '\n  ],\n  "neighbors": ['
            yield from _json_rows(self.list_columns(top))
            yield "\n  ]"
        yield "\n}\n"


#: Fields of `SeriesEvidence` without its tables and its samples.
SUMMARY = [item.name for item in fields(SeriesEvidence) if item.name not in ("columns", "lists", "series")]


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


def _json_rows(parts: Iterable[Columns]) -> Iterator[str]:
    """Rows as JSON, a line each, full precision, null where there is no value."""
    between = ""
    for columns in parts:
        line = "\n    {" + ", ".join(f"{json.dumps(name).replace('%', '%%')}: %s" for name in columns) + "}"
        rows = [line % row for row in zip(*map(_json_values, columns.values()), strict=True)]
        if rows:
            yield between + ",".join(rows)
            between = ","


def _json_values(values: NDArray[Any]) -> list[str]:
    """Numbers as JSON spells them. Encoding the column at once is several times faster than row by row."""
    if not len(values):
        return []
    texts = json.dumps(values.tolist())[1:-1].split(", ")
    if values.dtype.kind == "f":
        for place in np.flatnonzero(~np.isfinite(values)):
            texts[place] = "null"
    return texts
