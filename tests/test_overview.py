"""`raxss results`: one page about all studies, which says what their tables say and what is missing."""

import io
import json
import re
import textwrap
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from scipy.stats import rankdata
from typer.testing import CliRunner

from raxss.benchmark.collect import gather
from raxss.benchmark.evaluation_set import slug
from raxss.benchmark.pages.overview import overview, write_overview
from raxss.benchmark.pages.report import write_report
from raxss.benchmark.study import Study
from raxss.cli import app
from raxss.errors import DataError
from unpacked import made_result

RESULTS = Path(__file__).parents[1] / "results"
SEEDS = (1, 2, 3)
STUDY = """
    name = "{title}"
    systems = {systems}
    seeds = [1, 2, 3]
    [dataset]
    data = "synthetic"
    name = "{dataset}"
    headline = "{headline}"
    shuffled = {shuffled}
    {more}
"""


def cell(dataset, system, seed, strength, changes):
    """Forty series in pairs, others with every seed; the class is their number's remainder."""
    rng = np.random.default_rng([seed, *system.encode(), *dataset.encode()])
    tested = np.arange(40) + 40 * seed
    logits = rng.normal(size=40) + strength * (tested % 2 == 0)
    positive = 1 / (1 + np.exp(-logits))
    return made_result(
        [("yes", "no")[k % 2] for k in tested],
        np.stack([positive, 1 - positive], axis=1),
        names=[f"s{k}" for k in tested],
        groups=[f"g{k // 2}" for k in tested],
        dataset=dataset,
        system=system,
        seed=seed,
        fold=str(seed),
        changes=changes,
        split={"description": "3 folds by pair", "leaky": False, "balance": "none"},
    )


def write_study(
    root, name, strengths, *, dataset=None, requested=None, changes=None, headline="auc", failed=(), more=""
):
    """A folder as `raxss table` leaves it; ``strengths`` are those of the systems that ran."""
    dataset = dataset or name
    changes = changes or {}
    shuffled = bool(changes.get("shuffled"))
    text = textwrap.dedent(STUDY).format(
        title=f"A study: {name}",
        systems=json.dumps(requested or list(strengths)),
        dataset=dataset,
        headline=headline,
        shuffled=str(shuffled).lower(),
        more=textwrap.dedent(more),
    )
    study = Study.from_toml(text)
    results, facts = [], {}
    for seed in SEEDS:
        for system, strength in strengths.items():
            if (system, seed) in failed:
                continue
            item = cell(study.datasets[0].name, system, seed, strength, changes)
            noted = {"seconds": 360.0, "device": "cpu", "n_threads": 1, "source": "a"}
            noted |= {"python": "3.11.7", "torch": "2.13.0"}
            folder = root / name / "cells" / slug(item.dataset)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{system}-{seed}-ab12.facts.json").write_text(json.dumps(noted))
            results.append(item)
            facts[item.dataset, system, seed] = noted
    errors = [{"dataset": study.datasets[0].name, "system": system, "seed": seed, "type": "TrainingError",
               "message": "the loss is nan"} for system, seed in failed]  # fmt: skip
    write_report(
        results,
        facts=facts,
        errors=errors,
        out=root / name,
        study_name=study.name,
        headlines={study.datasets[0].name: headline},
        variants={key: item for key, item in study.compared().items() if item.base},
        n_resamples=2000 if shuffled else 200,  # the least p must be able to fall below .01
    )
    (root / name / "study.toml").write_text(text)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("all") / "results"
    write_study(
        root,
        "bonn",
        {"sss": 0.8, "gru": 0.2, "tuned": 2.5},
        requested=["sss", "gru", "tuned", "lstm"],
    )
    failed = [("gru", 2), *(("rocket", seed) for seed in SEEDS)]
    write_study(
        root,
        "watch",
        {"sss": -1.0, "gru": 4.0, "tuned": 0.0, "rocket": 0.1},
        headline="accuracy",
        failed=failed,
    )
    write_study(root, "early", {"sss": 0.5}, dataset="bonn")
    write_study(root, "cut", {"sss": 1.0, "tuned": 1.2}, changes={"crop": [0.2, 1.0], "seed": 1})
    write_study(
        root, "shuffled", {"sss": 0.0, "gru": 0.0, "tuned": 3.0}, changes={"shuffled": True, "seed": 1}
    )
    variants = """
        [system.better]
        base = "tuned"
        window_length = 64
        [system.worse]
        base = "tuned"
        temperature = 0.5
        [system.alike]
        base = "better"
        n_neighbors = 3
    """
    write_study(
        root,
        "variants",
        {"tuned": 1.0, "better": 4.0, "worse": -1.0, "alike": 4.0},
        dataset="bonn",
        more=variants,
    )
    (root / "reweigh").mkdir()
    (root / "reweigh" / "README.md").write_text(
        "# Weights at prediction\n\nNot this.\n\n## Summary\n\nThey [help](table.csv), see ![x](plots/x.png) and "
        "[the method](https://example.org).\n\n### Where\n\nHere.\n\n## More\n\nNor this.\n"
    )
    (root / "plain").mkdir()
    (root / "plain" / "README.md").write_text("# Plain\n\nOne line.\n\n## Rest\n\nNo.\n")
    (root / "variants" / "robustness").mkdir()
    (root / "variants" / "robustness" / "README.md").write_text(
        "# Spoiled\n\nNot this.\n\n## Summary\n\nIt [holds](answers.csv).\n\n## bonn\n\nNor this.\n"
    )
    (root / "nothing").mkdir()
    (root / "about.md").write_text("Written *by hand*.\n")
    return root


@pytest.fixture(scope="module")
def made(results):
    return overview(results)


@pytest.fixture(scope="module")
def page(made):
    return made["README.md"].decode()


def section(page, title):
    """From a heading to the next of its level or above."""
    level = title.split(" ")[0]
    rest = page.split(f"\n{title}\n", 1)[1]
    return re.split(rf"\n#{{1,{len(level)}}} ", rest)[0]


def rows(text):
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[item.strip() for item in line.strip("|").split(" | ")] for line in lines]


def mean_of(results, folder, system, metric):
    table = pd.read_csv(results / folder / "results.csv")
    own = table[(table["system"] == system) & table["error"].isna()][metric]
    return own.mean(), own.std(ddof=1)


def test_the_matrix_has_mean_and_deviation_and_every_hole_its_reason(results, page):
    header, _, *body = rows(section(page, "## Systems and datasets").split("###")[0])
    assert header[1:] == ["[bonn](bonn/README.md)<br>AUC", "[watch](watch/README.md)<br>accuracy %"]
    found = {item[0]: item[1:] for item in body}
    assert list(found) == ["sss", "rocket", "gru", "lstm", "tuned"]  # in the order of the systems' list
    mean, deviation = mean_of(results, "bonn", "sss", "auc")
    assert found["sss"][0] == f"{mean:.3f} ± {deviation:.3f}"
    mean, deviation = mean_of(results, "bonn", "tuned", "auc")
    assert found["tuned"][0] == f"**{mean:.3f}** ± {deviation:.3f}"
    mean, deviation = mean_of(results, "watch", "gru", "accuracy")
    assert found["gru"][1] == f"**{100 * mean:.1f}** ± {100 * deviation:.1f} (2 of 3)"
    assert found["lstm"] == ["not run", "–"]
    assert found["rocket"] == ["–", "failed"]


def test_what_is_missing_is_counted_and_named(page):
    missing = section(page, "## What is missing")
    # bonn 12, watch 12, early 3, cut 6, shuffled 9, variants 12
    assert "7 of the 54 fits that the studies ask for have no result" in missing
    assert "- bonn, bonn: lstm, seeds 1, 2, 3: not run (3)" in missing
    assert "- watch, watch: gru, seed 2: failed: TrainingError: the loss is nan (1)" in missing
    assert "- watch, watch: rocket, seeds 1, 2, 3: failed: TrainingError: the loss is nan (3)" in missing


def test_of_two_studies_of_a_dataset_the_larger_is_shown_and_the_other_named(page):
    assert "- early has bonn too (3 fits); here it is from bonn (9 fits)." in page


@pytest.mark.parametrize(("folder", "close"), [("bonn", set()), ("cut", {"sss"})])
def test_a_lead_whose_interval_has_0_in_it_is_reported(results, page, folder, close):
    table = pd.read_csv(results / folder / "comparisons.csv")
    table = table[(table["reference"] == "tuned") & (table["metric"] == "auc")]
    assert set(table.loc[table["high"] >= 0, "system"]) == close
    text = next(line for line in page.splitlines() if line.startswith(f"- {folder}: tuned has the"))
    assert set(re.findall(r"([a-z-]+) [+−][\d.]+ \(", text)) == close


def test_the_rank_of_ours_is_given_by_name_and_number(results, page):
    standing = section(page, "### Where tuned stands")
    best = mean_of(results, "bonn", "tuned", "auc")[0]
    assert f"- bonn: tuned has the highest mean AUC, {best:.3f}." in standing
    text = next(line for line in standing.splitlines() if line.startswith("- watch"))
    table = pd.read_csv(results / "watch" / "results.csv").pivot(
        index="seed", columns="system", values="accuracy"
    )
    by = (table["gru"] - table["tuned"]).mean()  # seeds that both have
    assert "tuned is not at the top" in text
    assert f"gru by {100 * by:+.1f} (" in text
    assert text.endswith("the 95 % interval excludes 0 for gru.")
    header, _, *body = rows(standing)
    assert header == ["dataset", "figure", "tuned", "sss", "difference", "p"]
    found = {item[0]: item for item in body}
    gap = mean_of(results, "bonn", "tuned", "auc")[0] - mean_of(results, "bonn", "sss", "auc")[0]
    assert found["bonn"][4].startswith(f"{gap:+.3f} (+")
    compared = pd.read_csv(results / "bonn" / "comparisons.csv").query(
        "metric == 'auc' and reference == 'sss' and system == 'tuned'"
    )
    low, high = compared.iloc[0][["low", "high"]]
    assert found["bonn"][4].endswith(f"({low:+.3f} to {high:+.3f})")


def test_ranks_are_over_datasets_of_systems_that_all_have(results, page):
    text = section(page, "### Ranks")
    assert "Mean rank over 2 datasets" in text
    names = ("sss", "gru", "tuned")
    scores = np.array([[mean_of(results, folder, item, metric)[0] for item in names]
                       for folder, metric in (("bonn", "auc"), ("watch", "accuracy"))])  # fmt: skip
    ranks = sorted(zip(rankdata(-scores, axis=1).mean(axis=0), names, strict=True))
    assert "1 is best: " + ", ".join(f"{name} {rank:.2f}" for rank, name in ranks) + "." in text
    assert "![Critical differences](plots/critical-difference.png)" in text


def test_variants_are_listed_with_their_difference_from_the_base(results, page):
    text = section(page, "## Variants")
    around = section(text, "### Around tuned")
    found = {row[0]: row for row in rows(around)}
    assert found["better"][1].startswith("+0.")
    assert found["better"][2] == "tuned with window_length = 64"
    assert found["worse"][1].startswith("−0.")
    mean, deviation = mean_of(results, "variants", "tuned", "auc")
    assert found["tuned"][1] == f"{mean:.3f} ± {deviation:.3f}"
    assert "- Interval above 0: better on bonn." in around
    assert "- Interval below 0: worse on bonn." in around
    assert "- Cannot be told from the base: alike on bonn." in section(text, "### Around better")
    assert "alike" not in around


def test_a_variant_that_has_another_base_elsewhere_stands_beside_each_for_its_own_data_alone(tmp_path):
    for name, base, length in (
        ("first", "tuned", 64),
        ("second", "single", 32),
        ("third", "single", 16),
    ):
        more = f"""
            [system.single]
            base = "tuned"
            max_epochs = 1
            [system.short]
            base = "{base}"
            window_length = {length}
        """
        write_study(tmp_path, name, {"tuned": 1.0, "single": 1.5, "short": 2.0}, more=more)
    text = section(overview(tmp_path)["README.md"].decode(), "## Variants")
    around = {row[0]: row[1:] for row in rows(section(text, "### Around tuned"))}
    assert around["short"][0] != "–"
    assert around["short"][1:] == ["–", "–", "tuned with window_length = 64"]
    assert "–" not in around["single"]
    beside = {row[0]: row[1:] for row in rows(section(text, "### Around single"))}
    assert beside["short"][0] == "–"
    assert "–" not in beside["short"][1:3]
    assert beside["short"][3] == (
        "second: single with window_length = 32; third: single with window_length = 16"
    )


def test_shuffled_labels_name_whoever_found_something(results, page):
    text = section(page, "## Shuffled labels")
    means = [mean_of(results, "shuffled", item, "auc")[0] for item in ("sss", "gru", "tuned")]
    assert f"the mean AUC of 3 systems is {np.mean(means):.3f}" in text
    assert "**99 % intervals (Holm) that exclude .5: tuned.**" in text


def test_data_that_was_cut_has_a_table_of_its_own(page):
    text = section(page, "## Other centres, other lengths")
    assert "- cut: each series cut to a random 20 to 100 % of its length (seed 1)." in text
    assert "[cut](cut/README.md)<br>AUC" in text
    assert "cut/README.md)<br>" not in section(page, "## Systems and datasets")


def test_pages_of_other_commands_are_quoted_with_links_that_lead_there(page):
    quoted = section(page, "## Weights at prediction")
    assert (
        "They [help](reweigh/table.csv), see ![x](reweigh/plots/x.png) and [the method](https://example.org)."
        in quoted
    )
    assert "### Where\n\nHere." in quoted
    assert "this" not in quoted
    assert section(page, "## Plain").strip().startswith("One line.")
    assert section(page, "## Spoiled").strip() == (
        "It [holds](variants/robustness/answers.csv).\n\n"
        "All of it: [variants/robustness](variants/robustness/README.md)."
    )
    assert page.startswith("# Results\n\nWritten *by hand*.\n\n")


def test_hours_and_versions_are_those_noted_beside_the_fits(page):
    found = {row[0]: row[1:] for row in rows(section(page, "## Where, how long, with what"))}
    assert found["shuffled"][:3] == ["cpu", "9", "0.90"]
    assert found["bonn"] == ["cpu", "9", "0.90", "Python 3.11.7, torch 2.13.0", "1"]
    assert "`raxss table results/bonn/study.toml --root data --out results/bonn`" in page


def test_the_command_writes_the_same_bytes_again_and_says_where(results, made):
    response = CliRunner().invoke(app, ["results", str(results)])
    assert response.exit_code == 0, response.output
    assert "README.md, with 2 plots." in response.output
    assert list(made) == ["plots/systems.png", "plots/critical-difference.png", "README.md"]
    assert {name: (results / name).read_bytes() for name in made} == made
    gathered, _ = gather(results)  # the page and its plots are no study
    assert [item.name for item in gathered] == ["bonn", "cut", "early", "shuffled", "variants", "watch"]


def test_a_table_of_an_earlier_raxss_is_refused_by_name(tmp_path):
    write_study(tmp_path, "old", {"sss": 1.0})
    place = tmp_path / "old" / "summary.csv"
    pd.read_csv(place).drop(columns="headline").to_csv(place, index=False)
    with pytest.raises(DataError, match=r"summary.csv of 'old' has no column 'headline'"):
        write_overview(tmp_path)


def test_a_study_with_absent_files_is_reported_and_its_results_are_shown(tmp_path, caplog):
    write_study(tmp_path, "mine", {"sss": 1.0}, requested=["sss", "gru"])
    copy = tmp_path / "mine" / "study.toml"
    copy.write_text('extensions = ["network.py"]\n' + copy.read_text())
    page = overview(tmp_path)["README.md"].decode()
    assert "'network.py' is not there" in caplog.text
    assert "Nothing: all 3 fits" in page  # that gru was asked for is not known
    assert "A study: mine: its study, or a file that it names, is not beside it" in page


def test_a_place_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match="no folder 'nowhere'"):
        write_overview(tmp_path / "nowhere")


def test_a_folder_without_studies_has_a_page_that_says_so(tmp_path):
    text = overview(tmp_path)["README.md"].decode()
    assert "all 0 fits" in text


def test_the_committed_page_is_what_the_committed_results_give():
    made = overview(RESULTS)
    assert (RESULTS / "README.md").read_text("utf-8") == made.pop("README.md").decode(), (
        "run: raxss results results"
    )
    for name, content in made.items():
        committed, now = (matplotlib.image.imread(item) for item in (RESULTS / name, io.BytesIO(content)))
        assert committed.shape == now.shape, name
        assert np.abs(committed - now).mean() < 0.01, (
            name
        )  # fonts may be drawn a little differently elsewhere
