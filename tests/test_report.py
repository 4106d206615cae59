"""Tables and page of a comparison against the results behind them."""

import csv
import json

import matplotlib
import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt
from matplotlib.figure import Figure
from sklearn.metrics import f1_score

from raxss.benchmark.pages.files import read_table
from raxss.benchmark.pages.markdown import plain
from raxss.benchmark.pages.page import make_page
from raxss.benchmark.pages.report import plot_systems, tables_of, write_report
from raxss.benchmark.statistics import COMPARED
from raxss.errors import OutputError
from raxss.metrics import METRICS, score
from unpacked import made_result, paired_bootstrap

FIRST = ["dataset", "system", "seed", "f1", "auc", "accuracy"]
SEEDS = (69421, 69422, 69423)


def cell(rng, system="sss", *, strength=1.0, seed=SEEDS[0], tested=None, classes=("yes", "no"), **changes):
    """Series come in pairs of neighbours; the class is their number's remainder."""
    tested = np.arange(40) if tested is None else np.asarray(tested)
    codes = tested % len(classes)
    logits = rng.normal(size=(len(tested), len(classes))) + strength * np.eye(len(classes))[codes]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    split = {"description": "pair", "leaky": False, "balance": "none"}
    facts = {
        "system": system,
        "seed": seed,
        "classes": classes,
        "split": split,
        "names": [f"s{k}" for k in tested],
    }
    facts |= {"labels": [classes[code] for code in codes], "groups": [f"g{k // 2}" for k in tested]}
    return made_result(**facts | {"probabilities": probabilities} | changes)


@pytest.fixture
def study(rng):
    """Three systems, three seeds; one of them has no result of the last seed."""
    tested = {
        seed: np.flatnonzero(np.isin(np.arange(80) // 2, rng.choice(40, 20, replace=False))) for seed in SEEDS
    }
    strengths = {"sss": 0.6, "gru": 1.2, "raxss-pearson": 0.8}
    results = [
        cell(rng, name, strength=strength, seed=seed, tested=tested[seed])
        for seed in SEEDS
        for name, strength in strengths.items()
    ]
    last = results.pop()
    error = {"dataset": "toy", "system": last.system, "seed": last.seed, "fold": None, "type": "TrainingError",
             "message": "the loss is nan\nat step 3"}  # fmt: skip
    return results, [error]


def written(folder, results, errors=(), facts=None, **settings):
    settings = {"study_name": "a study", "n_resamples": 200} | settings
    files = write_report(results, facts=facts or {}, errors=errors, out=folder, **settings)
    assert all(file.is_file() for file in files)
    return (folder / "README.md").read_text("utf-8")


def tables_in(page):
    """Every table of a page as a renderer sees it: rows of texts, the header first."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page)
    tables = []
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type in ("td_open", "th_open"):
            tables[-1][-1].append("".join(child.content for child in following.children))
    return tables


def scored(result):
    return score(result.labels, result.probabilities, classes=result.classes, positive="yes")


def column(table, name):
    place = table[0].index(name)
    return {row[0]: row[place] for row in table[1:]}


def numbers(text):
    """Of a mean and its deviation."""
    return [float(item) for item in text.split(" ± ")]


def is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


# Tables -------------------------------------------------------------------------------------------------------


def test_results_have_a_row_for_each_cell_with_the_figures_of_score(tmp_path, study):
    results, errors = study
    written(tmp_path, results, errors)
    table = pd.read_csv(tmp_path / "results.csv")
    assert list(table.columns[:6]) == FIRST
    assert len(table) == 9
    assert not table.duplicated(["dataset", "system", "seed"]).any()
    found = table.set_index(["system", "seed"])
    for item in results:
        expected = scored(item)
        assert found.loc[(item.system, item.seed), list(METRICS)].to_dict() == pytest.approx(expected)
        assert json.loads(found.loc[(item.system, item.seed), "test_classes"]) == {"yes": 20, "no": 20}
    failed = found.loc[("raxss-pearson", SEEDS[-1])]
    assert failed["error"] == "TrainingError: the loss is nan at step 3"
    assert failed[["f1", "auc", "accuracy"]].isna().all()


def test_facts_are_found_by_cell(tmp_path, rng):
    results = [
        cell(rng, "sss", fold="a"),
        cell(rng, "gru", fold="a", settings={"choice": {"window_length": 3000}}),
    ]
    facts = {
        ("toy", "sss", SEEDS[0]): {"seconds": 12.5, "device": "cpu", "n_threads": 2, "warnings": ["slow"]},
        ("toy", "gru", SEEDS[0]): {"seconds": 7.0, "device": "cpu", "n_threads": 2},
    }
    page = written(tmp_path, results, facts=facts)
    assert pd.read_csv(tmp_path / "results.csv")["seconds"].tolist() == [12.5, 7.0]
    table = tables_in(page)[0]
    assert column(table, "seconds") == {"sss": "12.5", "gru": "7.0"}
    assert column(table, "chosen") == {"sss": "–", "gru": "window_length 3000"}
    assert "Device: cpu; threads a fit: 2." in page
    assert "Fits with warnings: 1." in page
    assert "seconds of choice" not in table[0]
    facts["toy", "gru", SEEDS[0]]["seconds_of_choice"] = 40.25  # a length was searched for
    page = written(tmp_path, results, facts=facts)
    assert column(tables_in(page)[0], "seconds of choice") == {"sss": "–", "gru": "40.2"}
    assert "Seconds of choice" in page


def test_what_auto_chose_is_on_the_page_where_facts_have_it(tmp_path, rng):
    results = [cell(rng, name, seed=seed) for seed in SEEDS for name in ("sss", "auto")]
    page = written(tmp_path, results)
    assert "What auto chose" not in page
    assert "candidate" not in (tmp_path / "results.csv").read_text().splitlines()[0].split(",")
    chosen = dict(zip(SEEDS, ("ridge", "default", "ridge"), strict=True))
    facts = {("toy", "auto", seed): {"search": {"chosen": name}} for seed, name in chosen.items()}
    page = written(tmp_path, results, facts=facts)
    assert "### What auto chose" in page
    table = next(table for table in tables_in(page) if table[0] == ["system", "candidate", "seeds"])
    assert sorted(table[1:]) == [
        ["auto", "default", f"{SEEDS[1]}"],
        ["auto", "ridge", f"{SEEDS[0]}, {SEEDS[2]}"],
    ]
    folds = [cell(rng, "auto", fold=fold) for fold in ("a", "b")]
    page = written(tmp_path, folds, facts=facts)
    assert f"| auto | ridge | {SEEDS[0]} (a), {SEEDS[0]} (b) |" in page


def test_the_page_has_mean_and_deviation_over_seeds(tmp_path, study):
    results, errors = study
    page = written(tmp_path, results, errors)
    table = tables_in(page)[0]
    assert table[0][:4] == ["system", "F1", "AUC", "accuracy %"]
    assert [row[0] for row in table[1:]] == ["sss", "gru", "raxss-pearson"]
    for system in ("sss", "raxss-pearson"):
        own = [scored(item) for item in results if item.system == system]
        auc, accuracy = (np.array([entry[name] for entry in own]) for name in ("auc", "accuracy"))
        assert len(own) == (3 if system == "sss" else 2)
        assert numbers(column(table, "AUC")[system]) == pytest.approx([auc.mean(), auc.std(ddof=1)], abs=6e-4)
        expected = [100 * accuracy.mean(), 100 * accuracy.std(ddof=1)]
        assert numbers(column(table, "accuracy %")[system]) == pytest.approx(expected, abs=0.06)
    assert "Not all seeds are there of: raxss-pearson." in page


def test_folds_of_a_seed_count_as_one(tmp_path, rng):
    results = [cell(rng, seed=seed, fold=fold, tested=part) for seed in SEEDS[:2]
               for fold, part in (("a", range(20)), ("b", range(20, 60)))]  # fmt: skip
    written(tmp_path, results)
    auc = [scored(item)["auc"] for item in results]
    by_seed = [np.mean(auc[:2]), np.mean(auc[2:])]
    row = pd.read_csv(tmp_path / "summary.csv").iloc[0]
    assert row["n_seeds"] == 2
    assert row["auc_mean"] == pytest.approx(np.mean(by_seed))
    assert row["auc_sd"] == pytest.approx(np.std(by_seed, ddof=1))


def test_seeds_that_are_folds_of_one_split_are_told_from_splits_drawn_anew(tmp_path, rng, study):
    split = {"description": "3 folds by pair", "leaky": False, "balance": "none"}
    results = [
        cell(rng, seed=seed, fold=str(k), tested=range(20 * k, 20 * k + 20), split=split)
        for k, seed in enumerate(SEEDS)
    ]
    page = written(tmp_path, results)
    assert "- Split: 3 folds by pair." in page
    assert "- Seeds are the folds of one split: each tests other series, and no split is drawn anew." in page
    assert "over 3 seeds, a fold each:" in page
    assert "toy: what another split would give. The seeds are folds of one." in page
    redrawn = written(tmp_path / "redrawn", *study)
    centre = written(tmp_path / "centre", [cell(rng, seed=seed, fold="JHH") for seed in SEEDS])
    for other in (redrawn, centre):
        assert "over 3 seeds:" in other
        assert "folds of one" not in other


def test_of_one_seed_no_deviation_is_given_and_the_page_says_so(tmp_path, rng):
    page = written(tmp_path, [cell(rng, "sss"), cell(rng, "gru")])
    assert "±" not in "".join(text for table in tables_in(page) for row in table for text in row)
    assert "One seed, so no deviation can be given" in page
    assert "toy: one seed. How much of a difference is the luck of that seed is unknown." in page
    assert pd.read_csv(tmp_path / "summary.csv")["auc_sd"].isna().all()


def test_pooled_figures_are_those_of_all_predictions_at_once(tmp_path, rng, study):
    parts = [cell(rng, seed=seed, tested=range(20 * k, 20 * k + 20)) for k, seed in enumerate(SEEDS)]
    page = written(tmp_path, parts)
    row = pd.read_csv(tmp_path / "pooled.csv").iloc[0]
    heap = np.concatenate([part.probabilities for part in parts])
    expected = score(sum((part.labels for part in parts), ()), heap, classes=("yes", "no"), positive="yes")
    assert row[list(METRICS)].to_dict() == pytest.approx(expected)
    assert row[["n_predictions", "n_series", "n_groups", "each_once"]].tolist() == [60, 60, 30, 1]
    assert row["auc_low"] < row["auc"] < row["auc_high"]
    assert "Each series is tested once." in page
    twice = written(tmp_path / "twice", *study)
    pooled = pd.read_csv(tmp_path / "twice" / "pooled.csv")
    assert (pooled["n_predictions"] > pooled["n_series"]).all()
    assert "Some series are in the test part of several seeds" in twice


def test_comparisons_are_those_of_the_paired_bootstrap(tmp_path, study):
    results, errors = study
    page = written(tmp_path, results, errors)
    keys = ["metric", "reference", "system"]
    found = pd.read_csv(tmp_path / "comparisons.csv").set_index(keys).sort_index()
    expected = paired_bootstrap(results, n_resamples=200).set_index(keys).sort_index()
    pd.testing.assert_frame_equal(found, expected, rtol=1e-9, check_dtype=False, check_column_type=False)
    row = expected.loc["auc", "sss", "gru"]
    text = f"{row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})".replace("-", "−")
    from_sss = next(table for table in tables_in(page) if table[0][1:3] == ["F1", "p"])
    assert column(from_sss, "AUC") == {"gru": text, "raxss-pearson": column(from_sss, "AUC")["raxss-pearson"]}
    assert from_sss[1][4] == f"{row['p_holm']:.3f}"


def test_the_order_of_results_changes_no_number_and_the_plot_shows_each_seed_and_the_mean(study):
    results, errors = study
    there = tables_of(results, facts={}, errors=errors, n_resamples=50)
    back = tables_of(results[::-1], facts={}, errors=errors, n_resamples=50)
    for name, table in there.items():
        keys = [item for item in ("dataset", "metric", "reference", "system", "seed") if item in table]
        first, second = (item.astype(dict.fromkeys(keys, str)).sort_values(keys, ignore_index=True)
                         for item in (table, back[name]))  # fmt: skip
        pd.testing.assert_frame_equal(first, second, rtol=1e-12)
    ax = Figure().subplots()
    assert plot_systems(there["results"], there["summary"], ax=ax) is ax
    assert [len(line.get_xdata()) for line in ax.lines if line.get_marker() == "o"] == [3, 3, 2]
    means = [line.get_xdata()[0] for line in ax.lines if line.get_marker() == "D"]
    assert means == pytest.approx(there["summary"]["auc_mean"].tolist())


def test_several_classes_have_their_own_words(tmp_path, rng):
    page = written(tmp_path, [cell(rng, item, classes=("sit", "walk", "run")) for item in ("sss", "gru")])
    assert "F1, AUC and average precision are means over the classes." in page
    assert "Shares there: sit 35.0 %, walk 32.5 %, run 32.5 %." in page


# What a reader must be told -------------------------------------------------------------------------------------


def test_the_trivial_baseline_is_what_calling_all_positive_gives(tmp_path, rng):
    tested = [index for index in range(60) if index % 2 or index < 20]  # 10 of 40 are positive
    everything = np.tile([1.0, 0.0], (40, 1))
    page = written(
        tmp_path,
        [cell(rng, tested=tested), cell(rng, "all-positive", tested=tested, probabilities=everything)],
    )
    row = {name: column(tables_in(page)[0], title)["all-positive"] for name, title in
           (("f1", "F1"), ("accuracy", "accuracy %"), ("ap", "average precision"))}  # fmt: skip
    assert row == {"f1": "0.400", "accuracy": "25.0", "ap": "0.250"}
    assert "calling every series yes: F1 0.400, AUC 0.500, accuracy 25.0 %, average precision 0.250" in page
    assert "most frequent class of the test part: accuracy 75.0 %" in page
    assert "Shares there: yes 25.0 %, no 75.0 %." in page


def test_f1_over_some_classes_is_in_every_table_and_described(tmp_path, rng):
    classes = ("AF", "noisy", "normal", "other")
    wanted = ("normal", "AF", "other")
    results = [
        cell(rng, name, seed=seed, classes=classes, f1_classes=wanted)
        for name in ("sss", "gru")
        for seed in SEEDS
    ]
    page = written(tmp_path, results)
    assert (
        "- F1 is the mean over normal, AF, other; AUC and average precision are means over all classes."
        in page
    )

    def f1_of(some):
        labels = np.concatenate([item.labels for item in some])
        guessed = np.array(classes)[np.concatenate([item.probabilities for item in some]).argmax(axis=1)]
        return f1_score(labels, guessed, labels=wanted, average="macro")

    rows = pd.read_csv(tmp_path / "results.csv").set_index(["system", "seed"])
    for entry in results:
        assert rows.loc[(entry.system, entry.seed), "f1"] == pytest.approx(f1_of([entry]))
        assert rows.loc[(entry.system, entry.seed), "f1_classes"] == "normal, AF, other"
    pooled = pd.read_csv(tmp_path / "pooled.csv").set_index("system")["f1"]
    compared = pd.read_csv(tmp_path / "comparisons.csv").set_index(["metric", "reference", "system"])
    by_system = {name: [entry for entry in results if entry.system == name] for name in ("sss", "gru")}
    assert pooled.to_dict() == pytest.approx({name: f1_of(some) for name, some in by_system.items()})
    means = {name: np.mean([f1_of([item]) for item in some]) for name, some in by_system.items()}
    assert compared.loc[("f1", "sss", "gru"), "difference"] == pytest.approx(means["gru"] - means["sss"])


SHUFFLED = {"shuffled": True, "seed": 7}


def test_shuffled_labels_are_reported_and_not_ranked(tmp_path, rng):
    results = [
        cell(rng, name, seed=seed, strength=0.0, dataset=dataset, changes=changes)
        for name in ("sss", "gru")
        for seed in SEEDS
        for dataset, changes in (("toy", {}), ("toy, labels shuffled", SHUFFLED))
    ]
    page = written(tmp_path, results)
    _, plain, shuffled = page.split("\n## ", 2)
    assert "- **LABELS SHUFFLED:** there is nothing to learn here, and every AUC should be 0.5." in shuffled
    assert "**Labels are shuffled: every AUC of this table should be 0.5.**" in shuffled
    assert "toy, labels shuffled: how good any system is. Labels were shuffled" in shuffled
    assert "huffled" not in plain
    assert "Mean rank by AUC over 3 blocks" in page  # of the dataset as it is
    rows = pd.read_csv(tmp_path / "results.csv")
    assert rows.groupby("dataset")["shuffled"].agg(set).to_dict() == {
        "toy": {0},
        "toy, labels shuffled": {1},
    }
    assert set(rows["data"].dropna()) == {"labels shuffled (seed 7)"}
    alone = written(tmp_path / "alone", [item for item in results if item.changes])
    assert "Ranks" not in alone
    assert not (tmp_path / "alone" / "plots" / "critical-difference.png").exists()


def test_a_system_that_finds_what_is_not_there_is_named(tmp_path, rng):
    strengths = {"sss": 0.0, "leaky": 4.0, "all-positive": 0.0}
    results = [
        cell(rng, name, seed=seed, strength=strength, tested=range(80), changes=SHUFFLED)
        for name, strength in strengths.items()
        for seed in SEEDS
    ]
    for item in results:
        if item.system == "all-positive":
            item.probabilities[:] = [1.0, 0.0]
    page = written(tmp_path, results, n_resamples=1000)
    rows = pd.read_csv(tmp_path / "comparisons.csv")
    by_chance = rows[rows["reference"] == "chance"].set_index("system")
    aucs = pd.read_csv(tmp_path / "summary.csv").set_index("system")["auc_mean"]
    assert by_chance["difference"].to_dict() == pytest.approx((aucs - 0.5).to_dict())
    assert by_chance.loc["all-positive", ["difference", "low", "high", "p"]].tolist() == [0, 0, 0, 1]
    assert by_chance.loc["leaky", "p"] == pytest.approx(1 / 5001)  # five times as many draws
    assert by_chance.loc["leaky", "p_holm"] == pytest.approx(3 / 5001)
    assert by_chance.loc["sss", "low"] < 0 < by_chance.loc["sss", "high"]
    assert f"The mean AUC over the systems is {aucs.mean():.3f}." in page
    assert "**Below 0.01, so that a 99 % interval excludes 0.5: leaky.**" in page
    honest = written(tmp_path / "honest", [item for item in results if item.system != "leaky"])
    assert "No p is below 0.01, so that no 99 % interval excludes 0.5." in honest
    assert set(rows.loc[rows["reference"] != "chance", "reference"]) == {"sss"}


def test_what_was_done_to_the_data_is_reported(tmp_path, rng):
    names = {"F": "focal", "N": "nonfocal"}
    bonn = {"centre": "Bonn", "data": "bonn", "classes": ["F", "N"], "rename": names}
    bern = {"centre": "bern", "data": "bern", "classes": [], "rename": {}}
    changes = {"sources": [bern, bonn], "crop": [0.25, 1.0], "seed": 7}
    text = (
        "joined from bern and Bonn (bonn; F as focal, N as nonfocal), each a centre; each series cut to a random "
        "25 to 100 % of its length (seed 7)"
    )
    page = written(tmp_path, [cell(rng, changes=changes)])
    assert f"- Data: {text}." in page
    assert pd.read_csv(tmp_path / "results.csv")["data"].tolist() == [text]
    assert "- Data:" not in written(tmp_path, [cell(rng)])


def test_a_leaky_split_is_called_so(tmp_path, rng):
    split = {"description": "channel (leaky)", "leaky": True, "balance": "before_split"}
    page = written(tmp_path, [cell(rng, split=split)])
    assert "- Split: channel (leaky)." in page
    assert "toy: how a system does on new patients. The split is leaky" in page
    assert "before the split, so the test part does not have the natural shares" in page
    assert "eaky" not in written(tmp_path, [cell(rng)])


def test_few_groups_are_reported_and_fewer_have_no_interval(tmp_path, rng):
    page = written(tmp_path, [cell(rng, item, tested=range(24)) for item in ("sss", "gru")])
    assert "toy: exact intervals. With 12 groups they are rough" in page
    page = written(tmp_path, [cell(rng, item, tested=range(10)) for item in ("sss", "gru")])
    assert "Of 5 groups no interval and no p can be made; needed are 6." in page
    assert pd.read_csv(tmp_path / "comparisons.csv")["p"].isna().all()


def test_a_test_part_of_one_class_leaves_a_hole_and_nothing_else(tmp_path, rng):
    page = written(tmp_path, [cell(rng, item, tested=range(0, 80, 2)) for item in ("sss", "gru")])
    table = pd.read_csv(tmp_path / "results.csv")
    assert table["auc"].isna().all()
    assert table[["accuracy", "brier"]].notna().all(axis=None)
    assert "AUC" not in tables_in(page)[0][0]
    assert "toy: AUC where a test part has one class only." in page


def test_failures_are_listed_and_the_rest_goes_on(tmp_path, rng, study):
    results, errors = study
    broken = cell(rng, "lstm", probabilities=np.full((40, 2), np.nan))
    page = written(tmp_path, [*results, broken], [*errors, {}])
    failed = tables_in(page)[-1]
    assert failed[0] == ["dataset", "system", "seed", "error"]
    assert ["toy", "raxss-pearson", str(SEEDS[-1]), "TrainingError: the loss is nan at step 3"] in failed
    text = next(row[-1] for row in failed if row[1] == "lstm")
    assert "DataError: the probabilities of 40 of 40 series are not finite" in text
    assert "8 fits, and 3 that failed" in page
    assert set(column(tables_in(page)[0], "AUC")) == {"sss", "gru", "raxss-pearson"}
    page = written(tmp_path / "nothing", [], errors)
    assert "No system has a result here" in page
    assert not (tmp_path / "nothing" / "plots").exists()
    assert list(pd.read_csv(tmp_path / "nothing" / "results.csv").columns[:6]) == FIRST
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(OutputError, match="taken"):
        written(tmp_path / "taken", results)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("cannot open '/home/zoe/run 7/cells/a.json'", "cannot open 'a.json'"),
        ("no /mnt/disk/a.npz, see https://x.org/a/b", "no a.npz, see https://x.org/a/b"),
        (r"no C:\Users\zoe\a.npz", "no a.npz"),
        ("pool 24/12 and/or ../a/b", "pool 24/12 and/or ../a/b"),
    ],
)
def test_errors_are_shown_without_tracebacks_and_the_folders_of_a_machine(tmp_path, message, shown):
    trace = 'Traceback (most recent call last):\n  File "/home/zoe/x.py", line 3'
    error = {"dataset": "toy", "system": "sss", "seed": 1, "type": "E", "message": message}
    page = written(tmp_path, [], [error | {"traceback": trace}])
    assert tables_in(page)[-1][-1][-1] == f"E: {shown}"
    for text in (page, (tmp_path / "results.csv").read_text("utf-8")):
        assert "Traceback" not in text
        assert "zoe" not in text


def test_ranks_need_two_blocks_and_name_who_is_left_out(tmp_path, rng, study):
    page = written(tmp_path / "many", *study)
    assert (tmp_path / "many" / "plots" / "critical-difference.png").is_file()
    assert "Mean rank by AUC over 3 blocks" in page
    assert "Left out, because a block lacks them: raxss-pearson." in page
    page = written(tmp_path / "one", [cell(rng, "sss"), cell(rng, "gru")])
    assert not (tmp_path / "one" / "plots" / "critical-difference.png").exists()
    assert "Ranks" not in page


# Names, files, bytes ----------------------------------------------------------------------------------------------


ODD = "a|b <script>alert(1)</script> *c* [d](e) `f` __g__ $h$ \\ #i ~~j~~"


def test_a_name_with_markup_is_shown_as_it_is(tmp_path, rng):
    classes = ("<b>yes</b>", "no|pe")
    results = [
        cell(rng, ODD, seed=seed, dataset="1. data|set", classes=classes, positive=classes[0],
             labels=tuple(classes[k % 2] for k in range(40))) for seed in SEEDS
    ] + [cell(rng, "sss", seed=seed, dataset="1. data|set", classes=classes) for seed in SEEDS]  # fmt: skip
    error = {"dataset": "1. data|set", "system": "- x", "seed": 1, "type": "E"}
    errors = [error | {"message": f"{ODD}\n\n# big\x1b[31m"}]
    page = written(tmp_path, results, errors, study_name="<img src=x onerror=alert(1)>\n# two")
    for table in tables_in(page):
        assert {len(row) for row in table} == {len(table[0])}
    assert column(tables_in(page)[0], "F1").keys() == {ODD, "sss"}
    assert tables_in(page)[-1][-1][-1] == f"E: {ODD} # big [31m"
    rendered = MarkdownIt("commonmark").enable("table").render(page)
    for tag in ("<script", "<b>", "<em>", "<a ", "<img src=x"):
        assert tag not in rendered
    assert rendered.count("<h1>") == 1
    assert rendered.count("<strong>") == 0


@pytest.mark.parametrize(
    "text", ["- a", "+ a", "1. a", "2) a", "# a", "> a", "__a__", "_a_", "*a*", "a_b", "a | b", "~~~"]
)
def test_plain_text_is_one_paragraph_that_reads_the_same(text):
    tokens = MarkdownIt("commonmark").enable("table").parse(plain(text))
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert "".join(child.content for child in tokens[1].children) == text
    assert {child.type for child in tokens[1].children} <= {"text", "text_special"}


@pytest.mark.parametrize("name", ["nan", "007", "1e5", "True", 'say "x", b', "-x", "'x", "心電図"])
def test_a_system_keeps_its_name_through_the_files(tmp_path, rng, name):
    page = written(tmp_path, [cell(rng, name), cell(rng, "sss")])
    assert set(column(tables_in(page)[0], "AUC")) == {name, "sss"}


def test_a_spreadsheet_finds_no_formula_in_any_table(tmp_path, rng):
    classes = ("@sum(a)", "no")
    results = [
        cell(
            rng, name, seed=seed, dataset="+1", classes=classes, groups=tuple(f"-{k // 2}" for k in range(40))
        )
        for name in ("=cmd()", "sss")
        for seed in SEEDS
    ]
    errors = [{"dataset": "+1", "system": "=cmd()", "seed": 9, "fold": "-f", "type": "=E", "message": "x"}]
    page = written(tmp_path, results, errors)
    for name in ("results", "summary", "pooled", "comparisons"):
        with (tmp_path / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        texts = [item for row in rows for item in row.values() if not is_number(item)]
        assert not [text for text in texts if text.startswith(("=", "+", "-", "@"))], name
        assert {row["dataset"] for row in rows} == {"'+1"}
    assert {row["system"] for row in rows} == {"'=cmd()"}
    assert {row["metric"]: float(row["difference"]) for row in rows}.keys() == set(COMPARED)
    assert set(column(tables_in(page)[0], "AUC")) == {"=cmd()", "sss"}  # a page is no spreadsheet


def test_the_page_is_made_from_the_files_alone(tmp_path, rng):
    page = written(tmp_path, [cell(rng, "sss"), cell(rng, "gru")])
    names = ("results", "summary", "pooled", "comparisons")
    tables = {name: read_table((tmp_path / f"{name}.csv").read_text("utf-8")) for name in names}
    assert make_page("a study", tables, plots=["plots/auc-toy.png"]) == page
    tables["summary"]["auc_mean"] = 0.123
    assert "0.123" in make_page("a study", tables)


def test_the_same_results_give_the_same_bytes_whatever_the_readers_style(tmp_path, study):
    written(tmp_path / "a", *study)
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "black", "savefig.dpi": 20}):
        written(tmp_path / "b", *study)
    files = sorted(file.relative_to(tmp_path / "a") for file in (tmp_path / "a").rglob("*") if file.is_file())
    assert [file.name for file in files] == [
        "README.md", "comparisons.csv", "auc-toy.png", "critical-difference.png", "pooled.csv", "results.csv",
        "summary.csv"]  # fmt: skip
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
    png = (tmp_path / "a" / "plots" / "auc-toy.png").read_bytes()
    assert b"tEXt" not in png
    assert b"tIME" not in png
