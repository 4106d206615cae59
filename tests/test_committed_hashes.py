"""Every committed run is found under the hash that its study has today, without the data it was computed from.

What a hash takes from the data (its content, the order and length of its series) was noted in committed_views.json;
settings, seeds, systems and choices come from the study file, and splits from the files beside the results. Folders
under "devices" were computed without a GPU.
"""

import json
from pathlib import Path

import pytest
import torch

from raxss.benchmark import runs, table
from raxss.benchmark.analyses import robustness
from raxss.benchmark.analyses.by_name import analysis_for
from raxss.benchmark.analyses.evaluation import EvaluatedRun
from raxss.benchmark.evaluation_set import View, is_view_of, slug
from raxss.benchmark.packed import facts_of, read_run, runs_in, trials_in
from raxss.benchmark.result import RunResult
from raxss.benchmark.study import Study
from raxss.data.series import Series, SeriesCollection
from raxss.data.splits import Split
from raxss.estimator.config import ADDED_LATER

RESULTS = Path(__file__).parents[1] / "results"
NOTED = json.loads((Path(__file__).parent / "data" / "committed_views.json").read_text("utf-8"))
FOLDERS = sorted(NOTED["views"])
PARTS = ("train", "validation", "test", "dropped")
OLD_NAMES = {'"ensemble"': '"committee"', '"ppv"': '"textures"'}


def test_every_folder_with_cells_is_noted():
    assert sorted(place.parent.name for place in RESULTS.glob("*/cells.parquet")) == FOLDERS


def study_of(folder, *, old_names=False):
    text = (RESULTS / folder / "study.toml").read_text("utf-8")
    for new, old in OLD_NAMES.items() if old_names else ():
        text = text.replace(new, old)
    return Study.from_toml(text, folder=RESULTS / folder)


def views(folder, study):
    """The views of a study as they were: classes as the cells have them, the rest as it was noted."""
    cells = {
        value.dataset: value for value in (read_run(place, RunResult) for place in runs_in(RESULTS / folder))
    }
    found = []
    for name, noted in NOTED["views"][folder].items():
        (dataset,) = (item for item in study.datasets if is_view_of(name, item.name))
        files = [RESULTS / folder / "splits" / slug(name) / f"{seed}.json" for seed in study.seeds]
        contents = [json.loads(file.read_text("utf-8")) for file in files]
        order = NOTED["names"][noted["content"]] or sorted(
            name for part in PARTS for name in contents[0][part]
        )
        splits = zip(study.seeds, (Split.from_json(entry, order) for entry in contents), strict=True)
        found.append(
            View(
                name=name,
                folder=Path("absent"),
                content=noted["content"],
                windows=dataset.windows,
                splits=dict(splits),
                classes=cells[name].classes,
                positive=cells[name].positive,
                longest=noted["longest"],
                f1_classes=dataset.f1_classes,
                headline=dataset.headline,
            )
        )
    return found


def table_of(folder, monkeypatch, **options):
    device = torch.device(NOTED["devices"].get(folder, "cuda"))
    monkeypatch.setattr(table, "pick_device", lambda _: device)  # which is only named in hashes
    study = study_of(folder, **options)
    return study, table.OpenedStudy(
        study, RESULTS / folder, table.Work(), views(folder, study), study.narrowed()
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_hash_of_today_finds_every_committed_cell(folder, monkeypatch):
    study, today = table_of(folder, monkeypatch)
    names = list(study.compared())
    trials, cells = today.trials(), today.runs(names, study.seeds)
    assert set(trials_in(RESULTS / folder)) <= {trial.place for trial in trials}
    assert set(runs_in(RESULTS / folder)) <= {item.place for item in cells}
    committed = {item.place: item for item in cells if runs.done(item)}
    assert set(committed) == set(runs_in(RESULTS / folder)) != set()
    for place, cell in committed.items():
        device = facts_of(place)["device"]
        assert device == "cpu" if cell.device == "cpu" else device != "cpu"
        newer = set(cell.settings) - set(read_run(place, RunResult).settings)
        assert newer <= set(ADDED_LATER), (
            f"{newer - set(ADDED_LATER)} need a neutral value, for reruns of {place}"
        )


@pytest.mark.parametrize("folder", ["bonn", "cinc2017-af", "variants-bern-barcelona", "variants-cinc2017-af"])
def test_a_study_under_old_names_has_the_same_hashes(folder, monkeypatch):
    study, today = table_of(folder, monkeypatch)
    with pytest.warns(DeprecationWarning, match="'ppv'|'ensemble'"):
        old_study, old = table_of(folder, monkeypatch, old_names=True)
    assert old_study.text != study.text
    names, seed = list(study.compared()), study.seeds[:1]
    before = old.runs(names, seed)
    assert [item.place for item in before] == [cell.place for cell in today.runs(names, seed)]
    assert [dict(item.settings) for item in before] == [
        dict(cell.settings) for cell in today.runs(names, seed)
    ]


def test_the_hash_of_today_finds_every_committed_cell_with_a_probe(monkeypatch):
    """Of fits on fewer series the split is drawn by labels and pairs, which the predictions have."""
    study, today = table_of("bern-barcelona", monkeypatch)
    committed = runs_in(RESULTS / "bern-barcelona" / "robustness")
    probed = [read_run(place, EvaluatedRun).result for place in committed]
    known = {}
    for item in probed:
        for name, label, group in zip(item.names, item.labels, item.groups, strict=True):
            recording, pair = group.split("/")
            origin = {"recording": recording, "pair": pair}
            known[name] = Series([0.0], name=name, label=label, origin=origin)
    (view,) = views("bern-barcelona", study)
    collection = SeriesCollection(known[name] for name in sorted(known))
    assert len(collection) == sum(
        len(getattr(view.splits[study.seeds[0]], part)) for part in ("train", "validation", "test")
    )
    monkeypatch.setattr(robustness, "read_prepared", lambda _: collection)
    names = sorted({item.system for item in probed})
    cells = analysis_for(study, "robustness").runs(study, today, names, study.seeds)
    assert {cell.place for cell in cells} == set(committed)


def test_the_version_of_the_package_is_no_part_of_a_hash_and_that_of_results_is(monkeypatch):
    _, today = table_of("watch", monkeypatch)
    (cell,) = today.runs(["features-forest"], [69421])
    monkeypatch.setattr(runs, "__version__", "7.3.1")
    assert today.runs(["features-forest"], [69421])[0].config_hash == cell.config_hash
    monkeypatch.setattr(runs, "RESULTS_VERSION", 2)
    assert today.runs(["features-forest"], [69421])[0].config_hash != cell.config_hash
