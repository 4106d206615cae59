"""The report in a real browser: headless Chromium opens the file as a clinician would."""

import html
import re

import numpy as np
import pytest

from hostile import HOSTILE
from pages import (
    CONTACTS,
    FACTS,
    assert_quiet,
    evidence_of,
    opened,
    recording,
    rows,
    shown_page,
    signal,
)
from raxss import Series
from raxss.explain import report_of


def best_window(evidence, class_="soz"):
    return evidence.top_windows(1, class_).iloc[0]


def current(page, table):
    """The texts of the chosen row."""
    return page.locator(f"table.{table} tr[aria-current]").locator("td").all_text_contents()


# Open, rank, select ---------------------------------------------------------------------------------------


def test_a_report_opens_with_channels_by_probability_and_says_what_it_is_not_for(page, night):
    by_score = sorted(night, key=lambda item: -item.probability_of("soz"))
    table = rows(page, "channels")
    assert [row[1].split(" ")[0] for row in table] == [item.name.split(":")[1] for item in by_score]
    assert [row[2] for row in table] == [f"{item.probability_of('soz'):.3f}" for item in by_score]
    assert current(page, "channels")[1].startswith(by_score[0].name.split(":")[1])
    assert page.get_by_role("note").text_content() == "Research use only. Not for diagnosis."
    assert page.get_by_role("note").is_visible()
    assert page.title() == "night · raxss report"
    for fact in ("0123abcd", "ConvNet, 12 parameters", "other 25, soz 5"):
        assert page.get_by_text(fact, exact=True).first.is_visible()


def test_a_channel_is_chosen_in_the_table_on_its_electrode_and_in_the_overview(page, night):
    title = page.locator(".title h2")
    page.get_by_role("button", name="PD3", exact=True).click()
    assert title.text_content() == "PD3"
    page.get_by_role("button", name=re.compile("^LA2, 0")).click()
    assert title.text_content() == "LA2"
    assert page.locator("button[aria-pressed=true]").get_attribute("title").startswith("LA2")
    page.get_by_label("Order").select_option("as recorded")
    box = page.locator("canvas.over").bounding_box()
    share = (CONTACTS.index("PD1") + 0.5) / len(CONTACTS)
    page.mouse.click(box["x"] + 96 + 0.75 * (box["width"] - 108), box["y"] + share * box["height"])
    assert title.text_content() == "PD1"
    first, last = shown_page(page)
    assert first < 22.5 < last


def test_the_numbers_of_a_channel_are_those_of_its_evidence(page, night):
    page.get_by_role("button", name="LA5", exact=True).click()
    evidence = night[CONTACTS.index("LA5")]
    top = evidence.top_windows(12, "soz")
    table = rows(page, "windows")
    assert [row[1] for row in table] == [
        f"{itertuple.start_s:.2f} – {itertuple.end_s:.2f} s" for itertuple in top.itertuples()
    ]
    assert [row[4] for row in table] == [f"{p:.3f}" for p in top["posterior_soz"]]
    board = evidence.leaderboard(int(top["window"].iloc[0]))
    table = rows(page, "neighbors")
    assert [row[1].removesuffix(" ~") for row in table] == [
        f"{itertuple.start_s:.2f} – {itertuple.end_s:.2f} s" for itertuple in board.itertuples()
    ]
    assert [row[2] for row in table] == [f"{item:.4f}" for item in board["similarity"]]
    assert [row[3] != "apart" for row in table] == board["overlaps"].tolist()
    shares = board["similarity"] / board["similarity"].sum()
    np.testing.assert_allclose([float(row[4].removesuffix(" %")) for row in table], 100 * shares, rtol=6e-3)
    # Left out, a neighbour leaves the mean of the others as support; × 1 is an equal share.
    windows, window = evidence.windows, int(top["window"].iloc[0])
    for row, left_out in zip(table, board["similarity"], strict=True):
        support = windows["support"].to_numpy().copy()
        support[window] = (board["similarity"].sum() - left_out) / (len(board) - 1)
        weights = np.exp(support / evidence.settings["temperature"])
        change = windows["weight"][window] - weights[window] / weights.sum()
        assert float(row[5].replace("−", "-")) == pytest.approx(change * len(windows), rel=0.06)


def test_the_staircase_adds_up_to_the_score_and_other_weights_are_shown(page, night):
    page.get_by_role("button", name="LA1", exact=True).click()
    evidence = night[0]
    texts = page.locator(".waterfall text:not(.onbar)").all_text_contents()
    sizes = [float(text.removeprefix("+")) for text in texts[1::2]]
    assert texts[0] == f"the other {len(evidence.windows) - 12}"
    assert texts[-2] == "sum"
    assert sum(sizes[:-1]) == pytest.approx(evidence.probability_of("soz"), abs=2e-3)
    assert sizes[-1] == pytest.approx(evidence.probability_of("soz"), abs=5e-4)
    channel = report_of(night).contents["channels"][0]
    shown = [float(row) for row in page.locator(".weights td.number").all_text_contents()]
    np.testing.assert_allclose(
        shown, [channel[name][1] for name in ("probability", "uniform", "inverse")], atol=6e-4
    )


# Jump to a neighbour, superimpose -------------------------------------------------------------------------


def blue_pixels(page, where):
    """How many pixels of the canvases there have the colour of a neighbour."""
    return page.evaluate(
        """where => [...document.querySelectorAll(where)].reduce((n, canvas) => {
            const copy = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
            copy.canvas.width = canvas.width;
            copy.canvas.height = canvas.height;
            copy.drawImage(canvas, 0, 0);
            const {data} = copy.getImageData(0, 0, canvas.width, canvas.height);
            for (let at = 0; at < data.length; at += 4)
                if (data[at] < 60 && Math.abs(data[at + 1] - 99) < 25 && Math.abs(data[at + 2] - 176) < 30
                    && data[at + 3] > 200) n++;
            return n;
        }, 0)""",
        where,
    )


def test_a_click_on_a_neighbour_jumps_there_outlines_it_and_lays_it_over_the_window(show, night):
    page = show(night, model=FACTS)
    page.get_by_label("Page length").select_option("2 s")
    evidence = max(night, key=lambda item: item.probability_of("soz"))
    window = best_window(evidence)
    board = evidence.leaderboard(int(window["window"]))
    far = board[(board["start_s"] - window["start_s"]).abs() > 3].iloc[0]
    first, last = shown_page(page)
    assert first <= window["start_s"] < window["end_s"] <= last
    assert blue_pixels(page, ".plot canvas") == 0  # the neighbour is not on this page
    page.locator("table.neighbors button").nth(int(far["rank"]) - 1).click()
    first, last = shown_page(page)
    assert first <= far["start_s"] < far["end_s"] <= last
    assert current(page, "neighbors")[0] == str(int(far["rank"]))
    assert blue_pixels(page, ".plot canvas") > 100
    spans = [f"{item['start_s']:.2f} – {item['end_s']:.2f} s" for item in (window, far)]
    assert page.locator(".overlay .key span").all_text_contents() == [
        f"— window, {spans[0]}",
        f"— neighbour, {spans[1]}",
    ]
    assert page.locator(".overlay figcaption").all_text_contents() == ["as recorded", "z-scored"]
    assert blue_pixels(page, ".overlay canvas") > 200


# Keys -----------------------------------------------------------------------------------------------------


def test_everything_can_be_reached_by_keys(page, night):
    ranked = [row[1].split(" ")[0] for row in rows(page, "channels")]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert page.locator(".title h2").text_content() == ranked[1]
    page.get_by_label("Page length").select_option("5 s")
    page.locator("body").click(position={"x": 5, "y": 5})
    for _ in range(8):
        page.keyboard.press("ArrowLeft")
    assert shown_page(page) == (0.0, 5.0)
    page.keyboard.press("ArrowRight")
    assert shown_page(page) == (5.0, 10.0)
    evidence = night[CONTACTS.index(ranked[1])]
    page.keyboard.press("n")
    second = evidence.top_windows(2, "soz").iloc[1]
    assert current(page, "windows")[0] == "2"
    assert shown_page(page)[0] <= second["start_s"] < second["end_s"] <= shown_page(page)[1]
    page.keyboard.press("p")
    assert current(page, "windows")[0] == "1"
    page.keyboard.press("]")
    assert current(page, "neighbors")[0] == "2"
    page.keyboard.press("[")
    assert current(page, "neighbors")[0] == "1"
    page.keyboard.press("+")
    assert page.locator("output").text_content() == "× 1.5"
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("ArrowDown")  # does nothing while help is open
    page.keyboard.press("Escape")
    assert not page.get_by_role("dialog").is_visible()
    assert page.locator(".title h2").text_content() == ranked[1]


def test_buttons_are_buttons_with_names_and_focus_stays_visible(page):
    assert (
        page.evaluate(
            "[...document.querySelectorAll('button, select')].filter("
            "one => !(one.textContent.trim() || one.getAttribute('aria-label'))).length"
        )
        == 0
    )
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SELECT"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert page.evaluate(
        "[...document.querySelectorAll('table')].every(one => one.querySelectorAll('th[scope=col]').length > 2)"
    )


# What is shown of the signal ------------------------------------------------------------------------------


def test_filters_say_what_they_do_and_change_the_picture_alone(page):
    scores = rows(page, "channels")
    caption = page.locator(".trace .signal")
    assert caption.text_content() == "Every sample is shown. Unfiltered. Positive is up."
    plain = page.locator(".plot canvas").screenshot()
    page.get_by_label("High-pass").select_option("5 Hz")
    page.get_by_label("Low-pass").select_option("15 Hz")
    assert "high-pass 5 Hz, low-pass 15 Hz (Butterworth, 2nd order" in caption.text_content()
    assert "scores come from the unfiltered signal" in caption.text_content()
    assert "notch" not in caption.text_content()
    assert page.locator(".plot canvas").screenshot() != plain
    assert rows(page, "channels") == scores
    offered = page.get_by_label("Low-pass").locator("option").all_text_contents()
    assert offered == ["off", "15 Hz", "30 Hz", "40 Hz"]  # nothing at or above half of 100 Hz


def test_a_notch_is_named_for_what_it_is(show):
    page = show(recording(["A1"], rate=200.0))
    caption = page.locator(".trace .signal")
    page.get_by_label("Notch").select_option("50 Hz")
    assert "Filtered for display: notch 50 Hz (Q 30), forwards and backwards" in caption.text_content()
    assert "Butterworth" not in caption.text_content()


def test_where_only_an_envelope_is_kept_the_page_says_so(show, monkeypatch):
    monkeypatch.setattr("raxss.explain.export.report.contents.PAGE_SECONDS", 4.0)
    page = show(recording(["A1", "A2"], n_samples=20_000), full_bytes=6000)
    assert (
        "Grey band: envelope elsewhere (minimum to maximum in each 0.1 s)"
        in page.locator(".trace .signal").text_content()
    )
    kept = page.get_by_text("Full resolution around evidence, an envelope elsewhere")
    assert "its strongest window with 4 s around it" in kept.text_content()
    marked = page.locator("table.windows button")
    for place in range(marked.count()):
        marked.nth(place).click()
        if page.get_by_text("The file contains only the envelope").count():
            break
    else:
        pytest.fail("every window is there at full resolution, though there was no room for it")


def test_one_channel_of_several_variates_and_three_classes(show):
    rng = np.random.default_rng(2)
    series = Series(signal(rng, 1500, n_variates=3), 50.0, name="watch 3", label="walk")
    evidence = evidence_of(series, classes=("rest", "walk", "run"))
    page = show(evidence)
    assert page.locator("table.channels").count() == 0
    assert page.locator(".electrodes").count() == 0
    assert page.get_by_label("Class shown").locator("option").all_text_contents() == ["rest", "walk", "run"]
    assert f"predicted {evidence.predicted} (rest " in page.locator(".title").text_content()
    assert "known label: walk" in page.locator(".title").text_content()
    for class_ in ("walk", "run", "rest"):
        page.get_by_label("Class shown").select_option(class_)
        assert f"P({class_}) = {evidence.probability_of(class_):.3f}" == page.locator(".score").text_content()
        assert rows(page, "windows")[0][1].startswith(f"{best_window(evidence, class_)['start_s']:.2f}")
    assert page.locator("#report .overlay canvas").count() == 2


def test_gaps_lonely_windows_and_a_padded_series_open_too(show):
    rng = np.random.default_rng(4)
    gap = signal(rng, 1000)
    gap[0, 200:400] = np.nan
    for series, options in (
        (Series(gap, 100.0, gaps_marked=True), {}),
        (Series(signal(rng, 40), 100.0), {}),  # shorter than a window
        (Series(signal(rng, 100), 1.0), {"exclusion": 1000}),  # nobody has a neighbour; no rate is known
        (Series(np.zeros(600), 100.0), {}),
        (Series(signal(rng, 800), 100.0), {"weighting": "uniform"}),
        (Series(signal(rng, 800), 100.0), {"smoothing": 0.5}),
    ):
        evidence = evidence_of(series, **options)
        page = show(evidence)
        assert page.locator(".warnings li").all_text_contents() == evidence.warnings
        assert f"{evidence.probability_of():.3f}" in page.locator(".score").text_content()


# Look -----------------------------------------------------------------------------------------------------

LUMINANCE = """
() => {
    const lum = rgb => rgb.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const parts = text => (text.match(/[\\d.]+/g) || []).map(Number);
    const ground = one => { for (; one; one = one.parentElement) {
        const c = parts(getComputedStyle(one).backgroundColor);
        if (c.length === 3 || c[3] > 0.9) return c.slice(0, 3);
    } return [255, 255, 255]; };
    const found = [];
    for (const one of document.querySelectorAll("#report *")) {
        const own = [...one.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
        if (!own || !one.checkVisibility()) continue;
        const style = getComputedStyle(one), svg = one instanceof SVGElement;
        const a = lum(parts(svg ? style.fill : style.color).slice(0, 3)), b = lum(ground(one));
        const onBar = svg && one.classList.contains("onbar");
        found.push([one.textContent.slice(0, 30), parseFloat(style.fontSize),
                    onBar ? 21 : (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]);
    }
    return found;
}
"""


def test_no_text_is_small_or_faint(page):
    found = page.evaluate(LUMINANCE)
    assert len(found) > 200
    assert [item for item in found if item[1] < 12] == []
    assert [item for item in found if item[2] < 4.5] == []


def test_darker_heat_is_more_probable_for_every_eye(page):
    """Lightness alone tells probabilities apart, so no colour need be seen."""
    colors = page.evaluate(
        "[...document.querySelectorAll('.channels .chip')].map(one => getComputedStyle(one).backgroundColor)"
    )
    lightness = [
        float(np.dot([0.2126, 0.7152, 0.0722], list(map(int, re.findall(r"\d+", color))))) for color in colors
    ]
    assert lightness == sorted(lightness)  # the table goes from the most probable down
    assert lightness[-1] - lightness[0] > 3


# Jupyter --------------------------------------------------------------------------------------------------


def test_evidence_and_reports_show_themselves_in_a_notebook(browser, night, tmp_path):
    for shown in (night[0], report_of(night)):
        notebook = tmp_path / "notebook.html"
        notebook.write_text(f"<!doctype html><title>notebook</title>{shown._repr_html_()}", encoding="utf-8")
        page = browser._chromium.new_page()
        errors = []
        page.on("console", lambda message, errors=errors: errors.append(message.text))
        page.goto(notebook.as_uri())
        frame = page.frame_locator("iframe")
        frame.locator("#report[data-ready]").wait_for()
        assert frame.get_by_role("note").text_content().startswith("Research use only")
        inside = page.frames[1]
        assert (
            inside.evaluate(
                "() => { try { return String(parent.document.title) } catch (e) { return 'no' } }"
            )
            == "no"
        )
        assert errors == []
        page.close()


# Hostile texts --------------------------------------------------------------------------------------------


def assert_harmless(page):
    """No text ran, became an element, or requested anything."""
    assert page.evaluate("window.canary") is None
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    assert (
        page.evaluate(
            "document.querySelectorAll('img, iframe, object, embed, link, base, form, a, marquee, "
            "style:not(head style), video, math, details, animate, b, i, template').length"
        )
        == 0
    )
    assert page.evaluate(
        "[...document.querySelectorAll('*')].every(one => ![...one.attributes].some(a => a.name.startsWith('on')))"
    )
    assert_quiet(page)


def test_there_are_sixty_hostile_texts_and_many_would_run_on_a_careless_page(browser, tmp_path):
    assert len(set(HOSTILE)) == 60
    page = browser._chromium.new_page()
    ran = 0
    for text in (item for item in HOSTILE if "example.invalid" not in item):  # those leave the page
        page.set_content("<p>")
        page.evaluate(
            "text => { delete window.canary; const range = document.createRange();"
            "document.body.append(range.createContextualFragment(text)) }",
            text,
        )
        ran += page.evaluate("new Promise(done => setTimeout(() => done(window.canary === 1), 20))")
    page.close()
    assert ran > 15


def test_what_gets_onto_the_page_all_the_same_may_neither_run_nor_load(browser, night, tmp_path):
    page = opened(browser, tmp_path, night[:1])
    refused = []
    page.on("requestfailed", lambda request: refused.append((request.url, request.failure)))
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.canary = 1";
            document.body.append(script);
            const handler = document.createElement("div");
            handler.setAttribute("onclick", "window.canary = 2");
            document.body.append(handler);
            handler.click();
            new Image().src = "https://example.invalid/x.png";
            fetch("https://example.invalid/").catch(() => undefined);
        }"""
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.canary") is None
    assert len(page.logged) >= 4  # the policy names what it kept from running
    assert all("Content Security Policy" in item for item in page.logged)
    assert [(url, "csp") for url in page.requested[1:]] == refused  # named, and never sent
    page.close()


def test_hostile_channels_labels_and_warnings_are_shown_as_text(show):
    evidence = []
    for place, text in enumerate(HOSTILE):
        (item,) = recording([text], name="x", n_samples=400, label=HOSTILE[-1 - place])
        item.warnings.append(text)
        evidence.append(item)
    page = show(evidence, model=FACTS)
    assert len(rows(page, "channels")) == 60
    for _ in range(60):
        page.keyboard.press("ArrowDown")
    page.get_by_text("<script>window.canary=1</script>").first.wait_for()
    assert_harmless(page)
    page.emulate_media(media="print")
    page.pdf()
    assert_harmless(page)


def hostile_page(show, texts):
    """A page that has a hostile text wherever a text can come from outside; ``texts``: twelve."""
    name, first, second, label, *facts = texts
    channel, network, split, preparation, version, key, value, kind = facts
    model = FACTS | {
        "network": network,
        "preparation": preparation,
        "calibration": kind,
        "versions": {version: key},
        "training_data": FACTS["training_data"] | {"split": split, "classes": {kind: 3}},
    }
    rng = np.random.default_rng(1)
    series = Series(signal(rng, 400), 100.0, name=channel, label=label, preparation=preparation)
    evidence = evidence_of(series, classes=(f"{first}a", f"{second}b"))
    evidence.settings[key] = value
    evidence.warnings.append(value)
    return show(evidence, name=name, model=model)


@pytest.mark.parametrize("first", range(0, 60, 12))
def test_hostile_recordings_classes_and_model_cards_are_shown_as_text(show, first):
    page = hostile_page(show, HOSTILE[first : first + 12])
    assert_harmless(page)


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE)
def test_each_hostile_text_is_harmless_in_every_field_at_once(show, text):
    page = hostile_page(show, [text] * 12)
    page.get_by_label("Class shown").select_option(index=1)
    for key in ("n", "]", "ArrowRight", "?", "Escape"):
        page.keyboard.press(key)
    assert_harmless(page)


def test_escaped_text_is_the_only_way_a_name_reaches_the_file(tmp_path):
    (item,) = recording(["</script><script>window.canary=1</script>"], n_samples=400)
    page = report_of(item).save(tmp_path / "r.html").read_text()
    assert page.count("<script") == 2
    assert "canary" in html.unescape(page)


# 128 channels × 1 million samples -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_large_recording_is_small_on_disk_and_quick_to_open_and_redraw(browser, tmp_path, capsys):
    rng = np.random.default_rng(0)
    steps = rng.integers(-40, 41, size=(128, 1_000_000), dtype=np.int8)
    names = [
        *(f"G{number}" for number in range(1, 65)),
        *(f"{shaft}{n}" for shaft in "ABCDEFGH" for n in range(1, 9)),
    ]

    def evidence():
        for place, name in enumerate(names):
            walk = np.cumsum(steps[place], dtype=np.float32)
            series = Series(walk, 1000.0, name=f"large:{name}{place}", origin={"channel": f"{name}{place}"})
            yield evidence_of(series, seed=place, window_length=1024, stride=2048, n_neighbors=10)

    path = report_of(evidence(), model=FACTS).save(tmp_path / "large.html")
    size = path.stat().st_size / 1e6
    loads, redraws = [], []
    frame = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    for _ in range(3):
        page = browser.open(path)
        page.evaluate(frame)
        loads.append(page.evaluate("performance.now()") / 1e3)
        for key in ("ArrowDown", "n", "]", "ArrowRight"):
            redraws.append(
                page.evaluate(
                    "async key => { const began = performance.now();"
                    "document.dispatchEvent(new KeyboardEvent('keydown', {key}));"
                    f"await {frame}; return performance.now() - began; }}",
                    key,
                )
                / 1e3
            )
        assert_quiet(page)
        page.close()
    load, redraw = float(np.median(loads)), float(np.quantile(redraws, 0.9))
    with capsys.disabled():
        print(
            f"\n128 x 1,000,000 samples: {size:.1f} MB, load {load:.2f} s, redraw {redraw:.2f} s", flush=True
        )
    assert size < 15
    assert load < 3 * 1.5
    assert redraw < 3 * 0.25
