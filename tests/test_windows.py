"""Windows: where they lie, when they begin, and that they are views."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import naive
from raxss.data.series import Series
from raxss.errors import ConfigError
from raxss.method.windows import window_starts, windows_of

sizes = st.integers(1, 60)


@given(n_samples=st.integers(1, 300), window_length=sizes, stride=sizes)
def test_starts_match_the_naive_loop(n_samples, window_length, stride):
    starts = window_starts(n_samples, window_length=window_length, stride=stride)
    assert starts.dtype == np.int64
    assert starts.tolist() == naive.starts_of(n_samples, window_length, stride)


@given(
    n_variates=st.integers(1, 3), n_samples=st.integers(1, 200), window_length=sizes, stride=st.integers(1, 9)
)
def test_each_window_holds_the_samples_from_its_start_on(n_variates, n_samples, window_length, stride):
    samples = np.arange(n_variates * n_samples, dtype=np.int32).reshape(n_variates, n_samples)
    windows = windows_of(Series(samples), window_length=window_length, stride=stride)
    assert windows.samples.shape == (len(windows), n_variates, window_length)
    assert windows.samples.dtype == samples.dtype
    assert windows.length == window_length
    for start, window in zip(windows.starts, windows.samples, strict=True):
        held = samples[:, start : start + window_length]
        assert_array_equal(window[:, : held.shape[1]], held)
        assert not window[:, held.shape[1] :].any()
        assert window_length - held.shape[1] == windows.n_padded


def test_a_long_recording_is_cut_without_memory():
    samples = np.zeros((1, 2_000_000), dtype=np.float32)  # copies would take 1.6 GB
    windows = windows_of(Series(samples), window_length=1024, stride=5)
    assert windows.samples.nbytes > 1.6e9
    assert np.may_share_memory(windows.samples, samples)
    assert windows.samples.strides == (5 * 4, samples.strides[0], 4)


def test_windows_cannot_be_written_to():
    windows = windows_of(Series(np.zeros(20)), window_length=8, stride=4)
    with pytest.raises(ValueError, match="read-only"):
        windows.samples[0, 0, 0] = 1.0


def test_times_are_seconds_within_the_recording():
    series = Series(np.zeros(1000), rate=250.0, start_seconds=60.0)
    windows = windows_of(series, window_length=500, stride=125)
    assert_allclose(windows.start_seconds, [60.0, 60.5, 61.0, 61.5, 62.0])
    assert_allclose(windows.end_seconds, [62.0, 62.5, 63.0, 63.5, 64.0])


def test_a_padded_window_ends_with_its_series():
    series = Series([[1.0, 2.0, 3.0]], rate=2.0, start_seconds=10.0)
    windows = windows_of(series, window_length=5, stride=1)
    assert windows.samples.tolist() == [[[1.0, 2.0, 3.0, 0.0, 0.0]]]
    assert windows.n_padded == 2
    assert windows.start_seconds.tolist() == [10.0]
    assert windows.end_seconds.tolist() == [11.5]


@pytest.mark.parametrize(("window_length", "stride"), [(0, 5), (8, 0), (-3, 1)])
def test_a_length_or_stride_below_one_is_refused_by_value(window_length, stride):
    with pytest.raises(ConfigError, match=f"window_length={window_length} and stride={stride}"):
        window_starts(10, window_length=window_length, stride=stride)


@given(
    n_samples=st.integers(1, 60),
    window_length=st.integers(1, 20),
    stride=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_windows_with_more_than_half_of_their_samples_missing_cannot_be_used(
    n_samples, window_length, stride, seed
):
    generator = np.random.default_rng(seed)
    samples = np.zeros((2, n_samples))
    bad = generator.random(samples.shape) < generator.choice([0.05, 0.3])
    samples[bad] = generator.choice([np.nan, np.inf, -np.inf], size=int(bad.sum()))
    windows = windows_of(Series(samples), window_length=window_length, stride=stride)
    shares = [
        np.mean([not np.isfinite(column).all() for column in window.T][:n_samples])
        for window in windows.samples
    ]
    np.testing.assert_allclose(windows.missing_share, shares, rtol=0, atol=1e-15)
    assert windows.unusable.tolist() == [share > 0.5 for share in shares]
