import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.testing import assert_allclose, assert_array_equal

from raxss.data.synthetic import make_motif_series
from raxss.errors import ConfigError


@pytest.fixture(scope="module")
def planted():
    return make_motif_series()


def pearson_support(samples, length, stride, n_neighbors, exclusion):
    """Mean Pearson similarity to the best neighbors, by one matrix product."""
    windows = sliding_window_view(samples, length)[::stride].astype(float)
    windows = windows - windows.mean(axis=1, keepdims=True)
    windows /= np.linalg.norm(windows, axis=1, keepdims=True)
    starts = np.arange(len(windows)) * stride
    similarity = windows @ windows.T
    similarity[np.abs(starts[:, None] - starts) <= exclusion] = -np.inf
    return np.sort(similarity, axis=1)[:, -n_neighbors:].mean(axis=1), starts


def test_the_same_seed_gives_the_same_series_and_another_seed_others(planted):
    again, other = make_motif_series(), make_motif_series(seed=1)
    for first, second in zip(planted.series, again.series, strict=True):
        assert_array_equal(first.samples, second.samples)
    assert_array_equal(planted.motif, again.motif)
    assert not np.array_equal(planted.motif, other.motif)


def test_each_positive_series_has_five_motifs_or_more_that_do_not_overlap(planted):
    for series, starts in zip(planted.series, planted.motif_starts, strict=True):
        assert (len(starts) >= 5) == (series.label == "motif")
        assert (len(starts) == 0) == (series.label == "noise")
        assert np.all(np.diff(starts) >= planted.motif_length)
        assert np.all((starts >= 0) & (starts + planted.motif_length <= series.n_samples))


def test_the_motif_lies_at_its_starts(planted):
    length = planted.motif_length
    found = [
        series.samples[0, start : start + length]
        for series, starts in zip(planted.series, planted.motif_starts, strict=True)
        for start in starts
    ]
    assert_allclose(np.mean(found, axis=0) / 2, planted.motif[0], atol=0.2)  # noise of 1 / sqrt(n) / 2


def test_lengths_differ_and_stay_within_the_given_range(planted):
    lengths = {item.n_samples for item in planted.series}
    assert len(lengths) > 10
    assert 2000 <= min(lengths) <= max(lengths) <= 6000


def test_energy_does_not_give_the_class_away(planted):
    energy = np.array([item.samples.var() for item in planted.series])
    positive = planted.series.labels == "motif"
    deviation = energy.std() / np.sqrt(positive.sum())
    assert abs(energy[positive].mean() - energy[~positive].mean()) < 2 * deviation


def test_windows_at_the_motif_have_more_support_than_all_others_with_an_exclusion_zone(planted):
    length = planted.motif_length
    for index in range(0, len(planted.series), 2):
        support, starts = pearson_support(planted.series[index].samples[0], length, 8, 10, length // 2)
        distance = np.abs(starts[:, None] - planted.motif_starts[index]).min(axis=1)
        assert support[distance <= 4].mean() > support[distance >= length].mean() + 0.1
        assert support[distance <= 4].min() > support[distance >= length].max()
        if index == 0:
            noise, _ = pearson_support(planted.series[1].samples[0], length, 8, 10, length // 2)
            assert noise.max() < support.max()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_samples": (600, 900)}, r"5 motifs of 128 samples.*at least 640.*\(600, 900\)"),
        ({"n_samples": (3000, 2000)}, r"\(3000, 2000\)"),
        ({"n_series": 0}, "n_series=0"),
        ({"motif_length": 3}, "motifs of 3 samples"),
    ],
)
def test_motifs_that_do_not_fit_are_refused_with_the_length_they_need(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_motif_series(**settings)
