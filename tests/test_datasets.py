from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal
from scripts.make_sample import encode, make_sample

from raxss.data.datasets import DATASETS, load_dataset, load_sample
from raxss.data.datasets.sample import decode
from raxss.errors import DataError

ROOT = Path(__file__).parents[1]
SOURCE = ROOT.parent / "shared" / "data" / "cinc2017"
SAMPLE = ROOT / "src" / "raxss" / "data" / "datasets" / "sample"


def test_the_sample_has_four_hundred_records_of_natural_lengths_in_millivolts():
    sample = load_sample()
    assert Counter(sample.labels.tolist()) == {"AF": 200, "normal": 200}
    assert sample.groups.tolist() == sample.names
    assert len(set(sample.names)) == len({item.samples.tobytes() for item in sample}) == 400
    lengths = np.array([item.n_samples for item in sample])
    assert (lengths.min(), lengths.max(), len(np.unique(lengths)) > 50) == (2956, 18062, True)
    assert {item.rate for item in sample} == {300.0}
    assert {item.samples.dtype for item in sample} == {np.dtype(np.float32)}
    deviations = [item.samples.std() for item in sample]
    assert 0.1 < np.median(deviations) < 0.5  # an ECG at the hands is a fraction of a millivolt


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


@pytest.mark.skipif(
    not SOURCE.is_dir(),
    reason=f"CinC 2017 is not in {SOURCE}: unpack training2017.zip of physionet.org/content/challenge-2017 there",
)
def test_the_sample_is_what_the_script_draws_from_the_source():
    made = make_sample(SOURCE)
    with np.load(SAMPLE / "cinc2017.npz", allow_pickle=False) as stored:
        assert sorted(stored) == sorted(made)
        for name in made:
            assert_array_equal(stored[name], made[name])


def test_an_unknown_dataset_is_answered_with_the_nearest_name():
    with pytest.raises(
        DataError, match=r"'sampel'; did you mean 'sample'\? Known: sample, synthetic, .*bern-barcelona"
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
