"""Reading within bounds: normal files as ever, what is too large with its limit."""

import csv
import io
import json
import tracemalloc

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raxss._core import atomic as storage
from raxss._core import bounded
from raxss._core.sealing import bounded_json
from raxss.data import labels, tables
from raxss.data.tables import plain_cell, plain_name, read_table
from raxss.errors import ConfigError, DataError, LabelError, ModelError, RecordingError
from raxss.explain import SeriesEvidence, reading
from test_evidence import explain, noise

CELLS = ["", "n/a", "A1", " b ", "1.5", "ü", "\U0001f9e0", '"x"', "'", "nan", "x" * 300, "a b", "\x1b[31m"]
ENDS = ["\n", "\r\n", "\r"]


def as_csv_reads_it(path):
    """The whole table at once, without any limit: the plainest way there is."""
    text = path.read_bytes().decode("utf-8-sig")
    tabs = path.suffix == ".tsv"
    lines = io.StringIO(text, newline="")
    reader = (
        csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(lines, strict=True)
    )
    numbered = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    columns = tuple(map(plain_name, numbered[0][1]))
    rows = [
        (line, {name: plain_cell(cell) for name, cell in zip(columns, cells, strict=True) if name})
        for line, cells in numbered[1:]
    ]
    return columns, rows


def random_table(rng, tabs):
    """Rows of equal width, some of them blank; in CSV quotes, and line ends and commas inside."""
    width, end = int(rng.integers(1, 6)), ENDS[rng.integers(3)]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=end)
    lines = [[f"Column {k} (x)" for k in range(width)]]
    lines += [[CELLS[rng.integers(len(CELLS))] for _ in range(width)] for _ in range(rng.integers(0, 30))]
    for cells in lines:
        if tabs:
            text.write("\t".join(cells) + end)
        else:
            odd = rng.random() < 0.3
            writer.writerow([f"{cell},\n{cell}" if odd else cell for cell in cells])
        text.write(end * int(rng.integers(0, 3)) if rng.random() < 0.2 else "")
    content = text.getvalue().encode()
    return (b"\xef\xbb\xbf" if rng.random() < 0.3 else b"") + (
        content.rstrip(b"\r\n") if rng.random() < 0.3 else content
    )


@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
def test_rows_are_those_that_csv_reads(tmp_path, suffix):
    rng = np.random.default_rng(5)
    n_rows = 0
    for number in range(300):
        path = tmp_path / f"{number}{suffix}"
        path.write_bytes(random_table(rng, suffix == ".tsv"))
        columns, rows = as_csv_reads_it(path)
        table = read_table(path)
        assert table.columns == columns
        assert list(table.rows) == rows
        assert len(table.rows) == len(rows)
        for name in columns:
            assert table.values(name) == tuple(cells[name] for _, cells in rows)
        n_rows += len(rows)
    assert n_rows > 2000


@pytest.mark.parametrize(
    ("limit", "value", "content", "message"),
    [
        ("MAX_TABLE_BYTES", 20, "name\n" + "G1\n" * 10, r"has 35 bytes; at most 20 are read, because"),
        ("MAX_RECORD_BYTES", 20, 'name\n"' + "G1\n" * 10, r"row of more than 20 bytes up to line 8"),
        (
            "CELLS_A_ROW",
            1,
            "a,b\n" + "1,2\n" * 10,
            r"more than 10 values up to line 7; no more are read, because",
        ),
        ("MAX_TABLE_COLUMNS", 3, "a,b,c,d\n", "more than 3 values in line 1"),
        (
            "MAX_TABLE_COLUMNS",
            3,
            "a\n" + "1\n" * 11,
            "more than 10 lines below its first; no more are read, because",
        ),
    ],
)
def test_limits_of_tables_are_in_the_message(tmp_path, monkeypatch, limit, value, content, message):
    path = tmp_path / "a.csv"
    path.write_text(content)
    monkeypatch.setattr(tables, limit, value)
    with pytest.raises(RecordingError, match=rf"table 'a.csv' .*{message}"):
        read_table(path, most_rows=10)
    path.write_text("a\n" + "1\n" * 10)  # as many lines as are allowed
    if limit != "MAX_TABLE_BYTES":
        assert len(read_table(path, most_rows=10).rows) == 10


# --- contacts


def test_ranges_of_contacts_do_not_unfold_without_end(tmp_path):
    with pytest.raises(LabelError, match="more than 20,000 contacts"):
        labels.parse_contacts("A1-512, " * 100)
    with pytest.raises(LabelError, match="20,001 letters; at most 20,000 are read"):
        labels.parse_contacts("x" * 20_001)
    path = tmp_path / "sheet.csv"
    path.write_text("subject,soz\n" + "".join(f"p{k},A1-512\n" for k in range(1100)))
    with pytest.raises(LabelError, match=r"'sheet.csv' names more than 500,000 contacts.* up to line 978"):
        labels.read_clinical_sheet(path)
    path.write_text(f"subject,soz\np1,{'x' * 20_001}\n")
    with pytest.raises(LabelError, match=r"'sheet.csv', line 2: a cell of contacts has 20,001 letters"):
        labels.read_clinical_sheet(path)


@pytest.mark.parametrize(
    "text", [" " * 19_990 + "A1", "." * 19_990 + "A1", "A1" + " - " * 6_000, "((" * 9_000, "A " * 9_000]
)
def test_long_cells_of_contacts_take_no_time(text):
    labels.parse_contacts(text)  # patterns that look through a run again for each of its signs took minutes


# --- JSON and TOML


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": NaN}', "NaN"),
        ('{"a": [-Infinity]}', "-Infinity"),
        ('{"a": 1e999}', "a number is too large"),
        ('{"a": ' + "9" * 101 + "}", "a number is too large"),
        ("[" * 65 + "]" * 65, "nested more than 64 deep"),
        ("[" * 100_000, "nested more than 64 deep"),
        ('{"a": ', "line 1"),
        ("", "line 1"),
        ("\ud800", "UTF-8"),
    ],
)
def test_json_that_would_fail_later_is_refused_now(tmp_path, text, message):
    (tmp_path / "a.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match=rf"'a.json' .*{message}"):
        bounded.read_json(tmp_path / "a.json")


def test_json_that_is_sound_is_read_as_ever(tmp_path):
    value = {"a": [1, 2.5, -3e-7, 10**60, None, True, "\ud800ü\U0001f9e0"], "b": {"": [[[[[]]]]]}}
    (tmp_path / "a.json").write_text(json.dumps(value))
    assert bounded.read_json(tmp_path / "a.json") == value
    (tmp_path / "a.json").write_text("\ufeff[1]", "utf-8")
    assert bounded.read_json(tmp_path / "a.json") == [1]


def random_json(rng, depth=0):
    kind = rng.integers(9 if depth < 5 else 6)
    if kind < 6:
        return [None, int(rng.integers(10**9)), float(rng.normal()), "ab", "ü" * int(rng.integers(9)), ""][
            kind
        ]
    if kind < 8:
        return [random_json(rng, depth + 1) for _ in range(rng.integers(0, 6))]
    return {f"k{rng.integers(10**6)}": random_json(rng, depth + 1) for _ in range(rng.integers(0, 6))}


def test_the_estimate_of_memory_is_never_exceeded():
    rng = np.random.default_rng(3)
    texts = [json.dumps([random_json(rng) for _ in range(300)], ensure_ascii=bool(k % 2)) for k in range(20)]
    texts += ["[" + "[]," * 30_000 + "0]", "[" + "{}," * 30_000 + "0]", "[" + '{"a":0},' * 20_000 + "0]"]
    texts += ["[" + "[1]," * 30_000 + "0]", "[" + "999," * 30_000 + "0]", "[" + '"ab",' * 30_000 + "0]"]
    texts += [
        "{" + "".join(f'"{k}":0,' for k in range(20_000)) + '"":0}',
        '["' + "\U0001f9e0" * 50_000 + '"]',
    ]
    texts += ["[" * 60 + "1.5," * 30_000 + "0" + "]" * 60, "[" + '[{"a":{}}],' * 20_000 + "0]"]
    for text in texts:
        content = text.encode()
        tracemalloc.start()
        bounded.json_of(content, "a text")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak + len(content) < bounded.json_memory(content), text[:50]


def test_what_would_take_too_much_memory_is_refused_with_the_numbers(tmp_path):
    (tmp_path / "a.json").write_text("[" + "[]," * 3_000_000 + "0]")
    with pytest.raises(DataError, match=r"9,000,003 bytes of JSON .* up to 465 MB of memory; at most 300 MB"):
        bounded.read_json(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "9" * 30, "larger than 64 bits"),
        ("a = " + "9" * 5000, "not valid TOML"),
        ("a = " + "[" * 99, "64 deep"),
    ],
)
def test_toml_that_would_fail_later_is_refused_now(text, message):
    text += "]" * text.count("[")
    with pytest.raises(ConfigError, match=message):
        bounded.toml_of(text, "the study")


# --- Parquet


@pytest.mark.parametrize(
    "how", [{}, {"use_dictionary": False}, {"compression": "zstd", "data_page_version": "2.0"}]
)
def test_parquet_is_read_as_pandas_reads_it(tmp_path, monkeypatch, how):
    rng = np.random.default_rng(2)
    n = 5_000
    table = pa.table(
        {
            "name": [f"s{k}" if k % 7 else None for k in range(n)],
            "kind": [["a", "b"][k % 2] for k in range(n)],
            "large": pa.array([f"x{k % 50}" for k in range(n)], pa.large_string()),
            "value": rng.normal(size=n),
            "some": [None if k % 3 else float(k) for k in range(n)],
            "place": np.arange(n),
            "flag": rng.random(n) < 0.5,
            "category": pa.array(["x", "y"] * (n // 2)).dictionary_encode(),
            "small": np.arange(n, dtype=np.int32),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1_000, **how)
    empty = table.slice(0, 0).drop_columns("category")
    pq.write_table(empty, tmp_path / "b.parquet")
    for large in (storage.LARGE_TABLE, 0):  # read column by column from so many bytes on
        monkeypatch.setattr(storage, "LARGE_TABLE", large)
        for name, expected in (("a.parquet", table), ("b.parquet", empty)):
            pd.testing.assert_frame_equal(storage.read_parquet(tmp_path / name), expected.to_pandas())


# --- evidence of long recordings


def test_of_long_evidence_only_what_stands_before_its_tables_is_read(tmp_path, monkeypatch):
    evidence = explain(noise())
    folder = evidence.save(tmp_path, top=None, figures=False)
    whole = SeriesEvidence.load(folder)
    size = (folder / "evidence.json").stat().st_size
    monkeypatch.setattr(reading, "MAX_WHOLE_BYTES", size // 2)
    assert str(SeriesEvidence.load(folder)) == str(whole) == str(evidence)
    monkeypatch.setattr(reading, "MAX_WHOLE_BYTES", 2**25)
    monkeypatch.setattr(reading, "MAX_JSON_MEMORY", size)
    assert str(SeriesEvidence.load(folder)) == str(whole)
    monkeypatch.setattr(reading, "MAX_HEAD_BYTES", 100)
    with pytest.raises(DataError, match=rf"has {size:,} bytes, and no tables begin in its first 100"):
        SeriesEvidence.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ["no", "no"]}, "each class is there once"),
        ({"classes": "no"}, "classes is a list"),
        ({"predicted": "perhaps"}, "one of the classes"),
        ({"series_probability": [0.5]}, "a number for each class"),
        ({"series_probability": ["0.5", "0.5"]}, "series_probability is a number"),
        ({"rate": 0}, "above 0"),
        ({"rate": True}, "rate is a number"),
        ({"effective_windows": None}, "effective_windows is a number"),
        ({"settings": []}, "settings are an object"),
        ({"warnings": [1]}, "warnings are texts"),
        ({"name": 5}, "the name is a text"),
        ({"calibrated_probability": [0.5, 0.5]}, "settings tell the calibration"),
        ({"prediction_set": ["else"]}, "classes alone"),
        ({"interval": {"low": [0, 0], "high": [1, 1], "level": 0.95}}, "names its method"),
    ],
)
def test_evidence_that_was_changed_is_refused_when_it_is_loaded(tmp_path, change, message):
    folder = explain(noise()).save(tmp_path, figures=False)
    head = json.loads((folder / "evidence.json").read_text())
    (folder / "evidence.json").write_text(json.dumps(head | change))
    with pytest.raises(DataError, match=rf"'noise' cannot be read as evidence .*{message}"):
        SeriesEvidence.load(folder)


def test_evidence_without_a_column_that_is_shown_is_refused(tmp_path):
    folder = explain(noise()).save(tmp_path, figures=False)
    windows = pd.read_parquet(folder / "windows.parquet")
    for name in ("contribution_yes", "weight", "flat"):
        windows.drop(columns=name).to_parquet(folder / "windows.parquet")
        with pytest.raises(DataError, match=name):
            SeriesEvidence.load(folder)


# --- rows of tables, for readers with rules of their own


def test_records_are_rows_of_cells_with_the_line_that_each_ends_in():
    text = b'path,label\r\n\r\n"a,b",ill\r\n"two\nlines",well\r\n'
    rows = [(1, ["path", "label"]), (3, ["a,b", "ill"]), (5, ["two\nlines", "well"])]
    assert list(tables.records(text, "x", 10)) == rows
    rows = [(1, ["name", "note"]), (2, ["G1", '"open'])]
    assert list(tables.records(b'name\tnote\nG1\t"open\n', "x", 10, tabs=True)) == rows
    with pytest.raises(tables.MalformedCsvError, match="expected after"):
        list(tables.records(b'a,"b"c\n', "x", 10))
    with pytest.raises(tables.MalformedCsvError, match="larger than field limit"):
        tables.cells_of("a" * 200_000)
    assert tables.cells_of('time,"C3, left"') == ["time", "C3, left"]
    assert tables.cells_of("") == []


# --- JSON of a model


def test_json_of_a_model_is_read_within_the_same_bounds_and_names_what_to_do():
    assert bounded_json(b'{"a": [1, NaN]}', "config.json")["a"][0] == 1
    assert bounded_json(b'{"a": 1, "a": 2}', "config.json") == {"a": 2}  # the seal tells that it was changed
    for content, fault in (
        (b"[" * 70 + b"]" * 70, "RecursionError"),
        (b'{"a": }', "at position 6"),
        (b'"\xff"', "UnicodeDecodeError"),
    ):
        message = rf"^config\.json cannot be read: it is not valid JSON \({fault}\)\. Refit\.$"
        with pytest.raises(ModelError, match=message):
            bounded_json(content, "config.json", advice="Refit.")
    with pytest.raises(ModelError, match=r"MB of memory; at most .* Refit\.$"):
        bounded_json(b'"' + b":" * 20_000_000 + b'"', "config.json", advice="Refit.")
