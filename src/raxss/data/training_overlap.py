"""Overlap with training data: digests and stretch keys that recognise series a model was fitted on.

    fit:     series, which of them are for validation -> digests of whole series and keys of stretches, kept
    predict: series -> "training", "validation", "training or validation", "in part", "no" or "unknown"

The comparison is by content: names, files and formats do not matter. Digests are of the prepared samples as
float32, so a recording is recognised when it is prepared as the training data were. A crop, a longer recording, or
a copy in other units shares stretches (`stretch_keys`). A copy that was filtered, resampled or re-referenced is not
recognised; `raxss audit-split` finds more kinds of copies, where both recordings are at hand.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.data.near_duplicates import NARROWEST_ANCHOR, SHAPE_RADIUS, anchored_stretches
from raxss.data.series import Series

TRAINING, VALIDATION, EITHER = "training", "validation", "training or validation"
PART, NO, UNKNOWN = "in part", "no", "unknown"

#: The values of ``seen_in_training`` in tables, and what they mean.
STATES: Mapping[str, str] = {
    TRAINING: "the model was trained on these very samples",
    VALIDATION: "these very samples were in the validation set: early stopping, and calibration where there is "
    "one, used them",
    EITHER: "the model was fitted on these very samples; it does not keep whether for training or for validation",
    PART: "a stretch of these samples, or all of them in other units, was in the training or validation data",
    NO: "not found in the training or validation data, by content; copies that were filtered, resampled or "
    "re-referenced are not recognised",
    UNKNOWN: "the model keeps no digests of its training data",
}
#: How a series with this state is marked where there is little room; empty: not at all.
MARKS: Mapping[str, str] = {
    TRAINING: "in training data",
    VALIDATION: "in validation data",
    EITHER: "in training or validation data",
    PART: "partly in training data",
    NO: "",
    UNKNOWN: "training data: unknown",
}
SEEN = (TRAINING, VALIDATION, EITHER)  # the whole series
MARKED = (*SEEN, PART)

KEYS_A_SERIES = 16  # a crop of a quarter shares one of them in 99 of 100 cases
MOST_KEYS = 2**16  # over all series, so that config.json stays small: 1 MB
HEX_DIGITS = 16  # of a key


@dataclass(frozen=True, eq=False)
class TrainingRecord:
    """What a model keeps of its training data: `Series.digest` of each series, and sorted keys of their stretches.

    No samples, and nothing they could be computed from. ``either``: of models that were fitted before training and
    validation series were kept apart.
    """

    training: frozenset[str] = frozenset()
    validation: frozenset[str] = frozenset()
    either: frozenset[str] = frozenset()
    stretches: NDArray[np.uint64] | None = None
    known: bool = True

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> TrainingRecord:
        """From ``training_data`` of a model, of this version or an earlier; ValueError where malformed."""
        if "series" not in data:
            return cls(known=False)
        everything = _digests(data["series"], "series")
        keys = data.get("stretches", "")
        if not isinstance(keys, str) or len(keys) % HEX_DIGITS:
            raise ValueError(f"training_data.stretches is no text of keys of {HEX_DIGITS} hexadecimal digits")
        stretches = np.sort(np.frombuffer(bytes.fromhex(keys), dtype=">u8").astype(np.uint64))
        if "validation_series" in data:
            validation = _digests(data["validation_series"], "validation_series")
        elif data.get("n_validation") == 0:
            validation = frozenset()
        else:
            return cls(either=everything, stretches=stretches)
        return cls(training=everything - validation, validation=validation, stretches=stretches)

    def state(self, series: Series) -> str:
        """One of `STATES`."""
        if not self.known:
            return UNKNOWN
        digest = series.digest
        for state, digests in (
            (TRAINING, self.training),
            (VALIDATION, self.validation),
            (EITHER, self.either),
        ):
            if digest in digests:
                return state
        if self.stretches is not None and len(self.stretches):
            keys = stretch_keys(series)
            if len(keys) and np.isin(keys, self.stretches).any():
                return PART
        return NO

    @contextmanager
    def states(self, series: Sequence[Series]) -> Iterator[Iterator[str]]:
        """The state of each series in their order, found by a thread of its own while others are predicted."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="raxss-overlap")
        try:
            yield thread.map(self.state, series)
        finally:
            thread.shutdown(cancel_futures=True)


def kept_of_training(series: Sequence[Series], held: NDArray[np.int64]) -> dict[str, Any]:
    """What `TrainingRecord.of` reads; ``held`` are the indices of the series for validation."""
    digests = [entry.digest for entry in series]
    for_validation = {digests[index] for index in held.tolist()}
    learned_from = {item for index, item in enumerate(digests) if index not in set(held.tolist())}
    n_keys = max(min(KEYS_A_SERIES, MOST_KEYS // max(len(series), 1)), 1)
    keys = [stretch_keys(entry)[:n_keys] for entry in series]  # the smallest: those of a crop are as small
    return {
        "series": sorted(digests),
        "validation_series": sorted(for_validation - learned_from),  # one in both counts as training
        "stretches": np.unique(np.concatenate([*keys, np.zeros(0, np.uint64)])).astype(">u8").tobytes().hex(),
    }


def summary_of(states: Sequence[str], thing: str = "channel") -> str:
    """Sentences on the overlap, shown above the scores of these series."""
    counts, n = Counter(states), len(states)
    several = thing if thing == "series" else f"{thing}s"
    unknown = "the model keeps no digests of its training data"
    if counts[UNKNOWN] == n:
        whether = f"this {thing} was" if n == 1 else f"these {n} {several} were"
        return f"Whether {whether} in the model's training data is unknown: {unknown}."
    marked = [state for state in MARKED if counts[state]]
    if not marked:
        found = f"This {thing} was not" if n == 1 else f"None of the {n} {several} was"
        text = f"{found} found in the model's training data."
    elif n == 1:
        text = f"This {thing} was {IN_WORDS[marked[0]]}. Such a score shows {REMEMBERED}"
    else:
        first, *others = marked
        was = "was" if counts[first] == 1 else "were"
        parts = [f"{counts[first]} of {n} {several} {was} {IN_WORDS[first]}"]
        parts += [f"{counts[other]} {IN_WORDS[other]}".replace("the model's", "its") for other in others]
        text = f"{', '.join(parts)}. Such scores show {REMEMBERED}"
    return text + (f" Of {counts[UNKNOWN]} it is unknown: {unknown}." if counts[UNKNOWN] else "")


IN_WORDS = {
    TRAINING: "in the model's training data",
    VALIDATION: "in the model's validation data",
    EITHER: "in the model's training or validation data",
    PART: "in part, or in other units, in the model's training or validation data",
}
REMEMBERED = "what the model remembers, not how it does on new recordings."


def _digests(value: Any, name: str) -> frozenset[str]:
    if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        raise ValueError(f"training_data.{name} is no list of digests")
    return frozenset(value)


STEPS_A_DEVIATION = 32  # that a stretch is rounded to before it is hashed; 256 samples must agree in all
MOSTLY_CHANGING = 0.75  # of the samples of a stretch with a key differ from the one before


def stretch_keys(series: Series) -> NDArray[np.uint64]:
    """One-way keys of stretches of 256 samples around anchors; a crop has those of the original that lie in it.

    The stretch around an anchor (`anchored_stretches`) is centred, divided by its deviation, turned upright and
    rounded to steps of 1/32 deviation before it is hashed. So offset, gain, sign, units and the type of the samples
    do not change a key, whereas another channel of the same recording has other keys. Stretches in which many
    samples repeat their predecessor (saturation, flat lines, square waves) have no key: they would be alike without
    being copies. A series shorter than 256 samples has none, and neither rounding nor noise below 1/1000 deviation
    changes most of them.
    """
    hashes = []
    for _, stretches, signs in anchored_stretches(series, NARROWEST_ANCHOR):
        changing = (np.diff(stretches) != 0).sum(axis=1) >= MOSTLY_CHANGING * 2 * SHAPE_RADIUS
        stretches, signs = stretches[changing], signs[changing]
        with np.errstate(all="ignore"):  # samples near the limits of float64
            centred = stretches - stretches.mean(axis=1, keepdims=True)
            deviations = np.sqrt(np.square(centred).mean(axis=1, keepdims=True))
            steps = np.rint(STEPS_A_DEVIATION * signs[:, None] * centred / deviations).astype(np.int32)
        hashes += [hashlib.blake2b(stretch.tobytes(), digest_size=8).digest() for stretch in steps]
    return np.unique(np.frombuffer(b"".join(hashes), dtype="<u8")).astype(np.uint64)


def describe_data(
    series: list[Series],
    labels: NDArray[Any],
    groups: NDArray[Any] | None,
    held: NDArray[np.int64],
) -> dict[str, Any]:
    """What a model card says about the training data: counts and ranges, never names."""
    names, counts = np.unique(labels, return_counts=True)
    lengths = [item.n_samples for item in series]
    return {
        "n_series": len(series),
        "n_validation": len(held),
        "n_groups": None if groups is None else len(np.unique(groups)),
        "classes": {str(name): int(count) for name, count in zip(names, counts, strict=True)},
        "rates": sorted({item.rate for item in series}),
        "n_samples": [min(lengths), max(lengths)],
        **kept_of_training(series, held),  # by which predictions know what the model has seen
        "split": None,  # what kept the test set away, where that is given
    }
