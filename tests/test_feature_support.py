"""Support within a batch, and in feature space while the network learns, against the exact lists."""

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import naive
from raxss import Series
from raxss._core import memory
from raxss.errors import TrainingError
from raxss.estimator.config import Config
from raxss.estimator.fit import epoch_refresh, window_pool
from raxss.method.backbones import build_backbone
from raxss.method.retrieval import batch, retrieve
from raxss.method.retrieval.batch import batch_support, feature_support
from raxss.method.training import feature_support as refreshing
from raxss.method.training.feature_support import EpochRefresh, feature_moments, pool_features
from raxss.method.training.loop import train
from raxss.method.training.step import Learner
from raxss.method.weighting import WEIGHTINGS, influence
from raxss.method.window_scorer import score_windows
from raxss.method.windows import windows_of
from toys import training_plan, waves

LENGTH, STRIDE = 32, 8
SHORT = 12  # windows of the batches
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


# Eq. (1) with the batch as the bank, against the naive loop over the batch's windows of each series


def draw_batch(rng, *, n_series, n_variates, measure, share, flat_stretch):
    """Some windows of several series in mixed order, and what each has from the naive lists."""
    windows, series, starts, flat, pairs = [], [], [], [], []
    for i in range(n_series):
        samples = np.cumsum(rng.normal(size=(n_variates, rng.integers(SHORT, 120))), axis=1)
        if flat_stretch and samples.shape[1] > 60:
            quiet = rng.choice([0.0, 1e-9])  # exactly nothing, or too little to have a shape
            samples[:, 20:50] = quiet * rng.normal(size=(n_variates, 30))
        cut = windows_of(Series(samples), window_length=SHORT, stride=3)
        chosen = np.flatnonzero(rng.random(len(cut)) < share)
        matrix = naive.similarity(samples, SHORT, 3, measure)[np.ix_(chosen, chosen)]
        _, without_shape, nonfinite = naive.window_vectors(samples, SHORT, 3, measure)
        pairs.append((matrix, cut.starts[chosen], [without_shape[k] for k in chosen], [False] * len(chosen)))
        assert not any(nonfinite)
        windows.append(cut.samples[chosen])
        series += [i] * len(chosen)
        starts += (cut.starts[chosen] + 1000 * i).tolist()  # one strip for all series, as in training
        flat += pairs[-1][2]
    order = rng.permutation(len(series))
    tensors = (
        torch.from_numpy(np.concatenate(windows)[order].astype(np.float32)),
        torch.tensor(series)[order],
        torch.tensor(starts)[order],
        torch.tensor(flat, dtype=torch.bool)[order],
    )
    return tensors, pairs, order


def naive_support(pairs, order, **settings):
    supports = [naive.lists_of(*pair, **settings).support for pair in pairs]
    return np.concatenate(supports)[order]


@given(
    seed=st.integers(0, 2**32),
    n_series=st.integers(1, 5),
    n_variates=st.integers(1, 2),
    measure=st.sampled_from(["pearson", "cosine"]),
    n_neighbors=st.sampled_from([1, 3, 50]),
    exclusion=st.sampled_from([0, 2, 3, 6, 40, 500]),
    share=st.sampled_from([0.1, 0.5, 1.0]),
    flat_stretch=st.booleans(),
)
def test_support_within_a_batch_matches_the_naive_lists_of_each_series(
    seed, n_series, n_variates, measure, n_neighbors, exclusion, share, flat_stretch
):
    rng = np.random.default_rng(seed)
    tensors, pairs, order = draw_batch(
        rng, n_series=n_series, n_variates=n_variates, measure=measure, share=share, flat_stretch=flat_stretch
    )
    if len(order) == 0:
        return
    support = batch_support(*tensors, measure=measure, n_neighbors=n_neighbors, exclusion=exclusion)
    expected = naive_support(pairs, order, n_neighbors=n_neighbors, exclusion=exclusion)
    assert_allclose(support, expected, atol=2e-5)


def test_rows_taken_in_parts_give_the_same(rng, monkeypatch):
    tensors, _, _ = draw_batch(rng, n_series=6, n_variates=1, measure="pearson", share=0.8, flat_stretch=True)
    settings = {"measure": "pearson", "n_neighbors": 4, "exclusion": 6}
    whole = batch_support(*tensors, **settings)
    monkeypatch.setattr(batch, "ROWS_AT_ONCE", 7)
    assert len(whole) > 14
    assert_allclose(batch_support(*tensors, **settings), whole, atol=1e-6)


def test_a_long_series_is_compared_in_blocks_of_bounded_memory(rng, monkeypatch):
    n, most = 3000, 2**22
    vectors = torch.from_numpy(rng.normal(size=(n, 1, 4))).float()
    series, flat = torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.bool)
    arguments = vectors, series, 9 * torch.arange(n), flat
    settings = {"measure": "cosine", "n_neighbors": 5, "exclusion": 40, "n_series": 1}
    whole = batch_support(*arguments, **settings)
    monkeypatch.setattr(batch, "MOST_BYTES", most)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        found = batch_support(*arguments, **settings)
    assert_allclose(found, whole, atol=1e-6)
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    peak = np.cumsum([event.nbytes() for event in sorted(events, key=lambda item: item.start_ns())]).max()
    assert peak < most + 100 * n  # what a batch needs by itself: vectors, supports
    assert peak > most / 4
