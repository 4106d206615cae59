"""Gate and projection: their formulas and gradients, and that prediction uses what was trained."""

import json
import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.preprocessing import StandardScaler
from torch import nn

import naive
from raxss import RAxSSClassifier, Series, SeriesCollection
from raxss.benchmark.analyses.reweighting import Cross, reweigh
from raxss.errors import ConfigError, ModelError, ModelWarning
from raxss.estimator.config import Config
from raxss.estimator.fit import fresh_learner, support_in_batch
from raxss.method.aggregation import aggregate
from raxss.method.backbones import logits_and_features
from raxss.method.feature_heads import FeatureHeads, Gate, heads_in_use
from raxss.method.retrieval.batch import batch_support
from raxss.method.training.step import batch_influence
from raxss.method.training.window_pool import Batch
from raxss.method.weighting import WEIGHTINGS, influence
from resealed import facts_of, reseal
from toys import NETWORK, Headed, Plain, StopAfter, assert_same_bits, waves, weights_of

GATED = [name for name, item in WEIGHTINGS.items() if item.needs_gate]
SERIES_LOSS = NETWORK | {"series_loss_weight": 1.0, "exclusion": 8, "scaling": "none", "lr": 1e-2}
IN_FEATURES = SERIES_LOSS | {"space": "features"}
LEARNED = {
    "gate on the signal": SERIES_LOSS | {"weighting": "gated"},
    "gate and batch bank": SERIES_LOSS | {"weighting": "gated", "bank": "batch", "batch_size": 128},
    "support by epoch": IN_FEATURES | {"refresh": "epoch", "temperature": "learned"},
    "gate by epoch": IN_FEATURES | {"weighting": "gated", "refresh": "epoch"},
    "batch": IN_FEATURES | {"refresh": "batch", "temperature": "learned", "batch_size": 128},
    "inverse": IN_FEATURES | {"refresh": "batch", "weighting": "inverse", "batch_size": 128},
    "projection": IN_FEATURES | {"refresh": "batch", "projection": 3, "batch_size": 128},
    "all": IN_FEATURES
    | {
        "refresh": "batch",
        "projection": 5,
        "weighting": "gated",
        "temperature": "learned",
        "batch_size": 128,
    },
}


def fit(settings, series, **changes):
    return RAxSSClassifier(**settings | {"max_epochs": 3} | changes).fit(series[:12], validation=series[12:])


@pytest.fixture(scope="module")
def series():
    return waves(np.random.default_rng(8), 18)


@pytest.fixture(scope="module")
def fitted(series):
    """One model a kind, fitted when first used."""
    models = {}

    def model(kind):
        if kind not in models:
            models[kind] = fit(LEARNED[kind], series)
        wanted = {name: value for name, value in LEARNED[kind].items() if name != "max_epochs"}
        return models[kind].set_params(**{"weighting": "support", "smoothing": 0.0, "projection": 0} | wanted)

    return model


# The heads themselves -----------------------------------------------------------------------------------------


def test_the_gate_is_its_formula(rng):
    gate = Gate(5).double()
    nn.init.normal_(gate.total.weight)
    features = rng.normal(size=(7, 5))
    weights = {name: value.detach().numpy() for name, value in gate.named_parameters()}
    for row, found in zip(features, gate(torch.from_numpy(features)).tolist(), strict=True):
        expected = 0.0
        for unit, factor in enumerate(weights["total.weight"][0]):
            what = math.tanh(math.fsum(weights["what.weight"][unit] * row) + weights["what.bias"][unit])
            whether = math.fsum(weights["whether.weight"][unit] * row) + weights["whether.bias"][unit]
            expected += factor * what / (1 + math.exp(-whether))
        assert found == pytest.approx(expected, abs=1e-12)


def test_heads_begin_where_nothing_was_learned(rng):
    heads = FeatureHeads(16, projection=16, gated=True)
    features = torch.from_numpy(rng.normal(size=(9, 16))).float()
    assert not heads.gate(features).any()
    own, mapped = (nn.functional.normalize(item, dim=1) for item in (features, heads.compared(features)))
    torch.testing.assert_close(mapped @ mapped.T, own @ own.T, atol=1e-5, rtol=0)  # the same cosines
    assert FeatureHeads(16).compared(features) is features


def test_features_are_standardised_by_the_last_moments_given(rng):
    heads = FeatureHeads(3).eval()
    place = heads.mean.data_ptr()
    heads.standardise_by(torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([1.0, 2.0, 4.0]).double())
    assert heads.standardised(torch.tensor([[2.0, 2.0, 1.0]])).tolist() == [[1.0, 0.0, -0.5]]
    assert heads.mean.data_ptr() == place
    assert not heads.state_dict()  # moments follow from the weights


def test_a_batch_is_standardised_as_sklearn_does_and_its_gradient_is_that_of_finite_differences(rng):
    features = torch.from_numpy(rng.normal(size=(9, 4)) * [1.0, 20.0, 0.3, 5.0] + 100.0).requires_grad_()
    heads = FeatureHeads(4).double().train()
    expected = StandardScaler().fit_transform(features.detach().numpy())
    assert_allclose(heads.standardised(features).detach(), expected, atol=1e-4)
    assert torch.autograd.gradcheck(heads.standardised, (features,))


@pytest.mark.parametrize("n_windows", [1, 2, 5])
def test_features_that_do_not_change_within_a_batch_become_0_and_have_finite_gradients(n_windows):
    heads = FeatureHeads(3, projection=2, gated=True).train()
    nn.init.ones_(heads.gate.total.weight)
    features = torch.tensor([[0.1, -7.0, 1e-30]]).repeat(n_windows, 1).requires_grad_()
    seen = heads.standardised(features)
    assert_allclose(seen.detach(), np.zeros((n_windows, 3)), atol=1e-6)
    (heads.gate(seen).sum() + heads.compared(seen).sum()).backward()
    assert features.grad.isfinite().all()
    assert features.grad.abs().max() < 10


def test_a_projection_wider_than_the_features_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"projection is 9, but the network has 8 features"):
        FeatureHeads(8, projection=9)


class Halved(Headed):
    def forward(self, windows):
        return super().forward(windows) / 2


class HalvedAgain(Halved):
    pass


class BothHalved(Halved):
    def logits_of(self, features):
        return self.linear(features) / 2

    def forward(self, windows):
        return self.logits_of(self.features(windows))


@pytest.mark.parametrize(
    ("kind", "n_passes"), [(Plain, 1), (Headed, 1), (Halved, 2), (HalvedAgain, 2), (BothHalved, 1)]
)
def test_logits_are_those_of_the_forward_that_a_network_has(kind, n_passes):
    network, windows, passes = kind(1, 8, 1), torch.randn(4, 1, 8), []
    expected = network(windows)
    plain = network.features
    network.features = lambda windows: passes.append(1) or plain(windows)
    logits, features = logits_and_features(network, windows)
    assert len(passes) == n_passes  # of `features`
    assert torch.equal(features, windows[:, 0])
    assert torch.equal(logits, expected)
    network.forward = lambda windows: windows.sum(dim=2)  # on the network itself
    assert torch.equal(logits_and_features(network, windows)[0], windows.sum(dim=2))


# Gradients through support ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_support_within_a_batch_has_the_gradient_of_the_plain_loop(seed):
    rng = np.random.default_rng(seed)
    n = 14
    vectors = torch.from_numpy(rng.normal(size=(n, 4))).requires_grad_()
    twin = vectors.detach().clone().requires_grad_()
    series, starts = torch.from_numpy(rng.integers(0, 4, n)), torch.from_numpy(rng.integers(0, 60, n) * 3)
    flat = torch.from_numpy(rng.random(n) < 0.15)
    found = batch_support(
        vectors[:, None], series, starts, flat, measure="cosine", n_neighbors=3, exclusion=30, n_series=5
    )
    expected = naive.batch_support(twin, series.tolist(), starts.tolist(), flat.tolist(), 3, 30)
    assert found.dtype == torch.float64
    assert_allclose(found.detach(), expected.detach(), atol=1e-12)
    factors = torch.from_numpy(rng.normal(size=n))
    (found * factors).sum().backward()
    (expected * factors).sum().backward()
    assert_allclose(vectors.grad, twin.grad, atol=1e-12)
    assert vectors.grad.any()


def test_gradients_reach_projection_gate_and_features_as_finite_differences_say(rng):
    heads = FeatureHeads(6, projection=2, gated=True).double()
    nn.init.normal_(heads.gate.total.weight)
    config = Config.from_parameters(
        {"space": "features", "refresh": "batch", "weighting": "gated", "n_neighbors": 2}
    )
    support = support_in_batch(config, 4, n_series=2)
    series = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    starts, flat = torch.arange(7) * 100, torch.zeros(7, dtype=torch.bool)
    batch = Batch(torch.zeros(7, 1, 4), series, starts, torch.zeros(7), flat)
    features = torch.from_numpy(rng.normal(size=(7, 6))).requires_grad_()

    def influence_of(features, *_):
        return batch_influence(heads, batch, features, support)

    assert torch.autograd.gradcheck(influence_of, (features, *heads.parameters()))
    influence_of(features).sum().backward()
    assert heads.projection.weight.grad.any()
    assert heads.gate.total.weight.grad.any()


# Through the estimator ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LEARNED)
def test_the_loss_that_chose_the_epoch_is_that_of_what_is_predicted(fitted, series, kind):
    model = fitted(kind)
    truth = [model.classes_.tolist().index(item.label) for item in series[12:]]
    picked = model.predict_proba(series[12:])[np.arange(6), truth]
    noted = model.history_.set_index("epoch").loc[model.best_epoch_, "validation_loss"]
    assert -np.log(picked).mean() == pytest.approx(noted, abs=2e-5)
    learned = LEARNED[kind].get("temperature") == "learned"
    assert (model.temperature_ != pytest.approx(0.1)) == learned


@pytest.mark.parametrize(
    "kind", [kind for kind in LEARNED if kind != "support by epoch"]
)  # which has no heads
def test_requested_heads_are_learned_and_the_same_seed_learns_the_same(fitted, series, kind):
    model, settings = fitted(kind), LEARNED[kind]
    again = fit(settings, series)
    fresh, _ = fresh_learner(again.config, 1, 32, 2, seed=0)
    start, end, twin = (weights_of(item) for item in (fresh.heads, model.heads_, again.heads_))
    assert_same_bits(end, twin)
    assert set(start) == set(end)
    for name in end:
        assert not torch.equal(start[name].double(), end[name]), name
    assert ("projection.weight" in end) == ("projection" in settings)
    assert ("gate.total.weight" in end) == (settings.get("weighting") == "gated")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"weighting": "gated"}, "the gate"),
        ({"temperature": "learned"}, "the temperature"),
        ({"space": "features", "refresh": "batch"}, "support in feature space"),
        (LEARNED["all"], "support in feature space and the gate and the temperature"),
        ({}, None),  # posteriors learn from single windows too
        ({"bank": "batch"}, None),
        ({"temperature": "learned", "series_loss_weight": 0.0}, None),
        ({"weighting": "gated", "batch_size": 60}, None),
        ({"weighting": "gated", "batch_size": 10_000}, None),
    ],
)
def test_batches_with_few_windows_of_a_series_are_warned_of_where_weights_learn(
    series, caplog, changes, named
):
    settings = (
        SERIES_LOSS | {"batch_size": 12} | {k: v for k, v in changes.items() if (k, v) != ("batch_size", 128)}
    )
    with caplog.at_level("WARNING", logger="raxss"):
        fit(settings, series, max_epochs=1)
    if named is None:
        assert "alone" not in caplog.text
        return
    counts = np.array([(item.n_samples - 32) // 8 + 1 for item in series[:12]])
    alone = sum(n / counts.sum() * (1 - n / counts.sum()) ** 11 for n in counts)
    assert f"with batch_size=12 some {100 * alone:.0f} % of the windows are alone" in caplog.text
    assert f"nothing about {named}. Set batch_size to 60 or more." in caplog.text


@pytest.mark.parametrize("kind", ["gate on the signal", "gate by epoch", "all"])
def test_a_run_that_was_killed_and_resumed_ends_bit_for_bit_where_it_would_have(
    fitted, series, kind, tmp_path
):
    whole, path = fitted(kind), tmp_path / "run.checkpoint"
    settings = LEARNED[kind] | {"max_epochs": 3}
    parts = {"validation": series[12:], "checkpoint": path}
    with pytest.raises(SystemExit):
        RAxSSClassifier(**settings, callbacks=[StopAfter(2)]).fit(series[:12], **parts)
    resumed = RAxSSClassifier(**settings).fit(series[:12], **parts, resume=True)
    assert_same_bits(weights_of(resumed.backbone_), weights_of(whole.backbone_))
    assert_same_bits(weights_of(resumed.heads_), weights_of(whole.heads_))
    assert_array_equal(resumed.predict_proba(series), whole.predict_proba(series))


@pytest.mark.parametrize("kind", ["gate on the signal", "gate by epoch", "all"])
def test_evidence_of_a_gated_model_adds_up(fitted, series, kind):
    model = fitted(kind)
    for item, probability in zip(series[:3], model.predict_proba(series[:3]), strict=True):
        evidence = model.explain(item)
        table = evidence.windows
        assert_allclose(table["influence"], table["support"] + table["gate"], atol=1e-15)
        assert_allclose(
            table["weight"],
            naive.window_weights(table["influence"], evidence.settings["temperature"]),
            atol=1e-12,
        )
        sums = [table[f"contribution_{name}"].sum() for name in model.classes_]
        assert_allclose(sums, probability, atol=1e-12)
        assert table["gate"].std() > 0
        assert evidence.settings.get("projection", 0) == model.projection
        assert any("gate that was learned from labels" in line for line in evidence.warnings)
        without = model.set_params(weighting="support").explain(item).windows
        assert "gate" not in without
        assert_array_equal(without["support"], table["support"])
        model.set_params(weighting="gated")


def test_a_gate_has_its_inverted_and_shuffled_twins(fitted, series):
    model = fitted("gate on the signal")
    table = model.explain(series[0]).windows
    posteriors = table[[f"posterior_{name}" for name in model.classes_]].to_numpy()
    weights = naive.window_weights((-table["influence"]).tolist(), 0.1)
    inverse = model.set_params(weighting="gated-inverse").explain(series[0])
    assert_allclose(inverse.series_probability, naive.series_probability(weights, posteriors), atol=1e-12)
    assert any("do worse if the gate means anything; this" in line for line in inverse.warnings)
    shuffled = model.set_params(weighting="gated-shuffled").explain(series[0])
    assert_allclose(np.sort(shuffled.windows["influence"]), np.sort(table["influence"]), atol=0)
    assert not np.array_equal(shuffled.windows["influence"], table["influence"])
    assert any("the lists do not explain the weights" in line for line in shuffled.warnings)
    assert shuffled.leaderboard(0)["weight_without"].isna().all()


def test_reweighting_knows_the_gate_and_the_projection(fitted, series):
    model = fitted("all").set_params(temperature=0.1)
    cross = Cross(weightings=["support", "gated"], exclusions=[8], temperatures=[0.05], smoothings=[0.25])
    table = reweigh(model, series[12:], cross)
    assert set(table["weighting"]) == {"uniform", "support", "inverse", "shuffled", *GATED}
    settings = ["space", "weighting", "temperature"]
    for _, rows in table[(table["pooling"] == "mean") & (table["weighting"] != "uniform")].groupby(settings):
        model.set_params(**rows[settings].iloc[0].to_dict(), smoothing=0.25)
        found = rows.filter(like="probability_").to_numpy()
        assert_allclose(found, model.predict_proba(series[12:]), atol=1e-12)
    plain = fitted("batch")
    with pytest.raises(ConfigError, match="fitted without a gate"):
        reweigh(plain, series[12:], cross)


def test_a_gate_learns_which_windows_matter():
    """Bursts in a fifth of the windows tell the class; retrieval alone favours the hum between them."""
    rng = np.random.default_rng(3)
    bags, bursts = [], []
    for index in range(40):
        hum = np.sin(0.4 * np.arange(640)) + 0.1 * rng.normal(size=640)
        start, kind = 32 * int(rng.integers(0, 16)), index % 2
        burst = np.sign(np.sin((0.5 + kind) * np.arange(128)))
        hum[start : start + 128] = 3 * burst * rng.uniform(0.5, 1.5, 128)
        bags.append(Series(hum, label=("slow", "fast")[kind], name=f"bag {index}"))
        bursts.append((start, start + 128))
    bags = SeriesCollection(bags)
    settings = NETWORK | {
        "stride": 32,
        "weighting": "gated",
        "max_epochs": 20,
        "batch_size": 256,
        "patience": 0,
    }
    settings |= {"series_loss_weight": 1.0, "window_loss_weight": 0.0, "lr": 1e-2, "warmup_steps": 5}
    settings |= {"validation_fraction": 0, "scaling": "none", "backbone_options": {"width": 4}}
    model = RAxSSClassifier(**settings).fit(bags[:28])
    shares = {}
    for weighting in ("support", "gated"):
        model.set_params(weighting=weighting)
        share = []
        for bag, (begin, end) in zip(bags[28:], bursts[28:], strict=True):
            table = model.explain(bag).windows
            inside = (table["start_s"] >= begin / bag.rate) & (table["end_s"] <= end / bag.rate)
            share.append(table["weight"][inside].sum())
        shares[weighting] = np.mean(share)
    assert shares["support"] < 0.1  # equal weights would give them a fifth
    assert shares["gated"] > 0.35


# Keeping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gate on the signal", "projection", "all"])
def test_a_model_with_heads_comes_back_as_it_went(fitted, series, kind, tmp_path):
    model = fitted(kind)
    folder = model.save_pretrained(tmp_path / "model")
    again = RAxSSClassifier.from_pretrained(folder, device="cpu")
    assert_array_equal(again.predict_proba(series), model.predict_proba(series))
    assert again.current_config.hash == model.current_config.hash
    assert_same_bits(weights_of(again.heads_), weights_of(model.heads_))
    if "projection" in LEARNED[kind]:
        assert f"projection to\n  {model.projection} dimensions" in (folder / "README.md").read_text()


def test_what_was_learned_can_be_switched_off_and_on_but_nothing_else(fitted, series, tmp_path):
    model = fitted("all")
    on = model.predict_proba(series)
    off = model.set_params(projection=0, weighting="support").predict_proba(series)
    assert np.abs(on - off).max() > 1e-6
    folder = model.save_pretrained(tmp_path / "model")
    again = RAxSSClassifier.from_pretrained(folder, device="cpu")
    assert_array_equal(again.predict_proba(series), off)
    assert_array_equal(again.set_params(projection=5, weighting="gated").predict_proba(series), on)
    for change, message in (
        ({"projection": 4}, r"projection is 4, but the model was fitted with projection = 5"),
        ({"weighting": "gated"}, r"weighting is 'gated', but the model was fitted without a gate"),
    ):
        other = again if "projection" in change else fitted("projection")
        with pytest.raises(ConfigError, match=message):
            other.set_params(**change).predict_proba(series)
        with pytest.raises(ConfigError, match=message):
            other.save_pretrained(tmp_path / "not to be")


def test_how_a_model_was_refreshed_stays_what_it_was(fitted):
    model = fitted("gate by epoch")
    before = model.current_config.hash
    assert model.set_params(refresh="never").current_config.hash == before
    model.set_params(refresh="epoch")


def test_a_folder_from_before_there_were_heads_still_loads(series, tmp_path):
    model = RAxSSClassifier(**NETWORK).fit(series)
    folder = model.save_pretrained(tmp_path / "model")
    facts = facts_of(folder)
    for name in ("refresh", "projection"):
        del facts["settings"]["retrieval"][name]
    del facts["settings"]["aggregation"]["smoothing"]
    (folder / "config.json").write_text(json.dumps(facts | {"format": "raxss-model-1"}))
    with pytest.warns(ModelWarning, match="'model' was written by raxss 0.1 and is not sealed"):
        again = RAxSSClassifier.from_pretrained(folder, device="cpu")
    assert again.heads_ is None
    assert again.current_config.hash == facts["config_hash"]
    assert_array_equal(again.predict_proba(series), model.predict_proba(series))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("heads/projection.weight"), r"projection is 5, but .* projection = 0"),
        (lambda tensors: tensors.pop("heads/gate.what.bias"), r"gate\.what\.bias"),
        (lambda tensors: tensors["heads/gate.total.weight"].fill_(math.nan), r"not finite"),
        (lambda tensors: tensors.update({"heads/other": torch.zeros(2).double()}), r"other"),
    ],
)
def test_foreign_heads_are_refused(fitted, tmp_path, change, message):
    folder = reseal(fitted("all").save_pretrained(tmp_path / "model"), tensors=change)
    with pytest.raises(ModelError, match=message):
        RAxSSClassifier.from_pretrained(folder, device="cpu")


# Parts of aggregation and evidence --------------------------------------------------------------------------------


def test_gated_weightings_without_a_gate_are_refused_by_name():
    for weighting in GATED:
        with pytest.raises(ConfigError, match=f"weighting is '{weighting}'"):
            influence([0.5, 0.4], weighting)
    with pytest.raises(ConfigError, match="fitted without a gate"):
        heads_in_use(FeatureHeads(3, projection=2), projection=2, weighting="gated-inverse")


def test_a_gate_counts_for_nothing_under_other_weightings_and_for_unusable_windows():
    posteriors, gate = [[0.2, 0.8], [0.6, 0.4], [0.5, 0.5]], [0.3, -0.2, 9.0]
    found = aggregate(posteriors, [0.5, 0.4, np.nan], weighting="gated", gate=gate)
    assert found.weights[2] == 0.0
    assert_allclose(found.weights, naive.window_weights([0.8, 0.2, math.nan], 0.1), atol=1e-15)
    plain = aggregate(posteriors, [0.5, 0.4, np.nan], weighting="support", gate=gate)
    assert plain.gate is None
    assert_allclose(plain.weights, naive.window_weights([0.5, 0.4, math.nan], 0.1), atol=1e-15)
