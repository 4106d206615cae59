import importlib.util
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal

from raxss.data.datasets import DATASETS, load_dataset, load_sample
from raxss.data.datasets.sample import decode, encode
from raxss.errors import DataError

ROOT = Path(__file__).parents[1]
SOURCE = ROOT.parent / "shared" / "data" / "cinc2017"
SAMPLE = ROOT / "src" / "raxss" / "data" / "datasets" / "sample"


@pytest.fixture(scope="module")
def sample():
    return load_sample()


def test_the_sample_has_two_hundred_records_of_each_class(sample):
    labels, counts = np.unique(sample.labels, return_counts=True)
    assert dict(zip(labels.tolist(), counts.tolist(), strict=True)) == {"AF": 200, "normal": 200}


def test_the_sample_keeps_natural_lengths_in_millivolts(sample):
    lengths = np.array([item.n_samples for item in sample])
    assert (lengths.min(), lengths.max(), len(np.unique(lengths)) > 50) == (2956, 18062, True)
    assert {item.rate for item in sample} == {300.0}
    assert {item.samples.dtype for item in sample} == {np.dtype(np.float32)}
    deviations = [item.samples.std() for item in sample]
    assert 0.1 < np.median(deviations) < 0.5  # an ECG at the hands is a fraction of a millivolt


def test_every_record_of_the_sample_is_its_own_group_and_no_signal_comes_twice(sample):
    assert sample.groups.tolist() == sample.names
    assert len(set(sample.names)) == len({item.samples.tobytes() for item in sample}) == 400


def test_the_sample_is_small_and_says_where_it_comes_from():
    assert (SAMPLE / "cinc2017.npz").stat().st_size == DATASETS["sample"].size < 3_000_000
    for file in ("README.md", "LICENSE.txt"):
        text = " ".join((SAMPLE / file).read_text().split())
        assert "10.22489/CinC.2017.065-469" in text
        assert "Open Data Commons Attribution License v1.0" in text
    assert "https://opendatacommons.org/licenses/by/1-0/" in (SAMPLE / "LICENSE.txt").read_text()


@settings(derandomize=True, deadline=None)
@given(arrays(np.int16, st.integers(1, 50), elements=st.integers(-(2**15), 2**15 - 1)))
def test_packing_the_samples_loses_nothing(samples):
    assert_array_equal(decode(encode(samples)), samples)


@pytest.mark.skipif(not SOURCE.is_dir(), reason="the source folder of CinC 2017 is not beside this checkout")
def test_the_sample_is_what_the_script_draws_from_the_source():
    pytest.importorskip("wfdb")
    spec = importlib.util.spec_from_file_location("make_sample", ROOT / "scripts" / "make_sample.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made = script.make_sample(SOURCE)
    with np.load(SAMPLE / "cinc2017.npz", allow_pickle=False) as stored:
        assert sorted(stored) == sorted(made)
        for name in made:
            assert_array_equal(stored[name], made[name])


@pytest.mark.parametrize("name", ["sample", "synthetic"])
def test_a_named_dataset_loads_the_same_every_time(name):
    first, again = load_dataset(name), load_dataset(name)
    assert first.names == again.names
    assert all(np.array_equal(a.samples, b.samples) for a, b in zip(first, again, strict=True))


def test_an_unknown_dataset_is_answered_with_the_nearest_name():
    with pytest.raises(
        DataError, match=r"'sampel'; did you mean 'sample'\? Known: sample, synthetic, bern-barcelona"
    ):
        load_dataset("sampel")
    with pytest.raises(DataError, match=r"'zzz'\. Known: sample, .*, ds003029\. For data of your own"):
        load_dataset("zzz")


def test_only_the_sample_and_the_tables_come_with_the_package():
    folder = ROOT / "src" / "raxss" / "data" / "datasets"
    data = {
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc")
    }
    assert data == {
        "sample/LICENSE.txt",
        "sample/README.md",
        "sample/cinc2017.npz",
        "tables/ds003029_sidecars.tsv",
        "tables/ds003029_signals.tsv",
    }
    research_only = [item.name for item in DATASETS.values() if not item.may_ship]
    assert {"bern-barcelona", "bonn"} <= set(research_only)
    assert all(DATASETS[name].where == "disk" for name in research_only)
