"""Eqs. (2)-(4): weights, the series probability, its derivative, the controls, and the loss."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import naive
from raxss.errors import ConfigError, SignalError
from raxss.method.aggregation import (
    CLAMP,
    aggregate,
    effective_windows,
    log_posteriors,
    negative_log_likelihood,
    posteriors_of,
    series_probability,
    smooth_posteriors,
)
from raxss.method.weighting import WEIGHTINGS, influence, window_weights

FREE = sorted(name for name, entry in WEIGHTINGS.items() if not entry.needs_gate)


@st.composite
def series_of_windows(draw):
    """Supports (some NaN, never all), posteriors and a temperature, over all the sizes that occur."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_windows = int(10 ** draw(st.floats(0, 4)))
    spread = 10 ** draw(st.floats(-8, 0))  # supports of one series may be very alike
    support = np.clip(draw(st.floats(-1, 1)) + spread * rng.uniform(-1, 1, n_windows), -1, 1)
    support[rng.random(n_windows) < draw(st.sampled_from([0.0, 0.1, 0.9]))] = np.nan
    support[rng.integers(n_windows)] = draw(st.floats(-1, 1))
    posteriors = rng.dirichlet(np.full(draw(st.integers(2, 5)), 0.3), size=n_windows)
    return support, posteriors, 10 ** draw(st.floats(-6, 6))


# Eq. (2): weights ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "rtol", "atol", "total"), [(np.float64, 1e-10, 1e-300, 1e-12), (np.float32, 3e-5, 1e-30, 1e-6)]
)
@given(case=series_of_windows())
def test_weights_match_the_naive_loop(case, dtype, rtol, atol, total):
    support, _, temperature = case
    support = support.astype(dtype)
    weights = window_weights(torch.from_numpy(support), temperature=temperature).double().numpy()
    assert_allclose(weights, naive.window_weights(support.tolist(), temperature), rtol=rtol, atol=atol)
    assert (weights >= 0).all()
    assert abs(weights.sum() - 1) <= total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1e-30, 1e30])
def test_extreme_temperatures_give_the_best_window_or_the_mean(temperature, dtype):
    weights = window_weights(torch.tensor([0.2, 0.9, -1.0], dtype=dtype), temperature=temperature)
    expected = [0.0, 1.0, 0.0] if temperature < 1 else [1 / 3] * 3
    assert_allclose(weights, expected, rtol=1e-6)


def test_a_series_without_usable_windows_gets_zeros_and_harms_no_other():
    support = torch.tensor([torch.nan, 0.3, torch.nan, 0.5])
    weights = window_weights(support, temperature=0.1, series=torch.tensor([0, 1, 0, 1]), n_series=2)
    assert weights[[0, 2]].tolist() == [0.0, 0.0]
    assert_allclose(weights[[1, 3]], naive.window_weights([0.3, 0.5], 0.1), rtol=1e-6)


@given(
    seed=st.integers(0, 2**32), n_series=st.integers(1, 12), temperature=st.sampled_from([1e-3, 0.1, 10.0])
)
def test_one_pass_over_a_batch_equals_one_series_at_a_time(seed, n_series, temperature):
    rng = np.random.default_rng(seed)
    series = torch.from_numpy(rng.integers(n_series, size=200))  # some series may have no window at all
    support = torch.from_numpy(np.where(rng.random(200) < 0.1, np.nan, rng.uniform(-1, 1, 200)))
    posteriors = torch.from_numpy(rng.dirichlet(np.ones(3), size=200))
    weights = window_weights(support, temperature=temperature, series=series, n_series=n_series)
    probability = series_probability(posteriors, weights, series=series, n_series=n_series)
    assert probability.shape == (n_series, 3)
    for i in range(n_series):
        alone = series == i
        own = naive.window_weights(support[alone].tolist(), temperature)
        assert_allclose(weights[alone], own, rtol=1e-11, atol=1e-300)
        expected = naive.series_probability(own, posteriors[alone].tolist()) if alone.any() else np.zeros(3)
        assert_allclose(probability[i], expected, atol=1e-12)


# Eq. (3): the series probability ------------------------------------------------------------------------------


@given(case=series_of_windows(), weighting=st.sampled_from(FREE))
def test_the_series_probability_is_the_convex_sum_of_the_contributions(case, weighting):
    support, posteriors, temperature = case
    found = aggregate(posteriors, support, temperature=temperature, weighting=weighting)
    assert_array_equal(found.contributions, found.weights[:, None] * posteriors)
    assert_allclose(found.contributions.sum(axis=0), found.series_probability, rtol=0, atol=1e-15)
    expected = naive.series_probability(found.weights.tolist(), posteriors.tolist())
    assert_allclose(found.series_probability, expected, atol=1e-12)
    assert abs(found.series_probability.sum() - 1) <= 1e-12
    usable = posteriors[~np.isnan(support)]
    assert (found.series_probability >= usable.min(axis=0) - 1e-12).all()
    assert (found.series_probability <= usable.max(axis=0) + 1e-12).all()


@pytest.mark.parametrize("level", [-1.0, 0.0, 0.3, 0.8734, 1.0])
@pytest.mark.parametrize("temperature", [1e-6, 0.1, 1e6])
@pytest.mark.parametrize("n_windows", [1, 3, 7, 1000])
def test_equal_support_is_bit_for_bit_the_sss_mean(rng, level, temperature, n_windows):
    posteriors = rng.dirichlet([1, 1], size=n_windows)
    support = np.full(n_windows, level)
    support[n_windows // 2 :: 5] = np.nan if n_windows > 3 else level
    ours = aggregate(posteriors, support, temperature=temperature)
    sss = aggregate(posteriors, support, temperature=temperature, weighting="uniform")
    usable = ~np.isnan(support)
    assert_array_equal(ours.weights, sss.weights)
    assert_array_equal(ours.series_probability, sss.series_probability)
    assert_array_equal(ours.weights[usable], 1 / usable.sum())
    assert_allclose(sss.series_probability, posteriors[usable].mean(axis=0), rtol=1e-13)


# Controls -----------------------------------------------------------------------------------------------------


def test_random_supports_have_the_same_mean_and_variance(rng):
    support = rng.beta(8, 2, size=100_000)
    support[::10] = np.nan
    drawn, own = influence(support, "random", seed=4), support[~np.isnan(support)]
    assert_array_equal(np.isnan(drawn), np.isnan(support))
    drawn = drawn[~np.isnan(drawn)]
    n = len(own)
    assert drawn.mean() == pytest.approx(own.mean(), abs=5 * own.std() / n**0.5)
    assert drawn.std() == pytest.approx(own.std(), rel=5 / (2 * n) ** 0.5)
    assert abs(np.corrcoef(drawn, own)[0, 1]) < 5 / n**0.5


# Eq. (4): the derivative --------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.02, 0.1, 1.0])
@pytest.mark.parametrize("m", [1, 4])
def test_the_derivative_with_other_supports_fixed(rng, temperature, m):
    """d alpha_k / d s_k^(j) = alpha_k (1 - alpha_k) / (m tau)."""
    similarity = torch.from_numpy(rng.uniform(0.5, 1, size=(9, m))).requires_grad_()
    weights = window_weights(similarity.mean(dim=1), temperature=temperature)
    for k in range(9):
        (slope,) = torch.autograd.grad(weights[k], similarity, retain_graph=True)
        alpha = weights[k].item()
        assert_allclose(slope[k], np.full(m, alpha * (1 - alpha) / (m * temperature)), rtol=1e-10)


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_the_derivative_where_windows_are_each_others_neighbours(rng, temperature):
    """d alpha_k / d phi(w_k, w_j) = alpha_k (1 - alpha_k - alpha_j [k in N_j]) / (m tau) >= 0."""
    m = 3
    lists = naive.retrieve(rng.normal(size=60), 12, 4, n_neighbors=m)
    n_windows = len(lists.neighbors)
    pairs, values = {}, []
    for k, j in zip(np.repeat(np.arange(n_windows), m), lists.neighbors.ravel(), strict=True):
        if frozenset((k, j)) not in pairs:
            pairs[frozenset((k, j))] = len(values)
            values.append(lists.similarity[k, lists.neighbors[k].tolist().index(j)])
    phi = torch.tensor(values, dtype=torch.float64, requires_grad=True)  # one value for both directions
    support = torch.stack(
        [phi[[pairs[frozenset((k, j))] for j in row]].mean() for k, row in enumerate(lists.neighbors)]
    )
    assert_allclose(support.detach(), lists.support, rtol=1e-12)
    weights = window_weights(support, temperature=temperature)
    seen = set()
    for k, row in enumerate(lists.neighbors):
        (slopes,) = torch.autograd.grad(weights[k], phi, retain_graph=True)
        for j in row:
            mutual = k in lists.neighbors[j]
            expected = weights[k] * (1 - weights[k] - weights[j] * mutual) / (m * temperature)
            slope = slopes[pairs[frozenset((k, j))]]
            assert slope.item() == pytest.approx(expected.item(), rel=1e-10, abs=1e-15)
            assert slope >= 0
            seen.add(mutual)
    assert seen == {True, False}


def test_gradients_through_weights_and_probability_match_finite_differences(rng):
    series = torch.tensor([0, 1, 0, 1, 1, 0, 3])  # series 2 has no window in this batch
    support = torch.from_numpy(rng.uniform(0, 1, 7)).requires_grad_()
    log_temperature = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    logits = torch.from_numpy(rng.normal(size=(7, 3))).requires_grad_()

    def probability(support, log_temperature, logits):
        weights = window_weights(support, temperature=log_temperature.exp(), series=series, n_series=4)
        return series_probability(posteriors_of(logits), weights, series=series, n_series=4)

    assert torch.autograd.gradcheck(probability, (support, log_temperature, logits))


def test_gradients_are_finite_where_a_window_cannot_be_used():
    support = torch.tensor([0.5, torch.nan, 0.7, torch.nan], requires_grad=True)
    temperature = torch.tensor(0.1, requires_grad=True)
    series = torch.tensor([0, 0, 0, 1])
    weights = window_weights(support, temperature=temperature, series=series, n_series=2)
    weights[2].backward()
    assert torch.isfinite(temperature.grad)
    assert support.grad[[1, 3]].tolist() == [0.0, 0.0]
    assert support.grad[2] > 0


# Posteriors and loss ------------------------------------------------------------------------------------------


def test_one_logit_gives_the_posteriors_of_two(rng):
    z = torch.from_numpy(rng.normal(scale=20, size=(100, 1)))
    two = torch.cat([torch.zeros_like(z), z], dim=1)
    assert_allclose(posteriors_of(z), posteriors_of(two), rtol=1e-12)
    assert_allclose(log_posteriors(z), log_posteriors(two), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("n_outputs", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_posteriors_of_mixed_precision_logits_are_float32(rng, n_outputs, dtype):
    logits = torch.from_numpy(rng.normal(scale=5, size=(64, n_outputs))).to(dtype)
    posteriors = posteriors_of(logits)
    assert posteriors.dtype == torch.float32
    assert_allclose(posteriors.sum(dim=1), np.ones(64), atol=1e-6)


def test_log_posteriors_stay_finite_where_posteriors_are_0():
    assert torch.isfinite(log_posteriors(torch.tensor([[500.0], [-500.0]]))).all()
    assert torch.isfinite(log_posteriors(torch.tensor([[500.0, -500.0, 0.0]]))).all()


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_loss_is_the_cross_entropy_of_the_average_probability(rng, n_classes):
    probability = torch.from_numpy(rng.dirichlet(np.ones(n_classes), size=50)).float().clamp(1e-4, 1 - 1e-4)
    targets = torch.from_numpy(rng.integers(n_classes, size=50))
    loss = negative_log_likelihood(probability, targets)
    assert_allclose(loss, F.nll_loss(probability.log(), targets, reduction="none"), rtol=1e-5)
    if n_classes == 2:
        binary = F.binary_cross_entropy(probability[:, 1], targets.float(), reduction="none")
        assert_allclose(loss, binary, rtol=1e-3, atol=1e-6)


def test_the_loss_and_its_gradient_are_finite_at_0_and_1():
    probability = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    loss = negative_log_likelihood(probability, torch.tensor([1, 1]))
    loss.sum().backward()
    assert_allclose(loss.detach(), [-np.log(CLAMP), CLAMP], rtol=0.05)
    assert torch.isfinite(probability.grad).all()


# The effective number of windows ------------------------------------------------------------------------------


@given(case=series_of_windows())
def test_between_one_and_all_windows_are_effective(case):
    support, posteriors, temperature = case
    found = aggregate(posteriors, support, temperature=temperature)
    n_usable = int((~np.isnan(support)).sum())
    assert 1 - 1e-9 <= found.effective_windows <= n_usable * (1 + 1e-9)
    weights = naive.window_weights(support.tolist(), temperature)
    assert found.effective_windows == pytest.approx(1 / sum(w * w for w in weights), rel=1e-9)


def test_without_any_weight_no_window_is_effective():
    assert effective_windows([0.0, 0.0]) == 0.0


# Bad input ----------------------------------------------------------------------------------------------------


HALVES = [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("posteriors", "support", "settings", "error", "words"),
    [
        *(
            (HALVES, [0.1, 0.2], {"temperature": bad}, ConfigError, rf"got {bad!r}\. .*weighting='uniform'")
            for bad in (0, -0.1, np.nan, np.inf, "0.1", None)
        ),
        ([*HALVES, [0, 1]], [0.1, 0.2], {}, ConfigError, r"shape \(3, 2\) and support of shape \(2,\)"),
        ([0.5, 0.5], [0.1, 0.2], {}, ConfigError, r"shape \(2,\) and support of shape \(2,\)"),
        (HALVES, [0.1, 0.2], {"smoothing": 0.25}, ConfigError, r"smoothing is 0\.25"),
        ([[0.5, 0.5], [np.nan, 1]], [0.1, 0.2], {}, SignalError, "of 1 windows are not finite, .* window 1"),
    ],
)
def test_input_that_cannot_be_used_is_refused_by_value(posteriors, support, settings, error, words):
    with pytest.raises(error, match=words):
        aggregate(posteriors, support, **settings)


@pytest.mark.parametrize("weighting", FREE)
def test_a_series_of_gaps_alone_is_refused_with_its_number_of_windows(weighting):
    with pytest.raises(SignalError, match="none of the 3 windows can be used"):
        aggregate(np.full((3, 2), 0.5), [np.nan] * 3, weighting=weighting)


def test_tensors_are_taken_as_they_come_from_a_network():
    found = aggregate(torch.tensor([[0.2, 0.8], [0.6, 0.4]], requires_grad=True), torch.tensor([0.9, 0.7]))
    assert_allclose(found.series_probability, [0.2477, 0.7523], atol=1e-4)


# Smoothing over neighbours ------------------------------------------------------------------------------------


def random_neighbors(rng, n, m=4):
    """Lists of differing lengths, some empty, none of a window itself."""
    lists = np.full((n, m), -1)
    for k in range(n):
        others = rng.permutation([j for j in range(n) if j != k])[: rng.integers(0, m + 1)]
        lists[k, : len(others)] = others
    return lists


@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_smoothed_posteriors_match_the_naive_loop(seed, smoothing):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 20))
    posteriors, lists, left_out = rng.dirichlet(np.ones(3), n), random_neighbors(rng, n), rng.random(n) < 0.2
    found = smooth_posteriors(posteriors, lists, smoothing, left_out=left_out)
    assert_allclose(found, naive.smoothed(posteriors, lists, smoothing, left_out), atol=1e-15)
    assert_allclose(found.sum(axis=1), 1.0, atol=1e-15)


@pytest.mark.parametrize("weighting", FREE)
@pytest.mark.parametrize("seed", range(5))
def test_a_smoothed_score_is_a_convex_sum_of_single_posteriors(seed, weighting):
    rng = np.random.default_rng(seed)
    n, smoothing = 17, 0.4
    posteriors, lists, support = rng.dirichlet(np.ones(3), n), random_neighbors(rng, n), rng.uniform(-1, 1, n)
    support[[3, 8]] = np.nan
    found = aggregate(posteriors, support, weighting=weighting, smoothing=smoothing, neighbors=lists)
    votes = naive.votes(found.weights, lists, smoothing, np.isnan(support))
    assert math.fsum(votes) == pytest.approx(1.0, abs=1e-12)
    assert votes[3] == votes[8] == 0.0
    assert_allclose(naive.series_probability(votes, posteriors), found.series_probability, atol=1e-14)
    assert_allclose(found.contributions, found.weights[:, None] * found.smoothed, atol=0)
    assert_array_equal(found.posteriors, posteriors)


def test_an_unusable_window_enters_no_smoothed_posterior():
    posteriors = np.array([[0.2, 0.8], [np.nan, np.nan], [0.6, 0.4]])
    lists = np.array([[1, 2], [0, 2], [1, -1]])
    found = aggregate(posteriors, [0.5, np.nan, 0.5], smoothing=1.0, neighbors=lists)
    assert_allclose(found.smoothed[[0, 2]], [[0.6, 0.4], [0.6, 0.4]])
    assert_allclose(found.series_probability, [0.6, 0.4])
