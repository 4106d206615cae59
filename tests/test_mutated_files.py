"""A damaged table, split, study, evidence or report is read, or refused with an error of raxss; nothing else."""

import hashlib
import io
import json
import os
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import openpyxl
import pytest

from mutants import mutated_bytes, mutated_json, mutated_table, mutated_toml
from raxss import RAxSSClassifier, Series
from raxss._core.atomic import canonical_hash
from raxss._core.store import seal_of, sealed
from raxss.benchmark import packed
from raxss.benchmark.result import FORMAT as RUN_FORMAT
from raxss.benchmark.result import RunResult
from raxss.benchmark.study import Study
from raxss.cli.verify import recording_meant, refuse_other_model
from raxss.data.bids_tree import Tree
from raxss.data.files import read_manifest
from raxss.data.labels import read_clinical_sheet, read_events, read_label_table
from raxss.data.prepare import folder as prepared
from raxss.data.prepare import read_prepared
from raxss.data.splits import Split, split_series
from raxss.errors import DataError, RAxSSError, RecordingError
from raxss.estimator import batch
from raxss.estimator.config import Config
from raxss.explain import Report, SeriesEvidence
from raxss.explain.export.report.verifying import verify_report
from raxss.explain.faithfulness.marks import read_events as read_marks
from raxss.explain.faithfulness.verdict import verdict_for_report
from toys import SMALL, waves
from worst_tables import report_page

N_MUTANTS = int(os.environ.get("RAXSS_MUTANTS", "250"))


def survives(path, mutate, use, share=0.2, write=Path.write_bytes):
    """Every mutant, written to ``path``, is used or refused; at least a share is refused, or they are harmless."""
    rng = np.random.default_rng(zlib.crc32(path.name.encode()))
    n_refused = longest = 0
    for number in range(N_MUTANTS):
        content = mutate(rng)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                write(path, content)
                use(path)
        except RAxSSError as error:
            n_refused += 1
            longest = max(longest, len(str(error)))
        except Exception as error:
            found = f"mutant {number} of {path.name}: {type(error).__name__}: {content[:3000]!r}"
            raise AssertionError(found) from error
    assert n_refused > share * N_MUTANTS
    assert longest <= 20_000  # letters of a message


@pytest.fixture(scope="module")
def model():
    return RAxSSClassifier(**SMALL).fit(waves(np.random.default_rng(1)))


@pytest.fixture(scope="module")
def night():
    rng = np.random.default_rng(4)
    return [
        Series(item, 10.0, name=f"night:C{k}", origin={"recording": "night", "channel": f"C{k}"})
        for k, item in enumerate(np.cumsum(rng.normal(size=(2, 300)), axis=1))
    ]


# --- JSON


@pytest.fixture(scope="module")
def kept_split():
    collection = waves(np.random.default_rng(1))
    return split_series(collection, seed=0).to_json(collection.names), collection.names


def resealed(content, seal=canonical_hash):
    """JSON with the seal of its content, so that the values are looked at."""
    try:
        value = json.loads(content)
        return json.dumps({**value, "seal": seal({k: v for k, v in value.items() if k != "seal"})}).encode()
    except (ValueError, TypeError, RecursionError):
        return content


RESULT = RunResult(
    dataset="toy", system="sss", seed=1, config_hash="ab", classes=("a", "b"), positive="b", names=("s1", "s2"),
    labels=("a", "b"), groups=("g1", "g2"), probabilities=np.array([[0.9, 0.1], [0.2, 0.8]]),
)  # fmt: skip
PART = {"format": batch.FORMAT, "key": "k", "rows": [{"name": "a", "scores": [0.1, 0.9]}], "warnings": ["w"]}
VERDICTS = {
    "verdicts": {"m": {"verdict": "faithful", "why": "all hold", "said": [["yes", "It rests"]]}},
    "about": {"m": {"weights_sha256": "5f3c"}},
}
SIDECAR = {"SamplingFrequency": 1000, "TaskName": "rest", "Levels": {"a": ["b", 1.5]}}


@pytest.mark.parametrize(
    ("name", "whole", "use"),
    [
        ("cell.json", sealed({"format": RUN_FORMAT, **RESULT.to_json()}), lambda path: str(RunResult.read(path))),
        ("part.json", PART | {"seal": ""}, lambda path: len(batch._parts(path.parent).require("part", "k"))),
        ("verdict.json", VERDICTS, lambda path: str(
            verdict_for_report(path.parent, weights_sha256="5f3c", beside=path.parent))),
        # any object is a sidecar: only what is no JSON, too deep or no object is refused
        ("ieeg.json", SIDECAR, lambda path: str(Tree(path.parent).json(path))),
    ],
)  # fmt: skip
def test_json(tmp_path, name, whole, use):
    whole = json.loads(json.dumps(whole))
    close = resealed if "seal" in whole else bytes
    survives(tmp_path / name, lambda rng: close(mutated_json(whole, rng)), use, share=0.1)


def test_splits(tmp_path, kept_split):
    value, names = kept_split

    def use(path):
        split = Split.read(path, names)
        str(split), split.to_json(names)

    survives(tmp_path / "split.json", lambda rng: mutated_json(value, rng), use)


@pytest.mark.parametrize("token", ["1e999", "NaN", '"5"', "true", "1.5", "9" * 200, "null"])
def test_a_seed_that_is_no_whole_number_is_refused_by_name(tmp_path, kept_split, token):
    value, names = kept_split
    path = tmp_path / "split.json"
    path.write_text(json.dumps({**value, "seed": "@"}).replace('"@"', token))
    with pytest.raises(RecordingError, match=r"split file 'split.json'"):
        Split.read(path, names)
    with pytest.raises(DataError, match="seed is a float"):  # of a value that was not read from a file
        Split.from_json({**value, "seed": float("inf")}, names)


# --- evidence and reports


def use_evidence(path):
    evidence = SeriesEvidence.load(path.parent)
    str(evidence), evidence.to_json(), evidence.to_json(top=None), evidence.top_windows()
    str(evidence.windows), str(evidence.neighbors), evidence.leaderboards([0, 1]), evidence.probability_of()
    evidence.save(path.parents[1] / "again", figures=False, overwrite=True)


def test_evidence(tmp_path, model, night):
    folder = next(iter(model.explain_each(night[:1]))).save(tmp_path, figures=False)
    head = json.loads((folder / "evidence.json").read_text())
    short = {**head, "windows": head["windows"][:2], "neighbors": head["neighbors"][:2]}
    (folder / "evidence.json").write_text(json.dumps(short))
    use_evidence(folder / "evidence.json")
    survives(folder / "evidence.json", lambda rng: mutated_json(short, rng), use_evidence)


@pytest.mark.parametrize("name", ["windows", "neighbors"])
def test_tables_of_evidence(tmp_path, model, night, name):
    folder = next(iter(model.explain_each(night[:1]))).save(tmp_path, figures=False)
    path = folder / f"{name}.parquet"
    whole = path.read_bytes()
    survives(path, lambda rng: mutated_bytes(whole, rng), use_evidence)


def test_reports(tmp_path, model, night):
    report = model.report(night)
    whole, again = json.loads(json.dumps(report.contents)), model.report(night)

    def use(path):
        found = Report.read(path)
        str(found), verify_report(found, again), found._repr_html_()
        found.save(tmp_path / "again.html", overwrite=True)
        refuse_other_model(found, again.contents["model"], "a", "b")
        recording_meant(found, ["night"], "a")

    def compact(rng):
        content = mutated_json(whole, rng)
        try:  # as raxss writes it, so that the values are looked at
            return json.dumps(json.loads(content), separators=(",", ":"), allow_nan=False).encode()
        except (ValueError, RecursionError):
            return content

    survives(tmp_path / "report.html", compact, use, write=report_page)


def test_pages_of_reports(tmp_path, model, night):
    path = model.report(night).save(tmp_path / "report.html")
    whole = path.read_bytes()
    survives(path, lambda rng: mutated_bytes(whole, rng), lambda _: str(Report.read(path)))


# --- packed results and prepared folders


def test_packed_results(tmp_path):
    place = tmp_path / "cells" / "toy" / "sss-1-ab.json"
    RESULT.write(place)
    path = packed.pack_runs(tmp_path)
    whole = path.read_bytes()

    def use(_):
        packed._index_of.cache_clear()  # two files of one size may be written in one tick of the clock
        packed.facts_of(place)
        found = packed.read_run(place, RunResult)
        assert found.to_json() == RESULT.to_json()  # what its seal lets pass is what was written

    survives(path, lambda rng: mutated_bytes(whole, rng), use)


def use_prepared(path):
    found = read_prepared(path.parent)
    str(found), found.names, found.collection_hash


def test_prepared_folders(prepared_folder):
    path = prepared_folder / prepared.FACTS
    whole = json.loads(path.read_text())
    survives(path, lambda rng: resealed(mutated_json(whole, rng), seal_of), use_prepared)


def test_tables_of_prepared_folders(prepared_folder):
    table = (prepared_folder / prepared.TABLE).read_bytes()
    whole = json.loads((prepared_folder / prepared.FACTS).read_text())

    def write(path, content):
        path.write_bytes(content)
        facts = json.loads(json.dumps(whole))
        digest = hashlib.sha256(content).hexdigest()
        facts["outputs"][prepared.TABLE] = {"sha256": digest, "n_bytes": len(content)}
        (prepared_folder / prepared.FACTS).write_bytes(resealed(json.dumps(facts), seal_of))

    path = prepared_folder / prepared.TABLE
    survives(path, lambda rng: mutated_bytes(table, rng), use_prepared, write=write)


@pytest.fixture
def prepared_folder(tmp_path):
    from raxss.data.manifests import plan_manifest
    from raxss.data.prepare.preparing import prepare
    from raxss.data.prepare.preprocessing import Preparation

    rng = np.random.default_rng(0)
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", samples=rng.normal(size=(1, 200)), rate=10.0)
    (tmp_path / "all.csv").write_text("path,label,group\na.npz,x,p1\nb.npz,y,p2\n")
    prepare(plan_manifest(tmp_path / "all.csv"), tmp_path / "out", preparation=Preparation())
    return tmp_path / "out"


# --- tables


MANIFEST = "path,label,group,rate,channel,patient\na.npz,x,p1,10,0,p1\na.npz,y,p1,10,1,p1\nb.npz,x,p2,,,p2\n"
LABELS = "recording,channel,label,patient,centre\nr1,A1,soz,p1,nih\nr1,A2,other,p1,nih\nr2,B1,soz,p2,jh\n"
CLINICAL = (
    "dataset_id,subject,SOZ Contacts,Engel Score,center\nx1,p1,AD1-4; ATT1,1.0,nih\nx2,p2,PD (not 3),-1,jh\n"
)
EVENTS = (
    "onset\tduration\ttrial_type\tchannel\n0.5\t1\tonset_A1\tA1\n1.5\t0.1\tripple_A2-3\tA2\nn/a\t\tx_B1\tB1\n"
)


@pytest.mark.parametrize(
    ("name", "text", "separator", "read"),
    [
        ("all.csv", MANIFEST, ",", read_manifest),
        ("labels.csv", LABELS, ",", read_label_table),
        ("labels.tsv", LABELS.replace(",", "\t"), "\t", read_label_table),
        ("sheet.csv", CLINICAL, ",", lambda path: read_clinical_sheet(path, ["p1", "p2"])),
        ("events.tsv", EVENTS, "\t", read_marks),
        ("seizure_events.tsv", EVENTS, "\t", read_events),
    ],
)
def test_tables(tmp_path, name, text, separator, read):
    for file in "ab":
        np.savez(tmp_path / f"{file}.npz", samples=np.zeros((2, 50)), rate=10.0)
    path = tmp_path / name
    path.write_text(text)
    str(read(path))
    survives(path, lambda rng: mutated_table(text, separator, rng), lambda path: str(read(path)))


def test_worksheets(tmp_path):
    book = openpyxl.Workbook()
    for row in [line.split(",") for line in CLINICAL.splitlines()]:
        book.active.append(row)
    path = tmp_path / "sheet.xlsx"
    book.save(path)
    whole = path.read_bytes()

    def use(path):
        str(read_clinical_sheet(path))

    survives(path, lambda rng: mutated_bytes(whole, rng), use)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}

    def part_changed(rng):
        name = list(parts)[rng.integers(len(parts))]
        changed = io.BytesIO()
        with zipfile.ZipFile(changed, "w") as archive:
            for other, content in parts.items():
                archive.writestr(other, mutated_bytes(content, rng) if other == name else content)
        return changed.getvalue()

    survives(path, part_changed, use)


# --- studies and settings


STUDY = """name = "toy"
systems = ["sss", "mine"]
seeds = [1, 2]
n_threads = 1
[dataset]
data = "synthetic"
positive = "motif"
[windows]
window_length = 128
stride = 64
[preparation]
rate = 100.0
[split]
by = "channel"
fractions = [0.7, 0.1, 0.2]
balance = "none"
[training]
max_epochs = 3
batch_size = 16
[system.mine]
base = "sss"
backbone = "dlinear"
window_length = 64
"""
SETTINGS = """preset = "paper"
[windows]
window_length = 128
stride = 64
[retrieval]
measure = "cosine"
n_neighbors = 5
[training]
max_epochs = 3
learning_rate = 0.001
[aggregation]
temperature = 0.1
"""


@pytest.mark.parametrize(
    ("name", "text", "read"), [("study.toml", STUDY, Study.read), ("mine.toml", SETTINGS, Config.from_file)]
)
def test_toml(tmp_path, name, text, read):
    def use(path):
        str(read(path))

    survives(tmp_path / name, lambda rng: mutated_toml(text, rng), use)
