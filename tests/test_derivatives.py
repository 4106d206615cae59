"""Tests of BIDS derivatives: valid, equal to the predictions, added to, atomic, no personal data."""

import gc
import json
import re
import shutil
import subprocess
import sys
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from make_bids import BAD, CANARIES, CHANNELS, OTHER_TYPE, make_bids
from raxss import RAxSSClassifier
from raxss._core.outputs import output_lock
from raxss.cli import app
from raxss.data.bids import plan_bids, read_bids
from raxss.errors import ConfigError, OutputError, OutputInUseError, RAxSSWarning, RecordingError
from raxss.estimator.batch import FromPlan
from raxss.estimator.persistence import describe_model
from raxss.explain import Report
from raxss.explain.export import derivatives as module
from raxss.explain.export.derivative_tables import about_channels, channel_rows, class_columns
from raxss.explain.export.derivatives import find_source, open_derivatives
from raxss.explain.findings import watched
from test_findings import channels_of, explained
from test_verifying import raxss

VALIDATOR = Path(sys.executable).with_name("bids-validator-deno")
MODEL = {"window_length": 64, "stride": 32, "max_epochs": 1, "random_state": 0, "device": "cpu"}


def derive(model, inputs, root, *options):
    """``raxss explain --bids-derivatives``: what was printed, or the error."""
    return raxss("explain", model, inputs, "--bids-derivatives", root, "--device", "cpu", *options)


def write_derivatives(evidence, root, source, model):
    """Write evidence that is at hand; names of the recordings."""
    done = []

    def write(found):
        opened = open_derivatives(root, source, model=model, classes=found.classes, recordings=[found.name])
        opened.write(found)
        done.append(found.name)

    for _ in watched(evidence, write, model=model):
        pass
    return done


def errors_of(root):
    """Errors of the BIDS validator, all rows looked at."""
    if not VALIDATOR.exists():
        pytest.skip("the package bids-validator-deno is not installed")
    command = [VALIDATOR, "--format", "json", "--max-rows", "-1", root]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    assert found["summary"]["totalFiles"] > 0
    return [issue for issue in found["issues"]["issues"] if issue["severity"] == "error"]


def tables(root, suffix):
    return {
        file.name.removesuffix(f"_desc-raxss_{suffix}"): pd.read_csv(file, sep="\t", na_values=["n/a"])
        for file in sorted(root.rglob(f"*_{suffix}"))
    }


def contents(root):
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    """A tree whose tables also have free text that names somebody."""
    truth = make_bids(
        tmp_path_factory.mktemp("bids") / "raw", n_centres=2, patients_per_centre=1, seconds=8, rate=100
    )
    for file in truth.root.rglob("*_channels.tsv"):
        head, *lines = file.read_text().splitlines()
        lines = [f"{line}\t{CANARIES[0]}\t{CANARIES[3]}" for line in lines]
        file.write_text("\n".join([f"{head}\tdescription\treference", *lines]) + "\n")
    return truth


@pytest.fixture(scope="module")
def classifier(truth):
    with pytest.warns(RAxSSWarning, match="XY9"):  # planted: a contact that no channel has
        series = read_bids(truth.root, labels=truth.clinical)
    return RAxSSClassifier("dlinear", **MODEL).fit(series)


@pytest.fixture(scope="module")
def model(classifier, tmp_path_factory):
    return classifier.save_pretrained(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def written(truth, model):
    """Where the recordings' dataset has its derivatives; alone, without --out."""
    root = truth.root / "derivatives" / "raxss"
    printed = derive(model, truth.root, root)
    assert f"The derivatives of {len(truth.onsets)} recordings are in" in printed
    return root


def test_the_validator_finds_no_error(written):
    assert errors_of(written) == []


def test_every_channel_has_the_probability_that_the_model_predicts(written, truth, classifier):
    series = read_bids(truth.root, only_labelled=False)
    predicted = dict(zip(series.names, classifier.predict_proba(series), strict=True))
    found = tables(written, "channels.tsv")
    assert set(found) == set(truth.onsets)
    for recording, table in found.items():
        assert table["name"].tolist() == [*CHANNELS, OTHER_TYPE]
        assert table["status"].tolist() == [
            "bad" if item in (BAD, OTHER_TYPE) else "good" for item in table["name"]
        ]
        for row in table.to_dict("records"):
            if row["name"] in (BAD, OTHER_TYPE):
                assert pd.isna(row["probability_soz"])
                assert pd.isna(row["rank"])
                continue
            other, soz = predicted[f"{recording}:{row['name']}"]
            assert (row["probability_other"], row["probability_soz"]) == pytest.approx((other, soz), abs=1e-8)
            assert row["predicted"] == ("soz" if soz > other else "other")
        scored = table.dropna(subset="rank").sort_values("rank")
        assert scored["rank"].tolist() == list(range(1, len(CHANNELS)))
        assert scored["probability_soz"].is_monotonic_decreasing


UNCERTAINTY = ("uncalibrated", "interval_low", "interval_high", "in_set")


@pytest.fixture(scope="module")
def calibrated(truth):
    """Calibrated scores of series with sets of classes, from a rate that is not that of the tree."""
    with pytest.warns(RAxSSWarning, match="XY9"):
        series = read_bids(truth.root, labels=truth.clinical)
    slower = [replace(item, rate=item.rate / 1.05, group=item.name) for item in series]
    settings = {"calibration": "venn-abers", "calibration_level": "series", "conformal_alpha": 0.2}
    return RAxSSClassifier("dlinear", **MODEL, **settings).fit(slower[:8], validation=slower[8:])


@pytest.mark.filterwarnings("ignore::raxss.errors.SignalWarning")
def test_the_uncertainty_of_every_channel_is_that_of_score_series(truth, calibrated, tmp_path):
    recording = sorted(truth.onsets)[0]
    series = read_bids(truth.root, only_labelled=False, recordings=[recording])
    write_derivatives(
        calibrated.explain_each(series), tmp_path / "dv", truth.root, describe_model(calibrated)
    )
    assert errors_of(tmp_path / "dv") == []
    (table,) = tables(tmp_path / "dv", "channels.tsv").values()
    rows = {row["name"]: row for row in table.to_dict("records")}
    for scored in calibrated.score_series(series):
        row = rows[scored.series.origin["channel"]]
        for place, class_ in enumerate(calibrated.classes_):
            assert row[f"probability_{class_}"] == pytest.approx(scored.probability[place], abs=1e-8)
            assert row[f"uncalibrated_{class_}"] == pytest.approx(scored.series_probability[place], abs=1e-8)
            assert row[f"interval_low_{class_}"] == pytest.approx(scored.interval.low[place], abs=1e-8)
            assert row[f"interval_high_{class_}"] == pytest.approx(scored.interval.high[place], abs=1e-8)
            assert row[f"in_set_{class_}"] == scored.prediction_set[place]
        assert row["interval_method"] == "Venn-Abers"
        assert row["abstains"] == scored.abstains
        assert "the series has a rate of 100 Hz, but the model was fitted at 95.2381 Hz" in row["warnings"]
        assert scored.series.name not in row["warnings"]
        assert len(scored.notes) == sum(
            row["warnings"].count(item) for item in ("has a rate of", "spectrum", "alike")
        )
    assert (table["probability_soz"] - table["uncalibrated_soz"]).abs().max() > 1e-3
    bad = rows[BAD]
    assert all(pd.isna(bad[name]) for name in ("abstains", "interval_method", "warnings", "in_set_soz"))
    (sidecar,) = (tmp_path / "dv").rglob("*_channels.json")
    assert "80 % of channels or more" in json.loads(sidecar.read_text())["in_set_soz"]["Description"]


def test_uncertainty_that_a_model_does_not_have_is_not_available(written):
    """No calibration, and too few validation series for sets; the interval needs neither."""
    for table in tables(written, "channels.tsv").values():
        scored = table.dropna(subset="rank")
        for name in ("uncalibrated_soz", "in_set_soz", "abstains"):
            assert scored[name].isna().all()
        assert scored["interval_method"].unique().tolist() == ["block bootstrap over windows"]
        inside = scored["probability_soz"].between(scored["interval_low_soz"], scored["interval_high_soz"])
        assert inside.all()


def test_every_column_is_described_and_there_also_where_nothing_is_known():
    found = findings_of([explained(1, classes=("cutoff", "soz"), origin={"channel": "C0"})])
    row, unscored = channel_rows([{"name": "C0"}, {"name": "C1"}], found, "ECOG")
    own = set(row) - {"name", "type", "units", "low_cutoff", "high_cutoff"}
    assert {f"{name}_cutoff" for name in UNCERTAINTY} | {"abstains", "warnings"} <= own
    assert own <= set(about_channels(found))
    assert {unscored[name] for name in own} == {None}
    assert row["low_cutoff"] == ""  # BIDS's own, and no class's
    assert row["interval_method"] is None


def test_events_are_the_strongest_windows_that_the_evidence_has(written, truth, model, tmp_path):
    recording = sorted(truth.onsets)[0]
    out = tmp_path / "why"
    raxss("explain", model, truth.root, "--out", out, "--one-table", "--device", "cpu")
    windows = pd.read_parquet(out / "windows.parquet")
    events = tables(written, "events.tsv")[recording]
    assert events["onset"].is_monotonic_increasing
    for channel, rows in events.groupby("channel"):
        own = windows[windows["series"] == f"{recording}:{channel}"]
        (kind,) = rows["trial_type"].unique()
        best = own.loc[own[f"contribution_{kind.removeprefix('raxss/')}"].idxmax()]
        first = rows[rows["rank"] == 1].iloc[0]
        assert first["onset"] == pytest.approx(best["start_s"])
        assert first["duration"] == pytest.approx(64 / truth.rate)
        assert first["weight"] == pytest.approx(best["weight"], rel=1e-8)
        assert first["contribution"] == pytest.approx(first["weight"] * first["probability"], rel=1e-7)
        assert rows.sort_values("rank")["contribution"].is_monotonic_decreasing
        spans = rows.sort_values("onset")
        assert (spans["onset"].diff().dropna() >= 64 / truth.rate - 1e-9).all()
    assert set(events["channel"]) == set(CHANNELS) - {BAD}


def test_numbers_can_be_traced_to_model_settings_and_files(written, truth, classifier):
    file = next(written.rglob("*run-02*_channels.json"))
    about = json.loads(file.read_text())
    assert about["RAxSS"]["Model"]["config_hash"] == classifier.config_.hash
    assert "Research use only" in about["RAxSS"]["Note"]
    assert "series" not in about["RAxSS"]["Model"]["training_data"]
    links = json.loads((written / "dataset_description.json").read_text())["DatasetLinks"]
    assert len(about["Sources"]) == 2  # EDF and its channels.tsv
    for uri in about["Sources"]:
        kind, link, place = uri.split(":")
        assert kind == "bids"
        source = (written / links[link] / place).resolve()
        assert source.is_relative_to(truth.root)
        assert module.sha256_of(source) == about["RAxSS"]["SourceSHA256"][place]


def test_nobody_is_named(written):
    text = b"".join(contents(written).values())
    assert [word for word in CANARIES if word.encode() in text] == []
    assert b"tmp" not in text


def test_recordings_are_added_and_what_is_there_is_left_alone(truth, model, written, tmp_path):
    root = tmp_path / "raxss"
    files = [next(truth.root.rglob("*run-01_ieeg.vhdr")), next(truth.root.rglob("*run-02_ieeg.edf"))]
    for n, file in enumerate(files, start=1):
        before = contents(root) if root.exists() else {}
        derive(model, file, root)
        assert len(list(root.rglob("*_channels.tsv"))) == n
        assert before.items() <= contents(root).items()
        assert errors_of(root) == []
    before = contents(root)
    printed = raxss("explain", model, *files, "--bids-derivatives", root, "--device", "cpu")
    assert "has 2 recordings already, by this model" in printed
    derive(model, truth.root, root)
    assert before.items() <= contents(root).items()
    as_at_once = {name: text for name, text in contents(written).items() if name.startswith("sub-")}
    assert {name: text for name, text in contents(root).items() if name.startswith("sub-")} == as_at_once
    left = [file.name for file in root.iterdir() if file.name.startswith(".")]
    assert left == [".bidsignore"]


@pytest.mark.parametrize("positive", [None, "other"])
def test_report_and_derivatives_rank_by_the_same_class(truth, model, classifier, tmp_path, positive):
    file = next(truth.root.rglob("*run-02_ieeg.edf"))
    name = file.stem.removesuffix("_ieeg")
    options = ["--format", "report", *([] if positive is None else ["--positive", positive])]
    derive(model, file, tmp_path / "dv", "--out", tmp_path / "why", *options)
    counts = classifier.training_data_["classes"]
    expected = positive or min(reversed(classifier.classes_.tolist()), key=lambda item: counts[item])
    contents = Report.read(tmp_path / "why" / name / "report.html").contents
    assert contents["classes"][contents["focus"]] == expected
    table = pd.read_csv(next((tmp_path / "dv").rglob("*_channels.tsv")), sep="\t", na_values=["n/a"])
    ranked = table.dropna(subset="rank").sort_values("rank")
    channels = sorted(contents["channels"], key=lambda item: -item["probability"][contents["focus"]])
    assert ranked["name"].tolist() == [channel["name"] for channel in channels]
    np.testing.assert_allclose(
        ranked[f"probability_{expected}"],
        [channel["probability"][contents["focus"]] for channel in channels],
        atol=1e-6,
    )


def test_a_report_alone_has_its_derivatives_beside_it(truth, model, tmp_path):
    file = next(truth.root.rglob("*run-01_ieeg.vhdr"))
    printed = derive(model, file, tmp_path / "dv", "--out", tmp_path / "r.html")
    assert "open it in any browser" in printed
    assert "The derivatives of 1 recording" in printed
    assert {item.name for item in tmp_path.iterdir()} == {"r.html", "dv"}
    for given in (truth.root, file):
        verified = raxss("verify", tmp_path / "r.html", model, given, "--device", "cpu")
        assert "values are the same" in verified
    by_itself = ["--out", tmp_path / "f.html", "--device", "cpu"]  # bad channels too, names of its own
    raxss("explain", model, file, *by_itself)
    raxss("verify", tmp_path / "f.html", model, file, "--device", "cpu")


def test_what_another_model_made_is_replaced_with_overwrite_alone(truth, written, model):
    root = shutil.copytree(written, written.with_name("again"))
    before = contents(root)
    error = derive(model, truth.root, root, "--positive", "other")
    assert isinstance(error, OutputError)
    assert "'again' has 4 of the recordings already, made by another model, version or ranking" in str(error)
    assert contents(root) == before
    derive(model, truth.root, root, "--positive", "other", "--overwrite")
    for old, new in zip(
        tables(written, "channels.tsv").values(), tables(root, "channels.tsv").values(), strict=True
    ):
        assert (old["rank"] + new["rank"]).dropna().unique().tolist() == [len(CHANNELS)]  # upside down
    assert errors_of(root) == []


def test_folders_that_raxss_did_not_make_are_left_as_they_are(truth, model, tmp_path):
    def refused(root):
        before = contents(root)
        error = derive(model, truth.root, root)
        assert isinstance(error, OutputError | ConfigError), error
        assert contents(root) == before
        return str(error)

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert "'mine' is a folder with content that is not a derivative dataset by raxss" in refused(
        tmp_path / "mine"
    )
    other = {
        "Name": "x",
        "BIDSVersion": "1.8.0",
        "DatasetType": "derivative",
        "GeneratedBy": [{"Name": "fmriprep"}],
    }
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "dataset_description.json").write_text(json.dumps(other))
    assert "'other' is a folder with content that is not" in refused(tmp_path / "other")
    (tmp_path / "other" / "dataset_description.json").write_text("{")
    assert "dataset_description.json in 'other' cannot be read" in refused(tmp_path / "other")
    mine = other | {"GeneratedBy": [{"Name": "raxss"}], "DatasetLinks": {"source": "../elsewhere"}}
    (tmp_path / "other" / "dataset_description.json").write_text(json.dumps(mine))
    assert "'other' has derivatives of another dataset ('../elsewhere'" in refused(tmp_path / "other")
    assert "'raw' is the dataset itself" in refused(truth.root)


def test_what_is_not_of_one_bids_tree_is_refused_with_what_to_do(truth, model, tmp_path):
    lonely = tmp_path / "night.edf"
    shutil.copy(next(truth.root.rglob("*.edf")), lonely)
    error = derive(model, lonely, tmp_path / "dv")
    assert isinstance(error, RecordingError)
    assert "'night.edf' is not a recording of a BIDS tree" in str(error)
    assert "Leave --bids-derivatives out, or arrange the recording by BIDS" in str(error)
    assert not (tmp_path / "dv").exists()
    twin = tmp_path / "twin" / "sub-01" / "ieeg" / "sub-01_ieeg.edf"
    with pytest.raises(RecordingError, match=r"of 2 BIDS trees were given \('raw', 'twin'\)"):
        find_source([truth.root, twin])
    with pytest.raises(RecordingError, match=r"'raw' has no recording 'sub-x_task-y'"):
        open_derivatives(tmp_path / "dv", truth.root, model={}, classes=["a"], recordings=["sub-x_task-y"])
    with pytest.raises(
        RecordingError, match=r"'raw' has no recording 'sub-x'; its 4 recordings are sub-jh101"
    ):
        plan_bids(truth.root, recordings=["sub-x"])
    for options, message in (
        (["--one-table", "--bids-derivatives", "dv"], "are about what is written to --out"),
        ([], "--bids-derivatives ROOT"),
    ):
        done = CliRunner().invoke(app, ["explain", str(model), str(lonely), *options])
        assert done.exit_code == 2
        assert message in " ".join(done.output.replace("│", " ").split())


def test_two_runs_write_different_recordings_at_once_but_never_the_same(truth, model, tmp_path):
    first, second = sorted(truth.root.rglob("*run-01_ieeg.vhdr"))[:2]
    root = tmp_path / "dv"
    name = first.name.removesuffix("_ieeg.vhdr")
    with ThreadPoolExecutor(1) as another, output_lock(root / f"{name}_desc-raxss"):
        error = another.submit(derive, model, first, root).result()
        assert isinstance(error, OutputInUseError)
        assert f"'{name}_desc-raxss' is being written by another thread" in str(error)
        assert "The derivatives of 1 recording are in" in another.submit(derive, model, second, root).result()
    derive(model, first, root)
    assert len(list(root.rglob("*_channels.tsv"))) == 2
    assert not list(root.rglob("*.lock"))


def test_a_run_killed_at_its_first_recording_is_no_foreign_folder(truth, model, tmp_path):
    left = tmp_path / "dv" / ".sub-x_desc-raxss.elsewhere-1-0a1b2c3d.partial"
    left.mkdir(parents=True)
    (left / "README.md").write_text("half of it")
    (tmp_path / "dv" / ".sub-x_desc-raxss.lock").write_text("1\telsewhere\t2026-01-01 00:00\n")
    file = next(truth.root.rglob("*run-01_ieeg.vhdr"))
    derive(model, file, tmp_path / "dv")
    assert errors_of(tmp_path / "dv") == []


def test_what_looks_like_something_to_finish_in_somebody_elses_folder_is_left_alone(truth, model, tmp_path):
    (tmp_path / ".job.ready").mkdir()
    (tmp_path / ".job.ready" / "mine.txt").write_text("mine")
    (tmp_path / ".night.raxss-ready").write_text("a file")
    before = contents(tmp_path)
    error = derive(model, truth.root, tmp_path)
    assert "is a folder with content that is not a derivative dataset by raxss" in str(error)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("out", [[], ["--out", "why", "--format", "json"], ["--out", "why", "--one-table"]])
def test_a_tree_is_read_recording_by_recording(truth, model, tmp_path, monkeypatch, out):
    """The one that is explained, and the one that is read next: not all of them, which may be terabytes."""
    read, alive, most = FromPlan.read, [], []

    def watched_read(source, preparation):
        series = read(source, preparation)
        alive.append(weakref.ref(series[0]))
        gc.collect()
        most.append(sum(item() is not None for item in alive))
        return series

    monkeypatch.setattr(FromPlan, "read", watched_read)
    monkeypatch.chdir(tmp_path)
    derive(model, truth.root, "dv", *out)
    assert len(most) == len(truth.onsets) == 4
    assert max(most) <= 2


def test_a_recording_whose_writing_fails_leaves_nothing(truth, classifier, written, tmp_path, monkeypatch):
    recordings = sorted(truth.onsets)[:2]
    series = read_bids(truth.root, only_labelled=False, recordings=recordings)
    evidence = list(classifier.explain_each(series))
    about = {"config_hash": classifier.config_.hash}
    root = tmp_path / "dv"
    assert write_derivatives(evidence[:8], root, truth.root, about) == recordings[:1]
    before = contents(root)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "about_events", full)
    with pytest.raises(OSError, match="No space left"):
        write_derivatives(evidence, root, truth.root, about)
    assert contents(root) == before
    monkeypatch.undo()
    assert write_derivatives(evidence, root, truth.root, about) == recordings
    assert errors_of(root) == []


def test_a_recording_that_cannot_be_read_gives_a_warning_and_the_others_are_written(truth, model, tmp_path):
    raw = shutil.copytree(truth.root, tmp_path / "raw", ignore=shutil.ignore_patterns("derivatives"))
    file = next(raw.rglob("*run-02_ieeg.edf"))
    file.write_bytes(file.read_bytes()[:300])
    root = raw / "derivatives" / "raxss"
    with pytest.warns(RAxSSWarning, match=r"run-02 is left out"):
        printed = derive(model, raw, root)
    assert "The derivatives of 3 recordings are in" in printed
    assert "1 could not be read, as told above" in printed
    assert errors_of(root) == []
    assert not list(root.rglob(f"{file.stem.removesuffix('_ieeg')}_desc*"))


def test_a_recording_that_the_model_cannot_take_does_not_stop_the_others(truth, model, tmp_path):
    """A channel without a single number, in a recording that can be read."""
    raw = shutil.copytree(truth.root, tmp_path / "raw", ignore=shutil.ignore_patterns("derivatives"))
    files = sorted(raw.rglob("*run-01_ieeg.eeg"))
    for file, value in zip(files, (np.nan, 0.0), strict=False):
        samples = np.fromfile(file, "<f4").reshape(-1, len(CHANNELS) + 1)
        samples[:, 0] = value
        samples.tofile(file)
    name = files[0].stem.removesuffix("_ieeg")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        printed = derive(model, raw, tmp_path / "dv", "--out", tmp_path / "why", "--format", "report")
    assert "The derivatives of 3 recordings are in" in printed
    assert "1 could not be read, as told above" in printed
    first, second = [str(item.message) for item in warned if isinstance(item.message, RAxSSWarning)]
    assert re.search(rf"{name}' is left out: .*has no finite sample", first)
    assert "is constant over all its" in second
    assert {item.parent.name for item in tmp_path.rglob("why/*/report.html")} == set(truth.onsets) - {name}
    assert "has no finite sample" in str(derive(model, files[0].with_suffix(".vhdr"), tmp_path / "dv"))


def findings_of(evidence):
    done = []
    for _ in watched(evidence, done.append):
        pass
    return done[0]


def test_of_several_stretches_the_highest_counts():
    stretches = [
        explained(seed, name=f"a:C0#{seed}", origin={"recording": "a", "channel": "C0"}) for seed in (1, 2, 3)
    ]
    (row,) = channel_rows([{"name": "C0", "type": "ECOG"}], findings_of(stretches), "ECOG")
    assert row["probability_soz"] == max(float(stretch.series_probability[1]) for stretch in stretches)


def test_channels_that_share_a_name_keep_their_order_and_free_text_is_not_copied():
    twins = [
        explained(seed, name=f"a:C0@{seed}", origin={"recording": "a", "channel": "C0"}) for seed in (1, 2)
    ]
    source = [
        {"name": "C0", "status": "good"},
        {"name": "C0", "status": "bad"},
        {"name": "C0", "status": "good"},
    ]
    found = [row["probability_soz"] for row in channel_rows(source, findings_of(twins), "ECOG")]
    assert found == [twins[0].series_probability[1], None, twins[1].series_probability[1]]
    short = channel_rows(source[:1], findings_of(twins), "ECOG")
    assert short[0]["rank"] is None  # two were scored, and one row cannot say which
    person = {
        "name": "C0",
        "type": "Ann Lee",
        "units": "uV of Ann",
        "low_cutoff": "1951-05-02",
        "status": "ann",
    }
    (row,) = channel_rows([person], findings_of(channels_of("a", 1)), "ECOG")
    assert [row[name] for name in ("type", "units", "low_cutoff", "status")] == [""] * 4  # may name somebody


def test_hostile_class_names_give_a_valid_dataset(truth, tmp_path):
    recording = next(name for name in sorted(truth.onsets) if name.endswith("run-01"))
    series = read_bids(truth.root, only_labelled=False, recordings=[recording])
    classes = ("=cmd\t|' /C calc'\n", "<script>\u202e\udcff", "µ")
    evidence = [
        explained(place, classes=classes, name=item.name, origin=item.origin)
        for place, item in enumerate(series)
    ]
    write_derivatives(evidence, tmp_path / "dv", truth.root, {"classes": classes})
    assert errors_of(tmp_path / "dv") == []
    (table,) = tables(tmp_path / "dv", "channels.tsv").values()
    # no spreadsheet runs it
    assert {item[:5] for item in table["predicted"].dropna()} == {"'=cmd", "<scri", "µ"}
    names = ["probability_cmd_C_calc", "probability_script", "probability_class"]
    assert class_columns("probability", classes) == names


@pytest.mark.parametrize(("name", "n_scored"), [("ds003029-pt01", 84), ("ds003498-clip", 50)])
def test_real_recordings_give_a_valid_dataset(shared_data, model, tmp_path, name, n_scored):
    root = tmp_path / "dv"
    derive(model, shared_data / name, root, "--resample")
    assert errors_of(root) == []
    (table,) = tables(root, "channels.tsv").values()
    source = next((shared_data / name / next(root.glob("sub-*")).name).rglob("*_channels.tsv"))
    assert len(table) == len(source.read_text("utf-8-sig").strip().splitlines()) - 1
    assert table["rank"].dropna().sort_values().tolist() == list(range(1, n_scored + 1))
    links = json.loads((root / "dataset_description.json").read_text())["DatasetLinks"]
    assert not links["source"].startswith(("/", "..", "file:"))  # nothing of this machine
