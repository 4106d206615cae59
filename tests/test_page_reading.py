"""Tests of the texts of a report page and of its print, in headless Chromium."""

import re
import zlib

import numpy as np
import pytest

from pages import CONTACTS, FACTS, evidence_of, recording, rows, shown_page, signal
from raxss import Series
from raxss.explain import report_of


def best_of(night):
    """The evidence of the first channel, and its first window."""
    evidence = max(night, key=lambda item: item.probability_of("soz"))
    return evidence, evidence.top_windows(1, "soz").iloc[0]


# What a window says, and what the strips say --------------------------------------------------------------


def pixel(page, canvas, x, y):
    """Red, green and blue there."""
    return page.evaluate(
        """([canvas, x, y]) => {
            const copy = document.createElement("canvas").getContext("2d");
            copy.drawImage(document.querySelector(canvas), Math.round(x), Math.round(y), 1, 1, 0, 0, 1, 1);
            return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }""",
        [canvas, x, y],
    )


def test_beside_the_means_stands_what_the_chosen_window_says_by_itself(page, night):
    evidence, window = best_of(night)
    table, moment = evidence.windows, window["end_s"] - 0.02
    over = (table["start_s"] <= moment) & (table["end_s"] > moment)
    assert table["posterior_soz"][over].mean() < window["posterior_soz"] - 0.1  # the strip says otherwise
    strips = page.locator(".trace > canvas")
    weight = window["weight"] * len(table)
    assert strips.get_attribute("aria-label").startswith(
        f"window 1: p {window['posterior_soz']:.3f}, weight × {weight:.3g};"
    )
    first, last = shown_page(page)
    x = 78 + (moment - first) / (last - first) * (strips.bounding_box()["width"] - 90)
    chip = page.locator("table.windows .chip").first
    own = [
        int(item)
        for item in re.findall(r"\d+", chip.evaluate("one => getComputedStyle(one).backgroundColor"))
    ]
    assert pixel(page, ".trace > canvas", x, 6) == own
    assert sum(pixel(page, ".trace > canvas", x, 34)) > sum(own)  # paler
    assert (
        "at each time the mean over all windows that cover it"
        in page.locator(".trace .strips").text_content()
    )
    assert page.locator(".legend").text_content().startswith("p(soz), mean over the windows at each time")


def test_warnings_are_counted_beside_the_score_and_listed_below(show):
    (item,) = recording(["A1"], n_samples=1500)
    item.warnings[:] = ["the first", "the second"]
    page = show(item)
    warnings = page.locator(".title").get_by_role("button", name="⚠ 2 warnings")
    assert warnings.get_attribute("title") == "the first\nthe second"
    warnings.click()
    box = page.locator(".warnings li").first.bounding_box()
    assert 0 < box["y"] < 900
    item.warnings.clear()
    page = show(item)
    assert page.locator(".title .warned").count() == 0


# What the reader looks at stays ---------------------------------------------------------------------------


def test_another_class_goes_to_its_first_channel_until_the_reader_has_chosen_one(page, night):
    before = [row[1] for row in rows(page, "channels")]
    page.get_by_label("Rank by probability of").select_option("other")
    assert [row[1] for row in rows(page, "channels")] == before[::-1]
    assert "P(other)" in page.locator(".title .score").text_content()
    assert page.locator(".title h2").text_content() == rows(page, "channels")[0][1].split(" ")[0]
    page.get_by_label("Rank by probability of").select_option("soz")
    assert page.locator(".title h2").text_content() == rows(page, "channels")[0][1].split(" ")[0]
    page.get_by_role("button", name="LA3", exact=True).click()
    page.get_by_label("Rank by probability of").select_option("other")
    assert page.locator(".title h2").text_content() == "LA3"
    best = night[CONTACTS.index("LA3")].top_windows(1, "other").iloc[0]
    assert rows(page, "windows")[0][1] == f"{best['start_s']:.2f} – {best['end_s']:.2f} s"


def test_after_a_choice_with_the_mouse_keys_turn_pages_again(page):
    choice = page.get_by_label("Page length")
    choice.select_option("2 s")
    page.locator("table.windows button").first.click()
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
    choice.dispatch_event("pointerdown")
    choice.focus()
    choice.select_option("1 s")
    (begin, _) = shown_page(page)
    page.keyboard.press("ArrowRight")
    assert shown_page(page) == (begin + 1, begin + 2)
    choice.focus()
    page.keyboard.press("ArrowDown")  # who chooses with the keyboard stays in the list
    assert choice.input_value() == "2"
    assert choice.evaluate("one => one === document.activeElement")


def test_a_click_on_a_name_of_the_overview_goes_to_the_strongest_window_of_the_channel(page, night):
    page.get_by_label("Page length").select_option("2 s")
    name = rows(page, "channels")[4][1].split(" ")[0]
    box = page.locator("canvas.over").bounding_box()
    page.mouse.click(box["x"] + 60, box["y"] + 4.5 / len(CONTACTS) * box["height"])
    assert page.locator(".title h2").text_content() == name
    best = night[CONTACTS.index(name)].top_windows(1, "soz").iloc[0]
    assert best["start_s"] > 1  # a click that went to the beginning would be found out
    first, last = shown_page(page)
    assert first <= best["start_s"] < best["end_s"] <= last


def test_two_channels_of_one_contact_are_one_in_the_schematic_with_a_note(show):
    page = show(recording(["LA1-REF", "LA1-AVG", "LA2", "LA3"], n_samples=1000))
    assert page.locator(".electrodes button").count() == 3
    assert "1 more channel is of a contact that is already shown" in page.locator(".contacts").text_content()


# Texts that depend on the recording -----------------------------------------------------------------------


def test_where_no_rate_is_known_nothing_is_in_seconds_and_a_page_shows_a_window(show):
    series = Series(signal(np.random.default_rng(5), 2000), 1.0, name="plain")
    evidence = evidence_of(series)
    window = evidence.top_windows(1).iloc[0]
    page = show(evidence, model=FACTS)
    text = page.locator("#report").inner_text()
    assert re.findall(r"\d s\b", text) == []
    assert "2000 samples, rate unknown" in text
    assert rows(page, "windows")[0][1] == f"{window['start_s']:.0f} – {window['end_s']:.0f}"
    first, last = shown_page(page)
    assert first <= window["start_s"] < window["end_s"] <= last
    assert last - first == 4 * 64
    offered = page.get_by_label("Page length").locator("option").all_text_contents()
    assert offered == ["64 samples", "128 samples", "256 samples", "640 samples", "all"]


def test_a_window_alone_equal_weights_and_windows_that_do_not_overlap_have_their_own_words(show):
    page = show(evidence_of(Series(signal(np.random.default_rng(6), 40), 100.0)))
    text = page.locator("#report").inner_text()
    assert rows(page, "windows")[0][3] == "–"  # nobody is like it, which is no support of 0
    assert "This window has no neighbour to overlay." in text
    assert "There is only one usable window, so the weights have no effect." in text
    assert "there is one window, and it is the score" in text
    page = show(evidence_of(Series(np.full(1500, 3.0), 100.0)))
    assert {row[5] for row in rows(page, "neighbors")} == {"0"}  # what rounding leaves over is no number
    assert page.locator(".weights").last.text_content().endswith("All weights are equal.")
    page = show(recording(["A1"], window_length=64, stride=64))
    assert "those of the window at each time" in page.locator(".trace .strips").text_content()


def test_a_gap_is_said_to_be_one(show):
    samples = signal(np.random.default_rng(4), 3000)
    samples[0, 1100:1300] = np.nan
    page = show(evidence_of(Series(samples, 100.0, gaps_marked=True)))
    caption = page.locator(".trace .signal")
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    assert "gap" not in caption.text_content()
    page.keyboard.press("ArrowRight")
    assert "Where no line is drawn the recording has a gap." in caption.text_content()


def test_the_bank_of_one_channel_is_not_shown_as_that_of_all(show):
    several = [*recording(["A1"], n_samples=3000), *recording(["A2"], n_samples=1000)]
    page = show(several, model=FACTS)
    terms = page.locator(".made dt").all_text_contents()
    assert "bank" in terms
    assert not {"bank (s)", "bank (windows)"} & set(terms)
    page = show(recording(["A1"], bank="local", bank_size=50), model=FACTS)
    assert {"bank (s)", "bank (windows)"} <= set(page.locator(".made dt").all_text_contents())


# On screens and on paper ----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [800, 1100, 1280, 1400, 1920])
def test_no_table_is_cut_on_common_screens(show, night, width):
    page = show(report_of(night, model=FACTS), width=width)
    page.get_by_role("button", name="PD2", exact=True).click()
    for place in range(12):
        page.locator("table.windows button").nth(place).click()
        hidden = "boxes => boxes.map(one => one.scrollWidth - one.clientWidth)"
        assert page.locator(".list > div, div.channels").evaluate_all(hidden) == [0, 0, 0]
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def images_of(pdf):
    """Width, height and bytes of the pictures in a PDF."""
    found = []
    for match in re.finditer(
        rb"<<(?:(?!<<|endobj).)*?/Subtype /Image(?:(?!endobj).)*?stream\r?\n", pdf, re.DOTALL
    ):
        width, height, length = (
            int(re.search(rb"/%s (\d+)" % name, match[0])[1]) for name in (b"Width", b"Height", b"Length")
        )
        found.append((width, height, zlib.decompress(pdf[match.end() : match.end() + length])))
    return found


def test_the_heat_map_is_on_paper_too(page, tmp_path):
    """Chromium leaves out pixels that were put into a canvas, and prints an empty canvas white over another."""
    page.pdf(path=tmp_path / "print.pdf", prefer_css_page_size=True)
    wide = [image for image in images_of((tmp_path / "print.pdf").read_bytes()) if image[0] == 690]
    assert len(wide) == 1
    width, height, content = wide[0]
    pixels = np.frombuffer(content, np.uint8).reshape(height, width, 3).astype(int)
    warm = (pixels[..., 0] > 200) & (pixels[..., 0] - pixels[..., 2] > 30)  # orange, from pale to strong
    assert warm[:, 110:670].mean() > 0.5
    page.emulate_media(media="print")
    assert not page.locator("canvas.over").is_visible()


def test_the_overview_of_many_channels_fits_one_sheet(show):
    names = [f"G{number}" for number in range(1, 121)]
    page = show(recording(names, n_samples=400))
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".all").bounding_box()["height"] < (297 - 27) / 25.4 * 96  # A4 less its margins


def test_it_prints_on_a4_with_its_note_and_without_controls(page, tmp_path):
    page.pdf(path=tmp_path / "print.pdf", prefer_css_page_size=True)
    content = (tmp_path / "print.pdf").read_bytes()
    boxes = {tuple(map(float, box.split())) for box in re.findall(rb"/MediaBox ?\[([^\]]*)\]", content)}
    ((left, bottom, right, top),) = boxes
    assert (right - left, top - bottom) == (pytest.approx(595, abs=1), pytest.approx(842, abs=1))
    assert 2 <= content.count(b"/Type /Page\n") + content.count(b"/Type /Page ") <= 8
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 703, "height": 1000})  # A4 less its margins
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert not page.locator(".controls").is_visible()
    assert page.get_by_role("note").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 703
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
