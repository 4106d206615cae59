"""Splits by group: whole groups, every class, fixed by the seed."""

import json
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from raxss.data.series import Series, SeriesCollection
from raxss.data.splits import Split, folds, group_of, groups_by, hold_out, leave_one_out, split_series
from raxss.errors import ConfigError, DataError, LabelError, RecordingError

grouped = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), min_size=1, max_size=60)
fractions = st.floats(0.01, 0.99)
seeds = st.integers(0, 2**32)


@given(series=grouped, fraction=fractions, seed=seeds)
def test_no_group_is_on_both_sides_and_no_series_is_lost(series, fraction, seed):
    labels, groups = map(np.array, zip(*series, strict=True))
    kept, held = hold_out(labels, groups=groups, fraction=fraction, seed=seed)
    assert not set(groups[kept]) & set(groups[held])
    assert sorted([*kept, *held]) == list(range(len(labels)))
    assert (np.diff(kept) > 0).all()
    assert (np.diff(held) > 0).all()


@given(series=grouped, fraction=fractions, seed=seeds)
def test_every_class_of_two_groups_is_on_both_sides(series, fraction, seed):
    labels = np.array([label for label, _ in series])
    groups = np.array([f"{label}{group}" for label, group in series])  # each group is of one class
    kept, held = hold_out(labels, groups=groups, fraction=fraction, seed=seed)
    for label in set(labels):
        assert label in labels[kept]
        assert (label in labels[held]) == (len(set(groups[labels == label])) >= 2)


@given(
    counts=st.lists(st.integers(2, 60), min_size=1, max_size=4), fraction=st.floats(0.05, 0.95), seed=seeds
)
def test_each_class_gives_its_share(counts, fraction, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    _, held = hold_out(labels, fraction=fraction, seed=seed)
    for label, count in enumerate(counts):
        n_held = int((labels[held] == label).sum())
        assert 1 <= n_held <= count - 1
        assert abs(n_held - fraction * count) <= 1


def test_a_group_of_several_labels_counts_under_the_most_frequent():
    labels = ["a", "a", "b", "b"]
    kept, held = hold_out(labels, groups=[1, 1, 1, 2], fraction=0.5, seed=0)
    assert kept.tolist() == [0, 1, 2, 3]  # one group under a, one under b: neither can be spared
    assert held.tolist() == []


def test_every_group_is_held_out_as_often_as_any_other():
    labels = np.zeros(8, dtype=int)
    counts = Counter(index for seed in range(4000) for index in hold_out(labels, fraction=0.25, seed=seed)[1])
    assert len(counts) == 8  # so that seeds differ; each is one split
    assert_array_equal(*(hold_out(labels, fraction=0.25, seed=5)[1] for _ in range(2)))
    assert all(abs(count - 1000) < 5 * 27.4 for count in counts.values())  # binomial: deviation 27.4


@pytest.mark.parametrize("kind", [str, int, lambda index: ("patient", index), lambda index: index / 2])
def test_groups_may_be_anything_that_a_series_has(kind):
    series = SeriesCollection(Series([1.0], label=k % 2, group=kind(k // 4)) for k in range(40))
    kept, held = hold_out(series.labels, groups=series.groups, fraction=0.3, seed=1)
    sides = [{series[int(index)].group for index in side} for side in (kept, held)]
    assert [len(side) for side in sides] == [7, 3]
    assert not sides[0] & sides[1]


# Splits of a collection -------------------------------------------------------------------------------------

PARTS = ("train", "validation", "test")
some = settings(max_examples=30)

# (label, patient) of each series: patients have both classes, as those with a seizure onset zone do
patients = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 11)), min_size=30, max_size=120).filter(
    lambda series: len({patient for _, patient in series}) >= 6
)


def collection_of(series):
    return SeriesCollection(
        Series([0.0], label=label, name=f"s{k:03d}", origin={"patient": f"p{patient}"})
        for k, (label, patient) in enumerate(series)
    )


def names_of(collection, split):
    return [{collection[int(index)].name for index in getattr(split, part)} for part in PARTS]


def patients_of(collection, indices):
    return {collection[int(index)].origin["patient"] for index in indices}


@some
@given(series=patients, seed=seeds)
def test_parts_are_disjoint_and_whole_and_near_their_shares_and_no_patient_is_in_two(series, seed):
    collection = collection_of(series)
    split = split_series(collection, seed=seed)
    members = [getattr(split, part) for part in PARTS]
    assert sorted(np.concatenate(members)) == list(range(len(collection)))
    assert all((np.diff(part) > 0).all() for part in members)
    groups = [patients_of(collection, part) for part in members]
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert (split.by, split.leaky, split.description) == ("patient", False, "patient")
    largest = max(Counter(patient for _, patient in series).values())
    for part, share in zip(PARTS, split.fractions, strict=True):
        assert abs(len(getattr(split, part)) - share * len(series)) <= largest


@some
@given(series=patients, seed=seeds, order=st.randoms(use_true_random=False))
def test_the_order_of_the_series_does_not_matter(series, seed, order):
    collection = collection_of(series)
    shuffled = list(collection)
    order.shuffle(shuffled)
    for options in ({}, {"balance": "train_val"}, {"balance": "before_split"}, {"by": "channel"}):
        first = names_of(collection, split_series(collection, seed=seed, **options))
        again = SeriesCollection(shuffled)
        assert names_of(again, split_series(again, seed=seed, **options)) == first


@some
@given(n_patients=st.lists(st.integers(3, 20), min_size=2, max_size=3), size=st.integers(1, 6), seed=seeds)
def test_a_class_of_three_patients_is_in_every_part(n_patients, size, seed):
    of_class = [(label, f"{label}{patient}") for label, n in enumerate(n_patients) for patient in range(n)]
    collection = collection_of([pair for pair in of_class for _ in range(size)])
    split = split_series(collection, seed=seed)
    for part in PARTS:
        assert set(collection.labels[getattr(split, part)]) == set(range(len(n_patients)))


@some
@given(counts=st.lists(st.integers(10, 80), min_size=2, max_size=4), seed=seeds)
def test_single_series_are_shared_out_to_within_two_of_each_class(counts, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    collection = SeriesCollection(
        Series([0.0], label=label, name=f"s{k:03d}") for k, label in enumerate(labels)
    )
    split = split_series(collection, seed=seed)
    for part, share in zip(PARTS, split.fractions, strict=True):
        for label, count in enumerate(counts):
            assert abs((labels[getattr(split, part)] == label).sum() - share * count) <= 2


def hospital(seed=0, n_patients=24):
    """Patients with 30 to 120 channels, of which a quarter or so are of the seizure onset zone."""
    rng = np.random.default_rng(seed)
    return collection_of(
        [
            ("ab"[int(rng.random() < soz)], patient)
            for patient, soz in enumerate(rng.beta(1, 3, size=n_patients))
            for _ in range(rng.integers(30, 120))
        ]
    )


@pytest.mark.parametrize("seed", range(5))
def test_24_patients_of_both_classes_are_split_near_the_aim(seed):
    collection = hospital(seed)
    split = split_series(collection, seed=seed)
    share = (collection.labels == "b").mean()
    for part, fraction in zip(PARTS, split.fractions, strict=True):
        members = getattr(split, part)
        assert abs(len(members) / len(collection) - fraction) < 0.025
        assert abs((collection.labels[members] == "b").mean() - share) < 0.1


def test_other_seeds_test_other_patients_and_every_patient_gets_its_turn():
    collection = hospital()
    tested = [
        frozenset(patients_of(collection, split_series(collection, seed=seed).test)) for seed in range(40)
    ]
    assert len(set(tested)) > 30
    assert len(frozenset().union(*tested)) == 24


@some
@given(series=patients, seed=seeds, n_folds=st.integers(2, 5))
def test_folds_test_each_series_once(series, seed, n_folds):
    collection = collection_of(series)
    made = folds(collection, n_folds=n_folds, seed=seed)
    assert sorted(np.concatenate([split.test for split in made])) == list(range(len(collection)))
    assert [split.fold for split in made] == [str(fold) for fold in range(n_folds)]
    for split in made:
        assert sorted(np.concatenate([split.train, split.validation, split.test])) == list(range(len(series)))
        groups = [patients_of(collection, getattr(split, part)) for part in PARTS]
        assert sum(map(len, groups)) == len(set().union(*groups))


def with_centres(collection):
    return SeriesCollection(
        replace(item, origin={"centre": "ABCD"[int(item.origin["patient"][1:]) % 4], **item.origin})
        for item in collection
    )


def test_each_centre_is_left_out_once_and_patients_stay_whole():
    collection = with_centres(hospital())
    made = leave_one_out(collection, level="centre", seed=1)
    assert list(made) == ["A", "B", "C", "D"]
    for name, split in made.items():
        assert {collection[int(index)].origin["centre"] for index in split.test} == {name}
        rest = np.concatenate([split.train, split.validation])
        assert name not in {collection[int(index)].origin["centre"] for index in rest}
        assert not patients_of(collection, split.train) & patients_of(collection, split.validation)
        assert len(split.validation) / len(rest) == pytest.approx(0.1, abs=0.03)
        assert (split.by, split.fold, split.description) == ("centre", name, "leave one centre out")
    with pytest.raises(DataError, match=r"from 4 centres; 10 are needed.*leave_one_out"):
        split_series(collection, by="centre", seed=0)


def shafts(n_patients=6):
    """Every patient has electrodes A and B in runs 1 and 2."""
    series = []
    for patient, run, electrode, channel in product(range(n_patients), ("run1", "run2"), "AB", range(4)):
        origin = {"patient": f"p{patient}", "recording": run, "electrode": electrode}
        name = f"p{patient} {run} {electrode}{channel}"
        series.append(Series([0.0], label=channel % 2, name=name, origin=origin))
    return SeriesCollection(series)


@pytest.mark.parametrize(
    ("by", "description"),
    [
        ("channel", "channel (leaky)"),
        ("paper", "channel (leaky)"),
        ("electrode", "electrode (leaky: patients shared)"),
        ("recording", "recording (leaky: patients shared)"),
        ("patient", "patient"),
        (None, "patient"),
    ],
)
def test_a_split_by_less_than_the_patient_is_called_leaky(by, description):
    split = split_series(shafts(), by=by, seed=1)
    assert split.description == description
    assert split.leaky == ("leaky" in description)


def test_a_narrow_split_is_called_leaky_only_where_something_may_be_shared():
    alone = SeriesCollection(Series([0.0], label=k % 2, name=f"s{k}") for k in range(30))
    assert split_series(alone, seed=0).description == "channel (leaky)"
    assert len(set(groups_by(shafts(), "electrode")[1])) == 12  # two of each of six patients, over both runs
    unknown = Series([0.0], origin={"recording": "run1", "electrode": "A"})
    assert group_of(unknown, "electrode") == ("run1", "A")
    collection = SeriesCollection(
        Series([0.0], label=k % 2, name=f"s{k}", origin={"patient": f"p{k}", "recording": "run1"})
        for k in range(30)
    )
    assert split_series(collection, by="recording", seed=0).description == "recording"
    assert not split_series(collection, by="channel", seed=0).leaky


@pytest.mark.parametrize(
    ("origin", "group", "by"),
    [
        ({}, "anna", "patient"),
        ({"recording": "r", "channel": "C3"}, "anna", "patient"),  # a manifest's group is the patient
        ({"recording": "r", "pair": "r"}, "r", "pair"),
        ({"recording": "r"}, "r", "recording"),
        ({"recording": "r", "pair": "x"}, None, "recording"),  # pairs within recordings: the wider counts
        ({"centre": "A"}, None, "channel"),
    ],
)
def test_the_default_is_the_widest_group_that_is_known(origin, group, by):
    def numbered(value, k):
        return None if value is None else f"{value}{k}"

    collection = SeriesCollection(
        Series(
            [0.0],
            name=f"s{k}",
            group=numbered(group, k // 2),
            origin={level: numbered(value, k if value == "x" else k // 2) for level, value in origin.items()},
        )
        for k in range(8)
    )
    assert groups_by(collection, None)[0] == by


def test_balancing_after_the_split_leaves_the_test_part_alone():
    collection = hospital()
    plain = split_series(collection, seed=3)
    split = split_series(collection, seed=3, balance="train_val")
    assert_array_equal(split.test, plain.test)
    for part in ("train", "validation"):
        counts = Counter(collection.labels[getattr(split, part)].tolist())
        before = Counter(collection.labels[getattr(plain, part)].tolist())
        assert counts["a"] == counts["b"] == min(before.values())
        assert set(getattr(split, part)) <= set(getattr(plain, part))
    members = np.concatenate([split.train, split.validation, split.test, split.dropped])
    assert sorted(members) == list(range(len(collection)))
    assert split.description == "patient, balanced train_val"


def test_balancing_before_the_split_balances_all_of_it():
    collection = hospital()
    split = split_series(collection, seed=3, balance="before_split")
    kept = np.concatenate([split.train, split.validation, split.test])
    counts = Counter(collection.labels[kept].tolist())
    assert counts["a"] == counts["b"] == (collection.labels == "b").sum()
    assert len(split.dropped) == len(collection) - len(kept)


def test_sss_keeps_a_quarter_of_nih():
    def named(item):
        number = int(item.origin["patient"][1:])
        return replace(item, origin={"patient": f"{('pt', 'sub-pt', 'jh', 'ummc')[number % 4]}{number}"})

    collection = SeriesCollection(map(named, hospital()))
    split = split_series(collection, seed=3, balance="sss_nih_quarter")
    kept = np.concatenate([split.train, split.validation, split.test])
    for centre, share in (("pt", 4), ("jh", 1), ("ummc", 1)):
        belongs = np.array([centre in item.origin["patient"] for item in collection])
        smallest = min(Counter(collection.labels[belongs].tolist()).values())
        counts = Counter(collection.labels[[index for index in kept if belongs[index]]].tolist())
        assert counts["a"] == counts["b"] == smallest // share
    with pytest.raises(DataError, match=r"no patient is named pt…, .* \(the first is 'p0'\)"):
        split_series(hospital(), seed=3, balance="sss_nih_quarter")


def test_a_split_survives_the_disk_and_another_order(tmp_path):
    collection = hospital()
    split = split_series(collection, seed=3, balance="train_val")
    split.save(tmp_path / "split.json", collection.names)
    backwards = collection[::-1]
    read = Split.read(tmp_path / "split.json", backwards.names)
    assert names_of(backwards, read) == names_of(collection, split)
    assert len(read.dropped) == len(split.dropped) > 0
    assert (np.diff(read.train) > 0).all()
    for fact in ("by", "leaky", "seed", "fractions", "balance", "fold", "description"):
        assert getattr(read, fact) == getattr(split, fact)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda kept: kept["test"].append("nobody"), "1 series that the data does not have: 'nobody'"),
        (lambda kept: kept["train"].remove("s0001"), "does not have 1 series of the data: 's0001'"),
        (lambda kept: kept["test"].append("s0001"), "series 's0001' twice, in train and in test"),
        (lambda kept: kept.update(by="pateint"), "by is 'pateint'; did you mean 'patient'"),
        (lambda kept: kept.update(format="other"), "its format is 'other', needed is 'raxss-split-1'"),
        (lambda kept: kept.pop("validation"), "no list of names under 'validation'"),
        (lambda kept: kept.pop("seed"), "KeyError: 'seed'"),
    ],
)
def test_a_split_file_that_does_not_fit_is_refused_by_name(spoil, message, tmp_path):
    series = [Series([0.0], label=k % 2, name=f"s{k:04d}") for k in range(30)]
    collection = SeriesCollection(series)
    kept = split_series(collection, seed=1).to_json(collection.names)
    kept["train"] = sorted({*kept["train"], "s0001"})  # so that all cases know where it is
    for part in ("validation", "test"):
        kept[part] = [name for name in kept[part] if name != "s0001"]
    spoil(kept)
    (tmp_path / "split.json").write_text(json.dumps(kept))
    with pytest.raises(RecordingError, match=message) as refused:
        Split.read(tmp_path / "split.json", collection.names)
    assert "'split.json'" in str(refused.value)
    assert str(tmp_path) not in str(refused.value)
    (tmp_path / "s.json").write_text("[1, 2]")
    with pytest.raises(RecordingError, match=r"'s.json': this is no split: its format is 'list'"):
        Split.read(tmp_path / "s.json", ["a"])
    with pytest.raises(DataError, match="such as 'same'"):
        split_series(collection, seed=0).save(tmp_path / "same.json", ["same"] * 30)
    assert not (tmp_path / "same.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fractions": (0.7, 0.2, 0.2)}, "fractions are 0.7, 0.2, 0.2"),
        ({"fractions": (0.0, 0.5, 0.5)}, "training set has a fraction of 0"),
        ({"by": "pateint"}, "by is 'pateint'; did you mean 'patient'"),
        ({"balance": "trainval"}, "balance is 'trainval'; did you mean 'train_val'"),
        *(({"seed": seed}, f"seed is {seed}; needed") for seed in (-1, 1.5, None)),
    ],
)
def test_a_wrong_setting_is_named(options, message):
    with pytest.raises(ConfigError, match=message):
        split_series(hospital(), **{"seed": 0} | options)
    if "seed" in options:
        with pytest.raises(ConfigError, match=message):
            hold_out(["a", "b"], fraction=0.5, **options)


def test_too_few_groups_are_refused():
    with pytest.raises(DataError, match="3 groups were given for 2 series"):
        hold_out(["a", "b"], groups=[1, 2, 3], fraction=0.5, seed=0)
    with pytest.raises(DataError, match="2 groups for 3 parts"):
        split_series(shafts(2), seed=0)
    assert len(split_series(shafts(2), seed=0, fractions=(0.5, 0.0, 0.5)).validation) == 0
    with pytest.raises(ConfigError, match="n_folds is 7; needed is 2 to 6"):
        folds(shafts(), n_folds=7, seed=0)
    with pytest.raises(DataError, match="all series are of one patient"):
        leave_one_out(shafts(1), level="patient", seed=0)
    with pytest.raises(LabelError, match="'nameless'"):
        split_series(SeriesCollection([Series([0.0], name="nameless")] * 5), seed=0)


def test_a_patient_that_one_series_lacks_is_refused_by_default():
    series = [
        Series([0.0], label=k % 2, name=f"s{k}", origin={"patient": f"p{k // 8}", "recording": f"r{k % 8}"})
        for k in range(80)
    ]
    series[17] = Series([0.0], label=1, name="s17", origin={"recording": "r17"})
    collection = SeriesCollection(series)
    for make in (split_series, folds):
        with pytest.raises(DataError, match="1 of 80 series have no known patient, the first is 's17'"):
            make(collection, seed=1)
    split = split_series(collection, by="recording", seed=1)
    assert (split.leaky, split.description) == (True, "recording (leaky: patients shared)")
    narrower = [
        Series([0.0], name=f"s{k}", origin={"recording": f"r{k // 4}", **({"pair": f"x{k}"} if k else {})})
        for k in range(20)
    ]
    assert groups_by(SeriesCollection(narrower), None)[0] == "recording"
    with pytest.raises(DataError, match=r"1 of 20 series have no known pair, the first is 's0'"):
        split_series(SeriesCollection(narrower), by="pair", seed=0)
