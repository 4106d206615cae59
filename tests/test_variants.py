"""Variants: systems of a study's own that differ from another one in some settings."""

import dataclasses
import textwrap
from pathlib import Path

import pandas as pd
import pytest

from raxss.benchmark.study import Study
from raxss.benchmark.systems import SYSTEMS, System
from raxss.benchmark.table import Work, run_table
from raxss.errors import ConfigError
from raxss.method.windows import WindowConfig

STUDIES = Path(__file__).parents[1] / "studies"
WINDOWS = WindowConfig(window_length=128, stride=64)

TINY = """
    name = "A tiny comparison"
    systems = ["tuned", "all-positive", "narrow", "short", "narrow-uniform", "trees"]
    seeds = [1, 2]
    [dataset]
    data = "synthetic"
    [windows]
    window_length = 128
    stride = 192
    [system.narrow-uniform]
    base = "narrow"
    weighting = "uniform"
    [system.narrow]
    base = "tuned"
    backbone_options = { width = 1 }
    [system.short]
    base = "tuned"
    window_length = 64
    stride = 96
    [system.tuned]
    max_epochs = 1
    batch_size = 256
    backbone_options = { dropout = 0.1, width = 2 }
    [system.trees]
    base = "features-forest"
    n_trees = 10
"""


def study_of(text):
    return Study.from_toml(textwrap.dedent(text))


def compared(sections):
    return study_of(f'systems = ["sss"]\n[dataset]\ndata = "synthetic"\n{textwrap.dedent(sections)}')


def parameters(study, name):
    return study.compared()[name].parameters(WINDOWS, training=study.training)


def test_a_variant_has_its_bases_settings_wherever_in_the_file_they_stand():
    study = study_of(TINY)
    narrow, uniform = (parameters(study, name) for name in ("narrow", "narrow-uniform"))
    assert narrow["backbone_options"] == {"dropout": 0.1, "width": 1}
    assert (narrow["max_epochs"], narrow["batch_size"], narrow["weighting"]) == (1, 256, "support")
    assert {name for name in narrow if narrow[name] != uniform[name]} == {"weighting"}
    short = parameters(study, "short")
    assert (short["window_length"], short["stride"]) == (64, 96)


def test_a_variant_says_what_it_is_a_variant_of():
    systems = study_of(TINY).compared()
    assert (systems["tuned"].base, systems["narrow"].base) == (None, "tuned")
    assert systems["short"].description == "tuned with window_length = 64, stride = 96"
    assert systems["narrow-uniform"].description == "narrow with weighting = 'uniform'"


def test_an_empty_table_empties_and_another_backbone_begins_without_options():
    base = System(name="wide", description="", kind="windows", preset="tuned",
                  settings={"backbone_options": {"width": 32, "dropout": 0.5}})  # fmt: skip
    options = {
        "kept": base.with_settings("a", {"n_neighbors": 3}),
        "emptied": base.with_settings("a", {"backbone_options": {}}),
        "another": base.with_settings("a", {"backbone": "patchtst"}),
        "with its own": base.with_settings(
            "a", {"backbone": "patchtst", "backbone_options": {"n_layers": 1}}
        ),
        "the same": base.with_settings("a", {"backbone": "multiview", "backbone_options": {"width": 8}}),
    }
    found = {name: option.parameters(WINDOWS)["backbone_options"] for name, option in options.items()}
    assert found == {
        "kept": {"width": 32, "dropout": 0.5},
        "emptied": {},
        "another": {},
        "with its own": {"n_layers": 1},
        "the same": {"width": 8, "dropout": 0.5},
    }
    assert base.settings["backbone_options"] == {"width": 32, "dropout": 0.5}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ('[system.a]\nbase = "b"\n[system.b]\nbase = "a"', "in a circle: a on b on a"),
        ('[system.a]\nbase = "sss"\nrefresh = "epoch"', "system 'a': .*'epoch' goes with space = 'features'"),
        ('[system.a]\nbase = "sss"\nbackbone_options = 3', "system 'a': .*mapping of names to values, got 3"),
    ],
)  # fmt: skip
def test_variants_that_cannot_be_are_refused_before_anything_runs(sections, message):
    with pytest.raises(ConfigError, match=message):
        compared(sections)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    out = tmp_path_factory.mktemp("tiny")
    return run_table(study_of(TINY), out, work=Work(device="cpu")), out


def test_a_study_of_variants_becomes_a_table_that_compares_each_with_its_base(tiny):
    outcome, out = tiny
    assert (len(outcome.results), outcome.errors) == (12, [])
    compared = pd.read_csv(out / "comparisons.csv")
    pairs = set(zip(compared["system"], compared["reference"], strict=True))
    assert {("narrow", "tuned"), ("short", "tuned"), ("narrow-uniform", "narrow")} <= pairs
    # a base that is no usual reference is there for its own variants alone, and one that did not run for nobody
    assert {system for system, reference in pairs if reference == "narrow"} == {"narrow-uniform"}
    assert "features-forest" not in set(compared["reference"])
    page = (out / "README.md").read_text()
    assert "- short: tuned with window_length = 64, stride = 96\n" in page
    assert "### Difference from narrow\n" in page


def test_the_studys_text_lies_beside_its_results(tiny):
    _, out = tiny
    assert Study.read(out / "study.toml").compared() == study_of(TINY).compared()


@pytest.mark.parametrize("name", ["bern-barcelona", "bonn", "cinc2017-af"])
def test_the_studies_of_variants_share_data_and_fits_with_the_main_ones(name):
    main, varied = (Study.read(STUDIES / f"{item}{name}.toml") for item in ("", "variants-"))
    assert varied.datasets == main.datasets
    for item in ("tuned", "sss"):
        assert parameters(varied, item) == parameters(main, item)
    systems = varied.compared()
    assert list(systems)[:2] == ["tuned", "sss"]
    assert set(varied.settings) <= set(systems)
    # each differs from its base, and in nothing but what its section says
    assert list(systems)[-2:] == ["recommended", "auto"]
    for system in list(systems.values())[2:-2]:
        base = {**SYSTEMS, **systems}[system.base].parameters(
            main.datasets[0].windows, training=varied.training
        )
        own = system.parameters(main.datasets[0].windows, training=varied.training)
        changed = {key for key in own if own[key] != base.get(key)}
        assert set() < changed <= set(varied.settings[system.name]), system.name
    # a series loss learns about weights only from series of which a batch has several windows
    n_training = {"bern-barcelona": 140, "bonn": 140, "cinc2017-af": 1050}[name]
    learned = [
        entry
        for entry in systems
        if parameters(varied, entry).get("series_loss_weight") == 1 and entry != "sss"
    ]
    assert len(learned) == 9
    assert all(parameters(varied, item)["batch_size"] >= 5 * n_training for item in learned)


@pytest.mark.slow
def test_every_variant_of_the_issued_studies_trains(tmp_path):
    """The systems of the file on a toy, one epoch each: none refuses to be fitted."""
    issued = Study.read(STUDIES / "variants-bonn.toml")
    toy = study_of('[dataset]\ndata = "synthetic"\n[windows]\nwindow_length = 128\nstride = 128').datasets
    settings = {name: dict(given) for name, given in issued.settings.items()}
    for given in settings.values():
        if "max_epochs" in given or given.get("base") is None:
            given["max_epochs"] = 1
        if "window_length" in given:
            given["window_length"] = 128
    settings["windows-short"]["window_length"], settings["windows-long"]["window_length"] = 64, 256
    small = dataclasses.replace(
        issued,
        datasets=toy,
        seeds=(1,),
        settings=settings,
        training={**issued.training, "max_epochs": 1},
        text="",
    )
    outcome = run_table(small, tmp_path, work=Work(device="cpu"))
    assert [error["message"] for error in outcome.errors] == []
    assert [result.system for result in outcome.results] == list(issued.compared())
