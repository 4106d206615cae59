"""Tests of faithfulness probes against known outcomes: planted motifs, networks set by hand, plain loops."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import nn

from raxss import RAxSSClassifier, Series, SeriesCollection
from raxss.benchmark.analyses.faithfulness import subject_of
from raxss.benchmark.analyses.faithfulness_control import N_TRAINING, control_model, planted_series
from raxss.benchmark.analyses.mil_adapter import MILModelAdapter
from raxss.benchmark.baselines.mil import MILClassifier
from raxss.errors import ConfigError
from raxss.explain.faithfulness import (
    Plan,
    WindowAttribution,
    measures_of,
    read_marked,
    run_probes,
    statements,
    summarised,
    verdict,
)
from raxss.explain.faithfulness.counterfactual import replaced_windows, smallest_flips
from raxss.explain.faithfulness.deletion import Stretches, alone, delete_and_insert
from raxss.explain.faithfulness.linear_probing import held_features, linear_probe
from raxss.explain.faithfulness.localisation import located, truth_of
from raxss.explain.faithfulness.measures import mean_interval
from raxss.explain.faithfulness.model_adapter import digest_of, gradient_of, integrated_gradients, scrambled
from raxss.explain.faithfulness.perturbation import mean_of, replaced, surrogate
from raxss.explain.faithfulness.randomisation import (
    compared_by,
    layers_from_the_top,
    randomised_network,
    randomised_retrieval,
)
from raxss.explain.faithfulness.running import faithfulness_of
from raxss.explain.faithfulness.stability import changed_a_little
from raxss.explain.faithfulness.timeline import over_stretches, spread

BURST = slice(300, 400)


class Loudness(nn.Module):
    """A network whose output can be worked out by hand: the louder a window, the likelier the second class."""

    def __init__(self, n_variates, window_length, n_outputs):
        super().__init__()
        self.head = nn.Linear(2, n_outputs)

    def features(self, windows):
        kinds = (windows, windows.diff(dim=-1))
        return torch.stack([kind.square().mean(dim=(1, 2)) for kind in kinds], dim=1)

    def logits_of(self, features):
        return self.head(features)

    def forward(self, windows):
        return self.logits_of(self.features(windows))


def bursts(rng, n_series=8):
    """Quiet noise; every other series has a burst at `BURST`."""
    made = []
    for k in range(n_series):
        samples = 0.3 * rng.normal(size=800 + 10 * k)
        if k % 2:
            samples[BURST] *= 8
        made.append(Series(samples, rate=100.0, label=("quiet", "loud")[k % 2], group=f"g{k}", name=f"s{k}"))
    return SeriesCollection(made)


@pytest.fixture
def loud(rng):
    """A model that hears bursts, with a head set by hand, and its series."""
    series = bursts(rng)
    model = RAxSSClassifier(
        Loudness, window_length=40, stride=10, scaling="none", weighting="support", space="signal", temperature=0.1,
        max_epochs=1, validation_fraction=0, random_state=0, device="cpu",
    ).fit(series)  # fmt: skip
    assert list(model.classes_) == ["loud", "quiet"]
    with torch.no_grad():
        model.backbone_.head.weight.copy_(torch.tensor([[-4.0, 0.0]]))
        model.backbone_.head.bias.fill_(1.0)
    return model, series


def attributed(model, series, **options):
    """Adapter of a model, and the attribution of one series."""
    adapter = model.model_adapter()
    return adapter, next(adapter.attributions([series], **options))


@pytest.fixture(scope="module")
def planted():
    """Motifs at known places, and two networks: one that learned them, one as it was drawn."""
    made = planted_series()
    return made, {
        item: control_model(made, trained=item, device="cpu").model_adapter() for item in (True, False)
    }


# Signals ------------------------------------------------------------------------------------------------------


def test_a_sample_has_the_mean_of_the_windows_that_cover_it(rng):
    starts, values = np.arange(0, 90, 7), rng.normal(size=13)
    found = spread(values, starts, window_length=15, n_samples=110)
    for t in range(110):
        over = [value for start, value in zip(starts, values, strict=True) if start <= t < start + 15]
        assert found[t] == pytest.approx(np.mean(over) if over else 0.0)


def test_a_surrogate_keeps_spectra_and_how_variates_go_together(rng):
    samples = rng.normal(size=(3, 401)).cumsum(axis=1)
    samples[1] += samples[0]
    other = surrogate(samples, seed=7)
    before, after = np.fft.rfft(samples), np.fft.rfft(other)
    np.testing.assert_allclose(after[0] * after[1].conj(), before[0] * before[1].conj(), rtol=1e-6, atol=1e-6)
    assert abs(np.corrcoef(samples[2], other[2])[0, 1]) < 0.9
    np.testing.assert_array_equal(other, surrogate(samples, seed=7))


def test_gaps_stay_gaps_where_something_else_is_replaced():
    samples = np.arange(10.0)
    samples[4] = np.nan
    series = Series(samples, gaps_marked=True)
    changed = replaced(series, mean_of(series.samples), np.arange(10) >= 3).samples[0]
    assert np.isnan(changed[4])
    np.testing.assert_allclose(changed[[0, 2, 3, 9]], [0, 2, np.nanmean(samples), np.nanmean(samples)])


# Gradients ----------------------------------------------------------------------------------------------------


def test_integrated_gradients_are_those_of_captum(rng):
    captum = pytest.importorskip("captum.attr")
    from raxss.method.backbones import build_backbone

    torch.manual_seed(0)
    network = build_backbone("convnet", n_variates=2, window_length=64, n_outputs=1).eval()
    windows, baseline = (torch.from_numpy(rng.normal(size=(3, 2, 64))).float() for _ in range(2))

    def gradient(x):
        return gradient_of(lambda leaf: network(leaf).sigmoid().sum(), x, network)

    ours = integrated_gradients(gradient, windows, baseline, n_steps=12)
    theirs = captum.IntegratedGradients(lambda x: network(x).sigmoid()[:, 0]).attribute(
        windows, baselines=baseline, n_steps=12, method="riemann_middle"
    )
    np.testing.assert_allclose(ours, theirs.detach(), atol=1e-6)


def test_attributions_add_up_to_the_change_of_the_score(loud):
    model, series = loud
    adapter, attribution = attributed(model, series[1])
    found = adapter.gradient_attribution(attribution, attribution.predicted, "surrogate", seed=1)
    assert found.found == pytest.approx(found.change, abs=0.02)
    assert found.samples.sum() == pytest.approx(found.found)


def test_a_network_of_fixed_kernels_has_no_gradient(rng):
    series = bursts(rng)
    model = RAxSSClassifier(
        "multiview", backbone_options={"views": ["ppv"], "n_dilations": 2, "n_cuts": 1}, window_length=64,
        stride=32, max_epochs=1, random_state=0, device="cpu",
    ).fit(series)  # fmt: skip
    adapter, attribution = attributed(model, series[0])
    assert adapter.gradient_attribution(attribution, 0, "mean", seed=0) is None
    deleted = delete_and_insert(adapter, attribution, n_steps=2, n_random=1)
    assert "gradient" in deleted.missing
    assert "gradient" not in {curve.order for curve in deleted.curves}


# Deletion -----------------------------------------------------------------------------------------------------


def test_contributions_point_at_the_burst_and_the_score_falls_without_it(loud):
    model, series = loud
    with torch.no_grad():
        model.backbone_.head.weight.copy_(torch.tensor([[-0.4, 0.0]]))  # no posterior is saturated
    adapter, attribution = attributed(model.set_params(weighting="uniform"), series[1])
    class_ = adapter.classes.index("loud")
    stretches = Stretches.of(series[1], 40, seed=0)
    value = over_stretches(attribution.over_time(attribution.contributions(class_)), stretches.edges)
    assert BURST.start <= stretches.edges[int(value.argmax())] < BURST.stop
    falls = attribution.probability[class_] - alone(adapter, stretches, "mean")[:, class_]
    begins, ends = stretches.edges[:-1], stretches.edges[1:]
    inside = (begins >= BURST.start) & (ends <= BURST.stop)
    outside = (ends <= BURST.start) | (begins >= BURST.stop)
    assert falls[inside].min() > 5 * np.abs(falls[outside]).max()


def test_curves_begin_at_the_score_and_end_at_the_baseline_and_have_areas_of_plain_sums(loud):
    model, series = loud
    adapter, attribution = attributed(model, series[1])
    deleted = delete_and_insert(adapter, attribution, n_steps=4, n_random=2)
    blank = series[1].with_samples(mean_of(series[1].samples).astype(np.float32))
    ends = np.array([attribution.probability, adapter.probabilities([blank])[0]])[:, attribution.predicted]
    for curve in deleted.curves:
        steps = np.abs(np.diff(curve.removed))
        assert curve.area == pytest.approx(sum(steps * (curve.scores[1:] + curve.scores[:-1]) / 2))
        if curve.baseline == "mean":
            outer = curve.scores[[0, -1]] if curve.direction == "deletion" else curve.scores[[-1, 0]]
            assert outer == pytest.approx(ends)
    uniform = attributed(model.set_params(weighting="uniform"), series[1])
    assert delete_and_insert(*uniform, n_steps=2, n_random=1).missing == {
        "weight": "all windows weigh the same"
    }
    n_orders = 7  # contribution, posterior, weight, gradient, occlusion, two random
    assert len(deleted.curves) == 2 * 2 * n_orders
    assert deleted.gain("random", "mean") == pytest.approx(0.0)


# Localisation -------------------------------------------------------------------------------------------------


def found_in_planted(made, adapter):
    """Localisation of every held-out series with motifs."""
    class_ = adapter.classes.index("motif")
    held = [k for k in range(N_TRAINING, len(made.series)) if len(made.motif_starts[k])]
    for k, attribution in zip(held, adapter.attributions([made.series[k] for k in held]), strict=True):
        events = [(int(start), made.motif_length) for start in made.motif_starts[k]]
        yield located(attribution, truth_of(events, made.series[k].n_samples), class_)


@pytest.mark.parametrize("trained", [True, False])
def test_contributions_of_a_trained_network_alone_find_planted_motifs(planted, trained):
    made, adapters = planted
    found = list(found_in_planted(made, adapters[trained]))
    area, chance, base_rate = (
        np.mean([getattr(item, name) for item in found]) for name in ("area", "chance", "base_rate")
    )
    if trained:
        assert area >= 0.9
        assert base_rate < 0.4
        assert chance < 0.5
    else:
        assert area < min(base_rate, chance) + 0.1


def test_chance_is_what_the_same_evidence_reaches_with_the_events_moved_in_time(rng):
    values = np.repeat(rng.random(10), 10)  # as smooth as ten windows
    attribution = WindowAttribution(
        series=Series(np.zeros(100)),
        starts=np.arange(0, 100, 10),
        window_length=10,
        posteriors=np.stack([1 - values[::10], values[::10]], axis=1),
        weights=np.full(10, 0.1),
        probability=np.array([0.5, 0.5]),
    )
    truth = truth_of([(40, 10)], 100)
    found = located(attribution, truth, 1)
    moved = [average_precision_score(np.roll(truth, shift), values) for shift in range(1, 100)]
    assert found.area == pytest.approx(average_precision_score(truth, values))
    assert found.chance == pytest.approx(np.mean(moved))
    assert found.chance > found.base_rate + 0.05  # luck comes easily to what is smooth


def test_deletion_tells_a_network_that_learned_from_one_that_did_not(planted):
    made, adapters = planted
    gains = {}
    for trained, adapter in adapters.items():
        some = made.series[N_TRAINING]
        attribution = next(adapter.attributions([some.with_samples(some.samples[:, :1000])]))
        gains[trained] = delete_and_insert(adapter, attribution, n_steps=4, n_random=2).gain(
            "contribution", "mean"
        )
    assert gains[True] > 0.04
    assert abs(gains[False]) < 0.02


def test_marks_of_a_real_recording_land_on_their_channels(shared_data):
    (place,) = (shared_data / "ds003498-clip" / "derivatives").rglob("*_annotations.tsv")
    series = [
        Series(np.zeros(10_000), rate=2000.0, name=f"run:{name}", origin={"channel": name})
        for name in ("IAR2", "IAR3", "none")
    ]
    _, truth = read_marked(place, series)
    assert list(truth) == ["run:IAR2", "run:IAR3"]
    marked = np.flatnonzero(truth["run:IAR2"])
    assert (marked[0], len(marked)) == (9250, 125)  # onset 4.625 s, duration .0625 s


# Randomised -----------------------------------------------------------------------------------------------------


def test_inverted_neighbours_are_the_inverse_weighting_of_the_estimator(loud):
    model, series = loud
    rows = list(randomised_retrieval(model.model_adapter(), series[:3]))
    found = [next(row["probability"] for row in some if row["control"] == "inverted") for some in rows]
    inverse = model.set_params(weighting="inverse").predict_proba(series[:3])
    np.testing.assert_allclose(found, inverse, atol=1e-7)


@pytest.mark.parametrize("space", ["signal", "features"])
def test_neighbours_of_other_series_are_the_best_of_a_plain_loop(loud, space):
    model, series = loud
    model.set_params(space=space, n_neighbors=3)
    adapter = model.model_adapter()
    predictions = list(adapter.predictor.predictions(list(series[:2])))
    rows = [compared_by(adapter.predictor, prediction) for prediction in predictions]
    pairs = np.einsum("wd,wmd->wm", rows[0], rows[0][predictions[0].retrieval.neighbors])
    np.testing.assert_allclose(pairs, predictions[0].retrieval.similarity, atol=1e-6)  # those of retrieval
    support = [np.mean(sorted((float(a @ b) for b in rows[1]), reverse=True)[:3]) for a in rows[0]]
    powers = np.exp((np.array(support) - max(support)) / adapter.predictor.temperature)
    expected = (powers / powers.sum()) @ predictions[0].aggregation.posteriors
    found = {row["control"]: row for row in next(randomised_retrieval(adapter, series[:2]))}
    np.testing.assert_allclose(found["other series"]["probability"], expected, atol=1e-6)


def test_a_cascade_ends_with_every_layer_scrambled(planted):
    made, adapters = planted
    network = adapters[True].network
    names = [name for some in layers_from_the_top(network) for name in some]
    blank = scrambled(network, names, seed=1)
    for (name, before), after in zip(network.named_parameters(), blank.parameters(), strict=True):
        if before.numel() > 100 and before.std() > 0:
            assert not torch.equal(before, after), name
        assert torch.equal(before.flatten().sort().values, after.flatten().sort().values)
    attributions = list(adapters[True].attributions(made.series[N_TRAINING : N_TRAINING + 2]))
    before = digest_of(network)
    last = list(randomised_network(adapters[True], attributions))[-1]
    assert digest_of(network) == before  # a copy was scrambled
    assert np.mean([abs(item["rank_correlation"]) for item in last]) < 0.5
    assert last[0]["share"] == 1.0


# Counterfactuals ------------------------------------------------------------------------------------------------


def test_replacing_the_strongest_window_moves_the_score_and_a_quiet_one_does_not(loud):
    model, series = loud
    with torch.no_grad():
        model.backbone_.head.bias.fill_(0.0)
    adapter, attribution = attributed(model, series[1], with_lists=True)
    falls = {(row["window"], row["by"]): row["fall"] for row in replaced_windows(adapter, attribution)}
    assert set(falls) == {(a, b) for a in ("strongest", "random") for b in ("neighbour", "surrogate", "mean")}
    assert attribution.predicted == adapter.classes.index("loud")
    assert falls["strongest", "mean"] > 2 * abs(falls["random", "mean"])


def test_a_flip_flips_and_needs_each_of_its_stretches(planted):
    made, adapters = planted
    adapter = adapters[True]
    attribution = next(adapter.attributions([made.series[N_TRAINING]]))
    flip = smallest_flips(adapter, attribution, seed=3)["mean"]
    assert flip["flips"]
    stretches = Stretches.of(attribution.series, attribution.window_length, seed=3)
    chosen = np.isin(np.arange(len(stretches)), flip["stretches"])
    changed = adapter.probabilities([stretches.without("mean", chosen)])[0]
    assert changed.argmax() != attribution.predicted
    assert flip["seconds"] == pytest.approx(stretches.shares[chosen].sum() * attribution.series.seconds)
    last = flip["stretches"][0]
    fewer = chosen & (np.arange(len(stretches)) != last)
    assert adapter.probabilities([stretches.without("mean", fewer)])[0].argmax() == attribution.predicted


# Stability, features --------------------------------------------------------------------------------------------


def test_evidence_stays_in_its_place_when_windows_begin_elsewhere(loud):
    model, series = loud
    adapter, attribution = attributed(model, series[1])
    rows = {row["change"]: row for row in changed_a_little(adapter, attribution, other=adapter)}
    assert rows["another seed"]["rank_correlation"] == 1.0  # it is the same model
    assert rows["1 % noise"]["rank_correlation"] > 0.95
    assert rows["offset of half a stride"]["top_overlap"] >= 0.6


def test_a_layer_that_is_a_property_holds_it(loud, rng):
    model, series = loud
    rows = held_features(model.model_adapter(), series, [item.group for item in series])
    r2 = {row["property"]: row["r2"] for row in rows if row["layer"] == "features"}
    assert r2["amplitude"] > 0.5 > r2["power 4-8 Hz"]
    layer, noise = rng.normal(size=(200, 5)), rng.normal(size=(200, 1))
    assert linear_probe(layer, layer[:, :1] * 3 + 1, np.arange(200) // 20)[0] > 0.99
    assert linear_probe(layer, noise, np.arange(200) // 20)[0] < 0.1


# Intervals, verdicts ----------------------------------------------------------------------------------------------


def test_an_interval_is_that_of_plain_draws_of_groups(rng):
    values, groups = rng.normal(size=30), np.arange(30) // 3
    mean, low, high = mean_interval(values, groups.tolist())
    draws = []
    for _ in range(3000):
        picked = rng.integers(10, size=10)
        draws.append(np.mean([values[groups == item].mean() for item in picked]))
    assert mean == pytest.approx(values.mean())
    assert (low, high) == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=0.05)


@pytest.mark.parametrize(
    ("accuracy", "gain", "left", "word"),
    [
        ((0.9, 0.8, 1.0), (0.1, 0.05, 0.15), (0.1, 0.0, 0.2), "faithful"),
        ((0.9, 0.8, 1.0), (0.01, 0.005, 0.015), (0.1, 0.0, 0.2), "unfaithful"),
        ((0.9, 0.8, 1.0), (0.1, 0.05, 0.15), (0.8, 0.7, 0.9), "unfaithful"),
        ((0.6, 0.4, 0.8), (0.1, 0.05, 0.15), (0.1, 0.0, 0.2), "partly faithful"),
        ((0.6, np.nan, np.nan), (0.1, np.nan, np.nan), (0.1, np.nan, np.nan), "undecided"),
    ],
)
def test_the_verdict_follows_from_three_numbers(accuracy, gain, left, word):
    import pandas as pd

    numbers = {
        ("decision", "model", "balanced accuracy"): accuracy,
        ("deletion", "surrogate, contribution", "gain"): gain,
        ("deletion", "mean, contribution", "gain"): gain,
        ("network", "step 8", "rank_correlation, size"): left,
    }
    columns = ("probe", "of", "measure", "mean", "low", "high")
    summary = pd.DataFrame(
        [dict(zip(columns, (*key, *value), strict=True)) for key, value in numbers.items()]
    )
    assert verdict(statements(summary))[0] == word


# Many series ------------------------------------------------------------------------------------------------------


def test_what_is_done_is_not_done_again_and_another_model_begins_anew(loud, tmp_path):
    model, series = loud
    plan = Plan(n_series=4, probes=("stability", "counterfactual", "retrieval", "network", "features"))
    first = run_probes(model.model_adapter(), series, tmp_path, plan=plan, quiet=True)
    files = {item: item.stat().st_mtime_ns for item in tmp_path.rglob("*.json")}
    assert len(files) == 4 + 4 + 3 + 1
    lost = next(file for file in files if "stability" in file.parts)
    lost.write_text("{")  # as if the disk had lost it
    again = run_probes(model.model_adapter(), series, tmp_path, plan=plan, quiet=True)
    changed = [file for file, when in files.items() if file.stat().st_mtime_ns != when]
    assert changed == [lost]
    assert (again.by_series, again.of_all, again.series) == (first.by_series, first.of_all, first.series)
    with torch.no_grad():
        model.backbone_.head.bias.fill_(3.0)
    run_probes(
        model.model_adapter(), series, tmp_path, plan=Plan(n_series=4, probes=("stability",)), quiet=True
    )
    assert len(list((tmp_path / "parts").glob("*/"))) == 2


def test_parts_that_raxss_0_1_left_are_taken_up(loud, tmp_path):
    model, series = loud
    plan = Plan(n_series=3, probes=("stability", "features"))
    first = run_probes(model.model_adapter(), series, tmp_path, plan=plan, quiet=True)
    for place in tmp_path.rglob("*.json"):  # which had neither key nor seal
        place.write_text(json.dumps({"answer": json.loads(place.read_text())["answer"]}, indent=2) + "\n")
    files = {place: place.stat().st_mtime_ns for place in tmp_path.rglob("*.json")}
    again = run_probes(model.model_adapter(), series, tmp_path, plan=plan, quiet=True)
    assert {place: place.stat().st_mtime_ns for place in tmp_path.rglob("*.json")} == files
    assert (again.by_series, again.of_all, again.series) == (first.by_series, first.of_all, first.series)


def test_measures_have_the_balanced_accuracy_of_the_model(loud, tmp_path):
    from sklearn.metrics import balanced_accuracy_score

    model, series = loud
    parts = run_probes(
        model.model_adapter(), series[:7], tmp_path, plan=Plan(probes=("stability",)), quiet=True
    )
    summary = summarised(measures_of(parts)).set_index(["probe", "of", "measure"])["mean"]
    expected = balanced_accuracy_score(series[:7].labels, model.predict(series[:7]))
    assert summary["decision", "model", "balanced accuracy"] == pytest.approx(expected)
    with pytest.raises(ConfigError, match=r"'deletions'; did you mean 'deletion'"):
        Plan(probes=("deletions",))
    with pytest.raises(ConfigError, match="a list shows no windows"):
        subject_of([])


# One series, pooled windows ---------------------------------------------------------------------------------------


def test_evidence_is_tested_with_its_own_model_alone(loud):
    model, series = loud
    evidence = model.explain(series[1])
    found = evidence.faithfulness(model)
    assert found.predicted == evidence.predicted
    assert "SeriesFaithfulness('s1')" in repr(found)
    assert found.gains().loc["occlusion", "mean"] >= found.gains().loc["weight", "mean"]
    model.set_params(temperature=0.3)
    with pytest.raises(ConfigError, match=r"'s1' was made with the settings"):
        evidence.faithfulness(model)


@pytest.mark.parametrize("pooling", ["attention", "conjunctive"])
def test_models_that_pool_windows_can_be_probed(pooling, rng):
    series = bursts(rng)
    model = MILClassifier(
        pooling, backbone="convnet", window_length=64, stride=32, max_epochs=1, random_state=0, device="cpu"
    ).fit(series)
    adapter = MILModelAdapter.of(model)
    for attribution, expected in zip(
        adapter.attributions(series[:3]), model.predict_proba(series[:3]), strict=True
    ):
        np.testing.assert_allclose(attribution.probability, expected, atol=1e-6)
    before = digest_of(model.backbone_)
    found = faithfulness_of(adapter, series[0], n_steps=2, n_random=1)
    assert digest_of(model.backbone_) == before
    assert model.stride == 32
    assert found.retrieval.empty
    assert set(found.gains().index) == {"contribution", "weight", "posterior", "gradient", "occlusion"}
    gradients = adapter.gradient_attribution(next(adapter.attributions([series[1]])), 0, "surrogate", seed=0)
    assert gradients.found == pytest.approx(gradients.change, abs=0.1 * abs(gradients.change) + 1e-3)
