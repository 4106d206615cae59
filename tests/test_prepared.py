"""Prepared folders: their samples, table and facts, and what damage does to them."""

import csv
import hashlib
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from raxss._core.store import seal_of
from raxss.data.manifests import plan_manifest
from raxss.data.plan import CollectionPlan, RecordingPlan, SeriesPlan, read_plan
from raxss.data.prepare import units
from raxss.data.prepare.folder import COLUMNS, N_OPEN, read_prepared
from raxss.data.prepare.preparing import prepare
from raxss.data.prepare.preprocessing import Preparation
from raxss.data.recording import ArrayRecording, Channel, Recording, Segment
from raxss.data.series import Series
from raxss.errors import (
    DataError,
    EmptyDataError,
    OutputError,
    RAxSSWarning,
    RecordingError,
)

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks into /proc")
PAPER = Preparation(pooling=(24, 12), scaling="series")
FIELDS = ("rate", "start_seconds", "label", "group", "name", "preparation", "n_samples", "origin")


def write_recordings(folder, n_recordings, *, seconds=4.0, rate=500.0, seed=69421):
    """As many .npz files of two channels, one of them with a gap, and a manifest of them."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "all.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "group", "channel"])
        for number in range(n_recordings):
            samples = rng.normal(number, 1 + number, size=(2, round(seconds * rate))).astype(np.float32)
            if number == 1:
                samples[0, 50:60] = np.nan
            np.savez(folder / f"r{number}.npz", samples=samples, rate=rate, channels=["C3", "C4"])
            table.writerow([f"r{number}.npz", "ill" if number % 2 else "well", f"p{number // 2}", "C3"])
            table.writerow([f"r{number}.npz", "well", f"p{number // 2}", "C4"])
    return folder / "all.csv"


def content_of(folder):
    """Name and hash of every file: equal for folders that are the same to the last byte."""
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def raxss(*arguments, **options):
    """The real command line, in a process of its own."""
    command = [sys.executable, "-m", "raxss", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)


@pytest.fixture
def manifest(tmp_path):
    return write_recordings(tmp_path / "data", 3)


@pytest.fixture
def folder(manifest, tmp_path):
    return prepare(plan_manifest(manifest), tmp_path / "out", PAPER)


# What is in the folder ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "block_bytes"),
    [
        *itertools.product(["", "z-score", "pool 24/12, z-score"], [16, 5000, 1 << 24]),
        *itertools.product(["resample 100 Hz, z-score"], [5000, 1 << 24]),
        ("resample 173.61 Hz", 1 << 24),
    ],
)
def test_samples_on_disk_are_the_bits_that_apply_gives_in_memory(
    manifest, tmp_path, monkeypatch, text, block_bytes
):
    monkeypatch.setattr(units, "BLOCK_BYTES", block_bytes)
    plan, preparation = plan_manifest(manifest), Preparation.parse(text)
    prepared = read_prepared(prepare(plan, tmp_path / "out", preparation), verify=True)
    for item, raw in zip(prepared, read_plan(plan), strict=True):
        expected = preparation.apply(raw)
        assert item.samples.tobytes() == expected.samples.astype(np.float32).tobytes()
        for field in FIELDS:
            assert getattr(item, field) == getattr(expected, field), field
        assert item.gaps_marked == (not np.isfinite(expected.samples).all())


class Night(Recording):
    """Two segments, three channels of two rates; each sample encodes its channel, segment and position."""

    def __init__(self):
        self.name = "night"
        self.channels = (Channel("A", 100.0, "uV"), Channel("B", 100.0, "uV"), Channel("C", 50.0))
        self.segments = (Segment(0.0, 20.0), Segment(3600.0, 10.0))

    def read(self, channels, *, segment=0, start=0, stop=None):
        start, stop = self.stretch(channels, segment, start, stop)
        return np.array(
            [[channel * 1e6 + segment * 1e5 + place for place in range(start, stop)] for channel in channels]
        )


def plan_of(*series, opener=Night, **known):
    return CollectionPlan("toy", Path("."), (RecordingPlan("night", (), opener, series),), **known)


def plan_of_recordings(openers):
    """One recording of one series for each opener."""
    return CollectionPlan(
        "toys",
        Path("."),
        tuple(
            RecordingPlan(f"r{number}", (), opener, (SeriesPlan(f"s{number}", (0,), label="a"),))
            for number, opener in enumerate(openers)
        ),
    )


def test_channels_segments_crops_and_rates_land_in_their_own_place(tmp_path):
    plan = plan_of(
        SeriesPlan("both", (1, 0), label="x", origin={"patient": "p1"}),
        SeriesPlan("late", (0,), 1, label="y", crop=(3602.0, 3604.5)),
        SeriesPlan("slow", (2,), label="x"),
        SeriesPlan("again", (0,), label="y", crop=(1.0, 2.0)),
        group_by="patient",
    )
    prepared = read_prepared(prepare(plan, tmp_path / "out", Preparation()))
    both, late, slow, again = prepared
    assert_array_equal(both.samples, [1e6 + np.arange(2000), np.arange(2000)])
    assert_array_equal(late.samples, [1e5 + np.arange(200, 450)])
    assert_array_equal(slow.samples, [2e6 + np.arange(1000)])
    assert_array_equal(again.samples, [np.arange(100, 200)])
    assert [item.start_seconds for item in prepared] == [0.0, 3602.0, 0.0, 1.0]
    assert [item.rate for item in prepared] == [100.0, 100.0, 50.0, 100.0]
    assert [item.group for item in prepared] == ["p1", None, None, None]
    assert list(prepared.table["unit"]) == ["uV", "uV", "", "uV"]
    assert list(prepared.table.columns) == list(COLUMNS)
    assert list(prepared.labels) == ["x", "y", "x", "y"]


def test_the_table_and_the_facts_state_where_everything_comes_from(folder, manifest):
    facts = json.loads((folder / "prepared.json").read_text())
    table = pd.read_parquet(folder / "series.parquet")
    assert facts["format"] == "raxss-prepared-1"
    assert facts["preparation"] == "pool 24/12, z-score"
    assert facts["settings"] == {"pooling": [24, 12], "rate": None, "scaling": "series"}
    assert (facts["source"], facts["group_by"]) == ("all.csv", "patient")
    assert facts["labels"] == {"ill": 1, "well": 5}
    assert facts["inputs"] == content_of(manifest.parent)
    hashes = {name: output["sha256"] for name, output in facts["outputs"].items()}
    unlisted = (".raxss", "prepared.json")
    assert hashes == {name: digest for name, digest in content_of(folder).items() if name not in unlisted}
    for row in table.itertuples():
        samples = np.load(folder / row.file)[row.offset : row.offset + row.n_variates * row.n_samples]
        assert hashlib.sha256(samples.tobytes()).hexdigest() == row.sha256
        assert row.finite_share == np.isfinite(samples).mean()
    assert json.loads((folder / "problems.json").read_text())["with_gaps"] == ["r1:C3"]
    assert str(manifest.parent) not in (folder / "prepared.json").read_text()


@needs_proc
def test_files_are_opened_when_samples_are_needed(tmp_path):
    rng = np.random.default_rng(1)
    openers = [partial(ArrayRecording, "a", rng.normal(size=(1, 50)), rate=10.0) for _ in range(N_OPEN + 20)]
    prepared = read_prepared(prepare(plan_of_recordings(openers), tmp_path / "out", Preparation()))
    before = len(os.listdir("/proc/self/fd"))
    kept = list(prepared[np.arange(len(prepared))])
    assert len(os.listdir("/proc/self/fd")) == before
    total = sum(float(item.samples.sum()) for item in kept)
    assert np.isfinite(total)
    assert len(os.listdir("/proc/self/fd")) <= before + N_OPEN
    assert not kept[0].samples.flags.writeable
    assert kept[0].samples.base is not None


def test_a_mapped_series_can_be_copied_changed_and_sent_away(folder):
    item = read_prepared(folder)[0]
    away = pickle.loads(pickle.dumps(item))
    assert away.samples.tobytes() == item.samples.tobytes()
    assert len(pickle.dumps(item)) < 2000  # where it lies, not what it holds
    other = replace(item, label="else")
    assert (other.label, other.name, other.samples.tobytes()) == ("else", item.name, item.samples.tobytes())
    assert item.with_samples([1.0, 2.0]).samples.tolist() == [[1.0, 2.0]]
    assert item.with_samples([1.0, 2.0]).n_samples == 2
    assert isinstance(item, Series)
    assert repr(item).startswith("Series('r0:C3', 1 variate, ")


def test_a_folder_that_takes_the_place_of_another_is_read_anew(manifest, tmp_path):
    first = read_prepared(prepare(plan_manifest(manifest), tmp_path / "out", Preparation()))
    kept = first[0].samples[0, :5].copy()
    second = read_prepared(prepare(plan_manifest(manifest), tmp_path / "out", PAPER, overwrite=True))
    assert second[0].samples[0, 0] != kept[0]


# Damage -------------------------------------------------------------------------------------------------------


def flip(file, place):
    content = bytearray(file.read_bytes())
    content[place % len(content)] ^= 1 << (place % 8)
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["prepared.json", "series.parquet", "problems.json", "samples"])
def test_a_flipped_bit_is_refused(folder, name, rng):
    file = folder / name if name != "samples" else next((folder / name).iterdir())
    message = "'out' is" if name != "samples" else f"'{file.name}' was changed after it was written"
    whole = file.read_bytes()
    for place in rng.integers(0, len(whole) * 8, size=30):
        flip(file, int(place))
        with pytest.raises(RecordingError, match=message):
            read_prepared(folder, verify=name == "samples")
        file.write_bytes(whole)
    assert len(read_prepared(folder)) == 6


def reseal(folder, change):
    """Change the facts so that only their meaning is wrong, as an attacker would."""
    facts = json.loads((folder / "prepared.json").read_text())
    change(facts)
    (folder / "prepared.json").write_text(json.dumps({**facts, "seal": seal_of(facts)}))


def test_missing_cut_off_and_foreign_files_are_named(folder, tmp_path):
    with pytest.raises(RecordingError, match=r"'nothing' is no prepared collection: it has no prepared.json"):
        read_prepared(tmp_path / "nothing")
    file = next((folder / "samples").iterdir())
    whole = file.read_bytes()
    file.write_bytes(whole[:-4])
    with pytest.raises(RecordingError, match=f"has {len(whole) - 4:,} bytes, not {len(whole):,}"):
        read_prepared(folder)
    file.unlink()
    with pytest.raises(RecordingError, match=f"'{file.name}' cannot be read: No such file"):
        read_prepared(folder)
    (tmp_path / "else.npy").write_bytes(whole)
    file.symlink_to(tmp_path / "else.npy")
    with pytest.raises(RecordingError, match=f"'{file.name}' leads out of it"):
        read_prepared(folder)
    file.unlink()
    file.write_bytes(whole)
    (folder / ".raxss").unlink()
    with pytest.raises(RecordingError, match=r"the file .raxss that marks it is missing"):
        read_prepared(folder)


ZEROS = {"sha256": "0" * 64, "n_bytes": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda facts: facts.update(format="raxss-prepared-9"), "its format is 'raxss-prepared-9'"),
        (lambda facts: facts.update(preparation="pool it"), "prepared.json lacks something"),
        (lambda facts: facts.pop("outputs"), "prepared.json lacks something"),
        (lambda facts: facts["outputs"].update({"../x.npy": ZEROS}), "'../x.npy' is no name of a sample file"),
        (lambda facts: facts["outputs"].pop("series.parquet"), "was changed after"),
        (lambda facts: facts["outputs"].popitem(), "'out' is damaged"),
    ],
)  # fmt: skip
def test_facts_with_a_false_meaning_are_refused(folder, change, message):
    reseal(folder, change)
    with pytest.raises(RecordingError, match=message):
        read_prepared(folder)


def test_a_pickle_in_the_place_of_samples_is_not_opened(folder):
    file = next((folder / "samples").iterdir())
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    name = f"samples/{file.name}"
    output = {"sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "n_bytes": file.stat().st_size}
    reseal(folder, lambda facts: facts["outputs"].update({name: output}))
    with pytest.raises(RecordingError, match=r"impossible figures|cannot be read"):
        [item.samples for item in read_prepared(folder)]


# Same bytes, always -------------------------------------------------------------------------------------------


def test_the_number_of_workers_changes_nothing(manifest, tmp_path):
    plan = plan_manifest(manifest)
    folders = [prepare(plan, tmp_path / f"of{n}", PAPER, workers=n) for n in (1, 2, 3)]
    first, *others = (content_of(item) for item in folders)
    assert others == [first, first]
    assert not list(tmp_path.glob("*preparing*"))


def test_the_same_again_is_left_as_it_is_unless_it_was_changed(folder, manifest, caplog):
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    with caplog.at_level("INFO", "raxss"):
        assert prepare(plan_manifest(manifest), folder, PAPER) == folder
    assert "'out' holds just this already" in caplog.text
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before
    assert not folder.with_name("out.preparing").exists()
    content = content_of(folder)
    flip(next((folder / "samples").iterdir()), 4321)
    with pytest.raises(RecordingError, match=r"was changed after it was written. Remove it, and prepare"):
        prepare(plan_manifest(manifest), folder, PAPER)
    prepare(plan_manifest(manifest), folder, PAPER, overwrite=True)
    assert content_of(folder) == content


def test_something_else_is_refused_without_overwrite(folder, manifest, tmp_path):
    before = content_of(folder)
    with pytest.raises(OutputError, match="'out' was prepared from other inputs or with other settings"):
        prepare(plan_manifest(manifest), folder, Preparation())
    assert content_of(folder) == before
    assert not folder.with_name("out.preparing").exists()
    prepare(plan_manifest(manifest), folder, Preparation(), overwrite=True)
    assert content_of(folder) == content_of(
        prepare(plan_manifest(manifest), tmp_path / "fresh", Preparation())
    )


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_raxss_did_not_make_is_never_touched(manifest, tmp_path, overwrite):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("keep")
    with pytest.raises(OutputError, match="'thesis'"):
        prepare(plan_manifest(manifest), tmp_path / "thesis", PAPER, overwrite=overwrite)
    assert content_of(tmp_path / "thesis").keys() == {"chapter.txt"}


def test_what_is_the_same_does_not_depend_on_the_place_of_the_data(manifest, tmp_path):
    shutil.copytree(manifest.parent, tmp_path / "elsewhere" / "deep")
    other = tmp_path / "elsewhere" / "deep" / "all.csv"
    folders = [
        prepare(plan_manifest(path), tmp_path / path.parent.name / "out", PAPER) for path in (manifest, other)
    ]
    assert content_of(folders[0]) == content_of(folders[1])


# What is absent, unlabelled or empty --------------------------------------------------------------------------


def test_absent_files_are_one_list_and_an_error_only_if_nothing_is_left_or_all_is_needed(tmp_path):
    absent = tuple(f"sub-{number:02d}.edf" for number in range(23))
    some = plan_of(SeriesPlan("a", (0,), label="x"), absent=absent, where_to_get="Ask for it.")
    with pytest.warns(
        RAxSSWarning, match=r"23 files of 'toy' are absent:\n  sub-00.edf\n(.*\n){21}  sub-22.edf\nAsk"
    ):
        folder = prepare(some, tmp_path / "some", Preparation())
    assert json.loads((folder / "problems.json").read_text())["absent"] == list(absent)
    with pytest.raises(RecordingError, match=r"23 files of 'toy' are absent:\n  sub-00.edf"):
        prepare(some, tmp_path / "strict", Preparation(), strict=True)
    with pytest.raises(RecordingError, match=r"there is no signal to prepare. 23 files"):
        prepare(replace(some, recordings=()), tmp_path / "none", Preparation())
    assert sorted(item.name for item in tmp_path.iterdir()) == ["some"]


def test_series_without_a_label_need_the_option(tmp_path):
    plan = plan_of(SeriesPlan("a", (0,), label="x"), SeriesPlan("b", (1,)))
    assert read_prepared(prepare(plan, tmp_path / "one", Preparation())).names == ["a"]
    both = read_prepared(prepare(plan, tmp_path / "two", Preparation(), unlabelled=True))
    assert [item.label for item in both] == ["x", None]
    with pytest.raises(EmptyDataError, match="'toy' has no series to prepare: 1 are planned"):
        prepare(plan_of(SeriesPlan("b", (1,))), tmp_path / "three", Preparation())


def test_a_series_of_which_nothing_is_left_is_listed(tmp_path):
    plan = plan_of(SeriesPlan("a", (0,), label="x"), SeriesPlan("gone", (0,), label="x", crop=(30.0, 40.0)))
    folder = prepare(plan, tmp_path / "out", Preparation())
    assert read_prepared(folder).names == ["a"]
    listed = json.loads((folder / "problems.json").read_text())["left_out"]
    assert listed == ["series 'gone' has 0 samples from 30 to 40 s, too few to be prepared."]
    with pytest.raises(EmptyDataError, match="1 series cannot be prepared: series 'gone' has 0 samples"):
        prepare(plan, tmp_path / "strict", Preparation(), strict=True)
    with pytest.raises(EmptyDataError, match="nothing is left of 'toy', 1 series: series 'gone'"):
        prepare(plan_of(plan.recordings[0].series[1]), tmp_path / "none", Preparation())


def test_recordings_that_cannot_be_read_are_named_together_and_the_others_kept(manifest, tmp_path):
    plan = plan_manifest(manifest)
    for name in ("r0.npz", "r2.npz"):
        (manifest.parent / name).write_bytes(b"not a zip")
    with pytest.raises(RecordingError, match=r"2 of 3 recordings cannot be prepared. .*'r0.npz'.*'r2.npz'"):
        prepare(plan, tmp_path / "out", PAPER)
    assert len(list((tmp_path / "out.preparing").glob("*.npy"))) == 1


def test_series_of_one_name_or_of_channels_of_two_rates_are_refused(tmp_path):
    with pytest.raises(DataError, match="several series named 'a'"):
        prepare(plan_of(SeriesPlan("a", (0,)), SeriesPlan("a", (1,))), tmp_path / "out", Preparation())
    with pytest.raises(RecordingError, match="'night' has the requested channels at 50, 100 Hz"):
        prepare(plan_of(SeriesPlan("a", (0, 2), label="x")), tmp_path / "out", Preparation())


def test_warnings_of_preparing_are_in_the_list_of_problems(tmp_path):
    folder = prepare(plan_of(SeriesPlan("a", (0,), label="x")), tmp_path / "out", Preparation(rate=200.0))
    (warning,) = json.loads((folder / "problems.json").read_text())["recordings"]["night"]["warnings"]
    assert warning.startswith("100 Hz is below the 200 Hz asked for")
