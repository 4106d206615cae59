"""Manifests, recordings of many channels, and the inputs of a command line."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from plain_files import SAMPLES, manifest, read_series, write_plain, write_record
from raxss.data.files import read_inputs, read_manifest
from raxss.errors import EmptyDataError, LabelError, RecordingError


@pytest.fixture
def folder(tmp_path):
    return write_plain(tmp_path)


@pytest.fixture
def record(tmp_path):
    return write_record(tmp_path)


# Manifests


def test_a_manifest_that_is_a_pipe_or_a_link_out_of_its_folder_is_not_opened(folder):
    inside = folder / "inside"
    inside.mkdir()
    os.mkfifo(inside / "pipe.csv")
    with pytest.raises(RecordingError, match=r"manifest 'pipe\.csv' cannot be read: .*a pipe"):
        read_manifest(inside / "pipe.csv")
    (inside / "link.csv").symlink_to(manifest(folder, "path,label\na.npz,x\n"))
    with pytest.raises(
        RecordingError, match=r"manifest 'link\.csv' cannot be read: .*leads out of the folder"
    ):
        read_manifest(inside / "link.csv")


def test_the_columns_of_origin_say_where_a_series_comes_from(folder):
    text = "path,label,patient,centre,electrode,pair,channel\na.npz,x,p1,c,A,a-b,C4\nb.npy,y,p2,c,,,\n"
    series = read_manifest(manifest(folder, text))
    origin = {"centre": "c", "patient": "p1", "recording": "a", "electrode": "A", "pair": "a-b"}
    assert series[0].origin == origin | {"channel": "C4"}
    assert series[1].origin == {"centre": "c", "patient": "p2", "recording": "b"}
    assert series.groups.tolist() == ["p1", "p2"]
    assert read_manifest(manifest(folder, "path,label,group\na.npz,x,\nb.npy,y,\n")).groups is None
    series = read_manifest(manifest(folder, "path,label,patient,group,recording\na.npz,x,p1,g,night\n"))
    assert (series[0].group, series[0].origin) == ("g", {"patient": "p1", "recording": "night"})


def test_a_manifest_becomes_one_series_a_line_named_as_written(folder):
    (folder / "deep").mkdir()
    np.save(folder / "deep" / "d.npy", SAMPLES)
    path = manifest(
        folder,
        "path,label,group,rate,channel\n"
        "a.npz,ill,p1,,C4\n"
        "\n"
        "deep/d.npy,well,p2,20,\n"
        ' c.csv ,"well, or so",p2,,0\n',
    )
    series = read_manifest(path)
    assert series.names == ["a:C4", "deep/d", "c:0"]
    assert series.labels.tolist() == ["ill", "well", "well, or so"]
    assert series.groups.tolist() == ["p1", "p2", "p2"]
    assert [item.rate for item in series] == [50, 20, 1]
    assert [item.n_variates for item in series] == [1, 2, 1]


def test_labels_may_be_absent_for_prediction_only(folder):
    path = manifest(folder, "path\na.npz\n")
    assert read_manifest(path, labels_required=False)[0].label is None
    with pytest.raises(LabelError, match=r"'all\.csv' has no column 'label' \(found: path\)"):
        read_manifest(path)
    path = manifest(folder, "path,label\na.npz,x\nb.npy,\n")
    assert read_manifest(path, labels_required=False)[1].label is None
    with pytest.raises(LabelError, match=r"no label in line 3 \('b\.npy'\)"):
        read_manifest(path)


def test_an_absolute_path_is_named_by_as_few_of_its_parts_as_tell_it_apart(tmp_path):
    for part in ("p1/x", "p2/x", "p2/y"):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        np.save(tmp_path / f"{part}.npy", SAMPLES)
    files = [tmp_path / "p1/x.npy", tmp_path / "p2/x.npy", tmp_path / "p2/y.npy"]
    path = manifest(tmp_path, "path,label\n" + "".join(f"{file},z\n" for file in files))
    assert read_manifest(path).names == read_inputs(files).names == ["p1/x", "p2/x", "y"]


def test_files_that_differ_in_suffix_alone_keep_it(folder):
    np.save(folder / "a.npy", SAMPLES)
    path = manifest(folder, "path,label\na.npz,x\na.npy,x\nb.npy,x\n")
    assert read_manifest(path).names == ["a.npz", "a.npy", "b"]
    assert read_inputs([folder / "a.npz", folder / "a.npy"]).names == ["a.npz", "a.npy"]


def test_all_missing_files_are_named_together_with_their_lines(folder):
    lines = "".join(f"gone{number}.npz,x,\n" for number in range(12))
    with pytest.raises(
        RecordingError,
        match=r"names 12 of 13 recordings.*'gone0\.npz' \(line 3\), .*'gone9\.npz' \(line 12\) and 2 more",
    ) as caught:
        read_manifest(manifest(folder, "path,label,group\na.npz,x,\n" + lines))
    assert str(folder) not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,lable\na.npz,x\n", r"column 'lable'; did you mean 'label'\? Known: path, label"),
        ("path,label,zzz\na.npz,x,1\n", r"column 'zzz'\. Known: path, label.* remove it"),
        ("path,label,label\na.npz,x,y\n", r"the column 'label' 2 times"),
        ("label,group\nx,y\n", r"no column 'path' in its first line \(found: label, group\)"),
        ("", r"no column 'path' in its first line \(found: nothing\)"),
        ("path,label\na.npz,x,y\n", r"3 values in line 2 and 2 columns \(path, label\)"),
        ("path,label\na.npz,x\na.npz,y\n", r"lists 'a' in lines 2 and 3|lists 'a\.npz' in lines 2 and 3"),
        ("path,label,rate\na.npz,x,fast\n", r"the rate 'fast' in line 2"),
        ("path,label,rate\na.npz,x,-3\n", r"the rate '-3' in line 2"),
        ("path,label\n,x\n", r"no path in line 2"),
        ('path,label\na.npz,"x\n', r"not a CSV file"),
        ("path,label\na.npz,x\nbad.npz,y\n", r"line 3: recording 'bad\.npz'"),
        ("path,label,group\na.npz,x,p\nb.npy,y,\n", r"no group in 1 of 2 lines \(the first is line 3\)"),
        ("path,label,patient\na.npz,x,p\nb.npy,y,\n", r"no group in 1 of 2 lines"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused_with_what_was_found(folder, text, message):
    (folder / "bad.npz").write_bytes(b"no")
    with pytest.raises(RecordingError, match=rf"manifest 'all\.csv'.*(?:{message})"):
        read_manifest(manifest(folder, text))


def test_an_empty_manifest_a_missing_one_and_one_that_is_no_text_are_refused(folder):
    with pytest.raises(EmptyDataError, match=r"'all\.csv' lists no recordings"):
        read_manifest(manifest(folder, "path,label,group\n"))
    with pytest.raises(RecordingError, match=r"'none\.csv' was not found"):
        read_manifest(folder / "none.csv")
    with pytest.raises(RecordingError, match=r"manifest 'a\.npz' is not a CSV file in UTF-8"):
        read_manifest(folder / "a.npz")


# Recordings of many channels


@pytest.fixture
def edf(folder):
    """Three channels, two of one name, as EDF."""
    edfio = pytest.importorskip("edfio")
    samples = np.random.default_rng(5).normal(size=(3, 400))
    signals = [
        edfio.EdfSignal(row, 100, label=name, physical_dimension="uV", physical_range=(-9, 9))
        for row, name in zip(samples, ("C3", "Cz", "Cz"), strict=True)
    ]
    edfio.Edf(signals).write(folder / "night.edf")
    return folder / "night.edf", samples


def test_a_recording_gives_one_series_a_channel(edf):
    path, samples = edf
    series = read_inputs([path])
    assert series.names == ["night:C3", "night:Cz#1", "night:Cz#2"]
    channels = ("C3", "Cz#1", "Cz#2")
    assert [item.origin for item in series] == [{"recording": "night", "channel": name} for name in channels]
    assert {item.rate for item in series} == {100}
    assert_allclose(np.vstack([item.samples for item in series]), samples, atol=18 / 65535)
    names = [read_series(path, channel=channel).name for channel in ("2", "C3", 1)]
    assert names == ["night:Cz#2", "night:C3", "night:Cz#1"]
    assert_allclose(read_series(path, channel="C3").samples, samples[:1], atol=18 / 65535)
    with pytest.raises(RecordingError, match=r"'night\.edf' says 100 Hz itself, and 50 Hz was asked"):
        read_series(path, channel=0, rate=50)
    for channel, message in {
        "Cz": r"'night\.edf' has 2 channels named 'Cz'; give the position",
        "C4": r"'night\.edf' has no channel 'C4'\. Known: C3, Cz, Cz\. A position from 0 to 2",
        3: "3 channels, so there is none at position 3",
    }.items():
        with pytest.raises(RecordingError, match=message):
            read_series(path, channel=channel)


def test_a_manifest_names_channels_of_recordings(edf):
    path, samples = edf
    listed = manifest(
        path.parent, "path,label,patient,channel\nnight.edf,x,p,C3\nnight.edf,y,p,2\na.npz,x,q,0\n"
    )
    series = read_manifest(listed)
    assert series.names == ["night:C3", "night:Cz#2", "a:0"]
    assert series.labels.tolist() == ["x", "y", "x"]
    assert series[1].origin == {"patient": "p", "recording": "night", "channel": "Cz#2"}
    assert_allclose(series[1].samples, samples[2:], atol=18 / 65535)
    with pytest.raises(
        RecordingError, match=r"'all\.csv', line 2: .*'night\.edf' has 3 channels.*column 'channel'"
    ):
        read_manifest(manifest(path.parent, "path,label\nnight.edf,x\n"))
    with pytest.raises(RecordingError, match=r"'all\.csv', line 3: the series 'night:C3' is given twice"):
        read_manifest(manifest(path.parent, "path,label,channel\nnight.edf,x,C3\nnight.edf,y,0\n"))


def test_a_recording_of_many_channels_among_the_inputs_gives_all_of_them(edf):
    path, _ = edf
    names = ["night:C3", "night:Cz#1", "night:Cz#2"]
    assert read_inputs([path, path.with_name("a.npz")]).names == [*names, "a"]
    assert read_inputs([path], channel="C3").names == ["night:C3"]
    listed = manifest(path.parent, "path,channel\nnight.edf,C3\n")
    with pytest.raises(RecordingError, match=r"the series 'night:C3' is given twice"):
        read_inputs([listed, path])


def test_a_wfdb_record_with_gaps_in_a_manifest_gives_each_stretch(record):
    record.with_name("all.hea").write_text("all/3 2 250 22\nrec 6\n~ 10\nrec 6\n")
    series = read_manifest(manifest(record.parent, "path,label,channel\nall,x,\nall,y,II\n"))
    assert series.names == ["all", "all@0.064s", "all:II", "all:II@0.064s"]
    assert series.labels.tolist() == ["x", "x", "y", "y"]
    assert_allclose(series[3].samples, SAMPLES[1:] / 10, atol=1e-9)
    assert series[3].start_seconds == 0.064


# The command line's inputs


def test_inputs_are_recordings_and_manifests_in_the_order_given(folder):
    path = manifest(folder, "path,label\na.npz,x\nb.npy,y\n")
    series = read_inputs([folder / "c.csv", path])
    assert [item.label for item in series] == [None, "x", "y"]
    assert series.names == ["c", "a", "b"]
    series = read_inputs([folder / "b.npy"], rate=4, channel=1)
    assert (series[0].rate, series.names) == (4, ["b:1"])


def test_recordings_of_the_same_name_are_told_apart_by_as_few_folders_as_needed(tmp_path, monkeypatch):
    for place in ("A", "B", "C/B", "C"):
        (tmp_path / place).mkdir(exist_ok=True, parents=True)
        np.save(tmp_path / place / "x.npy", SAMPLES)
        np.save(tmp_path / place / f"only{place[0]}.npy", SAMPLES)
    for place in ("A", "B"):
        manifest(tmp_path / place, f"path\nx.npy\nonly{place}.npy\n", name="m.csv")
    expected = ["A/x", "onlyA", "B/x", "onlyB"]
    assert read_inputs([tmp_path / "A/m.csv", tmp_path / "B/m.csv"]).names == expected
    assert read_inputs([tmp_path / "A/m.csv", tmp_path / "C/x.npy"]).names == ["A/x", "onlyA", "C/x"]
    files = [tmp_path / f"{place}/x.npy" for place in ("A", "B", "C/B")]
    assert read_inputs(files).names == ["A/x", f"{tmp_path.name}/B/x", "C/B/x"]
    monkeypatch.chdir(tmp_path / "A")
    assert read_inputs(["m.csv", "../B/m.csv"]).names == expected
    assert read_inputs(["x.npy", "../B/x.npy"], channel=0).names == ["A/x:0", "B/x:0"]
    assert read_inputs(["./x.npy", "../A/onlyA.npy"]).names == ["x", "onlyA"]
    monkeypatch.chdir(tmp_path)  # a folder may be called after a patient
    assert read_inputs(["C/B/x.npy", "A/onlyA.npy"]).names == ["x", "onlyA"]


def test_one_recording_by_channel_has_one_name(folder):
    item = manifest(folder, "path,channel\na.npz,0\n", name="one.csv")
    two = manifest(folder, "path,channel\na.npz,1\nb.npy,\n", name="two.csv")
    assert read_inputs([item, two]).names == ["a:0", "a:1", "b"]


def test_the_same_series_twice_among_the_inputs_is_refused(folder, monkeypatch):
    item = manifest(folder, "path\nb.npy\na.npz\n", name="one.csv")
    (folder / "link.npz").symlink_to(folder / "a.npz")
    monkeypatch.chdir(folder)
    for again in (folder / "a.npz", "a.npz", "./a.npz", "link.npz", f"../{folder.name}/a.npz"):
        with pytest.raises(
            RecordingError,
            match=r"same series is given twice, by input 1 \(manifest 'one\.csv', line 3\) and by input 2 "
            rf"\('{Path(again).name}'\)",
        ) as caught:
            read_inputs([item, again])
        assert str(folder) not in str(caught.value)
    with pytest.raises(RecordingError, match=r"by input 1 \(.*line 2\) and by input 3 \(.*line 2\)"):
        read_inputs([item, "c.csv", item])
    assert read_inputs([item, "a.npz"], channel=0).names == ["b", "a", "a:0"]
    listed = manifest(folder, "path,channel\na.npz,0\n")
    with pytest.raises(RecordingError, match="given twice"):
        read_inputs([listed, "a.npz"], channel=0)


@pytest.mark.parametrize("again", ["./a.npz", "sub/../a.npz", "link.npz", "{folder}/a.npz"])
def test_a_recording_under_two_spellings_is_one_recording(folder, again):
    (folder / "sub").mkdir()
    (folder / "link.npz").symlink_to("a.npz")
    again = again.format(folder=folder)
    message = r"'all\.csv' lists 'a\.npz:0' in lines 2 and 4 \(there as '.*\.npz'\); each series once"
    with pytest.raises(RecordingError, match=message):
        read_manifest(manifest(folder, f"path,label,channel\na.npz,x,0\nb.npy,x,0\n{again},y,0\n"))
    assert len(read_manifest(manifest(folder, f"path,label,channel\na.npz,x,0\n{again},y,1\n"))) == 2


def test_a_wfdb_record_by_two_of_its_names_is_one_recording(record):
    for again in ("rec.hea", "rec.dat"):
        with pytest.raises(RecordingError, match=rf"lists 'rec' in lines 2 and 3 \(there as '{again}'\)"):
            read_manifest(manifest(record.parent, f"path,label\nrec,x\n{again},y\n"))


def test_no_inputs_are_refused():
    with pytest.raises(EmptyDataError, match="no input was given"):
        read_inputs([])
