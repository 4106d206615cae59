"""Small BIDS trees: sound ones, damaged ones, bombs and links out of the dataset.

Every tree is a dictionary of files, changed in one place. Signals come from the writers of the other modules.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import Case
from .brainvision import Triplet
from .edf import PERSON, SECRET, File, Signal

Content = str | bytes | Callable[[Path], Any] | None
Tree = Mapping[str, Content]

FOLDER = "sub-01/ses-1/ieeg/"
STEM = "sub-01_ses-1_task-rest_run-01"
NAMES = ("G1", "G2", "G3")
EDF = File(signals=tuple(Signal(name, seed=place) for place, name in enumerate(NAMES, start=1)))
CHANNELS, EVENTS = f"{FOLDER}{STEM}_channels.tsv", f"{FOLDER}{STEM}_events.tsv"
SIDECAR, SIGNAL = f"{FOLDER}{STEM}_ieeg.json", f"{FOLDER}{STEM}_ieeg.edf"
DESCRIPTION, PARTICIPANTS = "dataset_description.json", "participants.tsv"


def table(columns: str, *rows: str) -> str:
    return "\n".join([columns, *rows, ""]).replace(" ", "\t").replace("~", " ")  # ~ is a space within a cell


def channels(names: Sequence[str] = NAMES, rate: str = "100") -> str:
    rows = (f"{name} ECOG uV {rate} good" for name in names)
    return table("name type units sampling_frequency status", *rows)


BASE: Tree = {
    DESCRIPTION: json.dumps({"Name": "corpus", "BIDSVersion": "1.8.0"}),
    PARTICIPANTS: table("participant_id age", "sub-01 n/a"),
    CHANNELS: channels(),
    EVENTS: table("onset duration trial_type", "1.5 0 Jane~Doe~seizes", "n/a n/a x"),
    SIDECAR: json.dumps({"SamplingFrequency": 100, "TaskName": "rest", "InstitutionName": PERSON}),
    SIGNAL: EDF.bytes(),
}


def writer(changes: Tree) -> Callable[[Path], Path]:
    """Writes the base tree with some files changed or, by None, left out. A secret lies beside it."""

    def write(folder: Path) -> Path:
        (folder / "outside").mkdir()
        (folder / "outside" / "secret.tsv").write_bytes(SECRET * 10)
        root = folder / "tree"
        for name, content in {**BASE, **changes}.items():
            if content is None:
                continue
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if callable(content):
                content(path)
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
        return root

    return write


def case(name: str, verdict: str, changes: Tree, *codes: str, tag: str = "") -> Case:
    samples = None
    if verdict != "refused" and SIGNAL not in changes:
        samples = {place: signal.physical(EDF.n_records) for place, signal in enumerate(EDF.signals)}
    return Case(f"bids-{name}", writer(changes), verdict, codes, frozenset({tag} - {""}), samples=samples)


def ok(name: str, changes: Tree) -> Case:
    return case(name, "ok", changes)


def warned(name: str, changes: Tree, code: str) -> Case:
    return case(name, "warning", changes, code)


def refused(name: str, changes: Tree, code: str) -> Case:
    return case(name, "refused", changes, code)


def bomb(name: str, changes: Tree) -> Case:
    return case(f"bomb-{name}", "refused", changes, "sidecar-damaged", tag="bomb")


def moved(name: str, **others: Content) -> Tree:
    """The signal under another name, in the folder of sub-01 or of ``others``."""
    return {SIGNAL: None, CHANNELS: None, EVENTS: None, SIDECAR: None, name: EDF.bytes(), **others}


def link(target: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.symlink_to(target)

    return make


def out_of(path: str) -> Callable[[Path], None]:
    """A link from here to something in the folder beside the tree."""

    def make(place: Path) -> None:
        root = next(parent for parent in place.parents if parent.name == "tree")
        place.symlink_to(root.parent / "outside" / path)

    return make


def cases() -> list[Case]:
    return [*sound(), *doubtful(), *names(), *tables(), *absent(), *bombs(), *escapes()]


def sound() -> list[Case]:
    bom = "\ufeff"
    triplet = Triplet(common={"DataFile": f"{STEM}_ieeg.eeg", "MarkerFile": f"{STEM}_ieeg.vmrk"})
    markers = "Brain Vision Data Exchange Marker File, Version 1.0\n[Marker Infos]\nMk1=New Segment,,1,1,0\n"
    without_session = {
        **dict.fromkeys((SIGNAL, CHANNELS, EVENTS, SIDECAR)),
        "sub-01/eeg/sub-01_task-rest_eeg.edf": EDF.bytes(),
        "sub-01/eeg/sub-01_task-rest_channels.tsv": channels(),
        "sub-01/eeg/sub-01_task-rest_eeg.json": BASE[SIDECAR],
    }
    return [
        ok("plain", {}),
        ok("byte-order-marks", {CHANNELS: bom + channels(), EVENTS: bom + str(BASE[EVENTS])}),
        ok("no-session-eeg", without_session),
        ok("inherited-json", {SIDECAR: None, "task-rest_ieeg.json": BASE[SIDECAR]}),
        ok(
            "inherited-channels", {CHANNELS: None, f"{FOLDER}sub-01_ses-1_task-rest_channels.tsv": channels()}
        ),
        ok("channels-of-the-session", {CHANNELS: None, "sub-01/ses-1/sub-01_ses-1_channels.tsv": channels()}),
        ok("nearer-channels-win", {"sub-01/ses-1/sub-01_ses-1_channels.tsv": channels(("X", "Y", "Z"))}),
        ok(
            "brainvision",
            {
                SIGNAL: None,
                f"{FOLDER}{STEM}_ieeg.vhdr": triplet.header(),
                f"{FOLDER}{STEM}_ieeg.eeg": triplet.data(),
                f"{FOLDER}{STEM}_ieeg.vmrk": markers,
                CHANNELS: channels(("Fz", "Cz", "Pz"), "500"),
                SIDECAR: '{"SamplingFrequency": 500.0}',
                EVENTS: None,
            },
        ),
        ok("rounded-rate", {SIDECAR: '{"SamplingFrequency": 99.99999}'}),
        ok("rate-not-told", {CHANNELS: channels(rate="n/a")}),
        ok("hidden-files-of-other-systems", {f"{FOLDER}._{STEM}_ieeg.edf": b"\x00\x05\x16\x07"}),
        ok("annex-link-with-content", {SIGNAL: link_with_content}),
    ]


def link_with_content(path: Path) -> None:
    """As git-annex leaves it after a download: a link to an object inside the dataset."""
    root = next(parent for parent in path.parents if parent.name == "tree")
    stored = root / ".git" / "annex" / "objects" / "k.edf"
    stored.parent.mkdir(parents=True)
    stored.write_bytes(EDF.bytes())
    path.symlink_to(os.path.relpath(stored, path.parent))


def doubtful() -> list[Case]:
    prefixed = File(
        signals=tuple(Signal(f"POL {name}", seed=place) for place, name in enumerate(NAMES, start=1))
    )
    nameless = File(signals=(Signal("G1", seed=1), Signal("", seed=2), Signal("", seed=3)))
    return [
        warned("no-description-fields", {DESCRIPTION: "{}"}, "sidecar-incomplete"),
        warned("no-participants", {PARTICIPANTS: None}, "sidecar-missing"),
        warned(
            "subject-not-listed", {PARTICIPANTS: table("participant_id", "sub-02")}, "participants-disagree"
        ),
        warned("no-channels", {CHANNELS: None}, "sidecar-missing"),
        warned("prefixes", {SIGNAL: prefixed.bytes()}, "channels-renamed"),
        warned("other-case-and-spaces", {CHANNELS: channels(("g1", "G~2", "G03"))}, "channels-renamed"),
        warned(
            "nameless-channels",
            {SIGNAL: nameless.bytes(), CHANNELS: channels(("G1", "n/a", "n/a"))},
            "nameless-channel",
        ),
        warned("no-type", {CHANNELS: table("name", *NAMES)}, "sidecar-incomplete"),
        warned("rate-in-the-table-no-number", {CHANNELS: channels(rate="fast")}, "rate-disagrees"),
        warned("rate-in-json-nan", {SIDECAR: '{"SamplingFrequency": NaN}'}, "rate-disagrees"),
        warned("rate-in-json-huge", {SIDECAR: '{"SamplingFrequency": 1' + "0" * 400 + "}"}, "rate-disagrees"),
        warned("events-before-the-start", {EVENTS: table("onset duration", "-3 0")}, "events-outside"),
        warned("rate-not-in-json", {SIDECAR: "{}"}, "sidecar-incomplete"),
        warned("events-without-duration", {EVENTS: table("onset", "1")}, "sidecar-incomplete"),
    ]


def names() -> list[Case]:
    other = FOLDER.replace("01", "02")
    vhdr = Triplet(common={"DataFile": f"{STEM}_ieeg.eeg", "MarkerFile": None}, markers=None)
    twice = {f"{FOLDER}{STEM}_ieeg.vhdr": vhdr.header(), f"{FOLDER}{STEM}_ieeg.eeg": vhdr.data()}
    return [
        refused("subject-in-another-folder", moved(f"{other}{STEM}_ieeg.edf"), "not-bids"),
        refused("session-only-in-the-folder", moved(f"{FOLDER}sub-01_task-rest_ieeg.edf"), "not-bids"),
        refused("session-in-another-folder", moved(f"sub-01/ses-2/ieeg/{STEM}_ieeg.edf"), "not-bids"),
        refused("session-only-in-the-name", moved(f"sub-01/ieeg/{STEM}_ieeg.edf"), "not-bids"),
        refused("entity-twice", moved(f"{FOLDER}sub-01_ses-1_run-1_run-2_ieeg.edf"), "not-bids"),
        refused("free-name", moved(f"{FOLDER}recording.edf"), "not-bids"),
        refused("suffix-of-another-type", moved(f"{FOLDER}{STEM}_eeg.edf"), "not-bids"),
        refused("two-signals-of-one-name", twice, "not-bids"),
        refused("run-1-and-run-01", {SIGNAL.replace("run-01", "run-1"): EDF.bytes()}, "not-bids"),
        refused("subject-without-a-label", {"sub-/ieeg/sub-_ieeg.edf": EDF.bytes()}, "not-bids"),
        refused("type-not-read", moved(f"{FOLDER}{STEM}_ieeg.nwb"), "not-a-recording"),
        refused(
            "two-tables-apply-alike",
            {
                CHANNELS: None,
                f"{FOLDER}sub-01_ses-1_run-01_channels.tsv": channels(),
                f"{FOLDER}sub-01_ses-1_task-rest_channels.tsv": channels(),
            },
            "not-bids",
        ),
    ]


def tables() -> list[Case]:
    ragged = channels() + "G4\tECOG\n"
    return [
        refused("description-not-json", {DESCRIPTION: "{"}, "sidecar-damaged"),
        refused("description-a-list", {DESCRIPTION: "[]"}, "sidecar-damaged"),
        refused("channels-only-a-header", {CHANNELS: channels(())}, "sidecar-damaged"),
        refused("description-not-utf-8", {DESCRIPTION: b'{"Name": "\xff"}'}, "sidecar-damaged"),
        refused("description-a-folder", {DESCRIPTION: os.mkdir}, "not-readable"),
        refused(
            "participant-twice",
            {PARTICIPANTS: table("participant_id", "sub-01", "sub-01")},
            "sidecar-damaged",
        ),
        refused(
            "participants-without-id", {PARTICIPANTS: table("name", PERSON.split()[0])}, "sidecar-damaged"
        ),
        refused("channel-twice", {CHANNELS: channels(("G1", "G2", "G2"))}, "channels-disagree"),
        refused("channel-with-a-prime", {CHANNELS: channels(("G1", "G2", "G3'"))}, "channels-disagree"),
        refused("channels-of-two-spellings", {CHANNELS: channels(("G1", "g1", "G3"))}, "channels-disagree"),
        refused("channels-empty", {CHANNELS: ""}, "sidecar-damaged"),
        refused("channels-without-names", {CHANNELS: table("type", "ECOG")}, "sidecar-damaged"),
        refused("channels-ragged", {CHANNELS: ragged}, "sidecar-damaged"),
        refused("channels-not-utf-8", {CHANNELS: channels().encode("utf-16")}, "sidecar-damaged"),
        refused("channels-a-pipe", {CHANNELS: os.mkfifo}, "not-readable"),
        refused("json-damaged", {SIDECAR: '{"SamplingFrequency": 100'}, "sidecar-damaged"),
        refused("events-onset-no-number", {EVENTS: table("onset duration", "soon 0")}, "sidecar-damaged"),
        refused("events-without-onset", {EVENTS: table("time duration", "1 0")}, "sidecar-damaged"),
        refused("signal-damaged", {SIGNAL: EDF.bytes()[:700]}, "header-damaged"),
    ]


def absent() -> list[Case]:
    nothing = dict.fromkeys((SIGNAL, CHANNELS, EVENTS, SIDECAR, PARTICIPANTS))
    return [
        refused("signal-missing", {SIGNAL: None}, "not-found"),
        refused(
            "signal-a-dangling-annex-link", {SIGNAL: link("../../../.git/annex/objects/k.edf")}, "not-found"
        ),
        refused("signal-an-annex-pointer", {SIGNAL: "/annex/objects/MD5E-s3--0.edf\n"}, "not-found"),
        refused(
            "data-without-a-header", {SIGNAL: None, f"{FOLDER}{STEM}_ieeg.eeg": b"\x00" * 99}, "not-found"
        ),
        refused("no-recordings", nothing, "no-data"),
    ]


def bombs() -> list[Case]:
    deep = "[" * 4_000_000
    wide = table("onset duration", *["1 0"] * 10) + "1\t" * 4_000_000
    return [
        bomb("json-deep", {SIDECAR: deep}),
        bomb("json-large", {SIDECAR: '{"a": "' + "x" * 9000000 + '"}'}),
        bomb("json-digits", {SIDECAR: "1" * 3000000}),
        bomb("events-wide", {EVENTS: wide}),
        bomb("channels-long", {CHANNELS: channels() + "x" * 9000000}),
    ]


def escapes() -> list[Case]:
    vhdr = Triplet(common={"DataFile": "../../../../outside/secret.tsv", "MarkerFile": None}, markers=None)
    leaving = {SIGNAL: None, f"{FOLDER}{STEM}_ieeg.vhdr": vhdr.header()}
    empty = dict.fromkeys((SIGNAL, CHANNELS, EVENTS, SIDECAR))
    changes: dict[str, Tree] = {
        "channels-link": {CHANNELS: out_of("secret.tsv")},
        "events-link": {EVENTS: out_of("secret.tsv")},
        "json-link": {SIDECAR: out_of("secret.tsv")},
        "inherited-link": {CHANNELS: None, "task-rest_channels.tsv": out_of("secret.tsv")},
        "participants-link": {PARTICIPANTS: out_of("secret.tsv")},
        "description-link": {DESCRIPTION: out_of("secret.tsv")},
        "signal-link": {SIGNAL: out_of("secret.tsv")},
        "folder-of-a-subject": {"sub-02": out_of("")},
        "folder-of-a-session": {"sub-01/ses-2": out_of("")},
        "folder-of-signals": {**empty, "sub-01/ses-1/ieeg": out_of("")},
        "data-file": leaving,
    }
    return [
        case(f"escape-{name}", "refused", change, "outside", tag="escape") for name, change in changes.items()
    ]
