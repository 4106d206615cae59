"""Clinical sheets, label tables and seizure onsets: labels that are certain, and reports of what is not."""

import re
import zipfile
from collections import Counter
from pathlib import Path

import openpyxl
import pytest

from make_bids import CANARIES, make_bids
from raxss.data.labels import (
    ClinicalRow,
    labels_of_run,
    match_subjects,
    read_clinical_sheet,
    read_events,
    read_label_table,
    seizure_onset,
)
from raxss.data.tables import read_table
from raxss.errors import LabelError, RecordingError

# --- tables


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"a\tb\n1\t2\n3\n", "1 values in line 3 and 2 columns"),
        (b"a\ta\n1\t2\n", "column 'a' 2 times"),
        (b"name\tunits\nG1\t\xb5V\n", "not UTF-8 in line 2"),
        ("name\n".encode("utf-16"), "not UTF-8 in line 1"),
        (b"name\nG1\nG\0\n", "zero byte in line 3"),
        (b"\t" * 6000, "5,000 values in line 1"),
        (b"name\n" + b"x" * 200_000, "cannot be read from line 2"),
    ],
)
def test_a_broken_table_is_refused_with_its_line(tmp_path, content, message):
    path = tmp_path / "broken.tsv"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=message) as caught:
        read_table(path)
    assert "'broken.tsv'" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_byte_order_mark_line_ends_and_stray_quotes_do_not_matter(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b'\xef\xbb\xbfname\tSOZ Contacts (final)\r\n"G1"\tn/a\r\n"5 lead\tAD1\r\n\r\n')
    table = read_table(path)
    assert table.columns == ("name", "soz_contacts")
    assert [dict(cells) for _, cells in table.rows] == [
        {"name": "G1", "soz_contacts": ""},
        {"name": '"5 lead', "soz_contacts": "AD1"},
    ]


# --- the sheet


def write_sheet(path, *rows, title=None):
    book = openpyxl.Workbook()
    if title:
        book.active.append([title])
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


def rewrite(path, other, old, new):
    """A copy of a workbook with other XML."""
    n_found = 0
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, "w") as target:
        for member in source.infolist():
            n_found += source.read(member).count(old)
            target.writestr(member, source.read(member).replace(old, new))
    assert n_found


def test_the_sheet_keeps_contacts_and_outcomes_and_no_more(tmp_path):
    truth = make_bids(tmp_path / "tree", n_centres=4, patients_per_centre=2, runs=0)
    rows = read_clinical_sheet(truth.clinical, truth.centres)
    assert list(rows) == ["JH101", "JH102", "pt1", "pt2", "ummc_001", "ummc_002", "umf001", "umf002"]
    assert rows["pt1"] == ClinicalRow("pt1", ("att1", "att2", "att3"), centre="nih", outcome="S")
    assert rows["JH102"].contacts == ()
    assert not [word for word in CANARIES if word in repr(rows)]


def test_the_column_that_knows_the_subjects_says_whose_row_it_is(tmp_path):
    sheet = write_sheet(
        tmp_path / "a.xlsx",
        ["dataset_id", "patient_id", "hospital_id", "SOZ Contacts"],
        ["x7", "EFRI01", 1.0, "AD1"],
        ["x8", "EFRI02", 2.0, None],
        title="Organised by hand",
    )
    assert list(read_clinical_sheet(sheet, ["efri_1", "efri_2"])) == ["EFRI01", "EFRI02"]
    assert list(read_clinical_sheet(sheet, ["1", "2"])) == ["1", "2"]
    rows = read_clinical_sheet(sheet)
    assert rows == {"x7": ClinicalRow("x7", ("AD1",)), "x8": ClinicalRow("x8", ())}


def test_id_columns_that_fit_as_well_and_disagree_are_refused_by_name(tmp_path):
    rows = [["patient_id", "subject_id", "soz"], ["p1", "p2", "AD1"], ["p2", "p1", "PD1"]]
    with pytest.raises(LabelError, match=r"'two.xlsx' has the columns 'patient_id' and 'subject_id'"):
        read_clinical_sheet(write_sheet(tmp_path / "two.xlsx", *rows), ["p1", "p2"])
    rows = [["patient_id", "subject_id", "soz"], ["p1", "sub-p1", "AD1"], ["p2", "P_2", "PD1"]]
    assert list(read_clinical_sheet(write_sheet(tmp_path / "a.xlsx", *rows), ["p1", "p2"])) == ["p1", "p2"]


@pytest.mark.parametrize(("second", "is_refused"), [("ad01, AD2", False), ("AD1", True), (None, True)])
def test_worksheets_that_contradict_each_other_are_refused_by_title(tmp_path, second, is_refused):
    book = openpyxl.Workbook()
    book.active.title = "final"
    other = book.create_sheet("draft")
    for sheet, cell in ((book.active, "AD1-2"), (other, second)):
        sheet.append(["subject", "soz_contacts"])
        sheet.append(["p1", cell])
    other.append(["p9", "G1"])
    book.save(tmp_path / "a.xlsx")
    if is_refused:
        with pytest.raises(LabelError, match=r"of patient 'p1' in its worksheets 'final' and 'draft'"):
            read_clinical_sheet(tmp_path / "a.xlsx", ["p1"])
    else:
        assert read_clinical_sheet(tmp_path / "a.xlsx", ["p1"])["p1"].contacts == ("AD1", "AD2")


@pytest.mark.parametrize(
    ("columns", "cells", "label", "contacts"),
    [
        (["soz", "soz_contacts"], ["G", "AD1"], "soz", ("AD1",)),  # one column counts
        (
            ["resected_contacts", "ablated_contacts", "soz"],
            ["AD1", "PD1-2", "G1"],
            "resect",
            ("AD1", "PD1", "PD2"),
        ),
        (["soz", "notes", "notes"], ["AD1", "=1+1", "b"], "soz", ("AD1",)),  # columns that are not needed
    ],
)
def test_contacts_come_from_the_columns_of_their_label(tmp_path, columns, cells, label, contacts):
    sheet = write_sheet(tmp_path / "a.xlsx", ["subject", *columns], ["p1", *cells])
    assert read_clinical_sheet(sheet, label=label)["p1"].contacts == contacts


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([["dataset_id", "notes"], ["p1", "x"]], LabelError, "no column 'soz_contacts'"),
        ([["who", "soz"], ["p1", "AD1"]], LabelError, "no column that says whose row"),
        ([["subject", "soz"], ["p1", "AD1"], ["p1", "AD2"]], LabelError, "'p1', and line 3 contradicts"),
        ([["subject", "soz"], [None, "AD1"]], LabelError, "no 'subject' in line 2"),
        ([["subject", "soz_contacts", "SOZ contacts"], ["p1", "AD1", "AD2"]], RecordingError, "2 times"),
        ([["subject", "soz"], ["p1", "=A1"]], RecordingError, "formula .* line 2, column 'soz'"),
    ],
)
def test_a_sheet_that_is_not_certain_is_refused(tmp_path, rows, error, message):
    sheet = write_sheet(tmp_path / "doubt.xlsx", *rows)
    with pytest.raises(error, match=message) as caught:
        read_clinical_sheet(sheet)
    assert "'doubt.xlsx'" in str(caught.value)


def test_a_sheet_with_far_too_many_rows_or_bytes_is_refused(tmp_path):
    path = write_sheet(tmp_path / "long.xlsx", ["subject", "soz_contacts"], *[["p1", None]] * 20_000)
    with pytest.raises(RecordingError, match=r"'long.xlsx' has more than 20,000 rows"):
        read_clinical_sheet(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", b"<row/>" * 10_000_000)
    assert path.stat().st_size < 200_000
    with pytest.raises(RecordingError, match=r"'long.xlsx' would unpack to 60,000,000 bytes"):
        read_clinical_sheet(path)


def test_what_openpyxl_says_about_menus_and_styles_stays_with_it(tmp_path):
    path, other = write_sheet(tmp_path / "a.xlsx", ["subject", "soz"], ["p1", "AD1"]), tmp_path / "b.xlsx"
    menus = b'<extLst><ext uri="{CCE6A557-97BC-4b89-ADB6-D9C93CAAB3DF}"/></extLst></worksheet>'
    rewrite(path, other, b"</worksheet>", menus)
    with pytest.warns(UserWarning, match="Data Validation"):
        list(openpyxl.load_workbook(other).active.iter_rows())
    assert read_clinical_sheet(other)["p1"].contacts == ("AD1",)
    rewrite(path, other, b'ref="A1:B2"', b'ref="A1:XFD1048576"')  # declares a million rows
    assert list(read_clinical_sheet(other)) == ["p1"]


@pytest.mark.parametrize("content", [b"", b"no zip at all", b"PK\3\4" + b"\0" * 100])
def test_a_file_that_is_no_workbook_is_refused_by_name(tmp_path, content):
    path = tmp_path / "not.xlsx"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=r"'not.xlsx' is not a whole .xlsx"):
        read_clinical_sheet(path)
    with pytest.raises(RecordingError, match=r"'gone.xlsx' cannot be read"):
        read_clinical_sheet(tmp_path / "gone.xlsx")


# --- matching of patients


def test_the_subjects_of_ds003029_find_their_rows(shared_data):
    tree = sorted(item.name.removeprefix("sub-") for item in (shared_data / "ds003029").glob("sub-*"))
    spelled = {"pt01": "pt1", "ummc001": "ummc_001", "jh101": "JH101", "umf005": "sub-umf005"}
    sheet = [spelled.get(item, item) for item in tree if item != "jh106"] + ["la01", "nl24"]
    match = match_subjects(sheet, tree)
    assert dict(match.pairs) == {item: spelled.get(item, item) for item in tree if item != "jh106"}
    assert match.only_in_tree == ("jh106",)
    assert match.only_in_sheet == ("la01", "nl24")


def test_ids_that_differ_by_zeros_alone_are_refused_by_name():
    with pytest.raises(LabelError, match=r"rows 'pt1' .* subjects 'pt01', 'pt1'"):
        match_subjects(["pt1"], ["pt01", "pt1", "pt2"])
    with pytest.raises(LabelError, match=r"rows 'ummc_1', 'ummc001' .* subjects 'ummc001'"):
        match_subjects(["ummc_1", "ummc001"], ["ummc001"])
    both = match_subjects(["pt1", "pt01"], ["pt01", "pt1"])  # each spelled alike on both sides: no doubt
    assert dict(both.pairs) == {"pt01": "pt01", "pt1": "pt1"}


# --- labels in columns


@pytest.mark.parametrize(
    ("column", "texts", "soz", "resect"),
    [
        ("soz", ["1", "", "0", "perhaps", "False"], "soz - other - other", "- - - - -"),
        ("soz", ["0", "", "0"], "- - -", "- - -"),  # no channel is marked
        (
            "status_description",
            ["soz", "", "resect", "soz, resect", "Resected SOZ", "excel-file-labeled"],
            "soz other other soz soz other",
            "other other resect resect resect other",
        ),
        (
            "status_description",
            ["soz,resect", "soz?", "not soz", "seizure onset", "soz, soz?", "not resected", "ablated"],
            "soz - - - - other other",
            "resect other other other other - -",
        ),
        ("status_description", ["", "resect", "soz?"], "- - -", "other resect other"),
    ],
)
def test_channels_tsv_may_carry_labels_and_a_channel_is_other_only_beside_a_mark(column, texts, soz, resect):
    for label, labels in (("soz", soz), ("resect", resect)):
        found = labels_of_run([{column: text} for text in texts], label=label)
        assert [item or "-" for item in found] == labels.split()


def test_a_column_of_its_own_counts_before_a_description():
    rows = [{"soz": "1"}, {"soz": "False", "status_description": "soz"}]
    assert labels_of_run(rows) == ["soz", "other"]


def write_table(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_label_table_holds_for_the_recordings_it_names(tmp_path):
    path = write_table(
        tmp_path / "labels.csv",
        "recording,channel,label",
        "sub-1/ieeg/sub-1_run-1_ieeg.edf,G1,focal",
        "sub-1,G1,other",
        "sub-1,G2,other",
        "sub-9_run-1,G1,focal",
    )
    table = read_label_table(path)
    first, second = "ds/sub-1/ieeg/sub-1_run-1_ieeg", "ds/sub-1/ieeg/sub-1_run-2_ieeg"
    assert table.of(first, ["g1", "G2", "G3"]) == (["focal", "other", None], [])
    assert table.of(second, ["G1"]) == (["other"], ["G2"])
    assert table.unknown_recordings([first, second]) == ["sub-9_run-1"]


@pytest.mark.parametrize(
    ("written", "meant", "others"),
    [
        ("night", "d/night", ["d/night_2", "d/nights", "d/1_night", "d/night.v2"]),
        ("night.edf", "d/night", ["d/night_2"]),
        ("night.v2.edf", "d/night.v2", ["d/night", "d/night.v3"]),
        ("p1/rec.edf", "d/p1/rec", ["d/p2/rec", "d/rec", "d/xp1/rec"]),
        ("d\\p1\\rec.edf", "d/p1/rec", ["d/p2/rec"]),
        ("x_ieeg.edf", "d/x_ieeg", ["d/x_eeg", "d/x"]),
        ("sub-1_run-1", "d/sub-1/ieeg/sub-1_run-1_ieeg", ["d/sub-1/ieeg/sub-1_run-10_ieeg"]),
    ],
)
def test_a_label_table_does_not_reach_recordings_that_it_does_not_name(tmp_path, written, meant, others):
    lines = ("recording,channel,label", f"{written},G1,soz")
    table = read_label_table(write_table(tmp_path / "labels.csv", *lines))
    assert table.of(meant, ["G1"]) == (["soz"], [])
    assert [table.of(other, ["G1"]) for other in others] == [([None], [])] * len(others)
    assert table.unknown_recordings([meant, *others]) == []
    assert len(table.unknown_recordings(others)) == 1


def test_names_of_recordings_that_are_not_certain_are_refused(tmp_path):
    lines = ("recording,channel,label", "p1/rec,G1,soz", "rec.edf,g1,other", "x,G1,soz")
    table = read_label_table(write_table(tmp_path / "labels.csv", *lines))
    for found in (["d/p1/rec", "d/p2/rec"], ["d/x_ieeg", "d/x_eeg"]):
        with pytest.raises(LabelError, match=f"which could be '{found[0]}', '{found[1]}'"):
            table.unknown_recordings(found)
    with pytest.raises(LabelError, match=r"'g1' of recording 'd/p1/rec' twice and differently"):
        table.of("d/p1/rec", ["G1"])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["recording,label", "a,b"], "no column 'channel'"),
        (["name,kind", "a,b"], "no column 'label'"),
        (["name,soz", "G1,maybe"], "line 2, column 'soz'"),
        (["channel,label", "G1,soz", "POL G1,other"], "'POL G1' twice and differently, in lines 2 and 3"),
        (["recording,channel,label", ",G1,soz"], "no recording in line 2"),
        (["channel,label", "G1,soz", "G2,SOZ"], "line 3 .* capital letters alone: 'soz' and 'SOZ'"),
    ],
)
def test_a_label_table_that_is_not_certain_is_refused(tmp_path, lines, message):
    with pytest.raises(LabelError, match=message):
        read_label_table(write_table(tmp_path / "labels.csv", *lines))


def test_equal_rows_and_undecided_channels_are_no_contradiction(tmp_path):
    path = write_table(tmp_path / "labels.csv", "name,soz", "G1,yes", "G1,TRUE", "G2,n/a", "G3,no")
    assert read_label_table(path).of("r", ["G1", "G2", "G3"]) == (["soz", None, "other"], [])


# --- onset


ONSETS = {  # read off the files by hand
    "jh102 01": 59.774,  # not the "poss" one 5 s before
    "jh101 02": 66.825,
    "jh102 02": 60.762,  # not the button before it
    "jh102 03": 65.949,
    "jh102 04": 61.997,
    "jh102 05": 82.992,  # "Z ELELCTROGRAPHIC ON"
    "jh102 06": 61.997,
    "jh108 05": 64.998,
    "pt01 01": 75.95,
    "pt11 03": 67.62,  # "start"
    "pt13 04": 67.39,
    "pt14 02": 90.508,  # the first of two
    "pt15 02": 135.198,
    "pt2 03": 139.788,  # not that of a movement
    "pt7 02": 80.83,  # not the clinical one
    "umf004 01": 135.00036529411764,
    "ummc002 03": 8.000686731092436,
}


def test_the_onset_is_found_in_each_centres_words(shared_data):
    files = sorted((shared_data / "ds003029").glob("sub-*/ses-*/ieeg/*_events.tsv"))
    onsets = {
        re.sub(r"sub-(.*)_ses.*_run-(\d+).*", r"\1 \2", file.name): seizure_onset(read_events(file))
        for file in files
    }
    assert len(onsets) == 106
    found = Counter(name[:2] for name, onset in onsets.items() if onset is not None)
    assert found == {"jh": 31, "pt": 39, "um": 31}
    # no mark at all (pt17), a doubtful one (pt2), a bare "sz" (pt3, pt6)
    without = [name for name, onset in onsets.items() if onset is None]
    assert without == ["pt17 01", "pt17 03", "pt2 01", "pt3 02", "pt6 02"]
    assert {name: onsets[name] for name in ONSETS} == pytest.approx(ONSETS)


@pytest.mark.parametrize(
    "text",
    [
        *("clinical onset", "?onset", "poss onset", "LIKELY ONSET", "sz", "offset", "REC START", "end"),
        *("onset of chewing", "Z ELECTROGRAPHIC END", "no electrographic on"),
    ],
)
def test_a_mark_that_may_mean_something_else_is_no_onset(text):
    assert seizure_onset([(0.0, "Segment: REC START"), (9.0, text)]) is None


def test_events_that_cannot_be_read_are_refused_without_quoting_them(tmp_path):
    path = tmp_path / "a_events.tsv"
    path.write_text("onset\ttrial_type\nn/a\tx\nCanary\tMrs Canary wakes\n")
    with pytest.raises(
        RecordingError, match=r"'a_events.tsv' has no number in line 3, column 'onset'"
    ) as caught:
        read_events(path)
    assert "Canary" not in str(caught.value)
    path.write_text("when\twhat\n1\tonset\n")
    with pytest.raises(RecordingError, match="'onset' and 'trial_type'"):
        read_events(path)
