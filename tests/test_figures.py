"""Claims about the figures: that they draw everything, show the true numbers, and leave the world alone."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose

from raxss.data.series import Series
from raxss.errors import DataError
from raxss.explain import SeriesEvidence, plot_contributions, plot_overlay
from raxss.explain.figures import envelope, plot_reliability
from raxss.uncertainty.reliability import reliability_table
from test_evidence import explain as evidence_of


def explain(series: Series, *, window_length: int = 40, **settings: Any) -> SeriesEvidence:
    return evidence_of(series, window_length=window_length, **settings)


def noise(n: int = 600, n_variates: int = 1, **about: Any) -> Series:
    samples = np.random.default_rng(0).normal(size=(n_variates, n))
    return Series(samples, **{"rate": 20.0, "name": "noise", "label": "yes", **about})


def words(figure: Any) -> str:
    """All text of a figure, after drawing it."""
    figure.canvas.draw()
    return "\n".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


def draw_both(evidence: SeriesEvidence, **options: Any) -> None:
    for figure in (plot_overlay(evidence, **options), plot_contributions(evidence).figure):
        figure.canvas.print_figure(io.BytesIO(), format="png", dpi=50)


def with_gap() -> Series:
    samples = noise().samples.copy()
    samples[0, 200:260] = np.nan
    samples[0, 400] = np.inf
    return noise().with_samples(samples)


@pytest.mark.parametrize(
    ("series", "settings"),
    [
        (noise(), {"exclusion": 20}),
        (noise(40), {}),  # one window
        (noise(1), {}),  # padded
        (with_gap(), {"exclusion": 20}),
        (noise(n_variates=3), {"exclusion": 20}),
        (noise(n_variates=30), {"exclusion": 20}),
        (noise(), {"classes": [0, 1, 2]}),
        (noise(80), {"exclusion": 10_000}),  # no neighbours
        (noise(50), {}),  # windows nearly as long as the series
        (noise(label=None, start_seconds=86_400.0, rate=1.0), {}),
        (Series(np.zeros(600), name="flat"), {}),
        (Series(np.arange(600), name="integers"), {}),
    ],
    ids=lambda value: "" if isinstance(value, dict) else f"{value.name}-{value.n_variates}x{value.n_samples}",
)
def test_every_kind_of_series_can_be_drawn(series, settings):
    draw_both(explain(series, **settings))


def test_hostile_text_is_drawn_as_it_is():
    name = "a$b_1$ <c>\n\\frac{\t\x00\udcff"
    evidence = explain(noise(name=name, label="$x^$"), classes=["$x^$", "_{"])
    text = words(plot_overlay(evidence))
    assert "a$b_1$ <c> \\frac{" in text
    assert "labelled $x^$" in text
    assert "\x00" not in text
    assert "P($x^$)" in words(plot_contributions(evidence, class_="$x^$").figure)


def test_the_overlay_says_what_was_predicted_and_what_a_reader_must_know():
    evidence = explain(noise(), n_neighbors=3)
    text = words(plot_overlay(evidence))
    assert (
        f"noise: predicted {evidence.predicted} (P = {evidence.probability_of():.3f}), labelled yes" in text
    )
    assert f"{evidence.effective_windows:.4g} of 113 windows effective" in text
    assert f"{100 * evidence.overlap_share:.3g} % of listed neighbours overlap" in text
    assert "Research use only" in text
    assert "time (s)" in text
    other = next(class_ for class_ in evidence.classes if class_ != evidence.predicted)
    assert f"P({other}) = {evidence.probability_of(other):.3f}" in words(plot_overlay(evidence, class_=other))


def test_the_overlay_shows_the_strongest_window_and_its_best_neighbors_by_default():
    evidence = explain(noise(), exclusion=20)
    strongest = int(evidence.top_windows(1)["window"].item())
    text = words(plot_overlay(evidence, n_support=2))
    board = evidence.leaderboard(strongest)
    assert f"window {strongest}, weight" in text
    assert f"1  ({board['similarity'][0]:.3f})" in text
    assert f"2  ({board['similarity'][1]:.3f})" in text
    assert f"3  ({board['similarity'][2]:.3f})" not in text
    assert "window 17, weight" in words(plot_overlay(evidence, window=17))


def test_the_supporting_windows_lie_at_their_times():
    evidence = explain(noise(), exclusion=20)
    board = evidence.leaderboard(17)
    lanes = plot_overlay(evidence, window=17, n_support=3).axes[1]
    spans = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in lanes.patches]
    query = evidence.windows.iloc[17]
    assert_allclose(spans[0], [query["start_s"], query["end_s"]])
    assert_allclose(spans[1:], board[["start_s", "end_s"]].head(3))


@pytest.mark.parametrize(("smoothing", "column"), [(0.0, "posterior"), (0.5, "smoothed")])
def test_the_heat_strip_is_the_mean_of_the_windows_that_cover_each_time(smoothing, column):
    evidence = explain(with_gap(), exclusion=20, smoothing=smoothing)
    table = evidence.windows[~evidence.windows["nonfinite"]]
    (image,) = plot_overlay(evidence).axes[2].images
    drawn = np.ma.filled(image.get_array(), np.nan)[0]
    begin, end, *_ = image.get_extent()
    times = begin + (np.arange(len(drawn)) + 0.5) * (end - begin) / len(drawn)
    for time, value in zip(times[::13], drawn[::13], strict=True):
        covering = table[(table["start_s"] <= time) & (time < table["end_s"])]
        assert_allclose(value, covering[f"{column}_{evidence.predicted}"].mean(), atol=1e-12)
    assert np.isnan(drawn).any()
    assert image.get_clim() == (0, 1)


def test_spikes_and_gaps_survive_thinning():
    generator = np.random.default_rng(6)
    values = generator.normal(size=100_003)
    values[[17, 99_999]] = [40.0, -50.0]
    values[50_000:60_000] = np.nan
    times = np.arange(len(values)) / 250
    x, y = envelope(times, values, 1000)
    assert len(y) <= 1000
    assert np.nanmax(y) == 40
    assert np.nanmin(y) == -50
    assert (np.diff(x) >= 0).all()
    assert np.isnan(y[(x > 202) & (x < 238)]).all()
    assert not np.isnan(y[(x < 198) | (x > 242)]).any()
    assert len(envelope(times[:900], values[:900], 1000)[1]) == 900


def test_a_long_signal_is_drawn_with_few_points():
    signal = plot_overlay(explain(noise(20_000), stride=500), max_points=500).axes[0]
    assert max(len(line.get_xdata()) for line in signal.lines) <= 500
    figure = Figure(figsize=(6, 9))
    assert plot_overlay(explain(noise()), figure=figure) is figure
    assert len(figure.axes) == 6


def test_the_staircase_climbs_to_the_score():
    evidence = explain(noise(), exclusion=20)
    bars = plot_contributions(evidence, n=7).patches
    ends = [bar.get_x() + bar.get_width() for bar in bars]
    assert len(bars) == 9  # the others, seven windows, the sum
    assert_allclose(ends[-2:], evidence.probability_of(), rtol=1e-12)
    assert_allclose([bar.get_x() for bar in bars[1:-1]], ends[:-2])  # each step starts where the last ended
    contributions = evidence.top_windows(7)[f"contribution_{evidence.predicted}"]
    assert_allclose([bar.get_width() for bar in bars[1:-1]], contributions[::-1])
    ax = Figure().add_subplot()
    for series, is_cut in ((noise(), True), (noise(60), False)):  # the axis is cut only where it says so
        drawn = plot_contributions(explain(series), n=5, ax=None if is_cut else ax)
        assert ((drawn.get_xlim()[0] > 0), "axis cut" in drawn.get_xlabel()) == (is_cut, is_cut)
    assert drawn is ax


def test_no_text_leaves_the_page():
    evidence = explain(noise(name="n" * 80, label="l" * 40), classes=["c" * 40, "l" * 40], exclusion=20)
    for class_ in evidence.classes:
        figure = plot_overlay(evidence, class_=class_)
        page = figure.bbox
        renderer = figure.canvas.get_renderer() if hasattr(figure.canvas, "get_renderer") else None
        for text in figure.findobj(lambda artist: hasattr(artist, "get_text") and artist.get_text().strip()):
            if text.get_visible():
                box = text.get_window_extent(renderer)
                assert box.x0 >= page.x0 - 1, text.get_text()
                assert box.x1 <= page.x1 + 1, text.get_text()


def test_evidence_loaded_without_its_series_says_how_to_draw_it(tmp_path):
    evidence = explain(noise())
    place = evidence.save(tmp_path)
    with pytest.raises(DataError, match="evidence of 'noise' was loaded without its samples"):
        plot_overlay(SeriesEvidence.load(place))
    again = SeriesEvidence.load(place, series=evidence.series)
    for class_ in again.classes:
        assert words(plot_overlay(again, class_=class_)) == words(plot_overlay(evidence, class_=class_))


def test_drawing_leaves_pyplot_alone():
    code = (
        "import sys; from test_figures import draw_both, explain, noise; draw_both(explain(noise(100)));"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=False)
    assert done.returncode == 0


# Reliability --------------------------------------------------------------------------------------------------


def test_the_reliability_diagram_has_a_point_a_bin(rng):
    predicted = rng.uniform(size=300)
    rows = reliability_table(
        (rng.uniform(size=300) < predicted).astype(int), np.stack([1 - predicted, predicted], axis=1)
    )
    ax = Figure().add_subplot()
    assert plot_reliability({"uncalibrated": rows, "calibrated": rows}, class_="soz", ax=ax) is ax
    lines = [line for line in ax.lines if line.get_marker() in ("o", "s")]
    assert len(lines) == 2
    for line in lines:
        np.testing.assert_allclose(np.asarray(line.get_xdata(), float), [row["said"] for row in rows])
        np.testing.assert_allclose(np.asarray(line.get_ydata(), float), [row["found"] for row in rows])
    assert [text.get_text() for text in ax.texts] == [str(row["n"]) for row in rows]
    assert ax.get_xlabel() == "predicted probability of 'soz'"
    with pytest.raises(DataError, match="no rows"):
        plot_reliability({"uncalibrated": []})
