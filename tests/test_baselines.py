"""The systems that are not RAxSS: what all of them promise, then each against something independent."""

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from raxss import Series, SeriesCollection
from raxss.benchmark.baselines.forest import ForestClassifier, scale_free_features
from raxss.benchmark.baselines.mil import BagNetwork, MILClassifier
from raxss.benchmark.baselines.rocket import RocketClassifier, SpanClassifier
from raxss.benchmark.baselines.sequences import SequenceClassifier, padded_batch, similar_lengths
from raxss.benchmark.baselines.trivial import AllPositiveClassifier
from raxss.data.prepare.preprocessing import Scaling
from raxss.errors import (
    BackboneError,
    ConfigError,
    DataError,
    EmptyDataError,
    LabelError,
    MissingExtraError,
    SignalError,
    SignalWarning,
    TrainingError,
    VariateMismatchError,
)
from raxss.method.backbones import build_backbone
from raxss.method.windows import windows_of
from toys import Tiny, waves

ON_CPU = {"random_state": 0, "device": "cpu"}
SMALL = {"d_model": 16, "n_layers": 1, "patch_length": 16, "patch_stride": 8, "dropout": 0.0, "revin": False}
BAGS = {
    "window_length": 32,
    "stride": 16,
    "batch_size": 64,
    "lr": 3e-3,
    "schedule_steps": 0,
    "warmup_steps": 5,
}

MAKERS = {
    name: lambda name=name: SequenceClassifier(
        name, backbone_options=SMALL, batch_size=6, lr=1e-2, warmup_steps=4, max_epochs=8, **ON_CPU
    )
    for name in ("gru", "lstm", "mamba")
} | {
    "attention": lambda: MILClassifier("attention", backbone="convnet", max_epochs=6, **BAGS, **ON_CPU),
    "conjunctive": lambda: MILClassifier("conjunctive", backbone="convnet", max_epochs=6, **BAGS, **ON_CPU),
    "rocket": lambda: RocketClassifier("rocket", n_kernels=100, **ON_CPU),
    "minirocket": lambda: RocketClassifier("minirocket", n_kernels=84, **ON_CPU),
    "forest": lambda: ForestClassifier(n_trees=30, **ON_CPU),
    "trivial": lambda: AllPositiveClassifier(**ON_CPU),
}
LEARNING = [name for name in MAKERS if name != "trivial"]
NETWORKS = ["gru", "lstm", "mamba", "attention", "conjunctive"]


@pytest.fixture(scope="module")
def data():
    """Train, validation and test: waves whose speed is their class."""
    everything = waves(np.random.default_rng(5), n_series=60)
    return everything[:30], everything[30:40], everything[40:]


@pytest.fixture(scope="module")
def fitted(data):
    """One fit of each, for tests that do not change it."""
    models = {}

    def fit(name):
        if name not in models:
            models[name] = MAKERS[name]().fit(data[0], validation=data[1])
        return models[name]

    return fit


# What all of them promise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEARNING)
def test_it_learns_what_chance_would_not(name, data, fitted):
    # 16 of 20 by coin tosses: once in 169.
    assert (fitted(name).predict(data[2]) == data[2].labels).sum() >= 16


@pytest.mark.parametrize("name", MAKERS)
def test_probabilities_are_of_the_classes_and_sum_to_one(name, data, fitted):
    model = fitted(name)
    probabilities = model.predict_proba(data[2])
    assert model.classes_.tolist() == ["fast", "slow"]
    assert probabilities.shape == (20, 2)
    assert probabilities.dtype == np.float64
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-9)
    assert (model.predict(data[2]) == model.classes_[probabilities.argmax(axis=1)]).all()


@pytest.mark.parametrize("name", MAKERS)
def test_the_same_seed_gives_the_same_numbers_and_a_clone_is_unfitted(name, data, fitted):
    again = clone(fitted(name))
    assert not hasattr(again, "classes_")
    again.fit(data[0], validation=data[1])
    assert np.array_equal(again.predict_proba(data[2]), fitted(name).predict_proba(data[2]))


@pytest.mark.parametrize("name", ["gru", "conjunctive", "rocket", "forest"])
def test_another_seed_gives_other_numbers(name, data, fitted):
    other = clone(fitted(name)).set_params(random_state=1).fit(data[0], validation=data[1])
    assert not np.array_equal(other.predict_proba(data[2]), fitted(name).predict_proba(data[2]))


@pytest.mark.parametrize("name", ["gru", "conjunctive", "rocket", "minirocket", "forest"])
def test_a_fit_leaves_generators_and_threads_of_its_caller_alone(name, data):
    before = torch.random.get_rng_state(), _numpys_generator(), torch.get_num_threads()
    MAKERS[name]().fit(data[0][:8], validation=data[1])
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], _numpys_generator())
    assert torch.get_num_threads() == before[2]


def _numpys_generator():
    return np.random.get_state()[1].copy()  # noqa: NPY002 - the global one, which others seed


@pytest.mark.parametrize("name", MAKERS)
def test_the_score_of_a_series_does_not_depend_on_others(name, data, fitted):
    together = fitted(name).predict_proba(data[2])
    alone = np.concatenate([fitted(name).predict_proba([item]) for item in data[2]])
    np.testing.assert_allclose(alone, together, atol=1e-6)


@pytest.mark.parametrize("name", MAKERS)
def test_several_variates_and_three_classes(name, rng):
    series = waves(rng, n_series=18, n_classes=3, n_variates=2)
    model = MAKERS[name]()
    if "max_epochs" in model.get_params():
        model.set_params(max_epochs=1)
    probabilities = model.fit(series).predict_proba(series)
    assert probabilities.shape == (18, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-9)


@pytest.mark.parametrize("name", MAKERS)
def test_what_cannot_be_learned_from_is_refused_by_name(name, data, rng):
    model, train = MAKERS[name](), data[0]
    with pytest.raises(LabelError, match="all 15 labels are 'slow'"):
        model.fit(train[train.labels == "slow"])
    with pytest.raises(DataError, match="requires y"):
        model.fit([])
    with pytest.raises(EmptyDataError, match="no series"):
        model.fit([], [])
    with pytest.raises(LabelError, match="3 labels were given for 30 series"):
        model.fit(train, ["a", "b", "a"])
    with pytest.raises(VariateMismatchError, match="'odd' has 3 variates"):
        model.fit([*train, Series(rng.normal(size=(3, 90)), label="slow", name="odd", group="g")])
    with pytest.raises(SignalError, match="'gap' has 1 of 50"):
        model.fit([*train, Series([np.nan, *range(49)], label="slow", name="gap", group="g", rate=10)])
    with pytest.raises(LabelError, match=r"no training series has: \['faster'\]"):
        model.fit(train, validation=waves(rng, 3, n_classes=3))
    with pytest.raises(DataError, match="'wave 4' has the samples of training series 'wave 4'"):
        model.fit(train, validation=train[4:6])
    with pytest.raises(ValueError, match="not fitted"):
        model.predict_proba(train)


@pytest.mark.parametrize("name", MAKERS)
def test_what_cannot_be_predicted_is_refused_by_name(name, fitted, rng):
    with pytest.raises(VariateMismatchError, match="'odd' has 2 variates, but the model was fitted on 1"):
        fitted(name).predict_proba([Series(rng.normal(size=(2, 90)), name="odd")])
    with pytest.raises(EmptyDataError, match="no series"):
        fitted(name).predict_proba([])
    with pytest.raises(DataError, match="'z' was prepared by 'z-score'"):
        fitted(name).predict_proba([Series(rng.normal(size=90), name="z", preparation="z-score")])
    with pytest.raises(ValueError, match="not fitted"):
        clone(fitted(name)).predict_proba([Series(rng.normal(size=90))])


@pytest.mark.parametrize("name", MAKERS)
def test_flat_short_and_marked_series_get_finite_probabilities(name, fitted, rng):
    holed = rng.normal(size=150)
    holed[20:24] = np.nan
    odd = [
        Series(np.full(100, 3.0), name="flat"),
        Series([1.0], name="one sample"),
        Series(rng.normal(size=5), name="five samples"),
        Series(holed, name="holed", gaps_marked=True),
        Series(rng.normal(size=900), name="longer than any in training"),
    ]
    with pytest.warns(SignalWarning, match="'flat' is constant"):
        probabilities = fitted(name).predict_proba(odd)
    assert np.isfinite(probabilities).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-9)


@pytest.mark.parametrize("name", MAKERS)
def test_a_split_without_a_validation_part_is_learned_from_as_a_whole(name, data):
    model = MAKERS[name]()
    if "max_epochs" in model.get_params():
        model.set_params(max_epochs=2)
    model.fit(data[0], validation=SeriesCollection([]))
    if name in NETWORKS:
        assert model.best_epoch_ == 2
        assert "validation_loss" not in model.history_


def test_without_a_validation_part_whole_groups_are_held_out(data):
    series = [item.with_samples(item.samples) for item in data[0]]
    received = ForestClassifier(**ON_CPU)._receive(series, None, None, None, validation_fraction=0.2)
    kept, held = ({item.group for item in part} for part in (received.series, received.validation))
    assert held
    assert not kept & held
    assert len(received.series) + len(received.validation) == len(series)
    targets = ["fast", "slow"]
    assert [item.label for item in received.validation] == [targets[k] for k in received.validation_targets]


# Networks over whole series -------------------------------------------------------------------------------------


def test_a_batch_is_the_series_side_by_side_with_zeros_behind(rng):
    series = [Series(rng.normal(size=(2, n)), label=str(n % 2)) for n in (7, 3, 12, 5)]
    model = SequenceClassifier(scaling="none", **ON_CPU)
    model.scaling_ = Scaling.fit(series, "none")
    pool = model._pool(series, np.array([1, 1, 0, 1]), torch.device("cpu"))
    for batch in ([0, 1], [3, 2], [3], [1, 0, 2, 3]):  # the last one ends at the end of the strip
        windows, n_samples, targets = padded_batch(pool, np.array(batch))
        assert windows.shape == (len(batch), 2, max(series[item].n_samples for item in batch))
        for row, n_real, target, item in zip(windows, n_samples, targets, batch, strict=True):
            expected = np.zeros(windows.shape[1:], dtype=np.float32)
            expected[:, : series[item].n_samples] = series[item].samples
            assert np.array_equal(row.numpy(), expected)
            assert (int(n_real), int(target)) == (series[item].n_samples, [1, 1, 0, 1][item])


def test_every_series_comes_once_an_epoch_among_others_of_its_length(rng):
    lengths = rng.integers(100, 10_000, size=203)
    epochs = [similar_lengths(lengths, 16, seed=3, epoch=epoch) for epoch in range(2)]
    for batches in epochs:
        assert len(batches) == math.ceil(203 / 16)
        assert sorted(np.concatenate(batches)) == list(range(203))
        assert sum(len(batch) < 16 for batch in batches) == 1

    def padding(batches):
        return sum(lengths[batch].max() * len(batch) for batch in batches) / lengths.sum() - 1

    shuffled = np.split(rng.permutation(203), range(16, 203, 16))
    assert padding(epochs[0]) < 0.4 * padding(shuffled)
    assert {tuple(sorted(entry)) for entry in epochs[0]} != {tuple(sorted(entry)) for entry in epochs[1]}
    again = similar_lengths(lengths, 16, seed=3, epoch=1)
    assert all(np.array_equal(item, two) for item, two in zip(again, epochs[1], strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_best_epoch_by_validation_is_what_is_kept(name, data, fitted):
    model, validation = fitted(name), data[1]
    history = model.history_
    ranked = history.sort_values(
        ["validation_accuracy", "validation_loss"], ascending=[False, True], kind="stable"
    )
    assert model.best_epoch_ == ranked["epoch"].iloc[0]
    best = history.set_index("epoch").loc[model.best_epoch_]
    probabilities = model.predict_proba(validation)
    assert best["validation_accuracy"] == (model.predict(validation) == validation.labels).mean()
    expected = log_loss(validation.labels, probabilities, labels=model.classes_)
    assert best["validation_loss"] == pytest.approx(expected, rel=1e-4)


def test_patience_ends_training(data):
    model = MAKERS["gru"]().set_params(lr=0.0, start_lr=0.0, final_lr=0.0, max_epochs=9, patience=2)
    model.fit(data[0], validation=data[1])
    assert (len(model.history_), model.best_epoch_) == (3, 1)  # nothing is learned: the first stays the best


WRONG = [
    *(
        (name, {"batch_size": 0}, ConfigError, "batch_size .* at least 1 or 'auto', got 0")
        for name in NETWORKS
    ),
    ("gru", {"backbone": Tiny, "backbone_options": None}, BackboneError, "Tiny reads windows of one length"),
    ("attention", {"pooling": "attentio"}, ConfigError, "did you mean 'attention'"),
    ("trivial", {"positive": "fas"}, ConfigError, "no positive class 'fas'; did you mean 'fast'"),
]


@pytest.mark.parametrize(("name", "settings", "error", "message"), WRONG)
def test_wrong_settings_are_refused(name, settings, error, message, data):
    with pytest.raises(error, match=message):
        MAKERS[name]().set_params(**settings).fit(data[0])


@pytest.mark.parametrize("name", ["gru", "attention"])
def test_a_loss_that_is_not_finite_is_refused(name, data):
    with pytest.raises(TrainingError, match="the loss is nan in epoch"):
        MAKERS[name]().set_params(lr=1e30, warmup_steps=0).fit(data[0], validation=data[1])


# Multiple-instance pooling --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["attention", "conjunctive"])
@pytest.mark.parametrize("backbone", ["patchtst", "convnet"])
def test_pooling_is_the_mean_over_the_windows_of_a_series(pooling, backbone, rng):
    encoder = build_backbone(backbone, n_variates=1, window_length=32, n_outputs=3)
    windows = torch.from_numpy(rng.normal(size=(5, 1, 32))).float()
    network = BagNetwork(encoder, windows, n_outputs=3, pooling=pooling).eval()
    series = torch.tensor([2, 0, 2, 2, 0])
    with torch.no_grad():
        logits = network.logits_of(*network(windows, series, 3))
        for index in (0, 2):
            bag = encoder.features(windows[series == index])
            hidden = torch.tanh(bag @ network.attention[0].weight.T + network.attention[0].bias)
            attended = torch.sigmoid(hidden @ network.attention[2].weight.T + network.attention[2].bias)
            if pooling == "attention":
                expected = network.classifier((attended * bag).mean(dim=0))
            else:
                expected = (attended * network.classifier(bag)).mean(dim=0)
            torch.testing.assert_close(logits[index], expected, atol=1e-5, rtol=1e-4)


def test_the_paper_network_inside_has_its_own_parameters_and_the_attentions_alone(data):
    model = MILClassifier("conjunctive", window_length=1024, max_epochs=1, **ON_CPU)
    model.n_variates_, model.window_length_ = 1, 1024
    network = model._build(1)
    width = 4096  # 128 patches of 32 numbers
    assert sum(parameter.numel() for parameter in network.parameters()) == 34_019 + (8 * width + 8) + (8 + 1)


@pytest.mark.parametrize("name", ["attention", "conjunctive"])
def test_at_prediction_all_windows_count(name, data, fitted):
    model, item = fitted(name), data[2][0]
    cut = windows_of(model.scaling_.apply(item), window_length=32, stride=16)
    windows = torch.from_numpy(np.ascontiguousarray(cut.samples)).float()
    with torch.no_grad():
        sums, counts = model.backbone_.eval()(windows, torch.zeros(len(windows), dtype=torch.long), 1)
        logit = float(model.backbone_.logits_of(sums, counts))
    assert counts.tolist() == [len(cut)]
    assert model.predict_proba([item])[0, 1] == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-6)


def test_window_probabilities_make_the_series_probability(data, fitted):
    model = fitted("conjunctive")
    every = list(model.window_probabilities(data[2][:4]))
    for item, windows, whole in zip(data[2][:4], every, model.predict_proba(data[2][:4]), strict=True):
        assert windows.shape == ((item.n_samples - 32) // 16 + 1, 2)
        logits = np.log(windows[:, 1] / windows[:, 0])
        assert logits.mean() == pytest.approx(math.log(whole[1] / whole[0]), abs=1e-4)
    assert not hasattr(fitted("attention"), "window_probabilities")


def test_windows_that_are_mostly_missing_do_not_count(fitted, rng):
    samples = rng.normal(size=160)
    samples[64:160] = np.nan
    model = fitted("conjunctive")
    holed = Series(samples, gaps_marked=True, name="holed")
    assert len(next(model.window_probabilities([holed]))) == 4  # those that start at 0, 16, 32 and 48
    with pytest.raises(SignalError, match="no window of series 'all gaps' can be used"):
        model.predict_proba(
            [Series(np.r_[np.full(30, np.nan), samples[:10]], gaps_marked=True, name="all gaps")]
        )


# Random kernels -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def equal_lengths():
    rng = np.random.default_rng(8)
    labels = np.tile(["a", "b"], 12)
    samples = np.sin(np.arange(120) * np.where(labels == "a", 0.2, 0.3)[:, None]) + rng.normal(size=(24, 120))
    return samples[:, None, :], labels


def test_the_features_of_minirocket_are_those_of_aeons_own_classifier(equal_lengths):
    classifiers = pytest.importorskip("aeon.classification.convolution_based")
    samples, labels = equal_lengths
    peer = classifiers.MiniRocketClassifier(n_kernels=168, random_state=11)
    peer.fit(samples.astype(np.float32), labels)
    theirs = peer.pipeline_[0].transform(samples.astype(np.float32))
    ours = RocketClassifier(
        "minirocket", n_kernels=168, scaling="none", validation_fraction=0.0, random_state=11
    ).fit(list(samples), labels)
    found = ours._features([Series(sample) for sample in samples])
    assert found.shape[1] >= 168
    np.testing.assert_array_equal(found, np.asarray(theirs, dtype=np.float64))


def test_the_classifier_on_the_span_is_the_one_on_all_features(rng):
    features = rng.normal(size=(30, 400)) * rng.uniform(0.1, 50, size=400)
    targets = rng.integers(0, 3, size=30)
    features[:, 7] = 4.0  # a constant feature
    other = rng.normal(size=(9, 400))
    scaler = StandardScaler().fit(features)
    for strength in (0.1, 100.0):
        whole = LogisticRegression(C=strength, max_iter=10_000, tol=1e-8)
        whole.fit(scaler.transform(features) / math.sqrt(399), targets)
        standard = scaler.transform(other) / math.sqrt(399)
        standard[:, 7] = 0.0
        expected = whole.predict_proba(standard)
        found = SpanClassifier(features, targets).fit(strength).predict_proba(other)
        np.testing.assert_allclose(found, expected, atol=2e-3)


def test_the_penalty_has_the_least_loss_on_validation(data, fitted):
    model, validation = fitted("minirocket"), data[1]
    losses = {}
    for strength in model.strengths:
        item = clone(model).set_params(strengths=(strength,)).fit(data[0], validation=validation)
        losses[strength] = log_loss(validation.labels, item.predict_proba(validation), labels=item.classes_)
    assert losses[model.strength_] == min(losses.values())
    assert len(set(losses.values())) > 3


def test_only_the_first_samples_count(data, rng):
    model = RocketClassifier("minirocket", n_kernels=84, window_length=50, scaling="none", **ON_CPU).fit(
        data[0]
    )
    changed = [item.with_samples(np.c_[item.samples[:, :50], rng.normal(size=(1, 40))]) for item in data[2]]
    assert np.array_equal(model.predict_proba(changed), model.predict_proba(data[2]))
    assert model.window_length_ == 50
    assert RocketClassifier("minirocket", n_kernels=84, **ON_CPU).fit(data[0]).window_length_ == max(
        item.n_samples for item in model._receive(data[0], None, None, None, validation_fraction=0.125).series
    )


def test_without_aeon_minirocket_raises_with_the_install_command_and_rocket_works(data, fitted, monkeypatch):
    before = fitted("rocket").predict_proba(data[2])
    for name in [name for name in sys.modules if name == "aeon" or name.startswith("aeon.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aeon", None)
    message = r"'minirocket' needs the package aeon.*pip install 'raxss\[bench\]'"
    with pytest.raises(MissingExtraError, match=message):
        RocketClassifier("minirocket", **ON_CPU).fit(data[0])
    again = MAKERS["rocket"]().fit(data[0], validation=data[1])
    assert np.array_equal(again.predict_proba(data[2]), before)


# Hand-made features ---------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 10_000),
    n_samples=st.integers(16, 700),
    scale=st.floats(1e-4, 1e4),
    offset=st.floats(-1e3, 1e3),
)
def test_features_do_not_see_scale_and_offset(seed, n_samples, scale, offset):
    samples = np.cumsum(np.random.default_rng(seed).normal(size=(2, n_samples)), axis=1)
    plain, moved = scale_free_features(samples), scale_free_features(scale * (samples + offset))
    for name in plain:
        np.testing.assert_allclose(moved[name], plain[name], rtol=1e-5, atol=1e-6, err_msg=name)


@given(st.lists(st.sampled_from([0.0, 1.0, -3.0, 1e9, 1e-9, math.nan]), min_size=1, max_size=90))
def test_features_are_finite_whatever_comes(samples):
    features = scale_free_features(np.array([samples, [7.0] * len(samples)]))
    assert all(np.isfinite(feature).all() for feature in features.values())


def test_features_of_a_wave_are_what_can_be_worked_out_by_hand():
    time = np.arange(8000)
    speed = 2 * math.pi / 32  # 250 whole periods
    wave = np.stack([np.sin(speed * time), -np.sin(speed * time), np.cos(speed * time)])
    features = {name: values[0] for name, values in scale_free_features(wave).items()}
    assert features["edge 0.5"] == pytest.approx(1 / 16, abs=1e-3)
    assert features["power to 0.0625"] + features["power to 0.125"] == pytest.approx(1, abs=1e-3)
    assert features["mobility"] == pytest.approx(2 * math.sin(speed / 2), rel=1e-3)
    assert features["complexity"] == pytest.approx(1, rel=1e-3)
    assert features["kurtosis"] == pytest.approx(1.5, abs=1e-3)
    assert features["skewness"] == pytest.approx(0, abs=1e-3)
    assert features["zero crossings"] == pytest.approx(1 / 16, abs=1e-3)
    assert features["line length"] == pytest.approx(4 * math.sqrt(2) / 32, rel=1e-2)
    assert features["autocorrelation 16"] == pytest.approx(-1, abs=0.01)
    assert features["autocorrelation 32"] == pytest.approx(1, abs=0.01)
    assert features["return lag"] * len(time) == pytest.approx(32, abs=1)
    assert features["outliers"] == 0
    correlations = scale_free_features(wave)["correlations"]
    np.testing.assert_allclose(correlations, [-1, 0, 0], atol=1e-9)


def test_a_burst_is_unsteady_and_outlying(rng):
    calm = rng.normal(size=(1, 4096))
    burst = calm.copy()
    burst[:, 2000:2064] *= 30
    plain, odd = scale_free_features(calm), scale_free_features(burst)
    for name in ("deviation varies (32)", "deviation peaks (32)", "kurtosis", "far outliers"):
        assert odd[name][0] > 1.2 * plain[name][0] + 1e-4, name


# Not looking ----------------------------------------------------------------------------------------------------


def test_all_positive_predicts_the_positive_class_of_two_and_the_most_frequent_of_more(rng):
    two = waves(rng, 6)
    assert AllPositiveClassifier(positive="fast").fit(two).predict(two).tolist() == ["fast"] * 6
    assert AllPositiveClassifier(positive="slow").fit(two).predict_proba(two)[:, 1].tolist() == [1.0] * 6
    # By default the last class, as in metrics.
    assert AllPositiveClassifier().fit(two).predict(two).tolist() == ["slow"] * 6
    three = waves(rng, 7, n_classes=3)  # slow, fast, faster, slow, fast, faster, slow
    assert AllPositiveClassifier(positive="fast").fit(three).predict(three).tolist() == ["slow"] * 7
