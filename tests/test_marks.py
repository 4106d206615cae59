"""Tests of marked events: tables, channels, differences of contacts, chance and plain detectors."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from raxss import Series
from raxss.data.montage import bipolar, channel_of
from raxss.errors import ConfigError, DataError, RecordingError
from raxss.explain.faithfulness import (
    Mark,
    WindowAttribution,
    as_marked,
    average_precisions,
    band_power,
    in_windows,
    line_length,
    read_events,
    read_marked,
    shift_test,
    truth_from,
    windows_that_know,
)

HEADER = "onset\tduration\ttrial_type\n"


@pytest.fixture
def events(tmp_path):
    def write(text):
        place = tmp_path / "events.tsv"
        place.write_text(text, "utf-8")
        return place

    return write


def contact(name, samples, recording="night", **more):
    return Series(
        samples, name=f"{recording}:{name}", origin={"recording": recording, "channel": name}, **more
    )


def attribution_in(length, starts, n_samples, rate=1.0):
    n = len(starts)
    return WindowAttribution(
        series=Series(np.zeros(n_samples), rate=rate),
        starts=np.asarray(starts),
        window_length=length,
        posteriors=np.full((n, 2), 0.5),
        weights=np.full(n, 1 / n),
        probability=np.full(2, 0.5),
    )


# Tables -------------------------------------------------------------------------------------------


def test_the_channel_may_stand_behind_the_kind_of_event(events):
    place = events(
        "\ufeff" + HEADER + "0.5\t0.1\tripple_AHR3-4\n1.5\t0.2\tfr_AHR3-4\n9\tn/a\tripple_AHR1-2\n2\t1\tnap\n"
    )
    assert read_events(place) == [Mark(0.5, 0.1, "AHR3-4", "ripple"), Mark(1.5, 0.2, "AHR3-4", "fr")]
    place = events("onset\tduration\tlabel\tchannels\n1\t1\thfo_fast\tC3\n")
    assert read_events(place) == [Mark(1.0, 1.0, "C3", "hfo_fast")]  # a column of channels goes before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "soon\t0.1\tripple_C3\n", r"'soon' in line 2, column 'onset'"),
        (HEADER + "1\t1\tripple_C3\n1\t-0.1\tripple_C3\n", r"'-0.1' in line 3, column 'duration'"),
        (HEADER + "1\tinf\tripple_C3\n", r"'inf' in line 2, column 'duration'"),
        (HEADER + "1\t1\tseizure\n", r"'events.tsv' have 1 rows, none of which"),
        ("onset\tduration\n1\t1\n", r"have the columns onset, duration; needed"),
        ("", r"'events.tsv' cannot be read: .*empty"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused_with_the_place(events, text, message):
    with pytest.raises(DataError, match=message):
        read_events(events(text))


def test_marks_are_cut_at_the_ends_and_never_shorter_than_a_sample(events):
    series = [contact("C3", np.zeros(10), rate=10.0, start_seconds=5.0)]
    truth = truth_from([Mark(4.9, 0.2, "C3"), Mark(5.5, 0.0, "C3"), Mark(5.9, 9.0, "POL C3")], series)
    assert np.flatnonzero(truth["night:C3"]).tolist() == [0, 5, 9]
    pairs = [contact("AHR3-AHR4", np.zeros(4)), contact("AHR4-AHR5", np.zeros(4))]
    assert list(truth_from([Mark(1.0, 1.0, "AHR3-4")], pairs)) == ["night:AHR3-AHR4"]  # in both spellings
    place = events(HEADER + "1\t1\tripple_AHR4\n")
    with pytest.raises(DataError, match=r"night:AHR3.*'events.tsv', which is about AHR4"):
        read_marked(place, [contact("AHR3", np.zeros(4))])


# Differences of contacts --------------------------------------------------------------------------


def test_a_pair_is_the_first_contact_less_the_second(rng):
    a, b, c = rng.normal(size=(3, 50))
    contacts = [contact(name, item, rate=50.0) for name, item in (("AD1", a), ("AD2", b), ("PD1", c))]
    found = bipolar(contacts, ["AD1-2", "AD2-PD1"])
    np.testing.assert_allclose(found[0].samples[0], a - b)
    np.testing.assert_allclose(found[1].samples[0], b - c)
    assert found.names == ["night:AD1-2", "night:AD2-PD1"]
    assert [channel_of(item) for item in found] == ["AD1-2", "AD2-PD1"]


SCALED = {"preparation": "resample 512 Hz, z-score"}


@pytest.mark.parametrize(
    ("first", "second", "pair", "message"),
    [
        ({}, {"recording": "day"}, "AD1-2", "both contacts of AD1-2; there are AD1, AD2"),
        (SCALED, SCALED, "AD1-2", r"'night:AD1' was scaled.*'AD1-2'"),
        ({"rate": 2.0}, {}, "AD1-2", r"4 samples at 2 Hz and 'night:AD2' 4 at 1 Hz"),
        ({}, {}, "AD1", "'AD1' is no pair"),
    ],
)
def test_differences_need_two_raw_contacts_of_one_recording_and_rate(first, second, pair, message):
    contacts = [contact("AD1", np.zeros(4), **first), contact("AD2", np.zeros(4), **second)]
    with pytest.raises((DataError, RecordingError), match=message):
        bipolar(contacts, [pair])


def test_marks_on_contacts_leave_series_as_they_are():
    contacts = [contact("AD1", np.zeros(4)), contact("AD2", np.zeros(4))]
    assert as_marked(contacts, [Mark(0.0, 1.0, "AD1")]) == contacts
    pairs = list(bipolar(contacts, ["AD1-2"]))
    assert as_marked(pairs, [Mark(0.0, 1.0, "AD1-AD2")]) == pairs


# Chance and what else finds events ----------------------------------------------------------------


def test_areas_are_those_of_scikit_learn_also_with_ties(rng):
    scores = np.repeat(rng.integers(0, 9, size=40).astype(float), 5)
    truths = rng.random((6, 200)) < 0.1
    expected = [average_precision_score(truth, scores) for truth in truths]
    np.testing.assert_allclose(average_precisions(scores, truths), expected, rtol=1e-12)


def test_shifts_tell_evidence_from_chance(rng):
    truths = [np.convolve(rng.random(600) < 0.01, np.ones(9), "same") > 0 for _ in range(4)]
    knows = [truth + rng.normal(size=600) for truth in truths]
    assert shift_test(knows, truths).p < 0.05
    ps = []
    for _ in range(40):  # scores as smooth as evidence, which know nothing
        smooth = [np.convolve(rng.normal(size=699), np.ones(100), "valid") for _ in truths]
        ps.append(shift_test(smooth, truths).p)
    assert 0.3 < np.mean(ps) < 0.7  # uniform under chance
    assert np.mean(np.array(ps) < 0.1) < 0.3
    scores, truth = rng.normal(size=64), rng.random(64) < 0.2
    found = shift_test([scores], [truth], step=16)
    areas = [average_precision_score(np.roll(truth, k), scores) for k in (0, 16, 32, 48)]
    np.testing.assert_allclose([found.area, *found.by_chance], areas)
    with pytest.raises(DataError, match=r"2 scores and 1 truths of \[4, 5\]"):
        shift_test([np.zeros(4), np.zeros(5)], [np.zeros(4, dtype=bool)])


def area_of_knowing(length, truth):
    attribution = attribution_in(length, range(0, len(truth) - length + 1, 4), len(truth))
    return average_precision_score(truth, windows_that_know(attribution, truth))


def test_windows_that_know_find_a_lone_event_and_long_ones_smear_crowded_events(rng):
    lone, crowded = np.zeros(400, dtype=bool), np.zeros(800, dtype=bool)
    lone[200:208] = True
    assert min(area_of_knowing(8, lone), area_of_knowing(64, lone)) > 0.9  # base rate .02
    for start in rng.integers(0, 790, size=14):
        crowded[start : start + 8] = True
    assert area_of_knowing(8, crowded) > 0.8
    assert area_of_knowing(256, crowded) < 0.5
    means = in_windows(attribution_in(4, [0, 4], 8), np.arange(8.0))
    np.testing.assert_allclose(means, [1.5] * 4 + [5.5] * 4)


def test_band_power_finds_a_planted_ripple_and_a_slow_wave_does_not_hide_it(rng):
    times = np.arange(4000) / 2000.0
    inside = (times >= 1.0) & (times < 1.08)
    slow = 200 * np.sin(2 * np.pi * 3 * times)
    series = Series(slow + rng.normal(size=4000) + 10 * inside * np.sin(2 * np.pi * 130 * times), rate=2000.0)
    assert average_precision_score(inside, band_power(series, 80, 250)) > 0.95
    assert average_precision_score(inside, line_length(series)) > 0.9
    assert average_precision_score(inside, band_power(series, 300, 500)) < 0.2  # nothing was planted there
    with pytest.raises(ConfigError, match=r"80 to 250 Hz.*400 Hz"):
        band_power(Series(np.zeros(400), rate=400.0, name="slow"), 80, 250)


# Real marks ---------------------------------------------------------------------------------------


def test_the_marks_of_the_zurich_clip_land_on_differences_of_its_contacts(shared_data):
    from raxss.data.bids import read_bids

    root = shared_data / "ds003498-clip"
    (place,) = (root / "sub-01").rglob("*_events.tsv")
    marks = read_events(place)
    kinds = [mark.kind for mark in marks]
    assert (len(marks), kinds.count("ripple"), kinds.count("fr"), kinds.count("frandr")) == (68, 60, 7, 1)
    contacts = read_bids(root, only_labelled=False)
    series, truth = read_marked(place, contacts)
    assert len(series) == len(truth) == 20
    name = "sub-01_ses-interictalsleep_run-01:AL1-2"
    assert (np.flatnonzero(truth[name])[0], truth[name].sum()) == (9727, 103)  # 4.8635 s, for .0515 s
    both = [item.samples for item in contacts if channel_of(item) in ("AL1", "AL2")]
    (own,) = (entry for entry in series if entry.name == name)
    np.testing.assert_allclose(own.samples, both[0] - both[1])


# The command ---------------------------------------------------------------------------------------


def test_the_command_asks_about_the_differences_that_marks_are_about_and_says_so(events, capsys):
    from raxss.cli.faithfulness import marked
    from raxss.data.series import SeriesCollection

    contacts = SeriesCollection(contact(f"AD{k}", np.arange(8.0) * k, rate=2.0) for k in (1, 2, 3))
    series, truth = marked(contacts, events(HEADER + "1\t1\tripple_AD2-3\n"))
    assert series.names == list(truth) == ["night:AD2-3"]
    assert "1 of these are asked about instead of 3 contacts" in capsys.readouterr().out
    series, truth = marked(contacts, events(HEADER + "1\t1\tripple_AD2\n"))
    assert (series.names, list(truth), capsys.readouterr().out) == (contacts.names, ["night:AD2"], "")
