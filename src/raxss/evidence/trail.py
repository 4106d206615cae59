"""Why did a series get its score?

    windows, retrieval, aggregation of one series  ->  SeriesEvidence
        windows    one row a window: times, posteriors, support, weight, contributions
        neighbors  one row a window and rank: times, similarity, overlap, the weight without this neighbour

The contributions add up to the score, each weight follows from a support, each support is the mean of a list
of neighbours: nothing here is fitted or approximated. Next: figures.py draws it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raxss.aggregation import CONTROLS, Aggregation
from raxss.errors import ConfigError, DataError
from raxss.recordings.series import Series
from raxss.retrieval import Retrieval
from raxss.storage import json_ready, make_folder, whole_file, whole_folder, write_text
from raxss.windows import Windows

NOTE = "Research use only. Not for diagnosis."
FORMAT = "raxss evidence 1"

#: Effective windows above this share of the usable ones: the weights do next to nothing. Below the other,
#: a handful of windows decides.
NEARLY_UNIFORM, NEARLY_ONE = 0.95, 0.05


def weight_without(
    similarity: NDArray[np.float64],  # (n_windows, m), NaN where there is none
    support: NDArray[np.float64],  # (n_windows,), NaN where the window cannot be used
    flat: NDArray[np.bool_],  # (n_windows,)
    *,
    temperature: float,
    weighting: str = "support",
) -> NDArray[np.float64]:  # (n_windows, m)
    r"""The weight each window would have if one of its neighbours were left out of its list.

    s-bar_k without j is the mean over the m - 1 others; nobody takes the place. All that depends on s-bar_k
    moves with it: the sum under the softmax, and the supports of lonely windows, which are the mean support
    of the windows with neighbours. A window that loses its only neighbour becomes lonely (a flat one keeps
    support 0); if nobody has neighbours then, all weights are equal. Under ``shuffled`` and ``random`` the
    lists do not make the weights, and the answer is NaN.

    Examples
    --------
    >>> similarity = np.array([[0.9, 0.7], [0.9, 0.5]])
    >>> flat = np.array([False, False])
    >>> weight_without(similarity, similarity.mean(axis=1), flat, temperature=0.1).round(3)
    array([[0.5  , 0.881],
           [0.047, 0.731]])
    """
    listed = ~np.isnan(similarity)
    usable = ~np.isnan(support)
    if weighting == "uniform":
        return np.where(listed, 1.0 / usable.sum(), np.nan)
    if weighting not in ("support", "inverse"):
        return np.full(similarity.shape, np.nan)
    sharpness = (1.0 if weighting == "support" else -1.0) / temperature
    own, n_listed = support[:, np.newaxis], listed.sum(axis=1, keepdims=True)
    only = n_listed == 1
    has_list = listed.any(axis=1)
    borrows = usable & ~has_list & ~flat
    n_lists = int(has_list.sum())
    # Logarithms throughout: at a small temperature one window outweighs the rest by more than 1e300, and
    # what is left when it steps back could not be had by subtraction.
    scores = np.where(usable & ~borrows, support * sharpness, -np.inf)
    before = np.concatenate([[-np.inf], np.logaddexp.accumulate(scores)[:-1]])
    after = np.concatenate([[-np.inf], np.logaddexp.accumulate(scores[::-1])[:-1]])[::-1]
    others = np.logaddexp(before, after)[:, np.newaxis]
    with np.errstate(divide="ignore", invalid="ignore"):
        others_sum = support[has_list].sum() - own
        others_mean = others_sum / (n_lists - 1)
        shorter = (n_listed * own - similarity) / (n_listed - 1)
        without = np.where(only, np.where(flat[:, np.newaxis], 0.0, others_mean), shorter)
        borrowed = np.where(only, others_mean, (others_sum + without) / n_lists)
        borrowers = borrowed * sharpness + np.log(borrows.sum())
        weights = np.exp(without * sharpness - _log_sum(others, without * sharpness, borrowers))
    if n_lists == 1:
        weights = np.where(only, 1.0 / usable.sum(), weights)
    return np.where(listed, weights, np.nan)


@dataclass(frozen=True, eq=False, repr=False)
class SeriesEvidence:
    """One prediction, taken apart; made by `trace`.

    Attributes
    ----------
    name, label, rate, seconds
        What the series was. ``label`` is the known one, or None.
    classes, series_probability, predicted
        C labels, their probabilities ``(C,)``, and the label with the largest.
    windows
        One row a window, in time order: ``window, start_s, end_s, posterior_<class>..., support, weight,
        contribution_<class>..., flat, nonfinite, lonely, padded``. The contributions to a class sum to its
        probability.
    neighbors
        One row a window and rank: ``window, rank, neighbor, start_s, end_s, similarity, overlaps,
        overlap_s, weight_without, weight_change``. Rank 1 is the best. ``overlap_s`` is the time shared with
        the query; ``weight_change`` is what the neighbour adds to the window's weight. It is negative for a
        neighbour below the mean of its list: without it the mean would be higher.
    effective_windows, effective_share
        1 / sum(alpha²), and its share of the usable windows: 1 is the SSS mean.
    overlap_share
        Share of the listed neighbours that overlap their query; NaN where none are listed.
    warnings
        What a reader should know before trusting this, in plain words.
    settings
        Everything that made this, to be carried into outputs.
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
    windows: pd.DataFrame
    neighbors: pd.DataFrame
    effective_windows: float
    effective_share: float
    overlap_share: float
    warnings: list[str]
    settings: dict[str, Any]
    series: Series | None = None

    def leaderboard(self, window: int) -> pd.DataFrame:
        """The neighbours of one window, best first; empty where it has none."""
        if not 0 <= window < len(self.windows):
            raise DataError(
                f"series {self.name!r} has no window {window}; its windows are 0 to {len(self.windows) - 1}."
            )
        rows = self.neighbors[self.neighbors["window"] == window]
        row = self.windows.iloc[window]
        if rows.empty and not (row["lonely"] or row["nonfinite"]):
            raise DataError(
                f"the neighbours of window {window} of series {self.name!r} were not saved; "
                f"{self.neighbors['window'].nunique()} windows have theirs here. Save with top=None for all."
            )
        return rows.reset_index(drop=True)

    def top_windows(self, n: int | None = 10, class_: Any = None) -> pd.DataFrame:
        """The windows that add most to a class (the predicted one by default); ties: the earlier first."""
        contribution = self.windows[f"contribution_{self.class_named(class_)}"].to_numpy()
        order = np.argsort(-contribution, kind="stable")[:n]
        return self.windows.iloc[order].reset_index(drop=True)

    def probability_of(self, class_: Any = None) -> float:
        """The series probability of a class, the predicted one by default."""
        return float(self.series_probability[self.classes.index(self.class_named(class_))])

    def to_json(self, path: Path | str | None = None, *, top: int | None = 50) -> str:
        """Everything as JSON text, also written to ``path`` if given.

        The table of windows is whole. The lists of neighbours are those of the ``top`` windows by weight, and
        of the window that adds most to each class (None: of all), because a long recording has millions.
        Values that do not exist are null.
        """
        head = {"format": FORMAT, "note": NOTE, "n_windows": len(self.windows)}
        head |= {name: getattr(self, name) for name in _summary_fields()}
        text = json.dumps(json_ready(head), indent=2, allow_nan=False, default=str).removesuffix("\n}")
        for name, table in {"windows": self.windows, "neighbors": self._strongest_lists(top)}.items():
            text += f',\n  "{name}": [' + ",".join(f"\n    {row}" for row in _json_rows(table)) + "\n  ]"
        text += "\n}\n"
        if path is not None:
            write_text(path, text)
        return text

    def to_parquet(self, folder: Path | str, *, top: int | None = 50) -> None:
        """Write ``windows.parquet`` and ``neighbors.parquet`` into a folder; ``top`` as in `to_json`."""
        folder = make_folder(folder)
        for name, table in {"windows": self.windows, "neighbors": self._strongest_lists(top)}.items():
            with whole_file(folder / f"{name}.parquet") as temporary:
                table.to_parquet(temporary, engine="pyarrow", index=False)

    def save(
        self, folder: Path | str, *, top: int | None = 50, figures: bool = True, overwrite: bool = False
    ) -> Path:
        """Write JSON, Parquet and figures into a folder of their own inside ``folder``; return that folder.

        It is called `safe_name` of the series, and appears whole or not at all.
        """
        place = Path(folder) / safe_name(self.name)
        with whole_folder(place, overwrite=overwrite) as temporary:
            self.to_json(temporary / "evidence.json", top=top)
            self.to_parquet(temporary, top=top)
            if figures and self.series is not None:
                from raxss.evidence.figures import plot_contributions, plot_overlay

                plot_overlay(self).savefig(temporary / "overlay.png", dpi=150)
                staircase = plot_contributions(self).figure.canvas
                staircase.print_figure(temporary / "contributions.png", dpi=150)
        return place

    @classmethod
    def load(cls, folder: Path | str, *, series: Series | None = None) -> Self:
        """Read what `save` wrote; give the series again to draw figures."""
        folder = Path(folder)
        try:
            head = json.loads((folder / "evidence.json").read_text(encoding="utf-8"))
            windows, neighbors = (
                pd.read_parquet(folder / f"{name}.parquet") for name in ("windows", "neighbors")
            )
            if head["format"] != FORMAT:
                raise ValueError(f"its format is {head['format']!r}, needed is {FORMAT!r}")
            summary = {name: head[name] for name in _summary_fields()}
            summary["classes"] = tuple(head["classes"])
            summary["series_probability"] = np.array(head["series_probability"], dtype=np.float64)
            if head["overlap_share"] is None:
                summary["overlap_share"] = np.nan
            return cls(**summary, windows=windows, neighbors=neighbors, series=series)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{folder.name!r} cannot be read as evidence ({error!r}); needed is a folder with "
                "evidence.json, windows.parquet and neighbors.parquet, as SeriesEvidence.save writes it."
            ) from error

    def __repr__(self) -> str:
        label = "" if self.label is None else f", label={self.label!r}"
        probabilities = ", ".join(
            f"{class_} {probability:.3f}"
            for class_, probability in zip(self.classes, self.series_probability, strict=True)
        )
        lines = [
            f"SeriesEvidence({self.name!r}{label})",
            f"  predicted {self.predicted!r} ({probabilities})",
            f"  {_count(len(self.windows), 'window')} over {self.seconds:.4g} s, of which "
            f"{self.effective_windows:.4g} effective ({_percent(self.effective_share)} of the usable)",
        ]
        if not np.isnan(self.overlap_share):
            lines.append(f"  {_percent(self.overlap_share)} of the listed neighbours overlap their query")
        best = self.top_windows(1).iloc[0]
        lines.append(
            f"  strongest: window {best['window']}, {best['start_s']:.4g} to {best['end_s']:.4g} s, weight "
            f"{best['weight']:.4g}, adds {best[f'contribution_{self.predicted}']:.4g}"
        )
        return "\n".join(lines + [f"  warning: {warning}" for warning in self.warnings])

    def class_named(self, class_: Any) -> Any:
        """The class asked for, or the predicted one."""
        if class_ is None:
            return self.predicted
        if class_ not in self.classes:
            raise ConfigError(
                f"{class_!r} is not a class of series {self.name!r}; its classes are "
                f"{', '.join(map(repr, self.classes))}."
            )
        return self.classes[self.classes.index(class_)]  # 1 and True are equal; the column has one name

    def _strongest_lists(self, top: int | None) -> pd.DataFrame:
        """The neighbours of the ``top`` windows by weight and of each class's first; of all where None."""
        if top is None:
            return self.neighbors
        strongest = np.argsort(-self.windows["weight"].to_numpy(), kind="stable")[:top].tolist()
        strongest += [self.top_windows(1, class_)["window"].iloc[0] for class_ in self.classes]
        return self.neighbors[self.neighbors["window"].isin(strongest)].reset_index(drop=True)


def _summary_fields() -> list[str]:
    """What `SeriesEvidence` has besides its tables and its samples."""
    return [one.name for one in fields(SeriesEvidence) if one.name not in ("windows", "neighbors", "series")]


def trace(
    series: Series,
    windows: Windows,
    retrieval: Retrieval,
    aggregation: Aggregation,
    *,
    classes: Sequence[Any] | NDArray[Any],
    settings: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> SeriesEvidence:
    """Take the prediction of one series apart into windows, weights and neighbours.

    Parameters
    ----------
    series
        As it should be drawn; kept by reference.
    windows, retrieval, aggregation
        Of the same windows in the same order.
    classes
        The C labels, in the order of the posteriors' columns.
    settings
        More to carry into outputs, such as the preset's name.
    notes
        What the caller knows and a reader should: put before the other warnings.

    Examples
    --------
    >>> from raxss.aggregation import aggregate
    >>> from raxss.retrieval import retrieve
    >>> from raxss.windows import windows_of
    >>> series = Series(np.sin(np.arange(24.0)), rate=4, label="sine", name="toy")
    >>> retrieval = retrieve(series.samples, window_length=8, stride=4, n_neighbors=2)
    >>> prediction = aggregate(np.tile([0.2, 0.8], (5, 1)), retrieval.support, temperature=0.1)
    >>> windows = windows_of(series, window_length=8, stride=4)
    >>> evidence = trace(series, windows, retrieval, prediction, classes=["rest", "sine"])
    >>> evidence.predicted, evidence.windows["contribution_sine"].sum().round(6).item()
    ('sine', 0.8)
    >>> evidence.leaderboard(0)[["rank", "neighbor", "start_s", "overlaps"]]
       rank  neighbor  start_s  overlaps
    0     1         3      3.0     False
    1     2         2      2.0     False
    """
    classes = tuple(_plain(class_) for class_ in classes)
    _check_parts(series, windows, retrieval, aggregation, classes)
    usable = ~np.isnan(aggregation.influence)
    table: dict[str, NDArray[Any]] = {
        "window": np.arange(len(windows), dtype=np.int64),
        "start_s": windows.start_seconds,
        "end_s": windows.end_seconds,
    }
    table |= {f"posterior_{class_}": aggregation.posteriors[:, c] for c, class_ in enumerate(classes)}
    table |= {"support": aggregation.support, "weight": aggregation.weights}
    table |= {f"contribution_{class_}": aggregation.contributions[:, c] for c, class_ in enumerate(classes)}
    table |= {name: getattr(retrieval, name) for name in ("flat", "nonfinite", "lonely", "padded")}

    neighbors = _leaderboards(windows, retrieval, aggregation)
    own = {
        "weighting": aggregation.weighting,
        "temperature": aggregation.temperature,
        **{
            name: getattr(retrieval, name)
            for name in ("measure", "n_neighbors", "exclusion", "spread", "space", "window_length", "stride")
        },
    }
    effective = aggregation.effective_windows
    evidence = SeriesEvidence(
        name=series.name,
        label=_plain(series.label),
        rate=series.rate,
        seconds=series.seconds,
        classes=classes,
        series_probability=aggregation.series_probability,
        predicted=classes[int(np.argmax(aggregation.series_probability))],
        windows=pd.DataFrame(table),
        neighbors=neighbors,
        effective_windows=effective,
        effective_share=effective / int(usable.sum()),
        overlap_share=float(neighbors["overlaps"].mean()) if len(neighbors) else np.nan,
        warnings=[],
        settings={**own, **{key: value for key, value in (settings or {}).items() if key not in own}},
        series=series,
    )
    return replace(evidence, warnings=[*notes, *_warnings_about(evidence)])


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


def _leaderboards(windows: Windows, retrieval: Retrieval, aggregation: Aggregation) -> pd.DataFrame:
    """The lists of all windows, one row a window and rank."""
    query, rank = np.nonzero(retrieval.neighbors >= 0)
    neighbor = retrieval.neighbors[query, rank]
    distance = np.abs(windows.starts[query] - windows.starts[neighbor])
    shared = np.maximum(windows.length - windows.n_padded - distance, 0)
    without = weight_without(
        retrieval.similarity,
        aggregation.support,
        retrieval.flat,
        temperature=aggregation.temperature,
        weighting=aggregation.weighting,
    )[query, rank]
    return pd.DataFrame(
        {
            "window": query.astype(np.int64),
            "rank": rank.astype(np.int64) + 1,
            "neighbor": neighbor,
            "start_s": windows.start_seconds[neighbor],
            "end_s": windows.end_seconds[neighbor],
            "similarity": retrieval.similarity[query, rank],
            "overlaps": shared > 0,
            "overlap_s": shared / windows.rate,
            "weight_without": without,
            "weight_change": aggregation.weights[query] - without,
        }
    )


def _check_parts(
    series: Series, windows: Windows, retrieval: Retrieval, aggregation: Aggregation, classes: tuple[Any, ...]
) -> None:
    """Refuse parts that do not belong together: their evidence would be about nothing."""
    same = np.array_equal(windows.starts, retrieval.starts) and windows.length == retrieval.window_length
    if not same or len(aggregation.weights) != len(windows):
        raise ConfigError(
            f"the parts of series {series.name!r} are of different windows: {len(windows)} of length "
            f"{windows.length}, retrieval for {len(retrieval.starts)} of length {retrieval.window_length}, "
            f"weights for {len(aggregation.weights)}. All must come from the same window_length and stride."
        )
    if not np.allclose(retrieval.support, aggregation.support, rtol=0, atol=1e-5, equal_nan=True):
        raise ConfigError(
            f"series {series.name!r} was aggregated with other supports than its retrieval has; pass "
            "retrieval.support to aggregate, and set weighting to change what is made of it."
        )
    if len(classes) != len(aggregation.series_probability):
        raise ConfigError(
            f"series {series.name!r} has posteriors of {len(aggregation.series_probability)} classes, but "
            f"{len(classes)} were named: {', '.join(map(repr, classes))}."
        )
    if len({str(class_) for class_ in classes}) < len(classes):
        raise ConfigError(
            f"classes {', '.join(map(repr, classes))} read the same as text, and columns are named by them; "
            "rename one."
        )


def _warnings_about(evidence: SeriesEvidence) -> list[str]:
    """What a reader should know before trusting this evidence, with numbers."""
    windows, neighbors, settings = evidence.windows, evidence.neighbors, evidence.settings
    n, m = len(windows), settings["n_neighbors"]
    n_usable = n - int(windows["nonfinite"].sum())
    said = []
    if windows["padded"].any():
        short = float(windows["end_s"].iloc[0] - windows["start_s"].iloc[0])
        said.append(
            f"the series, {short:.4g} s, is shorter than one window and was padded with zeros behind."
        )
    if n_usable < n:
        said.append(
            f"{n - n_usable} of {n} windows touch samples that are not finite; their weight is 0 and they "
            "are no one's neighbour."
        )
    n_flat = int(windows["flat"].sum())
    if n_flat:
        said.append(f"{n_flat} of {n} windows are flat: similarity 0 to all, support 0, posterior kept.")
    if settings["weighting"] in CONTROLS:
        unexplained = (
            "" if settings["weighting"] == "inverse" else ", and the lists do not explain the weights"
        )
        said.append(
            f"weighting {settings['weighting']!r} is a control, there to do worse if support means "
            f"anything{unexplained}; this is not a prediction to use."
        )
    if settings["weighting"] == "uniform":
        said.append("weights are uniform by setting (the SSS mean): the neighbours do not enter them.")
    if n_usable == 1:
        return [*said, "there is one usable window, and it decides alone."]
    if neighbors.empty:
        return [*said, f"none of the {n_usable} windows has an eligible neighbour: the weights are uniform."]
    if settings["weighting"] != "uniform":
        share = (
            f"{evidence.effective_windows:.4g} of {n_usable} windows ({_percent(evidence.effective_share)})"
        )
        if evidence.effective_share > NEARLY_UNIFORM:
            said.append(f"weights are all but uniform, {share} are effective: this is the SSS mean.")
        if evidence.effective_share < NEARLY_ONE:
            said.append(f"few windows decide, {share} are effective: a higher temperature shares more.")
    if evidence.overlap_share > 0.5:
        said.append(
            f"{_percent(evidence.overlap_share)} of the listed neighbours overlap their query, so support "
            f"measures how smooth the signal is; set an exclusion such as half a window "
            f"({max(settings['window_length'] // 2, 1)} samples) to find recurrences."
        )
    shaped = windows.loc[~windows["nonfinite"] & ~windows["flat"]]
    n_listed = neighbors["window"].value_counts().reindex(shaped["window"], fill_value=0)
    n_short, n_lonely = int((n_listed < m).sum()), int(shaped["lonely"].sum())
    if n_short:
        lonely = f"; {n_lonely} of them have none and take the mean support of the others" if n_lonely else ""
        said.append(
            f"{n_short} of {len(shaped)} windows ({_percent(n_short / len(shaped))}) have fewer than {m} "
            f"neighbours{lonely}."
        )
    return said


def _log_sum(*logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithm of a sum, from the logarithms of what is added."""
    return functools.reduce(np.logaddexp, logarithms)


def _json_rows(table: pd.DataFrame) -> list[str]:
    """Each row of a table as a line of JSON, full precision, null where there is no value."""
    columns = [json_ready(table[name].tolist()) for name in table.columns]
    return [json.dumps(dict(zip(table.columns, row, strict=True))) for row in zip(*columns, strict=True)]


def _plain(value: Any) -> Any:
    """A numpy scalar as the Python value it holds."""
    return value.item() if isinstance(value, np.generic) else value


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _count(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"
