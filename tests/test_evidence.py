"""Tests of evidence: sums, weights without a neighbour, tables, warnings. Files: test_evidence_files.py."""

import math
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose

import naive
from pages import traced
from raxss.data.series import Series
from raxss.errors import ConfigError, DataError
from raxss.explain import SeriesEvidence, trace
from raxss.explain.evidence import largest
from raxss.explain.neighbour_lists import weight_without
from raxss.method.aggregation import aggregate
from raxss.method.retrieval import retrieve
from raxss.method.windows import windows_of


def explain(series, *, classes=("no", "yes"), posteriors=None, **options):
    """Evidence of random posteriors, with real retrieval."""
    if posteriors is None:
        posteriors = partial(np.random.default_rng(7).dirichlet, np.ones(len(classes)))
    options = {"window_length": 20, "stride": 5, "temperature": 0.1, **options}
    return traced(series, posteriors, classes=classes, **options)


def noise(n=400, seed=0, **about):
    return Series(np.random.default_rng(seed).normal(size=n), **{"rate": 10.0, "name": "noise", **about})


def test_contributions_sum_to_the_series_probability():
    evidence = explain(noise(), classes=["a", "b", "c"], exclusion=10)
    for class_, probability in zip("abc", evidence.series_probability, strict=True):
        assert evidence.windows[f"contribution_{class_}"].sum() == pytest.approx(probability, abs=1e-12)
    assert evidence.windows["weight"].sum() == pytest.approx(1, abs=1e-12)


def test_the_weight_without_a_neighbor_matches_the_naive_oracle():
    retrieval = retrieve(noise(120).samples, window_length=20, stride=5, n_neighbors=4, exclusion=60)
    assert 0 < retrieval.lonely.sum() < len(retrieval.starts)
    fast = weight_without(retrieval.similarity, retrieval.support, retrieval.flat, temperature=0.1)
    for k, j in np.argwhere(retrieval.neighbors >= 0):
        plain = naive.weight_without(retrieval.similarity.tolist(), k, j, 0.1)
        assert fast[k, j] == pytest.approx(plain, abs=1e-9)


def test_the_weight_without_a_neighbor_survives_a_temperature_at_which_powers_overflow():
    similarity = np.array([[0.9, 0.1], [0.5, 0.5]])  # without its best neighbour the first window loses all
    support = np.array([0.5, 0.5])
    weights = weight_without(similarity, support, np.zeros(2, bool), temperature=1e-4)
    assert_allclose(weights[0], [0.0, 1.0], atol=1e-12)
    assert_allclose(weights[1], [0.5, 0.5])


def test_losing_the_last_list_of_a_series_makes_all_weights_equal():
    similarity = np.array([[0.8], [np.nan], [np.nan], [np.nan]])
    support = np.array([0.8, 0.8, 0.8, np.nan])
    weights = weight_without(similarity, support, np.zeros(4, bool), temperature=0.1)
    assert weights[0, 0] == pytest.approx(1 / 3)


def test_the_tables_say_what_retrieval_and_aggregation_found():
    series = noise(label="yes", start_seconds=100.0)
    retrieval = retrieve(series.samples, window_length=20, stride=5, n_neighbors=3)
    evidence = explain(series, n_neighbors=3)
    assert list(evidence.windows) == [
        "window", "start_s", "end_s", "posterior_no", "posterior_yes", "support", "weight",
        "contribution_no", "contribution_yes", "flat", "nonfinite", "lonely", "padded",
    ]  # fmt: skip
    assert_allclose(evidence.windows["support"], retrieval.support)
    assert_allclose(evidence.windows["start_s"], 100 + retrieval.starts / 10)
    assert_allclose(evidence.windows["end_s"], 102 + retrieval.starts / 10)
    for window in (0, 40, 76):
        board = evidence.leaderboard(window)
        assert list(board["rank"]) == [1, 2, 3]
        assert_allclose(board["neighbor"], retrieval.neighbors[window])
        assert_allclose(board["similarity"], retrieval.similarity[window])
        assert_allclose(board["start_s"], 100 + retrieval.starts[retrieval.neighbors[window]] / 10)
    assert evidence.settings["n_neighbors"] == 3
    assert evidence.settings["temperature"] == 0.1
    assert evidence.settings["window_length"] == 20


def test_overlap_is_the_time_shared_with_the_query():
    evidence = explain(noise(), n_neighbors=10)
    board = evidence.neighbors
    starts = evidence.windows["start_s"].to_numpy()
    shared = np.maximum(2.0 - np.abs(starts[board["window"]] - starts[board["neighbor"]]), 0)
    assert_allclose(board["overlap_s"], shared, atol=1e-9)
    retrieval = retrieve(noise().samples, window_length=20, stride=5, n_neighbors=10)
    assert (board["overlaps"].to_numpy() == retrieval.overlaps[retrieval.neighbors >= 0]).all()
    assert evidence.overlap_share == pytest.approx(retrieval.overlap_share)
    assert 0 < evidence.overlap_share < 1


def test_top_windows_are_ordered_by_contribution_and_ties_by_time():
    evidence = explain(
        noise(), classes=[0, 1], weighting="uniform", posteriors=np.tile([0.25, 0.75], (77, 1))
    )
    assert list(evidence.top_windows(4)["window"]) == [0, 1, 2, 3]
    posteriors = np.tile([0.25, 0.75], (77, 1))
    posteriors[50] = [1.0, 0.0]
    evidence = explain(noise(), classes=[0, 1], weighting="uniform", posteriors=posteriors)
    assert evidence.top_windows(1, class_=0)["window"].item() == 50
    assert len(evidence.top_windows(None)) == 77
    with pytest.raises(ConfigError, match=r"'x' is not a class of series 'noise'; its classes are 0, 1"):
        evidence.top_windows(1, class_="x")


def test_parts_of_different_windows_are_refused():
    series = noise()
    retrieval = retrieve(series.samples, window_length=20, stride=5)
    prediction = aggregate(np.full((77, 2), 0.5), retrieval.support)
    other = windows_of(series, window_length=20, stride=10)
    with pytest.raises(ConfigError, match="39 of length 20, retrieval for 77 of length 20"):
        trace(series, other, retrieval, prediction, classes=[0, 1])
    windows = windows_of(series, window_length=20, stride=5)
    with pytest.raises(ConfigError, match="posteriors of 2 classes, but 3 were named: 0, 1, 2"):
        trace(series, windows, retrieval, prediction, classes=[0, 1, 2])
    with pytest.raises(ConfigError, match="classes 1, '1' read the same"):
        trace(series, windows, retrieval, prediction, classes=[1, "1"])
    changed = aggregate(np.full((77, 2), 0.5), -retrieval.support)
    with pytest.raises(ConfigError, match="'noise' was aggregated with other supports"):
        trace(series, windows, retrieval, changed, classes=[0, 1])
    given = {"temperature": 9.0, "preset": "paper"}  # what was used is not replaced by what is given
    settings = trace(series, windows, retrieval, prediction, classes=[0, 1], settings=given).settings
    assert (settings["temperature"], settings["preset"]) == (prediction.temperature, "paper")


# Warnings: each where it belongs, and only there.


@pytest.mark.parametrize(
    ("temperature", "text", "low", "high"),
    [
        (0.1, None, 0.05, 0.95),
        (10.0, "plain mean (SSS)", 0.95, 1.0),
        (0.002, "few windows determine", 0.0, 0.05),
    ],
)
def test_weights_that_are_nearly_uniform_or_nearly_one_give_a_warning(temperature, text, low, high):
    evidence = explain(noise(), exclusion=20, n_neighbors=3, temperature=temperature)
    assert low < evidence.effective_share < high
    assert len(evidence.warnings) == (text is not None)
    for warning in evidence.warnings:
        assert text in warning
        assert f"{evidence.effective_windows:.4g} of 77 windows" in warning


def test_overlapping_lists_give_a_warning():
    smooth = Series(np.random.default_rng(0).normal(size=400).cumsum(), name="smooth")
    found = explain(smooth, window_length=100, n_neighbors=3).warnings
    (warning,) = [item for item in found if "overlap their query" in item]
    assert "(50 samples)" in warning  # half a window
    apart = explain(smooth, window_length=100, n_neighbors=3, exclusion=100)
    assert not any("overlap" in warning for warning in apart.warnings)
    some = explain(noise(), window_length=60)
    assert 0.2 < some.overlap_share < 0.5
    assert not any("overlap" in warning for warning in some.warnings)


def test_flat_windows_and_those_with_missing_samples_are_counted():
    samples = noise().samples.copy()
    samples[0, 100:160] = 3.0
    samples[0, 200:215] = np.nan
    evidence = explain(Series(samples), exclusion=20, n_neighbors=3)
    assert evidence.windows["flat"].sum() == 9
    assert evidence.windows.loc[evidence.windows["nonfinite"], "weight"].eq(0).all()
    shares = evidence.windows["missing_share"]
    assert shares[[36, 37, 38, 40, 42]].tolist() == [0.0, 0.25, 0.5, 0.75, 0.25]  # windows of 20 at stride 5
    assert (evidence.windows["nonfinite"] == (shares > 0.5)).all()
    assert (evidence.windows["weight"][shares == 0.5] > 0).all()
    assert evidence.warnings[:3] == [
        "4 of 77 windows have missing samples, up to half; they are compared over the samples that both windows "
        "have.",
        "2 of 77 windows have more than half of their samples missing; their weight is 0 and they are no one's "
        "neighbour.",
        "9 of 77 windows are flat: similarity 0 to all, support 0, posterior kept.",
    ]
    assert evidence.effective_share == pytest.approx(evidence.effective_windows / 75)
    assert evidence.leaderboard(int(evidence.windows["nonfinite"].idxmax())).empty
    with pytest.raises(DataError, match=r"'noise' has no window 77; its windows are 0 to 76"):
        explain(noise()).leaderboard(77)


def test_a_padded_series_has_one_window_and_a_warning():
    evidence = explain(noise(12), window_length=20)
    assert evidence.windows["padded"].all()
    assert evidence.windows["end_s"].item() == pytest.approx(1.2)
    assert evidence.warnings == [
        "the series, 1.2 s, is shorter than one window and was padded with zeros behind.",
        "there is one usable window, and it decides alone.",
    ]
    assert math.isnan(evidence.overlap_share)
    assert evidence.leaderboard(0).empty
    assert explain(noise(20)).warnings == evidence.warnings[1:]  # one window, not padded


def test_a_series_without_any_neighbor_says_its_weights_are_uniform():
    evidence = explain(noise(40), exclusion=1000)
    assert evidence.warnings == ["none of the 5 windows has an eligible neighbour: the weights are uniform."]
    assert_allclose(evidence.windows["weight"], 0.2)
    assert evidence.windows["lonely"].all()


def test_short_and_empty_lists_are_counted():
    evidence = explain(noise(60), exclusion=20, n_neighbors=4)  # windows at 0, 5, ..., 40
    counts = evidence.neighbors["window"].value_counts().reindex(range(9), fill_value=0)
    assert list(counts) == [4, 3, 2, 1, 0, 1, 2, 3, 4]
    assert [warning for warning in evidence.warnings if "fewer than" in warning] == [
        "7 of 9 windows (77.8 %) have fewer than 4 neighbours; 1 of them have none and take the mean support of "
        "the others."
    ]


@pytest.mark.parametrize("weighting", ["inverse", "shuffled", "random"])
def test_controls_are_named_and_random_ones_have_no_weight_without(weighting):
    evidence = explain(noise(), exclusion=20, n_neighbors=3, weighting=weighting)
    (warning,) = [item for item in evidence.warnings if f"weighting '{weighting}' is a control" in item]
    if weighting != "inverse":
        assert "do not explain" in warning
        assert evidence.neighbors[["weight_without", "weight_change"]].isna().all(axis=None)
    uniform = explain(noise(), exclusion=20, n_neighbors=3, weighting="uniform")
    assert uniform.warnings == [
        "weights are uniform by setting (the SSS mean): the neighbours do not enter them."
    ]


# Which windows could be neighbours.


@pytest.mark.parametrize(
    ("bank", "text"),
    [("local", "the nearest in time"), ("sampled", "stretches spread evenly over the series")],
)
def test_a_bounded_bank_is_named_with_its_size_in_windows_and_in_time(bank, text):
    evidence = explain(noise(), exclusion=20, n_neighbors=3, bank=bank, bank_size=24)
    settings = evidence.settings
    assert (settings["bank"], settings["bank_size"], settings["bank_seconds"]) == (bank, 24, 12.0)
    assert evidence.warnings[0] == (
        f"neighbours were sought among 24 windows ({text}, 12 s), not among all 77 (40 s): supports can be lower "
        "than over the whole series."
    )
    whole = explain(noise(), exclusion=20, n_neighbors=3, bank=bank, bank_size=77)
    assert [whole.settings[name] for name in ("bank", "bank_size", "bank_seconds")] == ["series", 77, 38.5]
    assert whole.warnings == []


def test_smoothed_posteriors_are_beside_the_windows_own_and_are_weighted(tmp_path):
    posteriors = np.random.default_rng(7).dirichlet([1, 1], 77)
    evidence = explain(noise(), exclusion=20, smoothing=0.25, posteriors=posteriors)
    table = evidence.windows
    np.testing.assert_array_equal(table["posterior_yes"], posteriors[:, 1])
    expected = naive.smoothed(posteriors, evidence.lists.retrieval.neighbors, 0.25, [False] * 77)
    np.testing.assert_allclose(table["smoothed_yes"], np.array(expected)[:, 1], atol=1e-14)
    np.testing.assert_array_equal(table["contribution_yes"], table["weight"] * table["smoothed_yes"])
    assert table["contribution_yes"].sum() == pytest.approx(evidence.probability_of("yes"), abs=1e-12)
    assert evidence.settings["smoothing"] == 0.25
    assert any("25 % of what a window" in warning for warning in evidence.warnings)
    again = SeriesEvidence.load(evidence.save(tmp_path, figures=False))
    np.testing.assert_array_equal(again.windows["smoothed_yes"], table["smoothed_yes"])
    assert "smoothed_yes" not in explain(noise()).windows


def test_the_summary_reads_in_a_few_lines():
    lines = repr(explain(noise(label="no"), exclusion=20, n_neighbors=3)).splitlines()
    assert lines[0] == "SeriesEvidence('noise', label='no')"
    assert lines[1] == "  predicted 'yes' (no 0.498, yes 0.502)"
    assert lines[2] == "  seen in training: unknown"  # not given
    assert lines[3].startswith("  77 windows over 40 s, of which ")
    assert len(lines) == 6


def test_the_largest_are_found_with_the_earlier_of_equals_first():
    generator = np.random.default_rng(5)
    for _ in range(200):
        values = generator.integers(0, 4, size=generator.integers(1, 12)) / 4
        for n in (0, 1, 3, 11, 12, 50, None):
            plain = sorted(range(len(values)), key=lambda place: (-values[place], place))[:n]
            assert largest(values, n).tolist() == plain
