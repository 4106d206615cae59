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


def case(name: str, verdict: str, changes: Tree, *codes: str, tags: Sequence[str] = ()) -> Case:
    return Case(f"bids-{name}", writer(changes), verdict, codes, frozenset(tags))


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
    return [*sound(), *warned(), *names(), *tables(), *absent(), *bombs(), *escapes()]


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
        case("plain", "ok", {}),
        case("byte-order-marks", "ok", {CHANNELS: bom + channels(), EVENTS: bom + str(BASE[EVENTS])}),
        case("windows-lines", "ok", {CHANNELS: channels().replace("\n", "\r\n")}),
        case("no-events", "ok", {EVENTS: None}),
        case("no-session-eeg", "ok", without_session),
        case("inherited-json", "ok", {SIDECAR: None, "task-rest_ieeg.json": BASE[SIDECAR]}),
        case(
            "inherited-channels",
            "ok",
            {CHANNELS: None, f"{FOLDER}sub-01_ses-1_task-rest_channels.tsv": channels()},
        ),
        case(
            "channels-of-the-session",
            "ok",
            {CHANNELS: None, "sub-01/ses-1/sub-01_ses-1_channels.tsv": channels()},
        ),
        case(
            "nearer-channels-win", "ok", {"sub-01/ses-1/sub-01_ses-1_channels.tsv": channels(("X", "Y", "Z"))}
        ),
        case(
            "brainvision",
            "ok",
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
        case("rounded-rate", "ok", {SIDECAR: '{"SamplingFrequency": 99.99999}'}),
        case("rate-not-told", "ok", {CHANNELS: channels(rate="n/a")}),
        case("hidden-files-of-other-systems", "ok", {f"{FOLDER}._{STEM}_ieeg.edf": b"\0\5\26\7"}),
        case("annex-link-with-content", "ok", {SIGNAL: link_with_content}),
    ]


def link_with_content(path: Path) -> None:
    """As git-annex leaves it after a download: a link to an object inside the dataset."""
    root = next(parent for parent in path.parents if parent.name == "tree")
    stored = root / ".git" / "annex" / "objects" / "k.edf"
    stored.parent.mkdir(parents=True)
    stored.write_bytes(EDF.bytes())
    path.symlink_to(os.path.relpath(stored, path.parent))


def warned() -> list[Case]:
    prefixed = File(
        signals=tuple(Signal(f"POL {name}", seed=place) for place, name in enumerate(NAMES, start=1))
    )
    nameless = File(signals=(Signal("G1", seed=1), Signal("", seed=2), Signal("", seed=3)))
    return [
        case("no-description-fields", "warning", {DESCRIPTION: "{}"}, "sidecar-incomplete"),
        case("no-participants", "warning", {PARTICIPANTS: None}, "sidecar-missing"),
        case(
            "subject-not-listed",
            "warning",
            {PARTICIPANTS: table("participant_id", "sub-02")},
            "participants-disagree",
        ),
        case("no-channels", "warning", {CHANNELS: None}, "sidecar-missing"),
        case("no-json", "warning", {SIDECAR: None}, "sidecar-missing"),
        case("prefixes", "warning", {SIGNAL: prefixed.bytes()}, "channels-renamed"),
        case(
            "other-case-and-spaces", "warning", {CHANNELS: channels(("g1", "G~2", "G03"))}, "channels-renamed"
        ),
        case("other-order", "warning", {CHANNELS: channels(("G3", "G1", "G2"))}, "channels-reordered"),
        case(
            "nameless-channels",
            "warning",
            {SIGNAL: nameless.bytes(), CHANNELS: channels(("G1", "n/a", "n/a"))},
            "nameless-channel",
        ),
        case("no-type", "warning", {CHANNELS: table("name", *NAMES)}, "sidecar-incomplete"),
        case("other-rate-in-the-table", "warning", {CHANNELS: channels(rate="512")}, "rate-disagrees"),
        case("rate-in-the-table-no-number", "warning", {CHANNELS: channels(rate="fast")}, "rate-disagrees"),
        case("other-rate-in-json", "warning", {SIDECAR: '{"SamplingFrequency": 1000}'}, "rate-disagrees"),
        case("rate-in-json-nan", "warning", {SIDECAR: '{"SamplingFrequency": NaN}'}, "rate-disagrees"),
        case("rate-in-json-text", "warning", {SIDECAR: '{"SamplingFrequency": "100 Hz"}'}, "rate-disagrees"),
        case(
            "rate-in-json-huge",
            "warning",
            {SIDECAR: '{"SamplingFrequency": 1' + "0" * 400 + "}"},
            "rate-disagrees",
        ),
        case("rate-not-in-json", "warning", {SIDECAR: "{}"}, "sidecar-incomplete"),
        case(
            "events-after-the-end", "warning", {EVENTS: table("onset duration", "9999 0")}, "events-outside"
        ),
        case(
            "events-before-the-start", "warning", {EVENTS: table("onset duration", "-3 0")}, "events-outside"
        ),
        case("events-without-duration", "warning", {EVENTS: table("onset", "1")}, "sidecar-incomplete"),
    ]


def names() -> list[Case]:
    other = FOLDER.replace("01", "02")
    vhdr = Triplet(common={"DataFile": f"{STEM}_ieeg.eeg", "MarkerFile": None}, markers=None)
    twice = {f"{FOLDER}{STEM}_ieeg.vhdr": vhdr.header(), f"{FOLDER}{STEM}_ieeg.eeg": vhdr.data()}
    return [
        case("subject-in-another-folder", "refused", moved(f"{other}{STEM}_ieeg.edf"), "not-bids"),
        case("session-in-another-folder", "refused", moved(f"sub-01/ses-2/ieeg/{STEM}_ieeg.edf"), "not-bids"),
        case("session-only-in-the-name", "refused", moved(f"sub-01/ieeg/{STEM}_ieeg.edf"), "not-bids"),
        case(
            "session-only-in-the-folder", "refused", moved(f"{FOLDER}sub-01_task-rest_ieeg.edf"), "not-bids"
        ),
        case("free-name", "refused", moved(f"{FOLDER}recording.edf"), "not-bids"),
        case("suffix-of-another-type", "refused", moved(f"{FOLDER}{STEM}_eeg.edf"), "not-bids"),
        case("entity-twice", "refused", moved(f"{FOLDER}sub-01_ses-1_run-1_run-2_ieeg.edf"), "not-bids"),
        case("two-signals-of-one-name", "refused", twice, "not-bids"),
        case("run-1-and-run-01", "refused", {SIGNAL.replace("run-01", "run-1"): EDF.bytes()}, "not-bids"),
        case("subject-without-a-label", "refused", {"sub-/ieeg/sub-_ieeg.edf": EDF.bytes()}, "not-bids"),
        case("subject-with-an-underscore", "refused", {"sub-0_2/ieeg/x.edf": EDF.bytes()}, "not-bids"),
        case("type-not-read", "refused", moved(f"{FOLDER}{STEM}_ieeg.nwb"), "not-a-recording"),
        case(
            "two-tables-apply-alike",
            "refused",
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
        case("description-not-json", "refused", {DESCRIPTION: "{"}, "sidecar-damaged"),
        case("description-a-list", "refused", {DESCRIPTION: "[]"}, "sidecar-damaged"),
        case("description-not-utf-8", "refused", {DESCRIPTION: b'{"Name": "\xff"}'}, "sidecar-damaged"),
        case("description-a-folder", "refused", {DESCRIPTION: os.mkdir}, "not-readable"),
        case(
            "participant-twice",
            "refused",
            {PARTICIPANTS: table("participant_id", "sub-01", "sub-01")},
            "sidecar-damaged",
        ),
        case(
            "participants-without-id",
            "refused",
            {PARTICIPANTS: table("name", PERSON.split()[0])},
            "sidecar-damaged",
        ),
        case("channel-missing", "refused", {CHANNELS: channels(("G1", "G2"))}, "channels-disagree"),
        case("channel-too-many", "refused", {CHANNELS: channels((*NAMES, "G4"))}, "channels-disagree"),
        case(
            "channel-of-another-name",
            "refused",
            {CHANNELS: channels(("G1", "G2", "H3"))},
            "channels-disagree",
        ),
        case("channel-twice", "refused", {CHANNELS: channels(("G1", "G2", "G2"))}, "channels-disagree"),
        case(
            "channel-with-a-prime", "refused", {CHANNELS: channels(("G1", "G2", "G3'"))}, "channels-disagree"
        ),
        case(
            "channel-with-a-dollar", "refused", {CHANNELS: channels(("G1", "G2", "$G3"))}, "channels-disagree"
        ),
        case(
            "channels-of-two-spellings",
            "refused",
            {CHANNELS: channels(("G1", "g1", "G3"))},
            "channels-disagree",
        ),
        case("channels-empty", "refused", {CHANNELS: ""}, "sidecar-damaged"),
        case("channels-only-a-header", "refused", {CHANNELS: channels(())}, "sidecar-damaged"),
        case("channels-without-names", "refused", {CHANNELS: table("type", "ECOG")}, "sidecar-damaged"),
        case("channels-ragged", "refused", {CHANNELS: ragged}, "sidecar-damaged"),
        case("channels-not-utf-8", "refused", {CHANNELS: channels().encode("utf-16")}, "sidecar-damaged"),
        case("channels-column-twice", "refused", {CHANNELS: table("name name", "G1 G2")}, "sidecar-damaged"),
        case("channels-a-pipe", "refused", {CHANNELS: os.mkfifo}, "not-readable"),
        case("json-damaged", "refused", {SIDECAR: '{"SamplingFrequency": 100'}, "sidecar-damaged"),
        case("json-a-number", "refused", {SIDECAR: "100"}, "sidecar-damaged"),
        case(
            "events-onset-no-number",
            "refused",
            {EVENTS: table("onset duration", "soon 0")},
            "sidecar-damaged",
        ),
        case("events-without-onset", "refused", {EVENTS: table("time duration", "1 0")}, "sidecar-damaged"),
        case("signal-damaged", "refused", {SIGNAL: EDF.bytes()[:700]}, "header-damaged"),
    ]


def absent() -> list[Case]:
    nothing = dict.fromkeys((SIGNAL, CHANNELS, EVENTS, SIDECAR, PARTICIPANTS))
    return [
        case("signal-missing", "refused", {SIGNAL: None}, "not-found"),
        case(
            "signal-a-dangling-annex-link",
            "refused",
            {SIGNAL: link("../../../.git/annex/objects/k.edf")},
            "not-found",
        ),
        case("signal-an-annex-pointer", "refused", {SIGNAL: "/annex/objects/MD5E-s3--0.edf\n"}, "not-found"),
        case(
            "channels-a-dangling-annex-link",
            "refused",
            {CHANNELS: link("../../../.git/annex/k")},
            "not-found",
        ),
        case(
            "data-without-a-header",
            "refused",
            {SIGNAL: None, f"{FOLDER}{STEM}_ieeg.eeg": b"\0" * 99},
            "not-found",
        ),
        case("no-recordings", "refused", nothing, "no-data"),
    ]


def bombs() -> list[Case]:
    deep = "[" * 4_000_000
    wide = table("onset duration", *["1 0"] * 10) + "1\t" * 4_000_000
    return [
        case("bomb-json-deep", "refused", {SIDECAR: deep}, "sidecar-damaged", tags=["bomb"]),
        case(
            "bomb-json-large",
            "refused",
            {SIDECAR: '{"a": "' + "x" * 9_000_000 + '"}'},
            "sidecar-damaged",
            tags=["bomb"],
        ),
        case("bomb-json-digits", "refused", {SIDECAR: "1" * 3_000_000}, "sidecar-damaged", tags=["bomb"]),
        case("bomb-events-wide", "refused", {EVENTS: wide}, "sidecar-damaged", tags=["bomb"]),
        case(
            "bomb-channels-long",
            "refused",
            {CHANNELS: channels() + "x" * 9_000_000},
            "sidecar-damaged",
            tags=["bomb"],
        ),
    ]


def escapes() -> list[Case]:
    vhdr = Triplet(common={"DataFile": "../../../../outside/secret.tsv", "MarkerFile": None}, markers=None)
    leaving = {SIGNAL: None, f"{FOLDER}{STEM}_ieeg.vhdr": vhdr.header()}
    empty = dict.fromkeys((SIGNAL, CHANNELS, EVENTS, SIDECAR))
    changes: dict[str, Tree] = {
        "channels-link": {CHANNELS: out_of("secret.tsv")},
        "events-link": {EVENTS: out_of("secret.tsv")},
        "json-link": {SIDECAR: out_of("secret.tsv")},
        "participants-link": {PARTICIPANTS: out_of("secret.tsv")},
        "description-link": {DESCRIPTION: out_of("secret.tsv")},
        "signal-link": {SIGNAL: out_of("secret.tsv")},
        "inherited-link": {CHANNELS: None, "task-rest_channels.tsv": out_of("secret.tsv")},
        "folder-of-a-subject": {"sub-02": out_of("")},
        "folder-of-a-session": {"sub-01/ses-2": out_of("")},
        "folder-of-signals": {**empty, "sub-01/ses-1/ieeg": out_of("")},
        "data-file": leaving,
    }
    return [
        case(f"escape-{name}", "refused", change, "outside", tags=["escape"])
        for name, change in changes.items()
    ]
