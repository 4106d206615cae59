"""The systems recommended and auto: what a study chose for its data does not reach them, and how they are run."""

import numpy as np
import pytest
from torch import nn

from raxss.benchmark.analyses.robustness import Robustness, with_fewer_groups
from raxss.benchmark.evaluation_set import views_of
from raxss.benchmark.runs import execute, plan_run
from raxss.benchmark.study import Study
from raxss.benchmark.systems import System
from raxss.benchmark.table import Work, list_table, run_table
from raxss.data.prepare.folder import read_prepared
from raxss.errors import DataError, TooSlowError

OURS = ("recommended", "auto")
PLAIN = """
systems = ["recommended", "auto", "features-forest"]
seeds = [1]
[dataset]
data = "synthetic"
"""
CHOSEN = f"""
{PLAIN}
classes = ["motif", "noise"]
[preparation]
pool = "2/2"
scaling = "series"
[windows]
window_length = 64
stride = 16
[training]
max_epochs = 3
batch_size = 7
lr = 0.5
"""


def runs_of(text, folder):
    study = Study.from_toml(text)
    (view,) = views_of(study, folder / "data")
    return {name: plan_run(study, view, item, 1, folder) for name, item in study.compared().items()}


@pytest.fixture
def both(tmp_path):
    """The runs of a study that says nothing but the data, and of one that chose everything for it."""
    return runs_of(PLAIN, tmp_path / "plain"), runs_of(CHOSEN, tmp_path / "chosen")


@pytest.mark.parametrize("name", OURS)
def test_windows_training_and_preparation_of_a_study_change_nothing(name, both):
    plain, chosen = (runs[name] for runs in both)
    assert chosen.settings == plain.settings
    assert chosen.config_hash == plain.config_hash
    found, expected = (read_prepared(run.view.folder)[run.split.train] for run in (chosen, plain))
    assert found.names == expected.names
    assert [item.samples.tobytes() for item in found] == [item.samples.tobytes() for item in expected]


def test_they_change_what_the_other_systems_get(both):
    plain, chosen = (runs["features-forest"] for runs in both)
    assert chosen.config_hash != plain.config_hash
    assert (
        read_prepared(chosen.view.folder)[0].n_samples == read_prepared(plain.view.folder)[0].n_samples // 2
    )


def test_all_systems_of_a_study_with_preparation_have_the_same_test_series(both):
    _, chosen = both
    for part in ("train", "validation", "test"):
        names = [read_prepared(run.view.folder)[getattr(run.split, part)].names for run in chosen.values()]
        assert names[0] == names[1] == names[2]
    assert {run.view.name for run in chosen.values()} == {"synthetic"}


def test_one_rate_of_several_sources_is_kept_and_pooling_is_not(tmp_path):
    text = PLAIN.replace(
        'data = "synthetic"',
        "\n".join(f'[[dataset.source]]\ndata = "synthetic"\ncentre = "{k}"' for k in "ab"),
    )
    runs = runs_of(f'{text}\n[preparation]\nrate = 50.0\nscaling = "series"', tmp_path)
    series = {name: read_prepared(run.view.folder)[0] for name, run in runs.items()}
    assert {item.rate for item in series.values()} == {50.0}
    deviation = {name: float(item.samples.std()) for name, item in series.items()}
    assert deviation["features-forest"] == pytest.approx(1, abs=1e-3)
    assert deviation["auto"] == deviation["recommended"] != pytest.approx(1, abs=1e-3)


def test_series_that_are_there_with_the_preparation_alone_are_refused(both, tmp_path):
    from raxss.benchmark.evaluation_set import _by_name

    run = both[0]["recommended"]
    names = read_prepared(run.view.folder).names
    with pytest.raises(DataError, match=rf"1 series are there .* not without it, the first is '{names[-1]}'"):
        _by_name(run.split, names, names[:-1])


class Recorder:
    """An estimator that keeps what it was given, and predicts one class."""

    def __init__(self):
        self.params, self.fitted = {}, None
        self.window_length_, self.stride_, self.backbone_ = 64, 8, nn.Identity()  # of facts

    def set_params(self, **params):
        self.params |= params

    def fit(self, X, **options):
        self.fitted = (list(X.names), options)
        self.classes_ = np.unique(X.labels)
        if "folder" in self.params:
            self.params["folder"].mkdir()
            (self.params["folder"] / "part.json").write_text("{}")
        return self

    def predict_proba(self, X):
        return np.tile([0.4, 0.6], (len(X), 1))


@pytest.mark.parametrize("name", OURS)
def test_they_are_fitted_on_training_and_validation_series_as_by_any_user(name, both, monkeypatch):
    run, model = both[0][name], Recorder()
    monkeypatch.setattr(System, "estimator", lambda *_, **__: model)
    execute(run)
    collection = read_prepared(run.view.folder)
    known = {*collection[run.split.train].names, *collection[run.split.validation].names}
    names, options = model.fitted
    assert (set(names), len(names), options) == (known, len(known), {})  # no validation series, nothing else
    assert not run.parts_place.exists()
    assert list(model.params) == (["folder"] if name == "auto" else [])
    if name == "auto":
        assert model.params["folder"].is_relative_to(run.place.parent)


def test_a_search_that_was_stopped_goes_on_from_its_parts(both, monkeypatch):
    run = both[0]["auto"]
    folders = []

    class Stopped(Recorder):
        def fit(self, X, **options):
            super().fit(X)
            folders.append(sorted(item.name for item in self.params["folder"].parent.rglob("*.json")))
            raise KeyboardInterrupt

    monkeypatch.setattr(System, "estimator", lambda *_, **__: Stopped())
    with pytest.raises(KeyboardInterrupt):
        execute(run)
    assert (folders, run.parts_place.is_dir(), run.place.exists()) == ([["part.json"]], True, False)


def test_what_is_recorded_of_a_search_is_no_time_and_no_folder(both):
    settings = both[0]["auto"].settings
    assert settings["n_trials"] == 8
    assert not {"folder", "budget", "candidates", "verbose"} & set(settings)


def test_robustness_asks_the_default_too_on_series_as_recorded_and_with_fewer_of_them(tmp_path):
    study = Study.from_toml(CHOSEN)
    (view,) = views_of(study, tmp_path / "data")
    fewer = with_fewer_groups(view, 1, 0.5)
    recorded = fewer.seen_by(study.compared()["recommended"])
    assert recorded.folder != view.folder
    assert len(recorded.splits[1].train) == len(fewer.splits[1].train) < len(view.splits[1].train)
    sources = read_prepared(recorded.folder), read_prepared(view.folder)
    own, prepared = (
        [found[place].name for place in split.splits[1].train]
        for found, split in zip(sources, (recorded, fewer), strict=True)
    )
    assert own == prepared
    assert "default" in Robustness.kinds


# What would take too long -------------------------------------------------------------------------------------


class Slow(Recorder):
    def predict_proba(self, X):
        raise TooSlowError("it would take about 43 min here; at most 10 min are allowed.")


def test_what_would_take_too_long_is_not_run_and_the_page_has_the_estimate(tmp_path, monkeypatch, capsys):
    from raxss.benchmark.collect import read_folder
    from raxss.cli.table import tell

    text = PLAIN.replace('"recommended", "auto", ', '"dtw-1nn", ') + "[system.features-forest]\nn_trees = 3\n"
    study = Study.from_toml(text)
    made = System.estimator
    monkeypatch.setattr(
        System, "estimator", lambda self, *a, **k: Slow() if self.name == "dtw-1nn" else made(self, *a, **k)
    )
    outcome = run_table(study, tmp_path, work=Work(device="cpu"))
    assert (outcome.n_failed, len(outcome.errors), len(outcome.results)) == (0, 1, 1)
    tell(outcome, tmp_path / "README.md", tmp_path / "results.csv")  # and no exit code
    assert (
        "1 results, 0 failed, 1 not run, as they would take too long, 0 not run yet."
        in capsys.readouterr().out
    )
    page = (tmp_path / "README.md").read_text("utf-8")
    assert "1 fit; 1 not run, which would take too long (see below)." in page
    assert "## Not run" in page
    assert (
        "| synthetic | dtw-1nn | 1 | it would take about 43 min here; at most 10 min are allowed. |" in page
    )
    assert "## Failed" not in page
    folder = read_folder(tmp_path)
    assert folder.blocks[0].failed == frozenset()
    ((sentence, n),) = folder.missing
    assert ("dtw-1nn, seed 1: not run: it would take about 43 min" in sentence, n) == (True, 1)
    assert ("took too long", "synthetic, dtw-1nn, seed 1") in [
        (state, fit) for fit, state in list_table(study, tmp_path, work=Work(device="cpu"))
    ]
