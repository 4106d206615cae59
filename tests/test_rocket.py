"""ROCKET's kernels: drawn as published, and their features those of a double loop and of aeon, on every device."""

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

import naive
from raxss.benchmark.baselines.rocket import RocketClassifier, left_no_trace
from raxss.benchmark.baselines.rocket_features import (
    Kernels,
    draw_kernels,
    kernel_features,
)
from raxss.errors import ConfigError, VariateMismatchError
from toys import waves

NEAR_ZERO = 1e-4  # an output that float32 may put on either side of 0

# variates, samples, samples that the kernels were drawn for
SHAPES = {
    "one variate": (1, 150, 150),
    "an odd length": (1, 151, 151),
    "several variates": (3, 83, 83),
    "more variates than taps": (13, 60, 60),
    "as short as can be": (2, 16, 16),
    "kernels longer than the series": (2, 45, 300),
    "one sample": (1, 1, 20),
}


def case(rng, shape, *, n_kernels=60, n_series=2):
    n_variates, n_samples, drawn_for = SHAPES[shape]
    kernels = draw_kernels(drawn_for, n_kernels=n_kernels, n_variates=n_variates, seed=3)
    return rng.normal(size=(n_series, n_variates, n_samples)).astype(np.float32), kernels


def each_kernel(kernels):
    """Weights (n_channels, length), channels and the other properties of one kernel after the other."""
    weights, channels = kernels.weights, kernels.channels
    for length, bias, dilation, padding, n in zip(
        kernels.lengths,
        kernels.biases,
        kernels.dilations,
        kernels.paddings,
        kernels.n_channels,
        strict=True,
    ):
        yield (
            weights[: n * length].reshape(n, length),
            channels[:n],
            {"bias": float(bias), "dilation": int(dilation), "padding": int(padding)},
        )
        weights, channels = weights[n * length :], channels[n:]


def assert_same(found, expected, n_outputs, *, n_near_zero=0, rtol=1e-4):
    """Maxima equal up to rounding; as many outputs positive, but for those that are near 0."""
    np.testing.assert_allclose(found[:, 1::2], expected[:, 1::2], rtol=rtol, atol=1e-5)
    n_apart = np.abs(found[:, ::2].astype(float) - expected[:, ::2]) * n_outputs
    assert (n_apart <= n_near_zero + 1e-3).all()


# Features -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_features_equal_those_of_a_double_loop(rng, shape):
    samples, kernels = case(rng, shape)
    expected = np.zeros((len(samples), 2 * len(kernels.lengths)))
    n_outputs, n_near_zero = (np.zeros((len(samples), len(kernels.lengths))) for _ in range(2))
    for i, sample in enumerate(samples):
        for k, (weights, channels, others) in enumerate(each_kernel(kernels)):
            outputs = np.array(naive.kernel_outputs(sample, weights, channels, **others))
            n_outputs[i, k], n_near_zero[i, k] = len(outputs), (np.abs(outputs) < NEAR_ZERO).sum()
            if len(outputs):
                expected[i, 2 * k : 2 * k + 2] = (outputs > 0).mean(), outputs.max()
    found = kernel_features(samples, kernels)
    assert found.dtype == np.float32
    assert np.array_equal(kernels.n_outputs(samples.shape[2]), n_outputs[0])
    assert_same(found, expected, n_outputs, n_near_zero=n_near_zero)
    assert n_outputs.max() > 0
    assert n_near_zero.sum() < 0.01 * n_outputs.sum()  # the excuse is rare


@pytest.mark.parametrize("shape", ["one variate", "several variates"])
def test_features_do_not_depend_on_threads_neighbours_or_memory(rng, shape):
    samples, kernels = case(rng, shape, n_series=7)
    before = torch.get_num_threads()
    try:
        found = []
        for n_threads in (1, 3):
            torch.set_num_threads(n_threads)
            found.append(kernel_features(samples, kernels))
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(*found)
    assert np.array_equal(kernel_features(samples[3:4], kernels), found[0][3:4])
    assert np.array_equal(kernel_features(samples, kernels, values=2 * samples[0].size), found[0])
    assert kernel_features(samples[:0], kernels).shape == (0, 120)


def test_kernels_of_more_variates_than_there_are_are_refused(rng):
    kernels = draw_kernels(50, n_kernels=200, n_variates=4, seed=0)
    with pytest.raises(VariateMismatchError, match=r"have 3 variates, but a kernel looks at variate 4\."):
        kernel_features(np.zeros((1, 3, 50), np.float32), kernels)


# The draw -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_variates", [1, 4, 20])
def test_kernels_are_drawn_as_aeon_draws_them(n_variates):
    """Another generator and so other kernels, of the same distribution."""
    pytest.importorskip("aeon")
    with left_no_trace():
        from aeon.transformations.collection.convolution_based import _rocket

        theirs = Kernels(*_rocket._generate_kernels.py_func(1001, 10_000, n_variates, 5))
    ours = draw_kernels(1001, n_kernels=10_000, n_variates=n_variates, seed=5)
    for name, item in ours._asdict().items():
        other = getattr(theirs, name)
        assert item.dtype == other.dtype, name
        # The weights of one channel sum to 0, so they are less apart by chance than independent numbers.
        assert ks_2samp(item, other).pvalue > 0.001, name


def test_kernels_are_those_of_the_paper():
    ours = draw_kernels(1001, n_kernels=10_000, n_variates=6, seed=1)
    assert set(ours.lengths.tolist()) == {7, 9, 11}
    assert ours.dilations.min() == 1
    assert ((ours.lengths - 1) * ours.dilations <= 1000).all()
    assert (ours.dilations > 100).any()
    half = (ours.lengths - 1) * ours.dilations // 2
    assert np.isin(ours.paddings, [0, *half]).all()
    assert ((ours.paddings == 0) | (ours.paddings == half)).all()
    assert 0.48 < (ours.paddings > 0).mean() < 0.52
    assert (np.abs(ours.biases) <= 1).all()
    for weights, channels, _ in each_kernel(ours):
        assert len(set(channels.tolist())) == len(channels) <= 6
        np.testing.assert_allclose(weights.sum(axis=1), 0, atol=1e-5)


@pytest.mark.parametrize("n_kernels", [0, -3, 2.5, "x"])
def test_a_number_of_kernels_that_is_none_is_refused(n_kernels):
    with pytest.raises(ConfigError, match=f"n_kernels is {n_kernels!r}; a whole number"):
        draw_kernels(100, n_kernels=n_kernels, seed=0)


# On a GPU -------------------------------------------------------------------------------------------------------

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("shape", SHAPES)
def test_features_on_the_gpu_are_those_of_the_cpu(rng, shape):
    samples, kernels = case(rng, shape, n_kernels=2000, n_series=5)
    n_outputs = kernels.n_outputs(samples.shape[2])
    here = kernel_features(samples, kernels)
    there, again = (kernel_features(samples, kernels, device=torch.device("cuda")) for _ in range(2))
    print(f"{shape}: {(here != there).sum()} of {here.size} features differ")
    assert np.array_equal(there, again)
    assert_same(there, here, n_outputs, n_near_zero=1)
    assert (np.abs(here[:, ::2] - there[:, ::2]) > 1e-6).mean() < 0.002


@pytest.mark.gpu
@on_gpu
def test_a_classifier_on_the_gpu_gives_the_same_bytes_again_and_agrees_with_the_cpu():
    data = waves(np.random.default_rng(5), n_series=60)

    def probabilities(device):
        model = RocketClassifier(n_kernels=500, random_state=0, device=device)
        return model.fit(data[:30], validation=data[30:40]).predict_proba(data[40:])

    there = probabilities("cuda")
    assert np.array_equal(there, probabilities("cuda"))
    np.testing.assert_allclose(there, probabilities("cpu"), atol=1e-2)
