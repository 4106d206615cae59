"""An audit finds every planted leak, and cries wolf over no clean split."""

import io
import json
import zipfile
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.signal import lfilter, resample, resample_poly
from typer.testing import CliRunner

from raxss import RAxSSClassifier
from raxss.data.datasets import load_sample, load_synthetic
from raxss.data.leakage import LEAKS, NOTES, audit_split, read_fitted
from raxss.data.near_duplicates import find_near_duplicates, resampled_similarity
from raxss.data.prepare.preprocessing import Scaling
from raxss.data.series import Series, SeriesCollection
from raxss.data.splits import Split, folds, leave_one_out, split_series
from raxss.errors import DataError, ModelError, RAxSSError, RecordingError, VariateMismatchError
from toys import SMALL, waves

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


# Each makes a copy of samples (1, n) at some rate; the copy goes into the test part under the id of another.
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
    "resampled by 1/2, rate not told": lambda x: (resample_poly(x, 1, 2, axis=1), 1),
    "pooled 24/12": lambda x: (pooled(x), 1 / 12),
    "pooled 24/12 and z-scored": lambda x: (z_scored(pooled(x)), 1 / 12),
    "pooled 24/12, rate not told": lambda x: (pooled(x), 1),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_in_another_part_is_caught(name):
    series = list(hospital(n_patients=10, n_channels=4))
    part = "validation" if "scaled" in name else "test"
    split = split_series(SeriesCollection(series), seed=1)
    source, target = int(split.train[7]), int(getattr(split, part)[3])
    samples, faster = COPIES[name](series[source].samples)
    series[target] = replace(series[target], samples=samples, rate=500.0 * faster)
    audit = audit_split(SeriesCollection(series), split)
    leaks = {finding.code: finding.message for finding in audit.findings if finding.severity == "leak"}
    expected = (
        "identical-samples"
        if name in ("duplicate under a new id", "float64 copy of float32")
        else ("resampled-copy" if "resampled" in name or "pooled" in name else "copied-stretch")
    )
    assert set(leaks) == {expected, "one-patient-two-ids"}
    assert f"{series[source].name} (train)" in leaks[expected]
    assert f"{series[target].name} ({part})" in leaks[expected]
    assert leaks[expected].startswith("1 times")
    assert "at two rates" not in leaks[expected]
    for index in (source, target):
        assert series[index].origin["patient"] in leaks["one-patient-two-ids"]


def with_origin(series, **levels):
    return replace(series, origin={**series.origin, **levels})


def shared_patient(series, split):
    item, other = series[split.train[0]], int(split.test[0])
    series[other] = with_origin(series[other], patient=item.origin["patient"])
    return split, {"shared-patient", "shared-recording", "shared-electrode"}, item.origin["patient"]


def patient_spelt_twice(series, split):
    item = series[split.train[0]].origin["patient"]
    letters, number = item.rstrip("0123456789"), int(item.lstrip("abcdefghijklmnopqrstuvwxyz"))
    other = int(split.test[0])
    series[other] = with_origin(series[other], patient=f"sub-{letters.upper()}_{number:04d}")
    return split, {"patient-spelt-twice"}, item


def shared_group_of_a_manifest(series, split):
    for index, item in enumerate(series):
        series[index] = replace(item, origin={}, group=item.origin["patient"])
    other = int(split.test[0])
    series[other] = replace(series[other], group=series[split.train[0]].group)
    return split, {"shared-patient"}, series[split.train[0]].group


def shared_pair(series, split):
    for index, item in enumerate(series):
        series[index] = replace(item, origin={"pair": item.name})
    item, other = series[split.train[0]], int(split.test[0])
    series[other] = with_origin(series[other], pair=item.name)
    return split, {"shared-pair"}, item.name


def shared_recording(series, split):
    for index, item in enumerate(series):
        series[index] = replace(
            item, origin={"recording": "/".join([item.origin["patient"], item.origin["recording"]])}
        )
    item, other = series[split.train[0]], int(split.test[0])
    series[other] = with_origin(series[other], recording=item.origin["recording"])
    return split, {"shared-recording"}, item.origin["recording"]


def shared_electrode(series, split):
    for index, item in enumerate(series):
        series[index] = replace(item, origin={"electrode": item.name})
    item, other = series[split.train[0]], int(split.test[0])
    series[other] = with_origin(series[other], electrode=item.name)
    return split, {"shared-electrode"}, item.name


def channels_of_one_electrode(series, split):
    made = split_series(SeriesCollection(series), by="channel", seed=3)
    return made, {"shared-patient", "shared-recording", "shared-electrode"}, "channel (leaky)"


def electrodes_of_one_patient(series, split):
    made = split_series(SeriesCollection(series), by="electrode", seed=3)
    return made, {"shared-patient", "shared-recording"}, "electrode (leaky: patients shared)"


def recordings_of_one_patient(series, split):
    made = split_series(SeriesCollection(series), by="recording", seed=3)
    return made, {"shared-patient", "shared-electrode"}, "recording (leaky: patients shared)"


def left_out_centre_in_training(series, split):
    made = leave_one_out(SeriesCollection(series), level="centre", seed=3)["jh"]
    other = int(made.test[0])
    series[int(made.train[0])] = with_origin(
        series[int(made.train[0])], centre=series[other].origin["centre"]
    )
    return made, {"left-out-centre-shared"}, "jh"


def balanced_before(series, split):
    made = split_series(SeriesCollection(series), seed=3, balance="before_split")
    return made, {"balanced-before-split"}, "balance='before_split'"


def balanced_before_and_not_told(series, split):
    made = split_series(SeriesCollection(series), seed=3, balance="before_split")
    return (
        replace(made, balance="train_val"),
        {"balanced-before-split"},
        "series of the test part's own patients",
    )


def single_series_balanced_before_and_not_told(series, split):
    rng = np.random.default_rng(2)
    series[:] = [
        Series(rng.normal(size=400), label="ab"[k % 6 > 0], name=f"s{k}", group=f"p{k}") for k in range(240)
    ]
    made = split_series(SeriesCollection(series), seed=3, balance="before_split")
    return replace(made, balance="none"), {"balanced-before-split"}, "all parts together have equal classes"


def balanced_test_and_not_told(series, split):
    labels = SeriesCollection(series).labels
    for seed in range(3, 40):  # a test part with enough of the smaller class to be sure
        made = split_series(SeriesCollection(series), seed=seed, fractions=(0.3, 0.1, 0.6))
        soz, other = (made.test[labels[made.test] == label] for label in ("SOZ", "other"))
        if len(other) - len(soz) >= 30:
            break
    test = np.sort(np.concatenate([soz, other[: len(soz)]]))
    dropped = np.setdiff1d(made.test, test)
    return (
        replace(made, test=test, dropped=dropped),
        {"balanced-before-split"},
        f"{len(dropped)} series of the test part's own patients",
    )


def quarter_of_nih(series, split):
    made = split_series(SeriesCollection(series), seed=3, balance="sss_nih_quarter")
    return made, {"balanced-before-split"}, "balance='sss_nih_quarter'"


def quarter_of_nih_not_told(series, split):
    made = split_series(SeriesCollection(series), seed=3, balance="sss_nih_quarter")
    return replace(made, balance="none"), {"balanced-before-split"}, "series of the test part's own patients"


def series_in_two_parts(series, split):
    both = int(split.train[4])
    return replace(split, test=np.sort([*split.test, both])), None, series[both].name


def name_in_two_parts(series, split):
    item, other = int(split.train[0]), int(split.test[0])
    series[other] = replace(series[other], name=series[item].name)
    return split, {"name-in-two-parts"}, series[item].name


OTHER_LEAKS = [
    shared_patient,
    patient_spelt_twice,
    shared_group_of_a_manifest,
    shared_pair,
    shared_recording,
    shared_electrode,
    channels_of_one_electrode,
    electrodes_of_one_patient,
    recordings_of_one_patient,
    left_out_centre_in_training,
    balanced_before,
    balanced_before_and_not_told,
    single_series_balanced_before_and_not_told,
    balanced_test_and_not_told,
    quarter_of_nih,
    quarter_of_nih_not_told,
    series_in_two_parts,
    name_in_two_parts,
]


@pytest.mark.parametrize("plant", OTHER_LEAKS, ids=lambda plant: plant.__name__)
def test_a_planted_leak_is_caught(plant):
    series = list(hospital())
    split, codes, told = plant(series, split_series(SeriesCollection(series), seed=1))
    audit = audit_split(SeriesCollection(series), split)
    leaks = {finding.code for finding in audit.findings if finding.severity == "leak"}
    assert not audit.clean
    if codes is None:  # a series that is in two parts brings its groups along
        assert "series-in-two-parts" in leaks
    else:
        assert leaks == codes
    assert any(told in finding.message for finding in audit.findings)


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


def test_statistics_of_other_data_are_noted_and_not_called_a_leak():
    collection = hospital()
    audit = audit_split(
        collection,
        split_series(collection, seed=2),
        statistics=Scaling("train", np.array([3.0]), np.array([9.0])),
    )
    assert audit.clean
    assert "statistics-unexplained" in [finding.code for finding in audit.findings]


def test_statistics_say_nothing_where_each_series_is_scaled_alone():
    collection = SeriesCollection(
        replace(item, samples=z_scored(item.samples.astype(np.float64))) for item in hospital()
    )
    split = split_series(collection, seed=2)
    for scaling in (Scaling.fit(list(collection), "train"), Scaling.fit([], "series")):
        audit = audit_split(collection, split, statistics=scaling)
        assert not [finding for finding in audit.findings if finding.code.startswith("statistics")]


def test_statistics_of_other_variates_are_refused():
    collection = hospital()
    with pytest.raises(VariateMismatchError, match="2 variates, but the series have 1"):
        audit_split(
            collection, split_series(collection, seed=2), statistics=Scaling("train", np.zeros(2), np.ones(2))
        )


def test_test_names_in_a_library_are_caught():
    collection = hospital()
    split = split_series(collection, seed=2)
    names = [part.name for part in parts_of(collection, split, "train")]
    assert audit_split(collection, split, training_names=names).clean
    stolen = collection[int(split.test[5])].name
    audit = audit_split(collection, split, training_names=[*names, stolen])
    (leak,) = [finding for finding in audit.findings if finding.severity == "leak"]
    assert leak.code == "training-saw-test"
    assert repr(stolen) in leak.message


def test_a_model_that_was_fitted_on_more_than_its_parts_is_caught():
    collection = hospital()
    split = split_series(collection, seed=2)
    digests = [part.digest for part in parts_of(collection, split, "train", "validation")]
    assert audit_split(collection, split, training_digests=digests).clean
    stolen = collection[int(split.test[3])]
    audit = audit_split(
        collection, split, training_digests=[*digests[1:], stolen.digest]
    )  # as many as before
    (leak,) = [finding for finding in audit.findings if finding.severity == "leak"]
    assert leak.code == "training-saw-test"
    assert (
        f"1 series of the test part are among those the model was fitted on: {stolen.name!r}" in leak.message
    )


def test_a_message_names_ten_and_counts_the_rest():
    series = list(hospital())
    split = split_series(SeriesCollection(series), seed=1)
    for item, other in zip(split.train[:13], split.test[:13], strict=True):
        series[other] = replace(series[other], samples=series[item].samples)
    audit = audit_split(SeriesCollection(series), split)
    (leak,) = [finding for finding in audit.findings if finding.code == "identical-samples"]
    assert leak.message.startswith("13 times")
    assert leak.message.count("(train)") == 10
    assert "and 3 more" in leak.message


# No false alarm ---------------------------------------------------------------------------------------------


@cache
def bern_barcelona(folder):
    series = []
    for kind in "FN":
        with zipfile.ZipFile(folder / "bern-barcelona" / f"Data_{kind}_50.zip") as archive:
            for name in sorted(name for name in archive.namelist() if name.endswith(".txt")):
                columns = np.loadtxt(io.BytesIO(archive.read(name)), delimiter=",", dtype=np.float32).T
                for channel, samples in zip("xy", columns, strict=True):
                    series.append(
                        Series(samples, 512.0, label=kind, name=f"{name} {channel}", origin={"pair": name})
                    )
    assert len(series) == 200
    return SeriesCollection(series)


@cache
def bonn(folder, kinds):
    series = []
    for kind in kinds:
        with zipfile.ZipFile(folder / "bonn" / f"{kind}.zip") as archive:
            for name in archive.namelist():
                if name.lower().endswith(".txt") and "__MACOSX" not in name:
                    samples = np.array(archive.read(name).split(), dtype=np.float32)
                    series.append(Series(samples, 173.61, label=kind, name=name.split("/")[-1]))
    assert len(series) == 100 * len(kinds)
    return SeriesCollection(series)


@cache
def watch(folder):
    with np.load(folder / "watch" / "watch.npz") as stored:
        pieces = np.split(stored["X"], np.cumsum(stored["lengths"])[:-1])
        return SeriesCollection(
            Series(piece.T, 50.0, label=str(kind), name=f"set {k}", origin={"patient": str(subject)})
            for k, (piece, kind, subject) in enumerate(
                zip(pieces, stored["y"], stored["subject"], strict=True)
            )
        )


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
    "hospital 60/20/20": lambda folder: split_of(hospital(), seed=3, fractions=(0.6, 0.2, 0.2)),
    "hospital without validation": lambda folder: split_of(hospital(), seed=4, fractions=(0.8, 0, 0.2)),
    "hospital, third fold": lambda folder: (hospital(), folds(hospital(), seed=5)[2]),
    "hospital without NIH": lambda folder: (hospital(), leave_one_out(hospital(), seed=6)["pt"]),
    "hospital without one patient": lambda folder: (
        hospital(),
        leave_one_out(hospital(), level="patient", seed=6)["jh05"],
    ),
    "motifs that recur in all series": lambda folder: split_of(load_synthetic(80), seed=1),
    "other motifs": lambda folder: split_of(load_synthetic(60, seed=2), seed=2),
    "one patient of a balanced rest": lambda folder: (
        few_positive(1),
        leave_one_out(few_positive(1), level="patient", seed=1, balance="train_val")["p06"],
    ),
    "one evenly labelled patient of a balanced rest": lambda folder: (
        few_positive(20),
        leave_one_out(few_positive(20), level="patient", seed=1, balance="train_val")["p00"],
    ),
    "embedded ECGs": lambda folder: split_of(load_sample(), seed=69421),
    "every third ECG, second fold": lambda folder: (load_sample()[::3], folds(load_sample()[::3], seed=7)[1]),
    "bern-barcelona by pair, seed 1": lambda folder: split_of(bern_barcelona(folder), seed=1),
    "bern-barcelona, x against y": lambda folder: split_of(without_groups(bern_barcelona(folder)), seed=3),
    "bonn F and N": lambda folder: split_of(bonn(folder, "FN"), seed=1),
    "bonn, all sets": lambda folder: split_of(bonn(folder, "ZONFS"), seed=3),
    "watch by subject, seed 1": lambda folder: split_of(watch(folder), seed=1),
    "watch, each set alone": lambda folder: split_of(without_groups(watch(folder)), seed=3),
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
    assert not {finding.code for finding in audit.findings} - {
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
    monkeypatch.setattr(
        "raxss.data.leakage.find_near_duplicates", lambda *_: []
    )  # only balancing is asked for here
    collection = few_positive(n_each)
    splits = [
        *leave_one_out(collection, level="patient", seed=1, balance="train_val").values(),
        *(item for seed in range(4) for item in folds(collection, seed=seed, balance="train_val")),
        *(
            item
            for seed in range(4)
            for item in folds(collection, by="channel", seed=seed, balance="train_val")
        ),
        *leave_one_out(collection, level="channel", seed=1, balance="train_val").values(),
    ]
    for split in splits:
        codes = {finding.code for finding in audit_split(collection, split).findings}
        assert "balanced-before-split" not in codes, split.fold


def test_no_patient_at_all_is_noted():
    collection = SeriesCollection(replace(item, origin={"recording": item.name}) for item in hospital())
    audit = audit_split(collection, split_series(collection, seed=1))
    assert [finding.code for finding in audit.findings] == ["patient-unknown"]
    assert "one person's series may sit on both sides" in audit.findings[0].message
    collection = hospital()
    audit = audit_split(collection, split_series(collection, seed=1))
    assert "patient-unknown" not in [finding.code for finding in audit.findings]


def test_a_part_that_is_empty_or_of_one_class_is_noted():
    collection = hospital()
    split = split_series(collection, seed=1)
    labels = collection.labels[split.test]
    split = replace(split, validation=split.validation[:0], test=split.test[labels == "SOZ"])
    told = {finding.code: finding.message for finding in audit_split(collection, split).findings}
    assert told["part-empty"] == "the validation part has no series."
    assert told["part-one-class"] == "the test part has one class only, 'SOZ'."
    whole = audit_split(collection, split_series(collection, seed=1, fractions=(0.8, 0.0, 0.2)))
    assert not [finding for finding in whole.findings if finding.code.startswith("part-")]


def test_an_electrode_that_names_its_patient_is_printed_once():
    collection = SeriesCollection(
        with_origin(item, electrode=f"{item.origin['patient']}/{item.origin['electrode']}")
        for item in hospital()
    )
    audit = audit_split(collection, split_series(collection, by="channel", seed=1))
    (message,) = [finding.message for finding in audit.findings if finding.code == "shared-electrode"]
    assert "'jh01/A'" in message
    assert "jh01/jh01" not in message


def test_one_recording_stored_as_two_runs_is_a_note_on_one_side_and_a_leak_across():
    """sub-jh104 of ds003029: run-02 has the bytes of run-01, run-04 those of run-03."""
    rng = np.random.default_rng(4)
    series = []
    for patient in range(20):
        content = rng.integers(-3000, 3000, size=800).astype("<i2").tobytes()
        for run in (1, 2):
            series.append(
                Series(
                    np.frombuffer(content, "<i2"),
                    1000.0,
                    label="ab"[patient % 2],
                    name=f"jh{patient} run-{run}",
                    origin={"patient": f"jh{patient}", "recording": f"run-{run}"},
                )
            )
    collection = SeriesCollection(series)
    together = audit_split(collection, split_series(collection, seed=1))
    assert together.clean
    assert [finding.code for finding in together.findings] == ["same-part-duplicates"]
    assert "20 times" in together.findings[0].message
    leaks = {
        finding.code: finding.message for finding in audit_split(collection, runs_apart(collection)).findings
    }
    assert leaks["identical-samples"].startswith("10 times")
    assert "'jh0 run-1 (train) = jh0 run-2 (test)'" in leaks["identical-samples"]


def runs_apart(collection):
    """The second run of every other patient is tested, the rest trained on."""
    tested = [k % 4 == 1 for k in range(len(collection))]
    return Split(
        train=np.flatnonzero(~np.array(tested)),
        validation=np.zeros(0, dtype=np.int64),
        test=np.flatnonzero(tested),
        by="recording",
        leaky=True,
        seed=0,
        fractions=(0.75, 0.0, 0.25),
    )


# The parts of the search ------------------------------------------------------------------------------------


def test_a_flat_series_is_nobodys_copy():
    flat = [Series(np.full(1000, value)) for value in (0.0, 0.0, 3.0, np.nan)]
    assert find_near_duplicates(flat, [0, 1, 1, 0]) == []


def spike_in(samples, at, height):
    samples[at] += height
    return samples


# Signals that say nothing of where they come from; each call draws a new one of 3000 samples at 500 Hz.
TIME = np.arange(3000) / 500
POOR = {
    "mains with 1 % noise": lambda rng: (
        np.sin(2 * np.pi * (50 * TIME + rng.random())) + 0.01 * rng.normal(size=3000)
    ),
    "mains with harmonics": lambda rng: sum(
        np.sin(2 * np.pi * n * (50 * TIME + phase)) / n for phase in [rng.random()] for n in range(1, 5)
    ),
    "slow sine": lambda rng: np.sin(2 * np.pi * (0.7 * TIME + rng.random())),
    "slower sine with noise": lambda rng: (
        np.sin(2 * np.pi * (0.2 * TIME + rng.random())) + 0.02 * rng.normal(size=3000)
    ),
    "ramp with noise": lambda rng: TIME * rng.uniform(5, 20) + rng.normal(size=3000),
    "flat with a spike": lambda rng: spike_in(np.zeros(3000), rng.integers(600, 2400), rng.uniform(50, 90)),
    "noise with a spike": lambda rng: spike_in(
        rng.normal(size=3000), rng.integers(600, 2400), rng.uniform(900, 950)
    ),
    "one step with noise": lambda rng: (
        20.0 * (np.arange(3000) > rng.integers(800, 2200)) + rng.normal(size=3000)
    ),
    "square waves": lambda rng: 1.0 * ((np.arange(3000) + rng.integers(100)) % 100 < 50),
    "square waves with noise": lambda rng: (
        1.0 * ((np.arange(3000) + rng.integers(100)) % 100 < 50) + 0.03 * rng.normal(size=3000)
    ),
    "regular pulses": lambda rng: 1.0 * ((np.arange(3000) + rng.integers(125)) % 125 < 5),
    "settling electrode": lambda rng: np.exp(-TIME) * rng.uniform(50, 90) + 0.2 * rng.normal(size=3000),
}


@pytest.mark.parametrize("name", POOR)
def test_signals_that_say_nothing_of_their_origin_are_no_copies(name):
    for length in (3000, 520):
        rng = np.random.default_rng(length)
        series = [Series(POOR[name](rng)[-length:], 500.0) for _ in range(12)]
        found = find_near_duplicates(series, np.arange(len(series)) % 3)
        assert [item for item in found if item.kind != "identical"] == []  # pulses of one phase are identical


def test_identical_values_are_found_in_poor_signals_too():
    rng = np.random.default_rng(1)
    sine, pulses = (POOR[name](rng) for name in ("slow sine", "regular pulses"))
    copies = find_near_duplicates([Series(sine), Series(pulses), Series(sine), Series(pulses)], [0, 0, 1, 1])
    assert [(item.first, item.second, item.kind) for item in copies] == [
        (0, 2, "identical"),
        (1, 3, "identical"),
    ]


def test_a_copy_is_found_where_one_variate_is_mains_only(rng):
    both = np.stack([rng.normal(size=1500).cumsum(), np.sin(0.3 * np.arange(1500))])
    copies = find_near_duplicates([Series(both[::-1]), Series(3 * both[::-1][:, 200:])], [0, 1])
    assert [(item.first, item.second, item.kind) for item in copies] == [(0, 1, "stretch")]


def test_duplicates_within_a_part_are_a_note(rng):
    noise = rng.normal(size=(20, 500))
    noise[3] = noise[4]
    collection = SeriesCollection(Series(item, label=k % 2, name=f"s{k}") for k, item in enumerate(noise))
    split = Split(
        train=np.arange(12),
        validation=np.arange(12, 15),
        test=np.arange(15, 20),
        by="channel",
        leaky=False,
        seed=0,
        fractions=(0.6, 0.15, 0.25),
    )
    audit = audit_split(collection, split)
    assert audit.clean
    assert "'s3 = s4'" in next(
        finding.message for finding in audit.findings if finding.code == "same-part-duplicates"
    )


def test_a_copy_is_found_beside_gaps(rng):
    samples = rng.normal(size=2000).cumsum()
    other = 2 - 3 * samples
    other[300:340] = np.nan
    copies = find_near_duplicates([Series(samples), Series(other, gaps_marked=True)], [0, 1])
    assert [(item.first, item.second) for item in copies] == [(0, 1)]


def test_a_stretch_is_found_across_the_borders_of_what_is_read_at_once(rng, monkeypatch, tmp_path):
    monkeypatch.setattr("raxss.data.near_duplicates.CHUNK", 1500)
    long = rng.normal(size=20_000).cumsum().astype(np.float32)
    np.save(tmp_path / "long.npy", long)
    mapped = Series(np.load(tmp_path / "long.npy", mmap_mode="r"), 100.0)
    crops = [Series(long[begin : begin + 900], 100.0) for begin in (1, 1100, 2600, 8470, 19_100)]
    others = [Series(rng.normal(size=900).cumsum(), 100.0) for _ in range(5)]
    copies = find_near_duplicates([mapped, *crops, *others], [0] + [1] * 10)
    assert [(item.first, item.second, item.kind) for item in copies] == [
        (0, k, "stretch") for k in range(1, 6)
    ]
    halved = Series(resample_poly(long, 1, 2), 50.0)
    assert [item.kind for item in find_near_duplicates([mapped, halved, *others], [0] + [1] * 6)] == [
        "resampled"
    ]


def test_all_variates_must_be_copied(rng):
    first, second = rng.normal(size=(2, 3, 1500)).cumsum(axis=2)
    mixed = first.copy()
    mixed[2] = second[2]
    assert len(find_near_duplicates([Series(first), Series(first[:, 100:] * [[2], [-1], [5]])], [0, 1])) == 1
    assert find_near_duplicates([Series(first), Series(mixed)], [0, 1]) == []


def test_pooling_is_undone_exactly(rng):
    samples = rng.normal(size=5000)
    assert_allclose(
        resampled_similarity(Series(samples, 1000.0), Series(pooled(samples), 1000 / 12)), 1, atol=1e-9
    )
    other = rng.normal(size=5000)
    assert resampled_similarity(Series(other, 1000.0), Series(pooled(samples), 1000 / 12)) < 0.5


def test_every_code_is_listed_once():
    assert not set(LEAKS) & set(NOTES)


def test_a_split_of_other_data_is_refused():
    collection = hospital()
    split = split_series(collection, seed=0)
    with pytest.raises(DataError, match=r"index 1\d\d, but there are 100 series"):
        audit_split(collection[:100], split)


# On the command line ----------------------------------------------------------------------------------------


def raxss(*arguments, code=0):
    from raxss.cli import app

    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, RAxSSError):
        assert code == 1, result.exception
        return str(result.exception)
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


@pytest.fixture
def manifest(tmp_path):
    """72 recordings of 18 patients on disk."""
    rng = np.random.default_rng(3)
    lines = ["path,label,group,rate"]
    for index in range(72):
        np.save(tmp_path / f"rec{index:02d}.npy", rng.normal(size=600).cumsum())
        lines.append(f"rec{index:02d}.npy,{'ab'[index % 2]},person{index // 4},100")
    path = tmp_path / "manifest.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_split_then_audit_then_spoil_it(manifest, tmp_path):
    file = tmp_path / "split.json"
    told = raxss("split", manifest, "--by", "patient", "--seed", "5", "--out", file)
    assert "patient: train" in told
    assert "\nclean" in raxss("audit-split", manifest, "--split", file)

    kept = json.loads(file.read_text())
    np.save(tmp_path / f"{kept['test'][0]}.npy", -np.load(tmp_path / f"{kept['train'][0]}.npy"))
    told = raxss("audit-split", manifest, "--split", file, code=1)
    assert f"{kept['train'][0]} (train) = {kept['test'][0]} (test)" in told
    assert "NOT clean" in told
    found = json.loads(raxss("audit-split", manifest, "--split", file, "--json", code=1))
    assert found["clean"] is False
    assert {item["code"] for item in found["findings"]} == {"copied-stretch", "one-patient-two-ids"}
    assert set(found["findings"][0]) == {"code", "severity", "message", "split"}


def test_a_name_in_two_parts_of_a_file_is_refused_by_name(manifest, tmp_path):
    file = tmp_path / "split.json"
    raxss("split", manifest, "--out", file)
    kept = json.loads(file.read_text())
    kept["test"].append(kept["train"][3])
    file.write_text(json.dumps(kept))
    assert f"{kept['train'][3]!r} twice, in train and in test" in raxss(
        "audit-split", manifest, "--split", file, code=1
    )


def test_the_papers_split_is_called_leaky_on_the_command_line(manifest, tmp_path):
    assert "channel (leaky): train 50" in raxss(
        "split", manifest, "--by", "paper", "--out", tmp_path / "s.json"
    )
    told = raxss("audit-split", manifest, "--by", "channel", code=1)
    assert "split: channel (leaky)" in told
    assert "leak: shared-patient" in told


def test_folds_and_groups_left_out_make_a_folder(manifest, tmp_path):
    raxss("split", manifest, "--folds", "3", "--out", tmp_path / "folds")
    assert sorted(file.name for file in (tmp_path / "folds").glob("*.json")) == [
        f"fold-{k}.json" for k in range(3)
    ]
    assert raxss("audit-split", manifest, "--split", tmp_path / "folds").count("\nclean") == 3
    raxss("split", manifest, "--leave-out", "patient", "--out", tmp_path / "left")
    assert len(list((tmp_path / "left").glob("*.json"))) == 18
    assert "give one of them" in raxss(
        "split", manifest, "--folds", "3", "--leave-out", "patient", "--out", tmp_path / "no", code=1
    )
    assert "'0.7;0.3'" in raxss("split", manifest, "--fractions", "0.7;0.3", "--out", tmp_path / "no", code=1)


def test_a_model_fitted_on_everything_is_caught(manifest, tmp_path):
    from raxss.data.files import read_manifest

    collection = read_manifest(manifest)
    split = split_series(collection, seed=5)
    split.save(tmp_path / "split.json", collection.names)
    for name, members in (("honest", split.parts(collection)[0]), ("spoilt", collection)):
        model = RAxSSClassifier(**{**SMALL, "max_epochs": 1, "stride": 200, "scaling": "train"}).fit(members)
        model.save_pretrained(tmp_path / name)
    arguments = ("audit-split", manifest, "--split", tmp_path / "split.json", "--model")
    assert "\nclean" in raxss(*arguments, tmp_path / "honest")
    assert "leak: training-saw-test" in raxss(*arguments, tmp_path / "spoilt", code=1)


def test_what_a_model_was_fitted_on_is_read_without_its_network(tmp_path, rng):
    collection = waves(rng)
    model = RAxSSClassifier(**{**SMALL, "max_epochs": 1, "stride": 200, "scaling": "train"}).fit(collection)
    model.save_pretrained(tmp_path / "model")
    scaling, digests = read_fitted(tmp_path / "model")
    assert_allclose(scaling.mean, model.scaling_.mean)
    assert_allclose(scaling.deviation, model.scaling_.deviation)
    assert digests == sorted(item.digest for item in collection)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="'model' cannot be audited"):
        read_fitted(tmp_path / "model")


def test_training_names_come_from_a_file(manifest, tmp_path):
    file = tmp_path / "split.json"
    raxss("split", manifest, "--out", file)
    kept = json.loads(file.read_text())
    (tmp_path / "names.txt").write_text("\n".join([*kept["train"], kept["test"][1]]))
    told = raxss("audit-split", manifest, "--split", file, "--training-names", tmp_path / "names.txt", code=1)
    assert (
        f"leak: training-saw-test: 1 series of the test part are among the training names: {kept['test'][1]!r}"
        in told
    )


def test_a_split_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "s.json").write_text("[1, 2]")
    with pytest.raises(RecordingError, match=r"'s.json': this is no split: its format is 'list'"):
        Split.read(tmp_path / "s.json", ["a"])


def test_weak_parts_are_warned_of_and_a_seed_below_zero_is_refused(manifest, tmp_path):
    told = raxss("split", manifest, "--leave-out", "patient", "--out", tmp_path / "left")
    assert "warning:" not in told
    lines = manifest.read_text().replace(",b,", ",a,").replace("rec01.npy,a", "rec01.npy,b")
    manifest.write_text(lines)
    told = raxss("split", manifest, "--seed", "5", "--out", tmp_path / "weak.json")
    assert "warning: the test part has one class only, 'a'." in told
    assert "seed is -1; needed is an integer of at least 0" in raxss(
        "split", manifest, "--seed", "-1", "--out", tmp_path / "no.json", code=1
    )
    assert not (tmp_path / "no.json").exists()
