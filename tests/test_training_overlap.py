"""Overlap with training data: recognised by content, and marked in every output."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pages import assert_quiet, rows
from raxss import RAxSSClassifier, Series
from raxss.data.bids import read_bids
from raxss.data.prepare.preprocessing import Preparation
from raxss.data.series import SeriesCollection
from raxss.data.training_overlap import (
    EITHER,
    MARKS,
    MOST_KEYS,
    NO,
    PART,
    STATES,
    TRAINING,
    UNKNOWN,
    VALIDATION,
    TrainingRecord,
    kept_of_training,
    summary_of,
)
from raxss.errors import DataError, ModelError
from raxss.explain import Report, SeriesEvidence, mne_annotations
from raxss.explain.evidence import safe_name
from raxss.explain.export.report import page as page_module
from raxss.explain.export.report.verifying import verify_report
from test_derivatives import errors_of
from test_split_commands import raxss as run_command

NAMES = [f"A{number}" for number in range(1, 11)]
TRUTH = [TRAINING] * 4 + [VALIDATION] + [NO] * 5  # the model was fitted on channels 1 to 5
HEADLINE = "4 of 10 channels were in the model's training data, 1 in its validation data."
MODEL = {
    "window_length": 64, "stride": 32, "space": "signal", "temperature": 0.1, "max_epochs": 1,
    "random_state": 0, "device": "cpu",
}  # fmt: skip


def raxss(*arguments, code=0):
    return " ".join(run_command(*arguments, code=code).split())


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A BIDS tree with one recording of ten channels, as EDF."""
    from edfio import Edf, EdfSignal

    root = tmp_path_factory.mktemp("seen") / "raw"
    folder = root / "sub-01" / "ieeg"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(3)
    samples = np.cumsum(rng.normal(size=(10, 1200)), axis=1)
    signals = [
        EdfSignal(row, 100, label=name, physical_dimension="uV")
        for name, row in zip(NAMES, samples, strict=True)
    ]
    Edf(signals).write(folder / "sub-01_task-rest_ieeg.edf")
    table = [f"{name}\tECOG\tuV\tn/a\tn/a" for name in NAMES]
    lines = "\n".join(["name\ttype\tunits\tlow_cutoff\thigh_cutoff", *table])
    (folder / "sub-01_task-rest_channels.tsv").write_text(f"{lines}\n")
    description = {"Name": "Ten channels", "BIDSVersion": "1.8.0", "DatasetType": "raw"}
    (root / "dataset_description.json").write_text(json.dumps(description))
    return root


def labelled(series):
    labels = ["soz" if place % 2 else "other" for place in range(len(series))]
    return SeriesCollection(replace(item, label=label) for item, label in zip(series, labels, strict=True))


@pytest.fixture(scope="module")
def series(root):
    return labelled(read_bids(root, only_labelled=False))


@pytest.fixture(scope="module")
def fitted(series):
    return RAxSSClassifier("dlinear", **MODEL).fit(series[:4], validation=series[4:5])


@pytest.fixture(scope="module")
def model(fitted, tmp_path_factory):
    return fitted.save_pretrained(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def renamed(root, tmp_path_factory):
    """The same recording under another name, outside its tree."""
    place = tmp_path_factory.mktemp("elsewhere") / "night 7.edf"
    shutil.copy(next(root.rglob("*.edf")), place)
    return place


@pytest.fixture(scope="module")
def older(fitted, tmp_path_factory):
    """The model as earlier versions wrote it: one list of digests, and before that none."""
    folder = tmp_path_factory.mktemp("older")
    known = fitted.training_data_
    for name, lost in {
        "one list": ("validation_series", "stretches"),
        "no list": ("validation_series", "stretches", "series"),
    }.items():
        fitted.training_data_ = {key: value for key, value in known.items() if key not in lost}
        fitted.save_pretrained(folder / name)
    fitted.training_data_ = known
    return folder


# What is recognised -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def noise():
    return np.cumsum(np.random.default_rng(11).normal(size=(6, 5000)), axis=1)


@pytest.fixture(scope="module")
def record(noise):
    return TrainingRecord.of(kept_of_training([Series(item) for item in noise[:4]], np.array([3])))


def test_whole_series_are_recognised_by_their_samples_alone(noise, record):
    again = [Series(item, rate=7.0, name=f"other {place}", group=3) for place, item in enumerate(noise)]
    assert [record.state(item) for item in again] == [TRAINING] * 3 + [VALIDATION] + [NO] * 2
    item = Series([1.0, 2.0, 1e300])  # in both parts; beyond float32, without a warning
    assert TrainingRecord.of(kept_of_training([item, item], np.array([1]))).state(item) == TRAINING


@pytest.mark.parametrize(
    "change",
    [
        np.float32,
        lambda samples: samples.astype(np.float32).astype(np.float64),
        lambda samples: samples[np.newaxis],
        np.asfortranarray,
        lambda samples: np.stack([samples, samples])[:1, :],
        lambda samples: np.repeat(samples, 2)[::2],
        lambda samples: samples.astype(">f8"),
    ],
)
def test_type_layout_and_byte_order_of_the_samples_do_not_matter(noise, record, change):
    assert [record.state(Series(change(item))) for item in noise[:1]] == [TRAINING]


@pytest.mark.parametrize(
    "change",
    [
        lambda samples: samples[1000:3500],
        lambda samples: samples[:-1],
        lambda samples: np.concatenate([np.random.default_rng(0).normal(size=777), samples]),
        lambda samples: 1e-6 * samples,
        lambda samples: -3.7 * samples + 1000,
        lambda samples: (0.1 * samples[900:4100] + 5).astype(np.float32),
        lambda samples: Preparation(scaling="series").apply(Series(samples[300:4000])).samples,
        lambda samples: np.where(np.arange(5000) < 2000, np.nan, samples),
    ],
    ids=["crop", "last sample", "longer", "V for uV", "negated", "crop in float32", "z-scored crop", "gap"],
)
def test_crops_longer_recordings_and_other_units_are_in_part(noise, record, change):
    changed = [Series(change(item), gaps_marked=True) for item in noise]
    assert [record.state(item) for item in changed] == [PART] * 4 + [NO] * 2


def test_what_is_alike_without_being_a_copy_is_not_recognised():
    """Saturated stretches, square waves and flat lines are the same in all recordings; neighbours are nearly."""
    rng = np.random.default_rng(4)
    square = np.repeat(np.tile([-1.0, 1.0], 20), 100)
    clipped = np.clip(10 * np.cumsum(rng.normal(size=(2, 4000)), axis=1), -50, 50)
    common = np.cumsum(rng.normal(size=4000))
    neighbours = common + 0.02 * common.std() * rng.normal(size=(2, 4000))
    assert np.corrcoef(neighbours)[0, 1] > 0.999
    for learned, other in ((square[7:], square[:-20]), clipped, neighbours, (np.ones(900), np.ones(901))):
        kept = TrainingRecord.of(kept_of_training([Series(learned)], np.zeros(0, dtype=np.int64)))
        assert kept.state(Series(learned)) == TRAINING
        assert kept.state(Series(other)) == NO


def test_what_a_model_keeps_stays_small_and_as_it_was_until_now(rng):
    series = [Series(rng.normal(size=600)) for _ in range(40)]
    kept = kept_of_training(series, np.arange(3))
    assert len(kept["stretches"]) <= 16 * min(16 * 40, MOST_KEYS)
    assert len(kept["validation_series"]) == 3
    samples = (
        np.arange(12.0).reshape(2, 6) / 7
    )  # or older models would know nothing of what they were fitted on
    assert Series(samples).digest == "76137b40825abd7d"


@pytest.mark.parametrize(
    "wrong",
    [{"series": "ab"}, {"series": [1]}, {"stretches": "xyz"}, {"validation_series": {}}, {"stretches": 5}],
)
def test_a_model_whose_record_is_malformed_is_refused_when_loaded(fitted, tmp_path, wrong):
    known = fitted.training_data_
    fitted.training_data_ = known | wrong
    try:
        fitted.save_pretrained(tmp_path / "model")
    finally:
        fitted.training_data_ = known
    with pytest.raises(ModelError, match=next(iter(wrong))):
        RAxSSClassifier.from_pretrained(tmp_path / "model")


def test_every_state_has_its_words():
    assert set(MARKS) == set(STATES)
    for state in STATES:
        assert summary_of([state]).startswith("Whether" if state == UNKNOWN else "This channel was")
        assert ("not found" in summary_of([state])) == (state == NO)
    assert summary_of([TRAINING, UNKNOWN, NO]).endswith(
        "Of 1 it is unknown: the model keeps no digests of its training data."
    )


# In Python ----------------------------------------------------------------------------------------------------


def test_answers_and_evidence_have_it(fitted, series, tmp_path):
    anonymous = [Series(item.samples, rate=item.rate) for item in series]
    assert fitted.seen_in_training(anonymous) == TRUTH
    assert [item.seen_in_training for item in fitted.score_series(anonymous)] == TRUTH
    evidence = fitted.explain(anonymous)
    assert [item.seen_in_training for item in evidence] == TRUTH
    for item, state in zip(evidence, TRUTH, strict=True):
        assert f"seen in training: {state}\n" in repr(item)
        assert json.loads(item.to_json())["seen_in_training"] == state
    marks = mne_annotations(fitted.explain(series[:6]), n_windows=1)
    found = {
        name: re.sub(r".* rank 1", "", item)
        for (name,), item in zip(marks.ch_names, marks.description, strict=True)
    }
    seen = [" (in training data)"] * 4 + [" (in validation data)", ""]
    assert found == dict(zip(NAMES[:6], seen, strict=True))
    place = fitted.explain(series[0]).save(tmp_path, figures=False)
    assert SeriesEvidence.load(place).seen_in_training == TRAINING


def test_evidence_of_earlier_versions_is_loaded_as_unknown_and_nonsense_is_refused(fitted, series, tmp_path):
    place = fitted.explain(series[0]).save(tmp_path, figures=False)
    stored = json.loads((place / "evidence.json").read_text())
    for value, outcome in ((None, UNKNOWN), ("perhaps", DataError), (["no"], DataError)):
        changed = {key: item for key, item in stored.items() if key != "seen_in_training"}
        changed |= {} if value is None else {"seen_in_training": value}
        (place / "evidence.json").write_text(json.dumps(changed))
        if outcome is UNKNOWN:
            assert SeriesEvidence.load(place).seen_in_training == UNKNOWN
        else:
            with pytest.raises(DataError, match="seen_in_training"):
                SeriesEvidence.load(place)


def test_a_model_that_sets_its_own_validation_set_aside_distinguishes_the_two(rng):
    labels = ["a", "b"] * 10
    series = [Series(rng.normal(size=300), label=label) for label in labels]
    model = RAxSSClassifier("dlinear", **MODEL, validation_fraction=0.2).fit(series)
    states = model.seen_in_training(series)
    assert states.count(VALIDATION) == model.training_data_["n_validation"] > 0
    assert states.count(TRAINING) == 20 - states.count(VALIDATION)


# On the command line ------------------------------------------------------------------------------------------


def by_channel(folder, name, samples, channels):
    """An archive of arrays, and a manifest by which each of its channels is a series."""
    np.savez(folder / f"{name}.npz", samples=samples, rate=100.0, channels=channels)
    lines = [f"{name}.npz,{channel}" for channel in channels]
    (folder / f"{name}.csv").write_text("\n".join(["path,channel", *lines]) + "\n")
    return folder / f"{name}.csv"


@pytest.fixture(scope="module")
def copies(renamed, series, tmp_path_factory):
    """The recording in other formats and types, under other names."""
    folder = tmp_path_factory.mktemp("copies")
    samples = np.concatenate([item.samples for item in series])
    kinds = ("float32", "float64", ">f8")
    return [
        renamed,
        *(by_channel(folder, f"day {at}", samples.astype(kind), NAMES) for at, kind in enumerate(kinds)),
    ]


def test_the_table_of_predictions_marks_them_in_every_format_and_by_every_engine(
    model, root, copies, tmp_path
):
    for place, recording in enumerate([root, *copies]):
        for suffix, options in ((".csv", []), (".parquet", ["--engine", "local", "--workers", "1"])):
            out = tmp_path / f"{place}{suffix}"
            printed = raxss("predict", model, recording, "--out", out, "--device", "cpu", *options)
            table = pd.read_csv(out) if suffix == ".csv" else pd.read_parquet(out)
            assert table["seen_in_training"].tolist() == TRUTH, (recording, suffix)
            assert "4 of 10 series were in the model's training data, 1 in its validation data." in printed


@pytest.mark.parametrize(
    ("name", "states", "sentence"),
    [
        ("today", TRUTH, "4 of 10 {} were in the model's training data, 1 in its validation data."),
        ("one list", [EITHER] * 5 + [NO] * 5, "5 of 10 {} were in the model's training or validation data."),
        (
            "no list",
            [UNKNOWN] * 10,
            "Whether these 10 {} were in the model's training data is unknown: the model keeps no digests",
        ),
    ],
)
def test_every_output_marks_exactly_what_the_model_kept(
    model, older, renamed, root, tmp_path, name, states, sentence
):
    folder = model if name == "today" else older / name
    device = ["--device", "cpu"]
    printed = raxss("predict", folder, renamed, "--out", tmp_path / "t.csv", *device)
    assert sentence.format("series") in printed
    assert pd.read_csv(tmp_path / "t.csv")["seen_in_training"].tolist() == states
    printed = raxss("explain", folder, renamed, "--out", tmp_path / "why", *device)
    assert sentence.format("series") in printed
    contents = Report.read(next((tmp_path / "why").rglob("report.html"))).contents
    assert contents["seen_in_training"].startswith(sentence.format("channels"))
    assert [content["seen_in_training"] for content in contents["channels"]] == states
    for channel, state in zip(NAMES, states, strict=True):
        (file,) = (tmp_path / "why").rglob(f"{safe_name(f'night 7:{channel}')}/evidence.json")
        assert json.loads(file.read_text())["seen_in_training"] == state
    raxss("explain", folder, renamed, "--one-table", "--out", tmp_path / "one", *device)
    assert pd.read_parquet(tmp_path / "one" / "summary.parquet")["seen_in_training"].tolist() == states
    printed = raxss("explain", folder, root, "--bids-derivatives", tmp_path / "d", *device)
    assert sentence.format("series") in printed
    table = pd.read_csv(next((tmp_path / "d").rglob("*_channels.tsv")), sep="\t")
    assert table.set_index("name")["seen_in_training"].to_dict() == dict(zip(NAMES, states, strict=True))
    about = json.loads(next((tmp_path / "d").rglob("*_channels.json")).read_text())["seen_in_training"]
    assert set(about["Levels"]) == set(STATES)
    assert errors_of(tmp_path / "d") == []


def test_where_none_was_seen_the_report_says_so_and_the_terminal_is_quiet(model, series, tmp_path):
    samples = np.concatenate([item.samples for item in series[5:]])
    recording = by_channel(tmp_path, "new", samples, NAMES[5:])
    printed = raxss("explain", model, recording, "--out", tmp_path / "r.html", "--device", "cpu")
    assert "training data" not in printed
    contents = Report.read(tmp_path / "r.html").contents
    assert contents["seen_in_training"] == "None of the 5 channels was found in the model's training data."


@pytest.mark.parametrize("options", [["--pool", "4/2"], ["--rate", "50"], ["--scaling", "none"]])
def test_raw_recordings_are_recognised_when_the_model_learned_from_prepared_ones(
    root, renamed, tmp_path, options
):
    """Preparation on disk and in memory must give the same samples, bit by bit in float32."""
    raxss("prepare", root, "--unlabelled", "--out", tmp_path / "prepared", "--workers", "1", *options)
    from raxss.data.prepare import read_prepared

    prepared = labelled(read_prepared(tmp_path / "prepared"))
    fitted = RAxSSClassifier("dlinear", **MODEL).fit(prepared[:4], validation=prepared[4:5])
    fitted.save_pretrained(tmp_path / "model")
    for number, recording in enumerate([root, renamed, tmp_path / "prepared"]):
        out = tmp_path / f"{number}.csv"
        raxss("predict", tmp_path / "model", recording, "--out", out, "--device", "cpu")
        assert pd.read_csv(out)["seen_in_training"].tolist() == TRUTH, recording


# The page -----------------------------------------------------------------------------------------------------


def test_the_page_shows_it_in_its_headline_and_beside_each_channel(browser, fitted, series, tmp_path):
    page = browser.open(fitted.report(series).save(tmp_path / "r.html"))
    headline = page.locator("header .seen-all")
    assert headline.is_visible()
    assert headline.inner_text().startswith(HEADLINE)
    assert headline.bounding_box()["y"] < 300  # without scrolling
    marked = dict(re.fullmatch(r"(A\d+) ?(.*)", row[1]).groups() for row in rows(page, "channels"))
    assert marked == {name: "" if state == NO else state for name, state in zip(NAMES, TRUTH, strict=True)}
    for name, mark in (("A1", "in training data"), ("A5", "in validation data"), ("A7", "")):
        page.click(f"table.channels button:text-is('{name}')")
        assert page.inner_text(".title h2") == name
        assert "".join(page.locator(".title .seen").all_inner_texts()) == mark
    assert_quiet(page)
    page.close()


def test_the_page_says_unknown_and_none(browser, fitted, older, series, tmp_path):
    unknown = RAxSSClassifier.from_pretrained(older / "no list", device="cpu")
    for model, text in (
        (unknown, "Whether these 2 channels were"),
        (fitted, "None of the 2 channels was found"),
    ):
        page = browser.open(model.report(series[6:8]).save(tmp_path / "r.html", overwrite=True))
        assert page.inner_text("header .seen-all").startswith(text)
        marks = ["unknown"] * 2 if model is unknown else []
        assert page.locator("table.channels .seen").all_inner_texts() == marks
        assert_quiet(page)
        page.close()


def test_marks_of_the_page_are_the_words_of_the_package():
    """They stand once in TypeScript and once in Python."""
    source = (page_module.resources.files("raxss.explain.export.report") / "viewer" / "data.ts").read_text()
    table = source.partition("const SEEN")[2].partition("};")[0]
    found = dict(re.findall(r'^  "?([a-z ]+)"?: "(.*)",$', table, flags=re.MULTILINE))
    assert found == dict(MARKS)


# Verification -------------------------------------------------------------------------------------------------


def test_a_report_whose_mark_was_removed_is_found_out(fitted, series):
    report, again = fitted.report(series[:2]), fitted.report(series[:2])
    report.contents["channels"][0]["seen_in_training"] = NO
    (difference,) = verify_report(report, again).differences
    assert "seen_in_training: the report says 'no', computed anew it is 'training'" in difference


def test_reports_of_an_earlier_version_are_still_verified(
    fitted, model, series, renamed, tmp_path, monkeypatch
):
    """A page whose script and style are known ones, without what its version could not say."""
    raxss("explain", model, renamed, "--out", tmp_path / "r.html", "--device", "cpu")
    contents = Report.read(tmp_path / "r.html").contents
    for table in (contents, *contents["channels"]):
        del table["seen_in_training"]
    verify = ["verify", tmp_path / "r.html", model, renamed, "--device", "cpu"]

    (tmp_path / "r.html").write_bytes(page_module.page_of(contents))  # of this version it may not be absent
    assert "seen_in_training: is not in the report" in raxss(*verify, code=1)

    before, after = page_module._shell()
    earlier = before.replace(b"--ink", b"--ink-of-then"), after
    block = page_module._block(contents)
    page = earlier[0] + page_module._opening(block) + block + earlier[1]
    (tmp_path / "r.html").write_bytes(page)
    assert "made by another version" in raxss(*verify, code=1)
    known = page_module.hashlib.sha256(b"\0".join(earlier)).hexdigest()
    monkeypatch.setitem(page_module.EARLIER_SHELLS, known, ("seen_in_training",))
    assert "values are the same" in raxss(*verify)
    (tmp_path / "r.html").write_bytes(page.replace(b"--ink-of-then", b"--ink-of-them"))
    assert "made by another version" in raxss(*verify, code=1)
