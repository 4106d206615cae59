"""Evaluation sets and single runs: hashes, leakage, and files."""

import dataclasses
import json
import platform
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from raxss import RAxSSClassifier, Series
from raxss._core.jobs.local import threads_limited
from raxss.benchmark.dataset import SplitPlan
from raxss.benchmark.evaluation_set import bootstrap_groups, check_windows, views_of
from raxss.benchmark.packed import facts_of, pack_runs
from raxss.benchmark.result import RunResult
from raxss.benchmark.runs import chosen_by, done, execute, plan_run
from raxss.benchmark.study import Study
from raxss.benchmark.systems import SYSTEMS
from raxss.data.plan import CollectionPlan, RecordingPlan, SeriesPlan
from raxss.data.prepare import read_prepared
from raxss.data.prepare.preparing import prepare
from raxss.data.prepare.preprocessing import Preparation
from raxss.data.recording import ArrayRecording
from raxss.data.splits import PARTS
from raxss.errors import ConfigError, DataError, LabelError, RAxSSError, RAxSSWarning
from raxss.estimator.candidates import Candidate

CENTRES = ("JHH", "NIH", "UMMC")


def hospital(folder, *, n_patients=5, n_channels=4, lengths=None, labels=None, loud=(), centres=CENTRES):
    """A prepared folder: some channels of some patients of three centres; fast waves are ill.

    ``labels`` and ``loud`` name channels whose label, or whose samples, are others; ``lengths`` centres whose
    series do not have 400 samples.
    """
    generator, other = np.random.default_rng(0), np.random.default_rng(1)
    recordings = []
    for centre in centres:
        n_samples = (lengths or {}).get(centre, 400)
        for patient in range(n_patients):
            name = f"{centre}{patient}"
            series, samples = [], []
            for channel in range(n_channels):
                ill = (channel + patient) % 2
                time = np.arange(n_samples) + generator.uniform(0, 20)
                wave = np.sin(time * (0.6 if ill else 0.2)) + 0.5 * generator.normal(size=n_samples)
                called = f"{name}:{channel}"
                samples.append(other.normal(size=n_samples) * 1000 if called in loud else wave)
                label = (labels or {}).get(called, "ill" if ill else "well")
                origin = {"centre": centre, "patient": name, "recording": name, "channel": str(channel)}
                series.append(SeriesPlan(called, (channel,), label=label, origin=origin))
            opened = partial(ArrayRecording, name, np.array(samples), rate=100.0)
            recordings.append(RecordingPlan(name, (), opened, tuple(series)))
    plan = CollectionPlan("hospital", Path(), tuple(recordings), group_by="patient")
    return prepare(plan, folder, Preparation())


def study_of(folder, text=""):
    """A study of the prepared folder, small enough for a test."""
    return Study.from_toml(
        f"""
        seeds = [1, 2, 3, 4, 5]
        {text if not text.startswith("[") else ""}
        [[dataset]]
        data = "{folder.name}"
        positive = "ill"
        [windows]
        window_length = 40
        stride = 20
        [training]
        max_epochs = 1
        {text if text.startswith("[") else ""}
        """,
        folder=folder.parent,
    )


def views(folder, text="", *, out="out"):
    return views_of(study_of(folder, text), folder.parent / out)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return hospital(tmp_path_factory.mktemp("hospital") / "prepared")


# Views --------------------------------------------------------------------------------------------------------


def test_each_seed_draws_a_split_of_its_own_that_keeps_patients_together(data):
    (view,) = views(data)
    collection = read_prepared(data)
    assert list(view.splits) == [1, 2, 3, 4, 5]
    assert len({tuple(item.test) for item in view.splits.values()}) > 1
    for split in view.splits.values():
        sides = [{collection[int(k)].origin["patient"] for k in getattr(split, part)} for part in PARTS]
        assert len(sides[0]) + len(sides[1]) + len(sides[2]) == len(sides[0] | sides[1] | sides[2]) == 15
        assert split.description == "patient"


def test_five_folds_test_every_series_once(data):
    (view,) = views(data, '[split]\nkind = "folds"')
    tested = Counter(int(k) for split in view.splits.values() for k in split.test)
    assert tested == dict.fromkeys(range(60), 1)
    assert [item.fold for item in view.splits.values()] == ["0", "1", "2", "3", "4"]
    assert {item.description for item in view.splits.values()} == {"5 folds by patient"}


def test_a_centre_that_is_left_out_is_the_whole_test_part(data):
    found = views(data, '[split]\nkind = "leave-one-out"')
    collection = read_prepared(data)
    assert [item.name for item in found] == [f"prepared: {centre}" for centre in CENTRES]
    for view, centre in zip(found, CENTRES, strict=True):
        for split in view.splits.values():
            assert split.fold == centre
            assert {collection[int(k)].origin["centre"] for k in split.test} == {centre}
            assert len(split.test) == 20
            assert len(split.train) == 36  # nine of ten patients: the nearest to seven eighths, 70 of 80 %
            assert centre not in {collection[int(k)].origin["centre"] for k in split.train}


def test_a_centre_alone_is_split_within_itself(data):
    found = views(data, '[split]\nkind = "per-centre"\nby = "channel"\nonly = ["UMMC", "JHH"]')
    collection = read_prepared(data)
    assert [item.name for item in found] == ["prepared: UMMC", "prepared: JHH"]
    for view, centre in zip(found, ("UMMC", "JHH"), strict=True):
        for split in view.splits.values():
            members = np.concatenate([getattr(split, part) for part in PARTS])
            assert {collection[int(k)].origin["centre"] for k in members} == {centre}
            assert len(members) == 20
            assert split.description == "one centre, by channel (leaky)"


def test_some_classes_alone_leave_the_others_out(tmp_path):
    odd = {f"{centre}0:0": "odd" for centre in CENTRES}
    folder = hospital(tmp_path / "prepared", labels=odd)
    with pytest.raises(LabelError, match="positive is 'ill', but there are 3 classes, ill, odd, well"):
        views(folder, "", out="all")
    study = study_of(folder)
    two = dataclasses.replace(study.datasets[0], classes=("well", "ill"), positive=None)
    (view,) = views_of(dataclasses.replace(study, datasets=(two,)), tmp_path / "two")
    labels = read_prepared(folder).labels
    used = np.concatenate([getattr(view.splits[1], part) for part in PARTS])
    assert sorted(np.unique(labels[used])) == ["ill", "well"]
    assert len(used) == 57
    assert view.positive == "well"  # the first that is named


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('classes = ["ill", "wel"]', LabelError, "no series has the class 'wel'; did you mean 'well'"),
        ('classes = ["ill"]', LabelError, "all 30 series are of one class, 'ill'"),
        ('positive = "il"', LabelError, "no series has the positive class 'il'; did you mean 'ill'"),
        ('preparation = { pool = "2/2" }', ConfigError, "asks for 'pool 2/2', but 'prepared' was"),
        ('split = { by = "pair" }', DataError, "60 of 60 series have no known pair"),
        ('split = { kind = "per-centre", only = ["UMC"] }', ConfigError, "'UMC'; did you mean 'UMMC'"),
        (
            'split = { kind = "folds", n_folds = 4, fractions = [0.65, 0.1, 0.25] }',
            ConfigError,
            "'prepared': the study has 5 seeds and 4 folds",
        ),
    ],
)
def test_data_that_does_not_fit_is_refused_by_name(data, text, error, message):
    windows = "windows = { window_length = 40, stride = 20 }"
    study = Study.from_toml(f'[dataset]\ndata = "prepared"\n{text}\n{windows}', folder=data.parent)
    with pytest.raises(error, match=message):
        views_of(study, data.parent / "out")


def test_an_unknown_dataset_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(DataError, match="no dataset 'bern-barcelon'; did you mean 'bern-barcelona'"):
        views_of(Study.from_toml('[dataset]\ndata = "bern-barcelon"'), tmp_path)


def test_windows_that_do_not_fit_are_warned_of_with_the_numbers(data):
    study = study_of(data)
    wide = dataclasses.replace(study.datasets[0].windows, window_length=201)
    # 400 samples: (400 - 201) // 20 + 1 = 10 windows, one too few for ten neighbours
    message = (
        r"60 of 60 series have fewer than 11 windows of 201 samples at stride 20 \(series have 400 to 400 samples, "
        r"median 400\).*window_length = 100"
    )
    with pytest.warns(RAxSSWarning, match=message):
        check_windows(read_prepared(data), wide)
    check_windows(read_prepared(data), dataclasses.replace(wide, window_length=200))


def test_a_tenth_of_short_series_is_let_pass(data):
    collection = read_prepared(data)
    windows = study_of(data).datasets[0].windows
    short = [item.with_samples(item.samples[:, :100]) for item in collection[:6]]
    check_windows(type(collection[:1])([*short, *collection[6:]]), windows)
    with pytest.warns(RAxSSWarning, match="7 of 61 series"):
        check_windows(type(collection[:1])([*short, short[0], *collection[6:]]), windows)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        # 400 samples: (400 - 201) // 20 + 1 = 10 windows
        ('base = "sss"\nwindow_length = 201', r"fewer than 11 windows of 201 samples at stride 20"),
        ('base = "attention-mil"\nstride = 37', r"fewer than 11 windows of 40 samples at stride 37"),
        # (400 - 40) // 20 + 1 = 19 windows
        ('base = "raxss-cosine"\nn_neighbors = 19', r"fewer than 20 windows of 40 samples at stride 20"),
    ],
)
def test_windows_of_a_systems_own_are_warned_of_by_its_name(data, settings, message):
    whose = "'prepared': system 'w': 60 of 60 series have"
    with pytest.warns(RAxSSWarning, match=rf"{whose} {message}.* system.w.window_length = 100"):
        assert len(views(data, f"[system.w]\n{settings}")) == 1


@pytest.mark.parametrize(
    "settings",
    [
        'base = "sss"\nwindow_length = 200\nn_neighbors = 300',  # the plain mean looks for none
        'base = "raxss-cosine"\nn_neighbors = 18',
        'base = "raxss-cosine"\nwindow_length = 300\nn_neighbors = 5',
        'base = "patchtst"\nwindow_length = 400',  # one window a series is what it is about
    ],
)
def test_windows_of_a_systems_own_that_fit_are_let_pass(data, settings):
    assert len(views(data, f"[system.w]\n{settings}")) == 1


def test_two_blocks_of_one_name_are_refused(data):
    study = study_of(data)
    (plain,) = study.datasets
    apart = dataclasses.replace(plain, name="x", split=SplitPlan(kind="leave-one-out"))
    study = dataclasses.replace(study, datasets=(dataclasses.replace(plain, name="x: JHH"), apart))
    with pytest.raises(ConfigError, match="2 blocks of the table would be called 'x: JHH'"):
        views_of(study, data.parent / "out")


def test_the_longest_series_of_a_centre_is_one_of_its_own(tmp_path):
    hospital(tmp_path / "prepared", lengths={"NIH": 900, "UMMC": 500})
    found = views(tmp_path / "prepared", '[split]\nkind = "per-centre"')
    assert [item.longest for item in found] == [400, 900, 500]
    unseen = views(tmp_path / "prepared", '[split]\nkind = "leave-one-out"')
    assert [item.longest for item in unseen] == [900, 900, 900]  # the others are what it learns from


def test_a_dataset_that_is_not_there_says_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delenv("RAXSS_DATA", raising=False)
    study = Study.read(Path(__file__).parents[1] / "studies" / "paper.toml")
    with pytest.raises(RAxSSError, match=r"'all centres': .*openneuro.org/datasets/ds003029"):
        views_of(study, tmp_path / "data")
    with pytest.raises(RAxSSError, match="raxss datasets download ds003029"):
        views_of(study, tmp_path / "data", root=tmp_path)


def test_a_named_dataset_is_prepared_once_for_all_views(tmp_path):
    study = Study.from_toml("""
        seeds = [1]
        windows = { window_length = 128, stride = 64 }
        [[dataset]]
        name = "by recording"
        data = "synthetic"
        [[dataset]]
        name = "by channel"
        data = "synthetic"
        split = { by = "channel" }
    """)
    first, second = views_of(study, tmp_path)
    assert first.folder == second.folder
    assert first.positive == "motif"  # which the registry names first
    before = {file: file.stat().st_mtime_ns for file in first.folder.rglob("*")}
    views_of(study, tmp_path)
    assert {file: file.stat().st_mtime_ns for file in first.folder.rglob("*")} == before
    assert (tmp_path / ".gitignore").read_text() == "*\n"


def test_data_that_changed_is_prepared_anew(tmp_path):
    manifest = tmp_path / "night.csv"
    rows = ["path,label,group"]
    for k in range(24):
        np.savez(tmp_path / f"s{k}.npz", samples=np.sin(np.arange(400) * (0.2 + 0.4 * (k % 2))), rate=10.0)
        rows.append(f"s{k}.npz,{'ab'[k % 2]},p{k // 2}")
    manifest.write_text("\n".join(rows) + "\n")
    windows = "windows = { window_length = 40, stride = 20 }"
    study = Study.from_toml(f'seeds = [1]\n[dataset]\ndata = "night.csv"\n{windows}', folder=tmp_path)
    (before,) = views_of(study, tmp_path / "data")
    assert before.name == "night"
    np.savez(tmp_path / "s0.npz", samples=np.cos(np.arange(400.0)), rate=10.0)
    (after,) = views_of(study, tmp_path / "data")
    assert before.folder == after.folder
    assert before.content != after.content


def test_a_bootstrap_draws_patients_even_where_channels_were_split(data):
    (view,) = views(data, '[split]\nby = "channel"')
    collection = read_prepared(data)
    split = view.splits[1]
    expected = [collection[int(k)].origin["patient"] for k in split.test]
    assert bootstrap_groups(collection, split) == expected


# What decides a cell ------------------------------------------------------------------------------------------


def cell(folder, system="all-positive", seed=1, *, text="", out="out", device="cpu", **options):
    study = study_of(folder, text)
    (view,) = views_of(study, folder.parent / out / "data")
    return plan_run(
        study, view, study.compared()[system], seed, folder.parent / out, device=device, **options
    )


def test_the_hash_is_of_everything_that_decides_the_numbers(data, tmp_path):
    other = hospital(tmp_path / "prepared", loud=("JHH0:0",))
    plain = cell(data, "sss")
    revised = dataclasses.replace(SYSTEMS["sss"], revision=1)
    cells = {
        "as it is": plain,
        "another revision": plan_run(study_of(data), plain.view, revised, 1, tmp_path),
        "another system": cell(data, "patchtst-window"),
        "another seed": cell(data, "sss", 2),
        "other data": cell(other, "sss"),
        "another split": cell(data, "sss", text='[split]\nby = "channel"'),
        "more threads": cell(data, "sss", text="n_threads = 2"),
        "another device": cell(data, "sss", device="cuda"),
        "another setting": cell(data, "sss", text="[system.sss]\nn_neighbors = 5"),
        "a trial": cell(data, "sss", trial=True),
    }
    hashes = {name: item.config_hash for name, item in cells.items()}
    assert len(set(hashes.values())) == len(hashes), hashes
    assert cell(data, "sss", out="elsewhere").config_hash == hashes["as it is"]


@pytest.mark.parametrize(
    ("system", "on_gpu"), [("features-forest", False), ("rocket", True), ("minirocket", False)]
)
def test_only_systems_that_use_a_device_have_a_hash_of_it(data, system, on_gpu):
    here, there = (cell(data, system, device=device) for device in ("cpu", "cuda"))
    assert (here.config_hash != there.config_hash) == on_gpu
    assert there.device == ("cuda" if on_gpu else "cpu")


def test_only_systems_that_may_use_an_extension_depend_on_it(data):
    def hashes(content):
        (data.parent / "mine.py").write_text(content)
        text = 'extensions = ["mine.py"]\nsystem.mine = { base = "sss", backbone = "convnet" }'
        return [cell(data, name, text=text).config_hash for name in ("sss", "mine")]

    before, after = hashes("a = 1\n"), hashes("a = 2\n")
    assert before[0] == after[0]
    assert before[1] != after[1]


# Running one --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran(data):
    item = cell(data, "sss", out="ran")
    return item, execute(item)


def test_a_result_says_what_it_is_about(data, ran):
    item, result = ran
    collection = read_prepared(data)
    test = collection[item.split.test]
    assert result.names == tuple(test.names)
    assert result.labels == tuple(test.labels)
    assert result.probabilities.shape == (len(test), 2)
    assert (result.classes, result.positive) == (("ill", "well"), "ill")
    assert result.groups == tuple(series.origin["patient"] for series in test)
    assert result.split["description"] == "patient"
    assert (result.split["n_train"], result.split["n_test"]) == (len(item.split.train), len(test))
    assert result.settings["window_length"] == 40
    assert result.settings["max_epochs"] == 1
    assert result.settings["n_threads"] == 1
    assert {"f1", "auc", "accuracy"} <= set(result.validation)


def test_the_numbers_are_those_of_the_estimator_by_hand(data, ran):
    item, result = ran
    collection = read_prepared(data)
    train, validation, test = item.split.parts(collection)
    model = RAxSSClassifier.from_preset(
        "sss", window_length=40, stride=20, max_epochs=1, random_state=1, device="cpu"
    )
    with threads_limited(1):
        model.fit(train, validation=validation)
        assert np.array_equal(model.predict_proba(test), result.probabilities)
        windows = np.concatenate(list(model.window_probabilities(test)))
    truth = np.repeat(test.labels, len(windows) // len(test))
    assert result.window_accuracy == np.mean(model.classes_[windows.argmax(axis=1)] == truth)
    assert result.n_parameters == sum(parameter.numel() for parameter in model.backbone_.parameters())


def test_a_system_that_chooses_nothing_learns_from_the_validation_part_too(data):
    item = cell(data, "tuned", out="all")
    result = execute(item)
    train, validation, test = item.split.parts(read_prepared(data))
    settings = {"window_length": 40, "stride": 20, "max_epochs": 1, "random_state": 1, "device": "cpu"}
    with threads_limited(1):
        both, fewer = (
            RAxSSClassifier.from_preset("tuned", **settings).fit(part, validation=[])
            for part in ([*train, *validation], train)
        )
        both, fewer = both.predict_proba(test), fewer.predict_proba(test)
    assert np.array_equal(result.probabilities, both)
    assert not np.array_equal(result.probabilities, fewer)
    assert result.validation == {}  # it has learned from them


@pytest.mark.parametrize("setting", ["patience = 3", 'calibration = "isotonic"', 'temperature = "learned"'])
def test_a_variant_that_uses_the_validation_series_is_not_trained_on_them(data, setting):
    text = f'[system.other]\nbase = "tuned"\n{setting}\n[system.same]\nbase = "tuned"\nlr = 0.1'
    other, same = (cell(data, name, text=text) for name in ("other", "same"))
    assert same.system.learns_from_all(same.settings)
    assert not other.system.learns_from_all(other.settings)


def test_a_second_run_writes_the_same_bytes(data, ran):
    item, _ = ran
    again = cell(data, "sss", out="again")
    execute(again)
    assert again.place != item.place
    assert again.place.read_bytes() == item.place.read_bytes()


def test_facts_lie_beside_the_result_and_do_not_name_the_host(ran):
    item, _ = ran
    facts = json.loads(item.facts_place.read_text())
    assert facts["seconds"] == pytest.approx(sum(facts["seconds_by_part"].values()), abs=0.01)
    assert set(facts["seconds_by_part"]) == {"load", "fit", "validation", "test"}
    assert not {"model", "search"} & set(facts)  # only of models on their own
    assert (facts["n_threads"], facts["device"]) == (1, "cpu")
    for file in (item.facts_place, item.place):
        assert platform.node() not in file.read_text()
        assert str(item.place.parents[3]) not in file.read_text()


def test_facts_say_what_a_model_on_its_own_has_chosen(data, monkeypatch):
    ridge = {"backbone": "ridge", "backbone_options": {"view": "statistics"}, "stride": 20}
    candidates = [
        Candidate(name=name, reason="quick", params={**ridge, "window_length": length}, cost_hint=1.0)
        for name, length in (("default", 40), ("long", 80))
    ]
    monkeypatch.setattr("raxss.estimator.candidates.CANDIDATES", tuple(candidates))
    run = cell(data, "auto", text="[system.auto]\nn_trials = 2", out="auto")
    execute(run)
    facts = json.loads(run.facts_place.read_text())
    search = facts["search"]
    chosen = next(row for row in search["candidates"] if row["outcome"] == "chosen")
    assert chosen["candidate"] == search["chosen"]
    assert search["best_params"] == next(item.params for item in candidates if item.name == search["chosen"])
    assert {row["candidate"] for row in search["candidates"]} == {"default", "long"}
    assert set(chosen) == {"candidate", "rung", "score", "difference", "outcome", "seconds"}
    assert chosen["score"] < 0
    lengths = search["best_params"]["window_length"], search["best_params"]["stride"]
    assert facts["model"]["backbone"] == "Ridge on statistics"
    assert (facts["model"]["window_length"], facts["model"]["stride"]) == lengths
    assert pack_runs(data.parent / "auto")
    assert facts_of(run.place) == facts


def test_facts_of_a_mixture_have_its_members_and_weights():
    rows = [Series(np.sin(np.arange(40) * (0.2 + 0.4 * (k % 2)) + k), label=k % 2) for k in range(12)]
    model = RAxSSClassifier(random_state=0).fit(rows)
    found = chosen_by(model)["model"]
    assert found["backbone"].startswith("mixture of .")
    assert found["backbone"] == model.backbone_.describe_as
    assert (found["window_length"], found["stride"]) == (model.window_length_, model.stride_)


def test_a_result_that_was_cut_short_is_not_done(ran, tmp_path):
    item, result = ran
    assert done(item).probabilities.tolist() == result.probabilities.tolist()
    cut = dataclasses.replace(item, place=tmp_path / item.place.name)
    assert done(cut) is None
    cut.place.write_bytes(item.place.read_bytes()[:-20])
    assert done(cut) is None
    other = dataclasses.replace(item, config_hash="0" * 12)
    assert done(other) is None


def with_other_data(item, folder, **changes):
    """The same run on a copy of the data with other labels or samples of some series."""
    folder = hospital(folder / "b" / "prepared", **changes)
    view = dataclasses.replace(item.view, folder=folder, content=read_prepared(folder).collection_hash)
    return dataclasses.replace(item, view=view, place=folder.parent / "other.json")


def series_of_test_part(item):
    collection = read_prepared(item.view.folder)
    return [collection[int(k)] for k in item.split.test]


def check_that_test_labels_are_not_used(tmp_path, system, text):
    item = cell(hospital(tmp_path / "a" / "prepared"), system, text=text)
    other = {"ill": "well", "well": "ill"}
    swapped = {series.name: other[series.label] for series in series_of_test_part(item)}
    first, second = execute(item), execute(with_other_data(item, tmp_path, labels=swapped))
    assert first.names == second.names
    assert all(a != b for a, b in zip(first.labels, second.labels, strict=True))
    assert np.array_equal(first.probabilities, second.probabilities)
    assert first.validation == second.validation


@pytest.mark.parametrize("system", ["tuned", "features-forest"])
def test_labels_of_the_test_part_never_reach_a_model(system, tmp_path):
    check_that_test_labels_are_not_used(tmp_path, system, "[system.features-forest]\nn_trees = 20")


def test_a_trial_never_opens_the_test_part(tmp_path):
    item = cell(hospital(tmp_path / "a" / "prepared"), "tuned", trial=True)
    other = with_other_data(item, tmp_path, loud=[series.name for series in series_of_test_part(item)])
    execute(item)
    execute(other)
    assert item.place.read_bytes() == other.place.read_bytes()
    read = RunResult.read(item.place)
    assert (read.names, read.labels, read.groups, read.window_accuracy) == ((), (), (), None)
    assert read.validation


def test_a_part_with_one_class_has_no_figure_and_says_so(data):
    item = cell(data)
    labels = read_prepared(data).labels
    ill = np.array([k for k in item.split.test if labels[k] == "ill"])
    splits = {1: dataclasses.replace(item.split, test=ill)}
    weak = dataclasses.replace(item, view=dataclasses.replace(item.view, splits=splits))
    with pytest.raises(LabelError, match=r"the test set has one class only, 'ill' \(split: patient\)"):
        execute(weak)


def test_data_that_changed_meanwhile_is_noticed(data):
    item = cell(data)
    with pytest.raises(DataError, match="'prepared' changed after the study began"):
        execute(dataclasses.replace(item, view=dataclasses.replace(item.view, content="0" * 64)))


def test_a_cell_leaves_the_global_generators_as_they_were(data):
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    execute(cell(data, out="generators"))
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])  # noqa: NPY002
