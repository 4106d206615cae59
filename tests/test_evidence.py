"""Claims about the evidence: that it adds up, that it is exact, that it warns, and that it can be kept."""

from __future__ import annotations

import json
import math
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose
from pandas.testing import assert_frame_equal

import naive
from raxss.data.series import Series
from raxss.errors import ConfigError, DataError, OutputError
from raxss.explain import SeriesEvidence, safe_name, trace, write_tables
from raxss.explain.evidence import largest
from raxss.explain.neighbour_lists import weight_without
from raxss.method.aggregation import aggregate
from raxss.method.retrieval import Retrieval, WindowFlag, retrieve
from raxss.method.windows import windows_of


def explain(
    series: Series,
    *,
    window_length: int = 20,
    stride: int = 5,
    temperature: float = 0.1,
    weighting: Any = "support",
    classes: Any = ("no", "yes"),
    posteriors: Any = None,
    **settings: Any,
) -> SeriesEvidence:
    windows = windows_of(series, window_length=window_length, stride=stride)
    retrieval = retrieve(series.samples, window_length=window_length, stride=stride, **settings)
    if posteriors is None:
        posteriors = np.random.default_rng(7).dirichlet(np.ones(len(classes)), len(windows))
    prediction = aggregate(posteriors, retrieval.support, temperature=temperature, weighting=weighting)
    return trace(series, windows, retrieval, prediction, classes=classes)


def noise(n: int = 400, seed: int = 0, **about: Any) -> Series:
    return Series(np.random.default_rng(seed).normal(size=n), **{"rate": 10.0, "name": "noise", **about})


def lists_as_retrieval(similarity: np.ndarray, flat: np.ndarray, nonfinite: np.ndarray) -> Retrieval:
    """Random lists in the form retrieval gives them, supports by the rules of the method."""
    n, m = similarity.shape
    rows = [[s for s in row if not math.isnan(s)] for row in similarity.tolist()]
    support = plain_supports(rows, flat, nonfinite)
    lonely = np.array([not row for row in rows]) & ~nonfinite
    flags = flat * WindowFlag.FLAT + nonfinite * WindowFlag.NONFINITE + lonely * WindowFlag.LONELY
    return Retrieval(
        similarity=similarity,
        neighbors=np.where(np.isnan(similarity), -1, 0),
        support=np.array(support),
        starts=np.arange(n),
        flags=flags.astype(np.uint8),
        window_length=3,
        stride=1,
        measure="pearson",
        n_neighbors=m,
        exclusion=0,
        spread=0,
        space="signal",
    )


def plain_supports(rows: list[list[float]], flat: np.ndarray, nonfinite: np.ndarray) -> list[float]:
    own = [math.fsum(row) / len(row) for row in rows if row]
    supports = []
    for row, is_flat, is_nonfinite in zip(rows, flat, nonfinite, strict=True):
        if is_nonfinite:
            supports.append(math.nan)
        elif row:
            supports.append(math.fsum(row) / len(row))
        else:
            supports.append(math.fsum(own) / len(own) if own and not is_flat else 0.0)
    return supports


def plain_weight_without(
    similarity: np.ndarray,
    flat: np.ndarray,
    nonfinite: np.ndarray,
    k: int,
    j: int,
    temperature: float,
    sign: int,
) -> float:
    rows = [[s for s in row if not math.isnan(s)] for row in similarity.tolist()]
    rows[k] = [s for rank, s in enumerate(rows[k]) if rank != j]
    supports = plain_supports(rows, flat, nonfinite)
    return naive.window_weights([sign * support for support in supports], temperature)[k]


def random_lists(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n, m = generator.integers(1, 9), generator.integers(1, 5)
    similarity = -np.sort(
        -generator.uniform(-1, 1, (n, m)).round(generator.choice([1, 12]))
    )  # ties, at one digit
    nonfinite, flat = generator.random(n) < 0.15, generator.random(n) < 0.2
    nonfinite[0] = False
    flat &= ~nonfinite
    n_listed = generator.integers(0, m + 1, n)
    n_listed[generator.random(n) < 0.3] = 1
    n_listed[nonfinite] = 0
    similarity[flat] = 0.0
    similarity[np.arange(m) >= n_listed[:, None]] = np.nan
    return similarity, flat, nonfinite


def test_contributions_sum_to_the_series_probability():
    evidence = explain(noise(), classes=["a", "b", "c"], exclusion=10)
    for class_, probability in zip("abc", evidence.series_probability, strict=True):
        assert evidence.windows[f"contribution_{class_}"].sum() == pytest.approx(probability, abs=1e-12)
    assert evidence.windows["weight"].sum() == pytest.approx(1, abs=1e-12)


def test_the_predicted_class_is_the_most_probable():
    evidence = explain(noise(), classes=["a", "b"], posteriors=np.tile([0.3, 0.7], (77, 1)))
    assert evidence.predicted == "b"
    assert evidence.probability_of() == pytest.approx(0.7)
    assert evidence.probability_of("a") == pytest.approx(0.3)


@pytest.mark.parametrize("weighting", ["support", "inverse"])
@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.003])
def test_the_weight_without_a_neighbor_is_exact(weighting, temperature):
    generator = np.random.default_rng(69421)
    seen = {"lonely": 0, "nonfinite": 0, "flat": 0, "only": 0}
    for _ in range(150):
        similarity, flat, nonfinite = random_lists(generator)
        listed = ~np.isnan(similarity)
        seen["lonely"] += int((~listed.any(axis=1) & ~nonfinite & ~flat).any())
        seen["nonfinite"] += int(nonfinite.any())
        seen["flat"] += int(flat.any())
        seen["only"] += int((listed.sum(axis=1) == 1).any())
        support = lists_as_retrieval(similarity, flat, nonfinite).support
        fast = weight_without(similarity, support, flat, temperature=temperature, weighting=weighting)
        sign = 1 if weighting == "support" else -1
        for k, j in np.argwhere(listed):
            plain = plain_weight_without(similarity, flat, nonfinite, k, j, temperature, sign)
            assert fast[k, j] == pytest.approx(plain, abs=1e-9)
        assert np.isnan(fast[~listed]).all()
    assert min(seen.values()) > 20  # every rule was met, many times


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


def test_raising_one_similarity_raises_that_windows_weight():
    generator = np.random.default_rng(3)
    similarity = -np.sort(-generator.uniform(-1, 0.9, (6, 3)))
    before = aggregate(np.ones((6, 1)), similarity.mean(axis=1)).weights
    for k in range(6):
        raised = similarity.copy()
        raised[k, 1] += 0.05
        assert aggregate(np.ones((6, 1)), raised.mean(axis=1)).weights[k] > before[k]


def test_a_neighbor_better_than_the_others_adds_weight_and_a_worse_one_takes_some():
    board = explain(noise(), n_neighbors=4, exclusion=10).leaderboard(3)
    assert board["weight_change"].iloc[0] > 0 > board["weight_change"].iloc[-1]
    turned = explain(noise(), n_neighbors=4, exclusion=10, weighting="inverse").leaderboard(3)
    assert turned["weight_change"].iloc[0] < 0 < turned["weight_change"].iloc[-1]


def test_under_uniform_weights_no_neighbor_matters():
    evidence = explain(noise(), weighting="uniform")
    assert_allclose(evidence.neighbors["weight_change"], 0, atol=1e-15)


@pytest.mark.parametrize("weighting", ["shuffled", "random"])
def test_lists_that_do_not_make_the_weights_do_not_claim_to(weighting):
    evidence = explain(noise(), weighting=weighting)
    assert evidence.neighbors[["weight_without", "weight_change"]].isna().all(axis=None)
    assert any(
        f"'{weighting}' is a control" in warning and "do not explain" in warning
        for warning in evidence.warnings
    )


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


def test_a_window_that_is_not_there_is_named():
    with pytest.raises(DataError, match=r"'noise' has no window 77; its windows are 0 to 76"):
        explain(noise()).leaderboard(77)


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


# Warnings: each where it belongs, and only there.


def test_an_unremarkable_series_has_no_warnings():
    evidence = explain(noise(), exclusion=20, n_neighbors=3)
    assert 0.05 < evidence.effective_share < 0.95
    assert evidence.warnings == []


def test_nearly_uniform_weights_are_called_the_sss_mean():
    evidence = explain(noise(), exclusion=20, n_neighbors=3, temperature=10.0)
    (said,) = evidence.warnings
    assert "SSS mean" in said
    assert f"{evidence.effective_windows:.4g} of 77 windows" in said
    assert evidence.effective_share > 0.95


def test_a_few_windows_that_decide_are_pointed_out():
    evidence = explain(noise(), exclusion=20, n_neighbors=3, temperature=0.002)
    (said,) = evidence.warnings
    assert "few windows decide" in said
    assert evidence.effective_share < 0.05


def test_overlapping_lists_are_said_to_measure_smoothness():
    smooth = Series(np.random.default_rng(0).normal(size=400).cumsum(), name="smooth")
    said = [
        warning
        for warning in explain(smooth, window_length=100, n_neighbors=3).warnings
        if "overlap their query" in warning
    ]
    assert len(said) == 1
    assert "(50 samples)" in said[0]  # half a window
    apart = explain(smooth, window_length=100, n_neighbors=3, exclusion=100)
    assert not any("overlap" in warning for warning in apart.warnings)
    some = explain(noise(), window_length=60)
    assert 0.2 < some.overlap_share < 0.5
    assert not any("overlap" in warning for warning in some.warnings)


def test_flat_windows_are_counted():
    samples = noise().samples.copy()
    samples[0, 100:160] = 3.0
    evidence = explain(Series(samples), exclusion=20, n_neighbors=3)
    assert evidence.windows["flat"].sum() == 9
    assert [warning for warning in evidence.warnings if "flat" in warning] == [
        "9 of 77 windows are flat: similarity 0 to all, support 0, posterior kept."
    ]


def test_windows_that_touch_gaps_are_counted_and_weigh_nothing():
    samples = noise().samples.copy()
    samples[0, 200] = np.nan
    evidence = explain(Series(samples), exclusion=20, n_neighbors=3)
    assert evidence.windows.loc[evidence.windows["nonfinite"], "weight"].eq(0).all()
    assert [warning for warning in evidence.warnings if "not finite" in warning] == [
        "4 of 77 windows touch samples that are not finite; their weight is 0 and they are no one's neighbour."
    ]
    assert evidence.effective_share == pytest.approx(evidence.effective_windows / 73)
    assert evidence.leaderboard(int(evidence.windows["nonfinite"].idxmax())).empty


def test_a_padded_series_says_so_and_has_one_window():
    evidence = explain(noise(12), window_length=20)
    assert evidence.windows["padded"].all()
    assert evidence.windows["end_s"].item() == pytest.approx(1.2)
    assert evidence.warnings == [
        "the series, 1.2 s, is shorter than one window and was padded with zeros behind.",
        "there is one usable window, and it decides alone.",
    ]
    assert math.isnan(evidence.overlap_share)
    assert evidence.leaderboard(0).empty


def test_one_window_is_not_called_uniform():
    assert explain(noise(20)).warnings == ["there is one usable window, and it decides alone."]


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
def test_controls_are_called_controls(weighting):
    evidence = explain(noise(), exclusion=20, n_neighbors=3, weighting=weighting)
    assert sum(f"weighting '{weighting}' is a control" in warning for warning in evidence.warnings) == 1


def test_uniform_weighting_is_named_as_a_setting_not_as_a_surprise():
    evidence = explain(noise(), exclusion=20, n_neighbors=3, weighting="uniform")
    assert evidence.warnings == [
        "weights are uniform by setting (the SSS mean): the neighbours do not enter them."
    ]


# Keeping it.


@pytest.mark.parametrize(
    "classes",
    [
        ["no", "yes"],
        [0, 1],
        np.array([3, 7]),
        np.array(["no", "yes"]),
        np.array([False, True]),
        [False, True],
    ],
)
def test_evidence_survives_saving_whatever_the_labels_are(tmp_path, classes):
    samples = noise().samples.copy()
    samples[0, 200] = np.nan
    series = Series(samples, rate=10.0, label=classes[1], name="gap")
    evidence = explain(series, classes=classes, n_neighbors=3)
    place = evidence.save(tmp_path, top=None, figures=False)
    back = SeriesEvidence.load(place, series=series)
    assert_frame_equal(back.windows, evidence.windows)
    assert_frame_equal(back.neighbors, evidence.neighbors)
    assert back.classes == evidence.classes == tuple(np.asarray(classes).tolist())
    assert back.label == evidence.label == classes[1]
    assert back.predicted == evidence.predicted
    assert (back.series_probability == evidence.series_probability).all()
    assert back.warnings == evidence.warnings
    assert back.settings == evidence.settings
    assert repr(back) == repr(evidence)


def test_json_is_valid_and_complete(tmp_path):
    samples = noise().samples.copy()
    samples[0, 200] = np.nan
    evidence = explain(
        Series(samples, name="gap"), classes=["no", "yes"], n_neighbors=3, weighting="shuffled"
    )

    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} is not JSON")

    text = evidence.to_json(tmp_path / "evidence.json")
    assert (tmp_path / "evidence.json").read_text(encoding="utf-8") == text
    found = json.loads(text, parse_constant=refuse)
    assert found["note"] == "Research use only. Not for diagnosis."
    assert found["warnings"] == evidence.warnings
    assert found["settings"]["weighting"] == "shuffled"
    assert len(found["windows"]) == 77
    assert found["windows"][38]["support"] is None
    table = pd.DataFrame(found["windows"]).astype(evidence.windows.dtypes)
    assert_frame_equal(table, evidence.windows)
    assert all(row["weight_without"] is None for row in found["neighbors"])


def test_the_json_of_a_long_series_has_the_strongest_windows_and_says_where_the_others_are(tmp_path):
    evidence = explain(noise(26_000), n_neighbors=3)
    n = len(evidence.windows)
    assert n > 5000
    place = evidence.save(tmp_path, top=20, formats=["json", "parquet"])
    found = json.loads((place / "evidence.json").read_text())
    kept = [row["window"] for row in found["windows"]]
    assert set(evidence.windows.nlargest(20, "weight")["window"]) <= set(kept)
    assert found["windows_left_out"] == {"n_windows": n - len(kept), "all_are_in": "windows.parquet"}
    assert len(kept) <= 22
    assert {row["window"] for row in found["neighbors"]} == set(kept)
    assert (place / "evidence.json").stat().st_size < 100_000
    assert len(SeriesEvidence.load(place).windows) == n  # nothing is lost
    alone = evidence.save(tmp_path / "json", top=20, formats=["json"])  # no Parquet to point to
    assert len(json.loads((alone / "evidence.json").read_text())["windows"]) == n
    assert len(json.loads(evidence.to_json(top=None))["windows"]) == n


def test_settings_of_any_kind_can_be_written():
    evidence = explain(noise())
    extra = {
        "preset": "paper",
        "n": np.int64(3),
        "x": math.nan,
        "nested": {"a": (1, np.float32(0.5))},
        "at": Path("a"),
    }
    found = json.loads(replace(evidence, settings=extra).to_json())["settings"]
    assert found == {"preset": "paper", "n": 3, "x": None, "nested": {"a": [1, 0.5]}, "at": "a"}


def test_settings_given_do_not_replace_those_that_were_used():
    series = noise()
    retrieval = retrieve(series.samples, window_length=20, stride=5)
    prediction = aggregate(np.full((77, 2), 0.5), retrieval.support, temperature=0.3)
    windows = windows_of(series, window_length=20, stride=5)
    given = {"temperature": 9.0, "preset": "paper"}
    settings = trace(series, windows, retrieval, prediction, classes=[0, 1], settings=given).settings
    assert settings["temperature"] == 0.3
    assert settings["preset"] == "paper"


def test_only_the_strongest_lists_are_kept_by_default(tmp_path):
    evidence = explain(noise(), n_neighbors=3)
    strongest = set(evidence.windows.nlargest(5, "weight")["window"])
    firsts = {int(evidence.top_windows(1, class_)["window"].item()) for class_ in evidence.classes}
    back = SeriesEvidence.load(evidence.save(tmp_path, top=5, figures=False))
    assert set(back.neighbors["window"]) == strongest | firsts
    assert len(back.windows) == 77
    kept = min(strongest)
    assert_frame_equal(back.leaderboard(kept), evidence.leaderboard(kept))
    lost = min(set(range(77)) - strongest - firsts)
    with pytest.raises(DataError, match=rf"neighbours of window {lost} of series 'noise' were not saved"):
        back.leaderboard(lost)
    assert {row["window"] for row in json.loads(evidence.to_json(top=5))["neighbors"]} == strongest | firsts


def test_a_saved_folder_holds_tables_and_figures_and_is_not_overwritten_unasked(tmp_path):
    evidence = explain(noise(name="run:1/C3"))
    place = evidence.save(tmp_path)
    assert place.parent == tmp_path
    assert sorted(file.name for file in place.iterdir()) == [
        ".raxss", "contributions.png", "evidence.json", "neighbors.parquet", "overlay.png", "windows.parquet",
    ]  # fmt: skip
    with pytest.raises(OutputError, match=place.name):
        evidence.save(tmp_path)
    assert evidence.save(tmp_path, overwrite=True, figures=False) == place
    assert not (place / "overlay.png").exists()
    assert [file.name for file in tmp_path.iterdir()] == [place.name]


def test_a_foreign_folder_is_named(tmp_path):
    with pytest.raises(DataError, match=rf"'{tmp_path.name}' cannot be read as evidence"):
        SeriesEvidence.load(tmp_path)
    place = explain(noise()).save(tmp_path, figures=False)
    head = json.loads((place / "evidence.json").read_text())
    (place / "evidence.json").write_text(json.dumps({**head, "format": "else"}))
    with pytest.raises(DataError, match="its format is 'else'"):
        SeriesEvidence.load(place)
    (place / "windows.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match="'noise' cannot be read as evidence"):
        SeriesEvidence.load(place)


HOSTILE = [
    "../../x", "a/b:C3", "a\\b", "", ".", "..", "con", "NUL.txt", "a" * 300, "\x00", "naïve", "$x_1$", "a\nb", "~",
    "-rf", "\udcff", "a b", "a_b", "...a",
]  # fmt: skip


def test_hostile_names_become_safe_and_stay_apart(tmp_path):
    names = [safe_name(name) for name in HOSTILE]
    assert len({name.lower() for name in names}) == len(HOSTILE)
    for name in names:
        (tmp_path / name).mkdir()
        assert len(name) < 100
        assert name[0] not in ".-~"
    assert len(list(tmp_path.iterdir())) == len(HOSTILE)
    assert safe_name("A00004") == "A00004"
    assert safe_name("con").lower() != "con"
    assert not safe_name("NUL.txt").lower().startswith("nul.")


@pytest.mark.parametrize("name", ["../../x", "\udcff\x00", "$x_1$\n<b>"])
def test_a_hostile_name_comes_back_from_the_folder_it_was_saved_in(tmp_path, name):
    place = explain(noise(name=name)).save(tmp_path / "out", figures=False)
    assert place.parent == tmp_path / "out"
    assert SeriesEvidence.load(place).name == name


def test_the_summary_reads_in_a_few_lines():
    lines = repr(explain(noise(label="no"), exclusion=20, n_neighbors=3)).splitlines()
    assert lines[0] == "SeriesEvidence('noise', label='no')"
    assert lines[1] == "  predicted 'yes' (no 0.498, yes 0.502)"
    assert lines[2] == "  seen in training: unknown"  # nobody told
    assert lines[3].startswith("  77 windows over 40 s, of which ")
    assert len(lines) == 6


def test_evidence_of_retrieved_features_has_the_same_tables():
    series = noise()
    windows = windows_of(series, window_length=20, stride=5)
    features = np.random.default_rng(1).normal(size=(77, 6))
    retrieval = retrieve(series.samples, window_length=20, stride=5, measure="cosine", features=features)
    prediction = aggregate(np.full((77, 2), 0.5), retrieval.support)
    evidence = trace(series, windows, retrieval, prediction, classes=[0, 1])
    assert evidence.settings["space"] == "features"
    assert len(evidence.neighbors) == 770
    assert_allclose(evidence.windows["support"], retrieval.support)


# Rows are made when somebody looks.


def with_everything(**settings: Any) -> SeriesEvidence:
    """Gaps, flat stretches, short and empty lists, all in one series."""
    samples = noise().samples.copy()
    samples[0, 300] = np.nan
    samples[0, 60:110] = 2.0
    return explain(Series(samples, rate=10.0, start_seconds=3.0, name="all of it"), exclusion=190, **settings)


@pytest.mark.parametrize("weighting", ["support", "inverse", "uniform", "random"])
def test_rows_of_some_windows_are_those_of_the_whole_table(weighting):
    evidence = with_everything(n_neighbors=6, weighting=weighting)
    whole = evidence.neighbors
    assert {0, 1, 6} <= set(np.count_nonzero(evidence.lists.retrieval.neighbors >= 0, axis=1).tolist())
    for chosen in ([0], [3, 4, 40, 76], list(range(77)), []):
        some = pd.DataFrame(evidence.lists.columns(np.array(chosen, dtype=np.int64)))
        expected = whole[whole["window"].isin(chosen)].reset_index(drop=True)
        assert_frame_equal(some, expected, check_exact=True)


def test_nothing_but_the_table_itself_builds_the_whole_table(tmp_path):
    evidence = with_everything()
    repr(evidence)
    evidence.leaderboard(3)
    evidence.save(tmp_path, top=5)
    evidence.to_parquet(tmp_path / "all", top=None)
    write_tables([evidence], tmp_path / "one", top=None)
    assert "neighbors" not in vars(evidence)
    assert evidence.neighbors is evidence.neighbors


def test_lists_written_in_pieces_are_the_whole_table(tmp_path, monkeypatch):
    evidence = with_everything()
    text = evidence.to_json(top=None)
    monkeypatch.setattr("raxss.explain.neighbour_lists.WINDOWS_A_CHUNK", 10)
    monkeypatch.setattr("raxss.explain.series_evidence.WINDOWS_A_CHUNK", 10)
    assert evidence.to_json(top=None) == text
    assert len(json.loads(text)["neighbors"]) == len(evidence.neighbors)
    evidence.to_parquet(tmp_path, top=None)
    assert_frame_equal(pd.read_parquet(tmp_path / "neighbors.parquet"), evidence.neighbors)
    assert_frame_equal(pd.read_parquet(tmp_path / "windows.parquet"), evidence.windows)
    assert evidence.lists.overlap_share == evidence.overlap_share == evidence.neighbors["overlaps"].mean()


def test_a_table_that_does_not_fit_says_how_much_it_needs(monkeypatch):
    evidence = explain(noise())
    monkeypatch.setattr("raxss._core.memory.available_memory", lambda: 50_000)
    with pytest.raises(DataError, match=r"the 770 neighbours of series 'noise' needs 0\.0.* leaderboard"):
        _ = evidence.neighbors
    assert len(evidence.leaderboard(3)) == 10


def test_the_largest_are_found_with_the_earlier_of_equals_first():
    generator = np.random.default_rng(5)
    for _ in range(200):
        values = generator.integers(0, 4, size=generator.integers(1, 12)) / 4
        for n in (0, 1, 3, 11, 12, 50, None):
            plain = sorted(range(len(values)), key=lambda place: (-values[place], place))[:n]
            assert largest(values, n).tolist() == plain


# One table for many series.


def test_the_evidence_of_many_series_stands_in_one_table(tmp_path):
    every = [explain(noise(300 + 50 * index, seed=index, name=f"C{index}", label="no")) for index in range(3)]
    assert write_tables(iter(every), tmp_path / "why", top=5) == 3
    assert {file.name for file in (tmp_path / "why").iterdir()} == {
        ".raxss", "windows.parquet", "neighbors.parquet", "summary.parquet",
    }  # fmt: skip
    tables = {
        name: pd.read_parquet(tmp_path / "why" / f"{name}.parquet") for name in ("windows", "neighbors")
    }
    for item in every:
        item.to_parquet(tmp_path / item.name, top=5)
        for name, table in tables.items():
            rows = table[table["series"] == item.name].drop(columns="series").reset_index(drop=True)
            assert_frame_equal(rows, pd.read_parquet(tmp_path / item.name / f"{name}.parquet"))
    summary = pd.read_parquet(tmp_path / "why" / "summary.parquet")
    assert summary["series"].tolist() == ["C0", "C1", "C2"]
    assert summary["predicted"].tolist() == [item.predicted for item in every]
    assert summary["label"].tolist() == ["no"] * 3
    assert summary["n_windows"].tolist() == [57, 67, 77]
    assert_allclose(summary["probability_yes"], [item.probability_of("yes") for item in every], rtol=0)
    assert [json.loads(text)["stride"] for text in summary["settings"]] == [5, 5, 5]
    assert [list(told) for told in summary["warnings"]] == [item.warnings for item in every]


def test_rows_stand_in_the_order_of_the_series_in_many_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("raxss.explain.export.tables.ROWS_A_GROUP", 100)
    every = [explain(noise(900 - 70 * item, seed=item, name=f"C{item}")) for item in (3, 0, 9, 5, 1, 7, 2)]
    write_tables(iter(every), tmp_path / "why", top=None)
    for name in ("windows", "neighbors"):
        expected = pd.concat(
            [getattr(item, name).assign(series=item.name) for item in every], ignore_index=True
        )
        found = pd.read_parquet(tmp_path / "why" / f"{name}.parquet")
        assert_frame_equal(found[expected.columns], expected, check_dtype=False)
        assert pq.read_metadata(tmp_path / "why" / f"{name}.parquet").num_row_groups > 3


@pytest.mark.parametrize(("n_windows_waiting", "most_held"), [(76, 0), (77, 1), (3 * 77, 3)])
def test_a_few_short_series_wait_to_be_written_a_long_one_is_let_go_first(
    n_windows_waiting, most_held, tmp_path, monkeypatch
):
    monkeypatch.setattr("raxss.explain.export.tables.WINDOWS_WAITING", n_windows_waiting)
    held: list[weakref.ref[SeriesEvidence]] = []

    def each():
        for index in range(8):
            assert sum(ref() is not None for ref in held) <= most_held
            evidence = explain(noise(seed=index, name=f"C{index}"))  # of 77 windows
            held.append(weakref.ref(evidence))
            yield evidence
            del evidence

    assert write_tables(each(), tmp_path / "why") == 8
    assert not any(ref() for ref in held)


@pytest.mark.parametrize("what", ["columns", "lists"])
@pytest.mark.parametrize("place", [0, 3, 5])
def test_a_table_that_cannot_be_written_stops_all_and_leaves_nothing(what, place, tmp_path):
    every = [explain(noise(seed=index)) for index in range(6)]
    table = {**every[place].columns} if what == "columns" else every[place].neighbors
    table["start_s"] = [object()] * len(table["start_s"])
    every[place] = replace(every[place], **{what: table})
    with pytest.raises(pa.ArrowInvalid, match="did not recognize Python value type"):
        write_tables(iter(every), tmp_path / "why", top=None)
    assert list(tmp_path.iterdir()) == []


def test_tables_that_fail_half_way_leave_nothing(tmp_path):
    def each():
        yield explain(noise())
        raise KeyError("the second series")

    with pytest.raises(KeyError, match="the second series"):
        write_tables(each(), tmp_path / "why")
    with pytest.raises(DataError, match="'other' has the classes 0, 1, and those before it 'no', 'yes'"):
        write_tables([explain(noise()), explain(noise(name="other"), classes=[0, 1])], tmp_path / "why")
    with pytest.raises(DataError, match="no evidence to write"):
        write_tables([], tmp_path / "why")
    assert list(tmp_path.iterdir()) == []


def test_hostile_names_and_labels_of_any_kind_fit_into_one_table(tmp_path):
    series = [noise(name="\udcff\x00", label=3), noise(name="=1+1", label="no"), noise(name="", label=None)]
    write_tables(map(explain, series), tmp_path / "why")
    summary = pd.read_parquet(tmp_path / "why" / "summary.parquet")
    assert summary["series"].tolist() == ["\\udcff\x00", "=1+1", ""]
    assert summary["label"].iloc[:2].tolist() == ["3", "no"]
    assert summary["label"].isna().tolist() == [False, False, True]


def test_only_what_is_asked_for_is_saved(tmp_path):
    evidence = explain(noise())
    place = evidence.save(tmp_path, formats=["parquet"])
    names = {file.name for file in place.iterdir()}
    assert names == {".raxss", "evidence.json", "windows.parquet", "neighbors.parquet"}
    head = json.loads((place / "evidence.json").read_text())
    assert "windows" not in head
    assert_frame_equal(SeriesEvidence.load(place).windows, evidence.windows)
    place = evidence.save(tmp_path, formats=["json", "figures"], overwrite=True)
    assert {file.suffix for file in place.iterdir()} == {"", ".json", ".png"}
    assert (place / "evidence.json").read_text() == evidence.to_json()
    with pytest.raises(ConfigError, match=r"formats is 'jsn'; did you mean 'json'"):
        evidence.save(tmp_path / "x", formats=["jsn"])


# Which windows could be neighbours.


@pytest.mark.parametrize(
    ("bank", "told"),
    [("local", "the nearest in time"), ("sampled", "stretches spread evenly over the series")],
)
def test_a_bounded_bank_is_named_with_its_size_in_windows_and_in_time(bank, told):
    evidence = explain(noise(), exclusion=20, n_neighbors=3, bank=bank, bank_size=24)
    settings = evidence.settings
    assert (settings["bank"], settings["bank_size"], settings["bank_seconds"]) == (bank, 24, 12.0)
    assert evidence.warnings[0] == (
        f"neighbours were sought among 24 windows ({told}, 12 s), not among all 77 (40 s): supports can be lower "
        "than over the whole series."
    )


def test_a_bank_that_holds_the_whole_series_is_not_called_bounded():
    for bank, size in (("series", 5), ("local", 77), ("sampled", 200)):
        evidence = explain(noise(), exclusion=20, n_neighbors=3, bank=bank, bank_size=size)
        assert (evidence.settings["bank"], evidence.settings["bank_size"]) == ("series", 77)
        assert evidence.settings["bank_seconds"] == 38.5
        assert evidence.warnings == []
    assert explain(noise(), bank=[1, 5, 9]).settings["bank"] == "indices"


def test_smoothed_posteriors_stand_beside_the_windows_own_and_are_what_is_added_up(tmp_path):
    series = noise()
    windows = windows_of(series, window_length=20, stride=5)
    retrieval = retrieve(series.samples, window_length=20, stride=5, exclusion=20)
    posteriors = np.random.default_rng(7).dirichlet([1, 1], len(windows))
    prediction = aggregate(posteriors, retrieval.support, smoothing=0.25, neighbors=retrieval.neighbors)
    evidence = trace(series, windows, retrieval, prediction, classes=["no", "yes"])
    table = evidence.windows
    np.testing.assert_array_equal(table["posterior_yes"], posteriors[:, 1])
    expected = naive.smoothed(posteriors, retrieval.neighbors, 0.25, [False] * len(windows))
    np.testing.assert_allclose(table["smoothed_yes"], np.array(expected)[:, 1], atol=1e-14)
    np.testing.assert_array_equal(table["contribution_yes"], table["weight"] * table["smoothed_yes"])
    assert table["contribution_yes"].sum() == pytest.approx(evidence.probability_of("yes"), abs=1e-12)
    assert evidence.settings["smoothing"] == 0.25
    assert any("25 % of what a window" in warning for warning in evidence.warnings)
    again = SeriesEvidence.load(evidence.save(tmp_path, figures=False))
    np.testing.assert_array_equal(again.windows["smoothed_yes"], table["smoothed_yes"])
    assert "smoothed_yes" not in explain(noise()).windows
