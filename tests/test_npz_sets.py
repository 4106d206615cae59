"""The fifteen sets: the real files against their READMEs, broken ones, and their published splits in a study."""

import re
from collections import Counter

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from raxss import Series, SeriesCollection
from raxss.benchmark.evaluation_set import views_of
from raxss.benchmark.statistics import differences, resampled
from raxss.benchmark.study import Study
from raxss.benchmark.table import Work, run_table
from raxss.data.datasets import DATASETS, load_dataset, plan_dataset
from raxss.data.datasets.collections.npz_sets import NpzSet
from raxss.data.splits import official_split
from raxss.errors import ConfigError, DataError, RecordingError
from small_datasets import all_in_one

SETS = [name for name, item in DATASETS.items() if isinstance(item, NpzSet)]


@pytest.fixture
def small(tmp_path):
    """A small copy of a set, and its arrays written anew with some of them changed."""

    def write(name="PLAID", **changes):
        folder = tmp_path / "more" / name
        folder.mkdir(parents=True, exist_ok=True)
        all_in_one(folder, name)
        with np.load(folder / f"{name}.npz") as stored:
            arrays = dict(stored)
        np.savez(
            folder / f"{name}.npz",
            **{key: item for key, item in (arrays | changes).items() if item is not None},
        )
        return tmp_path

    return write


# --- the real files, as their READMEs describe them


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_as_its_readme_says(name, shared_data):
    if not (shared_data / "more" / name).is_dir():
        pytest.skip(f"{name} is not beside the repository")
    text = (shared_data / "more" / name / "README.md").read_text("utf-8")
    plan = plan_dataset(name, root=shared_data)
    said = dict(re.findall(r"(\S+): (\d+)(?:, |$)", re.search(r"^- classes: (.*)$", text, re.M)[1]))
    counts = Counter(series.label for _, series in plan)
    assert {label: int(n) for label, n in said.items()} == counts
    assert set(DATASETS[name].labels) == set(counts)
    groups = {series.origin[DATASETS[name].group_by] for _, series in plan}
    assert len(groups) == int(re.search(r"- groups: (\d+)", text)[1])
    series = load_dataset(name, root=shared_data)
    lengths = [item.n_samples for item in series]
    numbers = re.search(
        r"variates: (\d+); lengths min/median/max: \[(\d+), (\d+), (\d+)\]; rate: (\S+) Hz", text
    )
    variates, least, median, most = map(int, numbers.groups()[:4])
    assert ({item.n_variates for item in series}, min(lengths), max(lengths)) == ({variates}, least, most)
    assert int(np.median(lengths)) == median
    assert {item.rate for item in series} == {float(numbers[5]) or 1.0}
    with np.load(shared_data / "more" / name / f"{name}.npz", allow_pickle=False) as stored:
        flat, ends = stored["flat"], np.cumsum(stored["lengths"])
    for place in (0, len(series) // 2, len(series) - 1):
        assert_array_equal(series[place].samples, flat[:, ends[place] - lengths[place] : ends[place]])


def test_the_published_split_of_the_real_file_is_used(shared_data):
    if not (shared_data / "more" / "ECG200").is_dir():
        pytest.skip("ECG200 is not beside the repository")
    parts = DATASETS["ECG200"].official_parts(shared_data / "more" / "ECG200")
    assert list(parts.values()) == ["train"] * 100 + ["test"] * 100


# --- broken files


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"lengths": np.full(22, 3)},
            r"'PLAID.npz' of PLAID has flat of shape \(1, \d+\) and 22 lengths .* 66; ",
        ),
        ({"flat": np.zeros(1111, np.float32)}, r"flat of shape \(1111,\)"),
        ({"g": np.array(["a", "b"])}, "y, g, split as long as lengths"),
        ({"y": np.full(22, "11")}, "has the labels '11'; needed are 0, 1, 10"),
        ({"split": np.full(22, "dev")}, "a split into 'dev'; needed are 'train' and 'test'"),
        ({"rate": np.array(250.0)}, "has the rate 250; needed is 1, or 0 where it is not known"),
        ({"split": None}, r"cannot be read \(.*split.npy"),
        ({"y": np.array([{}] * 22, dtype=object)}, "holds Python objects"),
    ],
)
def test_a_file_that_is_not_the_set_is_refused(small, changes, message):
    with pytest.raises(RecordingError, match=message):
        plan_dataset("PLAID", root=small(**changes))


def test_a_file_that_is_cut_short_is_refused(small):
    path = small() / "more" / "PLAID" / "PLAID.npz"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(RecordingError, match=r"'PLAID.npz' of PLAID cannot be read"):
        plan_dataset("PLAID", root=path.parents[2])


def test_a_site_is_the_centre_and_a_person_the_patient(small):
    (_, first), *_ = plan_dataset("PascalHeart", root=small("PascalHeart"))
    assert first.origin == {"centre": "a", "patient": "a", "recording": "PascalHeart-0000"}


# --- published splits


def series_of(n, people=()):
    origins = [
        {"recording": f"s{k}"} | ({"patient": people[k % len(people)]} if people else {}) for k in range(n)
    ]
    return SeriesCollection(
        Series([0.0], label=k // 2 % 2, name=f"s{k}", origin=origin) for k, origin in enumerate(origins)
    )


def test_the_test_part_is_the_same_for_all_seeds_which_draw_the_rest():
    parts = {f"s{k}": "test" if k % 3 == 0 else "train" for k in range(60)}
    found = [official_split(series_of(60), parts, seed=seed) for seed in (1, 2)]
    assert {tuple(one.test) for one in found} == {tuple(range(0, 60, 3))}
    assert found[0].validation.tolist() != found[1].validation.tolist()
    for one in found:
        assert sorted([*one.train, *one.validation, *one.test]) == list(range(60))
        assert (one.leaky, one.fold, len(one.validation)) == (False, None, 5)


def test_a_published_split_with_the_same_people_on_both_sides_is_called_leaky():
    parts = {f"s{k}": "test" if k < 10 else "train" for k in range(40)}
    split = official_split(series_of(40, people=("ann", "bob")), parts, seed=1)
    assert split.leaky
    assert split.description == "official split, by recording (leaky: patients shared)"


def test_series_without_a_part_are_refused():
    with pytest.raises(
        DataError, match=r"2 of 4 series have no place in the official split, the first is 's2'"
    ):
        official_split(series_of(4), {"s0": "train", "s1": "test"}, seed=1)


STUDY = """
systems = ["features-forest", "statistics-forest"]
seeds = [1, 2, 3]
[split]
kind = "folds"
by = "patient"
[dataset]
data = "PLAID"
split = { kind = "official" }
[system.features-forest]
n_trees = 5
[system.statistics-forest]
n_trees = 5
"""


def test_systems_are_compared_on_the_same_test_series_of_a_published_split(small, tmp_path):
    root = small()
    outcome = run_table(Study.from_toml(STUDY), tmp_path / "out", work=Work(device="cpu"), root=root)
    assert len(outcome.results) == 6
    assert len({one.names for one in outcome.results}) == 1
    assert {one.split["description"] for one in outcome.results} == {"official split, by recording"}
    found = differences(resampled(outcome.results, n_resamples=50), ["features-forest"], ["accuracy"])
    assert (found["n_seeds"].item(), found["n_groups"].item()) == (3, 11)
    page = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "Split: official split, by recording." in page
    assert "Some series are in the test part of several seeds" in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ('data = "PLAID"', 'data = "synthetic"'),
            "needs a dataset with a published split, which 'synthetic' does",
        ),
        (
            ('kind = "official"', 'kind = "official", by = "patient"'),
            "split.by = 'patient' does not go with kind = 'off",
        ),
    ],
)
def test_a_published_split_that_there_is_not_is_refused(small, tmp_path, change, message):
    root = small()
    with pytest.raises(ConfigError, match=message):
        views_of(Study.from_toml(STUDY.replace(*change)), tmp_path / "data", root=root)
