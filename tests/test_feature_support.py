"""Support in feature space while the network learns, against the exact lists that prediction retrieves."""

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import naive
from raxss import RAxSSClassifier, Series
from raxss._core import memory
from raxss.errors import TrainingError
from raxss.estimator.config import Config
from raxss.estimator.fit import epoch_refresh, window_pool
from raxss.method.backbones import build_backbone
from raxss.method.retrieval import batch, retrieve
from raxss.method.retrieval.batch import feature_support
from raxss.method.training import feature_support as refreshing
from raxss.method.training.feature_support import EpochRefresh, feature_moments, pool_features
from raxss.method.training.loop import train
from raxss.method.training.step import Learner
from raxss.method.weighting import WEIGHTINGS, influence
from raxss.method.window_scorer import score_windows
from raxss.method.windows import windows_of
from toys import SMALL, assert_same_bits, training_plan, waves, weights_of

LENGTH, STRIDE = 32, 8
CPU = torch.device("cpu")
REFRESHED = {"space": "features", "refresh": "epoch", "series_loss_weight": 1.0, "exclusion": 8}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def toy_series(rng, n_series=6):
    series = list(waves(rng, n_series))
    dead = series[1].samples.copy()
    dead[:, 10:54] = 0.0  # two windows without a shape
    series[1] = Series(dead, label=series[1].label)
    gap = series[2].samples.copy()
    gap[:, 20] = np.nan
    series[2] = Series(gap, label=series[2].label, gaps_marked=True)
    series[3] = Series(series[3].samples[:, :LENGTH], label=series[3].label)  # one window
    return series


def toy_pool(series, device="cpu", **settings):
    config = Config.from_parameters({"window_length": LENGTH, "stride": STRIDE, **REFRESHED, **settings})
    targets, options = np.arange(len(series)) % 2, {"window_length": LENGTH, "seed": 3, "bar": None}
    return window_pool(series, targets, config, device=torch.device(device), **options), config


def toy_learner(device="cpu", seed=0, **options):
    torch.manual_seed(seed)
    network = build_backbone("convnet", n_variates=1, window_length=LENGTH, n_outputs=1, options={"width": 4})
    return Learner(network, temperature=0.1, learned=True, **options).to(device)


def exact_supports(learner, series, moments, **settings):
    """What prediction would retrieve for each series with this network."""
    mean, scale = moments
    found = []
    for item in series:
        cut = windows_of(item, window_length=LENGTH, stride=STRIDE)
        features = score_windows(learner.backbone, cut, device=CPU, with_features=True)[1]
        found.append(
            retrieve(
                item.samples,
                window_length=LENGTH,
                stride=STRIDE,
                measure="cosine",
                features=(features - mean) / scale,
                **settings,
            ).support
        )
    return found


@given(
    seed=st.integers(0, 2**32),
    n_neighbors=st.sampled_from([1, 3, 50]),
    exclusion=st.sampled_from([0, 5, 8, 40, 500]),
    rows=st.sampled_from([3, 1024]),
)
def test_support_of_whole_series_matches_the_naive_lists(seed, n_neighbors, exclusion, rows):
    rng = np.random.default_rng(seed)
    columns, expected = [[], [], [], []], []
    for index in range(rng.integers(1, 5)):
        samples = rng.normal(size=rng.integers(20, 90))
        if rng.random() < 0.4:
            samples[5:40] = 0.0
        starts = np.array(naive.starts_of(len(samples), 12, 4))
        features = rng.normal(size=(len(starts), 5))
        lists = naive.retrieve_features(
            features, samples, 12, 4, n_neighbors=n_neighbors, exclusion=exclusion
        )
        expected.append(lists.support)
        for column, values in zip(
            columns, (features, [index] * len(starts), starts, lists.flat), strict=True
        ):
            column.append(values)
    before, batch.ROWS_AT_ONCE = batch.ROWS_AT_ONCE, rows
    try:
        found = feature_support(
            *(torch.from_numpy(np.concatenate(entry)) for entry in columns),
            n_windows=[len(item) for item in expected],
            n_neighbors=n_neighbors,
            exclusion=exclusion,
            device=CPU,
        )
    finally:
        batch.ROWS_AT_ONCE = before
    assert_allclose(found, np.concatenate(expected), atol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "weighting", [name for name, item in WEIGHTINGS.items() if item.needs_retrieval and not item.needs_gate]
)
def test_refreshed_influence_is_what_prediction_retrieves_with_the_same_weights(rng, weighting, device):
    series = toy_series(rng)
    pool, config = toy_pool(series[:4], device, weighting=weighting)
    held, _ = toy_pool(series[4:], device)
    learner = toy_learner(device)
    places = pool.influence.data_ptr(), held.influence.data_ptr()
    epoch_refresh(config, LENGTH, seed=3)(learner, pool, held, None)
    scaling = feature_moments(learner.backbone, pool)
    for part, some in ((pool, series[:4]), (held, series[4:])):
        supports = exact_supports(learner.cpu(), some, scaling, n_neighbors=10, exclusion=8)
        expected = [influence(support, weighting, seed=3 + i) for i, support in enumerate(supports)]
        usable = np.concatenate(expected)
        assert_allclose(part.influence.cpu(), usable[~np.isnan(usable)], atol=3e-5)
    assert places == (pool.influence.data_ptr(), held.influence.data_ptr())  # a recorded step reads there
    assert pool.influence.std() > 0.01


def test_with_the_window_loss_alone_training_windows_are_left_alone(rng):
    series = toy_series(rng)
    (pool, config), (held, _) = toy_pool(series[:4], series_loss_weight=0.0), toy_pool(series[4:])
    epoch_refresh(config, LENGTH, seed=3)(toy_learner(), pool, held, None)
    assert not pool.influence.any()
    assert held.influence.any()


def test_refreshed_supports_reach_the_weights_that_are_learned(rng):
    series = waves(rng)
    models = [
        RAxSSClassifier(**SMALL | REFRESHED | {"refresh": refresh}).fit(series)
        for refresh in ("never", "epoch", "epoch")
    ]
    states = [weights_of(model.backbone_) for model in models]
    assert_same_bits(states[1], states[2])
    assert not torch.equal(states[0]["head.weight"], states[1]["head.weight"])


def test_features_that_do_not_fit_into_memory_are_refused_with_both_numbers(rng, monkeypatch):
    pool, config = toy_pool(toy_series(rng))
    monkeypatch.setattr(memory, "available_memory", lambda: 5_000)
    with pytest.raises(
        TrainingError, match=rf"{len(pool)} windows, 64 numbers each, need 0.0 MB .* 0.0 MB are"
    ):
        epoch_refresh(config, LENGTH, seed=3)(toy_learner(), pool, None, None)


def test_memory_that_ends_while_features_are_compared_is_not_blamed_on_the_batch(rng):
    pool, _ = toy_pool(toy_series(rng))

    def refresh(*_):
        torch.empty(10**15, dtype=torch.uint8)

    with pytest.raises(
        TrainingError, match=r"of this machine ended while the features .*Set a longer stride"
    ) as raised:
        train(toy_learner(), pool, None, config=training_plan(), seed=1, fingerprint="toy", refresh=refresh)
    assert "batch_size" not in str(raised.value)
    assert "step" not in str(raised.value)


def test_features_of_training_windows_are_gone_before_those_of_validation_are_made(rng, monkeypatch):
    series = toy_series(rng)
    (pool, config), (held, _) = toy_pool(series[:4]), toy_pool(series[4:])
    made, alive = [], []

    def noted(*arguments, **options):
        alive.append([item() is not None for item in made])
        features = pool_features(*arguments, **options)
        made.append(weakref.ref(features))
        return features

    monkeypatch.setattr(refreshing, "pool_features", noted)
    epoch_refresh(config, LENGTH, seed=3)(toy_learner(), pool, held, None)
    assert alive == [[], [False]]


def test_nothing_is_refreshed_where_support_is_not_used():
    config = Config.from_parameters(REFRESHED)
    assert isinstance(epoch_refresh(config, LENGTH, seed=3), EpochRefresh)
    for change in ({"weighting": "uniform"}, {"refresh": "never"}):
        assert epoch_refresh(Config.from_parameters(REFRESHED | change), LENGTH, seed=3) is None
