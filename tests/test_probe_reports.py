"""Pages of probes: numbers against the plain comparison of systems, sentences against what was planted."""

import itertools

import numpy as np
import pandas as pd
import pytest

from raxss.benchmark.analyses.evaluation import EvaluatedRun, Evaluation
from raxss.benchmark.analyses.reweighting import Cross, twins
from raxss.benchmark.analyses.reweighting_analysis import (
    Reweighting,
    fitted_sentence,
    name_of,
    pick,
    sentences,
    verdict,
)
from raxss.benchmark.analyses.robustness import LEVELS, Robustness
from raxss.benchmark.analyses.robustness import sentences as robust_sentences
from raxss.benchmark.pages.tidy import headline
from unpacked import made_result, paired_bootstrap

REWEIGHTING, ROBUSTNESS = Reweighting(), Robustness()
CROSS = Cross(spaces=["signal"], exclusions=[0, 0.5], temperatures=[0.05, 0.1], smoothings=[0.0, 0.5])
N = 40


def cell(system="tuned", seed=1, dataset="toy"):
    names = [f"{seed}-{k}" for k in range(N)]
    about = {"dataset": dataset, "system": system, "seed": seed, "fold": str(seed), "classes": ("a", "b")}
    about |= {"positive": "b", "split": {"description": "5 folds by recording"}}
    return made_result(("a", "b") * (N // 2), scores(0.5, seed), names=names, **about)


def scores(signal, seed):
    """Probabilities that follow the labels as far as ``signal``; 0: not at all, negative: the other way round."""
    truth = np.tile([-1.0, 1.0], N // 2)
    noise = np.random.default_rng(seed).normal(size=N)
    p = 1 / (1 + np.exp(-(2 * signal * truth + noise)))
    return np.stack([1 - p, p], axis=1)


def questions_of(cross):
    return [
        {name: None if value != value else value for name, value in entry.items()}
        for entry in cross.rows().to_dict("records")
    ]


def reweighed(signal_of, seed=1, validation_of=lambda question: {}, **about):
    """A fit whose answers are as good as a question deserves."""
    evaluations = tuple(
        Evaluation(settings=item, probabilities=scores(signal_of(item), seed), validation=validation_of(item))
        for item in questions_of(CROSS)
    )
    return EvaluatedRun(result=cell(seed=seed, **about), evaluations=evaluations)


def tables_of(probed, n_resamples=50, analysis=REWEIGHTING):
    return analysis.tables(analysis.rows(probed, n_resamples=n_resamples))


def robust_tables(probed, n_resamples):
    return tables_of(probed, n_resamples, ROBUSTNESS)


def informative(question):
    return {"support": 0.8, "inverse": -0.2, "shuffled": 0.5, "uniform": 0.5}[question["weighting"]]


def empty_words(question):
    return 0.5


# Reweighting


@pytest.fixture(scope="module")
def planted():
    return [reweighed(informative, seed=seed) for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def compared(planted):
    return tables_of(planted, n_resamples=500)["comparisons"]


def test_each_difference_is_that_of_two_systems(planted, compared):
    results = [
        item.as_result(place, name_of(answer.settings))
        for item in planted
        for place, answer in enumerate(item.evaluations)
    ]
    requested = {"space": "signal", "exclusion": 0.5, "pooling": "mean", "smoothing": 0.0}
    uniform = name_of({**requested, "weighting": "uniform", "temperature": None})
    expected = paired_bootstrap(results, references=[uniform], metrics=["auc"], n_resamples=500).set_index(
        "system"
    )
    row = compared[
        (compared["exclusion"] == "0.5")
        & (compared["temperature"] == 0.1)
        & (compared["pooling"] == "mean")
        & (compared["smoothing"] == 0)
    ].iloc[0]
    for part, twin in zip(("", "inverted_", "shuffled_"), twins()["support"], strict=True):
        wanted = expected.loc[name_of({**requested, "weighting": twin, "temperature": 0.1})]
        for name in ("difference", "low", "high", "p"):
            assert row[f"{part}{name}"] == pytest.approx(wanted[name]), (part, name)
    over = row["difference"] - row["inverted_difference"]
    assert row["over_inverted_difference"] == pytest.approx(over)
    assert row["over_inverted_low"] < over < row["over_inverted_high"]


def test_one_sample_and_one_window_of_exclusion_have_uniform_weights_of_their_own():
    cross = Cross(spaces=["signal"], exclusions=[1, 1.0], temperatures=[0.1], smoothings=[0.0])
    evaluations = tuple(
        Evaluation(
            settings=entry, probabilities=scores(0.2 if isinstance(entry["exclusion"], int) else 0.9, 1)
        )
        for entry in questions_of(cross)
    )
    table = tables_of([EvaluatedRun(result=cell(), evaluations=evaluations)])["comparisons"]
    assert set(table["exclusion"]) == {"1", "1.0"}
    assert (table["difference"] == 0).all()  # in each block all weights do equally well


def test_informative_weights_are_called_informative(compared):
    text = sentences(compared, "auc")
    assert len(text) == 3  # two exclusions, and the count of all settings
    assert (
        "Weights from the signal, no exclusion, at temperature 0.1 differ from uniform ones by +0.0"
        in text[0]
    )
    assert text[0].endswith("they carry information, and do better than uniform ones.")
    assert "exclusion 0.5 windows" in text[1]
    assert "Of all 16 settings" in text[2]
    assert "16 do better than uniform weights, 0 do worse; 16 do better than their inverted twins" in text[2]


def test_of_weights_whose_twin_does_as_well_no_information_is_shown():
    same = [reweighed(empty_words, seed=seed) for seed in (1, 2)]
    text = sentences(tables_of(same, n_resamples=500)["comparisons"], "auc")
    assert "differ from uniform ones by +0.000" in text[0]
    assert "that they carry information is not shown" in text[0]
    assert "0 do better than uniform weights, 0 do worse; 0 do better than their inverted twins" in text[-1]


def test_the_effect_of_the_fitted_weights_has_its_interval(planted):
    without = tables_of(planted, n_resamples=500)["without-weights"]
    assert fitted_sentence(without, "auc") == "As fitted, its weights are uniform."
    other = without.assign(difference=-0.02, low=-0.03, high=0.01)
    assert fitted_sentence(other, "auc").endswith("differ from uniform ones by −0.020 (−0.030 to +0.010).")


@pytest.mark.parametrize(
    ("twin", "own", "expected"),
    [
        ((0.05, 0.01, 0.09), (-0.09, -0.01), "carry information, and yet do worse than uniform"),
        ((-0.05, -0.09, -0.01), (0.01, 0.09), "mislead: inverted, they do better"),
        ((0.02, -0.01, 0.05), (0.01, 0.09), "is not shown"),
        ((np.nan, np.nan, np.nan), (np.nan, np.nan), "too few groups"),
    ],
)
def test_the_verdict_follows_the_intervals(twin, own, expected):
    names = ("over_inverted_difference", "over_inverted_low", "over_inverted_high", "low", "high")
    assert expected in verdict(dict(zip(names, (*twin, *own), strict=True)))


def test_validation_chooses_and_never_a_twin():
    def judged(question):  # a twin is the best, and one setting the best of those that are open
        best = question["temperature"] == 0.05 and question["exclusion"] == 0.5
        twin = question["weighting"] == "inverse"
        return {"auc": 1.0 if twin else 0.9 if best else 0.5, "brier": 0.2}

    probed = reweighed(informative, validation_of=judged)
    chosen = probed.evaluations[pick(probed, "auc")].settings
    assert (chosen["weighting"], chosen["temperature"], chosen["exclusion"]) == ("support", 0.05, 0.5)


def test_ties_go_to_the_lower_brier_score_and_then_to_equal_weights():
    def tied(question):
        return {"auc": 0.9, "brier": 0.1 if question["pooling"] == "logit" else 0.2}

    probed = reweighed(informative, validation_of=tied)
    chosen = probed.evaluations[pick(probed, "auc")].settings
    assert (chosen["weighting"], chosen["pooling"]) == ("uniform", "logit")
    unjudged = reweighed(informative)
    assert unjudged.evaluations[pick(unjudged, "auc")].settings["weighting"] == "uniform"


def test_what_was_chosen_is_reported_with_its_test_score():
    def judged(question):
        return {"auc": 0.9 if question["weighting"] == "support" else 0.5, "brier": 0.2}

    probed = [reweighed(informative, seed=seed, validation_of=judged) for seed in (1, 2)]
    tables = tables_of(probed, n_resamples=50)
    figures = tables["answers"]
    for row in tables["chosen"].to_dict("records"):
        own = figures[figures["seed"] == row["seed"]]
        assert row["test"] == pytest.approx(own.loc[own["weighting"] == "support", "auc"].iloc[0])
        assert row["test_uniform"] == pytest.approx(own.loc[own["weighting"] == "uniform", "auc"].iloc[0])
    text = tables["without-weights"].set_index("what")
    mean = (tables["chosen"]["test"] - tables["chosen"]["test_uniform"]).mean()
    assert text.loc["chosen on validation", "difference"] == pytest.approx(mean)


def test_names_are_no_markup_and_failures_are_reported(tmp_path):
    strange = reweighed(informative, dataset="a|b <i>", system="=1+1")
    error = {
        "dataset": "a|b <i>",
        "system": "sss",
        "seed": 2,
        "type": "SignalError",
        "message": "of /x/y/z.npy",
    }
    REWEIGHTING.write([strange], facts=[], errors=[error], out=tmp_path, study_name="# Toy", n_resamples=50)
    page = (tmp_path / "README.md").read_text()
    assert "a\\|b &lt;i&gt;" in page
    assert "SignalError: of z.npy" in page
    assert "'=1+1" in (tmp_path / "answers.csv").read_text()


def test_a_study_in_which_all_failed_has_a_page(tmp_path):
    error = {"dataset": "d", "system": "sss", "seed": 2, "type": "SignalError", "message": "broken"}
    for write in (REWEIGHTING.write, ROBUSTNESS.write):
        files, _ = write([], facts=[], errors=[error], out=tmp_path, study_name="Toy")
        assert [file.name for file in files] == ["README.md"]
        assert "SignalError: broken" in files[0].read_text()


# Robustness


def spoiled(system, seed, strength_of):
    """A fit that was asked about all conditions; ``strength_of(kind, level, weights)``."""
    weights = ["own"] if system == "sss" else ["own", "uniform"]
    conditions = [(kind, level) for kind, levels in LEVELS.items() for level in levels]
    evaluations = tuple(
        Evaluation(
            settings={"kind": kind, "level": level, "weights": item},
            probabilities=scores(strength_of(kind, level, item), seed),
        )
        for (kind, level), item in itertools.product(conditions, weights)
    )
    return EvaluatedRun(result=cell(system, seed), evaluations=evaluations)


def saves_from_drift(kind, level, weights):
    return 0.7 if kind == "drift" and weights == "own" else 0.3


@pytest.fixture(scope="module")
def saved():
    plain = [spoiled("sss", seed, lambda *_: 0.3) for seed in (1, 2, 3)]
    return [spoiled("tuned", seed, saves_from_drift) for seed in (1, 2, 3)] + plain


@pytest.fixture(scope="module")
def spoiled_and_compared(saved):
    return robust_tables(saved, n_resamples=500)["comparisons"]


def test_every_condition_is_compared_with_uniform_weights_and_with_sss(spoiled_and_compared):
    compared = spoiled_and_compared
    n_conditions = sum(map(len, LEVELS.values()))
    assert len(compared) == 2 * (n_conditions + 8)
    assert set(compared["system"]) == {"tuned"}
    own = compared[compared["comparison"] == "own weights − uniform weights"].set_index(["kind", "level"])
    levels = [f"{item:g}" for item in LEVELS["drift"]]
    means = np.mean([own.loc[("drift", level), "difference"] for level in levels])
    assert own.loc[("drift", "mean"), "difference"] == pytest.approx(means)
    assert own.loc[("drift", "mean"), "low"] > 0
    assert own.loc[("noise", "mean"), "difference"] == 0
    other = compared[compared["comparison"] == "system − sss"].set_index(["kind", "level"])
    pd.testing.assert_series_equal(
        own["difference"], other["difference"]
    )  # here, uniform weights are those of sss


def test_the_words_say_where_weights_help(spoiled_and_compared):
    text = robust_sentences(spoiled_and_compared, "auc")
    assert len(text) == 2
    assert text[0].startswith("tuned, its weights against uniform ones, on clean signals: +0.000")
    assert ". Better under drift +0." in text[0]
    assert text[0].endswith("under the others the two cannot be told apart.")
    assert text[1].startswith("tuned, against sss, on clean signals")


def test_where_nothing_differs_the_words_say_so(tmp_path):
    same = [spoiled(name, seed, lambda *_: 0.3) for name in ("tuned", "sss") for seed in (1, 2)]
    files, _ = ROBUSTNESS.write(same, facts=[], errors=[], out=tmp_path, study_name="Toy", n_resamples=100)
    page = files[-1].read_text()
    assert page.count("Under no kind of disturbance can the two be told apart") == 2
    assert "| few training series | 10 % |" in page
    assert [file.name for file in files] == ["answers.csv", "comparisons.csv", "toy.png", "README.md"]


def test_without_sss_only_uniform_weights_are_compared(saved):
    compared = robust_tables(saved[:3], n_resamples=50)["comparisons"]
    assert set(compared["comparison"]) == {"own weights − uniform weights"}


# What it is about


@pytest.mark.parametrize(
    ("classes", "f1_classes", "expected"),
    [(("a", "b"), (), "auc"), (("a", "b", "c"), ("a", "b"), "f1"), (("a", "b", "c"), (), "accuracy")],
)
def test_the_figure_is_the_one_that_a_study_of_such_classes_is_about(classes, f1_classes, expected):
    result = made_result((), np.zeros((0, len(classes))), classes=classes, f1_classes=f1_classes)
    assert headline(result) == expected
