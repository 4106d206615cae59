"""The page, the command and the study hook of faithfulness."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from raxss import RAxSSClassifier, SeriesCollection
from raxss.benchmark.analyses.faithfulness import Faithfulness
from raxss.benchmark.analyses.faithfulness_control import BLANK, PLANTED, run_controls
from raxss.benchmark.analyses.faithfulness_report import rows_of, tables_of, write_faithfulness, write_index
from raxss.benchmark.study import Study
from raxss.benchmark.table import Work
from raxss.cli import app
from raxss.data.datasets import load_synthetic
from raxss.errors import ConfigError
from raxss.explain.faithfulness import Plan, measures_of, run_probes, statements, summarised, verdict
from raxss.explain.faithfulness.model_adapter import scrambled
from raxss.explain.faithfulness.running import layers_of

QUICK = Plan(n_series=6, n_steps=2, n_random=1)


@pytest.fixture(scope="module")
def fitted():
    series = SeriesCollection(item.with_samples(item.samples[:, :400]) for item in load_synthetic(14))
    model = RAxSSClassifier(
        "convnet-fine", window_length=128, stride=128, space="features", temperature=0.1, max_epochs=1,
        validation_fraction=0, random_state=0, device="cpu",
    ).fit(series[:8])  # fmt: skip
    return model, series


@pytest.fixture(scope="module")
def found(fitted, tmp_path_factory):
    model, series = fitted
    return run_probes(
        model.model_adapter(),
        series[8:],
        tmp_path_factory.mktemp("parts"),
        plan=QUICK,
        about={"model": "m"},
        quiet=True,
    )


def test_a_page_has_every_probe_and_its_numbers_are_those_of_the_tables(found, tmp_path):
    files = write_faithfulness({"a|b <i>": found}, out=tmp_path, title="*toy*", controls={"known": found})
    assert files[-1] == tmp_path / "README.md"
    assert all(file.exists() for file in files)
    page = files[-1].read_text()
    for heading in (
        "deletion and insertion",
        "other neighbours",
        "destroyed",
        "single windows",
        "nearly",
        "features hold",
    ):
        assert heading in page
    assert "<i>" not in page
    assert "\\*toy\\*" in page
    summary = pd.read_csv(tmp_path / "summary.csv")
    row = summary[(summary["of"] == "mean, contribution") & (summary["measure"] == "gain")].iloc[0]
    assert f"{row['mean']:.3f}".replace("-", "−") in page
    text = json.loads((tmp_path / "verdict.json").read_text())["verdicts"]
    assert set(text) == {"a|b <i>", "known"}
    shown = (tmp_path / "page.html").read_text()
    assert "<i>" not in shown
    assert shown.count("<img ") == len(list((tmp_path / "plots").iterdir()))
    assert f"known (control)</td><td>{text['known']['verdict']}" in shown
    assert [statement.said for statement in statements(summarised(measures_of(found)))] == [
        item for _, item in text["known"]["said"]
    ]
    own = summarised(measures_of(found))
    assert text["known"]["verdict"] == verdict(statements(own))[0]


def test_mean_curves_are_means_of_the_series_curves(found):
    curves = tables_of(rows_of({"m": found}))["curves"]
    item = curves[(curves["order"] == "contribution") & (curves["stand_in"] == "mean")]
    item = item[item["direction"] == "deletion"].sort_values("step")
    of_series = [
        next(
            curve["scores"]
            for curve in part["curves"]
            if (curve["order"], curve["stand_in"], curve["direction"]) == ("contribution", "mean", "deletion")
        )
        for part in found.by_series["deletion"]
    ]
    np.testing.assert_allclose(item["score"], np.mean(of_series, axis=0))
    assert item["seconds"].iloc[-1] == pytest.approx(np.mean([facts["seconds"] for facts in found.series]))


def test_a_summary_of_one_series_has_no_intervals_and_no_verdict(fitted, tmp_path):
    model, series = fitted
    plan = Plan(n_series=1, n_steps=2, n_random=1, probes=("deletion", "network"))
    parts = run_probes(model.model_adapter(), series[8:], tmp_path, plan=plan, quiet=True)
    summary = summarised(measures_of(parts))
    assert summary["low"].isna().all()
    assert verdict(statements(summary))[0] == "undecided"


def test_the_command_leaves_seen_series_out_and_goes_on_where_it_was(fitted, tmp_path):
    model, series = fitted
    model.save_pretrained(tmp_path / "model")
    files = []
    for item in series[6:10]:
        place = tmp_path / f"{item.name}.npz"
        np.savez(place, samples=item.samples, rate=item.rate, label=item.label)
        files.append(str(place))
    requested = ["faithfulness", str(tmp_path / "model"), *files, "--out", str(tmp_path / "out"), "--device", "cpu",
             "--no-control", "--probes", "stability,network"]  # fmt: skip
    first = CliRunner().invoke(app, requested)
    assert first.exit_code == 0, first.output
    assert "2 series that the model has learned from are left out" in first.output
    assert "model: undecided" in first.output or "model: partly" in first.output
    before = {item: item.stat().st_mtime_ns for item in (tmp_path / "out" / "parts").rglob("*.json")}
    assert CliRunner().invoke(app, requested).exit_code == 0
    assert {item: item.stat().st_mtime_ns for item in (tmp_path / "out" / "parts").rglob("*.json")} == before
    assert (
        CliRunner().invoke(app, requested[:2] + files[:2] + requested[6:]).exit_code == 1
    )  # nothing is left


@pytest.fixture(scope="module")
def at_once(fitted):
    """A mixture of window classifiers, as by default but with few trees."""
    members = [{"backbone": "ridge"}, {"backbone": "extra-trees", "n_trees": 10}]
    settings = {"window_length": 128, "stride": 64, "random_state": 0, "device": "cpu"}
    return RAxSSClassifier(backbone_options={"members": members}, **settings).fit(fitted[1][:8])


def test_probes_of_gradients_and_layers_do_not_apply_to_window_classifiers(at_once, fitted, tmp_path):
    about = {"model": "m"}
    parts = run_probes(at_once.model_adapter(), fitted[1][8:], tmp_path, plan=QUICK, about=about, quiet=True)
    assert parts.of_all["network"] is None
    assert {row["network"] for row in parts.of_all["features"]} == {"fitted"}
    assert parts.about["layers"] == []
    page = write_faithfulness({"m": parts}, out=tmp_path, title="toy")[-1].read_text()
    shown = (tmp_path / "page.html").read_text()
    for text in (page, shown):
        assert "does not apply: the window classifiers have no gradients" in text
        assert "Parameter randomisation does not apply: the window classifiers have no layers." in text
        assert "does not apply: its evidence goes when the network is destroyed" in text
    for heading in (
        "deletion and insertion",
        "other neighbours",
        "single windows",
        "nearly",
        "features hold",
    ):
        assert heading in page
    assert "nan" not in page
    assert "| fitted model |" in page
    assert "fitted network" not in page
    one = at_once.faithfulness(fitted[1][9])
    assert one.network.empty
    assert set(one.gains().index) == {"contribution", "weight", "posterior", "occlusion"}
    assert "Parameter randomisation does not apply" in repr(one)


def test_layers_of_the_network_in_a_mixture_are_randomised_and_the_other_members_stay(fitted, tmp_path):
    members = [{"backbone": "ridge"}, {"backbone": "convnet", "width": 8}]
    settings = {"window_length": 128, "stride": 64, "random_state": 0, "device": "cpu", "max_epochs": 2}
    model = RAxSSClassifier(backbone_options={"members": members}, **settings).fit(fitted[1][:8])
    adapter = model.model_adapter()
    layers = [name for step in layers_of(adapter) for name in step]
    assert layers
    assert all(name.startswith("members.1.") for name in layers)
    before, after = adapter.network, scrambled(adapter.network, layers, seed=0)
    windows = torch.randn(5, 1, 128, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        (ridge, net), (same_ridge, other_net) = (
            [item.eval()._member(k, windows)[0] for k in (0, 1)] for item in (before, after)
        )
    assert torch.equal(ridge, same_ridge)
    assert not torch.equal(net, other_net)
    assert torch.equal(before.weights, after.weights)
    about = {"model": "m"}
    parts = run_probes(adapter, fitted[1][8:], tmp_path, plan=QUICK, about=about, quiet=True)
    assert len(parts.of_all["network"]) == len(layers_of(adapter))
    assert {row["network"] for row in parts.of_all["features"]} == {"fitted", "scrambled"}
    page = write_faithfulness({"m": parts}, out=tmp_path, title="toy")[-1].read_text()
    told = f"Parameter randomisation is of the member ConvNet, of weight {float(before.weights[1]):.2f};"
    for text in (page, (tmp_path / "page.html").read_text()):
        assert told in text
        assert "does not apply: its evidence goes when the network is destroyed" in text
        assert "the window classifiers have no gradients" in text
        assert "Evidence depends on what the network has learned" not in text
    assert "fitted model" in page
    assert "a network destroyed from the top down" in page
    one = model.faithfulness(fitted[1][9])
    assert len(one.network) == len(layers_of(adapter))
    assert told in repr(one)


def test_copies_of_series_shorter_than_a_window_are_scored_as_predicted(at_once, fitted):
    short = [
        item.with_samples(item.samples[:, :n])
        for item, n in zip(fitted[1][8:], (60, 90, 128, 300), strict=False)
    ]
    adapter, expected = at_once.model_adapter(), at_once.predict_proba(short)
    np.testing.assert_allclose(adapter.probabilities(short), expected, atol=1e-9)
    found = np.stack([item.probability for item in adapter.attributions(short)])
    np.testing.assert_array_equal(found, expected)


def test_a_study_has_its_own_data_and_a_model_no_systems(tmp_path):
    study = tmp_path / "s.toml"
    study.write_text('systems = ["sss"]\n[dataset]\ndata = "synthetic"\n')
    wrong = CliRunner().invoke(app, ["faithfulness", str(study), "sample", "--out", str(tmp_path)])
    assert wrong.exit_code == 2
    wrong = CliRunner().invoke(app, ["faithfulness", str(tmp_path), "sample", "--systems", "sss"])
    assert wrong.exit_code == 2


def test_the_folder_of_a_table_is_left_alone(tmp_path):
    study = Study.from_toml('systems = ["sss"]\n[dataset]\ndata = "synthetic"')
    (tmp_path / "results.csv").write_text("")
    with pytest.raises(ConfigError, match=rf"{tmp_path.name!r} has the table of a study"):
        Faithfulness().run_study(study, tmp_path, work=Work())
    with pytest.raises(ConfigError, match="no system 'rocket'"):
        Faithfulness().run_study(study, tmp_path / "new", work=Work(), only=["rocket"])


@pytest.mark.slow
def test_both_controls_get_the_verdict_that_is_known(tmp_path):
    found = run_controls(tmp_path, device="cpu", quiet=True)
    text = {}
    for name, parts in found.items():
        summary = summarised(measures_of(parts))
        area = summary[(summary["probe"] == "localisation") & (summary["measure"] == "area")]["mean"].iloc[0]
        text[name] = verdict(statements(summary))[0], area
    assert text[PLANTED][0] == "faithful"
    assert text[PLANTED][1] >= 0.9
    assert text[BLANK][0] == "unfaithful"
    assert text[BLANK][1] < 0.45


def test_an_index_has_all_verdicts_below_what_was_written_by_hand_and_controls_once(found, tmp_path):
    named = replace(found, about={**found.about, "dataset": "data two"})
    for name, parts in (("one", found), ("two", named)):
        write_faithfulness({"sss": parts}, out=tmp_path / name, title=name, controls={BLANK: found})
    (tmp_path / "about.md").write_text("## Summary\n\nGood *and* bad.\n")
    page = write_index(tmp_path).read_text()
    assert page.split("\n\n")[1:4] == ["## Summary", "Good *and* bad.", "## Verdicts"]
    assert page.count(f"| control | {BLANK} |") == 1
    rows = [line for line in page.splitlines() if line.startswith("| [")]
    assert [row.split("|")[1].strip() for row in rows] == [
        "[one](one/README.md)",
        "[data two](two/README.md)",
    ]
    word = json.loads((tmp_path / "one" / "verdict.json").read_text())["verdicts"]["sss"]["verdict"]
    assert all(f"| sss | {word} |" in row for row in rows)


def test_bounds_that_differ_because_of_the_number_of_classes_are_all_listed(found, tmp_path):
    four = replace(found, about={**found.about, "classes": ["a", "b", "c", "d"]})
    write_faithfulness({"four": four}, out=tmp_path, title="t", controls={BLANK: found})
    rules = (tmp_path / "README.md").read_text().split("## Rules")[1]
    assert f"balanced accuracy above 0.25 (four); balanced accuracy above 0.5 ({BLANK})." in rules
    assert "rank correlation of evidence over time above 0.8.\n" in rules  # the same for both
