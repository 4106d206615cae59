"""`raxss table`: a study from its file to its table, whatever happens on the way."""

import csv
import json
import re
import shutil
import sys
import tempfile
import textwrap
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from raxss._core.outputs import output_lock
from raxss._core.store import seal_of
from raxss.benchmark.packed import PACKED, facts_of, read_run, trials_in
from raxss.benchmark.result import RunResult
from raxss.benchmark.study import Study
from raxss.benchmark.systems import SYSTEMS
from raxss.benchmark.table import Work, best_of, fit_bars, run_table
from raxss.cli import app
from raxss.data.prepare.folder import FACTS
from raxss.errors import MissingExtraError, OutputInUseError
from raxss.method.backbones import BACKBONES
from unpacked import as_files, contents, unpack

SMOKE = Path(__file__).parents[1] / "studies" / "smoke.toml"

# A network of one's own, as it would lie beside a study. What it reads from the environment makes it misbehave.
BACKBONE = """
    import os
    import torch
    from torch import nn
    from raxss.method.backbones import register_backbone

    @register_backbone("linear")
    class Linear(nn.Module):
        def __init__(self, n_variates, window_length, n_outputs):
            super().__init__()
            if os.environ.get("BREAK") == str(torch.initial_seed()):
                raise RuntimeError("the seed of this test")
            mark = os.environ.get("DIE_ONCE")
            if mark and torch.initial_seed() == 2 and not os.path.exists(mark):
                open(mark, "w").close()
                os.kill(os.getpid(), 9)
            self.head = nn.Linear(n_variates * window_length, n_outputs)

        def features(self, windows):
            if os.environ.get("STOP") and self.training and torch.is_grad_enabled():
                raise KeyboardInterrupt
            return windows.flatten(1)

        def forward(self, windows):
            return self.head(self.features(windows))
"""
STUDY = """
    name = "A small comparison"
    systems = ["sss-linear", "all-positive"]
    seeds = [1, 2, 3]
    extensions = ["linear.py"]

    [dataset]
    data = "synthetic"

    [windows]
    window_length = 128
    stride = 64

    [training]
    max_epochs = 2

    [system.sss-linear]
    base = "sss"
    backbone = "linear"
    batch_size = 256

    [system.first-samples]
    base = "dlinear"
    backbone = "linear"
"""


@pytest.fixture
def study(tmp_path):
    """The file of a study; what its extension registers is forgotten afterwards."""
    yield written(tmp_path)
    forget("linear")


def written(folder):
    (folder / "linear.py").write_text(textwrap.dedent(BACKBONE))
    (folder / "study.toml").write_text(textwrap.dedent(STUDY))
    return folder / "study.toml"


def forget(name):
    BACKBONES.pop(name, None)
    sys.modules.pop(f"raxss_extension_{name}", None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """What the command said, and the folder that it wrote; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)  # paths count from the study, wherever the command is run
        text = run(written(folder), "--out", folder / "out")
    forget("linear")
    return text, folder / "out"


def run(*arguments):
    return CliRunner().invoke(app, ["table", *map(str, arguments), "--device", "cpu"])


def cells_in(out, part="cells"):
    """Results by place, without facts and errors; packed ones as they were written."""
    return {
        place: content
        for place, content in as_files(out).items()
        if place.parts[0] == part and place.match("*-*.json") and len(place.suffixes) == 1
    }


def rows_in(out):
    with open(out / "results.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_study_becomes_a_table(finished):
    response, out = finished
    assert response.exit_code == 0, response.output
    assert "6 results, 0 failed, 0 not run yet" in response.output
    rows = rows_in(out)
    assert list(rows[0])[:6] == ["dataset", "system", "seed", "f1", "auc", "accuracy"]
    cells = {("synthetic", system, seed) for system in ("sss-linear", "all-positive") for seed in "123"}
    assert {(row["dataset"], row["system"], row["seed"]) for row in rows} == cells
    # half of the test series are positive: calling all of them so is right half of the time
    trivial = [row for row in rows if row["system"] == "all-positive"]
    assert [(float(row["accuracy"]), round(float(row["f1"]), 4)) for row in trivial] == [(0.5, 0.6667)] * 3
    assert {row["n_parameters"] for row in rows if row["system"] == "sss-linear"} == {"129"}  # 128 and a bias
    assert "A small comparison" in (out / "README.md").read_text()


def test_no_file_but_the_studys_own_names_a_folder_of_this_machine(finished):
    _, out = finished
    files = {
        place: content.decode()
        for place, content in as_files(out).items()
        if place.suffix in (".csv", ".md", ".json")
    }
    assert len(files) > 12
    for place, text in files.items():
        assert str(out.parent) not in text, place


def test_every_system_there_is_gives_a_row(tmp_path):
    pytest.importorskip("aeon")
    out = tmp_path / "out"
    response = run(SMOKE, "--out", out, "--workers", 2)
    assert response.exit_code == 0, response.output
    rows = rows_in(out)
    assert [row["system"] for row in rows] == list(SYSTEMS)
    for row in rows:
        assert not row["error"]
        assert 0 <= float(row["auc"]) <= 1, row["system"]
        assert float(row["seconds"]) > 0


def test_what_is_done_is_not_done_again(study, tmp_path):
    out = tmp_path / "out"
    read = Study.read(study)
    first = run_table(read, out, work=Work(device="cpu"), seeds=[1])
    assert (first.n_run, first.n_missing) == (2, 4)
    before = contents(out)
    second = run_table(read, out, work=Work(device="cpu"), only=["all-positive"])
    assert (second.n_run, second.n_missing) == (2, 2)
    assert len(second.results) == 4  # those of the first run too
    after = contents(out)
    assert {place: after[place] for place in before} == before  # facts too: nothing was run again
    assert len(after) == 4


def test_a_packed_study_is_one_file_and_goes_on_where_it_was(study, finished, tmp_path):
    """Some cells packed, some newer than the packed file, some missing: the same cells in the end."""
    _, whole = finished
    assert not (whole / "cells").exists()
    out = tmp_path / "out"
    run_table(Study.read(study), out, work=Work(device="cpu"), seeds=[1])
    outcome = run_table(Study.read(study), out, work=Work(device="cpu"), seeds=[2])
    assert (outcome.n_run, len(outcome.results)) == (2, 4)
    loose = unpack(Path(shutil.copytree(whole, tmp_path / "loose"))) / "cells"
    for file in loose.rglob("all-positive-3-*.json"):
        place = out / "cells" / file.relative_to(loose)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    assert "done  synthetic, all-positive, seed 3" in run(study, "--out", out, "--dry-run").output
    outcome = run_table(Study.read(study), out, work=Work(device="cpu"))
    assert (outcome.n_run, len(outcome.results), outcome.n_missing) == (1, 6, 0)
    assert not (out / "cells").exists()
    assert cells_in(out) == cells_in(whole)
    before = (out / PACKED).read_bytes()
    assert run_table(Study.read(study), out, work=Work(device="cpu")).n_run == 0
    assert (out / PACKED).read_bytes() == before


def change_packed(out):
    """Change one prediction of the packed file."""
    table = pq.read_table(out / PACKED)
    rows = table.to_pylist()
    changed = next(row for row in rows if "linear-2" in row["cell"] and row["series"])
    changed["p_0"] += 1e-12
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), out / PACKED)


def cut_file(out):
    """Cut the file of one result short."""
    unpack(out)
    damaged = out / next(place for place in cells_in(out) if "linear-2" in place.name)
    damaged.write_bytes(damaged.read_bytes()[:300])


@pytest.mark.parametrize("damage", [change_packed, cut_file])
def test_a_damaged_result_is_noticed_and_computed_again(study, finished, tmp_path, caplog, damage):
    out = tmp_path / "out"
    shutil.copytree(finished[1], out)
    whole = cells_in(out)
    damage(out)
    outcome = run_table(Study.read(study), out, work=Work(device="cpu"))
    assert outcome.n_run == 1
    assert re.search(r"'sss-linear-2-\w+\.json' cannot be read as the result of a run", caplog.text)
    assert cells_in(out) == whole


def test_a_seed_that_fails_is_reported_and_the_others_go_on(study, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setenv("BREAK", "2")
    response = run(study, "--out", out)
    assert response.exit_code == 1
    assert "5 results, 1 failed" in response.output
    assert "sss-linear, seed 2: ConfigError: " in response.output
    (error,) = (out / "cells").rglob("*.error.json")
    kept = json.loads(error.read_text())
    assert (kept["system"], kept["seed"], kept["type"]) == ("sss-linear", 2, "ConfigError")
    assert "the seed of this test" in kept["message"]
    assert any(item.startswith("raxss.benchmark.runs:") for item in kept["frames"])
    assert str(tmp_path) not in error.read_text()
    assert ".py" not in error.read_text()  # no files of whoever ran it
    assert len(cells_in(out)) == 5
    failed = [row for row in rows_in(out) if row["error"]]
    assert [(row["system"], row["seed"]) for row in failed] == [("sss-linear", "2")]
    assert "the seed of this test" in (out / "README.md").read_text()

    monkeypatch.delenv("BREAK")
    response = run(study, "--out", out)
    assert response.exit_code == 0
    assert "6 results, 0 failed" in response.output
    assert not error.exists()
    assert not any(row["error"] for row in rows_in(out))


def test_a_run_that_is_stopped_keeps_no_half_fit_and_leaves_a_table_of_what_is_done(
    study, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    assert run(study, "--out", out, "--only", "all-positive").exit_code == 0
    done = cells_in(out)
    shutil.rmtree(out / "plots")
    (out / "results.csv").unlink()
    monkeypatch.setenv("STOP", "1")
    response = run(study, "--out", out)  # the estimator itself keeps the best so far
    assert response.exit_code == 130
    assert "the same command goes on" in response.output
    assert cells_in(out) == done
    assert {row["system"] for row in rows_in(out)} == {"all-positive"}
    assert (out / "README.md").exists()


def test_an_extension_that_changes_during_a_run_is_noticed(study, tmp_path):
    """It changes itself when it is imported: the first fit is of what was hashed, the next ones would not be."""
    extension = study.with_name("linear.py")
    extension.write_text(
        f"{extension.read_text()}\nfrom pathlib import Path\nplace = Path({str(extension)!r})\n"
        "place.write_text(place.read_text() + '# changed')\n"
    )
    response = run(study, "--out", tmp_path / "out", "--only", "sss-linear")
    assert response.exit_code == 1
    assert len(cells_in(tmp_path / "out")) == 1
    errors = [json.loads(file.read_text()) for file in (tmp_path / "out" / "cells").rglob("*.error.json")]
    assert len(errors) == 2
    assert all("'linear.py' changed after the study began" in error["message"] for error in errors)


def test_nothing_but_results_is_left_where_workers_meet(finished):
    _, out = finished
    assert sorted(file.name for file in out.iterdir() if file.name.startswith(".")) == []
    assert sorted(file.name for file in (out / "data").glob(".shared*")) == []


def test_results_of_two_states_of_the_code_are_told_apart(study, finished, tmp_path, caplog):
    _, whole = finished
    shutil.copytree(whole, tmp_path / "out")
    facts = sorted((unpack(tmp_path / "out") / "cells").rglob("*.facts.json"))
    digests = {json.loads(file.read_text())["source"] for file in facts}
    assert len(digests) == 1
    assert run(study, "--out", tmp_path / "out").exit_code == 0
    assert "states of the code" not in caplog.text
    unpack(tmp_path / "out")
    facts[0].write_text(json.dumps(json.loads(facts[0].read_text()) | {"source": "another"}))
    assert run(study, "--out", tmp_path / "out").exit_code == 0
    assert "come from 2 states of the code" in caplog.text


def test_a_length_is_chosen_on_the_first_seeds_validation_and_kept(study, tmp_path):
    study.write_text(study.read_text().replace('"all-positive"]', '"first-samples"]'))
    out = tmp_path / "out"
    outcome = run_table(Study.read(study), out, work=Work(device="cpu"), only=["first-samples"])
    # the longest series has under 6000 samples, so 10000 is the first that is not below it
    trials = [read_run(place, RunResult) for place in trials_in(out)]
    by_length = {trial.settings["window_length"]: trial.validation for trial in trials}
    assert sorted(by_length) == [1000, 3000, 5000, 10000]
    assert {trial.seed for trial in trials} == {1}
    best = max((figures["f1"], figures["auc"], -length) for length, figures in by_length.items())
    assert [item.settings["window_length"] for item in outcome.results] == [-best[2]] * 3
    text = json.loads((out / "choices" / "synthetic" / "first-samples.json").read_text())
    assert text["choice"] == {"window_length": -best[2]}
    spent = [facts_of(place)["seconds"] for place in trials_in(out)]
    assert [float(row["seconds_of_choice"]) for row in rows_in(out)] == pytest.approx(
        [sum(spent)] * 3, abs=0.01
    )


def test_a_choice_that_cannot_be_made_fails_its_system_alone(study, tmp_path, monkeypatch):
    study.write_text(study.read_text().replace('["sss-linear",', '["first-samples",'))
    monkeypatch.setenv("BREAK", "1")
    response = run(study, "--out", tmp_path / "out")
    assert response.exit_code == 1
    assert "3 results, 3 failed, 0 not run yet" in response.output
    assert "first-samples, seed 3: ConfigError: its trial with window_length = 1000 failed" in response.output


def test_ties_of_trials_go_to_the_better_auc_and_then_to_the_first():
    tied = {"f1": 0.8, "auc": 0.7}
    assert best_of([{"f1": 0.7, "auc": 1.0}, tied, tied]) == 1
    assert best_of([tied, {"f1": 0.8, "auc": 0.9}, tied]) == 1
    assert best_of([{"f1": None, "auc": None}, {"f1": 0.0, "auc": None}]) == 1


def test_a_dry_run_lists_the_fits_and_runs_none(study, finished, tmp_path):
    study.write_text(study.read_text().replace('"all-positive"]', '"all-positive", "first-samples"]'))
    out = tmp_path / "out"
    shutil.copytree(finished[1], out)
    unpack(out)
    (out / next(place for place in cells_in(out) if "all-positive-2" in place.name)).unlink()
    response = run(study, "--out", out, "--dry-run")
    assert response.exit_code == 0
    lines = [line.strip() for line in response.output.splitlines()]
    assert "done  synthetic, all-positive, seed 3" in lines
    assert "to do  synthetic, all-positive, seed 2" in lines
    assert "to do  synthetic, first-samples, seed 1, window_length 3000 (trial)" in lines
    assert "waits for its choice  synthetic, first-samples, seed 2" in lines
    assert len(cells_in(out)) == 5


def test_a_second_run_at_the_same_place_is_refused(study, tmp_path):
    out = tmp_path / "out"
    with ThreadPoolExecutor(1) as another, output_lock(out):
        response = another.submit(run, study, "--out", out).result()
    assert isinstance(response.exception, OutputInUseError)
    assert "'out' is being written by another thread" in str(response.exception)
    with output_lock(out):
        pass  # the first has let go of it


def snapshot(folder):
    """Every file and folder with its content and time of change."""
    return {
        item.relative_to(folder): (item.read_bytes() if item.is_file() else None, item.lstat().st_mtime_ns)
        for item in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("command", ["table", "reweigh", "robustness"])
@pytest.mark.parametrize("state", ["nothing", "data", "results without data", "stale data"])
def test_a_dry_run_writes_nothing(study, tmp_path, tmp_path_factory, monkeypatch, command, state):
    """Whatever there is already; and it lists what the run then does."""
    text = study.read_text().replace('"all-positive"]', '"all-positive", "sss"]')
    study.write_text(text.replace("seeds = [1, 2, 3]", "seeds = [1]"))
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    out = tmp_path / "out"
    if state != "nothing":
        assert run(study, "--out", out, "--only", "all-positive").exit_code == 0
    if "without" in state:
        shutil.rmtree(out / "data")
    if state == "stale data":
        (place,) = (out / "data").glob(f"*/{FACTS}")
        facts = json.loads(place.read_text()) | {"key": "that of other files"}
        facts.pop("seal")
        place.write_text(json.dumps({**facts, "seal": seal_of(facts)}))
    before = snapshot(tmp_path)
    response = CliRunner().invoke(
        app, [command, str(study), "--out", str(out), "--device", "cpu", "--dry-run"]
    )
    assert response.exit_code == 0, response.exception
    assert "to do  synthetic, sss, seed 1" in response.output
    if command == "table":
        listed = "to do" if state == "nothing" else "done"
        assert f"{listed}  synthetic, all-positive, seed 1" in response.output
    assert snapshot(tmp_path) == before
    assert not any(scratch.iterdir())


def test_splits_are_kept_as_the_audit_reads_them(finished):
    _, out = finished
    (data,) = (out / "data").glob("synthetic-*")
    response = CliRunner().invoke(
        app, ["audit-split", str(data), "--split", str(out / "splits" / "synthetic" / "1.json")]
    )
    assert response.exit_code == 0, response.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "one"], "--seeds is 'one'; whole numbers"),
        (["--engine", "rai"], "--engine is 'rai'; did you mean 'ray'"),
    ],
)
def test_wrong_options_are_refused_with_what_there_is(study, tmp_path, arguments, message):
    response = run(study, "--out", tmp_path / "out", *arguments)
    assert response.exit_code == 1
    assert message in str(response.exception)


def test_without_ray_the_way_to_install_it_is_given(study, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    response = run(
        study, "--out", tmp_path / "out", "--engine", "ray", "--seeds", "1", "--only", "all-positive"
    )
    assert isinstance(response.exception, MissingExtraError)
    assert "pip install 'raxss[cluster]'" in str(response.exception)
    assert not (tmp_path / "out").exists(), "told before data is prepared, which may take hours"


def test_bars_count_fits_by_system_on_a_terminal_and_nowhere_else(monkeypatch, capsys):
    """Names are shown as they are, whatever rich takes for markup."""
    name = "sss [/b] :smile:"
    totals, before = Counter({name: 3, "gru": 1}), Counter({name: 1})
    for is_terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)  # noqa: B023
        with fit_bars("runs", totals, before) as count:
            count("gru", False)
            count(name, True)
        response = capsys.readouterr()
        assert response.out == ""
        lines = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", response.err).splitlines()
        for text, n_done in (("runs", "3/4"), ("gru", "1/1"), (f"{name} (1 failed)", "2/3")):
            assert any(text in line and n_done in line for line in lines) == is_terminal
