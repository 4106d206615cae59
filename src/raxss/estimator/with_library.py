"""`CaseModel`: a fitted model that predicts with the labelled cases of a library.

    RAxSSClassifier, CaseLibrary -> with_library -> CaseModel: fitted tau, lambda, least similarity
    series -> one pass of the network: weights, posteriors, features -> nearest cases -> SeriesCases

Nothing of the network is retrained. The library is looked at anew in each call: after `add` or `withdraw` keys are
read again, and what was fitted on the older state is fitted again, or not used, which is said.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from raxss._core.bounded import read_json
from raxss._core.outputs import make_folder
from raxss._core.store import DAMAGE, FORMAT, unsealed, write_sealed
from raxss.data.series import Series
from raxss.data.training_overlap import NO, PART, TRAINING, VALIDATION, TrainingRecord
from raxss.errors import (
    DataError,
    LabelError,
    LibraryError,
    LibraryWarning,
    ModelError,
    display_name,
    join_names,
    one_of,
)
from raxss.estimator.series_cases import SeriesCases
from raxss.library.case_index import CaseIndex, OwnCases, norms_of
from raxss.library.case_library import CaseLibrary
from raxss.library.cases import Standardisation
from raxss.library.folder import plain_class
from raxss.library.pseudonyms import UNITS, unit_and_group
from raxss.library.vote_fit import (
    BY_DEFAULT,
    DEFAULT_MIXING,
    ON_SERIES,
    FittedVotes,
    LabelledScore,
    best_similarity,
    fit_votes,
)
from raxss.library.vote_settings import EVIDENCE, MIXED, MODES, SITE, VoteSettings
from raxss.library.votes import CaseScore, Flags, largest_share
from raxss.method.inference import Prediction
from raxss.uncertainty.summary import UncertaintySummary

Fitted = Any  # a fitted RAxSSClassifier, whose module imports this one

FILE = "votes.json"
FILE_FORMAT = "raxss-votes-1"
MOST_OF_ONE_GROUP = 0.2  # share of the listed cases
MOSTLY = 0.5  # share of a series' weights above which it is far from all cases


class CaseModel:
    """A fitted model with a case library.

    ``P_i = sum over k of alpha_k [(1 - lambda) p_k + lambda q_k]``, with window weights alpha ``(n_windows,)``,
    posteriors of the model p and votes of cases q ``(n_windows, C)``; see `raxss.library.votes`. Cases of the
    series' own group, and recordings of the same samples, never vote.

    Parameters
    ----------
    model, library
        A fitted `RAxSSClassifier`, and the `CaseLibrary` that was built with it.
    mode
        ``"evidence"``: cases are shown, probabilities are those of the model, bit for bit. ``"votes"``: cases
        alone. ``"mixed"``: both, by lambda.
    settings
        `VoteSettings`; None: the defaults.
    fit_on
        Labelled series that the model was not fitted on, a validation set for instance: lambda and tau are fitted
        on them, each with its own group left out. None: tau is fitted on the library's own recordings,
        leave-one-group-out, and lambda is .1, with a warning. Where the model was trained on recordings of the
        library they are not fitted on (`fit_votes`): then it takes ``fit_on``, or tau is 1 and every window votes,
        with a warning. These recordings are known by their samples (`TrainingRecord`); crops of them are not.
    standardisations
        See `CaseIndex.of`; for comparisons of libraries.

    Attributes
    ----------
    fitted
        `FittedVotes`: tau, lambda and least similarity, how they were found, and for which state of the library.

    Examples
    --------
    >>> import tempfile
    >>> from raxss import RAxSSClassifier
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic(8)
    >>> model = RAxSSClassifier(backbone="ridge", window_length=64, stride=32, random_state=0).fit(series)
    >>> library = CaseLibrary.build(model, series, folder=Path(tempfile.mkdtemp()) / "library", site="bern")
    >>> with_cases = CaseModel(model, library, mode="evidence")
    >>> bool((with_cases.predict_proba(series) == model.predict_proba(series)).all())
    True
    >>> next(with_cases.score_cases(series)).groups_table().shape  # the seven others
    (7, 8)
    """

    _fit_on: list[Series]

    def __init__(
        self,
        model: Fitted,
        library: CaseLibrary,
        *,
        mode: str = EVIDENCE,
        settings: VoteSettings | None = None,
        fit_on: Any = None,
        standardisations: Mapping[str, Standardisation] | None = None,
    ) -> None:
        self._start(model, library, mode, settings or VoteSettings(), standardisations)
        if fit_on is not None:
            self._fit_on = self._checked(fit_on)
        self._refresh()

    def _start(
        self,
        model: Fitted,
        library: CaseLibrary,
        mode: str,
        settings: VoteSettings,
        standardisations: Mapping[str, Standardisation] | None = None,
    ) -> None:
        one_of("mode", mode, MODES)
        self.model, self.library, self.mode, self.settings = model, library, mode, settings
        self._fit_on = []
        self._held = standardisations
        self._index: CaseIndex | None = None
        self._fitted: FittedVotes | None = None
        library.check_encoder(model)

    @property
    def fitted(self) -> FittedVotes:
        """What votes count with; fitted again if the library has changed."""
        return self._refresh()[1]

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels, in the order of the columns of `predict_proba`."""
        classes: NDArray[Any] = self.model.classes_
        return classes

    def __repr__(self) -> str:
        return f"CaseModel({type(self.model).__name__}, {self.library!r}, mode={self.mode!r})"

    # Prediction -------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Series probabilities ``(n_series, C)``; warns once of each thing that there is to say of cases."""
        found = []
        for item in self._warned(X):
            found.append(item.probability)
        return np.stack(found)

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each series: the most probable, or by the model's threshold where no case votes."""
        return self.classes_[[item.predicted for item in self._warned(X)]]

    def score_cases(self, X: Any, *, allow_own_group: bool = False) -> Iterator[SeriesCases]:
        """Each series with its cases, one after the other.

        Parameters
        ----------
        X
            Several series, in any of the forms that `RAxSSClassifier.predict_proba` takes.
        allow_own_group
            Let cases of the series' own group vote, other than copies of itself. Only to measure how much a score
            would gain from knowing the patient; such scores say nothing of new patients.
        """
        series = self.model.known_series(X, warn=True)
        index, fitted = self._refresh()
        return self._scored(series, index, fitted, allow_own_group)

    def _scored(
        self, series: list[Series], index: CaseIndex, fitted: FittedVotes, allow_own_group: bool
    ) -> Iterator[SeriesCases]:
        summary: UncertaintySummary = self.model.uncertainty_summary()
        predictor = self.model.predictor()
        for prediction in predictor.predictions(series, with_lists=False, keep_features=True):
            own = OwnCases() if allow_own_group else OwnCases.of(prediction.series, self.library, index)
            score = self._case_score(prediction, index, fitted, own)
            yield self._series_cases(prediction, index, score, own, summary)

    def _warned(self, X: Any) -> Iterator[SeriesCases]:
        """Each series; afterwards one warning for each kind of note, with the first series that has it."""
        n_noted: Counter[str] = Counter()
        first: dict[str, str] = {}
        for item in self.score_cases(X):
            for kind, sentence in item.case_notes.items():
                n_noted[kind] += 1
                first.setdefault(kind, f"series {display_name(item.name)}: {sentence}")
            yield item
        for kind, sentence in first.items():
            further = f" ({n_noted[kind] - 1} more series likewise.)" if n_noted[kind] > 1 else ""
            warnings.warn(f"{sentence}{further}", LibraryWarning, stacklevel=3)

    def _case_score(
        self, prediction: Prediction, index: CaseIndex, fitted: FittedVotes, own: OwnCases
    ) -> CaseScore:
        """The score of a series with the weights and posteriors of the model's own prediction."""
        aggregation, series = prediction.aggregation, prediction.series
        assert prediction.features is not None, "they were asked for"
        used = ~np.isnan(aggregation.influence)
        features = index.standardisation_of(series, self.settings).apply(prediction.features[used])
        posteriors = aggregation.posteriors if aggregation.smoothed is None else aggregation.smoothed
        return CaseScore(
            weights=aggregation.weights[used],
            posteriors=posteriors[used],
            nearest=index.nearest(features, self.settings, own=own, digest=series.digest),
            cases=index.labelled,
            visible=index.visible(own, series.digest),
            mixing=fitted.mixing,
            tau=fitted.tau,
            prior=None if self.settings.prior is None else np.array(self.settings.prior),
            most_a_group=self.settings.most_a_group,
            least_similarity=fitted.least_similarity,
            most_distance=fitted.most_distance,
            norms=norms_of(features),
            key_norms=index.key_norms,
        )

    def _series_cases(
        self,
        prediction: Prediction,
        index: CaseIndex,
        score: CaseScore,
        own: OwnCases,
        summary: UncertaintySummary,
    ) -> SeriesCases:
        series, windows = prediction.series, prediction.windows
        used = np.flatnonzero(~np.isnan(prediction.aggregation.influence))
        votes = bool((score.mixing_of_windows > 0).any())
        probability = score.probability if votes else prediction.probability
        decision = None if votes else summary.decision
        notes = self._notes(series, index, score, own)
        if votes and (summary.series_calibration is not None or summary.decision is not None):
            notes["calibration"] = (
                "the calibration of series or the decision threshold of the model was fitted on scores without "
                "cases, and is not applied. Use mode='evidence' for scores with it."
            )
        return SeriesCases(
            series=series,
            classes=tuple(self.classes_.tolist()),
            index=index,
            score=score,
            probability=probability,
            predicted=int(probability.argmax() if decision is None else decision.decide(probability)),
            windows=used,
            start_s=windows.start_seconds[used],
            end_s=windows.end_seconds[used],
            group_unknown=own.unknown,
            case_notes=notes,
            warnings=(*summary.notes(prediction), *notes.values(), *_of_one_group(score)),
        )

    def _notes(self, series: Series, index: CaseIndex, score: CaseScore, own: OwnCases) -> dict[str, str]:
        """What there is to say of the cases of a series, by kind."""
        notes: dict[str, str] = {}
        labels = score.labels_that_vote
        far = float(score.weights[~score.is_near].sum())
        if len(labels) == 0:
            notes["no case"] = (
                f"no case may vote: all {len(index)} cases of the library are of the series' own group or copies "
                "of it. The score is the model's alone. Add recordings of other groups."
            )
        elif len(labels) == 1:
            notes["one class"] = (
                f"all cases that the series may see are {index.classes[labels[0]]!r}, and would say so whatever "
                "came. The score is the model's alone. Add recordings of another class and group."
            )
        elif far > MOSTLY:
            notes["far"] = (
                f"far from all cases: windows with {far:.0%} of the weight are not like any case "
                f"({_how_far(score)}), and do not vote. Check preparation and montage, or add recordings like this "
                "one."
            )
        if own.unknown:
            unit, units = unit_and_group(series)[0], sorted(set(index.group_units), key=UNITS.index)
            reason = (
                "the key file of the library is missing"
                if not self.library.has_key_file
                else "it has no name of its own"
                if units == [unit]
                else f"known of it is its {unit}, but groups of the library are each a {' or a '.join(units)}"
            )
            notes["group unknown"] = (
                f"the series' own group is unknown ({reason}), so its own cases may be among those listed. Open "
                "the library with key_file=..., and give the patient of the series (origin or group) as the "
                "library has it."
            )
        settings = self.settings
        site = settings.local_site or str(series.origin.get("centre", ""))
        if settings.standardise_by == SITE and site not in index.sites:
            notes["site"] = (
                f"the library has no site {site!r}; features are standardised by the whole library. Give "
                "VoteSettings(local_site=...), or add recordings of the site."
            )
        return notes

    # Fitting ----------------------------------------------------------------------------------------------

    def _refresh(self) -> tuple[CaseIndex, FittedVotes]:
        """Index and fit for the state that the library is in now, in its folder: others may have changed it."""
        self.library.refresh()  # another object or process may have added or withdrawn
        state = self.library.state
        if self._index is None or self._index.state != state:
            self._check_content()
            self._index = CaseIndex.of(
                self.library, standardise_by=self.settings.standardise_by, standardisations=self._held
            )
            self._index.check(self.settings)
        if self._fitted is None or self._fitted.state != state:
            self._fitted = self._fit(self._index, self._fitted)
        return self._index, self._fitted

    def _check_content(self) -> None:
        """Raise where the library cannot vote; for evidence one class is enough."""
        if self.mode != EVIDENCE or len(self.library) == 0:
            self.library.check_votes()
            return
        try:
            self.library.check_votes()
        except LibraryError as error:
            warnings.warn(f"{error} As evidence they are shown.", LibraryWarning, stacklevel=5)

    def _fit(self, index: CaseIndex, before: FittedVotes | None) -> FittedVotes:
        seen = self._seen(index)
        needed = self._fit_on and (self.mode != EVIDENCE or seen.any())
        scores = list(self._labelled(index)) if needed else []
        found = fit_votes(index, self.settings, mode=self.mode, scores=scores, seen=seen)
        if before is not None:
            lost = before.mixing_from == ON_SERIES and found.mixing_from == BY_DEFAULT
            if found.mixing_from == BY_DEFAULT:  # what was fitted to be small must not grow by a default
                found = replace(found, mixing=min(before.mixing, DEFAULT_MIXING))
            warnings.warn(
                f"the library {self.library.folder.name!r} has changed since votes were fitted: tau is "
                f"{found.tau:g} now (was {before.tau:g}), lambda {found.mixing:g} (was {before.mixing:g})"
                + (
                    "; lambda was fitted on series that are not at hand, and is not used. Give fit_on=... to fit "
                    "it again."
                    if lost
                    else ", fitted again."
                ),
                LibraryWarning,
                stacklevel=5,
            )
        elif self.mode == MIXED and found.mixing_from == BY_DEFAULT:
            warnings.warn(
                f"lambda is {found.mixing:g} by default: the model's posteriors of the library's recordings are "
                "not those of new recordings, so they say nothing of how much cases should count. Give fit_on=..., "
                "labelled series that the model was not fitted on.",
                LibraryWarning,
                stacklevel=5,
            )
        if found.mixing > 0 and (before is None or _by_default(before) != _by_default(found)):
            self._warn_of_defaults(found, n_seen=int(seen.sum()), n=len(index))
        return found

    def _seen(self, index: CaseIndex) -> Flags:
        """``(n_cases,)`` recordings that the model was trained on, by their samples.

        Those of its validation set are not: the network did not learn from them.
        """
        record = TrainingRecord.of(self.model.training_data_)
        if not record.known and self.mode != EVIDENCE:
            warnings.warn(
                "whether the model was trained on recordings of the library is not known, for it keeps no digests "
                "of its training data; if so, tau is too small. Give VoteSettings(tau=..., least_similarity=...), "
                "or fit the model again with this version.",
                LibraryWarning,
                stacklevel=6,
            )
        return np.array([digest in record.training | record.either for digest in index.digests], dtype=bool)

    def _warn_of_defaults(self, found: FittedVotes, *, n_seen: int, n: int) -> None:
        """Say what could not be fitted, why, and what to do."""
        lacking = _by_default(found)
        if not lacking:
            return
        reason = (
            f"the model was trained on {n_seen} of {n} recordings of the library, which it keeps farther apart "
            "than new ones, and there are not enough others"
            if n_seen
            else "without the own group of each, the library has no cases of two classes"
        )
        warnings.warn(
            f"{' and '.join(lacking.values())} by default, not fitted: {reason}. Give fit_on=..., labelled series "
            f"that the model was not fitted on, or VoteSettings({', '.join(f'{name}=...' for name in lacking)}).",
            LibraryWarning,
            stacklevel=6,
        )

    def _labelled(self, index: CaseIndex) -> Iterator[LabelledScore]:
        """The series to fit on, each with its own group left out."""
        plain = FittedVotes(
            library=index.library, state=index.state, tau=1.0, mixing=1.0, least_similarity=None,
            most_distance=None, tau_from="", mixing_from="", least_similarity_from="",
        )  # fmt: skip
        classes = self.classes_.tolist()
        predictor = self.model.predictor()
        unknown = []
        for prediction in predictor.predictions(self._fit_on, with_lists=False, keep_features=True):
            series = prediction.series
            own = OwnCases.of(series, self.library, index)
            if own.unknown:
                unknown.append(series.name)
            score = self._case_score(prediction, index, plain, own)
            yield LabelledScore(
                score=score, label=classes.index(plain_class(series.label)), group=unit_and_group(series)
            )
        if unknown:
            warnings.warn(
                f"the own group of {len(unknown)} series of fit_on is unknown ({join_names(unknown, 3)}), so "
                "lambda may be too large. Open the library with key_file=..., and give the patients of the series.",
                LibraryWarning,
                stacklevel=6,
            )

    def _checked(self, fit_on: Any) -> list[Series]:
        """Labelled series that the model was not fitted on."""
        series: list[Series] = self.model.known_series(fit_on)
        classes = self.classes_.tolist()
        wrong = [item for item in series if plain_class(item.label) not in classes]
        if wrong:
            raise LabelError(
                f"{len(wrong)} of {len(series)} series of fit_on have a label that the model does not know, the "
                f"first is {display_name(wrong[0].name)} with {wrong[0].label!r}; needed is one of "
                f"{join_names(map(repr, classes))}. Give labelled series of these classes."
            )
        states = self.model.seen_in_training(series)
        seen = [item.name for item, state in zip(series, states, strict=True) if state in (TRAINING, PART)]
        if seen:
            raise DataError(
                f"{len(seen)} of {len(series)} series of fit_on are of the training data of the model "
                f"({join_names(seen, 3)}); its scores of these are too good, and lambda would be too small. Give "
                "series that the model was not fitted on."
            )
        unsure = [name for name in states if name not in (NO, VALIDATION)]
        if unsure:
            warnings.warn(
                f"whether the model was fitted on {len(unsure)} series of fit_on is not known; if so, lambda is "
                "too small.",
                LibraryWarning,
                stacklevel=4,
            )
        return series

    # Files ------------------------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> Path:
        """Write settings, fit and the id of the library to ``votes.json`` in a folder; no cases and no model."""
        _, fitted = self._refresh()
        path = make_folder(folder) / FILE
        write_sealed(
            path,
            {
                FORMAT: FILE_FORMAT,
                "mode": self.mode,
                "settings": self.settings.as_json,
                "fitted": fitted.as_json,
            },
        )
        return path

    @classmethod
    def open(cls, folder: Path | str, model: Fitted, library: CaseLibrary, *, fit_on: Any = None) -> Self:
        """Read what `save` wrote.

        Parameters
        ----------
        model, library
            Those that it was saved with; another library is refused. One that has changed since is not: see the
            module.
        fit_on
            For fitting again, should the library have changed.
        """
        path = Path(folder) / FILE
        try:
            content = unsealed(read_json(path), FILE_FORMAT)
            settings = VoteSettings.from_json(content["settings"])
            fitted = FittedVotes.from_json(content["fitted"])
            mode = one_of("mode", content["mode"], MODES)
        except DAMAGE as error:
            raise ModelError(
                f"the votes {display_name(path)} cannot be read ({error}). Save them again with CaseModel.save."
            ) from error
        if fitted.library != library.id:
            raise LibraryError(
                f"the votes {display_name(path)} were fitted with the library {fitted.library}, but the library "
                f"{library.folder.name!r} is {library.id}. Give the library that they were fitted with, or use "
                "model.with_library(library) to fit them with this one."
            )
        found = cls.__new__(cls)
        found._start(model, library, mode, settings)
        found._fitted = fitted
        if fit_on is not None:
            found._fit_on = found._checked(fit_on)
        return found


def _by_default(fitted: FittedVotes) -> dict[str, str]:
    """What was not fitted for want of recordings, by setting, in words."""
    lacking = {}
    if fitted.tau_from == BY_DEFAULT:
        lacking["tau"] = f"tau is {fitted.tau:g}"
    if fitted.least_similarity_from == BY_DEFAULT:
        lacking["least_similarity"] = "every window votes, however far from all cases,"
    return lacking


def _how_far(score: CaseScore) -> str:
    """The best figures of a series beside what is needed."""
    figures = []
    if score.least_similarity is not None:
        best = best_similarity(score.nearest.similarity).max(initial=-1.0)
        figures.append(f"similarity at most {best:.2f}, needed is {score.least_similarity:.2f}")
    if score.most_distance is not None:
        least = score.distances.min(initial=np.inf)
        figures.append(f"distance at least {least:.3g}, needed is {score.most_distance:.3g} at most")
    return "; ".join(figures)


def _of_one_group(score: CaseScore) -> list[str]:
    """A sentence where one group has more than its part of the cases listed; said of a series, not warned of."""
    cases = score.cases
    group, share = largest_share(score.lists.cases, cases.groups, len(cases.group_names))
    if share <= MOST_OF_ONE_GROUP:
        return []
    return [
        f"one group holds more than a fifth of the listed cases: {cases.group_names[group]}, {share:.0%}. Look at "
        "groups_table() for the score without it, add recordings of other groups, or list more cases "
        "(VoteSettings(n_cases=...))."
    ]
