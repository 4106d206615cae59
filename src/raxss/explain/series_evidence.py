"""Evidence of one series: text, JSON, Parquet, figures, and loading again.

    SeriesEvidence: one prediction, taken apart
        windows    one row per window: times, posteriors, support, weight, contributions
        neighbors  one row per window and rank: times, similarity, overlap, the weight without this neighbour
    <-> evidence.json, windows.parquet, neighbors.parquet

The contributions add up to the score, each weight follows from a support, each support is the mean of a list
of neighbours: nothing here is fitted or approximated.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from raxss._core.atomic import json_ready, make_folder, read_parquet, whole_file, whole_folder, write_text
from raxss._core.renames import current_columns
from raxss.data.series import Series
from raxss.data.training_overlap import STATES, UNKNOWN
from raxss.errors import ConfigError, DataError, one_of
from raxss.explain.evidence import FORMAT, NOTE, Evidence, percent, safe_name
from raxss.explain.export.tables import write_parquet
from raxss.explain.neighbour_lists import WINDOWS_A_CHUNK, Columns
from raxss.explain.reading import columns_checked, read_head, summary_of
from raxss.uncertainty.decision import describe_factors

FORMATS = ("json", "parquet", "figures")
WINDOWS_IN_JSON = 5000  # more than these are left to Parquet: a day of signal has 17 million
NOTEBOOK_BYTES = 1_000_000  # of samples in the page that a notebook shows and keeps

#: Fields that evidence of earlier versions does not have.
LATER = (
    "calibrated_probability", "interval", "prediction_set", "notes", "seen_in_training", "from_context",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class SeriesEvidence(Evidence):
    """One prediction, taken apart; made by `trace`: `Evidence` that can be shown, written to disk and read back."""

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
            f"  predicted {self.predicted!r} ({probabilities}){self._rule()}",
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

    def _rule(self) -> str:
        """The tuned rule that the predicted class follows; empty where it is the most probable class."""
        factors = self.settings.get("decision_factors")
        return "" if factors is None else f"; tuned threshold: {describe_factors(factors, self.classes)}"

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
        if self.from_context is not None:
            lines.append(
                f"  from context: {self.from_context[place]:+.3f} of the score of {self.predicted!r}"
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
