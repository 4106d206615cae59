"""Long recordings: memory that grows with the windows' lists alone, and a foretold end. `make test-slow`."""

import pytest
from benchmarks.prediction import long_channel

pytestmark = pytest.mark.slow

DAY = 1_439_796  # windows of 24 h at 1 kHz, pooled 24/12, stride 5


@pytest.fixture(scope="module")
def by_hours():
    settings = {"bank": "local", "bank_size": 4096, "window_length": 256}
    long_channel("cpu", 0.05, **settings)  # compiles what is left to compile, which takes memory too
    return {hours: long_channel("cpu", hours, **settings) for hours in (1, 3)}


def test_a_day_fits_into_two_gigabytes(by_hours):
    short, long = by_hours[1], by_hours[3]
    a_window = (long["peak_gb"] - short["peak_gb"]) / (long["n_windows"] - short["n_windows"])
    print(f"{1e9 * a_window:.0f} bytes a window; 3 h take {long['peak_gb']:.2f} GB")
    assert long["peak_gb"] + a_window * (DAY - long["n_windows"]) < 2.0


def test_a_long_channel_tells_how_far_it_is_and_which_bank_it_had(by_hours):
    long = by_hours[3]
    print(long["foretold_seconds"], long["seconds"])
    assert long["progress_reports"] > 50
    assert long["foretold_seconds"]["50%"] == pytest.approx(long["seconds"], rel=0.7)
    assert any("among 4,096 windows (the nearest in time" in item for item in long["warnings"])
