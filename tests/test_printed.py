"""Claims about the printed pages: complete, inside their margins, the same bytes each time, and harmless."""

import itertools
import os
import re
import subprocess
import sys
import zlib

import matplotlib
import numpy as np
import pytest
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from raxss.explain.escape import plain
from raxss.explain.export.pdf import SETTINGS, pages_of, write_pdf
from raxss.explain.findings import under_other_weights, watched
from raxss.uncertainty.validation import ValidationReport
from test_findings import channels_of, explained


def tried(seed=0, n=300, n_classes=2):
    """How a made-up model did, with and without a calibration."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(n_classes, size=n)
    said = {name: rng.dirichlet(np.ones(n_classes), n) for name in ("uncalibrated", "calibrated")}
    return ValidationReport.of(targets, said, n_groups=41, settings="")


TRIAL = tried()
ABOUT = {
    "config_hash": "0123456789ab",
    "weights_sha256": "ab" * 32,
    "network": "DLinear, 512 parameters",
    "trial": TRIAL.to_json(),
    "training_data": {
        "n_series": 48,
        "n_validation": 16,
        "n_groups": 3,
        "classes": {"other": 28, "soz": 20},
        "rates": [20.0],
        "split": "70/10/20 by patient",
    },
}
HOSTILE = [
    "$\\frac{1}{0}$", "$x^$", "$", "$$", "\\$", "a$b$c", "$\\input{/etc/passwd}$", "\\input{/etc/passwd}",
    "\\write18{touch x}", "$\\mathrm{", "_{", "^{}", "{", "}", "%s%s%n", "%(x)s", "{0.__class__}", "{{7*7}}",
    "<script>alert(1)</script>", "</script>", "<img src=x onerror=alert(1)>", "javascript:alert(1)", "<!--", "]]>",
    "&lt;", "\"' onload='x", "=cmd|' /C calc'!A0", "+1+1", "-2", "@SUM(A1)", "'; DROP TABLE x;--",
    "../../etc/passwd", "C:\\Windows\\x", "/JavaScript (app.alert(1))", ") Tj ET endstream", "endobj 1 0 obj",
    "(unbalanced", "\\)",
    "\x00", "\x1b[31mred", "\x1b]0;t\x07", "\r\nX: y", "a\tb", "\u202egnp.exe", "\u2066x\u2069", "\u200b\u200b",
    "\ufeff", "\u2028", "\u2029", "\udcff\udc80", "\ud800", "日本語", "🧠🧠", "e\u0301" * 30, "ﷺ", "W" * 300,
    "i" * 5000, "_nolegend_", "None", "nan",
]  # fmt: skip


def findings_of(evidence, n_best=6, class_=None):
    done = []
    for _ in watched(evidence, done.append, n_best=n_best, class_=class_):
        pass
    (found,) = done
    return found


def drawn(found, about=None):
    """The pages as they are printed, each drawn once."""
    with style.context(["default", SETTINGS]):
        pages = list(pages_of(found, model=ABOUT if about is None else about))
        for page in pages:
            FigureCanvasAgg(page).draw()
        return pages


def texts_of(page):
    return [
        item
        for item in page.findobj(lambda artist: hasattr(artist, "get_text"))
        if item.get_visible() and item.get_text().strip()
    ]


def words(page):
    return "\n".join(item.get_text() for item in texts_of(page))


def streams(content):
    """What the PDF's compressed parts hold."""
    found = []
    for part in re.findall(rb"stream\r?\n(.*?)endstream", content, flags=re.DOTALL):
        try:
            found.append(zlib.decompress(part.rstrip(b"\r\n")))
        except zlib.error:
            found.append(part)
    return found


def shown_boxes(page):
    """Text and its place in inches from the lower left corner, of what is really drawn."""
    hidden = {
        label
        for ax in page.axes
        for axis in (ax.xaxis, ax.yaxis)
        for label in (axis.label, *axis.get_ticklabels(which="both"))
        if not ax.axison
    }
    for item in texts_of(page):
        if isinstance(item, Text) and item not in hidden:
            box = item.get_window_extent(page.canvas.get_renderer())
            yield item.get_text(), [value / page.dpi for value in (box.x0, box.y0, box.x1, box.y1)]


@pytest.fixture(scope="module")
def found():
    return findings_of(channels_of("sub-01_run-01", 40), n_best=3)


def a_few():
    return findings_of(channels_of("sub-01_run-01", 3), n_best=1)


@pytest.fixture(scope="module")
def pages(found):
    return drawn(found)


def test_the_first_page_says_what_this_is_and_what_made_it(pages):
    said = words(pages[0])
    for needed in (
        "sub-01_run-01",
        "Research use only. Not for diagnosis.",
        "48 (other 28, soz 20), 16 of them for validation",
        "3, each on one side of that split",
        "70/10/20 by patient",
        "DLinear, 512 parameters",
        "abababababab (SHA-256)",
        "Channels by probability of soz",
        "20 s at 20 Hz",
    ):
        assert needed in said


def test_every_channel_is_listed_once_by_rank_with_its_probability(found, pages):
    ranked = found.ranked()
    listed = [words(page) for page in pages if "by probability" in words(page)]
    assert len(listed) == 2  # 40 channels do not fit below the facts
    said = "\n".join(listed).splitlines()
    for rank, item in enumerate(ranked, start=1):
        place = said.index(item.channel)
        assert said[place - 1] == str(rank)
        assert said[place + 1] == f"{item.probability[1]:.3f}"


def test_the_strongest_window_of_a_channel_is_that_of_the_class_it_is_ranked_by(found, pages):
    """Also where another class is predicted; and it is the first one on the channel's page."""
    listed = "\n".join(words(page) for page in pages if "by probability" in words(page)).splitlines()

    def strongest(item):
        return f"{item.windows['start_s'][item.windows['contribution_soz'].idxmax()]:,.2f}"

    for channel in channels_of("sub-01_run-01", 40):
        assert f"{strongest(channel)} s" in listed[listed.index(channel.series.origin["channel"]) :][:6]
    assert {channel.predicted for channel in found.channels} == {"other", "soz"}
    for item, page in zip(found.best, pages[2:], strict=True):
        assert f"1   {strongest(item)} to" in words(page)


def test_the_best_channels_have_a_page_with_reasons(found, pages):
    assert len(pages) == 2 + 3
    for rank, (page, evidence) in enumerate(zip(pages[2:], found.best, strict=True), start=1):
        said = words(page)
        assert f"{rank}.  {found.ranked()[rank - 1].channel}" in said
        assert f"P(soz) = {evidence.probability_of('soz'):.3f}" in said
        assert "sum = P(soz)" in said
        for value in under_other_weights(evidence).values():
            assert f"{value[1]:.3f}" in said.splitlines()
        row = evidence.windows.iloc[evidence.windows["contribution_soz"].argmax()]
        assert f"1   {row['start_s']:.2f} to {row['end_s']:.2f} s" in said
        neighbor = evidence.leaderboard(int(row["window"])).iloc[0]
        assert (
            f"1:  {neighbor['start_s']:.2f} to {neighbor['end_s']:.2f} s  ({neighbor['similarity']:.3f}"
            in said
        )


def test_folders_of_a_recording_are_not_printed():
    """They may be called after a patient, and a report does not tell them either."""
    for page in drawn(findings_of(channels_of("Ann Lee/night", 2))):
        assert "night" in words(page)
        assert "Ann" not in words(page)


def test_every_page_has_its_number_and_the_note(pages):
    for number, page in enumerate(pages, start=1):
        assert f"page {number} of {len(pages)}" in words(page)
        assert "Research use only" in words(page)
        assert page.get_size_inches() == pytest.approx([8.27, 11.69])


def test_text_stays_inside_the_margins_and_covers_no_other(pages):
    for page in pages:
        boxes = list(shown_boxes(page))
        assert len(boxes) > 20
        for text, (left, bottom, right, top) in boxes:
            assert left > 0.4, text
            assert right < 8.27 - 0.3, text
            assert bottom > 0.3, text
            assert top < 11.69 - 0.3, text
        for (combination, a), (other, b) in itertools.combinations(boxes, 2):
            wide, tall = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
            assert wide < 0.02 or tall < 0.04, (combination, other)


def reliability_axes(page):
    (ax,) = [ax for ax in page.axes if ax.get_xlabel().startswith("said: ")]
    return ax


def test_the_first_page_shows_how_the_model_did_and_on_what(pages):
    ax = reliability_axes(pages[0])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("said: P(soz)", "found: share that was so")
    drawn_marks = {container.get_label(): container.lines[0].get_xydata() for container in ax.containers}
    for name, rows in TRIAL.reliability.items():
        np.testing.assert_allclose(drawn_marks[name], [(row["said"], row["found"]) for row in rows])
    said = " ".join(words(pages[0]).split())
    for name, figures in TRIAL.figures.items():
        assert f"{name}: calibration error {figures['ece']:.3f}, Brier score {figures['brier']:.3f}" in said
    assert "From the validation part of the training data: 300 series in 41 groups." in said
    assert "fitted without the series' own group" in said
    wide, tall = (ax.get_window_extent().size / pages[0].dpi).tolist()
    assert wide == pytest.approx(tall)
    assert not any("said: " in words(page) for page in pages[1:])


def test_without_a_trial_or_a_calibration_nothing_is_said_of_them():
    about = {name: told for name, told in ABOUT.items() if name != "trial"}
    first = drawn(a_few(), about)[0]
    assert "had not learned from" not in words(first)
    plain_one = TRIAL.to_json()
    for part in ("reliability", "figures"):
        plain_one[part] = {"uncalibrated": plain_one[part]["uncalibrated"]}
    first = drawn(a_few(), about | {"trial": plain_one})[0]
    assert len(reliability_axes(first).containers) == 1
    assert "own group" not in words(first)
    first = drawn(a_few(), about | {"trial": plain_one | {"n_groups": plain_one["n_series"]}})[0]
    assert "training data: 300 series. The network" in " ".join(words(first).split())


def test_of_several_classes_the_diagram_is_of_the_most_likely():
    found = findings_of([explained(3, classes=("AF", "normal", "noise"), name="A0001")])
    first = drawn(found, ABOUT | {"trial": tried(n_classes=3).to_json()})[0]
    assert reliability_axes(first).get_xlabel() == "said: the largest probability"


@pytest.mark.parametrize("n_channels", [1, 5])
def test_a_first_page_that_is_full_leaves_its_table_to_the_next(n_channels):
    evidence = channels_of("r", n_channels)
    for item in evidence:
        item.warnings.extend(f"{kind} " * 70 for kind in ("rate", "length", "spectrum", "support", "map"))
    about = ABOUT | {"training_data": ABOUT["training_data"] | {"split": "by patient " * 30}}
    pages = drawn(findings_of(evidence, n_best=1), about)
    heading = "The answer" if n_channels == 1 else "Channels by probability"
    assert [heading in words(page) for page in pages] == [False, True, False]
    assert "continued" not in words(pages[1])
    for text, (_, bottom, _, _) in shown_boxes(pages[0]):
        assert bottom > 0.3, text
    assert f"page 1 of {len(pages)}" in words(pages[0])


def test_a_recording_of_one_channel_is_told_by_class():
    found = findings_of([explained(3, classes=("AF", "normal", "noise"), name="A0001")])
    first, second = drawn(found)
    assert "The answer" in words(first)
    (item,) = found.channels
    for class_, chance in zip(found.classes, item.probability, strict=True):
        assert class_ in words(first).splitlines()
        assert f"{chance:.3f}" in words(first)
    assert f"P({item.predicted}) = {item.probability.max():.3f}" in words(second)
    assert "rank 1 of" not in words(second)


def test_every_kind_of_series_can_be_printed():
    rng = np.random.default_rng(0)
    gap = rng.normal(size=400)
    gap[100:150] = np.nan
    kinds = (np.zeros(400), gap, rng.normal(size=(3, 400)), rng.normal(size=30), rng.normal(size=45))
    for place, samples in enumerate(kinds):
        first, second = drawn(findings_of([explained(place, samples=samples)]), {})
        assert "not known" in words(first)  # nothing was told of the model
        assert "How the windows add up" in words(second)


def test_warnings_are_on_the_first_page_once_for_all_channels_that_have_them():
    flat = np.random.default_rng(0).normal(size=400)
    flat[:80] = 0.0
    evidence = [
        explained(k, samples=flat, name=f"r:C{k}", origin={"recording": "r", "channel": f"C{k}"})
        for k in range(3)
    ]
    said = words(drawn(findings_of(evidence, n_best=0))[0])
    assert "windows are flat" in said
    assert said.count("windows are flat") == 1
    assert "(all channels)" in said.replace("\n", " ")


@pytest.fixture(scope="module")
def hostile():
    """Every hostile text as a channel's name; some as recording, class, label, and in what is told of the model."""
    recording = HOSTILE[18] + "\u202e$a_{$\x00"
    evidence = [
        explained(
            k,
            classes=("$\\frac{", HOSTILE[55]),
            name=f"{recording}:{text}",
            label="$x^$",
            origin={"recording": recording, "channel": text},
        )
        for k, text in enumerate(HOSTILE)
    ]
    about = {
        "config_hash": HOSTILE[0],
        "weights_sha256": HOSTILE[33],
        "network": "W" * 300,
        "trial": TRIAL.to_json(),
        "training_data": {
            "n_series": HOSTILE[3],
            "classes": dict.fromkeys(HOSTILE[:20], 1),
            "split": "i$" * 300,
        },
    }
    return findings_of(evidence, n_best=2), about


def test_hostile_text_is_drawn_as_it_reads(hostile):
    assert len(HOSTILE) == 60
    found, about = hostile
    pages = drawn(found, about)
    said = "\n".join(map(words, pages))
    assert all(letter.isprintable() or letter == "\n" for letter in said)
    for text in HOSTILE:
        assert plain(text, 20) in said, repr(text)
    assert "\\u202e$a_{$\\x00" in said
    for page in pages:
        assert not any(item.get_parse_math() for item in texts_of(page) if isinstance(item, Text))
        for text, (left, _, right, _) in shown_boxes(page):
            assert left > 0.3, text
            assert right < 8.27 - 0.3, text


def test_hostile_text_does_nothing_in_the_file(hostile, tmp_path):
    found, about = hostile
    write_pdf(found, tmp_path / "a.pdf", model=about)
    content = (tmp_path / "a.pdf").read_bytes()
    for action in (
        b"/JS",
        b"/JavaScript",
        b"/OpenAction",
        b"/Launch",
        b"/URI",
        b"/AA",
        b"/EmbeddedFile",
        b"/Annot ",
    ):
        assert action not in content.replace(b"/JavaScript \\(app.alert", b"")
    assert content.count(b"%%EOF") == 1
    n_pages = len(re.findall(rb"/Type /Page[ \n]", content))
    assert n_pages == len(list(pages_of(found, model=about)))


def test_fonts_are_in_the_file_as_truetype(tmp_path):
    write_pdf(a_few(), tmp_path / "a.pdf", model=ABOUT)
    content = (tmp_path / "a.pdf").read_bytes()
    fonts = set(re.findall(rb"/BaseFont /([^ ]+)", content))
    assert all(b"DejaVuSans" in font for font in fonts)
    assert b"/FontFile2" in content
    assert b"/Type3" not in content
    n_outlines = len(
        [stream for stream in streams(content) if b"glyf" in stream[:400] and b"loca" in stream[:400]]
    )
    assert n_outlines >= 2  # regular and bold


def test_the_same_findings_give_the_same_bytes_whoever_prints_and_when(tmp_path):
    found = a_few()
    write_pdf(found, tmp_path / "a.pdf", model=ABOUT)
    content = (tmp_path / "a.pdf").read_bytes()
    assert b"CreationDate" not in content
    with matplotlib.rc_context(
        {"font.size": 30, "text.usetex": True, "lines.linewidth": 9, "pdf.compression": 0}
    ):
        write_pdf(found, tmp_path / "b.pdf", model=ABOUT)
    assert (tmp_path / "b.pdf").read_bytes() == content
    script = f"""
import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_printed import ABOUT, a_few, write_pdf
write_pdf(a_few(), {str(tmp_path / "c.pdf")!r}, model=ABOUT)
sys.exit("matplotlib.pyplot" in sys.modules)  # nobody's global state is touched
"""
    environment = os.environ | {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    assert (tmp_path / "c.pdf").read_bytes() == content


def test_a_pdf_that_fails_leaves_the_old_one(found, tmp_path, monkeypatch):
    (tmp_path / "a.pdf").write_bytes(b"old")
    monkeypatch.setattr("raxss.explain.export.pdf.channel_page", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_pdf(found, tmp_path / "a.pdf", model=ABOUT)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("a.pdf", b"old")]
