"""Series cases: the score of one series with its cases, and the tables that take it apart.

    Prediction, CaseScore, CaseIndex -> SeriesCases: probability, predicted, warnings
                                        cases_table(), groups_table() -> pandas

with_library.py makes one for each series. Groups and cases stand in it by their pseudonyms only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raxss.data.series import Series
from raxss.library.case_index import CaseIndex
from raxss.library.votes import CaseScore

CASE_COLUMNS = (
    "window", "start_s", "end_s", "rank", "case", "group", "label", "site", "similarity", "influence",
    "contribution", "case_start_s", "case_end_s",
)  # fmt: skip
GROUP_COLUMNS = (
    "group", "unit", "site", "labels", "influence", "share", "probability_without", "change",
)  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class SeriesCases:
    """One series with the cases that its score rests on, or would rest on in mode ``"evidence"``.

    Attributes
    ----------
    probability, predicted
        ``(C,)`` as `CaseModel.predict_proba` gives it, and the index of the class that `CaseModel.predict` gives.
    score
        `raxss.library.votes.CaseScore` of the usable windows. Its contributions add up to ``probability``, unless
        nothing votes and the model calibrates series: then to the uncalibrated probability, as in evidence.
    windows, start_s, end_s
        Numbers and times of these windows in the series.
    group_unknown
        Whether cases of the same patient may be among those listed.
    case_notes
        By kind: ``"far"``, ``"no case"``, ``"one class"``, ``"group unknown"``, ``"calibration"``, ``"site"``.
    warnings
        Those sentences, what the model says of the series, and whether one group holds more than a fifth of the
        listed cases.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from raxss import RAxSSClassifier
    >>> from raxss.data.datasets import load_synthetic
    >>> from raxss.library import CaseLibrary
    >>> series = load_synthetic(8)
    >>> model = RAxSSClassifier(backbone="ridge", window_length=64, stride=32, random_state=0).fit(series)
    >>> library = CaseLibrary.build(model, series, folder=Path(tempfile.mkdtemp()) / "library", site="bern")
    >>> from raxss.library import VoteSettings
    >>> settings = VoteSettings(tau=0.1, least_similarity=-1)  # not fitted on training data
    >>> found = next(model.with_library(library, mode="votes", settings=settings).score_cases(series[:1]))
    >>> table = found.cases_table()
    >>> bool(np.isclose(table["contribution"].sum() + found.score.from_model.sum(), 1))
    True
    >>> found.groups_table().columns.tolist()
    ['group', 'unit', 'site', 'labels', 'influence', 'share', 'probability_without', 'change']
    """

    series: Series
    classes: tuple[Any, ...]
    index: CaseIndex
    score: CaseScore
    probability: NDArray[np.float64]
    predicted: int
    windows: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    group_unknown: bool
    case_notes: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the series."""
        return self.series.name

    @property
    def far_share(self) -> float:
        """Share of the weights on windows that no case is near."""
        return float(self.score.weights[~self.score.is_near].sum())

    def cases_table(self) -> pd.DataFrame:
        """One row a window and listed case, in the order of windows and ranks.

        ``influence`` is a_kj and ``contribution`` alpha_k lambda_k a_kj, what the case adds to the probability of
        its own label.
        """
        lists, index = self.score.lists, self.index
        rows, ranks = np.nonzero(lists.cases >= 0)
        cases, keys = lists.cases[rows, ranks], lists.keys[rows, ranks]
        labelled = index.labelled
        return pd.DataFrame(
            {
                "window": self.windows[rows],
                "start_s": self.start_s[rows],
                "end_s": self.end_s[rows],
                "rank": ranks + 1,
                "case": [index.case_names[case] for case in cases],
                "group": [labelled.group_names[labelled.groups[case]] for case in cases],
                "label": [self.classes[labelled.labels[case]] for case in cases],
                "site": [index.case_sites[case] for case in cases],
                "similarity": lists.similarity[rows, ranks],
                "influence": self.score.influence[rows, ranks],
                "contribution": self.score.from_cases[rows, ranks],
                "case_start_s": index.start_s[keys],
                "case_end_s": index.end_s[keys],
            },
            columns=list(CASE_COLUMNS),
        )

    def groups_table(self) -> pd.DataFrame:
        """One row a group with a listed case, the most influential first.

        ``influence`` is the sum of alpha_k a_kj, ``share`` is C_g, ``probability_without`` that of the predicted
        class with a library that never had the group, and ``change`` how far that is from the score.
        """
        score, labelled = self.score, self.index.labelled
        cases = score.lists.cases
        there = cases >= 0
        influence = np.zeros(len(labelled.group_names))
        np.add.at(influence, labelled.groups[cases[there]], (score.weights[:, None] * score.influence)[there])
        listed = np.unique(labelled.groups[cases[there]])
        shares, whole = score.shares_of_groups(), float(score.probability[self.predicted])
        rows = []
        for group in listed[np.argsort(-influence[listed], kind="stable")].tolist():
            own = np.flatnonzero(labelled.groups == group)
            without = float(score.without(labelled.group_names[group]).probability[self.predicted])
            rows.append(
                (
                    labelled.group_names[group],
                    self.index.group_units[group],
                    self.index.case_sites[own[0]],
                    ", ".join(str(self.classes[label]) for label in np.unique(labelled.labels[own])),
                    influence[group],
                    shares[group],
                    without,
                    without - whole,
                )
            )
        return pd.DataFrame(rows, columns=list(GROUP_COLUMNS))
