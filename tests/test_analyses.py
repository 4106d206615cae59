"""Every registered analysis: runs, goes on after a kill, gives tidy rows and a page, the same ones for a seed."""

import json
import pickle
import subprocess
import sys
import textwrap
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from raxss import RAxSSClassifier
from raxss.benchmark.analyses.analysis import (
    ANALYSES,
    Analysis,
    ExtensionProbe,
    find_analysis,
    importable_probe,
    register_analysis,
)
from raxss.benchmark.analyses.by_name import analysis_for, list_analysis, run_analysis
from raxss.benchmark.analyses.evaluation import Evaluation
from raxss.benchmark.packed import PACKED
from raxss.benchmark.pages.tidy import COLUMNS, NUMBERS, settings_in, tidy, wide
from raxss.benchmark.study import Study
from raxss.benchmark.table import Work
from raxss.cli import app
from raxss.errors import ConfigError

STUDY = """
    name = "Tiny"
    systems = ["small", "all-positive"]
    seeds = [1, 2]

    [dataset]
    data = "synthetic"
    windows = { window_length = 128, stride = 128 }
    split = { kind = "folds" }

    [training]
    max_epochs = 1
    batch_size = 256

    [system.small]
    base = "tuned"
    backbone = "convnet"
    backbone_options = { width = 2 }
    n_neighbors = 3
"""
#: Settings under which a test takes seconds; an analysis that is not here runs with its own.
TINY = {
    "reweighting": {"spaces": ["signal"], "exclusions": [0], "temperatures": [0.1], "smoothings": [0.0]},
    "robustness": {"conditions": [["clean", 0.0], ["drift", 0.1]], "training": [0.5]},
    "coverage": {"ways": [["none", "window"], ["isotonic", "series"]], "alphas": [0.2]},
    "faithfulness": {"n_series": 2, "probes": ["stability"], "controls": False},
}
EXTERNAL = """
    from dataclasses import dataclass
    from typing import ClassVar
    from raxss.benchmark.analyses.analysis import Analysis, register_analysis
    from raxss.benchmark.analyses.evaluation import Evaluation

    @register_analysis("quieter")
    @dataclass(frozen=True, kw_only=True)
    class Quieter(Analysis):
        title: ClassVar[str] = "do quieter recordings change the score?"
        gain: float = 0.5

        def evaluate(self, fitted):
            quiet = [one.with_samples(self.gain * one.samples) for one in fitted.test]
            return [Evaluation(settings={"gain": 1.0}, probabilities=fitted.model.predict_proba(fitted.test)),
                    Evaluation(settings={"gain": self.gain}, probabilities=fitted.model.predict_proba(quiet))]
"""


@register_analysis("offset")
@dataclass(frozen=True, kw_only=True)
class Offset(Analysis):
    """An analysis from outside the package: recordings with an offset."""

    title: ClassVar[str] = "does an offset change the score?"
    offsets: tuple[float, ...] = (0.0, 2.0)

    def evaluate(self, fitted):
        return [
            Evaluation(
                settings={"offset": offset},
                probabilities=fitted.model.predict_proba(
                    [item.with_samples(item.samples + offset) for item in fitted.test]
                ),
            )
            for offset in self.offsets
        ]


NAMES = sorted(ANALYSES)


@pytest.fixture(scope="module", autouse=True)
def leave_no_registration():
    yield
    for name in ("offset", "quieter"):
        ANALYSES.pop(name, None)


def study_of(name):
    study = Study.from_toml(textwrap.dedent(STUDY))
    return Study(**{field.name: getattr(study, field.name) for field in fields(study)} | {"analyses": {
        name: TINY.get(name, {})}})  # fmt: skip


def run(name, out):
    return run_analysis(name, study_of(name), out, work=Work(device="cpu"))


def files_in(folder):
    """All but what tells durations, and the prepared data."""
    found = sorted(item for item in folder.rglob("*") if item.is_file())
    kept = [item for item in found if not item.name.endswith(".facts.json") and "data" not in item.parts]
    return {
        item.relative_to(folder).as_posix(): packed_rows(item) if item.name == PACKED else item.read_bytes()
        for item in kept
    }


def packed_rows(file):
    """Packed results without the column that tells durations."""
    return pd.read_parquet(file).drop(columns="facts").to_csv()


@pytest.fixture(scope="module", params=NAMES)
def finished(request, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param)
    return request.param, out, run(request.param, out)


class Killed(BaseException):
    """Nothing catches it, as nothing catches a kill."""


@pytest.fixture
def fits(monkeypatch):
    """Counts the fits, and kills the run at one of them."""
    fit, state = RAxSSClassifier.fit, {"n": 0, "killed_at": None}

    def counted(self, *given, **options):
        state["n"] += 1
        if state["n"] == state["killed_at"]:
            raise Killed
        return fit(self, *given, **options)

    monkeypatch.setattr(RAxSSClassifier, "fit", counted)
    return state


def test_an_analysis_gives_rows_of_the_tidy_table(finished):
    name, _, outcome = finished
    rows = outcome.rows
    assert pd.api.types.is_numeric_dtype(rows["value"])
    assert not rows.drop(columns=list(NUMBERS)).astype(str).duplicated().any(), "two rows are about the same"
    assert list(rows.columns[: len(COLUMNS)]) == list(COLUMNS)
    assert set(rows["study"]) == {"Tiny"}
    assert set(rows["analysis"]) == {name}
    assert set(rows["dataset"]) == {"synthetic"}
    assert set(rows["system"]) == {"small"}
    assert settings_in(rows), "a row has no settings"
    assert rows["seed"].notna().any()
    assert np.isfinite(rows["value"]).any()
    assert set(rows["seed"].dropna()) <= {1, 2}


def test_an_analysis_has_a_page_that_names_what_it_is_about(finished):
    name, out, outcome = finished
    page = outcome.files[-1].read_text("utf-8")
    title = page.splitlines()[0]
    assert title.startswith("# ")
    assert find_analysis(name).title in title
    assert "small" in page
    for leftover in ("{{", "{%", "nan", "None", str(out)):
        assert leftover not in page, leftover
    assert "<table>" in MarkdownIt().enable("table").render(page)


def test_a_run_that_was_killed_goes_on_to_the_same_files_and_a_finished_one_fits_nothing(
    finished, fits, tmp_path
):
    name, out, outcome = finished
    fits["killed_at"] = 2
    with pytest.raises(Killed):
        run(name, tmp_path)
    fits["killed_at"] = None
    again = run(name, tmp_path)
    assert files_in(tmp_path) == files_in(out)
    assert again.rows.equals(outcome.rows)
    fits["n"] = 0
    run(name, tmp_path)
    assert fits["n"] == 0
    assert files_in(tmp_path) == files_in(out)


def test_fits_are_listed_with_their_state(finished, tmp_path):
    name, out, _ = finished
    states = [
        {state for _, state in list_analysis(name, study_of(name), place, work=Work(device="cpu"))}
        for place in (out, tmp_path)
    ]
    assert states == [{"done"}, {"to do"}]
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_settings_come_from_a_study_and_decide_the_hash(name):
    kind = find_analysis(name)
    assert kind.title
    assert kind.name == name
    default = kind.from_settings({})
    assert default == kind()
    json.dumps(default.decides())
    with pytest.raises(ConfigError, match=rf"\[analysis\.{name}\] has no setting 'colour'"):
        kind.from_settings({"colour": "red"})
    if name in TINY:
        assert kind.from_settings(TINY[name]).decides() != default.decides()


@pytest.mark.parametrize("name", NAMES)
def test_an_analysis_can_be_sent_to_another_process(name):
    probe = importable_probe(find_analysis(name)(), [])
    sent = pickle.loads(pickle.dumps(probe))
    assert sent.decides() == probe.decides()
    own = find_analysis(name).__module__.startswith("raxss.")  # others a worker may not have imported yet
    assert isinstance(probe, ExtensionProbe) == (not own)


def test_the_help_lists_the_registry():
    text = CliRunner().invoke(app, ["analyse", "--help"], env={"COLUMNS": "200"}).output
    for name in NAMES:
        assert f"{name}: {find_analysis(name).title}" in text


def test_the_default_page_compares_with_the_first_setting(tmp_path):
    outcome = run("offset", tmp_path)
    compared = outcome.rows[outcome.rows["reference"] != ""]
    assert set(compared["reference"]) == {"offset 0.0"}
    assert set(compared["offset"]) == {2.0}
    assert [file.name for file in outcome.files] == ["answers.csv", "comparisons.csv", "README.md"]
    means = outcome.rows[outcome.rows["seed"].isna() & (outcome.rows["reference"] == "")]
    by_fit = outcome.rows[outcome.rows["seed"].notna() & (outcome.rows["metric"] == "auc")]
    expected = by_fit.groupby("offset")["value"].mean()
    assert means.set_index("offset")["value"].to_dict() == pytest.approx(expected.to_dict())


def test_an_extension_brings_an_analysis_to_the_command_line(tmp_path):
    (tmp_path / "quieter.py").write_text(textwrap.dedent(EXTERNAL))
    text = 'extensions = ["quieter.py"]\n' + textwrap.dedent(STUDY) + "\n[analysis.quieter]\ngain = 0.25\n"
    study, out = tmp_path / "study.toml", tmp_path / "out"
    study.write_text(text)
    command = ["analyse", "quieter", str(study), "--out", str(out), "--seeds", "1", "--device", "cpu"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "1 results, 0 failed, 1 not run yet" in result.output
    assert "0.25" in (out / "quieter" / "README.md").read_text()


def test_what_is_not_registered_is_refused_with_the_nearest(tmp_path):
    study = Study.from_toml('[dataset]\ndata = "synthetic"\n[analysis.robustnes]\ntraining = []')
    with pytest.raises(ConfigError, match=r"there is no analysis 'robustnes'; did you mean 'robustness'"):
        analysis_for(study, "reweighting")
    with pytest.raises(ConfigError, match=r"'offset' belongs to .*Offset already"):
        register_analysis("offset")(type("Other", (Offset,), {}))
    with pytest.raises(ConfigError, match=r"one seed, but \[1, 2\]"):
        run_analysis("faithfulness", study_of("faithfulness"), tmp_path, seeds=[1, 2])
    with pytest.raises(ConfigError, match=r"2 workers"):
        run_analysis("faithfulness", study_of("faithfulness"), tmp_path, work=Work(n_workers=2))


# The tidy table


def test_a_wide_table_keeps_every_number_and_the_order_of_rows():
    rows = tidy([{"system": s, "seed": k, "metric": m, "value": ord(s) + k + len(m), "low": k}
                 for s in "ba" for k in (2, 1) for m in ("f1", "auc")])  # fmt: skip
    table = wide(rows, ["system", "seed"])
    assert table[["system", "seed"]].to_numpy().tolist() == [["b", 2], ["b", 1], ["a", 2], ["a", 1]]
    assert table["auc"].tolist() == [103, 102, 102, 101]
    assert list(wide(rows, ["system"], values=["low"])) == ["system", "f1low", "auclow"]
    assert set(NUMBERS) < set(COLUMNS)


def test_the_command_names_the_files_of_the_analysis_before_anything_else_is_imported():
    names = ["faithfulness", "coverage", "reweighting"]
    script = f"from raxss.cli.table import work_of; [print(*work_of(name)[2:]) for name in {names}]"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    expected = [path.format(name=name) for name in names for path in ANALYSES[name].outputs]
    assert done.stdout.split() == expected
