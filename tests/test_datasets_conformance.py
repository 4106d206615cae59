"""Conformance of every dataset of the registry, and of one that a user adds.

The datasets are those of `DATASETS`, and example_dataset.py; small_datasets.py has a few files of each.
"""

import json
import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from typer.testing import CliRunner

import raxss.data.datasets.collections as built_in
from example_dataset import TREMOR, Tremor
from raxss.cli import app
from raxss.data.datasets import (
    DATASETS,
    SeriesDataset,
    find_dataset,
    folder_of,
    load_dataset,
    on_disk,
    plan_dataset,
    register_dataset,
)
from raxss.data.datasets.collections.npz_sets import NpzSet
from raxss.data.plan import read_plan
from raxss.data.prepare import read_prepared
from raxss.data.series import ORIGINS
from raxss.errors import ConfigError, DataError
from small_datasets import SMALL

SOURCE = Path(built_in.__file__).parents[3]


@pytest.fixture(autouse=True)
def _no_root(monkeypatch):
    monkeypatch.delenv("RAXSS_DATA", raising=False)


@pytest.fixture(params=[*DATASETS, TREMOR.name])
def dataset(request):
    """Every dataset that is registered; one from outside is so during its own tests."""
    if request.param != TREMOR.name:
        yield DATASETS[request.param]
        return
    yield register_dataset(TREMOR)
    del DATASETS[TREMOR.name]


@pytest.fixture
def root(dataset, tmp_path):
    """A root with a few files of the dataset."""
    if dataset.where == "disk":
        assert dataset.name in SMALL, f"add a line for {dataset.name!r} to SMALL in small_datasets.py"
        (tmp_path / dataset.folder).mkdir(parents=True)
        SMALL[dataset.name](tmp_path / dataset.folder)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


def test_facts_are_complete(dataset):
    for fact in ("name", "about", "licence", "citation", "source"):
        assert getattr(dataset, fact).strip(), fact
    assert find_dataset(dataset.name) is dataset
    assert len(set(dataset.labels)) == len(dataset.labels) >= 2
    assert dataset.group_by in ORIGINS
    assert dataset.rate is None or (math.isfinite(dataset.rate) and dataset.rate > 0)
    assert dataset.size >= 0
    assert (dataset.where == "disk") == bool(dataset.folder)
    if dataset.where == "disk":
        assert dataset.files or dataset.tables, "what must be on the disk"
    assert not dataset.base or dataset.tables, "a download needs sizes and checksums"


def test_a_plan_has_series_of_every_class_with_groups(dataset, root):
    plan = plan_dataset(dataset.name, root=root)
    series = [item for _, item in plan]
    assert (plan.source, plan.group_by) == (dataset.name, dataset.group_by)
    assert len({item.name for item in series}) == len(series) > 0
    assert len({recording.name for recording in plan.recordings}) == len(plan.recordings)
    assert {item.label for item in series} == set(dataset.labels)
    assert len({item.origin[dataset.group_by] for item in series}) >= 2, "one group alone cannot be split"
    assert all(file.is_file() for recording in plan.recordings for file in recording.files)
    assert (
        plan_dataset(dataset.name, root=root / dataset.folder).recordings[0].name == plan.recordings[0].name
    )


def test_planned_series_are_read_with_their_rate_label_and_group(dataset, root):
    plan = plan_dataset(dataset.name, root=root)
    read = read_plan(plan)
    for (_, planned), item in zip(plan, read, strict=True):
        assert (item.name, item.label) == (planned.name, planned.label)
        assert item.group == planned.origin[dataset.group_by]
        assert item.n_variates == len(planned.channels)
        assert np.isfinite(item.samples).all()
        assert dataset.rate in (None, item.rate)
    loaded = load_dataset(dataset.name, root=root)
    assert loaded.names == read.names
    assert_array_equal(loaded[0].samples, read[0].samples.astype(loaded[0].samples.dtype))


def test_classes_choose_series(dataset, root):
    chosen = dataset.labels[:1]
    plan = plan_dataset(dataset.name, root=root, classes=chosen)
    assert {item.label for _, item in plan} == set(chosen)
    assert all(recording.series for recording in plan.recordings)
    with pytest.raises(DataError, match=rf"dataset '{dataset.name}' has no class 'nothing'\."):
        plan_dataset(dataset.name, root=root, classes=["nothing"])


def test_a_plan_can_be_sent_to_another_process(dataset, root):
    first = plan_dataset(dataset.name, root=root).recordings[0]
    sent = pickle.loads(pickle.dumps(first))
    channels = first.series[0].channels
    with first.open_recording() as here, sent.open_recording() as there:
        assert_array_equal(here.read(channels), there.read(channels))


def test_an_unknown_option_is_refused(dataset, root):
    with pytest.raises(ConfigError, match=rf"dataset '{dataset.name}' takes no option 'crops'"):
        plan_dataset(dataset.name, root=root, crops=(0, 1))


def test_missing_files_are_named_with_what_to_do(dataset, tmp_path):
    if dataset.where != "disk":
        assert on_disk(dataset).state == "inside"
        return
    assert on_disk(dataset).state == "unknown"
    with pytest.raises(DataError, match=rf"'{dataset.name}' is not part of the package.*RAXSS_DATA"):
        load_dataset(dataset.name)
    where = f"raxss datasets download {dataset.name}" if dataset.base else dataset.source
    for made in (False, True):  # no folder, and an empty one
        if made:
            (tmp_path / dataset.folder).mkdir(parents=True)
        absent = on_disk(dataset, tmp_path)
        assert (absent.state, absent.n_present) == ("absent", 0)
        plan = plan_dataset(dataset.name, root=tmp_path)
        assert (len(plan), plan.absent) == (0, absent.absent)
        with pytest.raises(DataError) as raised:
            load_dataset(dataset.name, root=tmp_path)
        assert absent.absent[0] in str(raised.value)
        assert where in str(raised.value)
        with pytest.raises(DataError, match=rf"nothing of dataset '{dataset.name}' is there\."):
            run("datasets", "summary", dataset.name, "--root", tmp_path)


def test_what_is_there_is_counted(dataset, root):
    if dataset.where != "disk":
        return
    there = on_disk(dataset, root)
    if dataset.tables:  # whose sizes a small copy does not have
        assert there.n_wanted == len(dataset.listed()) == len(there.absent)
        return
    assert (there.state, there.n_present, there.absent) == ("complete", there.n_wanted, ())
    for file in folder_of(dataset, root).rglob("*.*"):
        file.unlink()
    gone = on_disk(dataset, root)
    assert (gone.state, gone.n_present, len(gone.absent)) == ("absent", 0, len(dataset.files))


def test_the_list_has_its_facts(dataset, root):
    listed = json.loads(run("datasets", "--root", root, "--json").output)
    (found,) = [item for item in listed if item["name"] == dataset.name]
    assert (found["licence"], found["citation"]) == (dataset.licence, dataset.citation)
    assert (found["classes"], found["group_by"]) == (list(dataset.labels), dataset.group_by)
    assert found["state"] == on_disk(dataset, root).state
    assert f"\n{dataset.name} " in "\n" + run("datasets", "--root", root).output


def test_the_summary_is_printed_as_text_and_as_json(dataset, root):
    command = ("datasets", "summary", dataset.name, "--root", root)
    text, summary = run(*command).output, json.loads(run(*command, "--json").output)
    assert len(text.splitlines()) >= 3
    if not dataset.options:
        lengths = [item.n_samples for item in load_dataset(dataset.name, root=root)]
        assert text.startswith(f"{dataset.name}: {len(lengths)} series of ")
        assert f"{min(lengths)} to {max(lengths)} samples, median {np.median(lengths):g}\n" in text
        assert summary["classes"].keys() == set(dataset.labels)
        assert summary["rates"] == [dataset.rate]


def test_it_is_prepared_by_its_name(dataset, root, tmp_path):
    label = dataset.labels[-1]
    run("prepare", dataset.name, "--root", root, "--classes", label, "--out", tmp_path / "prepared")
    prepared = read_prepared(tmp_path / "prepared", verify=True)
    assert set(prepared.labels) == {label}
    assert prepared.facts["source"] == dataset.name
    assert all(item.group == item.origin[dataset.group_by] for item in prepared)


# --- the registry


def test_every_module_of_the_package_registers_a_dataset():
    modules = {file.stem for file in Path(built_in.__file__).parent.glob("[!_]*.py")}
    alone = {name.replace("-", "_") for name, item in DATASETS.items() if not isinstance(item, NpzSet)}
    assert alone | {NpzSet.__module__.rpartition(".")[2]} == modules


def test_a_name_belongs_to_one_dataset(monkeypatch):
    monkeypatch.setitem(DATASETS, "tremor", TREMOR)
    assert register_dataset(replace(TREMOR, size=13)).size == 13  # as a notebook cell that runs again
    with pytest.raises(
        ConfigError, match=r"'bonn' belongs to .*bonn\.Bonn already .* example_dataset\.Tremor"
    ):
        register_dataset(replace(TREMOR, name="bonn"))
    made = SeriesDataset(**{**vars(DATASETS["synthetic"]), "load": TREMOR.planned})
    with pytest.raises(ConfigError, match=r"'synthetic' belongs to .*load_synthetic already"):
        register_dataset(made)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"licence": "", "citation": ""}, r"'tremor' says nothing about licence, citation"),
        ({"labels": ()}, r"nothing about labels"),
        ({"group_by": "patients"}, r"group_by of dataset 'tremor' is 'patients'; did you mean 'patient'"),
    ],
)
def test_a_dataset_without_its_facts_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        register_dataset(replace(TREMOR, **change))
    assert TREMOR.name not in DATASETS


def test_only_a_dataset_object_is_registered():
    with pytest.raises(ConfigError, match=r"given <class .*Tremor.*; a Dataset object is needed"):
        register_dataset(Tremor)
