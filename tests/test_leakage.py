"""The leakage audit finds every planted leak, and no leak in clean splits."""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.signal import lfilter, resample, resample_poly

from raxss.data.datasets import load_dataset, load_sample, load_synthetic
from raxss.data.leakage import audit_split
from raxss.data.near_duplicates import find_near_duplicates
from raxss.data.prepare.preprocessing import Scaling
from raxss.data.series import Series, SeriesCollection
from raxss.data.splits import folds, leave_one_out, split_series
from raxss.errors import DataError, VariateMismatchError

CENTRES = ("pt", "jh", "ummc", "umf")


@cache
def hospital(seed=0, n_patients=16, n_channels=8, n_samples=2000):
    """Patients of four centres. Channels of one share most of their signal, as under a common reference."""
    rng = np.random.default_rng(seed)

    def pink(*shape):
        return lfilter([1.0], [1.0, -0.95], rng.normal(size=shape), axis=-1)

    series = []
    for patient in range(n_patients):
        name = f"{CENTRES[patient % 4]}{patient:02d}"
        common = 3 * pink(n_samples)
        for channel in range(n_channels):
            electrode = "AG"[channel // 4]
            origin = {
                "centre": CENTRES[patient % 4],
                "patient": name,
                "recording": f"run{channel % 2}",
                "electrode": electrode,
                "channel": f"{electrode}{channel}",
            }
            series.append(
                Series(
                    (40 + patient + 30 * (common + pink(n_samples))).astype(np.float32),
                    500.0,
                    label="SOZ" if channel < 1 + patient % 4 else "other",
                    name=f"{name} {electrode}{channel}",
                    origin=origin,
                )
            )
    return SeriesCollection(series)


def pooled(samples, kernel=24, stride=12):
    return np.lib.stride_tricks.sliding_window_view(samples, kernel, axis=-1)[..., ::stride, :].mean(axis=-1)


def z_scored(samples):
    return (samples - samples.mean()) / samples.std()


def with_noise(samples, decibel=20):
    noise = np.random.default_rng(5).normal(size=samples.shape)
    return samples + noise * samples.std() * 10 ** (-decibel / 20)


# Each makes a copy of samples (1, n) at some rate; the copy goes into the test set under the id of another.
COPIES = {
    "duplicate under a new id": lambda x: (x.copy(), 1),
    "float64 copy of float32": lambda x: (x.astype(np.float64), 1),
    "rounded to integers": lambda x: (np.round(x).astype(np.int32), 1),
    "scaled": lambda x: (x * 1e-6, 1),
    "offset": lambda x: (x + 5000, 1),
    "negated": lambda x: (-x, 1),
    "z-scored": lambda x: (z_scored(x), 1),
    "scaled, offset and negated float16": lambda x: ((3 - x / 50).astype(np.float16), 1),
    "noise 20 dB below": lambda x: (with_noise(x), 1),
    "cropped to the first half": lambda x: (x[:, :1000], 1),
    "cropped to the last third": lambda x: (x[:, -700:], 1),
    "cropped from the middle and z-scored": lambda x: (z_scored(x[:, 613:1391]), 1),
    "one half shared, one half new": lambda x: (np.concatenate([x[:, 900:], x[:, :900][:, ::-1]], axis=1), 1),
    "resampled by 2": lambda x: (resample_poly(x, 2, 1, axis=1), 2),
    "resampled by 1/2": lambda x: (resample_poly(x, 1, 2, axis=1), 0.5),
    "resampled by 1.1": lambda x: (resample_poly(x, 11, 10, axis=1), 1.1),
    "resampled by 1/1.1 and z-scored": lambda x: (z_scored(resample_poly(x, 10, 11, axis=1)), 10 / 11),
    "resampled by 0.37, another method": lambda x: (resample(x, 740, axis=1), 0.37),
    "resampled by 1/2, negated": lambda x: (-resample_poly(x, 1, 2, axis=1), 0.5),
    "resampled by 1/2, rate not stated": lambda x: (resample_poly(x, 1, 2, axis=1), 1),
    "pooled 24/12": lambda x: (pooled(x), 1 / 12),
    "pooled 24/12 and z-scored": lambda x: (z_scored(pooled(x)), 1 / 12),
    "pooled 24/12, rate not stated": lambda x: (pooled(x), 1),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_in_another_part_is_caught(name):
    series = list(hospital(n_patients=10, n_channels=4))
    part = "validation" if "scaled" in name else "test"
    split = split_series(SeriesCollection(series), seed=1)
    source, target = int(split.train[7]), int(getattr(split, part)[3])
    samples, faster = COPIES[name](series[source].samples)
    series[target] = replace(series[target], samples=samples, rate=500.0 * faster)
    leaks = leaks_of(audit_split(SeriesCollection(series), split))
    expected = "resampled-copy" if "resampled" in name or "pooled" in name else "copied-stretch"
    if name in ("duplicate under a new id", "float64 copy of float32"):
        expected = "identical-samples"
    assert set(leaks) == {expected, "one-patient-two-ids"}
    assert f"{series[source].name} (train)" in leaks[expected]
    assert f"{series[target].name} ({part})" in leaks[expected]
    assert leaks[expected].startswith("1 times")
    assert "at two rates" not in leaks[expected]
    for index in (source, target):
        assert series[index].origin["patient"] in leaks["one-patient-two-ids"]


def change(series, index, **fields):
    series[int(index)] = replace(series[int(index)], **fields)


def shared_patient(spell, *codes):
    def plant(series, split):
        patient = series[split.train[0]].origin["patient"]
        change(series, split.test[0], origin={**series[split.test[0]].origin, "patient": spell(patient)})
        return split, set(codes), patient

    return plant


def spelt_otherwise(patient):
    letters = patient.rstrip("0123456789")
    return f"sub-{letters.upper()}_{int(patient.removeprefix(letters)):04d}"


def shared_group_of_a_manifest(series, split):
    for index, item in enumerate(series):
        change(series, index, origin={}, group=item.origin["patient"])
    change(series, split.test[0], group=series[split.train[0]].group)
    return split, {"shared-patient"}, series[split.train[0]].group


def shared_level(level):
    def plant(series, split):
        for index, item in enumerate(series):
            change(series, index, origin={level: item.name})
        change(series, split.test[0], origin=series[split.train[0]].origin)
        return split, {f"shared-{level}"}, series[split.train[0]].name

    return plant


def split_by(level, description, *codes):
    def plant(series, split):
        return split_series(SeriesCollection(series), by=level, seed=3), set(codes), description

    return plant


def left_out_centre_in_training(series, split):
    made = leave_one_out(SeriesCollection(series), level="centre", seed=3)["jh"]
    change(series, made.train[0], origin={**series[made.train[0]].origin, "centre": "jh"})
    return made, {"left-out-centre-shared"}, "jh"


def balanced_before(balance, message, stated=None):
    def plant(series, split):
        made = split_series(SeriesCollection(series), seed=3, balance=balance)
        return replace(made, balance=stated or balance), {"balanced-before-split"}, message

    return plant


def single_series_balanced_before_and_not_stated(series, split):
    rng = np.random.default_rng(2)
    series[:] = [
        Series(rng.normal(size=400), label="ab"[k % 6 > 0], name=f"s{k}", group=f"p{k}") for k in range(240)
    ]
    return balanced_before("before_split", "all parts together have equal classes", "none")(series, split)


def balanced_test_and_not_stated(series, split):
    labels = SeriesCollection(series).labels
    for seed in range(3, 40):  # a test set with enough of the smaller class to be sure
        made = split_series(SeriesCollection(series), seed=seed, fractions=(0.3, 0.1, 0.6))
        soz, other = (made.test[labels[made.test] == label] for label in ("SOZ", "other"))
        if len(other) - len(soz) >= 30:
            break
    test = np.sort(np.concatenate([soz, other[: len(soz)]]))
    dropped = np.setdiff1d(made.test, test)
    message = f"{len(dropped)} series of the test set's own patients"
    return replace(made, test=test, dropped=dropped), {"balanced-before-split"}, message


def series_in_two_parts(series, split):
    both = int(split.train[4])
    return replace(split, test=np.sort([*split.test, both])), None, series[both].name


def name_in_two_parts(series, split):
    change(series, split.test[0], name=series[split.train[0]].name)
    return split, {"name-in-two-parts"}, series[split.train[0]].name


OWN = "series of the test set's own patients"
OTHER_LEAKS = {
    "a shared patient": shared_patient(str, "shared-patient", "shared-recording", "shared-electrode"),
    "a patient spelt twice": shared_patient(spelt_otherwise, "patient-spelt-twice"),
    "a shared group of a manifest": shared_group_of_a_manifest,
    "a shared pair": shared_level("pair"),
    "a shared recording": shared_level("recording"),
    "a shared electrode": shared_level("electrode"),
    "channels of one electrode": split_by(
        "channel", "channel (leaky)", "shared-patient", "shared-recording", "shared-electrode"
    ),
    "electrodes of one patient": split_by(
        "electrode", "electrode (leaky: patients shared)", "shared-patient", "shared-recording"
    ),
    "recordings of one patient": split_by(
        "recording", "recording (leaky: patients shared)", "shared-patient", "shared-electrode"
    ),
    "the left-out centre in training": left_out_centre_in_training,
    "balanced before": balanced_before("before_split", "balance='before_split'"),
    "balanced before, not stated": balanced_before("before_split", OWN, "train_val"),
    "single series balanced before, not stated": single_series_balanced_before_and_not_stated,
    "a balanced test set, not stated": balanced_test_and_not_stated,
    "a quarter of NIH": balanced_before("sss_nih_quarter", "balance='sss_nih_quarter'"),
    "a quarter of NIH, not stated": balanced_before("sss_nih_quarter", OWN, "none"),
    "a series in two parts": series_in_two_parts,
    "a name in two parts": name_in_two_parts,
}


def leaks_of(audit):
    return {finding.code: finding.message for finding in audit.findings if finding.severity == "leak"}


def codes_of(audit):
    return [finding.code for finding in audit.findings]


@pytest.mark.parametrize("name", OTHER_LEAKS)
def test_a_planted_leak_is_caught(name):
    series = list(hospital())
    split, codes, message = OTHER_LEAKS[name](series, split_series(SeriesCollection(series), seed=1))
    audit = audit_split(SeriesCollection(series), split)
    assert not audit.clean
    if codes is None:  # a series that is in two parts brings its groups along
        assert "series-in-two-parts" in leaks_of(audit)
    else:
        assert leaks_of(audit).keys() == codes
    assert any(message in finding.message for finding in audit.findings)


def parts_of(collection, split, *names):
    return [collection[int(index)] for name in names for index in getattr(split, name)]


@pytest.mark.parametrize(
    ("fitted_on", "code"),
    [
        (("train",), None),
        (("train", "validation"), "statistics-saw-validation"),
        (("train", "validation", "test"), "statistics-saw-test"),
        (("train", "test"), "statistics-saw-test"),
        (("test",), "statistics-saw-test"),
    ],
)
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_statistics_tell_what_they_were_fitted_on(fitted_on, code, kind):
    collection = hospital()
    split = split_series(collection, seed=2)
    scaling = Scaling.fit(parts_of(collection, split, *fitted_on), "train")
    scaling = Scaling("train", scaling.mean.astype(kind), scaling.deviation.astype(kind))
    audit = audit_split(collection, split, statistics=scaling)
    findings = [finding for finding in audit.findings if finding.code.startswith("statistics")]
    assert [finding.code for finding in findings] == ([code] if code else [])
    assert audit.clean == (code != "statistics-saw-test")
    if code == "statistics-saw-test":
        assert f"those of {' + '.join(fitted_on)} " in findings[0].message


def test_statistics_of_other_data_are_noted_and_of_other_variates_refused():
    collection, split = split_of(hospital(), seed=2)
    audit = audit_split(collection, split, statistics=Scaling("train", np.array([3.0]), np.array([9.0])))
    assert audit.clean
    assert "statistics-unexplained" in codes_of(audit)
    with pytest.raises(VariateMismatchError, match="2 variates, but the series have 1"):
        audit_split(collection, split, statistics=Scaling("train", np.zeros(2), np.ones(2)))
    with pytest.raises(DataError, match=r"index 1\d\d, but there are 100 series"):
        audit_split(collection[:100], split)


def test_statistics_are_not_compared_where_each_series_is_scaled_alone():
    collection = SeriesCollection(
        replace(item, samples=z_scored(item.samples.astype(np.float64))) for item in hospital()
    )
    split = split_series(collection, seed=2)
    for scaling in (Scaling.fit(list(collection), "train"), Scaling.fit([], "series")):
        audit = audit_split(collection, split, statistics=scaling)
        assert not [code for code in codes_of(audit) if code.startswith("statistics")]


def test_a_message_names_ten_and_counts_the_rest():
    series = list(hospital())
    split = split_series(SeriesCollection(series), seed=1)
    for item, other in zip(split.train[:13], split.test[:13], strict=True):
        series[other] = replace(series[other], samples=series[item].samples)
    for place, item in enumerate(series):  # an electrode that names its patient is printed once
        change(
            series, place, origin={**item.origin, "electrode": "{patient}/{electrode}".format(**item.origin)}
        )
    message = leaks_of(audit_split(SeriesCollection(series), split))["identical-samples"]
    assert message.startswith("13 times")
    assert message.count("(train)") == 10
    assert "and 3 more" in message
    shared = leaks_of(audit_split(*split_of(SeriesCollection(series), by="channel", seed=1)))
    assert "'jh01/A'" in shared["shared-electrode"]
    assert "jh01/jh01" not in shared["shared-electrode"]


# No false alarm ---------------------------------------------------------------------------------------------


@cache
def dataset(name, folder, classes=None):
    return load_dataset(name, root=folder, classes=classes)


@cache
def pt01(folder, clip):
    """Channels of one seizure, each alone: neighbours of one electrode land on both sides, and are no copies."""
    with np.load(folder / "ds003029-pt01" / f"pt01_seizure1_{clip}.npz") as stored:
        return SeriesCollection(
            Series(samples, 1000.0, label=bool(soz), name=str(name))
            for samples, name, soz in zip(stored["data"], stored["channels"], stored["soz"], strict=True)
        )


@cache
def pt01_raw(folder):
    """All 98 channels as recorded, bad ones too: hum and reference are common to all."""
    edfio = pytest.importorskip("edfio")
    (path,) = (folder / "ds003029-pt01").rglob("*.edf")
    return SeriesCollection(
        Series(signal.data, signal.sampling_frequency, label=k % 2, name=f"{k} {signal.label}")
        for k, signal in enumerate(edfio.read_edf(path).signals)
    )


@cache
def bids_clip(folder):
    """50 channels at 2 kHz whose neighbours correlate with .99; multiplexed float32, as its header says."""
    (path,) = (folder / "ds003498-clip").rglob("*.eeg")
    return SeriesCollection(
        Series(samples, 2000.0, label=k % 2, name=str(k))
        for k, samples in enumerate(np.fromfile(path, dtype="<f4").reshape(-1, 50).T)
    )


CLEAN = {
    "hospital by patient, seed 1": lambda folder: split_of(hospital(), seed=1),
    "hospital by patient, seed 2, balanced afterwards": lambda folder: split_of(
        hospital(), seed=2, balance="train_val"
    ),
    "hospital without validation": lambda folder: split_of(hospital(), seed=4, fractions=(0.8, 0, 0.2)),
    "hospital, third fold": lambda folder: (hospital(), folds(hospital(), seed=5)[2]),
    "hospital without NIH": lambda folder: (hospital(), leave_one_out(hospital(), seed=6)["pt"]),
    "hospital without one patient": lambda folder: (
        hospital(),
        leave_one_out(hospital(), level="patient", seed=6)["jh05"],
    ),
    "motifs that recur in all series": lambda folder: split_of(load_synthetic(80), seed=1),
    "one patient of a balanced rest": lambda folder: (
        few_positive(1),
        leave_one_out(few_positive(1), level="patient", seed=1, balance="train_val")["p06"],
    ),
    "one evenly labelled patient of a balanced rest": lambda folder: (
        few_positive(20),
        leave_one_out(few_positive(20), level="patient", seed=1, balance="train_val")["p00"],
    ),
    "embedded ECGs": lambda folder: split_of(load_sample(), seed=69421),
    "bern-barcelona by pair, seed 1": lambda folder: split_of(dataset("bern-barcelona", folder), seed=1),
    "bern-barcelona, x against y": lambda folder: split_of(
        without_groups(dataset("bern-barcelona", folder)), seed=3
    ),
    "bonn F and N": lambda folder: split_of(dataset("bonn", folder, ("F", "N")), seed=1),
    "watch by subject, seed 1": lambda folder: split_of(dataset("watch", folder), seed=1),
    "watch, each set alone": lambda folder: split_of(without_groups(dataset("watch", folder)), seed=3),
    "pt01, 84 channels of 3 s": lambda folder: split_of(pt01(folder, "84ch_-1s_+2s"), seed=1),
    "pt01, 14 channels of 30 s": lambda folder: split_of(pt01(folder, "14ch_-10s_+20s"), seed=2),
    "pt01, all channels as recorded": lambda folder: split_of(pt01_raw(folder), seed=3),
    "a clip at 2 kHz": lambda folder: split_of(bids_clip(folder), seed=4),
}


@cache
def few_positive(n_each):
    """Patients of whose series a sixth is positive; with several series each, the first patient is even."""
    rng = np.random.default_rng(n_each)
    labels = np.arange(90 if n_each == 1 else 12 * n_each) % 6 == 0
    labels[:n_each] = np.arange(n_each) % 2 == 0
    return SeriesCollection(
        Series(rng.normal(size=500), label=bool(label), name=f"s{k:03d}", group=f"p{k // n_each:02d}")
        for k, label in enumerate(labels)
    )


def split_of(collection, **options):
    return collection, split_series(collection, **options)


def without_groups(collection):
    return SeriesCollection(replace(item, origin={}, group=None) for item in collection)


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_split_raises_no_alarm(name, shared_data):
    collection, split = CLEAN[name](shared_data)
    scaling = Scaling.fit(parts_of(collection, split, "train"), "train")
    audit = audit_split(collection, split, statistics=scaling)
    assert audit.clean, audit.findings
    assert not set(codes_of(audit)) - {
        "groups-unknown",
        "patient-unknown",
        "leaky-by-design",
        "shared-centre",
        "part-one-class",
    }


def test_one_seizure_in_two_clips_is_found_in_real_data(shared_data):
    """Two packages cut and filtered sub-pt01's first seizure, each in its own way; 14 channels are in both."""
    short, long = pt01(shared_data, "84ch_-1s_+2s"), pt01(shared_data, "14ch_-10s_+20s")
    series = [*short, *(replace(entry, name=f"long {entry.name}") for entry in long)]
    copies = find_near_duplicates(series, [0] * len(short) + [1] * len(long))
    assert len(copies) == 14
    assert all(f"long {series[item.first].name}" == series[item.second].name for item in copies)


@pytest.mark.parametrize("n_each", [1, 20])
def test_our_own_balanced_splits_are_clean_in_every_fold(n_each, monkeypatch):
    monkeypatch.setattr("raxss.data.leakage.find_near_duplicates", lambda *_: [])  # balancing alone
    collection = few_positive(n_each)
    for level in ("patient", "channel"):
        splits = list(leave_one_out(collection, level=level, seed=1, balance="train_val").values())
        for seed in range(4):
            splits += folds(collection, by=level, seed=seed, balance="train_val")
        for split in splits:
            assert "balanced-before-split" not in codes_of(audit_split(collection, split)), split.fold


def test_no_patient_at_all_is_noted():
    collection = SeriesCollection(replace(item, origin={"recording": item.name}) for item in hospital())
    audit = audit_split(*split_of(collection, seed=1))
    assert codes_of(audit) == ["patient-unknown"]
    assert "one person's series may sit on both sides" in audit.findings[0].message
    assert "patient-unknown" not in codes_of(audit_split(*split_of(hospital(), seed=1)))


def test_a_part_that_is_empty_or_of_one_class_is_noted():
    collection = hospital()
    split = split_series(collection, seed=1)
    labels = collection.labels[split.test]
    split = replace(split, validation=split.validation[:0], test=split.test[labels == "SOZ"])
    notes = {finding.code: finding.message for finding in audit_split(collection, split).findings}
    assert notes["part-empty"] == "the validation set has no series."
    assert notes["part-one-class"] == "the test set has one class only, 'SOZ'."
    whole = audit_split(collection, split_series(collection, seed=1, fractions=(0.8, 0.0, 0.2)))
    assert not [code for code in codes_of(whole) if code.startswith("part-")]


def test_one_recording_stored_as_two_runs_is_a_note_on_one_side_and_a_leak_across():
    """sub-jh104 of ds003029: run-02 has the bytes of run-01, run-04 those of run-03."""
    rng = np.random.default_rng(4)
    series = []
    for patient in range(20):
        content = rng.integers(-3000, 3000, size=800).astype("<i2").tobytes()
        for run in (1, 2):
            origin = {"patient": f"jh{patient}", "recording": f"run-{run}"}
            name, label = f"jh{patient} run-{run}", "ab"[patient % 2]
            series.append(Series(np.frombuffer(content, "<i2"), 1000.0, label, name=name, origin=origin))
    collection = SeriesCollection(series)
    together = audit_split(*split_of(collection, seed=1))
    assert together.clean
    assert codes_of(together) == ["same-part-duplicates"]
    assert "20 times" in together.findings[0].message
    leaks = leaks_of(audit_split(*split_of(collection, by="recording", seed=1)))
    assert re.search(r"'(jh\d+) run-\d \(train\) = \1 run-\d \(test\)'", leaks["identical-samples"])
