"""Tables whose columns are not all channels: time axes, counters, headers of numbers."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from plain_files import read_series
from raxss.data.formats import FORMATS
from raxss.data.inspection.front import inspect_file
from raxss.errors import RecordingError

SIGNAL = np.random.default_rng(17).normal(size=(2, 600)).round(4)
TIMES = np.arange(600) / 250


def written(folder, header, *columns):
    rows = [",".join(f"{value:.15g}" for value in row) for row in np.column_stack(columns)]
    path = folder / "a.csv"
    path.write_text("\n".join([*([header] if header else []), *rows, ""]))
    return path


def codes(path):
    return [item.code for item in FORMATS["CSV"].inspect(path, path.parent)]


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("time", 1), ("Time", 1), ("t", 1), ("TIMESTAMP", 1), ("seconds", 1), ("time (s)", 1), ("Time [s]", 1),
        ("time_s", 1), ("t/s", 1), ("elapsed time", 1), ("ms", 1000), ("time (ms)", 1000), ("Time_ms", 1000),
        ("t [us]", 1e6), ("time in ms", 1000), ("milliseconds", 1000),
    ],
)  # fmt: skip
def test_a_column_of_times_is_the_time_axis_and_no_channel(tmp_path, name, scale):
    path = written(tmp_path, f"{name},C3,C4", (TIMES + 2) * scale, *SIGNAL)
    series = read_series(path)
    assert (series.rate, series.start_seconds, series.n_variates) == (250.0, 2.0, 2)
    assert_array_equal(series.samples, SIGNAL)
    assert codes(path) == ["time-column"]  # and so no unknown rate
    (problem,) = inspect_file(path).problems
    assert f"'{name}' is the time axis, at 250 Hz; it is no channel" in problem.message
    assert read_series(path, channel="C4").n_variates == read_series(path, channel=1).n_variates == 1
    assert_array_equal(read_series(path, channel=1).samples, SIGNAL[1:])


@pytest.mark.parametrize("name", ["index", "Sample", "sample_number", "", "Unnamed: 0", "time"])
def test_a_column_that_counts_samples_is_no_channel_and_tells_no_rate(tmp_path, name):
    path = written(tmp_path, f"{name},C3,C4", np.arange(600), *SIGNAL)
    assert_array_equal(read_series(path).samples, SIGNAL)
    assert codes(path) == ["time-column", "rate-unknown"]
    assert read_series(path, rate=100).rate == 100


def test_times_may_stand_anywhere_and_beside_a_counter(tmp_path):
    path = written(tmp_path, "index,C3,time,C4", np.arange(600), SIGNAL[0], TIMES, SIGNAL[1])
    assert_array_equal(read_series(path).samples, SIGNAL)
    assert read_series(path).rate == 250


@pytest.mark.parametrize(
    ("rate", "digits"), [(256, 3), (128, 3), (249.85, 4), (1000, 3), (44100, 9), (1 / 30, 0)]
)
def test_the_rate_of_rounded_times_is_the_shortest_that_they_allow(tmp_path, rate, digits):
    times = np.round(np.arange(6000) / rate, digits)
    path = written(tmp_path, "time (s),C3", times, np.sin(np.arange(6000)))
    assert read_series(path).rate == pytest.approx(rate, rel=1e-4)
    if rate == 256:
        assert read_series(path).rate == 256


def test_a_date_is_no_time_within_the_recording(tmp_path):
    series = read_series(written(tmp_path, "timestamp (s),C3", 1.7e9 + TIMES, SIGNAL[0]))
    assert (series.rate, series.start_seconds) == (250.0, 0.0)


@pytest.mark.parametrize(
    ("header", "first", "message"),
    [
        ("time,C3", np.r_[TIMES[:300], TIMES[300:] + 1], "'time' does not rise evenly"),
        ("time,C3", TIMES[::-1], "'time' does not rise evenly"),
        ("time,C3", np.r_[TIMES[:599], np.nan], "'time' does not rise evenly"),
        ("time (s),C3", np.round(TIMES, 2), r"'time \(s\)' does not rise evenly.*more digits"),
        ("time,C3", np.arange(600) * 4, r"'time' rises by more than 1 .*no unit.*'time \(ms\)'"),
        ("index,C3", np.r_[np.arange(300), np.arange(301, 601)], "'index' counts samples.*missing"),
        ("Zeit,C3", TIMES, r"first column rises evenly.*'time \(s\)'"),
        ("", TIMES, r"first column rises evenly.*'time \(s\)'"),
        ("", np.arange(600) * 4 + 7, "first column rises evenly"),
    ],
)
def test_times_that_cannot_be_used_are_refused_with_what_to_do(tmp_path, header, first, message):
    path = written(tmp_path, header, first, SIGNAL[0])
    assert codes(path) == ["time-doubtful"]
    with pytest.raises(RecordingError, match=rf"\[time-doubtful\].*{message}"):
        read_series(path)


def test_two_columns_of_times_are_refused(tmp_path):
    path = written(tmp_path, "time,C3,t (ms)", TIMES, SIGNAL[0], TIMES * 1000)
    with pytest.raises(RecordingError, match=r"2 columns of times, 'time' and 't \(ms\)'"):
        read_series(path)


def test_a_name_of_a_person_above_a_ramp_is_not_quoted(tmp_path):
    path = written(tmp_path, "Jane Doe,C3", TIMES, SIGNAL[0])
    assert "Jane" not in " ".join(item.message for item in FORMATS["CSV"].inspect(path, tmp_path))


def test_a_given_rate_is_held_against_the_times(tmp_path):
    path = written(tmp_path, "time,C3", TIMES, SIGNAL[0])
    assert read_series(path, rate=250).rate == 250
    assert read_series(path, rate=250.01).rate == 250.01  # times are rounded; what is given is exact
    with pytest.raises(RecordingError, match="says 250 Hz itself, and 500 Hz was asked for"):
        read_series(path, rate=500)


def test_times_without_channels_are_no_recording(tmp_path):
    assert codes(written(tmp_path, "time,index", TIMES, np.arange(600))) == ["no-data"]


@pytest.mark.parametrize("header", ["C3,C4", "V1,V2", "S1,S2", "T3,T4", "tp,tm", "sample A,sample B"])
def test_names_of_channels_are_not_taken_for_times(tmp_path, header):
    path = written(tmp_path, header, *SIGNAL)
    assert_array_equal(read_series(path).samples, SIGNAL)
    assert codes(path) == ["rate-unknown"]


def test_short_or_lone_columns_that_rise_are_signals(tmp_path):
    assert read_series(written(tmp_path, "left,right", [1, 2, 3], [10, 20, 30])).n_variates == 2
    assert read_series(written(tmp_path, "samples", np.arange(100))).n_samples == 100
    assert read_series(written(tmp_path, "", np.arange(100))).n_samples == 100


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_what_pandas_writes_is_read_as_it_was_meant_or_refused(tmp_path, index, named):
    frame = pd.DataFrame(SIGNAL.T, columns=["C3", "C4"] if named else None)
    frame.to_csv(tmp_path / "a.csv", index=index)
    if not index and not named:  # a header 0,1
        with pytest.raises(
            RecordingError, match=r"\[header-doubtful\] the first line, 0,1, counts.*\(0\.0\)"
        ):
            read_series(tmp_path / "a.csv")
        return
    assert_array_equal(read_series(tmp_path / "a.csv").samples, SIGNAL)
