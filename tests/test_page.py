"""Tests of the contents of a report and of its file. In a browser: test_page_in_browser, test_page_reading."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.signal import butter, iirnotch, sosfilt, sosfilt_zi, tf2sos

from pages import FACTS, evidence_of, needed, recording, signal
from raxss import RAxSSClassifier, Series
from raxss.errors import ConfigError, DataError
from raxss.explain import Report, report_of
from raxss.explain.export.report.contents import N_TOP, electrodes, plain_text
from raxss.explain.export.report.page import contents_of, page_of
from raxss.explain.export.report.signals import (
    FULL_BYTES,
    GAP,
    N_BINS,
    NO_WINDOW,
    QuantisationSteps,
    Wanted,
    decoded,
    envelope,
    spans_to_keep,
)
from raxss.explain.findings import recording_of
from toys import SMALL, waves

VIEWER = Path(str(resources.files("raxss.explain.export.report"))) / "viewer"


def report_contents(evidence, **options):
    return report_of(evidence, **options).contents


@pytest.fixture(scope="module")
def item():
    rng = np.random.default_rng(3)
    return evidence_of(Series(signal(rng, 4012), 100.0, name="one", start_seconds=2.0), seed=1)


@pytest.fixture(scope="module")
def contents(item):
    return json.loads(json.dumps(report_contents([item], model=FACTS)))


# Contents -----------------------------------------------------------------------------------------------


def test_the_contributions_shown_and_the_rest_add_up_to_the_score(item, contents):
    channel = contents["channels"][0]
    for place, class_ in enumerate(item.classes):
        shown = [channel["windows"]["contribution"][place][row] for row in channel["top"][place]]
        rest = item.windows[f"contribution_{class_}"].sort_values(ascending=False).iloc[len(shown) :].sum()
        assert len(shown) == N_TOP
        assert shown == sorted(shown, reverse=True)
        assert sum(shown) + rest == pytest.approx(item.probability_of(class_), abs=1e-12)
        assert channel["probability"][place] == item.probability_of(class_)


def test_windows_and_neighbours_are_those_of_the_evidence(item, contents):
    channel = contents["channels"][0]
    for row in channel["top"][1]:
        window = channel["windows"]["window"][row]
        found = item.windows.iloc[window]
        assert channel["windows"]["weight"][row] == found["weight"]
        assert channel["windows"]["support"][row] == found["support"]
        assert channel["windows"]["posterior"][1][row] == found["posterior_soz"]
        assert 2.0 + channel["windows"]["start"][row] / 100.0 == pytest.approx(found["start_s"], abs=1e-9)
        board, neighbors = item.leaderboard(window), channel["neighbors"][row]
        assert neighbors["window"] == board["neighbor"].tolist()
        assert neighbors["similarity"] == board["similarity"].tolist()
        assert neighbors["weight_change"] == board["weight_change"].tolist()
        np.testing.assert_allclose(2.0 + np.array(neighbors["start"]) / 100, board["start_s"], atol=1e-9)


def test_gated_weights_are_inverted_with_their_gate(rng):
    model = RAxSSClassifier(
        "convnet", **SMALL, space="signal", weighting="gated", series_loss_weight=1.0, batch_size=128
    ).fit(waves(rng))
    series = Series(signal(rng, 300), 10.0)
    evidence = model.explain(series)
    expected = model.set_params(weighting="gated-inverse").predict_proba([series.samples])[0]
    np.testing.assert_allclose(report_contents([evidence])["channels"][0]["inverse"], expected, atol=1e-9)


def test_windows_that_are_mostly_missing_weigh_nothing_under_any_weights(rng):
    samples = signal(rng, 2000)
    samples[0, 500:600] = np.nan
    evidence = evidence_of(Series(samples, 100.0, gaps_marked=True))
    channel = report_contents([evidence])["channels"][0]
    usable = ~evidence.windows["nonfinite"]
    plain_mean = evidence.windows.loc[usable, "posterior_soz"].mean()
    assert channel["uniform"][1] == pytest.approx(plain_mean, abs=1e-12)
    assert channel["n_usable"] == usable.sum() < channel["n_windows"]
    assert channel["windows"]["smoothed"] is None
    smoothed = report_contents([evidence_of(evidence.series, smoothing=0.4)])["channels"][0]
    assert smoothed["windows"]["smoothed"] is not None
    numbers = decoded(channel["full"]["samples"], "int16")
    assert (numbers == GAP).nonzero()[0].tolist() == list(range(500, 600))


def test_the_heat_strip_is_the_mean_of_the_windows_over_each_moment(item, contents):
    heat = decoded(contents["channels"][0]["heat"], "uint8").reshape(2, N_BINS)
    table = item.windows
    for column in (0, 700, 1500):
        time = 2.0 + 40.12 * (column + 0.5) / N_BINS
        over = table[(table["start_s"] <= time) & (time < table["end_s"])]
        assert heat[1, column] / 254 == pytest.approx(over["posterior_soz"].mean(), abs=0.5 / 254 + 1e-9)
    assert heat[1, -1] == NO_WINDOW  # the last samples are in no window


def test_a_report_has_samples_within_half_a_step_and_counts_of_training_data(item, contents):
    channel = contents["channels"][0]
    assert channel["full"]["spans"] == [[0, 4012]]
    middle, step = channel["steps"]["middle"][0], channel["steps"]["step"][0]
    back = middle + step * decoded(channel["full"]["samples"], "int16").astype(float)
    assert np.abs(back - item.series.samples[0]).max() <= 0.501 * step
    assert step < np.ptp(item.series.samples) / 60_000
    assert (contents["training"]["n_series"], contents["model"]["config_hash"]) == (30, "0123abcd")
    assert "deadbeef" not in json.dumps(contents)  # no digest of a training series


def test_channels_open_ranked_by_the_class_that_is_rare_in_training():
    evidence = recording(["A1", "A2", "A3"])
    assert report_contents(evidence, model=FACTS)["focus"] == 1
    turned = FACTS | {"training_data": FACTS["training_data"] | {"classes": {"other": 2, "soz": 5}}}
    assert report_contents(evidence, model=turned)["focus"] == 0
    assert report_contents(evidence)["focus"] == 1
    assert report_contents(evidence, positive="other")["focus"] == 0
    with pytest.raises(ConfigError, match="'sozz' is not a class of this model; did you mean 'soz'"):
        report_contents(evidence, positive="sozz")
    alone = evidence[0]
    assert report_contents([alone])["focus"] == alone.classes.index(alone.predicted)


def test_a_recording_is_called_without_folders_and_its_channels_without_the_recording():
    found = report_contents(recording(["C3", "C4"], name="ward 7/night"))
    assert found["recording"] == "night"
    assert [channel["name"] for channel in found["channels"]] == ["C3", "C4"]
    assert recording_of(Series([0.0], name="a:b:C3@5s", origin={"channel": "C3"})) == "a:b"
    assert plain_text("abc\u202e\u200bd\x1b[31m\ud800\u2028") == "abc\ufffd\ufffdd\ufffd[31m\ufffd\ufffd"
    assert len(plain_text("x" * 10_000)) == 300


def test_no_evidence_other_classes_and_evidence_without_samples_are_refused(item, tmp_path):
    with pytest.raises(DataError, match="no series were given"):
        report_of([])
    other = evidence_of(Series(np.random.default_rng(0).normal(size=500), name="odd"), classes=("a", "b"))
    with pytest.raises(DataError, match="series 'odd' was scored for the classes 'a', 'b'"):
        report_of([item, other])
    loaded = type(item).load(item.save(tmp_path, formats=("parquet",)))
    with pytest.raises(DataError, match="evidence of 'one' was loaded without its samples"):
        report_of(loaded)
    assert loaded._repr_html_() is None
    again = type(item).load(tmp_path / "one", series=item.series)
    assert report_of(again).contents["channels"][0]["probability"] == item.series_probability.tolist()


def test_a_report_of_a_model_has_the_facts_of_its_folder(rng, tmp_path):
    series = waves(rng)
    model = RAxSSClassifier(**SMALL).fit(series)
    model.save_pretrained(tmp_path / "m")
    facts = json.loads((tmp_path / "m" / "config.json").read_text())
    found = model.report(series[:3], name="three").contents
    assert found["recording"] == "three"
    assert found["model"]["weights_sha256"] == facts["weights_sha256"]
    assert found["model"]["config_hash"] == facts["config_hash"]
    assert found["model"]["scaling"] == model.scaling
    assert found["training"]["classes"] == facts["training_data"]["classes"]
    np.testing.assert_allclose(
        [channel["probability"] for channel in found["channels"]], model.predict_proba(series[:3]), atol=1e-12
    )
    assert len(model.report(series[0]).contents["channels"]) == 1
    assert len(model.report(series[0].samples[0]).contents["channels"]) == 1


# Signals --------------------------------------------------------------------------------------------------


def test_an_envelope_keeps_extremes_and_constants_and_gaps_have_steps_too():
    steps = QuantisationSteps.of(np.array([[5.0, 5.0], [np.nan, np.nan], [-1e308, 1e308]]))
    assert np.isfinite(steps.middle).all()
    assert (np.isfinite(steps.step) & (steps.step > 0)).all()
    assert steps.numbers(np.array([[5.0], [np.inf], [1e308]])).tolist() == [[0], [GAP], [32767]]
    samples = np.random.default_rng(0).normal(size=(2, 10_007))
    size, low, high = envelope(samples)
    assert size == 6
    for place in (0, 77, low.shape[1] - 1):
        part = samples[:, place * size : (place + 1) * size]
        assert_array_equal([low[:, place], high[:, place]], [part.min(axis=1), part.max(axis=1)])


def test_room_goes_to_every_strongest_window_first_then_by_rank():
    rng = np.random.default_rng(5)
    channels = [
        Wanted(
            1_000_000,
            1,
            [[(start, start + 1000) for start in rng.integers(0, 999_000, 3)] for _ in range(4)],
            context=(4000, 14_000),
        )
        for _ in range(20)
    ]
    order = list(rng.permutation(20))
    budget = 700_000
    kept = spans_to_keep(channels, order, budget)

    def has(place, spans):
        return all(any(a <= first and last <= b for a, b in kept[place].spans) for first, last in spans)

    assert all(has(place, channels[place].groups[0]) for place in range(20))
    assert has(order[0], [span for group in channels[order[0]].groups for span in group])
    assert not has(order[-1], channels[order[-1]].groups[3])
    assert sum(2 * (last - first) for item in kept for first, last in item.spans) <= budget


def test_short_recordings_are_kept_whole_and_long_ones_within_the_budget():
    whole = report_contents(recording(["A1", "A2"]))
    assert [channel["full"]["spans"] for channel in whole["channels"]] == [[[0, 3000]]] * 2
    rng = np.random.default_rng(0)
    long = evidence_of(Series(rng.normal(size=FULL_BYTES // 2 + 1), 1000.0), window_length=512, stride=4096)
    channel = report_contents([long])["channels"][0]
    spans = channel["full"]["spans"]
    assert sum(last - first for first, last in spans) < 500_000
    for row in channel["top"][0]:
        for start in (channel["windows"]["start"][row], *channel["neighbors"][row]["start"]):
            assert any(first <= start and start + 512 <= last for first, last in spans)
    few = report_contents([long], full_bytes=60_000)["channels"][0]["full"]["spans"]
    assert 0 < sum(last - first for first, last in few) <= 30_000
    assert len(long._repr_html_()) < 2_500_000  # a notebook keeps it


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["LAT1", "LAT2", "LAT4"], [("LAT", "shaft", [1, 2, 4])]),
        (["POL RAH01", "POL RAH02", "EKG"], [("RAH", "shaft", [1, 2])]),
        (["A'1", "A'2", "A1", "A2"], [("A'", "shaft", [1, 2]), ("A", "shaft", [1, 2])]),
        ([f"G{number}" for number in range(1, 65)], [("G", "grid", list(range(1, 65)))]),
        (["LA1-LA2", "LA2-LA3"], [("LA", "shaft", [1, 2])]),
        (["Fp1", "Cz", "O2"], []),
        (["II"], []),
        (["<b>1", "<b>2"], []),
    ],
)
def test_electrodes_are_read_from_names(names, expected):
    found = electrodes(names)
    assert [
        (item["name"], item["kind"], [number for number, _ in item["contacts"]]) for item in found
    ] == expected
    for item in found:
        assert all(str(number) in names[place] for number, place in item["contacts"])


# The file -------------------------------------------------------------------------------------------------


def test_a_report_reads_back_as_it_was_written(item, tmp_path):
    report = report_of(item, model=FACTS)
    path = report.save(tmp_path / "report.html")
    assert Report.read(path).contents == json.loads(json.dumps(report.contents))
    again = report_of(item, model=FACTS).save(tmp_path / "again.html")
    assert path.read_bytes() == again.read_bytes()
    other = page_of(report_of(recording(["A1", "A2"])).contents)
    shells = [
        re.sub(rb'"[0-9a-f]{64}"( id="report-data">)[^<]*', rb"\1", page)
        for page in (path.read_bytes(), other)
    ]
    assert shells[0] == shells[1]  # everything but the data
    words = "Copyright (c) 2022 Leon Sorokin"  # of uPlot, with its permission notice
    for text in (path.read_text(), (VIEWER.parent / "NOTICE").read_text()):
        assert words in text
        assert "The above copyright notice and this permission notice shall" in text
    with pytest.raises(OSError, match=r"'report\.html' exists already"):
        report.save(path)


def test_a_page_that_was_changed_outside_its_data_is_refused(item, tmp_path):
    page = page_of(report_of(item).contents)
    for before, after in ((b"Not for diagnosis", b"For diagnosis"), (b"</html>", b"<!-- --></html>")):
        with pytest.raises(DataError, match=r"'x\.html' is not a report as this version of raxss writes it"):
            contents_of(page.replace(before, after, 1), name="'x.html'")
    with pytest.raises(DataError, match="data of report do not have the SHA-256 that it states"):
        contents_of(page.replace(b'{"format"', b'{"format', 1))
    with pytest.raises(DataError, match=r"'absent\.html' cannot be read: No such file"):
        Report.read(tmp_path / "absent.html")


def test_the_policy_lets_the_script_and_style_of_the_file_run_and_nothing_else(item):
    page = page_of(report_of(item).contents).decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))

    def digest(text):
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert rules == {
        "default-src": "'none'",
        "script-src": digest(script),
        "style-src": digest(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert not re.search(r"(?:src|href)\s*=", page.replace(script, ""))


def test_the_script_never_makes_markup_of_text():
    script = (VIEWER.parent / "viewer.js").read_text()
    sources = "".join(file.read_text() for file in VIEWER.glob("*.ts"))
    never = ("insertAdjacentHTML", "document.write", "eval(", "new Function", "fetch(")
    for way in (*never, "innerHTML", "outerHTML"):
        assert way not in sources, way
    for way in (*never, "XMLHttpRequest", "</script", "<!--"):
        assert way not in script, way
    assert "</style" not in (VIEWER.parent / "viewer.css").read_text()


def test_evidence_shows_itself_in_a_frame_that_cannot_reach_the_notebook(item):
    shown = item._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts"')
    assert shown.count("<") == 2  # the frame opens and closes; all else is escaped within its attribute
    (inside,) = re.findall(r'srcdoc="([^"]*)"', shown)
    assert "Content-Security-Policy" in inside


# The viewer -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    """A copy of the sources with what building them needs, at the versions of package-lock.json."""
    needed("npm", shutil.which("npm"))
    folder = tmp_path_factory.mktemp("viewer") / "viewer"
    shutil.copytree(VIEWER, folder, ignore=shutil.ignore_patterns("node_modules"))
    if (VIEWER / "node_modules" / ".package-lock.json").exists():
        (folder / "node_modules").symlink_to(VIEWER / "node_modules")
    else:
        fetched = run(folder, "npm", "ci", "--no-audit", "--no-fund")
        needed(f"what npm ci fetches ({fetched.stderr.strip()[-200:]})", fetched.returncode == 0)
    return folder


def run(folder, *command, **environment):
    return subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )


def test_the_bundle_is_what_its_sources_build_to(viewer, tmp_path):
    built = run(viewer, "npm", "run", "build", OUT=str(tmp_path))  # tsc --strict, then esbuild
    assert built.returncode == 0, built.stdout + built.stderr
    for name in ("viewer.js", "viewer.css"):
        assert (tmp_path / name).read_bytes() == (VIEWER.parent / name).read_bytes(), name


def test_display_filters_do_what_scipys_do(viewer, rng):
    """Butterworth of second order forwards and backwards, each pass begun at rest on its first value."""
    samples, rate = signal(rng, 900)[0], 250.0
    (viewer / "ask.ts").write_text(
        'import { filtered } from "./filters";\n'
        'const given = JSON.parse(await new Promise((done) => { let text = ""; process.stdin.on("data", (one) => '
        '(text += one)).on("end", () => done(text)); }));\n'
        "console.log(JSON.stringify(given.filters.map((one) => "
        "Array.from(filtered(Float64Array.from(given.samples), given.rate, one)))));\n"
    )
    built = run(
        viewer, "npx", "esbuild", "ask.ts", "--bundle", "--platform=node", "--format=esm", "--outfile=ask.mjs"
    )
    assert built.returncode == 0, built.stderr
    off = {"high": 0, "low": 0, "notch": 0}
    filters = [off | {"high": 5}, off | {"low": 30}, off | {"high": 1, "low": 70}, off | {"notch": 50}, off]
    question = json.dumps({"samples": samples.tolist(), "rate": rate, "filters": filters})
    answer = subprocess.run(
        ["node", "ask.mjs"], cwd=viewer, input=question, capture_output=True, text=True, check=True
    )
    for chosen, found in zip(filters, json.loads(answer.stdout), strict=True):
        expected = samples
        for kind in ("high", "low", "notch"):
            if chosen[kind] == 0:
                continue
            if kind == "notch":
                stages = tf2sos(*iirnotch(chosen[kind], 30, rate))
            else:
                stages = butter(2, chosen[kind], f"{kind}pass", fs=rate, output="sos")
            for _ in range(2):
                at_rest = sosfilt_zi(stages) * expected[0]
                expected = sosfilt(stages, expected, zi=at_rest)[0][::-1]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * np.abs(samples).max())
