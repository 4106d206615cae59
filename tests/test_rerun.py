"""`raxss rerun`: a committed result is reproduced, or reported as not reproduced."""

import dataclasses
import hashlib
import json
import shutil
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score
from typer.testing import CliRunner

from raxss.benchmark.packed import runs_in
from raxss.benchmark.rerun import Rerun, rerun
from raxss.benchmark.result import RunResult
from raxss.benchmark.study import Study
from raxss.benchmark.table import Work, run_table
from raxss.cli import app
from raxss.errors import ConfigError, DataError
from unpacked import unpack

RESULTS = Path(__file__).parents[1] / "results"
STUDY = """
    systems = ["trees", "network", "minimal"]
    seeds = [1, 2, 3]
    [dataset]
    data = "synthetic"
    [windows]
    window_length = 128
    stride = 128
    [system.trees]
    base = "features-forest"
    n_trees = 10
    [system.network]
    base = "tuned"
    max_epochs = 1
    batch_size = 256
    backbone_options = { width = 4 }
    [system.minimal]
    base = "dlinear"               # chooses its length on validation
    max_epochs = 1
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished")
    outcome = run_table(Study.from_toml(textwrap.dedent(STUDY)), out, work=Work(device="cpu"))
    assert not outcome.errors
    return out


@pytest.fixture
def committed(finished, tmp_path):
    """A copy to change, of which each cell is a file."""
    return unpack(Path(shutil.copytree(finished, tmp_path / "committed")))


def run(*arguments):
    return CliRunner().invoke(app, ["rerun", *map(str, arguments), "--device", "cpu"])


def digests(folder):
    files = sorted(item for item in folder.rglob("*") if item.is_file())
    return {file.relative_to(folder): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def place_of(folder, system, seed):
    (place,) = (item for item in runs_in(folder) if item.name.startswith(f"{system}-{seed}-"))
    return place


def change_study(folder, old, new):
    copy = folder / "study.toml"
    copy.write_text(copy.read_text().replace(old, new, 1))


def figures_of(folder):
    """System, seed -> committed AUC."""
    return pd.read_csv(folder / "results.csv").set_index(["system", "seed"])["auc"]


def changed(folder, system, seed, figures):
    """Write other figures into the table, where one looks for what was committed."""
    table = pd.read_csv(folder / "results.csv", dtype={"config_hash": str})
    rows = (table["system"] == system) & (table["seed"] == seed)
    assert rows.sum() == 1
    table.loc[rows, list(figures)] = list(figures.values())
    table.to_csv(folder / "results.csv", index=False, float_format="%.10g")


@pytest.mark.parametrize("system", ["trees", "network", "minimal"])
def test_a_cell_comes_out_again_bit_for_bit_and_its_folder_stays_as_it_is(finished, system):
    before = digests(finished)
    response = run(finished, system, 2)
    assert response.exit_code == 0, response.output
    figure = figures_of(finished)[system, 2]
    assert f"  auc       {figure:14.10f}{figure:14.10f}\n" in response.output
    assert "the same to the last digit; probabilities are equal bit for bit." in response.output
    assert "then" not in response.output  # same versions, same device
    assert digests(finished) == before


def test_a_number_in_the_table_that_its_predictions_do_not_give_is_caught(committed):
    changed(committed, "trees", 1, {"auc": 0.987654321})
    message = "says auc = 0.987654321 of synthetic, trees, seed 1, but predictions"
    with pytest.raises(DataError, match=message):
        rerun(committed, "trees", 1, device="cpu")


def test_predictions_that_were_changed_are_caught_by_their_seal(committed):
    place = place_of(committed, "trees", 1)
    content = json.loads(place.read_text())
    content["probabilities"][0] = content["probabilities"][0][::-1]
    place.write_text(json.dumps(content))
    with pytest.raises(DataError, match="does not fit its seal"):
        rerun(committed, "trees", 1, device="cpu")


def forged(folder, n_swapped):
    """Predictions, seal and table that fit each other and are not those of the fit."""
    place = place_of(folder, "trees", 1)
    result = RunResult.read(place)
    probabilities = result.probabilities.copy()
    probabilities[:n_swapped] = probabilities[:n_swapped, ::-1]
    result = dataclasses.replace(result, probabilities=probabilities)
    result.write(place)
    truth = np.array(result.labels) == result.positive
    scores = probabilities[:, result.classes.index(result.positive)]
    guessed = np.array(result.classes)[probabilities.argmax(axis=1)] == result.positive
    figures = {"auc": roc_auc_score(truth, scores), "f1": f1_score(truth, guessed)}
    changed(folder, "trees", 1, figures | {"accuracy": accuracy_score(truth, guessed)})
    return figures["auc"]


def test_a_figure_that_nobody_gets_again_ends_with_exit_code_1(committed):
    auc = figures_of(committed)["trees"]
    was = forged(committed, n_swapped=6)
    response = run(committed, "trees", 1)
    assert response.exit_code == 1, response.output
    deviation = np.std([was, auc[2], auc[3]], ddof=1)
    assert abs(auc[1] - was) > deviation  # else this test shows nothing
    assert f"differs by {auc[1] - was:+.4f}, seed deviation only {deviation:.4f}." in response.output


def test_a_figure_within_the_seeds_deviation_passes(committed):
    """As on another device; there the other seeds are what they are, and here they are made to differ."""
    was = forged(committed, n_swapped=1)
    changed(committed, "trees", 2, {"auc": 0.0})
    auc = figures_of(committed)["trees"]
    (again,) = rerun(committed, "trees", 1, device="cpu")
    assert again.deviation == pytest.approx(np.std([was, 0.0, auc[3]], ddof=1))
    assert not again.same
    assert again.holds
    assert again.figures["auc"][0] == pytest.approx(was)
    assert f"seed deviation {again.deviation:.4f}" in again.verdict()


def test_of_one_seed_only_the_same_figure_passes():
    facts = {"dataset": "toy", "system": "sss", "seed": 1, "deviation": np.nan, "farthest": 0.1}
    facts |= {"elsewhere": {}, "settings": {}}
    assert Rerun(figures={"auc": (0.9, 0.9)}, **facts).holds
    off = Rerun(figures={"auc": (0.9, 0.91)}, **facts)
    assert not off.holds
    assert off.verdict() == "differs by +0.0100; of one seed there is no deviation to judge that by"


def test_the_committed_settings_win_over_todays_with_a_note(committed):
    change_study(committed, "n_trees = 10", "n_trees = 11")
    response = run(committed, "trees", 1)
    assert response.exit_code == 0, response.output
    assert "the study would set n_trees = 11 today; this fit has the committed 10" in response.output


def older(folder, system, change):
    """Write other settings into a committed cell, as an earlier version would have."""
    place = place_of(folder, system, 1)
    result = RunResult.read(place)
    settings = dict(result.settings)
    change(settings)
    dataclasses.replace(result, settings=settings).write(place)


def test_a_setting_that_is_newer_than_the_cell_has_its_neutral_value(committed):
    older(committed, "network", lambda settings: settings.pop("smoothing"))
    change_study(committed, "batch_size = 256", "batch_size = 256\nsmoothing = 0.5")
    response = run(committed, "network", 1)
    assert response.exit_code == 0, response.output
    assert "probabilities are equal bit for bit" in response.output
    assert "the study would set smoothing = 0.5 today; this fit has the committed 0.0" in response.output


def test_a_cell_under_old_names_comes_out_again_without_a_warning(committed):
    old_names = {"width": 4, "views": ["shapes", "rhythms", "textures"], "d_textures": 64}
    older(committed, "network", lambda settings: settings.update(backbone_options=old_names))
    (again,) = rerun(committed, "network", 1, device="cpu")
    assert (again.same, again.farthest) == (True, 0.0)


def test_what_differs_in_device_and_versions_is_reported(committed):
    place = place_of(committed, "trees", 3).with_suffix(".facts.json")
    facts = json.loads(place.read_text()) | {"torch": "1.0.0", "device": "NVIDIA H200"}
    del facts["scipy"]
    place.write_text(json.dumps(facts))
    (again,) = rerun(committed, "trees", 3, device="cpu")
    assert again.elsewhere["device"] == ("NVIDIA H200", "cpu")
    assert again.elsewhere["torch"][0] == "1.0.0"
    assert again.elsewhere["scipy"][0] == "not noted"
    assert set(again.elsewhere) == {"device", "torch", "scipy"}


def test_another_split_is_no_repetition(committed):
    change_study(committed, "[windows]", "[split]\nfractions = [0.5, 0.1, 0.4]\n[windows]")
    with pytest.raises(DataError, match="was tested on 8 series, and now on 16, not the same ones"):
        rerun(committed, "trees", 1, device="cpu")


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"system": "tree"}, "no result of the system 'tree'; did you mean 'trees'"),
        ({"seed": 4}, "no result of the seed 4"),
        ({"dataset": "synthetics"}, "no result of the dataset 'synthetics'; did you mean 'synthetic'"),
    ],
)
def test_what_is_not_in_the_folder_is_refused_with_what_is(finished, requested, message):
    with pytest.raises(ConfigError, match=message):
        rerun(finished, **{"system": "trees", "seed": 1} | requested)


def test_a_folder_without_its_study_requires_it(committed, tmp_path):
    (committed / "study.toml").rename(tmp_path / "mine.toml")
    with pytest.raises(ConfigError, match=r"'committed' has no copy of its study.*--study"):
        rerun(committed, "trees", 1)
    response = run(committed, "trees", 1, "--study", tmp_path / "mine.toml")
    assert response.exit_code == 0, response.output


def test_a_copy_with_absent_files_requires_the_original(committed):
    change_study(committed, "systems", 'extensions = ["network.py"]\nsystems')
    with pytest.raises(ConfigError, match=r"'network.py' is not there.*This is a copy.*--study"):
        rerun(committed, "trees", 1)


def test_a_folder_that_is_no_table_is_named(tmp_path):
    with pytest.raises(DataError, match=r"'nothing' has no results.csv"):
        rerun(tmp_path / "nothing", "sss", 1)


@pytest.mark.parametrize("system", ["features-forest", "all-positive"])
def test_the_committed_figure_of_a_fast_system_comes_out_again(shared_data, system):
    (again,) = rerun(RESULTS / "bonn", system, 69421, root=shared_data, device="cpu")
    assert again.same or {"python", "numpy", "scikit-learn"} & set(again.elsewhere), again.verdict()
    assert again.holds, again.verdict()
