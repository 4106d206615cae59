"""Tests of findings of a recording: the strongest windows, other weights, ranks, escapes."""

import weakref

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pages import evidence_of
from raxss.data.series import Series
from raxss.errors import ConfigError
from raxss.explain.escape import plain
from raxss.explain.findings import class_of, strongest_apart, under_other_weights, watched


def explained(seed=0, *, n=400, samples=None, classes=("other", "soz"), stride=5, smoothing=0.0, **about):
    """The evidence of a made-up network about noise."""
    samples = np.random.default_rng(seed).normal(size=n) if samples is None else samples
    series = Series(samples, **{"rate": 20.0, "name": f"s{seed}", **about})
    options = {"window_length": 40, "stride": stride, "n_neighbors": 4, "smoothing": smoothing}
    return evidence_of(series, seed=seed, classes=classes, **options)


def channels_of(recording, n, first=0):
    return [
        explained(first + k, name=f"{recording}:C{k}", origin={"recording": recording, "channel": f"C{k}"})
        for k in range(n)
    ]


def apart_by_a_plain_loop(evidence, n, class_):
    """Windows by contribution; one that shares time with a better one is passed over."""
    table = evidence.windows.sort_values(f"contribution_{class_}", ascending=False, kind="stable")
    chosen = []
    for _, row in table[table["weight"] > 0].iterrows():
        if all(row["end_s"] <= item["start_s"] or item["end_s"] <= row["start_s"] for item in chosen):
            chosen.append(row)
    return [int(row["window"]) for row in chosen[:n]]


@pytest.mark.parametrize("stride", [5, 40, 60])
@pytest.mark.parametrize("class_", ["other", "soz"])
def test_the_strongest_windows_apart_are_those_of_a_plain_loop(stride, class_):
    evidence = explained(3, stride=stride)
    found = strongest_apart(evidence, 6, class_)
    assert found["window"].tolist() == apart_by_a_plain_loop(evidence, 6, class_)
    assert found["rank"].tolist() == list(range(1, len(found) + 1))
    assert_allclose(found["contribution"], found["weight"] * found["probability"], rtol=1e-12)
    smoothed = explained(2, smoothing=0.5)
    row = strongest_apart(smoothed, 1, "soz").iloc[0]  # the probability is the one that is weighted
    assert row["probability"] == smoothed.windows["smoothed_soz"][row["window"]]


def test_windows_that_are_mostly_missing_are_never_the_strongest():
    samples = np.random.default_rng(0).normal(size=400)
    samples[100:140] = np.nan
    evidence = explained(samples=samples)
    found = strongest_apart(evidence, 100)
    assert not evidence.windows["nonfinite"][found["window"]].any()
    assert len(found) >= 5


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_other_weights_are_the_softmax_by_hand(smoothing):
    evidence = explained(5, smoothing=smoothing)
    table = evidence.windows
    scores = under_other_weights(evidence)
    values = table["smoothed_soz" if smoothing else "posterior_soz"].to_numpy()
    assert scores["uniform"][1] == pytest.approx(values.mean(), abs=1e-12)
    inverse = np.exp(-table["support"] / 0.1)
    assert scores["inverse"][1] == pytest.approx((inverse / inverse.sum()) @ values, abs=1e-9)
    assert all(item.sum() == pytest.approx(1) for item in scores.values())


def test_recordings_are_done_when_their_last_channel_has_passed():
    done = []
    seen = []
    for item in watched([*channels_of("a", 3), *channels_of("b", 2, first=9)], done.append):
        seen.append((item.name, len(done)))
    assert seen == [("a:C0", 0), ("a:C1", 0), ("a:C2", 0), ("b:C0", 1), ("b:C1", 1)]
    assert [(item.name, len(item.channels)) for item in done] == [("a", 3), ("b", 2)]


def test_channels_are_ranked_by_the_given_class():
    for class_, place in (("other", 0), ("soz", 1), (None, 1)):
        done = []
        every = list(watched(channels_of("a", 5), done.append, class_=class_))
        (found,) = done
        chances = [item.series_probability[place] for item in every]
        assert [item.evidence.probability[place] for item in found.ranked()] == sorted(chances, reverse=True)


def test_evidence_is_released_once_it_has_passed():
    alive = []

    def made():
        for index in range(4):
            evidence = channels_of("a", 1, first=index)[0]
            alive.append(weakref.ref(evidence))
            yield evidence
            del evidence

    most = 0
    for item in watched(made(), lambda found: None):
        del item
        most = max(most, sum(reference() is not None for reference in alive))
    assert most <= 2  # the one that passes, and the generator's


def test_a_class_may_be_given_as_text_and_an_unknown_one_is_refused():
    assert class_of((0, 1, 2), "2") == 2
    rare = {"training_data": {"classes": {"0": 5, "1": 2, "2": 9}}}
    assert (class_of((0, 1, 2), None, rare), class_of((0, 1, 2), "2", rare)) == (
        1,
        2,
    )  # the rarest is default
    with pytest.raises(ConfigError, match=r"'sox' is not a class of this model; did you mean 'soz'"):
        class_of(("other", "soz"), "sox")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("G1\x00\x1b[2J", "G1\\x00\\x1b[2J"),
        ("safe\u202etxt.exe", "safe\\u202etxt.exe"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("half\udcff", "half\\udcff"),
        ("a\nb\tc", "a b c"),
        ("\u2028", "\\u2028"),
        ("日本", "\\u65e5\\u672c"),  # no glyph in the font
        ("🧠", "\\U0001f9e0"),
        ("µV Ω é $x^2$", "µV Ω é $x^2$"),
    ],
)
def test_what_cannot_be_drawn_is_shown_as_an_escape(text, shown):
    assert plain(text) == shown
    assert plain(text + "x" * 500 + "last", 21)[10:] == "…xxxxxxlast"  # a long text keeps its ends
    assert len(plain(text * 500_000, 21)) <= 21
