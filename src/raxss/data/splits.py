"""Train, validation and test splits by group: hold-out, folds and leave-one-group-out.

    labels (n_series,), groups (n_series,) -> two index arrays                    hold_out
    SeriesCollection -> Split: train, validation, test                           split_series
    SeriesCollection -> one Split a fold, or one for each group left out          folds, leave_one_out
    SeriesCollection, published parts -> Split                                   official_split

A split that lets one patient sit on both sides can be made, since the paper's is of that kind, and is called leaky
wherever it is shown. Next: leakage.py audits a split.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raxss._core.atomic import write_json
from raxss._core.bounded import read_json
from raxss.data.group_assignment import assign_groups, balanced
from raxss.data.series import Series, SeriesCollection
from raxss.errors import ConfigError, DataError, RecordingError, join_names, one_of

_Kind = TypeVar("_Kind")

FORMAT = "raxss-split-1"
MAX_SPLIT_BYTES = 2**25  # half a million names
GROUPS = ("patient", "pair", "recording", "electrode")  # what series may share
LEVELS = (*GROUPS, "channel", "centre")
PARTS = ("train", "validation", "test")
Balance = Literal["none", "train_val", "before_split", "sss_nih_quarter"]
BALANCED_BEFORE = ("before_split", "sss_nih_quarter")  # the test set is balanced too; SSS's ways
FEWEST_CENTRES = 10  # fewer cannot give 10 % to validation


def hold_out(
    labels: ArrayLike, *, fraction: float, seed: int, groups: ArrayLike | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Set a share of the series aside, stratified by label, whole groups at a time.

    Each group counts under its most frequent label. Of every label with at least two groups, at least one
    group lands on each side; a label with a single group stays in the first part.

    Returns
    -------
    Indices of the series kept and of those held out, each in ascending order.

    Examples
    --------
    >>> hold_out(["a", "a", "b", "b"], fraction=0.5, seed=0)
    (array([1, 3]), array([0, 2]))
    """
    labels = np.asarray(labels)
    groups = np.arange(len(labels)) if groups is None else np.asarray(groups)
    if len(groups) != len(labels):
        raise DataError(
            f"{len(groups)} groups were given for {len(labels)} series; one group per series is needed."
        )
    _check_seed(seed)
    members: dict[Any, list[int]] = {}
    for index, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(index)
    strata: dict[Any, list[Any]] = {}
    for group, indices in members.items():
        most_frequent = Counter(labels[indices].tolist()).most_common(1)[0][0]
        strata.setdefault(most_frequent, []).append(group)

    generator = np.random.default_rng(seed)
    held: list[int] = []
    for label in sorted(strata, key=str):
        names = strata[label]
        n_held = int(np.clip(round(fraction * len(names)), 1, len(names) - 1)) if len(names) > 1 else 0
        for position in generator.permutation(len(names))[:n_held]:
            held.extend(members[names[position]])
    mask = np.zeros(len(labels), dtype=bool)
    mask[held] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)


def _check_seed(seed: Any) -> None:
    if not isinstance(seed, Integral) or int(seed) < 0:
        raise ConfigError(f"seed is {seed!r}; needed is an integer of at least 0.")


# What a split is --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class Split:
    """Which series are for training, for validation and for the test, and how that came about.

    Parts are ascending indices into the collection. Only the first two may reach anything that learns.
    """

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]
    by: str  # what was kept together: patient, pair, recording, electrode, channel or centre
    leaky: bool  # whether something wider than ``by`` sits on both sides, or that is not known
    seed: int
    fractions: tuple[float, float, float]
    balance: Balance = "none"  # how classes were made equal; see `split_series`
    fold: str | None = None  # which fold, or which group was left out; None for a single split
    dropped: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # by balancing
    description: str = ""  # one line for tables and reports, such as ``patient`` or ``channel (leaky)``

    def parts(
        self, collection: SeriesCollection
    ) -> tuple[SeriesCollection, SeriesCollection, SeriesCollection]:
        """Three collections. Pass on only the first two until the model is final."""
        return collection[self.train], collection[self.validation], collection[self.test]

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """As it is kept: series by name, so that a collection in another order has the same split."""
        _refuse_repeated(names)
        facts = {
            name: getattr(self, name) for name in ("by", "leaky", "description", "seed", "balance", "fold")
        }
        listed = {part: [names[index] for index in getattr(self, part)] for part in (*PARTS, "dropped")}
        return {"format": FORMAT, **facts, "fractions": list(self.fractions), **listed}

    def save(self, path: Path | str, names: Sequence[str], *, overwrite: bool | None = True) -> None:
        """Write `to_json`, whole or not at all; ``overwrite`` as in `raxss._core.atomic.whole_file`."""
        write_json(path, self.to_json(names), overwrite=overwrite)

    @classmethod
    def from_json(cls, value: Any, names: Sequence[str]) -> Split:
        """Read `to_json` for a collection with these names; every name must be there, once."""
        _refuse_repeated(names)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            found = value.get("format") if isinstance(value, dict) else type(value).__name__
            raise DataError(f"this is no split: its format is {found!r}, needed is {FORMAT!r}.")
        place = {name: index for index, name in enumerate(names)}
        where: dict[str, str] = {}
        for part in (*PARTS, "dropped"):
            these = value.get(part)
            if not isinstance(these, list) or not all(isinstance(name, str) for name in these):
                raise DataError(
                    f"the split has no list of names under {part!r}; needed is one for each part."
                )
            for name in these:
                if name in where:
                    raise DataError(
                        f"the split has series {name!r} twice, in {where[name]} and in {part}; every series "
                        "belongs to one part. Make the split again."
                    )
                where[name] = part
        _refuse_names("has {} that the data does not have", [name for name in where if name not in place])
        _refuse_names("does not have {} of the data", [name for name in names if name not in where])
        try:
            return cls(
                **{
                    part: np.sort(np.array([place[name] for name in value[part]], dtype=np.int64))
                    for part in (*PARTS, "dropped")
                },
                by=one_of("by", value["by"], LEVELS),
                leaky=_of_kind(value, "leaky", bool),
                seed=_of_kind(value, "seed", int),
                fractions=_checked_fractions(value["fractions"]),
                balance=one_of("balance", value["balance"], get_args(Balance)),
                fold=None if value["fold"] is None else _of_kind(value, "fold", str),
                description=_of_kind(value, "description", str),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"the split cannot be understood: {type(error).__name__}: {error}") from error

    @classmethod
    def read(cls, path: Path | str, names: Sequence[str]) -> Split:
        """Read what `save` wrote, for a collection with these names."""
        name = Path(path).name
        try:
            value = read_json(
                path, what=f"the split file {name!r}", most=MAX_SPLIT_BYTES, error=RecordingError
            )
        except OSError as error:
            raise RecordingError(f"the split file {name!r} cannot be read: {error.strerror}.") from error
        try:
            return cls.from_json(value, names)
        except DataError as error:
            raise RecordingError(f"the split file {name!r}: {error}") from error


def _of_kind(value: dict[str, Any], name: str, kind: type[_Kind]) -> _Kind:
    """A value of exactly this type."""
    found = value[name].item() if isinstance(value[name], np.generic) else value[name]
    if type(found) is not kind:
        raise DataError(f"{name} is a {type(found).__name__}; needed is {kind.__name__}.")
    return found


def _refuse_repeated(names: Sequence[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(
            f"{len(repeated)} names are those of several series, such as {repeated[0]!r}; a split is kept by name, "
            "so each series needs its own. Rename them."
        )


def _refuse_names(what: str, names: Sequence[str]) -> None:
    if names:
        raise DataError(
            f"the split {what.format(f'{len(names)} series')}: {join_names(map(repr, names))}. It belongs to other "
            "data, or series came or went since; make it again."
        )


# Groups ----------------------------------------------------------------------------------------------------


def group_of(series: Series, level: str) -> Hashable:
    """What a series belongs to at a level, or None where that is not known.

    A recording, electrode or pair is qualified by its patient, or by the recording where the patient is
    not known: ``G`` is an electrode of many people. A `Series.group` that is none of its origins is taken as
    the patient, as in a manifest.
    """
    origin = series.origin
    patient = origin.get("patient")
    if patient is None and series.group is not None and str(series.group) not in origin.values():
        patient = str(series.group)
    if level == "patient":
        return patient
    value = origin.get(level)
    if value is None or level == "centre":
        return value
    within = patient if patient is not None or level == "recording" else origin.get("recording")
    named = within is None or value.startswith(f"{within}/")  # as pt01/G, which no other patient has
    return value if named else (within, value)


def groups_by(collection: SeriesCollection, by: str | None) -> tuple[str, list[Hashable]]:
    """The level and one group per series; without ``by``, at the widest level that is known.

    A wider level that only some series have is refused then.
    """
    by = "channel" if by == "paper" else by
    alone: list[Hashable] = list(range(len(collection)))
    if by is None:
        known = {level: [group_of(item, level) for item in collection] for level in GROUPS}
        complete = [level for level in GROUPS if None not in known[level]]
        by = min(
            complete, key=lambda level: len(set(known[level])), default="channel"
        )  # the widest has fewest
        narrow = known.get(by, alone)
        partly = [level for level in GROUPS if None in known[level] and _is_wider(known[level], narrow)]
        by = partly[0] if partly else by  # which is refused below
    one_of("by", by, LEVELS)
    if by == "channel":
        return by, alone
    groups = [group_of(item, by) for item in collection]
    missing = [item.name for item, group in zip(collection, groups, strict=True) if group is None]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(groups)} series have no known {by}, the first is {missing[0]!r}; a split "
            f"by {by} needs it of all. Set Series(origin={{{by!r}: ...}}), or split by something else."
        )
    return by, groups


def _is_wider(groups: Sequence[Hashable], narrow: Sequence[Hashable]) -> bool:
    """Whether any of the groups that are known holds several of the narrow ones."""
    pairs = {pair for pair in zip(groups, narrow, strict=True) if pair[0] is not None}
    return len({group for group, _ in pairs}) < len(pairs)


# Making a split ---------------------------------------------------------------------------------------------


def split_series(
    collection: SeriesCollection,
    *,
    by: str | None = None,
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2),
    seed: int,
    balance: Balance = "none",
) -> Split:
    """Set validation and test series aside, whole groups at a time, with class shares near those of the whole.

    Parameters
    ----------
    by
        What stays together. ``channel`` (or ``paper``) takes each series alone, as the paper does: leaky. Without
        it the widest group known: patient, pair, recording, electrode, else channel.
    fractions
        Of the series, for training, validation and test.
    seed
        Decides everything; the order of the series does not matter where names are unique.
    balance
        ``train_val``: afterwards the larger classes of training and validation lose series. ``before_split``: the
        whole pool does, before; ``sss_nih_quarter``: so does each centre, and the one whose patients are named
        ``pt…`` keeps a quarter. The last two change the test set, and the audit says so.

    Examples
    --------
    >>> collection = SeriesCollection(
    ...     Series([0.0], label=k % 2, name=f"s{k}", origin={"patient": f"p{k // 4}"}) for k in range(80)
    ... )
    >>> split = split_series(collection, seed=69421)
    >>> split.description, len(split.train), len(split.validation), len(split.test)
    ('patient', 56, 8, 16)
    >>> split_series(collection, by="paper", seed=69421).description
    'channel (leaky)'
    """
    fractions = _checked_fractions(fractions)
    by, groups = groups_by(collection, by)
    if by == "centre" and len(set(groups)) < FEWEST_CENTRES:
        raise DataError(
            f"the series come from {len(set(groups))} centres; {FEWEST_CENTRES} are needed to give each part its "
            "share. Use leave_one_out(level='centre') (--leave-out centre), or split by patient."
        )
    pool = _pool(collection, balance, seed)
    assigned = assign_groups(collection, groups, pool, fractions, PARTS, seed)
    parts = [np.sort(pool[assigned == place]) for place in range(3)]
    return _finish(collection, parts, by=by, seed=seed, fractions=fractions, balance=balance)


def folds(
    collection: SeriesCollection,
    *,
    by: str | None = None,
    n_folds: int = 5,
    seed: int,
    validation: float = 0.1,
    balance: Balance = "none",
) -> list[Split]:
    """Splits in which each series is tested exactly once (unless balancing before the split dropped it).

    ``validation`` is a share of all series; five folds and 0.1 give 70/10/20.
    """
    by, groups = groups_by(collection, by)
    n_groups = len(set(groups))
    if not 2 <= n_folds <= n_groups:
        raise ConfigError(
            f"n_folds is {n_folds}; needed is 2 to {n_groups}, since there are {n_groups} groups by {by}."
        )
    test = 1 / n_folds
    fractions = _checked_fractions((1 - test - validation, validation, test))
    pool = _pool(collection, balance, seed)
    tested = assign_groups(collection, groups, pool, [test] * n_folds, ["test"] * n_folds, seed)
    splits = []
    for fold in range(n_folds):
        parts = _rest(collection, groups, pool, tested == fold, validation / (1 - test), seed, fold)
        made = _finish(
            collection, parts, by=by, seed=seed, fractions=fractions, balance=balance, fold=str(fold)
        )
        splits.append(made)
    return splits


def official_split(
    collection: SeriesCollection, parts: Mapping[str, str], *, seed: int, validation: float = 0.125
) -> Split:
    """The published split, with a share of its training series for validation.

    ``parts`` has ``train`` or ``test`` for the name of every series. The test set is the same under every seed,
    which draws validation series by the widest group known.

    >>> collection = SeriesCollection(
    ...     Series([0.0], label=k % 2, name=f"s{k}", origin={"recording": f"s{k}"}) for k in range(30)
    ... )
    >>> parts = {f"s{k}": "train" if k < 20 else "test" for k in range(30)}
    >>> split = official_split(collection, parts, seed=69421)
    >>> split.description, len(split.train), len(split.validation), split.test.tolist()[:3]
    ('official split, by recording', 18, 2, [20, 21, 22])
    """
    _check_seed(seed)
    unknown = [name for name in collection.names if parts.get(name) not in ("train", "test")]
    if unknown:
        raise DataError(
            f"{len(unknown)} of {len(collection)} series have no place in the official split, the first is "
            f"{unknown[0]!r}; needed is 'train' or 'test' for each. Use another kind of split."
        )
    pool = _pool(collection, "none", seed)
    held = np.array([parts[collection.names[index]] == "test" for index in pool])
    made = _rest(collection, groups_by(collection, None)[1], pool, held, validation, seed, 0)
    test = float(held.mean())
    by = "channel" if any(group_of(item, "recording") is None for item in collection) else "recording"
    fractions = ((1 - test) * (1 - validation), (1 - test) * validation, test)
    split = _finish(collection, made, by=by, seed=seed, fractions=fractions, balance="none")
    return replace(split, description=f"official split, by {split.description}")


def leave_one_out(
    collection: SeriesCollection,
    *,
    level: str = "centre",
    seed: int,
    validation: float = 0.1,
    balance: Balance = "none",
) -> dict[str, Split]:
    """One split for each group, which is its test set; the others are for training and validation.

    Validation series are chosen by the widest group known.
    """
    level, groups = groups_by(collection, level)
    _, inner = groups_by(collection, None)
    if len(set(groups)) < 2:
        raise DataError(f"all series are of one {level}; at least two are needed to leave one out.")
    pool = _pool(collection, balance, seed)
    splits = {}
    for number, left_out in enumerate(sorted(set(groups), key=str)):
        held = np.array([groups[index] == left_out for index in pool])
        test = float(held.mean())
        parts = _rest(collection, inner, pool, held, validation, seed, number)
        name = "/".join(map(str, left_out)) if isinstance(left_out, tuple) else str(left_out)
        splits[name] = _finish(
            collection,
            parts,
            by=level,
            seed=seed,
            fractions=((1 - test) * (1 - validation), (1 - test) * validation, test),
            balance=balance,
            fold=name,
            left_out=True,
        )
    return splits


def _checked_fractions(fractions: Sequence[float]) -> tuple[float, float, float]:
    values = tuple(float(fraction) for fraction in fractions)
    if len(values) != 3 or not all(0 <= value <= 1 for value in values) or not math.isclose(sum(values), 1):
        raise ConfigError(
            f"fractions are {', '.join(f'{value:g}' for value in values)}; needed are three shares, for training, "
            "validation and test, that add up to 1."
        )
    if values[0] == 0:
        raise ConfigError("the training set has a fraction of 0; it needs some series.")
    return values[0], values[1], values[2]


def _rest(
    collection: SeriesCollection,
    groups: Sequence[Hashable],
    pool: NDArray[np.int64],
    held: NDArray[np.bool_],
    validation: float,
    seed: int,
    number: int,
) -> list[NDArray[np.int64]]:
    """Training and validation from what is not held out."""
    rest = pool[~held]
    assigned = assign_groups(
        collection, groups, rest, (1 - validation, validation), PARTS[:2], seed, number + 1
    )
    return [np.sort(rest[assigned == 0]), np.sort(rest[assigned == 1]), np.sort(pool[held])]


def _finish(
    collection: SeriesCollection,
    parts: list[NDArray[np.int64]],
    *,
    by: str,
    seed: int,
    fractions: tuple[float, float, float],
    balance: Balance,
    fold: str | None = None,
    left_out: bool = False,
) -> Split:
    """Balance what is to be balanced, and find out whether the split is leaky."""
    if balance == "train_val":
        generator = np.random.default_rng([seed, 2])
        parts = [*(balanced(collection, part, generator) for part in parts[:2]), parts[2]]
    dropped = np.setdiff1d(np.arange(len(collection)), np.concatenate(parts))
    known = {level: [group_of(item, level) for item in collection] for level in GROUPS}
    shared = [level for level in GROUPS if _is_shared(known[level], parts)]
    unknown = by == "channel" and all(set(groups) == {None} for groups in known.values())
    leaky = bool(shared) or unknown
    description = f"leave one {by} out" if left_out else by
    if leaky:
        description += " (leaky)" if by == "channel" else f" (leaky: {shared[0]}s shared)"
    return Split(
        train=parts[0],
        validation=parts[1],
        test=parts[2],
        by=by,
        leaky=leaky,
        seed=seed,
        fractions=fractions,
        balance=balance,
        fold=fold,
        dropped=dropped,
        description=description + (f", balanced {balance}" if balance != "none" else ""),
    )


def _is_shared(groups: Sequence[Hashable], parts: Sequence[NDArray[np.int64]]) -> bool:
    sides = [{groups[index] for index in part} - {None} for part in parts]
    return bool(sides[0] & sides[1] or sides[0] & sides[2] or sides[1] & sides[2])


def weak_parts(collection: SeriesCollection, split: Split) -> dict[str, str]:
    """Messages by part, for parts of one class, or without series though their fraction is above 0."""
    classes = {item.label for item in collection}
    found = {}
    for part, fraction in zip(PARTS, split.fractions, strict=True):
        members = getattr(split, part).tolist()
        labels = {collection[index].label for index in members}
        if not members and fraction > 0:
            found[part] = f"the {part} set has no series"
        elif len(labels) == 1 < len(classes):
            found[part] = f"the {part} set has one class only, {labels.pop()!r}"
    return found


# Balancing --------------------------------------------------------------------------------------------------


def _pool(collection: SeriesCollection, balance: Balance, seed: int) -> NDArray[np.int64]:
    """The series that are split at all, by name: their order in the collection must not matter."""
    _check_seed(seed)
    one_of("balance", balance, get_args(Balance))
    if len(collection) == 0:
        raise DataError("there are no series to split; at least three are needed.")
    everything = np.array(sorted(range(len(collection)), key=collection.names.__getitem__), dtype=np.int64)
    generator = np.random.default_rng([seed, 1])
    if balance == "before_split":
        return balanced(collection, everything, generator, keep_order=True)
    if balance == "sss_nih_quarter":
        return _balanced_by_centre(collection, everything, generator)
    return everything


def _balanced_by_centre(
    collection: SeriesCollection, pool: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """As SSS does: each centre, by the names of its patients, is balanced; the one named pt keeps a quarter."""
    patients = groups_by(collection, "patient")[1]
    centres = [re.match(r"(?:sub-)?([A-Za-z]*)", str(patient)) for patient in patients]
    names = [found[1].lower() if found else "" for found in centres]
    if "pt" not in names:
        raise DataError(
            f"no patient is named pt…, as those of NIH are (the first is {patients[0]!r}); "
            "balance='sss_nih_quarter' is about the ds003029 dataset. Use 'before_split'."
        )
    kept = []
    for name in sorted(set(names)):
        members = np.array([index for index in pool if names[index] == name], dtype=np.int64)
        kept.append(balanced(collection, members, generator, share=4 if name == "pt" else 1, keep_order=True))
    chosen = set(np.concatenate(kept).tolist())
    return np.array([index for index in pool if index in chosen], dtype=np.int64)
