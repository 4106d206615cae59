"""Datasets that a study joins, cuts or relabels, once for all seeds."""

import dataclasses
import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kstest

from raxss.benchmark.evaluation_set import views_of
from raxss.benchmark.packed import read_run, runs_in
from raxss.benchmark.result import RunResult
from raxss.benchmark.runs import execute, plan_run
from raxss.benchmark.study import Study
from raxss.benchmark.table import run_table
from raxss.benchmark.transforms import random_cut, shuffled_labels
from raxss.data.files import read_manifest
from raxss.data.leakage import audit_split
from raxss.data.manifests import plan_manifest
from raxss.data.prepare import read_prepared
from raxss.data.prepare.preparing import prepare
from raxss.data.prepare.preprocessing import Preparation
from raxss.data.series import Series, SeriesCollection
from raxss.data.splits import PARTS, Split, groups_by
from raxss.errors import ConfigError, DataError, LabelError, VariateMismatchError

WINDOWS = "windows = { window_length = 40, stride = 20 }"


def nights(folder, name, *, classes, rate, n_patients=8, n_samples=400, n_variates=1, seed=0):
    """A manifest: two recordings of every patient, who has one class; fast waves are of the first."""
    generator = np.random.default_rng(seed)
    rows = ["path,label,patient"]
    (folder / name).mkdir(parents=True)
    for k in range(2 * n_patients):
        label = k // 2 % len(classes)
        time = np.arange(n_samples) / rate
        wave = np.sin(2 * np.pi * (4 - 2 * label) * time + generator.uniform(0, 6))
        samples = wave + 0.5 * generator.normal(size=(n_variates, n_samples))
        np.savez(folder / name / f"s{k}.npz", samples=samples, rate=rate)
        rows.append(f"{name}/s{k}.npz,{classes[label]},p{k // 2}")
    (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
    return folder / f"{name}.csv"


def study_of(folder, text, *, systems='["all-positive"]', seeds="[1, 2]"):
    return Study.from_toml(f"systems = {systems}\nseeds = {seeds}\n{text}", folder=folder)


def opened(folder, text, **settings):
    """The views of a study, and the series that they are of."""
    views = views_of(study_of(folder, text, **settings), folder / "data")
    return views, read_prepared(views[0].folder)


# Several sources ----------------------------------------------------------------------------------------------


JOINED = f"""
[dataset]
positive = "ill"
{WINDOWS}
preparation = {{ rate = 50 }}
split = {{ kind = "leave-one-out" }}
[[dataset.source]]
data = "south.csv"
[[dataset.source]]
data = "north.csv"
centre = "Nord"
rename = {{ F = "ill", N = "well" }}
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two manifests at different rates, with the same names for patients and recordings, not for classes."""
    folder = tmp_path_factory.mktemp("two")
    nights(folder, "south", classes=("ill", "well"), rate=100.0, n_samples=800)
    nights(folder, "north", classes=("F", "N"), rate=50.0, seed=1)
    return folder


def test_sources_are_joined_as_centres_with_the_samples_of_each(two):
    views, joined = opened(two, JOINED)
    assert [view.name for view in views] == ["south and Nord: Nord", "south and Nord: south"]
    assert Counter(item.origin["centre"] for item in joined) == {"south": 16, "Nord": 16}
    assert Counter(joined.labels) == {"ill": 16, "well": 16}
    assert {item.rate for item in joined} == {50.0}
    renamed = {"F": "ill", "N": "well"}
    expected = {}
    for centre, file in (("south", "south.csv"), ("Nord", "north.csv")):
        for item in read_manifest(two / file):
            expected[f"{centre}/{item.name}"] = Preparation(rate=50).apply(item)
    assert set(joined.names) == set(expected)
    for item in joined:
        as_it_was = expected[item.name]
        assert np.array_equal(item.samples, as_it_was.samples)
        assert item.label == renamed.get(as_it_was.label, as_it_was.label)
        assert item.origin["patient"] == f"{item.origin['centre']}/{as_it_was.origin['patient']}"


def test_patients_of_the_same_name_are_different_people(two):
    split = 'split = { kind = "single", by = "patient" }'
    views, joined = opened(two, JOINED.replace('split = { kind = "leave-one-out" }', split))
    assert len(set(groups_by(joined, "patient")[1])) == 16
    assert len(set(groups_by(joined, None)[1])) == 16
    assert {entry.group for entry in joined} == {entry.origin["patient"] for entry in joined}
    for item in views[0].splits.values():
        sides = [{joined[int(k)].origin["patient"] for k in getattr(item, part)} for part in PARTS]
        assert sum(map(len, sides)) == len(set.union(*sides)) == 16
        assert audit_split(joined, item).clean


def test_what_is_joined_is_joined_once_and_anew_when_a_source_changes(tmp_path):
    nights(tmp_path, "south", classes=("ill", "well"), rate=100.0, n_samples=800)
    nights(tmp_path, "north", classes=("F", "N"), rate=50.0, seed=1)
    (before, _), _ = opened(tmp_path, JOINED)
    times = {file: file.stat().st_mtime_ns for file in before.folder.rglob("*")}
    (again, _), _ = opened(tmp_path, JOINED)
    assert {file: file.stat().st_mtime_ns for file in again.folder.rglob("*")} == times
    np.savez(tmp_path / "north" / "s0.npz", samples=np.cos(np.arange(400.0)), rate=50.0)
    (after, _), _ = opened(tmp_path, JOINED)
    assert (after.folder, after.content != before.content) == (before.folder, True)


def test_prepared_folders_can_be_sources(two, tmp_path):
    for name in ("south", "north"):
        prepare(plan_manifest(two / f"{name}.csv"), tmp_path / name, Preparation(rate=50))
    (view, _), joined = opened(tmp_path, JOINED.replace(".csv", ""))
    (other, _), expected = opened(two, JOINED)
    assert joined.names == expected.names
    assert view.content == other.content


def test_sources_of_a_study_become_a_table(two, tmp_path):
    systems = '["features-forest", "all-positive"]'
    study = study_of(two, f"{JOINED}\n[system.features-forest]\nn_trees = 10", systems=systems)
    outcome = run_table(study, tmp_path / "out")
    assert (len(outcome.results), outcome.errors) == (8, [])
    page = (tmp_path / "out" / "README.md").read_text()
    assert "joined from south and Nord (north; F as ill, N as well), each a centre." in page
    assert page.count("- Split: leave one centre out.") == 2
    rows = pd.read_csv(tmp_path / "out" / "results.csv")
    # Both centres have the same waves: what is learned in one is good in the other.
    assert (rows.loc[rows["system"] == "features-forest", "auc"] == 1).all()
    places = list((tmp_path / "out" / "splits").rglob("*.json"))
    assert len(places) == len({file.parent.name for file in places}) * 2 == 4
    joined = read_prepared(next((tmp_path / "out" / "data").glob("*-changed-*")))
    for place in places:
        assert len(Split.read(place, joined.names).test) == 16


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("rename = {.*}", 'classes = ["F", "M"]', LabelError, "'north.csv': .* class 'M'. Known: F, N"),
        ("N = ", "NN = ", LabelError, "source 'north.csv': no series has the class 'NN'; did you mean 'N'"),
        (
            "rename = {.*}",
            "",
            LabelError,
            r"different classes \(south: ill, well; Nord: F, N\).*rename = \{ \.\.\. \}",
        ),
        (
            "preparation = {.*}",
            "",
            ConfigError,
            r"different rates \(Hz: south: 100; Nord: 50\).*preparation.rate = 50",
        ),
    ],
)
def test_sources_that_do_not_fit_each_other_are_refused_by_name(two, old, new, error, message):
    changed = re.sub(old, new, JOINED)
    assert changed != JOINED
    with pytest.raises(error, match=message):
        opened(two, changed)


def test_sources_with_other_variates_or_preparation_are_refused(two, tmp_path):
    nights(tmp_path, "south", classes=("ill", "well"), rate=50.0)
    nights(tmp_path, "north", classes=("F", "N"), rate=50.0, n_variates=2)
    with pytest.raises(VariateMismatchError, match=r"numbers of variates \(south: 1; Nord: 2\)"):
        opened(tmp_path, JOINED)
    prepare(plan_manifest(two / "north.csv"), tmp_path / "z", Preparation(scaling="series"))
    text = JOINED.replace("preparation = { rate = 50 }", "").replace("north.csv", "z")
    with pytest.raises(ConfigError, match=r"prepared differently \(south: nothing; Nord: z-score\)"):
        opened(tmp_path, text)


def test_one_source_alone_can_be_renamed_but_not_left_out(two):
    alone = JOINED.split("[[dataset.source]]")
    text = f"{alone[0]}[[dataset.source]]{alone[2]}"
    with pytest.raises(DataError, match="all series are of one centre"):
        opened(two, text)
    (view,), series = opened(two, text.replace("leave-one-out", "single"))
    assert (view.name, view.classes) == ("Nord", ("ill", "well"))
    assert len(series) == 16


@pytest.mark.parametrize("new", ["a", "zigzag"])
def test_the_positive_class_is_the_first_that_a_registered_source_names_under_its_new_name(tmp_path, new):
    source = f'[[dataset.source]]\ndata = "synthetic"\nrename = {{ motif = "{new}" }}'
    (view,), _ = opened(tmp_path, f"[dataset]\nwindows = {{ window_length = 128, stride = 64 }}\n{source}")
    assert (view.classes, view.positive) == (tuple(sorted([new, "noise"])), new)


# Random lengths -----------------------------------------------------------------------------------------------


CROPPED = f'[dataset]\ndata = "south.csv"\ncrop = [0.5, 1.0]\n{WINDOWS}\nsplit = {{ kind = "folds" }}'


def test_each_series_is_a_stretch_of_what_it_was(two):
    (view,), cropped = opened(two, CROPPED)
    whole = {item.name: item for item in read_manifest(two / "south.csv")}
    assert set(cropped.names) == set(whole)
    starts = {item.name: round(item.start_seconds * item.rate) for item in cropped}
    for item in cropped:
        start, original = starts[item.name], whole[item.name]
        assert 400 <= item.n_samples <= 800
        assert (start, start + item.n_samples) == random_cut(item.name, 800, (0.5, 1.0), seed=1)
        assert np.array_equal(item.samples, np.float32(original.samples[:, start : start + item.n_samples]))
        assert (item.label, dict(item.origin)) == (original.label, dict(original.origin))
    assert len({item.n_samples for item in cropped}) > 10
    assert len(set(starts.values())) > 10
    assert view.longest == max(item.n_samples for item in cropped)


def test_all_seeds_see_the_same_lengths_and_another_first_seed_others(two):
    (view,), cropped = opened(two, CROPPED)
    tested = Counter(int(k) for split in view.splits.values() for k in split.test)
    assert set(tested.values()) == {1}
    (other,), _ = opened(two, CROPPED, seeds="[1, 2, 3, 4, 5]")
    assert (other.folder, other.content) == (view.folder, view.content)
    _, others = opened(two, CROPPED, seeds="[2, 1]")
    assert [item.n_samples for item in others] != [entry.n_samples for entry in cropped]


def test_lengths_are_log_uniform_and_places_uniform():
    n_samples = 100_000
    cuts = np.array([random_cut(f"s{k}", n_samples, (0.2, 1.0), seed=3) for k in range(4000)])
    lengths = cuts[:, 1] - cuts[:, 0]
    assert lengths.min() >= 20_000
    assert cuts.max() <= n_samples
    assert kstest(np.log(lengths / 20_000) / np.log(5), "uniform").pvalue > 0.01
    assert kstest(cuts[:, 0] / (n_samples - lengths + 1), "uniform").pvalue > 0.01


def test_a_short_series_keeps_at_least_one_sample():
    cuts = [random_cut(f"s{k}", 3, (0.01, 0.02), 1) for k in range(20)]
    assert {stop - start for start, stop in cuts} == {1}


def test_the_z_score_is_that_of_what_is_left(two):
    _, cropped = opened(two, f'{CROPPED}\npreparation = {{ scaling = "series" }}')
    for item in cropped:
        assert abs(float(item.samples.mean())) < 1e-6
        assert float(item.samples.std()) == pytest.approx(1, abs=1e-5)


# Shuffled labels ----------------------------------------------------------------------------------------------


SHUFFLED = (
    f'[dataset]\ndata = "south.csv"\nshuffled = true\n{WINDOWS}\nsplit = {{ kind = "folds", n_folds = 4, '
)
SHUFFLED += "fractions = [0.5, 0.25, 0.25] }"


def test_shuffled_labels_change_nothing_but_labels_and_patients_keep_one(two):
    (view,), shuffled = opened(two, SHUFFLED)
    assert view.name == "south, labels shuffled"
    plain = {item.name: item for item in read_manifest(two / "south.csv")}
    assert Counter(shuffled.labels) == {"ill": 8, "well": 8}
    assert any(item.label != plain[item.name].label for item in shuffled)
    assert all(np.array_equal(item.samples, np.float32(plain[item.name].samples)) for item in shuffled)
    of_patient = {(item.origin["patient"], item.label) for item in shuffled}
    assert len(of_patient) == 8
    for split in view.splits.values():  # as balanced as with true labels: two patients, one of each class
        assert Counter(shuffled.labels[split.test]) == {"ill": 2, "well": 2}


def test_where_groups_are_mixed_every_series_is_on_its_own():
    series = SeriesCollection(
        Series([0.0], label="ab"[k % 2], name=f"s{k:03d}", origin={"patient": f"p{k // 10}"})
        for k in range(400)
    )
    new = np.array(shuffled_labels(series, by="patient", seed=1))
    assert Counter(new) == {"a": 200, "b": 200}
    assert abs(np.mean(new == series.labels) - 0.5) < 0.1
    assert new.tolist() != shuffled_labels(series, by="patient", seed=2)
    backwards = shuffled_labels(series[::-1], by="patient", seed=1)
    assert backwards[::-1] == new.tolist()  # the order of series does not matter


def test_labels_are_shuffled_among_the_selected_classes(tmp_path):
    manifest = nights(tmp_path, "south", classes=("ill", "well", "odd"), rate=50.0, n_patients=12)
    text = SHUFFLED.replace("shuffled", 'classes = ["ill", "well"]\nshuffled')
    _, shuffled = opened(tmp_path, text)
    requested = {item.name for item in read_manifest(manifest) if item.label != "odd"}
    assert set(shuffled.names) == requested
    assert Counter(shuffled.labels) == {"ill": 8, "well": 8}


def test_a_study_with_shuffled_labels_says_so_in_every_table(two, tmp_path):
    run_table(study_of(two, SHUFFLED), tmp_path / "out")
    for name in ("results", "summary", "pooled", "comparisons"):
        rows = pd.read_csv(tmp_path / "out" / f"{name}.csv")
        assert set(rows["dataset"]) == {"south, labels shuffled"}, name
    page = (tmp_path / "out" / "README.md").read_text()
    assert "**LABELS SHUFFLED:**" in page
    assert "- Data: labels shuffled (seed 1)." in page
    (cell, *_) = (place for place in runs_in(tmp_path / "out") if place.match("all-positive-1-*.json"))
    assert read_run(cell, RunResult).changes == {"shuffled": True, "seed": 1}


# F1 over some classes, and what decides a cell ------------------------------------------------------------------


def three(folder, text=""):
    nights(folder, "south", classes=("ill", "well", "odd"), rate=50.0, n_patients=12)
    dataset = f'[dataset]\ndata = "south.csv"\n{WINDOWS}\n{text}'
    study = study_of(folder, dataset, systems='["features-forest"]')
    return study, views_of(study, folder / "data")[0]


def test_f1_of_some_classes_is_what_is_validated_by_and_decides_the_cell(tmp_path):
    (tmp_path / "a").mkdir()
    study, view = three(tmp_path / "a", 'f1_classes = ["ill", "well"]')
    system = dataclasses.replace(study.compared()["features-forest"], settings={"n_trees": 2})
    cell = plan_run(study, view, system, 1, tmp_path / "out")
    result = execute(cell)
    assert result.f1_classes == ("ill", "well")
    plain_view = dataclasses.replace(view, f1_classes=())
    plain = plan_run(study, plain_view, system, 1, tmp_path / "out")
    assert plain.config_hash != cell.config_hash
    assert np.array_equal(execute(plain).probabilities, result.probabilities)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ('f1_classes = ["ill", "wel"]', "no series has the class of f1_classes 'wel'; did you mean 'well'"),
        (
            'classes = ["ill", "odd"]\nf1_classes = ["ill"]',
            "f1_classes is ill, but there are two classes, ill, odd, and F1 is that of one",
        ),
    ],
)
def test_classes_of_f1_that_do_not_fit_are_refused(tmp_path, classes, message):
    with pytest.raises(LabelError, match=message):
        three(tmp_path, classes)


def test_cut_or_relabelled_data_has_cells_of_its_own(two):
    plain = CROPPED.replace("crop = [0.5, 1.0]\n", "")
    shuffled = plain.replace("windows", "shuffled = true\nwindows")
    hashes = []
    for text in (plain, CROPPED, CROPPED.replace("0.5", "0.6"), shuffled):
        study = study_of(two, text)
        (view,) = views_of(study, two / "data")
        hashes.append(plan_run(study, view, study.compared()["all-positive"], 1, two).config_hash)
    assert len(set(hashes)) == 4
