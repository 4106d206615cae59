"""What a BIDS sidecar and the recording both state must agree; each row of the table breaks one agreement.

The tree is the corpus's own: one EDF recording of three channels in microvolts at 100 Hz with its sidecars.
"""

import json
import warnings
from dataclasses import dataclass, field

import pytest

from corpus import bids as tree
from corpus.edf import File, Signal
from raxss.data.bids import plan_bids
from raxss.data.files import read_inputs
from raxss.data.inspection.bids import inspect_bids_root
from raxss.data.inspection.front import inspect_paths
from raxss.errors import RAxSSWarning, RecordingError

SECONDS = tree.EDF.n_records * float(tree.EDF.seconds)
ELECTRODES = f"{tree.FOLDER}sub-01_ses-1_space-MNI_electrodes.tsv"
ABOUT = {
    "SamplingFrequency": 100,
    "TaskName": "rest",
    "RecordingDuration": SECONDS,
    "RecordingType": "continuous",
    "PowerLineFrequency": 50,
    "ECOGChannelCount": 3,
    "SEEGChannelCount": 0,
    "MiscChannelCount": 0,
}


def channels(names=tree.NAMES, *, kind="ECOG", units="uV", rate="100", status="good", others=()):
    rows = [f"{name} {kind} {units} {rate} {status}" for name in names]
    return tree.table("name type units sampling_frequency status", *rows, *others)


def about(**changes):
    return json.dumps({**ABOUT, **changes})


def events(*rows, columns="onset duration sample"):
    return tree.table(columns, *rows)


AGREEING = {
    tree.CHANNELS: channels(),
    tree.SIDECAR: about(),
    tree.EVENTS: events("1.5 0.5 150"),
    ELECTRODES: tree.table("name x y z", *(f"{name} 1 2 3" for name in (*tree.NAMES, "G9"))),
}


@dataclass(frozen=True)
class Agreement:
    """One fact that two files state.

    ``changes``: what breaks it. ``code``: of the problem. ``says``: the two values, which the message must name.
    ``stops``: whether reading the tree or the file stops, too.
    """

    name: str
    changes: dict = field(default_factory=dict)
    code: str = ""
    says: tuple[str, ...] = ()
    stops: bool = False


TABLE = [
    Agreement("channels.tsv units: factor 1000", {tree.CHANNELS: channels(units="mV")}, "units-disagree",
              ("3 of 3", "'G1'", "mV", "uV", "factor of 1000"), stops=True),
    Agreement("channels.tsv units: factor 1/1000", {tree.CHANNELS: channels(units="nV")}, "units-disagree",
              ("nV", "uV", "factor of 0.001"), stops=True),
    Agreement("channels.tsv units: V of converters", {tree.CHANNELS: channels(units="V")}, "units-in-volts",
              ("3 channels", "V")),
    Agreement("channels.tsv name: one unknown", {tree.CHANNELS: channels(("G1", "G2", "H9"))}, "channels-disagree",
              ("'H9'", "'G3'")),
    Agreement("channels.tsv name: one missing", {tree.CHANNELS: channels(("G1", "G2"))}, "channels-disagree",
              ("2 channels", "recording 3", "'G3'")),
    Agreement("channels.tsv name: order", {tree.CHANNELS: channels(("G2", "G1", "G3"))}, "channels-reordered", ()),
    Agreement("channels.tsv sampling_frequency", {tree.CHANNELS: channels(rate="1000")}, "rate-disagrees",
              ("3 channels", "1000 for 100 Hz")),
    Agreement("channels.tsv type: a trigger called an electrode", {
        tree.SIGNAL: File(signals=(*tree.EDF.signals, Signal("TRIG", seed=9))).bytes(),
        tree.CHANNELS: channels((*tree.NAMES, "TRIG")), tree.SIDECAR: about(ECOGChannelCount=4)},
              "sidecar-disagrees", ("1 channels", "'TRIG'")),
    Agreement("channels.tsv status: neither good nor bad", {tree.CHANNELS: channels(status="rejected")},
              "sidecar-incomplete", ("3 of 3 rows", "neither good nor bad")),
    Agreement("json SamplingFrequency", {tree.SIDECAR: about(SamplingFrequency=1000)}, "rate-disagrees",
              ("1000", "100 Hz")),
    Agreement("json SamplingFrequency: a word", {tree.SIDECAR: about(SamplingFrequency="fast")}, "rate-disagrees",
              ("no number", "100 Hz")),
    Agreement("json SamplingFrequency: inherited and wrong", {
        tree.SIDECAR: json.dumps({"TaskName": "rest"}), "task-rest_ieeg.json": about(SamplingFrequency=50)},
              "rate-disagrees", ("50", "100 Hz")),
    Agreement("json SamplingFrequency: twice", {
        tree.SIDECAR: '{"SamplingFrequency": 1000, "SamplingFrequency": 100}'}, "sidecar-damaged",
              ("'SamplingFrequency' twice",), stops=True),
    Agreement("json: a field twice in a nested object", {
        tree.SIDECAR: '{"SamplingFrequency": 100, "HardwareFilters": {"a": 1, "a": 2}}'}, "sidecar-damaged",
              ("'a' twice",), stops=True),
    Agreement("json RecordingDuration", {tree.SIDECAR: about(RecordingDuration=SECONDS + 60)}, "sidecar-disagrees",
              (f"{SECONDS + 60:g} s", f"{SECONDS:g} s")),
    Agreement("json count of a type", {tree.SIDECAR: about(ECOGChannelCount=64)}, "sidecar-disagrees",
              ("ECOGChannelCount is 64", "3 of type ECOG")),
    Agreement("json count of a type that the table lacks", {tree.SIDECAR: about(TriggerChannelCount=1)},
              "sidecar-disagrees", ("TriggerChannelCount is 1", "0 of type TRIG")),
    Agreement("json counts without a table", {tree.CHANNELS: None, tree.SIDECAR: about(SEEGChannelCount=99)},
              "sidecar-disagrees", ("102 channels", "has 3")),
    Agreement("electrodes.tsv names", {ELECTRODES: tree.table("name x", "A1 1", "G1 1")}, "sidecar-disagrees",
              ("2 of 3 channels", "'G2', 'G3'", "electrodes.tsv")),
    Agreement("events.tsv onset behind the end", {tree.EVENTS: events(f"{SECONDS + 1} 0 n/a")}, "events-outside",
              ("1 of 1 events", f"{SECONDS:g} s")),
    Agreement("events.tsv duration beyond the end", {tree.EVENTS: events(f"{SECONDS - 1} 9 n/a")}, "events-outside",
              ("1 of 1 events", "last beyond")),
    Agreement("events.tsv sample", {tree.EVENTS: events("1.5 0 15000")}, "sidecar-disagrees",
              ("1 events", "15000 for 150", "100 Hz")),
]  # fmt: skip


def root_of(folder, changes):
    return tree.writer({**AGREEING, **changes})(folder)


def test_a_tree_whose_files_agree_has_no_problem(tmp_path):
    assert [item.problems for item in inspect_bids_root(root_of(tmp_path, {}))] == [(), ()]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_disagreement_is_found_by_name_with_both_values(tmp_path, row):
    root = root_of(tmp_path, row.changes)
    _, recording = inspect_bids_root(root)
    found = [problem for problem in recording.problems if problem.code == row.code]
    assert len(found) == 1, recording.problems
    assert all(text in found[0].message for text in row.says), found[0].message
    (alone,) = inspect_paths([root / tree.SIGNAL])  # the file by itself, as `raxss check FILE` looks at it
    assert alone.problems == recording.problems


@pytest.mark.parametrize("row", [row for row in TABLE if row.stops], ids=lambda row: row.name)
def test_what_makes_signal_or_scale_uncertain_stops_reading_too(tmp_path, row):
    root = root_of(tmp_path, row.changes)
    plan = plan_bids(root, only_labelled=False)
    assert len(plan) == 0
    assert any(f"[{row.code}]" in item for item in plan.refused), plan.refused
    with pytest.raises(RecordingError, match=rf"\[{row.code}\]"):
        read_inputs([root / tree.SIGNAL])


@pytest.mark.parametrize("name", ["json SamplingFrequency", "json RecordingDuration", "json count of a type"])
def test_what_the_header_settles_is_read_and_told(tmp_path, name):
    row = next(item for item in TABLE if item.name == name)
    root = root_of(tmp_path, row.changes)
    assert any(
        all(text in item for text in row.says) for item in plan_bids(root, only_labelled=False).unmatched
    )
    with pytest.warns(RAxSSWarning, match="disagree") as caught:
        assert len(read_inputs([root / tree.SIGNAL])) == 3
    assert all(text in str(caught[0].message) for text in row.says)


def test_files_that_agree_are_read_without_a_word(tmp_path):
    root = root_of(tmp_path, {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(read_inputs([root / tree.SIGNAL])) == 3
    assert not [item for item in plan_bids(root, only_labelled=False).unmatched if "disagree" in item]


@pytest.mark.parametrize("unit", ["n/a", "%", "uV", "\u00b5V"])
def test_a_unit_that_is_none_or_the_same_disagrees_with_nothing(tmp_path, unit):
    _, recording = inspect_bids_root(root_of(tmp_path, {tree.CHANNELS: channels(units=unit)}))
    assert recording.problems == ()
