"""The named datasets, against their READMEs where the real files are there, and against broken copies."""

import csv
import json
import re
import stat
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from typer.testing import CliRunner

from raxss.cli import app
from raxss.data.bids import bids_table
from raxss.data.datasets import DATASETS, folder_of, load_dataset, load_sample, on_disk, plan_dataset
from raxss.data.datasets import archives as archives_module
from raxss.data.datasets.archives import TextFile, read_numbers
from raxss.data.datasets.collections.ds003029 import PAPER, summarise_centres
from raxss.data.datasets.dataset import choose, safe_path
from raxss.data.plan import read_plan
from raxss.errors import DataError, RAxSSWarning, RecordingError

BERN_TEXT = "".join(f"{value:13.6f},{-value:13.6f}\n" for value in np.linspace(-20, 20, 10240))


@pytest.fixture(autouse=True)
def _no_root(monkeypatch):
    monkeypatch.delenv("RAXSS_DATA", raising=False)


# --- the real files, as their READMEs describe them


def test_bern_barcelona_is_two_hundred_channels_in_a_hundred_pairs(shared_data):
    series = load_dataset("bern-barcelona", root=shared_data)
    assert Counter(series.labels.tolist()) == {"focal": 100, "nonfocal": 100}
    assert {(item.n_variates, item.n_samples, item.rate) for item in series} == {(1, 10240, 512.0)}
    assert len({item.samples.tobytes() for item in series}) == len(set(series.names)) == 200
    assert all(np.isfinite(item.samples).all() for item in series)
    assert set(Counter(series.groups.tolist()).values()) == {2}  # x and y of a pair are one group
    for item in series:
        pair, channel = item.name.split(":")
        assert item.group == item.origin["pair"] == item.origin["recording"] == pair
        assert item.origin["channel"] == channel
    with zipfile.ZipFile(shared_data / "bern-barcelona" / "Data_N_50.zip") as archive:
        text = archive.read("Data_N_50/Data_N_Ind0017.txt").decode()
    expected = np.array(
        [[float(cell) for cell in line.split(",")] for line in text.split("\n") if line.strip()]
    )
    for place, channel in enumerate("xy"):
        found = series[series.names.index(f"Data_N_Ind0017:{channel}")]
        assert_array_equal(found.samples[0], expected[:, place])


def test_bonn_is_five_sets_of_a_hundred(shared_data):
    series = load_dataset("bonn", root=shared_data)
    assert Counter(series.labels.tolist()) == dict.fromkeys("ZONFS", 100)
    assert {(item.n_variates, item.n_samples, item.rate) for item in series} == {(1, 4097, 173.61)}
    assert len({item.samples.tobytes() for item in series}) == 500
    assert series.groups.tolist() == series.names
    assert series[0].name == "Z001"
    assert series[0].samples[0, :5].tolist() == [12, 22, 35, 45, 69]
    at_the_limit = {
        item.name: int((item.samples == 2047).sum()) for item in series if item.samples.max() == 2047
    }
    assert at_the_limit == {"F009": 52, "S059": 2, "S065": 18}
    assert min(item.samples.min() for item in series) == -1885


def test_cinc2017_has_the_classes_and_lengths_of_its_readme_and_the_values_of_the_sample(shared_data):
    pytest.importorskip("wfdb")
    cinc2017 = load_dataset("cinc2017", root=shared_data)
    assert Counter(cinc2017.labels.tolist()) == {"normal": 1000, "AF": 500, "other": 400, "noisy": 100}
    lengths = np.array([item.n_samples for item in cinc2017])
    assert (lengths.min(), lengths.max(), np.median(lengths)) == (2766, 18140, 9000)
    assert len(np.unique(lengths)) == 399
    assert round(100 * np.mean(lengths == 9000)) == 71
    assert {item.rate for item in cinc2017} == {300.0}
    assert cinc2017.groups.tolist() == cinc2017.names
    by_name = {item.name: item for item in cinc2017}
    for item in load_sample():
        assert_array_equal(by_name[item.name].samples.astype(np.float32), item.samples)
        assert by_name[item.name].label == item.label


def test_watch_is_what_its_index_says(shared_data):
    series = load_dataset("watch", root=shared_data)
    with open(shared_data / "watch" / "index.csv", newline="") as file:
        index = list(csv.DictReader(file))
    assert len(series) == len(index) == 140
    for item, row in zip(series, index, strict=True):
        assert (item.label, item.n_samples) == (row["label"], int(row["length"]))
        assert item.name == f"subject{int(row['subject']):02d}-{row['label']}-{row['side']}"
        assert item.group == item.origin["patient"] == f"subject{int(row['subject']):02d}"
    assert {(item.n_variates, item.rate) for item in series} == {(6, 50.0)}
    assert np.median([item.n_samples for item in series]) == 1769.5
    assert Counter(series.groups.tolist()) == Counter({f"subject{n:02d}": 14 for n in range(1, 11)})
    with np.load(shared_data / "watch" / "watch.npz", allow_pickle=False) as stored:
        assert_array_equal(np.concatenate([item.samples.T for item in series]), stored["X"])


# --- where a dataset lies


def test_a_folder_of_the_datasets_name_comes_before_the_root_itself(tmp_path):
    (tmp_path / "bonn").mkdir()
    (tmp_path / "Z.zip").write_bytes(b"")
    assert folder_of(DATASETS["bonn"], tmp_path) == tmp_path / "bonn"
    (tmp_path / "bonn").rmdir()
    assert folder_of(DATASETS["bonn"], tmp_path) == tmp_path


def test_an_incomplete_unpacked_dataset_is_read_like_the_zips_with_a_warning(shared_data, tmp_path):
    (tmp_path / "bonn").mkdir()
    for name in ("F.zip", "N.zip"):
        (tmp_path / "bonn" / name).symlink_to(shared_data / "bonn" / name)
    with pytest.raises(RecordingError, match=r"'F.zip' leads out"):
        load_dataset("bonn", root=tmp_path)
    for name in ("F.zip", "N.zip"):
        (tmp_path / "bonn" / name).unlink()
        with zipfile.ZipFile(shared_data / "bonn" / name) as archive:
            archive.extractall(tmp_path / "bonn")
    with pytest.warns(RAxSSWarning, match=r"3 files are absent: Z.zip, O.zip, S.zip"):
        assert len(load_dataset("bonn", root=tmp_path)) == 200
    unpacked = load_dataset("bonn", root=tmp_path, classes=("F", "N"))  # no class that is wanted lacks
    packed = load_dataset("bonn", root=shared_data, classes=("F", "N"))
    assert unpacked.names == packed.names
    for item, other in zip(unpacked, packed, strict=True):
        assert_array_equal(item.samples, other.samples)
    assert on_disk(DATASETS["bonn"], tmp_path).absent == ("Z.zip", "O.zip", "S.zip")


def test_the_official_zips_of_bern_barcelona_are_found_and_a_pair_counts_once(tmp_path):
    folder = tmp_path / "bern-barcelona"
    folder.mkdir()
    for name in ("Data_F_Ind_1_750.zip", "Data_F_50.zip", "Data_N_Ind_1_750.zip"):
        with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{name[:-4]}/Data_{name[5]}_Ind0001.txt", BERN_TEXT)
    plan = plan_dataset("bern-barcelona", root=tmp_path)
    assert [recording.name for recording in plan.recordings] == ["Data_F_Ind0001", "Data_N_Ind0001"]
    assert plan.absent == ()
    assert plan.unmatched == ("Data_F_Ind_1_750.zip: texts with the name of one found before, not taken: 1.",)
    series = read_plan(plan)
    assert series[0].samples[0, [0, -1]].tolist() == [-20.0, 20.0]
    assert series[1].samples[0, [0, -1]].tolist() == [20.0, -20.0]


def test_the_official_layout_of_cinc2017_needs_no_folder_around_it(shared_data, tmp_path):
    pytest.importorskip("wfdb")
    home = tmp_path / "training2017"
    home.mkdir()
    for name in ("A00004.hea", "A00004.mat", "A00005.hea"):
        (home / name).write_bytes((shared_data / "cinc2017" / "training2017" / name).read_bytes())
    (tmp_path / "REFERENCE.csv").write_text("A00004,A\r\nA00005,A\r\n")
    plan = plan_dataset("cinc2017", root=tmp_path)
    assert plan.absent == ("training2017/A00005.mat",)
    assert [recording.name for recording in plan.recordings] == ["A00004"]
    assert str(on_disk(DATASETS["cinc2017"], tmp_path)) == "partly (4 of 5 files)"
    with pytest.warns(RAxSSWarning, match=r"1 file is absent: training2017/A00005.mat"):
        series = load_dataset("cinc2017", root=tmp_path)
    assert (series[0].label, series[0].n_samples) == ("AF", 9000)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("../secret,N", r"'../secret,N' in line 2"),
        ("A2,X", r"'A2,X' in line 2"),
        ("A2", r"'A2' in line 2"),
        ("A1,A", r"'A1' twice, with different labels; line 2"),
    ],
)
def test_a_damaged_table_of_labels_is_refused(tmp_path, line, message):
    (tmp_path / "REFERENCE.csv").write_text(f"A1,N\n{line}\n")
    with pytest.raises(RecordingError, match=message):
        plan_dataset("cinc2017", root=tmp_path)


def test_a_watch_file_whose_lengths_do_not_add_up_is_refused(shared_data, tmp_path):
    with np.load(shared_data / "watch" / "watch.npz", allow_pickle=False) as stored:
        arrays = dict(stored)
    np.savez(tmp_path / "watch.npz", **(arrays | {"lengths": arrays["lengths"] + 1}))
    with pytest.raises(
        RecordingError, match=r"X of shape \(244102, 6\) and 140 lengths that add up to 244242"
    ):
        plan_dataset("watch", root=tmp_path)
    np.savez(tmp_path / "watch.npz", **(arrays | {"y": arrays["y"] + 1}))
    with pytest.raises(RecordingError, match=r"'watch.npz' of watch has X"):
        plan_dataset("watch", root=tmp_path)
    (tmp_path / "watch.npz").write_bytes((shared_data / "watch" / "watch.npz").read_bytes()[:100_000])
    with pytest.raises(RecordingError, match=r"'watch.npz' of watch cannot be read"):
        plan_dataset("watch", root=tmp_path)


# --- zips that are not what they seem


def make_zip(folder: Path, name="Data_F_50.zip", members=None, compression=zipfile.ZIP_DEFLATED) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w", compression) as archive:
        for member, content in (members or {"Data_F_Ind0001.txt": BERN_TEXT}).items():
            archive.writestr(member, content)
    return path


def open_first(folder: Path):
    plan = plan_dataset("bern-barcelona", root=folder)
    return plan.recordings[0].open_recording()


def test_a_text_that_expands_without_measure_is_refused(tmp_path):
    make_zip(tmp_path, members={"Data_F_Ind0001.txt": "0,0\n" * 500_000})
    with pytest.raises(
        RecordingError, match=r"'Data_F_Ind0001.txt' in 'Data_F_50.zip' would unpack from .* to 2,000,000"
    ):
        open_first(tmp_path)
    make_zip(tmp_path, members={"Data_F_Ind0001.txt": "1,2\n" * 2_200_000}, compression=zipfile.ZIP_STORED)
    with pytest.raises(RecordingError, match=r"would unpack from 8,800,000 to 8,800,000"):
        open_first(tmp_path)


def test_a_zip_with_too_many_members_or_bytes_is_refused(tmp_path, monkeypatch):
    make_zip(tmp_path, members={f"{n}.txt": "" for n in range(10_001)}, compression=zipfile.ZIP_STORED)
    with pytest.raises(RecordingError, match=r"'Data_F_50.zip' has 10,001 members; at most 10,000"):
        plan_dataset("bern-barcelona", root=tmp_path)
    make_zip(tmp_path)
    monkeypatch.setattr(archives_module, "MAX_TOTAL_BYTES", 1000)
    with pytest.raises(
        RecordingError, match=rf"'Data_F_50.zip' would unpack to {len(BERN_TEXT):,} bytes; at most 1,000"
    ):
        plan_dataset("bern-barcelona", root=tmp_path)


LINK = zipfile.ZipInfo("Data_F_Ind0001.txt")
LINK.external_attr = (stat.S_IFLNK | 0o777) << 16


@pytest.mark.parametrize(
    "member", ["../Data_F_Ind0001.txt", "/etc/Data_F_Ind0001.txt", "a/../../Data_F_Ind0001.txt", LINK]
)
def test_a_member_that_leads_elsewhere_is_refused(tmp_path, member):
    make_zip(tmp_path, members={member: "/etc/passwd"})
    with pytest.raises(RecordingError, match=r"member '(Data|/|\.\.|a).*' *, which leads out of its folder"):
        plan_dataset("bern-barcelona", root=tmp_path)


def test_repeated_and_encrypted_members_and_links_out_are_refused(tmp_path):
    path = make_zip(tmp_path)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("Data_F_Ind0001.txt", BERN_TEXT)
    with pytest.raises(RecordingError, match=r"'Data_F_50.zip' has two members of one name"):
        plan_dataset("bern-barcelona", root=tmp_path)
    content = bytearray(make_zip(tmp_path).read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] |= 1
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=r"'Data_F_Ind0001.txt' in 'Data_F_50.zip' is encrypted"):
        open_first(tmp_path)
    (tmp_path / "bern-barcelona").mkdir()
    (tmp_path / "secret.txt").write_text(BERN_TEXT)
    (tmp_path / "bern-barcelona" / "Data_F_Ind0001.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(RecordingError, match=r"'Data_F_Ind0001.txt' leads out") as raised:
        open_first(tmp_path)
    assert str(tmp_path) not in str(raised.value)


def test_a_damaged_zip_is_refused_wherever_the_damage_is(tmp_path, rng):
    members = {"deep/Data_F_Ind0001.txt": BERN_TEXT, "__MACOSX/._Data_F_Ind0001.txt": "x"}
    with open_first(make_zip(tmp_path, members=members).parent):
        assert [item.name for item in tmp_path.rglob("*")] == ["Data_F_50.zip"]  # reading writes nothing
    whole = make_zip(tmp_path).read_bytes()
    path = tmp_path / "Data_F_50.zip"
    expected = read_numbers(TextFile(path, "Data_F_Ind0001.txt"), tmp_path, n_columns=2, n_rows=10240)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), size=3):
            damaged[place] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            with open_first(tmp_path) as recording:
                assert_array_equal(recording.read([0, 1]), expected)  # a byte that does not matter
        except (RecordingError, IndexError):  # of a name that was hit: no text of this dataset any more
            refused += 1
    assert refused > 40
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(RecordingError, match=r"'Data_F_50.zip' cannot be read"):
            open_first(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BERN_TEXT[:-28], r"has 10239 rows of 2; 10240 rows of 2"),
        (BERN_TEXT + "1,2\n", r"has 10241 rows of 2"),
        (BERN_TEXT.replace("-20.000000", "       nan"), r"some not finite"),
        (BERN_TEXT.replace(",", " "), r"is no table of numbers"),
        ("x,y\n" + BERN_TEXT, r"is no table of numbers"),
        ("é,1\n" + BERN_TEXT, r"is no table of numbers"),
    ],
)
def test_a_text_with_other_content_is_refused(tmp_path, text, message):
    (tmp_path / "Data_F_Ind0001.txt").write_text(text)
    with pytest.raises(RecordingError, match=rf"the text 'Data_F_Ind0001.txt' .*{message}"):
        open_first(tmp_path)


# --- the tables of files


def test_the_table_of_signals_is_the_published_one_and_sidecars_have_their_sums(shared_data):
    listed = {item.path: item for item in DATASETS["ds003029"].listed()}
    assert sum(item.size for item in listed.values()) == DATASETS["ds003029"].size
    with open(shared_data / "ds003029" / "annex_manifest.tsv", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            item = listed.pop(row["path"])
            assert (item.size, item.algorithm, item.digest) == (int(row["size_bytes"]), "md5", row["md5"])
    sums = dict(
        line.split("  ", 1)[::-1]
        for line in (shared_data / "ds003029" / "SHA256SUMS").read_text().splitlines()
    )
    added = {"README.md", "annex_manifest.tsv"}  # beside the dataset, not of it
    assert {path: item.digest for path, item in listed.items()} == {
        path: sum_ for path, sum_ in sums.items() if path not in added
    }
    assert all((shared_data / "ds003029" / path).stat().st_size == item.size for path, item in listed.items())


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../a", "a/../../b", "a//b", "./a", "a/", "", "a\\b", "C:a", "a\nb", "a\x00b", ".."],
)
def test_a_listed_path_that_is_not_plain_is_refused(path):
    with pytest.raises(RecordingError, match=re.escape(repr(path))):
        safe_path(path)


def test_subjects_and_patterns_choose_files_with_what_concerns_all():
    listed = DATASETS["ds003029"].listed()
    shared = {item.path for item in listed if "/" not in item.path} | {
        "sourcedata/clinical_data_summary.xlsx"
    }
    for spelling in ("sub-umf001", "umf001", "sub-umf001/"):
        assert {item.path for item in choose(listed, [spelling])} == shared | {
            item.path for item in listed if item.path.startswith("sub-umf001/")
        }
    assert {item.path for item in choose(listed, ["*_events.tsv", "umf002"])} == shared | {
        item.path
        for item in listed
        if item.path.endswith("_events.tsv") or item.path.startswith("sub-umf002/")
    }
    assert choose(listed, []) == listed
    with pytest.raises(DataError, match=r"matches 'sub-pt1'; did you mean 'sub-pt1\d'"):
        choose(listed, ["sub-pt1"])


# --- summaries


def toy_channels(**changes):
    rows = [
        ("pt1", "NIH", "run-1", "ECOG", "good", 1000.0, "soz", "S"),
        ("pt1", "NIH", "run-1", "ECOG", "good", 1000.0, "other", "S"),
        ("pt1", "NIH", "run-1", "ECOG", "bad", 1000.0, "other", "S"),
        ("pt1", "NIH", "run-1", "MISC", "good", 1000.0, None, "S"),
        ("pt2", "NIH", "run-2", "ECOG", "good", 500.0, None, "F"),
        ("umf1", "UMF", "run-3", "SEEG", "good", 999.9, None, "NR"),
    ]
    columns = ["patient", "centre", "recording", "type", "status", "rate", "label", "outcome"]
    return pd.DataFrame(rows, columns=columns).assign(**changes)


def test_only_patients_with_soz_labels_are_counted_where_they_are_known():
    nih, umh = summarise_centres(toy_channels())[0].to_dict("records")
    assert (nih["centre"], nih["patients"], nih["soz_patients"]) == ("NIH", 2, 1)
    assert (nih["runs"], nih["channels"], nih["series"], nih["soz_share"]) == (1, 4, 2, 0.5)
    assert (nih["type"], nih["rate"], nih["outcomes"]) == ("ECoG", "500 to 1000", "F 1, S 1")
    assert (umh["centre"], umh["patients"], umh["soz_patients"], umh["series"]) == ("UMH (umf)", 1, 0, 0)
    assert np.isnan(umh["soz_share"])
    assert (umh["type"], umh["rate"], umh["paper"]) == ("sEEG", "999.9", "5 / 1 / 129 / 25.58%")
    table, note = summarise_centres(toy_channels(label=None))
    assert table[["soz_patients", "soz_share"]].isna().all(axis=None)
    assert table["series"].tolist() == [3, 1]
    assert "sourcedata/clinical_data_summary.xlsx, which is not there" in note


def test_the_centres_of_the_real_sidecars_are_counted_right(shared_data):
    table = summarise_centres(bids_table(shared_data / "ds003029"))[0].set_index("centre")
    assert table.index.tolist() == list(PAPER)
    assert table["patients"].to_dict() == {centre: numbers[0] for centre, numbers in PAPER.items()}
    assert table["runs"].sum() == 106
    counts = {"jh": Counter(), "pt": Counter(), "ummc": Counter(), "umf": Counter()}
    for file in (shared_data / "ds003029").glob("sub-*/ses-*/ieeg/*_channels.tsv"):
        with open(file, newline="", encoding="utf-8-sig") as lines:
            for row in csv.DictReader(lines, delimiter="\t"):
                count = counts[re.match(r"sub-([a-z]+)", file.name)[1]]
                count["channels"] += 1
                intracranial = row["type"] in ("ECOG", "SEEG")
                count["intracranial"] += intracranial
                count["series"] += intracranial and row["status"] == "good"
    assert sum(count["intracranial"] for count in counts.values()) == 11140  # as the README says
    for column in ("channels", "series"):
        assert table[column].tolist() == [count[column] for count in counts.values()]
    assert table.loc["UMMC", "rate"] == "249.9 to 999.4"
    assert table.loc["UMH (umf)", "type"] == "ECoG, sEEG"
    assert table.loc["JHH", "outcomes"] == "F 3, NR 3, S 1"


# --- on the command line


def run(*arguments):
    return CliRunner().invoke(app, ["datasets", *map(str, arguments)], catch_exceptions=False)


def test_the_list_has_licence_size_citation_and_what_is_on_disk(shared_data):
    output = run("--root", shared_data).output
    assert re.search(
        r"^bonn +complete; CC BY 4.0, research and education only; 3.2 MB$", output, re.MULTILINE
    )
    assert re.search(r"^ds003029 +partly \(362 of 681 files\); CC0; 11.08 GB$", output, re.MULTILINE)
    assert "doi:10.34810/data502" in output
    assert str(shared_data) not in output
    without = run().output
    assert re.search(r"^sample +comes with raxss; ODC-By 1.0; 2.0 MB$", without, re.MULTILINE)
    assert "say where with --root or in the variable RAXSS_DATA" in without


def test_the_list_as_json_has_every_dataset(tmp_path):
    (tmp_path / "bonn").mkdir()
    (tmp_path / "bonn" / "Z.zip").write_bytes(b"")
    (tmp_path / "cinc2017").mkdir()
    (tmp_path / "cinc2017" / "REFERENCE.csv").write_text("nonsense\n")
    facts = {item["name"]: item for item in json.loads(run("--root", tmp_path, "--json").output)}
    assert list(facts) == list(DATASETS)
    states = {name: item["state"] for name, item in facts.items()}
    assert (states.pop("bonn"), states.pop("cinc2017")) == ("partly", "damaged")
    assert states == {name: "absent" if DATASETS[name].where == "disk" else "inside" for name in states}
    assert (facts["bonn"]["n_present"], facts["bonn"]["n_wanted"]) == (1, 5)


def test_the_summary_prints_the_papers_table_by_centre(shared_data):
    lines = run("summary", "--root", shared_data).output.splitlines()
    assert lines[0].split()[:4] == ["centre", "patients", "with", "SOZ"]
    assert [line.split()[0] for line in lines[1:5]] == ["JHH", "NIH", "UMMC", "UMH"]
    assert lines[1].split()[1:6] == ["7", "n/a", "31", "3739", "3227"]
    summary = json.loads(run("summary", "ds003029", "--root", shared_data, "--json").output)
    assert summary["centres"][3]["centre"] == "UMH (umf)"
    assert summary["centres"][3]["soz_share"] is None


def test_a_dataset_that_cannot_be_fetched_says_where_it_comes_from(tmp_path):
    with pytest.raises(
        DataError, match=r"'bonn' cannot be fetched by raxss; its source is https://doi.org/10.34810"
    ):
        run("download", "bonn", "--root", tmp_path)
