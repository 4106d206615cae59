"""Series and collections of them."""

import pickle

import numpy as np
import pytest

from raxss.data.series import Series, SeriesCollection
from raxss.errors import DataError, EmptyDataError, LabelError


def test_the_digest_is_of_the_samples_alone():
    item = Series([1.0, 2.0, 3.0, 4.0], name="a", rate=5.0)
    assert item.digest == Series(np.array([[1, 2, 3, 4]]), name="b", label="x").digest
    assert item.digest != Series([1.0, 2.0, 3.0, 5.0]).digest
    assert item.digest != Series([[1.0, 2.0], [3.0, 4.0]]).digest  # the same bytes in another shape


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
def test_arrays_of_numbers_are_kept_without_a_copy(dtype):
    samples = np.arange(6, dtype=dtype).reshape(2, 3)
    series = Series(samples)
    assert series.samples.dtype == dtype
    assert np.shares_memory(series.samples, samples)


def test_sequences_become_one_variate_and_booleans_and_objects_floats():
    assert Series([1.0, 2.0, 3.0]).samples.tolist() == [[1.0, 2.0, 3.0]]
    assert Series([True, False]).samples.tolist() == [[1.0, 0.0]]
    assert Series(np.array([1, 2.5], dtype=object)).samples.dtype == np.float64


def test_other_samples_keep_everything_else():
    series = Series([1.0, 2.0], 4.0, "a", ("p1", 2), "lead II", 1.5, True)
    with pytest.raises(AttributeError):
        series.rate = 2.0
    other = series.with_samples([[5.0]])
    assert other.samples.tolist() == [[5.0]]
    for name in ("rate", "label", "group", "name", "start_seconds", "gaps_marked"):
        assert getattr(other, name) == getattr(series, name)


@pytest.mark.parametrize(
    ("samples", "error", "message"),
    [
        (np.zeros((2, 3, 4)), DataError, r"'lead 7' has an array of 3 dimensions, shape \(2, 3, 4\)"),
        (3.0, DataError, r"'lead 7' has an array of 0 dimensions"),
        ([], EmptyDataError, r"'lead 7' has no samples \(shape \(1, 0\)\)"),
        (np.zeros((2, 0)), EmptyDataError, r"'lead 7' has no samples \(shape \(2, 0\)\)"),
        ([[1, 2], [3]], DataError, r"'lead 7' is no array .*inhomogeneous"),
        (np.array(["a", "b"]), DataError, r"'lead 7' has samples of type <U1.*'a'"),
        (np.array([1 + 2j]), DataError, r"'lead 7' has complex samples"),
    ],
)
def test_samples_that_are_no_series_are_refused_by_name(samples, error, message):
    with pytest.raises(error, match=message):
        Series(samples, name="lead 7")


@pytest.mark.parametrize("rate", [0, -1.0, np.nan, np.inf])
def test_a_rate_that_is_none_is_refused_by_name_and_value(rate):
    with pytest.raises(DataError, match=f"'lead 7' has a rate of {rate} Hz"):
        Series([1.0], rate=rate, name="lead 7")


def collection():
    return SeriesCollection(
        Series([float(k)] * (k + 1), label="ab"[k % 2], group=k // 2, name=f"s{k}") for k in range(4)
    )


def test_a_collection_is_a_sequence_of_its_series():
    some = collection()
    assert len(some) == 4
    assert [item.name for item in some] == ["s0", "s1", "s2", "s3"] == some.names
    assert some[-1].name == "s3"
    assert some[np.int64(1)].name == "s1"


@pytest.mark.parametrize(
    "key",
    [slice(1, 3), [1, 2], np.array([1, 2]), np.array([False, True, True, False]), [False, True, True, False]],
)
def test_slices_lists_and_masks_pick_the_same_series(key):
    picked = collection()[key]
    assert isinstance(picked, SeriesCollection)
    assert picked.names == ["s1", "s2"]


def test_labels_and_groups_have_one_entry_a_series():
    assert collection().labels.tolist() == ["a", "b", "a", "b"]
    assert collection().groups.tolist() == [0, 0, 1, 1]
    groups = SeriesCollection([Series([1], group=("p1", 1)), Series([1], group=("p1", 2))]).groups
    assert groups.shape == (2,)
    assert groups.tolist() == [("p1", 1), ("p1", 2)]


def test_groups_are_none_where_no_series_has_one_and_all_or_none_must():
    assert SeriesCollection([Series([1]), Series([1])]).groups is None
    with pytest.raises(DataError, match="1 of 2 series have no group, the first is 'lonely'"):
        _ = SeriesCollection([Series([1], group="p1"), Series([1], name="lonely")]).groups


def test_the_series_without_a_label_is_named():
    with pytest.raises(LabelError, match="series 'nameless' has no label"):
        _ = SeriesCollection([Series([1], label=0), Series([1], name="nameless")]).labels


def test_what_is_shown_counts_lengths_and_labels():
    assert len(collection()[[]]) == 0
    assert repr(collection()[[]]) == "SeriesCollection(empty)"
    assert repr(collection()) == "SeriesCollection(4 series of 1 to 4 samples, labels: a 2, b 2)"
    assert repr(SeriesCollection([Series([1, 2])])) == "SeriesCollection(1 series of 2 samples)"
    series = pickle.loads(pickle.dumps(Series(np.zeros((2, 5)), rate=2)))
    assert (series.n_variates, series.n_samples, series.seconds) == (2, 5, 2.5)
    assert repr(series) == "Series('series', 2 variates, 5 samples at 2 Hz = 2.5 s)"
