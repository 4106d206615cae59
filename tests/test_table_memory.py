"""No table, sheet, split, evidence, report or study takes 500 MB to be read or refused, whatever is in it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from raxss._core.bounded import MAX_TOML_BYTES
from raxss.benchmark.pages.files import MAX_CSV_BYTES
from raxss.cli.audit_split import MAX_NAMES_BYTES
from raxss.data.files import MAX_MANIFEST_BYTES
from raxss.data.inspection.sidecars import JSON_BYTES
from raxss.data.splits import MAX_SPLIT_BYTES
from raxss.data.tables import MAX_TABLE_BYTES
from worst_tables import READERS

MOST_MB = 500
MOST_SECONDS = 120  # of a machine that does much else
LARGE = 50_000_000

MOST_BYTES = {
    name: MAX_TABLE_BYTES for name, about in READERS.items() if about.file.endswith((".tsv", ".csv"))
} | {
    "manifest": MAX_MANIFEST_BYTES,
    "manifest, files missing": MAX_MANIFEST_BYTES,
    "results of a study": MAX_CSV_BYTES,
    "names for audit-split": MAX_NAMES_BYTES,
    "split": MAX_SPLIT_BYTES,
    "sidecar": JSON_BYTES,
    "study": MAX_TOML_BYTES,
    "settings": MAX_TOML_BYTES,
}

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")

FAST = [  # one of each kind of reader and of each kind of worst shape
    "events.tsv, marks:shortest rows",
    "events.tsv, onset:rows that differ",
    "events.tsv, inspected:separators",
    "channels.tsv:many columns",
    "channels.tsv, inspected:one line",
    "participants.tsv:newlines",
    "scans.tsv:rows of two characters",
    "label table:quoted cells over lines",
    "clinical sheet, csv:quote over lines",
    "manifest, files missing:shortest rows",
    "results of a study:rows that differ",
    "names for audit-split:zero bytes",
    "split:empty lists",
    "split:entries that differ",
    "sidecar:nested lists",
    "evidence.json:objects of one",
    "read_parquet:equal numbers",
    "read_parquet:a long text in many rows",
    "read_parquet:pages larger than stated",
    "read_parquet:a list of many",
    "report:empty objects",
    "prepared.json:keys",
    "verdict.json:texts",
    "study:tables",
    "clinical sheet, xlsx:far cells",
    "clinical sheet, xlsx:last cell of all",
    "clinical sheet, xlsx:styles",
    "clinical sheet, xlsx:shared texts",
    "clinical sheet, xlsx:a long text in many cells",
    "clinical sheet, xlsx:contacts in ranges",
    "clinical sheet, xlsx:many sheets",
    "clinical sheet, xlsx:entities",
    "clinical sheet, xlsx:states less than it unpacks to",
    "clinical sheet, xlsx:many parts",
    "clinical sheet, xlsx:a dictionary of 4 GB",
]


def measured(n_bytes, names, timeout):
    """What each reader took for each shape, in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("worst_tables.py")), str(n_bytes), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ})
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return found


def check(found):
    assert found
    for item in found:
        where = f"{item['reader']}, {item['shape']}"
        assert item.get("outcome") in ("read", "refused"), (where, item)
        assert item["mb"] < MOST_MB, (where, item)
        assert item["seconds"] < MOST_SECONDS, (where, item)
        if item["outcome"] == "refused" and item["bytes"] > MOST_BYTES.get(item["reader"], 10**9):
            assert re.search(r"at most [\d,]+ are read, because", item["message"]), (where, item["message"])


def test_one_worst_case_of_each_kind_is_read_or_refused_in_little_memory():
    found = measured(4_000_000, FAST, 500)
    assert [f"{item['reader']}:{item['shape']}" for item in found] == FAST
    check(found)
    outcome = {f"{item['reader']}:{item['shape']}": item for item in found}
    for name in ("clinical sheet, xlsx:far cells", "study:tables", "channels.tsv:many columns"):
        assert re.search(r"more than [\d,]+|at most [\d,]+", outcome[name]["message"]), outcome[name]
    assert outcome["events.tsv, onset:rows that differ"]["outcome"] == "read"
    assert outcome["clinical sheet, xlsx:last cell of all"]["outcome"] == "read"


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("reader", "n_bytes"),
    [
        ("events.tsv, onset", LARGE),
        ("manifest", LARGE),
        ("split", LARGE),
        ("evidence.json", LARGE),
        ("read_parquet", LARGE),
        ("clinical sheet, xlsx", LARGE),
        ("events.tsv, onset", MAX_TABLE_BYTES - 1000),  # just not too large, and so are the next
        ("sidecar", JSON_BYTES - 1000),
        ("study", MAX_TOML_BYTES - 500),
        ("settings", MAX_TOML_BYTES - 500),
    ],
)
def test_every_worst_shape_of_a_large_file(reader, n_bytes):
    check(measured(n_bytes, [reader], 3000))
