"""Contacts, sheets, tables and onsets: what is understood is right, and what is not is told."""

import zipfile
from collections import Counter
from pathlib import Path

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from make_bids import CANARIES, SHORTHANDS, make_bids
from raxss.data.contacts import electrode_of, is_contact, label_channels, looks_like_contacts, parse_contacts
from raxss.data.labels import (
    ClinicalRow,
    labels_of_run,
    labels_of_status,
    match_subjects,
    read_clinical_sheet,
    read_events,
    read_label_table,
    seizure_onset,
)
from raxss.data.tables import read_table
from raxss.errors import LabelError, RecordingError

# --- contacts


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("ATT1-2", "ATT1 ATT2"),
        ("AD1-4, ATT1,2", "AD1 AD2 AD3 AD4 ATT1 ATT2"),
        ("TT1-3; AST1-2, mst1-2", "TT1 TT2 TT3 AST1 AST2 mst1 mst2"),
        ("AD1-AD4", "AD1 AD2 AD3 AD4"),
        ("AD1 - AD3", "AD1 AD2 AD3"),
        ("AD[1-4]", "AD1 AD2 AD3 AD4"),
        ("AD(1,3), G2", "AD1 AD3 G2"),
        ("AD[1-2,5] G1", "AD1 AD2 AD5 G1"),
        ("G 1-3", "G1 G2 G3"),
        ("G 1 - 3", "G1 G2 G3"),
        ("A'1-3", "A'1 A'2 A'3"),
        ("A’1, B′2", "A'1 B'2"),
        ("AD1–3", "AD1 AD2 AD3"),
        ("AD1 and ATT2 & G3", "AD1 ATT2 G3"),
        ("AD1 AD2 ATT3-4", "AD1 AD2 ATT3 ATT4"),
        ("AD1\nAD2\r\nATT1", "AD1 AD2 ATT1"),
        ("AD1: ATT2/G3", "AD1 ATT2 G3"),
        ("AD4-1", "AD1 AD2 AD3 AD4"),
        ("AD1 to 3", "AD1 AD2 AD3"),
        ("AD1 through AD3", "AD1 AD2 AD3"),
        ("TO1-2", "TO1 TO2"),
        ("AD-1", "AD1"),
        ("LA01-03, G1", "LA01 LA02 LA03 G1"),
        ("PD", "PD*"),
        ("AD1-2, PD", "AD1 AD2 PD*"),
        ("AD1, AD1-2", "AD1 AD2"),
        ("AD1, n/a", "AD1"),
        ("", ""),
        ("n/a", ""),
        (" N/A ", ""),
        ("none", ""),
    ],
)
def test_shorthand_means_these_contacts(text, meant):
    assert parse_contacts(text) == meant.split()


@pytest.mark.parametrize(
    ("text", "understood", "left"),
    [
        ("AD1?, PD1", ["PD1"], ["AD1?"]),
        ("AD1 (spread to PD1-4)", ["AD1"], ["(spread to PD1-4)"]),
        ("AD1(spread to PD1", ["AD1"], ["(spread to PD1"]),
        ("AD1-PD2", [], ["AD1-PD2"]),
        ("AD1-999999", [], ["AD1-999999"]),
        ("3, 4", [], ["3", "4"]),
        ("AD1, PD1?, 2", ["AD1"], ["PD1?", "2"]),  # whose second contact is no longer certain
        ("=HYPERLINK(A1)", [], ["=HYPERLINK", "(A1)"]),
    ],
)
def test_what_is_no_contact_comes_back_as_written(text, understood, left):
    found = parse_contacts(text)
    assert [item for item in found if is_contact(item)] == understood
    assert [item for item in found if not is_contact(item)] == left


SHAFTS = st.from_regex(r"[A-Z]{1,4}'?", fullmatch=True).filter(
    lambda name: name not in ("AND", "NA", "TO", "NAN")
)


@given(
    st.dictionaries(SHAFTS, st.sets(st.integers(1, 20), min_size=1), min_size=1, max_size=4),
    st.sampled_from([", ", ";", " ", "\n", " and ", " & ", ":"]),
    st.sampled_from(["-", "–", " - "]),
    st.booleans(),
)
def test_every_way_to_write_a_set_of_contacts_gives_that_set(wanted, between, dash, lower):
    pieces = []
    for shaft, numbers in wanted.items():
        rest = sorted(numbers)
        while rest:  # the longest run of consecutive numbers becomes a range
            end = 1
            while end < len(rest) and rest[end] == rest[0] + end:
                end += 1
            pieces.append(f"{shaft}{rest[0]}{dash}{rest[end - 1]}" if end > 1 else f"{shaft}{rest[0]}")
            rest = rest[end:]
    text = between.join(pieces)
    found = parse_contacts(text.lower() if lower else text)
    meant = sorted(f"{shaft}{number}" for shaft, some in wanted.items() for number in some)
    assert sorted(item.upper() for item in found) == meant


@given(st.text(alphabet="ABd12-–,;:/ ()[]'?\n*&", max_size=30))
def test_no_text_with_a_letter_or_digit_vanishes(text):
    found = parse_contacts(text)
    has_word = any(character.isalnum() for character in text)
    assert bool(found) >= has_word
    written = {character for character in text.upper() if character.isalpha()}
    assert written <= {character for piece in found for character in piece.upper()}


def test_the_shaft_is_the_name_without_the_contact():
    shafts = {
        "ATT1": "ATT",
        "A'12": "A'",
        "POL G1": "G",
        "AHR1-AHR2": "AHR",
        "Fpz": "FPZ",
        "-0": "-0",
        "n/a": "",
    }
    assert {name: electrode_of(name) for name in shafts} == shafts


def test_contacts_find_their_channels_however_the_amplifier_spells_them():
    channels = ["POL AD1", "EEG AD02-Ref", "ad 3", "PD1", "PD10", "G1"]
    labels, unmatched = label_channels(channels, ["AD1", "AD2", "AD3", "PD1", "XY1"])
    assert labels == ["soz", "soz", "soz", "soz", "other", "other"]
    assert unmatched == ["XY1"]


def test_a_shaft_alone_means_all_of_its_channels_and_no_others():
    labels, unmatched = label_channels(["PD1", "PD2", "PDX1", "P1"], ["pd*", "XY9"], label="resect")
    assert labels == ["resect", "resect", "other", "other"]
    assert unmatched == ["XY9"]


@pytest.mark.parametrize(
    ("channels", "contacts", "labels", "unmatched"),
    [
        ("POL AD1, EEG AD1, PD1, PD2", "AD1, PD1", "- - soz other", "AD1"),
        ("G01, G001, PD1, PD2", "G1, PD1", "- - soz other", "G1"),
        ("G01, G1, G2", "G01", "soz - other", ""),
        ("G01, G1, G2", "G1", "- soz other", ""),
        ("a1, A1, G2", "a1", "soz - other", ""),
        ("A1', A1, B1'", "A'1, B1'", "soz other soz", ""),  # a prime may stand behind the number
        ("AD1-AD2, AD3-4, PD1-PD2, G1", "AD1, AD4, G1", "- - other soz", "AD1 AD4"),
        ("AD1-AD2, AD3, PD1-AVG, G1", "AD, PD1", "- soz - other", "PD1"),
        ("AD1-AD2, PD1-PD2", "AD1-2", "- -", "AD1 AD2"),
        ("a1, A1, G1, G2", "A, G1", "- - soz other", "A*"),
        ("PD1, n/a, G2", "PD1", "soz - other", ""),
    ],
)
def test_a_channel_that_a_contact_could_mean_is_not_called_other(channels, contacts, labels, unmatched):
    found, left = label_channels(channels.split(", "), parse_contacts(contacts))
    assert [item or "-" for item in found] == labels.split()
    assert left == unmatched.split()


HERE = ("A1", "A2", "AD1", "AD2", "AD3", "AD4", "PD1", "G1", "G2", "L1", "AH1")


@pytest.mark.parametrize(
    ("cell", "soz"),
    [
        ("AD1, G1-2.", "AD1 G1 G2"),
        ("AD1~4", "AD1 AD2 AD3 AD4"),
        ("AD1..AD3", "AD1 AD2 AD3"),
        ("AD1 … 3", "AD1 AD2 AD3"),
        ("AD1–2", "AD1 AD2"),
        ("AD1|2", "AD1 AD2"),
        ("AD１-２", "AD1 AD2"),
        ("AD1, PD", "AD1 PD1"),
        ("AD1;\npd\nXY9", "AD1 PD1"),
    ],
)
def test_a_cell_that_is_understood_leaves_the_rest_other(cell, soz):
    labels, _ = label_channels(HERE, parse_contacts(cell))
    assert [name for name, label in zip(HERE, labels, strict=True) if label == "soz"] == soz.split()
    assert set(labels) == {"soz", "other"}


@pytest.mark.parametrize(
    ("cell", "soz"),
    [  # a contact that was not understood: nothing is other
        ("AD1?, PD1", "PD1"),
        ("AD1:4, PD1", "PD1"),
        ("PD1, AD1.2", "PD1"),
        ("PD1; AD1-G2", "PD1"),
        ("PD1, -4", "PD1"),
        # free text: nothing is certain
        ("AD1-4 -> PD1", ""),
        ("AD1-4 -> PD1, G1", ""),
        ("AD1 with a spread to PD1", ""),
        ("not PD, AD1", ""),
        ("all AD except AD3", ""),
        ("1-4 AD", ""),
        ("L AH1", ""),
        ("AD1, PD (late)", ""),
        ("AD1 ?", ""),
        ("AD1, QD", ""),
        ("Grid 1-2, AD1", ""),
        ("Strip 1-2, AD1", ""),
        ("AD1 or AD2", ""),
        ("SOZ: AD1", ""),
        ("AD1 John Smith 12-3-1980", ""),
    ],
)
def test_where_a_cell_is_not_understood_nothing_is_called_other(cell, soz):
    labels, unmatched = label_channels(HERE, parse_contacts(cell))
    assert [name for name, label in zip(HERE, labels, strict=True) if label == "soz"] == soz.split()
    assert "other" not in labels
    assert unmatched


# --- tables


@pytest.mark.parametrize(
    ("content", "told"),
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
def test_a_broken_table_is_refused_with_its_line(tmp_path, content, told):
    path = tmp_path / "broken.tsv"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=told) as caught:
        read_table(path)
    assert "'broken.tsv'" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_table_far_too_large_is_not_read(tmp_path):
    path = tmp_path / "large.tsv"
    with open(path, "wb") as file:
        file.truncate(2**26)
    with pytest.raises(RecordingError, match="67,108,864 bytes"):
        read_table(path)


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


def test_the_sheet_keeps_contacts_and_outcomes_and_no_more(tmp_path):
    truth = make_bids(tmp_path / "tree", n_centres=4, patients_per_centre=2, runs=0)
    rows = read_clinical_sheet(truth.clinical, truth.centres)
    assert list(rows) == ["JH101", "JH102", "pt1", "pt2", "ummc_001", "ummc_002", "umf001", "umf002"]
    assert rows["pt1"] == ClinicalRow("pt1", ("att1", "att2", "att3"), centre="nih", outcome="S", engel="1")
    assert rows["JH102"].contacts == ()
    assert not [word for word in CANARIES if word in repr(rows)]


@pytest.mark.parametrize(("shorthand", "contacts"), SHORTHANDS.items())
def test_the_generator_and_the_parser_agree_on_shorthand(shorthand, contacts):
    channels = [f"{shaft}{number}" for shaft in ("ATT", "AD", "G") for number in (1, 2, 3)]
    labels, unmatched = label_channels(channels, parse_contacts(shorthand))
    assert {name for name, label in zip(channels, labels, strict=True) if label == "soz"} == set(contacts)
    assert not unmatched


def test_the_column_that_knows_the_subjects_says_whose_row_it_is(tmp_path):
    sheet = write_sheet(
        tmp_path / "a.xlsx",
        ["dataset_id", "patient_id", "hospital_id", "SOZ Contacts", "Engel Score"],
        ["x7", "EFRI01", 1.0, "AD1", 2.0],
        ["x8", "EFRI02", 2.0, None, -1],
        title="Organised by hand",
    )
    assert list(read_clinical_sheet(sheet, ["efri_1", "efri_2"])) == ["EFRI01", "EFRI02"]
    assert list(read_clinical_sheet(sheet, ["1", "2"])) == ["1", "2"]
    rows = read_clinical_sheet(sheet)
    assert rows == {"x7": ClinicalRow("x7", ("AD1",), engel="2"), "x8": ClinicalRow("x8", ())}


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


def test_one_column_of_contacts_counts_and_not_all_that_there_are(tmp_path):
    sheet = write_sheet(tmp_path / "a.xlsx", ["subject", "soz", "soz_contacts"], ["p1", "G", "AD1"])
    assert read_clinical_sheet(sheet)["p1"].contacts == ("AD1",)


def test_only_what_can_be_no_more_than_contacts_may_be_quoted():
    for piece in ("XY9", "AD1?", "AD1-PD2", "AD1.2", "A'1"):
        assert looks_like_contacts(piece)
    for piece in ("John", "PD*", "Smith12", "AD1980", "12-3-1980", "(AD1)", "AD1->PD1"):
        assert not looks_like_contacts(piece)


def test_resected_and_ablated_contacts_are_read_together(tmp_path):
    sheet = write_sheet(
        tmp_path / "a.xlsx",
        ["subject", "resected_contacts", "ablated_contacts", "soz_contacts"],
        ["p1", "AD1", "PD1-2", "G1"],
    )
    assert read_clinical_sheet(sheet, label="resect")["p1"].contacts == ("AD1", "PD1", "PD2")


@pytest.mark.parametrize(
    ("rows", "error", "told"),
    [
        ([["dataset_id", "notes"], ["p1", "x"]], LabelError, "no column 'soz_contacts'"),
        ([["who", "soz_contacts"], ["p1", "AD1"]], LabelError, "no column that says whose row"),
        (
            [["subject", "soz_contacts"], ["p1", "AD1"], ["p1", "AD2"]],
            LabelError,
            "'p1', and line 3 contradicts",
        ),
        ([["subject", "soz_contacts"], [None, "AD1"]], LabelError, "no 'subject' in line 2"),
        ([["subject", "soz_contacts", "SOZ contacts"], ["p1", "AD1", "AD2"]], RecordingError, "2 times"),
        (
            [["subject", "soz_contacts"], ["p1", "=A1"]],
            RecordingError,
            "formula .* line 2, column 'soz_contacts'",
        ),
    ],
)
def test_a_sheet_that_leaves_doubt_is_refused(tmp_path, rows, error, told):
    sheet = write_sheet(tmp_path / "doubt.xlsx", *rows)
    with pytest.raises(error, match=told) as caught:
        read_clinical_sheet(sheet)
    assert "'doubt.xlsx'" in str(caught.value)


def test_a_sheet_with_far_too_many_rows_is_refused(tmp_path):
    book = openpyxl.Workbook()
    book.active.append(["subject", "soz_contacts"])
    book.active.cell(row=20_001, column=1, value="p1")
    book.save(tmp_path / "long.xlsx")
    with pytest.raises(RecordingError, match=r"'long.xlsx' has more than 20,000 rows"):
        read_clinical_sheet(tmp_path / "long.xlsx")


def test_what_openpyxl_says_about_menus_and_styles_stays_with_it(tmp_path):
    path, other = write_sheet(tmp_path / "a.xlsx", ["subject", "soz"], ["p1", "AD1"]), tmp_path / "b.xlsx"
    menus = b'<extLst><ext uri="{CCE6A557-97BC-4b89-ADB6-D9C93CAAB3DF}"/></extLst></worksheet>'
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for member in old.infolist():
            new.writestr(member, old.read(member).replace(b"</worksheet>", menus))
    with pytest.warns(UserWarning, match="Data Validation"):
        list(openpyxl.load_workbook(other).active.iter_rows())
    assert read_clinical_sheet(other)["p1"].contacts == ("AD1",)


def test_columns_that_nobody_needs_may_be_doubled_and_computed(tmp_path):
    sheet = write_sheet(tmp_path / "a.xlsx", ["subject", "soz", "notes", "notes"], ["p1", "AD1", "=1+1", "b"])
    assert read_clinical_sheet(sheet)["p1"].contacts == ("AD1",)


def test_a_sheet_that_unpacks_to_too_much_is_refused_unread(tmp_path):
    path = tmp_path / "bomb.xlsx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", b"<row/>" * 10_000_000)
    assert path.stat().st_size < 200_000
    with pytest.raises(RecordingError, match=r"'bomb.xlsx' would unpack to 60,000,000 bytes"):
        read_clinical_sheet(path)


def test_a_sheet_that_declares_a_million_rows_is_read_for_what_it_has(tmp_path):
    path, wide = (
        write_sheet(tmp_path / "a.xlsx", ["subject", "soz_contacts"], ["p1", "AD1"]),
        tmp_path / "b.xlsx",
    )
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(wide, "w") as new:
        for member in old.infolist():
            content = old.read(member)
            if member.filename.endswith("sheet1.xml"):
                content = content.replace(b'ref="A1:B2"', b'ref="A1:XFD1048576"')
                assert b"XFD1048576" in content
            new.writestr(member, content)
    assert list(read_clinical_sheet(wide)) == ["p1"]


@pytest.mark.parametrize("content", [b"", b"no zip at all", b"PK\3\4" + b"\0" * 100])
def test_a_file_that_is_no_workbook_is_refused_by_name(tmp_path, content):
    path = tmp_path / "not.xlsx"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=r"'not.xlsx' is not a whole .xlsx"):
        read_clinical_sheet(path)
    with pytest.raises(RecordingError, match=r"'gone.xlsx' cannot be read"):
        read_clinical_sheet(tmp_path / "gone.xlsx")


# --- whose row


def test_the_subjects_of_ds003029_find_their_rows(shared_data):
    tree = sorted(item.name.removeprefix("sub-") for item in (shared_data / "ds003029").glob("sub-*"))
    spelled = {
        "pt01": "pt1",
        "ummc001": "ummc_001",
        "ummc007": "ummc_007",
        "jh101": "JH101",
        "umf005": "sub-umf005",
    }
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
    ("cells", "soz", "resect"),
    [
        ({"status_description": "soz"}, "soz", None),
        ({"status_description": "resect"}, None, "resect"),
        ({"status_description": "soz,resect"}, "soz", "resect"),
        ({"status_description": "resect, soz"}, "soz", "resect"),
        ({"status_description": "Resected SOZ"}, "soz", "resect"),
        ({"status_description": "not soz"}, None, None),
        ({"status_description": "soz, soz?"}, None, None),
        ({"status_description": "excel-file-labeled"}, None, None),
        ({"soz": "1", "resect": "0"}, "soz", "other"),
        ({"soz": "False", "status_description": "soz"}, "other", None),
        ({"soz": "", "resect": "perhaps"}, None, None),
    ],
)
def test_channels_tsv_may_carry_labels_itself(cells, soz, resect):
    assert labels_of_status(cells, label="soz") == soz
    assert labels_of_status(cells, label="resect") == resect


@pytest.mark.parametrize(
    ("column", "texts", "labels"),
    [
        ("soz", ["1", "", "0", "perhaps"], ["soz", None, "other", None]),
        ("soz", ["0", "", "0"], [None, None, None]),
        (
            "status_description",
            ["soz", "", "resect", "soz?", "not soz", "seizure onset"],
            ["soz", "other", "other", None, None, None],
        ),
        ("status_description", ["", "resect", "soz?"], [None, None, None]),
    ],
)
def test_a_channel_is_other_only_beside_a_mark_and_only_if_that_is_certain(column, texts, labels):
    assert labels_of_run([{column: text} for text in texts]) == labels


def test_the_table_of_pt01_has_its_ten_contacts(shared_data):
    path = shared_data / "ds003029-pt01" / "soz.tsv"
    rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    channels = [name for name, kind, status, _ in rows if (kind, status) == ("ECOG", "good")]
    labels, unknown = read_label_table(path).of("any", [f"POL {name}" for name in channels])
    named = {name for name, label in zip(channels, labels, strict=True) if label == "soz"}
    # the README: "SOZ contacts: ATT1, ATT2, AD1-4, PD1-4"
    assert named == set(parse_contacts("ATT1, ATT2, AD1-4, PD1-4"))
    assert labels.count("other") == 74
    assert (
        len(unknown) == len(rows) - len(channels) - 1
    )  # the bad ones, which were not asked for; one has no name


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
    table = read_label_table(
        write_table(tmp_path / "labels.csv", "recording,channel,label", f"{written},G1,soz")
    )
    assert table.of(meant, ["G1"]) == (["soz"], [])
    assert [table.of(other, ["G1"]) for other in others] == [([None], [])] * len(others)
    assert table.unknown_recordings([meant, *others]) == []
    assert len(table.unknown_recordings(others)) == 1


@pytest.mark.parametrize(
    ("written", "found"),
    [("rec", ["d/p1/rec", "d/p2/rec"]), ("x", ["d/x_ieeg", "d/x_eeg"])],
)
def test_a_name_that_could_be_several_recordings_is_refused(tmp_path, written, found):
    table = read_label_table(
        write_table(tmp_path / "labels.csv", "recording,channel,label", f"{written},G1,soz")
    )
    with pytest.raises(LabelError, match=f"'{written}', which could be '{found[0]}', '{found[1]}'"):
        table.unknown_recordings(found)


def test_two_names_of_one_recording_must_not_contradict_each_other(tmp_path):
    path = write_table(
        tmp_path / "labels.csv", "recording,channel,label", "p1/rec,G1,soz", "rec.edf,g1,other"
    )
    with pytest.raises(LabelError, match=r"'g1' of recording 'd/p1/rec' twice and differently"):
        read_label_table(path).of("d/p1/rec", ["G1"])


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["recording,label", "a,b"], "no column 'channel'"),
        (["name,kind", "a,b"], "no column 'label'"),
        (["name,soz", "G1,maybe"], "line 2, column 'soz'"),
        (["channel,label", "G1,soz", "POL G1,other"], "'POL G1' twice and differently, in lines 2 and 3"),
        (["recording,channel,label", ",G1,soz"], "no recording in line 2"),
        (["channel,label", "G1,soz", "G2,SOZ"], "line 3 .* capital letters alone: 'soz' and 'SOZ'"),
    ],
)
def test_a_label_table_that_leaves_doubt_is_refused(tmp_path, lines, told):
    with pytest.raises(LabelError, match=told):
        read_label_table(write_table(tmp_path / "labels.csv", *lines))


def test_equal_rows_and_undecided_channels_are_no_contradiction(tmp_path):
    path = write_table(tmp_path / "labels.csv", "name,soz", "G1,yes", "G1,TRUE", "G2,n/a", "G3,no")
    assert read_label_table(path).of("r", ["G1", "G2", "G3"]) == (["soz", None, "other"], [])


# --- onset


def onsets_of(root: Path) -> dict[str, float | None]:
    files = sorted(root.glob("sub-*/ses-*/ieeg/*_events.tsv"))
    return {file.name.removesuffix("_events.tsv"): seizure_onset(read_events(file)) for file in files}


def test_the_onset_is_found_in_each_centres_words(shared_data):
    onsets = onsets_of(shared_data / "ds003029")
    found = Counter(name[4:6] for name, onset in onsets.items() if onset is not None)
    assert len(onsets) == 106
    assert found == {"jh": 31, "pt": 39, "um": 31}
    # no mark at all (pt17), a doubtful one (pt2), a bare "sz" (pt3, pt6)
    without = [
        name.replace("_ses-presurgery_task-ictal_acq-ecog", "")
        for name, item in onsets.items()
        if item is None
    ]
    assert without == [
        "sub-pt17_run-01",
        "sub-pt17_run-03",
        "sub-pt2_run-01",
        "sub-pt3_run-02",
        "sub-pt6_run-02",
    ]


@pytest.mark.parametrize(
    ("run", "second"),
    [  # read off the files by hand
        ("sub-jh102_ses-presurgery_task-ictal_acq-ecog_run-01", 59.774),  # not the "poss" one 5 s before
        ("sub-jh101_ses-presurgery_task-ictal_acq-ecog_run-02", 66.825),
        ("sub-jh102_ses-presurgery_task-ictal_acq-ecog_run-02", 60.762),  # not the button before it
        ("sub-jh102_ses-presurgery_task-ictal_acq-ecog_run-03", 65.949),
        ("sub-jh102_ses-presurgery_task-ictal_acq-ecog_run-04", 61.997),
        ("sub-jh102_ses-presurgery_task-ictal_acq-ecog_run-05", 82.992),  # "Z ELELCTROGRAPHIC ON"
        ("sub-jh102_ses-presurgery_task-ictal_acq-ecog_run-06", 61.997),
        ("sub-jh108_ses-presurgery_task-ictal_acq-ecog_run-05", 64.998),
        ("sub-pt01_ses-presurgery_task-ictal_acq-ecog_run-01", 75.95),
        ("sub-pt11_ses-presurgery_task-ictal_acq-ecog_run-03", 67.62),  # "start"
        ("sub-pt13_ses-presurgery_task-ictal_acq-ecog_run-04", 67.39),
        ("sub-pt14_ses-presurgery_task-ictal_acq-ecog_run-02", 90.508),  # the first of two
        ("sub-pt15_ses-presurgery_task-ictal_acq-ecog_run-02", 135.198),
        ("sub-pt2_ses-presurgery_task-ictal_acq-ecog_run-03", 139.788),  # not that of a movement
        ("sub-pt7_ses-presurgery_task-ictal_acq-ecog_run-02", 80.83),  # not the clinical one
        ("sub-umf004_ses-presurgery_task-ictal_acq-seeg_run-01", 135.00036529411764),
        ("sub-ummc002_ses-presurgery_task-ictal_acq-ecog_run-03", 8.000686731092436),
    ],
)
def test_the_mark_that_counts_is_the_electrographic_one(shared_data, run, second):
    assert onsets_of(shared_data / "ds003029")[run] == pytest.approx(second)


@pytest.mark.parametrize(
    "text",
    [
        "clinical onset",
        "?onset",
        "poss onset",
        "LIKELY ONSET",
        "sz",
        "offset",
        "REC START",
        "onset of chewing",
        "Z ELECTROGRAPHIC END",
        "no electrographic on",
        "end",
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
