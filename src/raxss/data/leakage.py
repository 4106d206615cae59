"""Leakage audit: what training could know of the test set under a split.

    SeriesCollection, Split -> Audit: findings (code, severity, message), clean

The split's own description is not trusted: names, groups, signals and statistics are compared. A ``leak`` makes
something of the test, or of the validation, series known in training; a ``note`` is worth knowing.
Next: cli/audit_split.py prints it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from raxss._core.sealing import open_model
from raxss.data.near_duplicates import find_near_duplicates
from raxss.data.prepare.preprocessing import CHUNK, Scaling
from raxss.data.series import SeriesCollection
from raxss.data.splits import BALANCED_BEFORE, GROUPS, PARTS, Split, group_of, weak_parts
from raxss.errors import DataError, ModelError, VariateMismatchError, join_names, one_of

MOST_NAMED = 10  # in one message; then a count
EQUAL_STATISTICS = 1e-6  # in deviations: what rounding to float32 leaves
NEAR_STATISTICS = 1e-3  # in deviations: surely made from these samples
UNLIKELY = 1e-6  # probability below which chance is ruled out

LEAKS = {  # all other codes are notes
    "series-in-two-parts": "a series is in two parts",
    "name-in-two-parts": "series of one name are in two parts",
    "shared-patient": "a patient is in two parts",
    "shared-pair": "a pair is in two parts",
    "shared-recording": "a recording is in two parts",
    "shared-electrode": "an electrode is in two parts",
    "patient-spelt-twice": "patients in two parts have ids that differ in spelling only",
    "left-out-centre-shared": "the centre that was to be left out is in training",
    "identical-samples": "series in two parts have the same values",
    "copied-stretch": "series in two parts have a stretch of the same signal",
    "resampled-copy": "series in two parts are one signal, resampled or filtered",
    "one-patient-two-ids": "patients in two parts have the same signals",
    "balanced-before-split": "classes were made equal before the split, so the test set's shares are not natural",
    "statistics-saw-test": "the scaling was fitted on test series too",
    "training-saw-test": "test series are among those that a model or library has seen",
}


@dataclass(frozen=True)
class Finding:
    """One finding of an audit."""

    code: str
    message: str

    @property
    def severity(self) -> Literal["leak", "note"]:
        """Severity, by its code."""
        return "leak" if self.code in LEAKS else "note"

    def as_json(self) -> dict[str, str]:
        """As ``raxss audit-split --json`` prints it."""
        return {"code": self.code, "severity": self.severity, "message": self.message}


@dataclass(frozen=True)
class Audit:
    """Result of an audit."""

    split: str  # its own description, such as ``channel (leaky)``
    checked: tuple[tuple[str, str], ...]  # name of each check, and the amount of data
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        """No leak was found."""
        return not any(finding.severity == "leak" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """As ``raxss audit-split --json`` prints it."""
        return {
            "split": self.split,
            "clean": self.clean,
            "findings": [finding.as_json() for finding in self.findings],
            "checked": [{"what": what, "of": of} for what, of in self.checked],
        }


def audit_split(
    collection: SeriesCollection,
    split: Split,
    *,
    statistics: Scaling | None = None,
    training_names: Collection[str] | None = None,
    training_digests: Collection[str] | None = None,
) -> Audit:
    """Search a split for leakage.

    Parameters
    ----------
    statistics
        The scaling of a model; compared with what each part alone would give.
    training_names
        Names of the series that a model was fitted on, or that a library holds.
    training_digests
        `Series.digest` of what a model was fitted on, validation included; names may differ.

    Notes
    -----
    Copies are found by their signal: identical; scaled, shifted, negated, cropped or with noise 20 dB below at
    the same rate; whole series at another rate. Not found: copies through another reference, montage or filter
    (a high-pass, an added drift), crops at another rate, crops under 400 samples, and signals that say too little
    to be anybody's: hum, sines, ramps, regular pulses, one spike or step. Identical values are always found.
    """
    parts = _parts(collection, split)
    findings = [
        *_overlaps(collection, parts),
        *_shared_groups(collection, parts, split),
        *_copied_signals(collection, parts),
        *_balancing(collection, parts, split),
        *(
            Finding("part-one-class" if len(getattr(split, part)) else "part-empty", f"{message}.")
            for part, message in weak_parts(collection, split).items()
        ),
        *_seen_in_training(collection, parts, training_names, training_digests),
    ]
    if statistics is not None:
        findings += _statistics(collection, parts, statistics)
    if split.leaky:
        findings.append(
            Finding(
                "leaky-by-design",
                f"the split is {split.description!r}: series that belong together, such as those of one patient, "
                "may sit on both sides. Scores under it are not those of unseen patients.",
            )
        )
    return Audit(
        split.description,
        tuple(_checked(collection, parts, statistics, training_names, training_digests)),
        tuple(sorted(findings, key=lambda item: item.severity)),  # leaks first
    )


Parts = dict[str, list[int]]


def _parts(collection: SeriesCollection, split: Split) -> Parts:
    parts: Parts = {name: getattr(split, name).tolist() for name in PARTS}
    if not any(parts.values()):
        raise DataError("the split has no series in any part; there is nothing to audit.")
    for name, members in parts.items():
        outside = [index for index in members if not 0 <= index < len(collection)]
        if outside:
            raise DataError(
                f"the {name} set has the index {outside[0]}, but there are {len(collection)} series; the split "
                "belongs to other data."
            )
    return parts


def _named(things: Iterable[Any], most: int = MOST_NAMED) -> str:
    """The first ten names, then a count: ``'a', 'pt01/G'``."""
    names = ("/".join(map(str, thing)) if isinstance(thing, tuple) else str(thing) for thing in things)
    return join_names(map(repr, names), most)


# Names and groups -------------------------------------------------------------------------------------------


def _overlaps(collection: SeriesCollection, parts: Parts) -> Iterator[Finding]:
    names = collection.names
    for pair, other in combinations(parts, 2):
        both = sorted(set(parts[pair]) & set(parts[other]))
        if both:
            yield Finding(
                "series-in-two-parts",
                f"{len(both)} series are in {pair} and in {other}: {_named(names[index] for index in both)}.",
            )
        alike = {names[index] for index in parts[pair] if index not in both} & {
            names[index] for index in parts[other] if index not in both
        }
        alike -= {"series"}  # what a series without a name is called
        if alike:
            yield Finding(
                "name-in-two-parts",
                f"{len(alike)} names are those of series in {pair} and of others in {other}: "
                f"{_named(sorted(alike))}.",
            )
    twice = [names[index] for members in parts.values() for index, n in Counter(members).items() if n > 1]
    if twice:
        yield Finding(
            "same-part-duplicates", f"{len(twice)} series are listed twice in a part: {_named(twice)}."
        )


def _shared_groups(collection: SeriesCollection, parts: Parts, split: Split) -> Iterator[Finding]:
    known = set()
    for level in (*GROUPS, "centre"):
        groups = {name: _groups_in(collection, members, level) for name, members in parts.items()}
        known |= {level} if any(groups.values()) else set()
        yield from _shared(level, groups, split)
        if level == "patient":
            yield from _spelt_twice(groups)
    if not known & set(GROUPS):
        yield Finding(
            "groups-unknown",
            "no series has a known patient, pair, recording or electrode, so it cannot be ruled out that a patient "
            "is in two parts. Where it is known, set Series(origin=...) or the manifest's column group.",
        )
    elif "patient" not in known:
        yield Finding("patient-unknown", "no patient is known, so one person's series may sit on both sides.")
    members = [index for part in parts.values() for index in part]
    for level in GROUPS:
        silent = [index for index in members if group_of(collection[index], level) is None]
        if silent and len(silent) < len(members):
            yield Finding(
                "groups-partly-known",
                f"{len(silent)} of {len(members)} series have no known {level}: "
                f"{_named(collection[index].name for index in silent)}.",
            )


def _groups_in(collection: SeriesCollection, members: Sequence[int], level: str) -> set[Hashable]:
    return {group_of(collection[index], level) for index in members} - {None}


def _shared(level: str, groups: Mapping[str, set[Hashable]], split: Split) -> Iterator[Finding]:
    """One finding a level, with each pair of parts that shares something of it."""
    sentences, with_test = [], False
    for part, other in combinations(groups, 2):
        both = sorted(groups[part] & groups[other], key=str)
        if both:
            plural = "s" * (len(both) > 1)
            sentences.append(f"{len(both)} {level}{plural} in {part} and in {other}: {_named(both)}")
            with_test |= other == "test"
    if sentences:
        left_out = level == "centre" and split.by == "centre" and with_test
        yield Finding("left-out-centre-shared" if left_out else f"shared-{level}", "; ".join(sentences) + ".")


def _spelt_twice(groups: Mapping[str, set[Hashable]]) -> Iterator[Finding]:
    """Sheets and folders spell ids differently: pt1 and pt01, ummc_001 and ummc001."""
    for part, other in combinations(groups, 2):
        plain = {_plain_id(str(patient)): patient for patient in groups[part] - groups[other]}
        alike = [
            (plain[key], patient)
            for patient in groups[other] - groups[part]
            if (key := _plain_id(str(patient))) in plain
        ]
        if alike:
            yield Finding(
                "patient-spelt-twice",
                f"{len(alike)} patients in {part} and in {other} have ids that differ in spelling only: "
                f"{_named(sorted(alike, key=str))}.",
            )


def _plain_id(patient: str) -> str:
    """An id without case, ``sub-`` and leading zeros: ``sub-ummc_001`` and ``UMMC1`` are ``ummc1``."""
    plain = patient.strip().lower().removeprefix("sub-")
    plain = re.sub(r"(?<=[a-z])[_\- ]+(?=\d)", "", plain)
    return re.sub(r"(?<!\d)0+(?=\d)", "", plain)


# Signals ----------------------------------------------------------------------------------------------------

_COPY_CODES = {"identical": "identical-samples", "stretch": "copied-stretch", "resampled": "resampled-copy"}


def _copied_signals(collection: SeriesCollection, parts: Parts) -> Iterator[Finding]:
    placed = [
        (index, part) for part, (_, members) in enumerate(parts.items()) for index in dict.fromkeys(members)
    ]
    copies = find_near_duplicates([collection[index] for index, _ in placed], [part for _, part in placed])
    across: dict[str, list[str]] = {}
    within: list[str] = []
    patients: set[tuple[str, str]] = set()
    for copy in copies:
        (first, part), (second, other) = placed[copy.first], placed[copy.second]
        if first == second:  # a series in two parts, which `_overlaps` reports
            continue
        left, right = collection[first], collection[second]
        if part == other:
            within.append(f"{left.name} = {right.name}")
            continue
        pair = f"{left.name} ({PARTS[part]}) = {right.name} ({PARTS[other]})"
        alike = "" if copy.kind == "identical" else f", correlation {copy.similarity:.4f}"
        across.setdefault(_COPY_CODES[copy.kind], []).append(pair + alike)
        ids = group_of(left, "patient"), group_of(right, "patient")
        if None not in ids and ids[0] != ids[1]:
            patients.add((str(ids[0]), str(ids[1])))
    for code, these in across.items():
        yield Finding(code, f"{len(these)} times {LEAKS[code]}: {_named(these)}.")
    if patients:
        yield Finding(
            "one-patient-two-ids",
            f"signals say that these ids are one patient or were mixed up: {_named(sorted(patients))}.",
        )
    if within:
        yield Finding(
            "same-part-duplicates",
            f"{len(within)} times series of one part have the same values: {_named(within)}.",
        )


# Balancing --------------------------------------------------------------------------------------------------


def _balancing(collection: SeriesCollection, parts: Parts, split: Split) -> Iterator[Finding]:
    placed = sorted({index for members in parts.values() for index in members})
    left_out = sorted(set(range(len(collection))) - set(placed))
    unexplained = sorted(set(left_out) - set(split.dropped.tolist()))
    if unexplained:
        names = _named(collection[index].name for index in unexplained)
        message = f"{len(unexplained)} series are in no part, and balancing did not drop them: {names}."
        yield Finding("series-left-out", message)
    if split.balance in BALANCED_BEFORE:
        yield Finding(
            "balanced-before-split",
            f"the split says balance={split.balance!r}: {len(left_out)} series were dropped before it, from the "
            "test set too, whose class shares are therefore not those of the data. Use balance='train_val'.",
        )
        return
    if not left_out or any(item.label is None for item in collection):
        return
    evidence = _lost_by_test(collection, parts, split, left_out)
    if evidence:
        yield Finding(
            "balanced-before-split",
            f"{evidence}: classes were balanced before the split, or in the test set, whose shares are therefore "
            "not those of the data. Use balance='train_val'.",
        )


def _lost_by_test(
    collection: SeriesCollection, parts: Parts, split: Split, left_out: Sequence[int]
) -> str | None:
    """Evidence that series were taken from the test set; balancing after the split leaves its groups whole."""
    groups: list[Hashable] = [group_of(item, split.by) for item in collection]
    # of groups of one series, nothing is left after a loss
    if split.by == "channel" or len(set(groups)) == len(groups):
        looked_at = {"the test set has": parts["test"]}
        if split.balance == "none":  # training and validation should be as drawn, too
            looked_at["all parts together have"] = [index for part in parts.values() for index in part]
        for what, members in looked_at.items():
            counts = _equal_counts_by_design(collection, members)
            if counts:
                shares = ", ".join(f"{label} {count}" for label, count in counts.items())
                return f"{what} equal classes ({shares}), although those of the data are not"
        return None
    others = {groups[index] for part in ("train", "validation") for index in parts[part]}
    own = {groups[index] for index in parts["test"]} - others - {None}
    lost = [index for index in left_out if groups[index] in own]
    names = _named(collection[index].name for index in lost)
    return f"{len(lost)} series of the test set's own {split.by}s are in no part ({names})" if lost else None


def _equal_counts_by_design(collection: SeriesCollection, members: Sequence[int]) -> dict[str, int]:
    """Class counts that are equal and would hardly be so if the series had been drawn from the data."""
    from scipy.stats import hypergeom

    labels = collection.labels
    classes, whole = np.unique(labels, return_counts=True)
    counts = np.array([(labels[members] == label).sum() for label in classes])
    largest = int(whole.argmax())
    so_few = hypergeom.cdf(counts[largest], len(labels), whole[largest], len(members))
    if counts.max() - counts.min() > 1 or so_few > UNLIKELY:
        return {}
    return {str(label): int(count) for label, count in zip(classes, counts, strict=True)}


# Models ----------------------------------------------------------------------------------------------------


def _seen_in_training(
    collection: SeriesCollection,
    parts: Parts,
    training_names: Collection[str] | None,
    training_digests: Collection[str] | None,
) -> Iterator[Finding]:
    names, digests = set(training_names or ()), set(training_digests or ())
    test, validation = (
        {collection[index].name for index in parts[part]} & names for part in ("test", "validation")
    )
    tested = [collection[index] for index in parts["test"] if digests]  # a digest reads all samples
    fitted = [series.name for series in tested if series.digest in digests]
    for code, part, both, where in (
        ("training-saw-test", "test", sorted(test), "the training names"),
        ("validation-in-training-names", "validation", sorted(validation), "the training names"),
        ("training-saw-test", "test", fitted, "those the model was fitted on"),
    ):
        if both:
            yield Finding(code, f"{len(both)} series of the {part} set are among {where}: {_named(both)}.")


def _statistics(collection: SeriesCollection, parts: Parts, scaling: Scaling) -> Iterator[Finding]:
    """Compare the scaling with mean and deviation of every union of parts."""
    if scaling.mode != "train" or scaling.mean.size == 0:
        return
    n_variates = collection[0].n_variates
    if scaling.mean.size != n_variates:
        raise VariateMismatchError(
            f"the scaling is of {scaling.mean.size} variates, but the series have {n_variates}; it belongs to "
            "other data."
        )
    placed = {index for members in parts.values() for index in members}
    left_out = {"left out": sorted(set(range(len(collection))) - placed)}
    sums = {
        name: _sums(collection, members, scaling.mean)
        for name, members in (parts | left_out).items()
        if members
    }
    distances = {
        union: _distance(scaling, (sums[name] for name in union))
        for size in range(1, len(sums) + 1)
        for union in combinations(sums, size)
    }
    honest = {union: distance for union, distance in distances.items() if "test" not in union}
    near = min(honest, key=honest.__getitem__, default=())
    nearest = min(distances, key=distances.__getitem__)
    far = honest.get(near, np.inf)
    if far > EQUAL_STATISTICS and distances[nearest] <= NEAR_STATISTICS and distances[nearest] < 0.1 * far:
        yield Finding(
            "statistics-saw-test",
            f"mean and deviation of the scaling are those of {' + '.join(nearest)} (off by "
            f"{distances[nearest]:.1g} deviations), not of train (off by {distances[('train',)]:.1g}). Fit them on "
            "train alone.",
        )
    elif far > NEAR_STATISTICS:
        yield Finding(
            "statistics-unexplained",
            f"mean and deviation of the scaling are those of no part (the nearest is {' + '.join(nearest)}, off by "
            f"{distances[nearest]:.1g} deviations): whether test series were among those it was fitted on cannot "
            "be told.",
        )
    elif "validation" in near and honest[("train",)] > EQUAL_STATISTICS:
        yield Finding(
            "statistics-saw-validation",
            f"mean and deviation of the scaling are those of {' + '.join(near)}; early stopping then sees a little "
            "of what it learned from. Fit them on train alone.",
        )


def _sums(collection: SeriesCollection, members: Sequence[int], mean: NDArray[Any]) -> NDArray[np.float64]:
    """Count, sum and sum of squares ``(3, n_variates)`` of what the samples differ from a mean by."""
    sums = np.zeros((3, len(mean)))
    for index in members:
        samples = collection[index].samples
        for begin in range(0, samples.shape[1], CHUNK):
            difference = samples[:, begin : begin + CHUNK].astype(np.float64) - mean[:, None]
            finite = np.isfinite(difference)
            sums[0] += finite.sum(axis=1)
            sums[1] += difference.sum(axis=1, where=finite)
            sums[2] += np.square(difference).sum(axis=1, where=finite)
    return sums


def _distance(scaling: Scaling, sums: Iterable[NDArray[np.float64]]) -> float:
    """Largest difference of mean or deviation over variates, in deviations of the samples with these sums."""
    count, total, squares = np.sum(list(sums), axis=0)
    offset = total / np.maximum(count, 1)
    deviation = np.sqrt(np.maximum(squares / np.maximum(count, 1) - offset**2, 0))
    deviation = np.where(deviation > 0, deviation, 1.0)
    return float(np.maximum(np.abs(offset) / deviation, np.abs(scaling.deviation / deviation - 1)).max())


def read_fitted(folder: Path | str) -> tuple[Scaling, list[str]]:
    """Scaling of a model folder, and digests of what it was fitted on; no network is built for that."""
    folder = Path(folder)
    try:
        with open_model(folder) as files:
            mode = next(table["scaling"] for table in files.facts["settings"].values() if "scaling" in table)
            one_of("preparation.scaling", mode, ("train", "series", "none"))
            digests = [str(fact) for fact in files.facts["training_data"]["series"]]
            content = files.weights()
            mean, deviation = (
                files.header.array(content, f"scaling/{name}") for name in ("mean", "deviation")
            )
        sound = mean.ndim == 1 and mean.shape == deviation.shape and bool((deviation > 0).all())
        if not sound or not (np.isfinite(mean).all() and np.isfinite(deviation).all()):
            raise ValueError("its scaling is not one finite mean and deviation a variate")
    except ModelError as error:
        raise ModelError(f"the model {folder.name!r} cannot be audited: {error}") from error
    except (ValueError, LookupError, AttributeError, TypeError, StopIteration) as error:
        raise ModelError(
            f"the model {folder.name!r} cannot be audited: its config.json or model.safetensors is missing or "
            f"damaged ({type(error).__name__}). Give the folder that `raxss fit` wrote."
        ) from error
    return Scaling(mode, mean, deviation), digests


# List of checks ---------------------------------------------------------------------------------------------


def _checked(
    collection: SeriesCollection,
    parts: Parts,
    statistics: Scaling | None,
    training_names: Collection[str] | None,
    training_digests: Collection[str] | None,
) -> Iterator[tuple[str, str]]:
    members = [index for these in parts.values() for index in these]
    yield "series in two parts", ", ".join(f"{name} {len(these)}" for name, these in parts.items())
    for level in (*GROUPS, "centre"):
        groups = _groups_in(collection, members, level)
        yield f"shared {level}", f"{len(groups)} known" if groups else "not known"
    yield "copied signals", f"{len(members)} series: values, stretches, courses"
    yield "balancing before the split", f"{len(collection) - len(set(members))} series in no part"
    fitted = statistics is not None and statistics.mode == "train" and statistics.mean.size > 0
    absent = "not given" if statistics is None else "each series by its own"
    yield "statistics fitted across it", "mean and deviation of the model" if fitted else absent
    counted = f"samples of {len(training_digests)}" if training_digests is not None else "not given"
    named = f"{len(training_names)} names" if training_names is not None else counted
    yield "test series in training", named
