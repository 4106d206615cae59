"""Claims about annotations for MNE: they lie where the windows are, on their channel, in every kind of file."""

import datetime
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose

from raxss.errors import DataError, MissingExtraError
from raxss.explain import mne_annotations
from raxss.explain.findings import strongest_apart
from test_findings import channels_of, explained

mne = pytest.importorskip("mne")
DATE = datetime.datetime(2001, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)


def raw_of(names=("C0", "C1", "C2"), *, first_sample=0, date=None):
    info = mne.create_info(list(names), 20.0, "ecog")
    samples = 1e-5 * np.random.default_rng(0).normal(size=(len(names), 400))
    raw = mne.io.RawArray(samples, info, first_samp=first_sample, verbose="ERROR")
    return raw.set_meas_date(date)


def placed(raw):
    """(seconds from the first sample, duration, channel, text) of each mark, in order."""
    shift = raw.first_time  # MNE counts from the first sample of the acquisition
    return sorted(
        (
            round(annotation["onset"] - shift, 3),
            round(annotation["duration"], 3),
            annotation["ch_names"],
            str(annotation["description"]),
        )
        for annotation in raw.annotations
    )


def expected(evidence, names=None):
    rows = []
    for place, item in enumerate(evidence):
        name = item.series.origin["channel"] if names is None else names[place]
        for row in strongest_apart(item).to_dict("records"):
            text = f"raxss/{item.predicted} p={row['probability']:.2f} rank {row['rank']}"
            rows.append((round(row["start_s"], 3), round(row["end_s"] - row["start_s"], 3), (name,), text))
    return sorted(rows)


@pytest.mark.parametrize("date", [None, DATE])
@pytest.mark.parametrize("first_sample", [0, 60])
def test_marks_lie_at_their_windows_whatever_date_and_first_sample(date, first_sample):
    evidence = channels_of("a", 3)
    raw = raw_of(date=date, first_sample=first_sample)
    raw.set_annotations(mne_annotations(evidence))
    assert placed(raw) == expected(evidence)
    # and by MNE's own way to samples: those of the recording, counted from its first
    events, texts = mne.events_from_annotations(raw, verbose="ERROR")
    named = {number: text for text, number in texts.items()}
    found = sorted(((sample - raw.first_samp) / 20, str(named[number])) for sample, _, number in events)
    assert found == sorted((onset, text) for onset, _, _, text in expected(evidence))


@pytest.mark.parametrize("suffix", ["_raw.fif", ".edf"])
def test_marks_survive_a_file(tmp_path, suffix):
    evidence = channels_of("a", 3)
    raw = raw_of(date=DATE)
    raw.set_annotations(mne_annotations(evidence))
    path = tmp_path / f"a{suffix}"
    if suffix == ".edf":
        mne.export.export_raw(path, raw, physical_range=(-1e-3, 1e-3), verbose="ERROR")
        again = mne.io.read_raw_edf(path, verbose="ERROR")
    else:
        raw.save(path, verbose="ERROR")
        again = mne.io.read_raw_fif(path, verbose="ERROR")
    found = placed(again)
    assert [item[1:] for item in found] == [item[1:] for item in expected(evidence)]
    assert_allclose([item[0] for item in found], [item[0] for item in expected(evidence)], atol=1e-3)


def test_channels_take_the_names_that_the_recording_has():
    evidence = channels_of("a", 2)
    names = ["EKG", "POL C1", "POL C0"]
    raw = raw_of(names)
    raw.set_annotations(mne_annotations(evidence, raw=raw))
    assert placed(raw) == expected(evidence, ["POL C0", "POL C1"])
    with pytest.raises(DataError, match=r"1 of 2 channels have no certain partner in raw.ch_names: 'C1'"):
        mne_annotations(evidence, raw=raw_of(["C0", "X"]))


@pytest.mark.parametrize(("date", "first_sample"), [(None, 0), (DATE, 0), (DATE, 60)])
def test_marks_can_be_added_to_those_that_a_recording_has(date, first_sample):
    evidence = channels_of("a", 3)
    raw = raw_of(date=date, first_sample=first_sample)
    raw.set_annotations(mne.Annotations([1.5], [0.5], ["nurse"], ch_names=[("C1",)]))
    raw.set_annotations(raw.annotations + mne_annotations(evidence, raw=raw))
    assert placed(raw) == sorted([*expected(evidence), (1.5, 0.5, ("C1",), "nurse")])


def test_a_series_of_no_single_channel_marks_all():
    evidence = explained(1)
    assert set(mne_annotations(evidence).ch_names) == {()}
    assert mne_annotations(evidence, n_windows=2, class_="soz").description[1].startswith("raxss/soz p=")


def test_hostile_class_names_are_escaped():
    (text,) = mne_annotations(explained(1, classes=("a\x00\u202e", "a\x00\u202e!")), n_windows=1).description
    assert text.isprintable()
    assert "a\\x00\\u202e" in text


def test_without_mne_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mne", None)
    with pytest.raises(MissingExtraError, match=r"need the package mne.*pip install 'raxss\[bids\]'"):
        mne_annotations(explained(1))
