"""BIDS trees: plan of their labelled series, and table of their channels.

    root, labels -> runs, sidecars, channels -> CollectionPlan: what to read; what is absent; what did not match
    root         -> table, one row per channel of a run, from the sidecars alone

A tree without signals (sidecars only, or pointers of git-annex) still gives its table and one clear list of what to
fetch. Nothing is read that a link or a name leads out of the root.
Next: prepare/ carries the plan out; datasets/ has trees by name.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raxss.data.bids_tree import (
    CLINICAL_SHEET,
    N_LISTED,
    BidsLabels,
    BidsRun,
    Tree,
    centre_of,
    channel_rows,
    find_labels,
    first_cell,
    is_bids_root,
    list_names,
    open_tree,
    read_participants,
    runs_of,
    sidecar,
    sidecars,
)
from raxss.data.contacts import WHOLE_SHAFT, electrode_of, is_contact, looks_like_contacts
from raxss.data.formats.opening import files_of, open_recording
from raxss.data.formats.registry import bids_suffixes
from raxss.data.labels import (
    OUTCOME_COLUMNS,
    LabelName,
    read_events,
    seizure_onset,
)
from raxss.data.names import canonical, match_channels
from raxss.data.plan import CollectionPlan, RecordingPlan, SeriesPlan, read_plan
from raxss.data.recording import Recording
from raxss.data.selection import (
    CHANNEL_TYPES,
    ChannelRow,
    by_name,
    checked_sidecars,
    why_none,
)
from raxss.data.series import SeriesCollection
from raxss.errors import (
    ConfigError,
    LabelError,
    MissingExtraError,
    RAxSSWarning,
    RecordingError,
    display_name,
    join_names,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CLINICAL_SHEET", "bids_table", "is_bids_root", "plan_bids", "read_bids"]

NOT_UNDERSTOOD = "not understood, so channels whose label is not certain have none"

# --- the plan


def plan_bids(
    root: Path | str,
    *,
    labels: Path | str | None = None,
    label: LabelName = "soz",
    only_labelled: bool = True,
    crop: tuple[float, float] | None = None,
    recordings: Collection[str] | None = None,
) -> CollectionPlan:
    """Plan the series of a BIDS tree, one a good channel and run; list what is absent or did not match.

    Parameters
    ----------
    labels
        A clinical sheet (``.xlsx``, ``.csv``, ``.tsv`` with ``soz_contacts``) or a label table
        (``recording,channel,label``). Without it: ``sourcedata/clinical_data_summary.xlsx`` if there is one, else
        what ``channels.tsv`` says itself (``soz``, ``resect`` as columns or in ``status_description``).
    label
        ``"soz"``, or ``"resect"`` for what surgery took out. The other channels are ``"other"`` where that is
        certain, and else have no label.
    only_labelled
        Leave out channels without a label, and so all of a patient who was not annotated.
    crop
        First and last second to keep, counted from the seizure's onset, such as ``(-10, 20)``. Runs whose
        ``events.tsv`` has no such mark are left out and listed.
    recordings
        Only these, by name (``sub-pt01_ses-presurgery_task-ictal_run-01``), labelled as they are among all.
    """
    from raxss.data.datasets.registry import DATASETS  # which itself plans BIDS trees

    if crop is not None and not (all(map(math.isfinite, crop)) and crop[0] < crop[1]):
        raise ConfigError(
            f"crop is {crop}; two seconds around the onset are needed, the first before the last."
        )
    tree = open_tree(root)
    runs = runs_of(tree)
    found = find_labels(tree, runs, labels, label)  # of all runs: one may label another of its patient
    if recordings is not None:
        for name in sorted(set(recordings) - {run.name for run in runs}):
            raise RecordingError(
                f"BIDS root {display_name(tree.root)} has no recording {display_name(name)}; its {len(runs)} "
                f"recordings are {join_names((run.name for run in runs), 5)}."
            )
        runs = [run for run in runs if run.name in recordings]
    participants_file, participants = read_participants(tree)
    shared = tuple(path for path in (participants_file, found.path) if path is not None)
    planner = _Planner(tree, found, participants, shared, only_labelled, crop)
    planned = [planner.plan(run) for run in runs]
    absent = [name for run in runs for name in run.absent]
    identity = _openneuro_id(tree)
    dataset = DATASETS.get(identity)
    sheet_is_due = dataset is not None and dataset.label_file == CLINICAL_SHEET.as_posix()
    sheet_is_due |= os.path.lexists(tree.root / CLINICAL_SHEET)
    where = "copy the files from where the dataset came from, or run 'git annex get .' in a git-annex clone"
    if dataset is not None and dataset.base:
        where = f"raxss datasets download {identity} --root FOLDER"
    elif identity:
        where = f"download {identity} from OpenNeuro, or run 'git annex get .' in a clone of it"
    if labels is None and not found.are_there and sheet_is_due:
        absent.append(CLINICAL_SHEET.as_posix())
    return CollectionPlan(
        tree.root.name,
        tree.root,
        tuple(item for item in planned if item is not None),
        absent=tuple(absent),
        where_to_get=where if absent else "",
        unmatched=(*tree.remarks, *found.remarks, *planner.sentences(runs)),
        refused=tuple(planner.refused),
        group_by="patient",
    )


def read_bids(root: Path | str, **options: Any) -> SeriesCollection:
    """Read all that `plan_bids` plans, in memory, with one warning of what is absent or did not match.

    With ``only_labelled=False`` labels do not matter, and so are not mentioned.
    """
    return read_plan(plan_to_read(root, **options))


def plan_to_read(root: Path | str, **options: Any) -> CollectionPlan:
    """Plan of `plan_bids`, after a warning of what is absent or did not match; an error if nothing is left."""
    plan = plan_bids(root, **options)
    remarks = [f"{plan.absence(N_LISTED)} To get: {plan.where_to_get}."] * bool(plan.absent) + list(
        plan.refused
    )
    labels_matter = options.get("only_labelled", True)
    matters = ("is left out", "left out:", "was not read", "sidecars disagree")
    remarks += [item for item in plan.unmatched if labels_matter or any(text in item for text in matters)]
    if not plan.recordings:
        raise RecordingError(f"{plan.source!r} has no series to read. {' '.join(remarks)}".rstrip())
    if remarks:
        warnings.warn(f"of {plan.source!r}: {' '.join(remarks)}", RAxSSWarning, stacklevel=3)
    return plan


@dataclass
class _Planner:
    """Plans run after run, and collects what there is to report."""

    tree: Tree
    labels: BidsLabels
    participants: Mapping[str, Mapping[str, str]]
    shared_files: tuple[Path, ...]
    only_labelled: bool
    crop: tuple[float, float] | None
    left_out: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    contacts: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    shafts: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    bad_contacts: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    known: set[str] = field(default_factory=set)  # channels and shafts of the tree, which may be quoted

    def plan(self, run: BidsRun) -> RecordingPlan | None:
        """The series of one run; None where there is nothing to read."""
        if run.signal is None or (self.only_labelled and not self.labels.has(run.patient)):
            return None
        if run.signal.suffix.lower() not in bids_suffixes():
            self._report(run, f"is left out: raxss does not read {run.signal.suffix} files.")
            return None
        try:
            return self._planned(run, run.signal)
        except MissingExtraError:
            raise
        except (RecordingError, LabelError) as error:
            self.refused.append(f"recording {run.name} is left out: {error}")
            return None

    def _report(self, run: BidsRun, text: str) -> None:
        self.left_out.append(f"recording {run.name} {text}")

    def _planned(self, run: BidsRun, signal: Path) -> RecordingPlan | None:
        channels_file, channels = channel_rows(self.tree, run)
        sidecars = [] if channels_file is None else [channels_file]
        crop = None
        if self.crop is not None:
            events_file = sidecar(self.tree, run, "events.tsv")
            if events_file is None:
                self._report(run, "is left out, because a crop was asked for and it has no events.tsv.")
                return None
            self.tree.refuse_outside(events_file)
            onset = seizure_onset(read_events(events_file))
            if onset is None:
                why = "no event is certain to mark the seizure's onset"
                self._report(run, f"is left out, because a crop was asked for and {why}.")
                return None
            crop = onset + self.crop[0], onset + self.crop[1]
            sidecars.append(events_file)
        opener = partial(open_recording, signal, root=self.tree.root)
        with opener() as recording:
            for message in checked_sidecars(signal, self.tree.root):
                self._report(run, f"and its sidecars disagree: {message}")
            names = [channel.name for channel in recording.channels]
            if channels_file is None:
                kept, sentence = by_name(names)
                kind = CHANNEL_TYPES[run.datatype][0]
                channels = [ChannelRow(names[place], kind, True, {}) for place in kept]
                places: list[int | None] = list(kept)
                taken = f"all {len(channels)}" if not sentence else f"{sentence}; the other {len(channels)}"
                self._report(run, f"has no channels.tsv: {taken} channels are taken as good.")
            else:
                places = match_channels([channel.name for channel in channels], names)
                rows = zip(channels, places, strict=True)
                unlisted = [name or "n/a" for place, name in enumerate(names) if place not in places]
                if lost := [channel.name or "n/a" for channel, place in rows if place is None]:
                    self._report(run, f"lacks channels of its channels.tsv: {list_names(lost)}.")
                if unlisted:
                    text = (
                        f"channels.tsv of recording {run.name} lacks channels of it: {list_names(unlisted)}."
                    )
                    self.left_out.append(text)
            series = self._series(run, channels, places, self._segments(run, recording, crop), crop)
        if not series:
            return None
        return RecordingPlan(
            run.name, (*files_of(signal), *sidecars, *self.shared_files), opener, tuple(series)
        )

    def _segments(
        self, run: BidsRun, recording: Recording, crop: tuple[float, float] | None
    ) -> dict[int, str]:
        """Segments that the crop touches, with what their series' names end in; a crop cut short is reported."""
        n_segments = len(recording.segments)
        named = {place: f"#{place + 1}" if n_segments > 1 else "" for place in range(n_segments)}
        if crop is None:
            return named
        shared = [
            min(crop[1], segment.start_seconds + segment.seconds) - max(crop[0], segment.start_seconds)
            for segment in recording.segments
        ]
        kept, wanted = sum(max(0.0, seconds) for seconds in shared), crop[1] - crop[0]
        a_sample = 1 / min(channel.rate for channel in recording.channels)
        if kept == 0:
            self._report(run, "is left out: it ends before the crop, or begins after it.")
        elif wanted - kept > a_sample:
            self._report(
                run,
                f"has {kept:.4g} of the {wanted:.4g} s of the crop; the rest lies before its start, behind its "
                "end or in a gap, and is left out.",
            )
        return {place: text for place, text in named.items() if shared[place] > 0}

    def _series(
        self,
        run: BidsRun,
        channels: Sequence[ChannelRow],
        places: Sequence[int | None],
        segments: Mapping[int, str],
        crop: tuple[float, float] | None,
    ) -> list[SeriesPlan]:
        labels, unmatched = self.labels.of(self.tree, run, channels)
        self.known |= {spell(item.name) for item in channels for spell in (canonical, electrode_of)}
        for contact in unmatched:
            self.contacts[run.patient, contact].append(run.name)
        named = [item for item, label in zip(channels, labels, strict=True) if label == self.labels.label]
        for shaft in self.labels.whole_shafts(run.patient):
            self.shafts[run.patient, shaft] |= {
                item.name for item in named if electrode_of(item.name) == shaft
            }
        types = CHANNEL_TYPES[run.datatype]
        if not any(item.is_wanted(types) for item in channels):
            self._report(run, f"is left out: {why_none(types, channels)}.")
            return []
        self.bad_contacts[run.patient] |= {item.name for item in named if not item.is_good}
        series, unlabelled = [], []
        n_named = Counter(channel.name for channel in channels)
        for channel, place, label in zip(channels, places, labels, strict=True):
            if place is None or not channel.is_wanted(types):
                continue
            if self.only_labelled and label is None:
                unlabelled.append(channel.name or "n/a")
                continue
            is_unique = n_named[channel.name] == 1 and channel.name
            name = f"{run.name}:{channel.name or 'n/a'}{'' if is_unique else f'@{place}'}"
            centre = centre_of(run.patient, self.participants, self.labels)
            origin = {"centre": centre} if centre else {}
            origin |= {
                "patient": run.patient,
                "recording": run.name,
                "electrode": f"{run.patient}/{electrode_of(channel.name)}",
                "channel": channel.name,
            }
            series += [
                SeriesPlan(f"{name}{ending}", (place,), segment, label, origin, crop)
                for segment, ending in segments.items()
            ]
        if unlabelled:
            self._report(run, f"has channels without a label, left out: {list_names(unlabelled)}.")
        return series

    def sentences(self, runs: Sequence[BidsRun]) -> list[str]:
        """What did not match, a sentence each."""
        sentences = []
        patients = list(dict.fromkeys(run.patient for run in runs))
        name = self.labels.label.upper() if self.labels.label == "soz" else "resection"
        if not self.labels.are_there:
            sentences.append(
                f"no {name} labels were found, neither {CLINICAL_SHEET.as_posix()} nor in channels.tsv; give a "
                "clinical sheet or a label table (recording,channel,label)."
            )
        unlisted = [patient for patient in patients if patient not in self.participants]
        if self.participants and unlisted:
            sentences.append(
                f"subjects without a row in participants.tsv, of unknown centre: {list_names(unlisted)}."
            )
        without = [patient for patient in patients if not self.labels.has(patient)]
        if self.labels.are_there and without:
            fate = "left out" if self.only_labelled else "without label"
            sentences.append(f"patients without {name} annotation, {fate}: {list_names(without)}.")
        texts: Counter[str] = Counter()
        for (patient, contact), where in self.contacts.items():
            of = sum(run.patient == patient and run.signal is not None for run in runs)
            is_known = canonical(contact.removesuffix(WHOLE_SHAFT)) in self.known
            if self.labels.rows is not None and not is_known and not looks_like_contacts(contact):
                texts[patient] += 1  # free text may say anything, so it is counted and not quoted
            elif self.labels.rows is not None and not is_contact(contact):
                sentences.append(f"patient {patient}: {contact!r} of the {name} cell was {NOT_UNDERSTOOD}.")
            else:
                sentences.append(
                    f"patient {patient}: {name} contact {contact} has no certain channel in "
                    f"{len(where)} of {of} runs."
                )
        for (patient, shaft), named in self.shafts.items():
            if named:
                taken = f"is given without contacts; taken as all: {_in_order(named)}"
                sentences.append(f"patient {patient}: {name} shaft {shaft} {taken}.")
        for patient, count in texts.items():
            pieces = "1 piece" if count == 1 else f"{count} pieces"
            was = "was" if count == 1 else "were"
            sentences.append(f"patient {patient}: {pieces} of the {name} cell {was} {NOT_UNDERSTOOD}.")
        sentences += [
            f"patient {patient}: {name} contacts on bad channels, left out: {_in_order(bad)}."
            for patient, bad in self.bad_contacts.items()
            if bad
        ]
        return sentences + self.left_out


def _in_order(names: Collection[str]) -> str:
    """Names in a sentence, G2 before G10."""

    def parts(name: str) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]

    return list_names(sorted(names, key=parts))


def _openneuro_id(tree: Tree) -> str:
    """``ds003029``, if the dataset says that it is one of OpenNeuro's."""
    path = tree.root / "dataset_description.json"
    if path.name not in tree.names(tree.root):
        return ""
    try:
        found = re.search(r"openneuro\.(ds\d{6})", str(tree.json(path).get("DatasetDOI", "")), re.IGNORECASE)
    except RecordingError as error:
        tree.remarks.append(str(error))
        return ""
    return found.group(1).lower() if found else ""


# --- the table

TABLE_COLUMNS = [
    *("patient", "centre", "recording", "channel", "electrode", "type", "status"),
    *("rate", "seconds", "label", "outcome"),
]


def bids_table(root: Path | str) -> pd.DataFrame:
    """One row a channel of a run, from the sidecars alone: signals need not be there.

    Columns: ``patient``, ``centre``, ``recording``, ``channel``, ``electrode``, ``type``, ``status``, ``rate``
    (Hz), ``seconds``, ``label`` (None without annotation), ``outcome`` (``S`` success, ``F`` failure, ``NR`` no
    resection). All types and states of channels are in it.
    """
    import pandas as pd

    tree = open_tree(root)
    runs = runs_of(tree)
    found = find_labels(tree, runs, None, "soz")
    _, participants = read_participants(tree)
    rows: list[dict[str, Any]] = []
    for run in runs:
        _, channels = channel_rows(tree, run)
        about: dict[str, Any] = {}
        for path in reversed(sidecars(tree, run, f"{run.datatype}.json")):
            about |= tree.json(path)
        who = participants.get(run.patient, {})
        row = found.rows.get(run.patient) if found.rows is not None else None
        outcome = first_cell(who, OUTCOME_COLUMNS) or (row.outcome if row else "")
        labels, _ = found.of(tree, run, channels)
        rows += [
            {
                "patient": run.patient,
                "centre": centre_of(run.patient, participants, found),
                "recording": run.name,
                "channel": channel.name,
                "electrode": f"{run.patient}/{electrode_of(channel.name)}",
                "type": channel.kind,
                "status": "good" if channel.is_good else "bad",
                "rate": _number(channel.cells.get("sampling_frequency") or about.get("SamplingFrequency")),
                "seconds": _number(about.get("RecordingDuration")),
                "label": channel_label,
                "outcome": outcome,
            }
            for channel, channel_label in zip(channels, labels, strict=True)
        ]
    return pd.DataFrame(rows, columns=TABLE_COLUMNS)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
