"""The audit on all real data: what it finds of planted copies, what it makes of neighbours, how long it takes."""

import time
from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import lfilter

from raxss.data.near_duplicates import find_near_duplicates
from raxss.data.series import Series
from test_leakage import COPIES, bids_clip, dataset, pt01

pytestmark = pytest.mark.slow


def cinc2017(folder):
    """In units of the converter, as stored: in mV, rounding to integers would leave nothing."""
    return [item.with_samples(np.round(1000 * item.samples)) for item in dataset("cinc2017", folder)]


SETS = {
    **{
        name: lambda folder, name=name: list(dataset(name, folder))
        for name in ("bern-barcelona", "bonn", "watch")
    },
    "cinc2017": cinc2017,
    "pt01": lambda folder: list(pt01(folder, "84ch_-1s_+2s")),
    "clip": lambda folder: list(bids_clip(folder)),
}


@pytest.mark.parametrize("name", SETS)
def test_no_two_channels_of_real_data_are_taken_for_copies(name, shared_data):
    """Neighbours land in different parts at random: the hardest case for false alarms."""
    series = SETS[name](shared_data)
    for seed in range(1 if name == "cinc2017" else 4):
        parts = np.random.default_rng(seed).choice(3, len(series), p=[0.5, 0.2, 0.3])
        assert find_near_duplicates(series, parts) == []


@pytest.mark.parametrize("name", ["bern-barcelona", "bonn", "pt01", "cinc2017"])
def test_copies_planted_in_real_data_are_found(name, shared_data):
    """Each kind of copy of six series each, all at once, among all the others."""
    series = SETS[name](shared_data)[:600]
    rng = np.random.default_rng(1)
    kinds = [kind for kind in COPIES if not any(word in kind for word in ("cropped", "half", "float16"))]
    planted = []
    for kind in kinds:
        for source in rng.choice(len(series), 6, replace=False):
            samples, faster = COPIES[kind](series[source].samples.astype(np.float64))
            copy = replace(series[source], samples=samples, rate=series[source].rate * faster)
            planted.append((int(source), kind, copy))
    copies = find_near_duplicates(
        [*series, *(copy for _, _, copy in planted)], [0] * len(series) + [1] * len(planted)
    )
    found = {(item.first, item.second) for item in copies if item.first < len(series) <= item.second}
    wanted = {(source, len(series) + place): kind for place, (source, kind, _) in enumerate(planted)}
    missed = [kind for pair, kind in wanted.items() if pair not in found]
    wrong = found - set(wanted)
    assert not wrong
    assert len(missed) <= 0.02 * len(wanted), missed


def test_ten_thousand_series_take_about_a_minute():
    rng = np.random.default_rng(0)
    samples = lfilter([1.0], [1.0, -0.95], rng.normal(size=(10_000, 5000)), axis=1).astype(np.float32)
    series = [Series(sample) for sample in samples]
    parts = rng.choice(3, len(series), p=[0.7, 0.1, 0.2])
    began = time.perf_counter()
    assert find_near_duplicates(series, parts) == []
    assert time.perf_counter() - began < 300  # 20 s on two idle cores
