"""Report of a search for settings: which candidates were tried, and why this one.

    trials, choice -> SearchReport -> cv_results_, a table in the terminal, the model card, search.html, search.json

auto.py makes it; persistence.py writes it beside the model.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np

from raxss._core.atomic import json_ready
from raxss.estimator.search import Trial, in_words, is_better

if TYPE_CHECKING:
    from rich.table import Table

    from raxss.estimator.search import Halving

PAGE, TABLE = "search.html", "search.json"
FORMAT = "raxss-search-1"
NONE = "–"
CHOSEN = "chosen"  # begins the outcome of the choice
NOT_TRIED = "not tried: nothing could be compared"
HEADER = ("", "candidate", "folds", "log loss", "difference", "paired folds", "seconds", "outcome")
NUMBERS = (2, 3, 4, 5, 6)  # columns of numbers
NOT_COMPARABLE = (
    "Log losses of rows with different folds are of different series, and not comparable; differences are those on "
    "the paired folds."
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One candidate."""

    rank: int
    name: str
    reason: str  # why it was tried
    params: dict[str, Any]
    losses: list[float | None]  # mean log loss on each fold; None where it was not fitted
    loss: float | None  # over the series of all these folds
    difference: float | None  # from the log loss of the reference, on the folds that both have
    error: float | None  # standard error of the difference, over groups
    n_paired: int  # folds that both have
    fit_seconds: float | None  # mean over the folds
    score_seconds: float | None
    outcome: str

    @property
    def n_folds(self) -> int:
        """On how many folds it was scored."""
        return sum(loss is not None for loss in self.losses)

    @property
    def is_chosen(self) -> bool:
        """Whether it is the choice."""
        return self.outcome.startswith(CHOSEN)

    @property
    def cells(self) -> tuple[str, ...]:
        """Text of its row, as in `HEADER`."""
        gap = NONE if self.difference is None else f"{self.difference:+.4f}"
        gap += "" if self.error is None else f" ± {self.error:.4f}"
        return (
            "*" if self.is_chosen else "",
            self.name,
            f"{self.n_folds}",
            NONE if self.loss is None else f"{self.loss:.4f}",
            gap.replace("-", "−"),
            NONE if self.difference is None else f"{self.n_paired}",
            NONE if self.fit_seconds is None else f"{self.fit_seconds:.1f}",
            self.outcome,
        )


@dataclass(frozen=True, kw_only=True)
class SearchReport:
    """What was tried, and why this one; no series, no names of series."""

    rows: list[Row]  # the choice first
    reference: str  # the candidate that differences are from
    n_series: int
    n_groups: int | None  # None: no groups were given
    n_folds: int
    is_weighted: bool  # by class
    budget: str  # in words
    search_seconds: float
    refit_seconds: float
    seed: int
    notes: list[str]  # what kept the search from comparing all

    @property
    def chosen(self) -> Row:
        """The row of the choice."""
        return next(row for row in self.rows if row.is_chosen)

    @property
    def has_different_folds(self) -> bool:
        """Whether candidates were scored on different folds, so that their log losses are of different series."""
        return len({row.n_folds for row in self.rows if row.n_folds}) > 1

    @property
    def not_comparable(self) -> str:
        """What is to be said of log losses, if candidates were scored on different folds."""
        return NOT_COMPARABLE if self.has_different_folds else ""

    @property
    def summary(self) -> str:
        """One paragraph: what was compared, and why the choice was made."""
        found, name = self.chosen, self.chosen.name
        if self.n_folds == 0 or found.loss is None:
            return f"{name!r} was fitted without a comparison ({self.budget})."
        n_tried = sum(row.n_folds > 0 for row in self.rows)
        if n_tried == 1:
            return f"{self._compared} {name!r} was chosen: no other candidate could be compared with it."
        if name == self.reference:
            return (
                f"{self._compared} {name!r} was chosen: none compared with it to the end had a log loss smaller by "
                "half a standard error or more."
            )
        gap = NONE if found.difference is None else f"{-found.difference:.4f}"
        error = "" if found.error is None else f" (standard error {found.error:.4f})"
        side = "smaller" if found.difference is None or found.difference < 0 else "not smaller"
        gap = gap.removeprefix("-")
        n_paired = "1 fold" if found.n_paired == 1 else f"{found.n_paired} folds"
        return (
            f"{self._compared} {name!r} was chosen: its log loss on the series of {n_paired} was {side}, by "
            f"{gap}{error}, than that of {self.reference!r}. The figure of a choice among many is "
            "slightly optimistic."
        )

    @property
    def _compared(self) -> str:
        """One sentence: how many candidates were compared, on what, and in which time."""
        groups = "" if self.n_groups is None else f" of {self.n_groups} groups"
        n_tried = sum(row.n_folds > 0 for row in self.rows)
        tried = "1 candidate was scored" if n_tried == 1 else f"{n_tried} candidates were compared"
        n_used = max(row.n_folds for row in self.rows)
        folds = f"{self.n_folds}" if n_used == self.n_folds else f"{n_used} of {self.n_folds}"
        return (
            f"{tried} on {self.n_series} training series{groups}, by successive halving over {folds} inner folds"
            f"{', whole groups at a time' if groups else ''} ({self.budget}; {in_words(self.search_seconds)} used)."
        )

    @classmethod
    def of(
        cls,
        search: Halving,
        *,
        chosen: Trial,
        groups: int | None,
        is_weighted: bool,
        budget: str,
        search_seconds: float,
        refit_seconds: float,
        seed: int,
        notes: list[str],
    ) -> SearchReport:
        """From the trials of a search that is over."""
        front = [chosen, *(trial for trial in search.preferred() if trial is not chosen)]
        order = [*front, *(trial for trial in search.trials if trial not in front)]
        return cls(
            rows=[_row(search, trial, place + 1, chosen) for place, trial in enumerate(order)],
            reference=search.reference.name,
            n_series=len(search.scores.targets),
            n_groups=groups,
            n_folds=len(search.scores.folds),
            is_weighted=is_weighted,
            budget=budget,
            search_seconds=search_seconds,
            refit_seconds=refit_seconds,
            seed=seed,
            notes=notes,
        )

    def to_json(self) -> dict[str, Any]:
        """Everything, in plain types."""
        plain: dict[str, Any] = json_ready({"format": FORMAT, "summary": self.summary, **asdict(self)})
        return plain

    def files(self) -> dict[str, bytes]:
        """The files beside a model: the page, and the table as JSON."""
        options: dict[str, Any] = {
            "ensure_ascii": False,
            "allow_nan": False,
            "default": str,
        }  # networks of your own
        text = json.dumps(self.to_json(), indent=2, **options) + "\n"
        return {PAGE: self.html().encode(), TABLE: text.encode()}

    def html(self) -> str:
        """The page: one file without scripts, which opens offline."""
        environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
        template = (resources.files("raxss.estimator") / "search.html.j2").read_text("utf-8")
        return (
            environment.from_string(template).render(report=self, header=HEADER, numbers=NUMBERS, dash=NONE)
            + "\n"
        )

    def table(self) -> Table:
        """The table for the terminal."""
        from rich.table import Table
        from rich.text import Text

        title = f"{len(self.rows)} candidates, the choice first"
        table = Table(title=title, caption=self.not_comparable or None)
        for place, name in enumerate(HEADER):
            table.add_column(Text(name), justify="right" if place in NUMBERS else "left")
        for row in self.rows:
            table.add_row(*map(Text, row.cells))  # Text: an outcome may quote brackets
        return table

    def cv_results(self, names: list[str]) -> dict[str, Any]:
        """As scikit-learn's ``cv_results_``, in the order of these candidates; scores are negative log losses."""
        by_name = {row.name: row for row in self.rows}
        rows = [by_name[name] for name in names]
        splits = {
            f"split{fold}_test_score": _numbers([_negative(row.losses[fold]) for row in rows])
            for fold in range(self.n_folds)
        }
        scores = np.array(list(splits.values())).reshape(self.n_folds, len(rows))
        found: dict[str, Any] = {
            "candidate": np.array(names, dtype=object),
            "params": [dict(row.params) for row in rows],
            "reason": np.array([row.reason for row in rows], dtype=object),
            "mean_fit_time": _numbers([row.fit_seconds for row in rows]),
            "mean_score_time": _numbers([row.score_seconds for row in rows]),
            **splits,
            "mean_test_score": _numbers([_negative(row.loss) for row in rows]),
            "std_test_score": np.array(
                [np.std(own[~np.isnan(own)]) if (~np.isnan(own)).any() else np.nan for own in scores.T]
            ),
            "rank_test_score": np.array([row.rank for row in rows], dtype=np.int32),
            "difference": _numbers([row.difference for row in rows]),
            "std_difference": _numbers([row.error for row in rows]),
            "n_paired": np.array([row.n_paired if row.difference is not None else 0 for row in rows]),
            "rung": np.array([row.n_folds for row in rows]),
            "outcome": np.array([row.outcome for row in rows], dtype=object),
        }
        return found


def _row(search: Halving, trial: Trial, rank: int, chosen: Trial) -> Row:
    scores, units = search.scores, trial.units
    gap, error, n_both = scores.paired(trial, search.reference)
    known = n_both > 0 and trial is not search.reference
    compared = f", {_compared(gap, error)} than {search.reference.name}" if known else ""
    outcome = trial.outcome or (f"compared to the end{compared}" if units else NOT_TRIED)
    if trial is chosen:
        outcome = f"{CHOSEN}; {outcome}" if trial.failure else CHOSEN
    return Row(
        rank=rank,
        name=trial.name,
        reason=trial.candidate.reason,
        params=trial.params,
        losses=[scores.loss(trial, [fold]) if fold in units else None for fold in range(len(scores.folds))],
        loss=scores.loss(trial) if units else None,
        difference=gap if known else None,
        error=error if known and not np.isnan(error) else None,
        n_paired=n_both,
        fit_seconds=float(np.mean([unit.fit_seconds for unit in units.values()])) if units else None,
        score_seconds=float(np.mean([unit.score_seconds for unit in units.values()])) if units else None,
        outcome=outcome,
    )


def _compared(gap: float, error: float) -> str:
    """A difference of log losses in words."""
    if is_better(gap, error):
        return "better"
    return "less than half a standard error better" if gap < 0 else "not better"


def _negative(loss: float | None) -> float | None:
    return None if loss is None else -loss


def _numbers(values: list[float | None]) -> Any:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
