"""Nothing that headers and sidecars say about people gets out: not printed, not logged, not written.

Words that occur nowhere else are planted in every text field that the formats have; then recordings are checked,
read, learnt from, scored and explained, whole and damaged, and everything that came out is searched for them.
"""

import functools
import itertools
import json
import os
import subprocess
import sys

import matplotlib
import numpy as np
import pyarrow.parquet as pq
import pytest

from corpus import edf
from corpus.brainvision import NEW_SEGMENT, Triplet
from corpus.wfdb import Record

LETTERS = np.array(list("bcdfghjklmnpqrstvwxz"))
N_CANARIES = 20
FAST = ["--window-length", "32", "--stride", "8", "--max-epochs", "1", "--device", "cpu"]
# One process for all: each command starts torch anew otherwise.
RUN_ALL = """
import json, sys, traceback
from raxss.cli import main
for arguments in json.loads(sys.stdin.read()):
    sys.argv = ["raxss", *arguments]
    print("$", arguments[0], flush=True)  # not what it is given: folders of inputs have canaries in their names
    try:
        main()
    except SystemExit as end:
        print(end.code if isinstance(end.code, str) else "", file=sys.stderr)
        print("exit", 1 if isinstance(end.code, str) else end.code or 0, flush=True)
    try:  # and as a user of Python sees an error
        if arguments[0] == "predict":
            from raxss.data.files import read_inputs
            read_inputs([arguments[2]])
    except Exception:
        traceback.print_exc()
from raxss import RAxSSClassifier
from raxss.explain import mne_annotations
from raxss.data.files import read_inputs
evidence = RAxSSClassifier.from_pretrained("out/model", device="cpu").explain(list(read_inputs(["rec/r0.edf"])))
mne_annotations(evidence).save("out/marks.csv")
"""
BREAKS = """
import os
from torch import nn
from raxss.method.backbones import register_backbone

@register_backbone("breaks")
class Breaks(nn.Module):
    def __init__(self, n_variates, window_length, n_outputs):
        super().__init__()
        raise RuntimeError(f"cannot read {os.path.abspath(__file__)}")
"""
STUDY = """
name = "A study that fails"
systems = ["broken", "all-positive"]
seeds = [1]
extensions = ["breaks.py"]
[dataset]
data = "../out/prep"
[windows]
window_length = 32
stride = 8
[system.broken]
base = "sss"
backbone = "breaks"
"""


@pytest.fixture(scope="module")
def words():
    """Canaries: short enough to be seen when a message quotes eight letters of a field that slipped."""
    rng = np.random.default_rng(69421)
    words = ["".join(rng.choice(LETTERS, 6)) for _ in range(N_CANARIES)]
    assert len(set(words)) == N_CANARIES
    return words


def waves(n_channels, n_samples=240, seed=1):
    """Slow and fast oscillations in turn, as stored integers."""
    time, rng = np.arange(n_samples), np.random.default_rng(seed)
    speeds = [(0.15, 0.5)[place % 2] for place in range(n_channels)]
    noise = rng.normal(scale=50, size=(n_channels, n_samples))
    return np.array([300 * np.sin(time * speed) for speed in speeds] + noise).astype(int)


def with_canaries_in_edf(path, words, seed=1):
    """Patient, recording, date, reserved, transducer, prefilter and annotations of EDF or BDF."""
    data = waves(2, seed=seed).reshape(2, 24, 10)
    signals = [edf.Signal(f"C{place}", n=10, values=rows) for place, rows in enumerate(data)]
    onsets = [f"+{second}" for second in range(24)]
    file = edf.plus(f"{path.suffix[1:].upper()}+C", onsets, signals=signals, n_records=24)
    content, n_signals = bytearray(file.bytes()), 3
    patient = f"{words[0]} F 02-MAY-1951 {words[1]}_{words[2]} {words[3]}"
    recording = f"Startdate 17-MAY-1993 {words[4]} {words[5]} {words[6]}"
    content[8:88] = patient.encode().ljust(80)
    content[88:168] = recording.encode().ljust(80)
    content[168:176] = b"17.05.93"
    content[197:236] = f" {words[7]}{words[7]}{words[7]}{words[7]}".encode().ljust(39)
    transducers = 256 + 16 * n_signals
    prefilters = transducers + (80 + 8 * 5) * n_signals
    reserved = prefilters + (80 + 8) * n_signals
    for place in range(n_signals):
        for start, width, text in (
            (transducers, 80, words[8] * 13),
            (prefilters, 80, words[9] * 13),
            (reserved, 32, words[10]),
        ):
            content[start + width * place : start + width * (place + 1)] = text.encode().ljust(width)
    text = f"+3\x14{words[11]} {words[12]}\x14\x00".encode()
    place = content.index(b"+3\x14\x14\x00") + 5
    content[place : place + len(text)] = text
    path.write_bytes(content)
    return path


def with_canaries_in_brainvision(path, words):
    """Comments, fields nobody knows, references, markers and their dates."""
    Triplet(
        name=path.stem,
        values=waves(2).T,
        channels=(f"C0,{words[13]},1,uV", f"C1,{words[13]},1,uV"),
        common={"SamplingInterval": "100000"},
        markers=(NEW_SEGMENT, f"Comment,{words[14]},5,1,0", f"{words[15]},x,7,1,0"),
    ).write(path.parent)
    text = path.read_text().replace("[Binary Infos]", f"; {words[0]}\nOperator={words[16]}\n[Binary Infos]")
    path.write_text(f"{text}{words[1]}\nImpedance of {words[2]}: 5 kOhm\n")
    markers = path.with_suffix(".vmrk")
    markers.write_text(f"{markers.read_text()}\n; {words[17]}\n[Marker User Infos]\nDoctor={words[3]}\n")
    return path


def with_canaries_in_wfdb(path, words):
    """Comments, time and date."""
    values = waves(2).T
    record = Record(path.stem, "10", len(values), gain="200/mV", signals=("S0", "S1"), values=values)
    header = record.write(path.parent)
    lines = header.read_text().splitlines()
    lines[0] += " 10:11:12 17/05/1993"
    header.write_text(
        "\n".join([f"# {words[4]}", *lines, f"#Age: 74 Name: {words[18]}", f"# <dx> {words[19]}"]) + "\n"
    )
    return header


def bids_with_canaries(root, words):
    """Four patients in a tree whose every table, sidecar and parent folder says who somebody is."""
    root.mkdir(parents=True)
    about = {"Name": words[5], "BIDSVersion": "1.8.0", "Authors": [words[6]], "Acknowledgements": words[7]}
    (root / "dataset_description.json").write_text(json.dumps(about))
    (root / "README").write_text(f"Recordings of {words[8]}\n")
    lines = ["participant_id\tname\tbirth_date\tsite"]
    for number in range(1, 5):
        patient = f"sub-0{number}"
        lines.append(f"{patient}\t{words[9]} {words[10]}\t1951-05-02\tA")
        folder = root / patient / "ieeg"
        folder.mkdir(parents=True)
        base = f"{patient}_task-rest"
        with_canaries_in_edf(folder / f"{base}_ieeg.edf", words, seed=number)
        rows = [
            f"C{place}\tECOG\tuV\tn/a\tn/a\tgood\t{1 - place}\t{words[11]}\t{words[12]}\t{words[13]}"
            for place in (0, 1)
        ]
        head = (
            "name\ttype\tunits\tlow_cutoff\thigh_cutoff\tstatus\tsoz\tstatus_description\tdescription\tdoctor"
        )
        (folder / f"{base}_channels.tsv").write_text("\n".join([head, *rows]) + "\n")
        (folder / f"{base}_events.tsv").write_text(f"onset\tduration\ttrial_type\n1.0\t0.0\t{words[14]}\n")
        sidecar = {
            "TaskName": "rest",
            "SamplingFrequency": 10,
            "InstitutionName": words[15],
            "Name": words[16],
        }
        (folder / f"{base}_ieeg.json").write_text(json.dumps(sidecar))
        scans = f"filename\tacq_time\toriginal\nieeg/{base}_ieeg.edf\t1993-05-17T10:11:12\t{words[17]}.edf\n"
        (root / patient / f"{patient}_scans.tsv").write_text(scans)
    (root / "participants.tsv").write_text("\n".join(lines) + "\n")
    return root


def damaged(path, number):
    """A copy that is cut off, or whose fields slipped by some bytes, or that has text where numbers belong."""
    content, copy = path.read_bytes(), path.with_name(f"bad{number}-{path.stem}{path.suffix}")
    if number == 0:
        content = content[: len(content) * 2 // 3]
    elif number < 5:
        start = (0, 20, 100, 300, 600)[number]
        content = content[:start] + content[start + (0, 20, 12, 30, 70)[number] :]
    else:
        content = content.replace(b"17", b"1x", 1).replace(b"16", b"1y", 2)
    copy.write_bytes(content)
    return copy


@pytest.fixture(scope="module")
def run(tmp_path_factory, words):
    """Folder, and what was printed, of a whole run over recordings with canaries."""
    folder = tmp_path_factory.mktemp("clinic")
    for name in ("home", "scratch", "cache", "out", "rec"):
        (folder / name).mkdir()
    paths = [
        *(
            with_canaries_in_edf(folder / "rec" / f"r{place}.{suffix}", words)
            for place, suffix in enumerate(("edf", "edf", "bdf"))
        ),
        *(with_canaries_in_brainvision(folder / "rec" / f"r{place}.vhdr", words) for place in (3, 4)),
        *(with_canaries_in_wfdb(folder / "rec" / f"r{place}.hea", words) for place in (5, 6)),
    ]
    names = {
        path: [f"S{place}" if path.suffix == ".hea" else f"C{place}" for place in (0, 1)] for path in paths
    }
    lines = [
        f"rec/{path.name},{label},p{number},{names[path][place]}"
        for number, path in enumerate(paths)
        for place, label in enumerate(("slow", "fast"))
    ]
    (folder / "all.csv").write_text("path,label,patient,channel\n" + "\n".join(lines) + "\n")
    whole = [f"rec/{path.name}" for path in paths]
    bad = [f"rec/{damaged(path, number).name}" for path in paths[1:6:2] + paths[2:3] for number in range(6)]
    commands = [
        ["check", *whole],
        ["check", "--json", *whole],
        ["check", *bad],
        ["check", "--json", *bad],
        ["fit", "all.csv", "--out", "out/model", *FAST],
        ["predict", "out/model", "all.csv", "--out", "out/p.csv", "--device", "cpu"],
        ["predict", "out/model", *whole[:4], "--out", "out/q.parquet", "--device", "cpu"],
        ["explain", "out/model", whole[0], "--out", "out/why", "--device", "cpu"],
        *(
            ["predict", "out/model", item, "--out", f"out/{number}.csv"]
            for number, item in enumerate(bad[::3])
        ),
    ]
    tree = f"rec/{words[18]}/bids"
    bids_with_canaries(folder / tree, words)
    hidden = folder / words[19]  # a study, and what it loads, lie in a folder that names somebody
    hidden.mkdir()
    (hidden / "breaks.py").write_text(BREAKS)
    (hidden / "study.toml").write_text(STUDY)
    model, cpu = "out/model2", ["--device", "cpu"]
    lonely = with_canaries_in_edf(folder / "rec" / words[18] / "night.edf", words)
    lonely = lonely.relative_to(folder).as_posix()  # folders are as much part of it as somebody types
    commands += [
        ["explain", "out/model", lonely, "--out", "out/nwhy", "--format", "json", *cpu],
        ["prepare", tree, "--out", "out/prep"],
        ["fit", "out/prep", "--out", model, *FAST],
        ["predict", model, tree, "--out", "out/b.csv", *cpu],
        ["explain", model, tree, "--out", "out/bwhy", "--bids-derivatives", "out/dv", *cpu],
        ["verify", "out/bwhy/sub-01_task-rest/report.html", model, tree, *cpu],
        [
            "explain",
            model,
            f"{tree}/sub-01/ieeg/sub-01_task-rest_ieeg.edf",
            "--bids-derivatives",
            "out/dv2",
            *cpu,
        ],
        ["explain", model, whole[0], "--bids-derivatives", "out/dv3", *cpu],
        ["table", f"{words[19]}/study.toml", "--out", "out/table", *cpu],
    ]
    environment = os.environ | {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "scratch"),
        "RAXSS_CACHE": str(folder / "cache"),
        "RAXSS_DEBUG": "1",
        "MPLCONFIGDIR": matplotlib.get_cachedir(),  # its list of fonts takes seconds to make
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
        timeout=300,
    )
    return folder, done, len(commands)


def outputs(folder):
    """Every file that was written."""
    return [
        file
        for name in ("out", "cache", "home", "scratch")
        for file in (folder / name).rglob("*")
        if file.is_file()
    ]


@functools.cache
def read(file):
    """A file's bytes, and of a packed table its text too."""
    content = file.read_bytes()
    if file.suffix == ".parquet":
        return content + repr(pq.read_table(file).to_pylist()).encode()
    return content


def spellings(word):
    """A word as text and as other encodings write it."""
    return [word.encode(), word.encode("utf-16-le"), word.upper().encode()]


def test_the_run_did_all_that_it_was_to_do(run, words):
    folder, done, n_commands = run
    codes = [line for line in done.stdout.splitlines() if line.startswith("exit")]
    assert len(codes) == n_commands, done.stdout[-3000:] + done.stderr[-3000:]
    assert codes[:2] == ["exit 0"] * 2
    assert codes[4:8] == ["exit 0"] * 4, done.stdout + done.stderr
    assert "refused" in done.stdout
    assert "RecordingError" in done.stderr
    assert codes[-9:] == ["exit 0"] * 7 + ["exit 1"] * 2, done.stdout + done.stderr
    assert "is not a recording of a BIDS tree" in done.stderr
    written = {file.relative_to(folder).parts[:2] for file in outputs(folder)}
    assert {("out", "model"), ("out", "p.csv"), ("out", "q.parquet"), ("out", "why")} <= written
    assert {("out", name) for name in ("nwhy", "bwhy", "dv", "dv2", "table", "marks.csv")} <= written
    (error,) = (folder / "out" / "table").rglob("*.error.json")
    assert "cannot read breaks.py" in error.read_text()
    assert len(list((folder / "out" / "bwhy").glob("*/report.html"))) == 4
    assert b"raxss/" in (folder / "out" / "marks.csv").read_bytes()
    content = b"".join(file.read_bytes() for file in (folder / "rec").rglob("*") if file.is_file())
    assert all(word.encode() in content for word in words)  # they were there to be found


def test_no_canary_and_no_path_is_printed_or_logged(run, words):
    folder, done, _ = run
    assert str(folder) not in done.stdout + done.stderr
    printed = (done.stdout + done.stderr).lower()
    dates = {"02-may-1951", "17-may-1993", "17.05.93", "17/05/1993", "10:11:12", "1951-05-02", "1993-05-17"}
    fragments = dates | {word[start : start + 5] for word in words for start in (0, 1)}
    found = [
        (word, printed[max(printed.index(word) - 200, 0) :][:300])
        for word in sorted(fragments)
        if word in printed
    ]
    assert found == []


def test_no_canary_and_no_path_is_written_and_nothing_at_home_or_in_temporary_folders(run, words):
    folder, _, _ = run
    forbidden = [spelled for word in words for spelled in spellings(word)]
    forbidden += [b"02-MAY-1951", b"17-MAY-1993", b"17.05.93", b"1951-05-02", b"1993-05-17"]
    forbidden += [str(folder).encode()]
    files = outputs(folder)
    assert len(files) > 8
    assert {file.relative_to(folder).parts[0] for file in files} <= {"out", "cache"}
    found = [
        (file.relative_to(folder), word)
        for file, word in itertools.product(files, forbidden)
        if word in read(file)
    ]
    assert found == []
