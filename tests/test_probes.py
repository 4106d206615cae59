"""Evaluations of one fit under many settings against single predictions, and analyses of a whole study."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn
from typer.testing import CliRunner

from raxss import RAxSSClassifier, Series, SeriesCollection
from raxss.benchmark.analyses.analysis import of_kinds
from raxss.benchmark.analyses.by_name import run_analysis
from raxss.benchmark.analyses.evaluation import EvaluatedRun, Evaluation, FittedModel
from raxss.benchmark.analyses.reweighting import Cross, reweigh, weighed
from raxss.benchmark.analyses.reweighting_analysis import Reweighting
from raxss.benchmark.analyses.robustness import (
    LEVELS,
    Robustness,
    changed,
    conditions_at_test,
    with_fewer_groups,
)
from raxss.benchmark.evaluation_set import views_of
from raxss.benchmark.packed import read_run, runs_in
from raxss.benchmark.runs import plan_run
from raxss.benchmark.study import Study
from raxss.benchmark.table import Work, run_table
from raxss.cli import app
from raxss.errors import ConfigError, DataError
from toys import SMALL, waves
from unpacked import as_files, made_result

CPU = Work(device="cpu")
IN_SIGNAL = {"space": "signal", "temperature": 0.1}
NETWORK = {**SMALL, **IN_SIGNAL, "backbone": "convnet"}
STUDY = """
    name = "Small questions"
    systems = ["tuned", "sss", "all-positive"]
    seeds = [1, 2]

    [dataset]
    data = "synthetic"

    [windows]
    window_length = 128
    stride = 128

    [split]
    kind = "folds"

    [training]
    max_epochs = 1
    batch_size = 256

    [system.tuned]
    backbone = "convnet"
    backbone_options = { width = 2 }

    [system.sss]
    backbone = "convnet"
    backbone_options = { width = 3 }
"""


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(4)
    series = waves(rng, 24)
    model = RAxSSClassifier(**NETWORK | {"n_neighbors": 3}).fit(series[:12], validation=series[12:18])
    return model, series[12:18], series[18:]


def evaluated_on(fitted, **settings):
    model, validation, test = fitted
    bare = SeriesCollection(Series(item.samples, rate=item.rate, name=item.name) for item in test)
    about = {"validation": validation, "positive": "slow", "window_length": 32}
    return FittedModel(model=model, test=bare, **about | settings)


# Weights without another fit


@pytest.mark.parametrize("space", ["signal", "features"])
@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_several_weightings_at_once_are_what_the_model_says_with_each(fitted, space, smoothing):
    model, _, test = fitted
    model.set_params(space=space, smoothing=smoothing)
    kinds = ["support", "uniform", "inverse", "shuffled", "random"]
    text = weighed(model, test, kinds)
    for kind, found in zip(kinds, text, strict=True):
        assert_allclose(found, model.set_params(weighting=kind).predict_proba(test), atol=1e-12)
    model.set_params(weighting="support", space="signal", smoothing=0.0)


def test_a_gate_is_required_only_where_it_is_used(rng):
    series = waves(rng, 18)
    settings = {"weighting": "gated", "series_loss_weight": 1.0, "n_neighbors": 3}
    model = RAxSSClassifier(**NETWORK | settings).fit(series[:12], validation=series[12:])
    gated, uniform = weighed(model, series[12:], ["gated", "uniform"])
    assert_allclose(gated, model.predict_proba(series[12:]), atol=1e-12)
    assert_allclose(uniform, model.set_params(weighting="uniform").predict_proba(series[12:]), atol=1e-12)
    model.set_params(weighting="gated")
    gated = FittedModel(model=model, test=series[12:], validation=series[12:])
    kinds = {
        item.settings["weighting"] for item in Reweighting(cross=Cross(temperatures=[0.1])).evaluate(gated)
    }
    assert {"gated", "gated-inverse", "gated-shuffled", "support", "uniform"} <= kinds


class Level(nn.Module):
    """Sure of the class that the mean of a window points to; learns nothing."""

    def __init__(self, n_variates, window_length, n_outputs):
        super().__init__()
        self.scale = nn.Parameter(nn.init.constant_(nn.Linear(1, 1).weight, 10.0))

    def forward(self, windows):
        return windows.mean(dim=(1, 2))[:, None] * self.scale[0]


@pytest.fixture(scope="module")
def level():
    """A model that is right about steady waves, whose mean is their class."""
    series = SeriesCollection(
        Series(offset + np.sin(np.arange(640) / 4), rate=100.0, label=label, name=f"{label}{k}")
        for k in range(6)
        for label, offset in (("up", 1.0), ("down", -1.0))
    )
    settings = {
        "window_length": 32,
        "stride": 16,
        "scaling": "none",
        "max_epochs": 1,
        "lr": 1e-12,
        "exclusion": 0,
        **IN_SIGNAL,
    }
    return RAxSSClassifier(Level, **settings, n_neighbors=5, random_state=0, device="cpu").fit(series)


def test_weights_reward_windows_that_agree(level):
    """Right or not: they save a series whose spoiled windows disagree, and a hum outranks what it hides."""
    rng = np.random.default_rng(0)
    wave = 1.0 + np.sin(np.arange(640) / 4)
    spoiled, hum = wave.copy(), 2 + 2 * rng.normal(size=640)
    spoiled[:400] = -3 + 2 * rng.normal(size=400)  # most windows say "down", and no two of them are alike
    hum[:300] = wave[:300] - 2
    series = [Series(samples, rate=100.0, name=str(k)) for k, samples in enumerate((wave, spoiled, hum))]
    own, uniform = weighed(level, series, ["support", "uniform"])[..., level.classes_.tolist().index("up")]
    assert own[0] == pytest.approx(uniform[0], abs=1e-3)  # all windows agree
    assert uniform[1] < 0.45
    assert own[1] > 0.9
    assert uniform[2] > 0.5 > own[2]


# Probes


def test_the_evaluation_of_a_condition_is_the_prediction_of_spoiled_series(fitted):
    model, _, test = fitted
    conditions = (("clean", 0.0), ("mixed", 0.35), ("noise", 5.0), ("shortened", 0.5))
    answers = Robustness(conditions=conditions).evaluate(evaluated_on(fitted))
    assert len(answers) == 8
    for answer in answers:
        kind, level = answer.settings["kind"], answer.settings["level"]
        spoiled = [changed(item, kind, level, window_length=32) for item in test]
        weighting = "support" if answer.settings["weights"] == "own" else "uniform"
        expected = model.set_params(weighting=weighting).predict_proba(SeriesCollection(spoiled))
        model.set_params(weighting="support")
        assert_allclose(answer.probabilities, expected, atol=1e-12)


def test_a_model_with_equal_weights_has_one_evaluation_a_condition(fitted):
    model, _, _ = fitted
    model.set_params(weighting="uniform")
    answers = Robustness().evaluate(evaluated_on(fitted))
    model.set_params(weighting="support")
    assert [(answer.settings["kind"], answer.settings["level"]) for answer in answers] == list(
        conditions_at_test()
    )
    assert {answer.settings["weights"] for answer in answers} == {"own"}


def test_the_conditions_are_those_of_the_specification():
    shares = (0.05, 0.1, 0.2, 0.35, 0.5)
    for kind in ("drift", "line noise", "pops", "dropouts", "mixed"):
        assert LEVELS[kind] == shares
    assert (LEVELS["noise"], LEVELS["shortened"], LEVELS["training"]) == (
        (20, 10, 5, 0),
        (0.5, 0.25, 0.1),
        (0.5, 0.25, 0.1),
    )
    with pytest.raises(ConfigError, match=r"kind of a condition is 'dirft'; did you mean 'drift'"):
        Robustness(conditions=(("dirft", 0.1),))


def test_every_setting_is_evaluated_on_test_and_validation(fitted):
    model, validation, test = fitted
    cross = Cross(temperatures=(0.05, 0.5), smoothings=(0.0, 0.3))
    answers = Reweighting(cross=cross).evaluate(evaluated_on(fitted))
    tested, judged = (reweigh(model, part, cross, positive="slow") for part in (test, validation))
    rows = cross.rows()
    assert len(answers) == len(rows)
    for place in (0, 7, len(rows) - 1):
        answer = answers[place]
        assert answer.settings["pooling"] == rows["pooling"][place]
        expected = tested.filter(like="probability_").to_numpy()[place :: len(rows)]
        assert_array_equal(answer.probabilities, expected)
        slow = judged["probability_slow"].to_numpy()[place :: len(rows)]
        truth = validation.labels == "slow"
        assert answer.validation["auc"] == pytest.approx(roc_auc_score(truth, slow))
        assert answer.validation["f1"] == pytest.approx(f1_score(truth, slow > 0.5))


def test_without_a_validation_part_nothing_is_judged(fitted):
    none = evaluated_on(fitted, validation=SeriesCollection([]))
    assert all(not item.validation for item in Reweighting(cross=Cross(temperatures=(0.1,))).evaluate(none))


# Few training series


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    study = Study.from_toml(textwrap.dedent(STUDY))
    (found,) = views_of(study, tmp_path_factory.mktemp("data"))
    return study, found


def test_fewer_training_groups_are_nested_stratified_and_touch_nothing_else(view):
    _, whole = view
    before = whole.splits[1]
    kept = [with_fewer_groups(whole, 1, share).splits[1] for share in (0.5, 0.25, 0.1)]
    n_train = len(before.train)
    for split, share in zip(kept, (0.5, 0.25, 0.1), strict=True):
        assert len(split.train) == pytest.approx(share * n_train, abs=2)
        assert set(split.train) <= set(before.train)
        assert_array_equal(split.test, before.test)
        assert_array_equal(split.validation, before.validation)
        assert set(split.dropped) == set(before.train) - set(split.train)
        assert f"{100 * share:g} % of the training groups" in split.description
        assert {index % 2 for index in split.train} == {0, 1}  # motif and noise in turn
    assert set(kept[2].train) < set(kept[1].train) < set(kept[0].train)
    with pytest.raises(ConfigError, match=r"share of training groups is 1\.0"):
        with_fewer_groups(whole, 1, 1.0)


def test_a_probe_changes_the_hash_and_its_absence_does_not(view, tmp_path):
    study, whole = view
    system = study.compared()["sss"]
    plain, again, probed, other = (
        plan_run(study, whole, system, 1, tmp_path, probe=probe)
        for probe in (None, None, Reweighting(), Reweighting(cross=Cross(temperatures=[0.1])))
    )
    assert plain.config_hash == again.config_hash
    assert len({plain.config_hash, probed.config_hash, other.config_hash}) == 3


# Files


def test_evaluations_are_read_back_to_the_bit_and_damage_is_noticed(tmp_path, rng):
    result = made_result(("a", "b"), rng.random((2, 2)), classes=("a", "b"), names=("x", "y"))
    settings = {"level": 0.1, "t": None}
    answer = Evaluation(settings=settings, probabilities=rng.random((2, 2)), validation={"auc": 1.0})
    place = tmp_path / "one.json"
    EvaluatedRun(result=result, evaluations=(answer,)).write(place)
    back = EvaluatedRun.read(place)
    assert back.evaluations[0].settings == answer.settings
    assert_array_equal(back.evaluations[0].probabilities, answer.probabilities)
    assert_array_equal(back.result.probabilities, result.probabilities)
    place.write_text(place.read_text().replace('"level":0.1', '"level":0.2'))
    with pytest.raises(DataError, match=r"'one\.json' cannot be read .* does not fit its seal"):
        EvaluatedRun.read(place)


# A whole study


def run(command, *arguments):
    return CliRunner().invoke(app, [command, *map(str, arguments), "--device", "cpu"])


def files_in(folder):
    """All but what tells durations; cells as they were before they were packed."""
    return {
        str(place): as_file
        for place, as_file in as_files(folder).items()
        if not place.name.endswith(".facts.json")
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """What the commands said, the study, and the folder; the second was asked about one seed."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "study.toml").write_text(textwrap.dedent(STUDY))
    where = folder / "study.toml", "--out", folder / "out"
    text = {"reweigh": run("reweigh", *where), "robustness": run("robustness", *where, "--seeds", 1)}
    return text, folder / "study.toml", folder / "out"


def test_a_study_is_reweighed(finished):
    response, _, out = finished
    assert response["reweigh"].exit_code == 0, response["reweigh"].output
    assert "4 results, 0 failed, 0 not run yet" in response["reweigh"].output
    answers = pd.read_csv(out / "reweighting" / "answers.csv")
    assert set(answers["system"]) == {"tuned", "sss"}  # all-positive weighs no windows
    setting = ["space", "exclusion", "weighting", "temperature", "pooling", "smoothing"]
    n_settings = len(Cross().rows())
    assert len(answers) == 2 * 2 * n_settings
    assert not answers.duplicated(["system", "seed", *setting]).any()
    compared = pd.read_csv(out / "reweighting" / "comparisons.csv")
    assert (
        len(compared) == 2 * 2 * 2 * 5 * 2 * 2
    )  # systems, spaces, exclusions, temperatures, poolings, smoothings
    page = (out / "reweighting" / "README.md").read_text()
    assert "differ from uniform ones by" in page.split("\n## ")[1]  # Summary, which overviews quote
    assert str(out.parent) not in page


def test_a_study_is_spoiled(finished):
    response, _, out = finished
    assert response["robustness"].exit_code == 0, response["robustness"].output
    assert (
        "8 results, 0 failed, 8 not run yet" in response["robustness"].output
    )  # four fits a system and seed
    answers = pd.read_csv(out / "robustness" / "answers.csv")
    n_conditions = len(conditions_at_test()) + 3
    assert len(answers[answers["system"] == "tuned"]) == 2 * n_conditions  # weights
    assert len(answers[answers["system"] == "sss"]) == n_conditions
    compared = pd.read_csv(out / "robustness" / "comparisons.csv")
    assert set(compared["system"]) == {"tuned"}
    assert len(compared) == 2 * (
        n_conditions + 8
    )  # against uniform weights and sss; the means of eight kinds
    assert (out / "robustness" / "plots" / "synthetic.png").read_bytes()[:4] == b"\x89PNG"


def test_an_evaluated_fit_is_the_fit_of_the_table(finished, tmp_path):
    _, study, out = finished
    table = run_table(Study.read(study), tmp_path, work=CPU, only=["sss"], seeds=[1])
    (place,) = [cell for cell in runs_in(out / "reweighting") if cell.match("sss-1-*.json")]
    assert_array_equal(read_run(place, EvaluatedRun).result.probabilities, table.results[0].probabilities)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_an_analysis_that_was_killed_resumes_to_the_same_bytes(finished, tmp_path, workers):
    _, study, out = finished
    options = ["--out", tmp_path, "--device", "cpu", "--workers", workers]
    command = [sys.executable, "-m", "raxss", "reweigh", study, *options]
    begun = subprocess.Popen(list(map(str, command)), start_new_session=True)
    cells = tmp_path / "reweighting" / "cells"  # which are packed at the end alone
    while begun.poll() is None and not list(cells.rglob("tuned-*.json")):
        time.sleep(0.05)
    os.killpg(begun.pid, signal.SIGKILL)
    assert begun.wait() == -signal.SIGKILL
    assert not (tmp_path / "reweighting" / "README.md").exists()
    time.sleep(2)  # orphaned workers notice it, and end
    work = Work(device="cpu", n_workers=workers)
    outcome = run_analysis("reweighting", Study.read(study), tmp_path, work=work)
    assert 1 <= outcome.n_run <= 4
    assert files_in(tmp_path / "reweighting") == files_in(out / "reweighting")


def test_systems_without_windows_cannot_be_evaluated(finished, tmp_path):
    _, study, _ = finished
    response = run("robustness", study, "--out", tmp_path, "--only", "all-positive")
    assert isinstance(response.exception, ConfigError)
    assert "'all-positive' gives windows no weights" in str(response.exception)
    alone = Study.from_toml('systems = ["gru", "rocket"]\n[dataset]\ndata = "synthetic"')
    with pytest.raises(ConfigError, match=r"none of the study's systems \(gru, rocket\)"):
        of_kinds(alone, ["windows"])
