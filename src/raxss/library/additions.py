"""Additions: what of some series is new to a library, and how the new becomes cases.

    series -> planned: group, recording, label, content of each -> compared with what is there: new, changed, known
    EncodedSeries -> Rows of the windows that are selected

Everything that can be refused is refused here, before anything is written.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raxss.data.series import Series
from raxss.errors import LabelError, LibraryError, LibraryWarning, did_you_mean, display_name, join_names
from raxss.library.encoder import EncodedSeries, Encoder
from raxss.library.folder import check_site, plain_class
from raxss.library.patient_file import CaseFacts, PatientHeader, Rows
from raxss.library.pseudonyms import UNITS, Pseudonyms, unit_and_group
from raxss.library.selection import Selection

UNKNOWN_SITE = "local"  # of series whose centre is not known, where no site is given


@dataclass(frozen=True, eq=False, kw_only=True)
class Planned:
    """One series with what the library will know of it; the pseudonyms stand for its group and itself."""

    series: Series = field(repr=False)  # nothing that is printed pairs a name with its pseudonym
    site: str
    unit: str
    group: str  # pseudonym
    recording: str  # pseudonym
    label: int
    content: str

    @property
    def order(self) -> tuple[str, str]:
        """In which recordings are encoded: those of a group together."""
        return self.group, self.recording


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Planned recordings beside those that a library has."""

    new: list[Planned] = field(
        default_factory=list
    )  # to be encoded; changed ones too, where they may replace
    unchanged: list[Planned] = field(default_factory=list)
    changed: list[Planned] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)  # sentences


@dataclass(frozen=True, kw_only=True)
class Added:
    """What `CaseLibrary.add` did, in recordings."""

    n_new: int = 0
    n_unchanged: int = 0  # were there already
    n_replaced: int = 0
    n_windows: int = 0  # of the new and the replaced ones
    without_windows: tuple[str, ...] = ()  # names of those left out: no window has enough samples

    @classmethod
    def of(cls, found: Changes, left_out: Sequence[Planned], n_windows: int) -> Added:
        """What came of changes; recordings that were left out are neither new nor replaced."""
        n_changed_out = sum(plan in found.changed for plan in left_out)
        n_replaced = len(found.changed) - n_changed_out
        return cls(
            n_new=len(found.new) - len(left_out) - n_replaced,
            n_unchanged=len(found.unchanged),
            n_replaced=n_replaced,
            n_windows=n_windows,
            without_windows=tuple(plan.series.name for plan in left_out),
        )


def planned(
    series: Sequence[Series], names: Pseudonyms, classes: tuple[Any, ...], site: str | None
) -> list[Planned]:
    """What each series will be in the library, each once; series that cannot be taken are refused by name."""
    if not series:
        raise LibraryError(
            "no recordings were given; a case library is made of one at least. Pass labelled series."
        )
    found: dict[str, Planned] = {}
    units = [unit_and_group(item) for item in series]
    _refuse_mixed_units(series, [unit for unit, _ in units])
    for item, (unit, group) in zip(series, units, strict=True):
        place = check_site(item.origin.get("centre", UNKNOWN_SITE) if site is None else site)
        entry = Planned(
            series=item,
            site=place,
            unit=unit,
            group=names.of_group(place, unit, group),
            recording=names.of_recording(place, unit, group, item),
            label=_index_of(item, classes),
            content=item.digest,
        )
        same = found.setdefault(entry.recording, entry)
        if (same.content, same.label) != (entry.content, entry.label):
            raise LibraryError(
                f"two recordings are called {display_name(item.name)} and differ in samples or label; in a library "
                "a recording is known by group, name and origin. Give each a name of its own."
            )
    return list(found.values())


def _index_of(item: Series, classes: tuple[Any, ...]) -> int:
    if item.label is None:
        raise LabelError(
            f"recording {display_name(item.name)} has no label; every case has one. Set Series(label=...), or "
            "leave it out."
        )
    label = plain_class(item.label)
    for index, known in enumerate(classes):
        # True equals 1 for Python, and is another label.
        if known == label and isinstance(known, bool) == isinstance(label, bool):
            return index
    raise LabelError(
        f"recording {display_name(item.name)} has the label {label!r}, which the model does not "
        f"know{did_you_mean(str(label), map(str, classes))} Rename the label, or fit the model with it."
    )


def _refuse_mixed_units(series: Sequence[Series], units: Sequence[str]) -> None:
    """A patient whose recordings come both with and without a name would count as two."""
    if len(set(units)) == 1:
        return
    widest = min(set(units), key=UNITS.index)
    missing = [item.name for item, unit in zip(series, units, strict=True) if unit != widest]
    raise LibraryError(
        f"{len(missing)} of {len(series)} recordings have no known {widest}, the first is "
        f"{display_name(missing[0])}; all or none need one, or one {widest} could count as two. Set "
        f"Series(origin={{{widest!r}: ...}}), or add them in a call of their own."
    )


def compared(plans: Iterable[Planned], headers: Mapping[str, PatientHeader], *, replace: bool) -> Changes:
    """Tell new recordings from known ones; a changed one is refused by name unless it may be replaced."""
    found = Changes()
    holders = {
        item.content: (header.group, item) for header in headers.values() for item in header.recordings
    }
    for plan in plans:
        header = headers.get(plan.group)
        there = None if header is None else header.find(plan.recording)
        if there is not None and (there.content, there.label) == (plan.content, plan.label):
            found.unchanged.append(plan)
            continue
        if there is not None:
            found.changed.append(plan)
        _note_copy(found.copies, plan, holders)
        holders.setdefault(
            plan.content,
            (plan.group, CaseFacts(name=plan.recording, content=plan.content, label=plan.label, n_windows=0)),
        )
        found.new.append(plan)
    if found.changed and not replace:
        names = join_names((display_name(plan.series.name) for plan in found.changed), 5)
        raise LibraryError(
            f"{len(found.changed)} recordings are in the library with other samples or another label: {names}. "
            "Pass replace=True if these are right, or give new recordings names of their own."
        )
    return found


def _note_copy(copies: list[str], plan: Planned, holders: Mapping[str, tuple[str, CaseFacts]]) -> None:
    """Note the same samples under another name: they would count twice, or be their own neighbours."""
    if plan.content not in holders:
        return
    group, other = holders[plan.content]
    if other.name == plan.recording:
        return
    # Without the pseudonym: warnings end up in logs, and beside the name it would be none any more.
    where = "the same group" if group == plan.group else "another group"
    label = "" if other.label == plan.label else ", there with another label"
    copies.append(f"{display_name(plan.series.name)} (in {where}{label})")


def encoded_rows(
    encoder: Encoder, found: Changes, selection: Selection, *, width: int
) -> Iterator[tuple[Planned, Rows | None]]:
    """The new recordings with their rows, those of a group together; what cannot be encoded is refused at once."""
    plans = sorted(found.new, key=lambda plan: plan.order)
    encoded = encoder.encode([plan.series for plan in plans]) if plans else iter(())
    return (
        (plan, selected_rows(item, selection, width=width)) for plan, item in zip(plans, encoded, strict=True)
    )


def selected_rows(encoded: EncodedSeries, selection: Selection, *, width: int) -> Rows | None:
    """The windows of a recording that become cases; None where none is usable."""
    name = display_name(encoded.series.name)
    if encoded.features.shape != (len(encoded), width):
        raise LibraryError(
            f"the encoder gave features of shape {encoded.features.shape} for the {len(encoded)} windows of "
            f"recording {name}; needed is ({len(encoded)}, {width}), one key a window. Correct the encoder."
        )
    chosen = selection.chosen(encoded.features, encoded.usable)
    if not len(chosen):
        return None
    keys = np.ascontiguousarray(encoded.features[chosen], dtype=np.float32)
    if not np.isfinite(keys).all():
        raise LibraryError(
            f"recording {name} has windows whose features are not finite, so they cannot be compared. Check its "
            "samples for extreme values, or leave it out."
        )
    return Rows(
        keys=keys,
        start_s=encoded.start_s[chosen].astype(np.float64),
        end_s=encoded.end_s[chosen].astype(np.float64),
        quality=(1.0 - encoded.missing[chosen]).astype(np.float32),
    )


def warn_of_copies(copies: Sequence[str]) -> None:
    """Warn of recordings that hold the samples of others."""
    if copies:
        _warn(
            f"{len(copies)} recordings have the samples of others in the library under another name: "
            f"{join_names(copies, 3)}. They count twice, and a copy in another group would be found for itself. "
            "Withdraw one of each."
        )


def warn_of_content(
    headers: Iterable[PatientHeader], classes: tuple[Any, ...], without: Sequence[str]
) -> None:
    """Warn of recordings that were left out, of a single class, and of sites with different classes."""
    if without:
        _warn(
            f"{len(without)} recordings have no window with enough samples and were left out: "
            f"{join_names(map(display_name, without), 3)}."
        )
    of_site: dict[str, set[int]] = {}
    for header in headers:
        of_site.setdefault(header.site, set()).update(item.label for item in header.recordings)
    every: set[int] = set().union(*of_site.values())
    if len(every) == 1:
        _warn(
            f"all cases are of the class {classes[min(every)]!r}; whatever is asked, they could say nothing else. "
            "Add labelled recordings of another class."
        )
    if len({frozenset(labels) for labels in of_site.values()}) > 1:
        parts = [
            f"{site!r} has {join_names([repr(classes[label]) for label in sorted(labels)], 5)}"
            for site, labels in sorted(of_site.items())
        ]
        _warn(
            f"the sites have cases of different classes: {'; '.join(parts[:4])}. Where two sites label alike "
            "recordings differently, a neighbour's label says where it is from; compare the cases of each site "
            "alone."
        )


def _warn(text: str) -> None:
    warnings.warn(text, LibraryWarning, stacklevel=5)
