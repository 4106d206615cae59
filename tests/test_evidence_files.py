"""Tests of evidence in files: JSON, Parquet, one table for many series, names of folders."""

from __future__ import annotations

import json
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose
from pandas.testing import assert_frame_equal

from raxss.data.series import Series
from raxss.errors import ConfigError, DataError, OutputError
from raxss.explain import SeriesEvidence, safe_name, write_tables
from test_evidence import explain, noise


@pytest.mark.parametrize("classes", [["no", "yes"], np.array([3, 7]), np.array(["no", "yes"]), [False, True]])
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
    samples[0, 190:204] = np.nan
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
    assert len(SeriesEvidence.load(place).windows) == n  # nothing is lost
    alone = evidence.save(tmp_path / "json", top=20, formats=["json"])  # no Parquet to point to
    assert len(json.loads((alone / "evidence.json").read_text())["windows"]) == n
    assert len(json.loads(evidence.to_json(top=None))["windows"]) == n


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


def test_a_saved_folder_holds_tables_and_figures_and_is_overwritten_on_request_alone(tmp_path):
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


# Rows are built on demand.


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


# One table for many series.


def test_the_evidence_of_many_series_is_one_table(tmp_path):
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
            alone = pd.read_parquet(tmp_path / item.name / f"{name}.parquet")
            if name == "windows":
                alone = alone.assign(missing_share=0.0, disturbed_share=0.0)
            assert_frame_equal(rows, alone)
    summary = pd.read_parquet(tmp_path / "why" / "summary.parquet")
    assert summary["series"].tolist() == ["C0", "C1", "C2"]
    assert summary["predicted"].tolist() == [item.predicted for item in every]
    assert summary["label"].tolist() == ["no"] * 3
    assert summary["n_windows"].tolist() == [57, 67, 77]
    assert_allclose(summary["probability_yes"], [item.probability_of("yes") for item in every], rtol=0)
    assert [json.loads(text)["stride"] for text in summary["settings"]] == [5, 5, 5]
    assert [list(warnings) for warnings in summary["warnings"]] == [item.warnings for item in every]


@pytest.mark.parametrize("rows_a_group", [1, 2**16])  # written series by series, or all together
def test_series_with_and_without_gaps_and_disturbed_windows_share_a_table(
    rows_a_group, tmp_path, monkeypatch
):
    monkeypatch.setattr("raxss.explain.export.tables.ROWS_A_GROUP", rows_a_group)
    samples = noise(name="with gap").samples.copy()
    samples[0, 100:105] = np.nan
    some = np.linspace(0, 1, 77)
    every = [noise(name="plain"), Series(samples, name="with gap"), noise(name="plain again")]
    evidence = [explain(item) for item in every]
    evidence[2] = replace(evidence[2], columns={**evidence[2].columns, "disturbed_share": some})
    write_tables(iter(evidence), tmp_path / "why")
    table = pd.read_parquet(tmp_path / "why" / "windows.parquet").groupby("series", sort=False)
    assert table["missing_share"].max().round(2).to_dict() == {"plain": 0, "with gap": 0.25, "plain again": 0}
    assert table["disturbed_share"].sum().to_dict() == {"plain": 0, "with gap": 0, "plain again": some.sum()}


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


def test_only_the_given_formats_are_saved(tmp_path):
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
