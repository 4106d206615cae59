"""Tests of many perturbed copies at once against one after the other: windows, lists, scores, decisions."""

import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import naive
from raxss import RAxSSClassifier, Series
from raxss.benchmark.analyses.faithfulness import Faithfulness, another_seed, with_seed
from raxss.benchmark.analyses.mil_adapter import MILModelAdapter
from raxss.benchmark.baselines.mil import MILClassifier
from raxss.benchmark.runs import fit_run, plan_run
from raxss.benchmark.study import Study
from raxss.benchmark.table import Work, opened
from raxss.explain.faithfulness import perturbed_series as many_copies
from raxss.explain.faithfulness.counterfactual import without_needless
from raxss.explain.faithfulness.deletion import Stretches
from raxss.explain.faithfulness.gradients import integrated_gradients
from raxss.explain.faithfulness.model_adapter import digest_of
from raxss.explain.faithfulness.perturbed_series import distinct_windows, probabilities_of_copies
from raxss.method.retrieval.blocked import nearest_by_blocks
from raxss.method.retrieval.on_torch import nearest_by_one_product, nearest_of_each
from raxss.method.retrieval.search import search_features, search_signal
from raxss.method.windows import windows_of


def short_series(n_series=8):
    """Of two lengths and classes, which differ by how loud they are."""
    rng = np.random.default_rng(7)
    noise = [(1 + k % 2) * rng.normal(size=300 + 40 * (k % 3 == 1)) for k in range(n_series)]
    return [Series(samples, rate=100.0, label="ab"[k % 2], name=f"s{k}") for k, samples in enumerate(noise)]


def copies_of(series, rng, n=9):
    """The series, and copies with some stretches replaced; one with nothing left of it."""
    stretches = Stretches.of(series, 64, seed=3)
    chosen = [rng.random(len(stretches)) < share for share in np.linspace(0, 1, n)]
    return [stretches.without(name, item) for name in stretches.baselines for item in chosen]


def model_of(series, **settings):
    plain = {"window_length": 64, "stride": 24, "max_epochs": 1, "validation_fraction": 0, "random_state": 0}
    return RAxSSClassifier("dlinear", **{**plain, **settings}, device="cpu").fit(series)


def one_by_one(predictor, copies):
    """The slow twin: each copy predicted as if it were the only one."""
    found = [next(predictor.predictions([copy], with_lists=False)) for copy in copies]
    return np.stack([item.aggregation.series_probability for item in found])


# Windows ------------------------------------------------------------------------------------------------------


def test_windows_are_the_same_where_their_bytes_are(rng):
    samples = rng.normal(size=(2, 300)).astype(np.float32)
    samples[:, 50] = np.nan
    copies = copies_of(Series(samples, gaps_marked=True), rng)
    cut = [windows_of(copy, window_length=64, stride=10) for copy in copies]
    distinct = distinct_windows(cut)
    plain = np.nan_to_num(np.stack([windows.samples for windows in cut]))
    assert_array_equal(distinct.places, naive.distinct_places(plain))
    assert len(distinct) == distinct.places.max() + 1 < distinct.places.size
    seen = torch.cat([windows for _, windows in distinct.passes(torch.device("cpu"))]).numpy()
    assert_array_equal(seen[distinct.places], plain)


def test_a_single_bit_makes_another_window():
    """Also the sign, which is the highest bit: most of a sum that wraps around would not notice it."""
    samples = np.zeros((1, 100), dtype=np.float32)
    copies = [Series(samples)]
    for bit in range(32):
        other = samples.copy()
        other.view(np.uint32)[0, 50] ^= np.uint32(1) << np.uint32(bit)
        if np.isfinite(other).all():
            copies.append(Series(other))
    found = distinct_windows([windows_of(item, window_length=100, stride=1) for item in copies])
    assert len(found) == len(copies) > 25


# Scores -------------------------------------------------------------------------------------------------------

SETTINGS = {
    "signal": {"space": "signal", "scaling": "train"},
    "features": {"space": "features", "scaling": "train"},
    "scaled by themselves": {"space": "features", "scaling": "series", "smoothing": 0.3},
    "gated": {
        "space": "features",
        "weighting": "gated",
        "projection": 3,
        "series_loss_weight": 1.0,
        "refresh": "batch",
    },
    "uniform": {"weighting": "uniform"},
    "shuffled": {"space": "features", "weighting": "shuffled"},
    "calibrated": {"space": "signal", "calibration": "isotonic", "validation_fraction": 0.4},
    "padded": {"window_length": 400},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_copies_at_once_have_the_scores_of_one_after_the_other(name, rng):
    series = short_series(12)
    predictor = model_of(series, **SETTINGS[name]).predictor()
    copies = [*copies_of(series[0], rng), *copies_of(series[1], rng, n=3)]  # of two lengths
    found = probabilities_of_copies(predictor, copies)
    assert_allclose(found, one_by_one(predictor, copies), atol=2e-6)
    assert np.ptp(found[:, 0]) > 1e-4  # they do differ


def test_portions_change_no_score(rng, monkeypatch):
    series = short_series()
    predictor = model_of(series, space="features").predictor()
    copies = copies_of(series[0], rng)
    whole = probabilities_of_copies(predictor, copies)
    n = predictor.n_windows(series[0])
    monkeypatch.setattr(many_copies, "FEATURE_BYTES", 8 * len(predictor.feature_mean) * 2 * n)  # two copies
    assert_allclose(probabilities_of_copies(predictor, copies), whole, atol=2e-6)
    monkeypatch.setattr(many_copies, "WINDOWS_AT_ONCE", n - 1)  # each is too long to be held
    assert_allclose(probabilities_of_copies(predictor, copies), whole, atol=2e-6)


@pytest.mark.parametrize("pooling", ["attention", "conjunctive"])
def test_attention_pools_copies_at_once_as_it_does_one_after_the_other(pooling, rng):
    series = short_series()
    model = MILClassifier(
        pooling, backbone="convnet", window_length=64, stride=24, max_epochs=1, random_state=0, device="cpu",
        scaling="train",
    ).fit(series)  # fmt: skip
    samples = np.array(series[0].samples)
    samples[:, 40] = np.nan
    gappy = Series(samples, rate=series[0].rate, gaps_marked=True)
    copies = [*copies_of(series[0], rng), *copies_of(gappy, rng, n=4)]
    assert_allclose(MILModelAdapter.of(model).probabilities(copies), model._probabilities(copies), atol=2e-6)


# Neighbours ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exclusion", [0, 40])
@pytest.mark.parametrize("spread", [0, 20])
@pytest.mark.parametrize("reach", [None, 9])
def test_one_product_lists_what_blocks_list(exclusion, spread, reach, rng):
    searches = []
    for k in range(5):
        samples = rng.integers(-2, 3, size=(1, 300)).astype(float)  # few values: many ties
        if k == 1:
            samples[0, 100:180] = 1.0  # flat
        if k == 2:
            samples[0, 30] = np.nan
        signal = search_signal(
            samples, window_length=40, stride=10, measure="pearson", bank=np.arange(20) if k == 3 else None,
            n_neighbors=30, exclusion=exclusion, spread=spread, reach=reach,
        )  # fmt: skip
        features = rng.integers(-1, 2, size=(signal.n_windows, 6)).astype(float)
        searches.append(search_features(features, signal, measure="cosine"))
    plain = [nearest_by_blocks(search) for search in searches]
    for found in (nearest_by_one_product(searches, torch.device("cpu")), nearest_of_each(searches, "cpu")):
        for (similarity, neighbors), (expected, near) in zip(found, plain, strict=True):
            assert_array_equal(neighbors, near)
            assert_array_equal(similarity, expected)


# Decisions and gradients --------------------------------------------------------------------------------------


def test_stretches_that_are_decided_in_batches_go_as_one_after_the_other():
    for seed in range(200):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 12))
        value, bound = rng.normal(size=n), rng.normal()

        def still_flips(some, value=value, bound=bound):
            return np.array([value[item].sum() + (item[::2].sum() % 2) > bound for item in some])

        chosen, candidates = np.ones(n, dtype=bool), rng.permutation(n)
        found = without_needless(chosen, candidates, still_flips)
        assert_array_equal(found, naive.without_needless(chosen, candidates, still_flips))
        assert chosen.all()


def test_steps_at_once_have_the_gradients_of_one_after_the_other(rng):
    windows, baseline = (torch.from_numpy(rng.normal(size=(3, 2, 8))) for _ in range(2))
    whole = [
        integrated_gradients(lambda x: x**3, windows, baseline, n_steps=16, at_once=n) for n in (1, 5, 16, 40)
    ]
    for item in whole[1:]:
        assert_allclose(item, whole[0], rtol=1e-12)


# Studies ------------------------------------------------------------------------------------------------------

STUDY = """
systems = ["small"]
seeds = [1, 2]
training = { max_epochs = 1 }
[dataset]
data = "synthetic"
windows = { window_length = 256, stride = 128 }
[system.small]
base = "sss"
backbone = "dlinear"
"""


def test_a_study_probes_the_same_fold_fitted_with_another_seed(tmp_path):
    analysis = Faithfulness(n_series=2, probes=("stability",), controls=False)
    analysis.run_study(Study.from_toml(STUDY), tmp_path, work=Work(device="cpu"))
    (kept,) = tmp_path.glob("*/models/*.json")
    answer = json.loads(kept.read_text("utf-8"))["answer"]
    assert answer["about"]["seed"] == 1
    assert answer["about"]["other_seed"] == 2
    rows = {item["change"]: item for item in answer["by_series"]["stability"][0]}
    assert rows["another seed"]["moved"] > 0  # it is another model


def test_another_seed_changes_weights_but_neither_split_nor_cell(tmp_path):
    study = Study.from_toml(STUDY)
    with opened(study, tmp_path, work=Work(device="cpu")) as table:
        view, system = table.rows(["small"])[0]
        cell, next_cell = (plan_run(study, view, system, seed, tmp_path) for seed in (1, 2))
        other = with_seed(cell, another_seed(study, 1))
        assert (other.seed, other.split) == (2, cell.split)
        # the table's second seed is another fold
        assert next_cell.split.test.tolist() != cell.split.test.tolist()
        assert plan_run(study, view, system, 1, tmp_path).config_hash == cell.config_hash
        (model, test), (second, same) = fit_run(cell), fit_run(other)
        assert test.names == same.names
        assert digest_of(model.backbone_) != digest_of(second.backbone_)
