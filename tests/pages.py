"""Reports and a browser to open them in, for the tests of the page.

The browser is Debian's Chromium, headless. Where it, playwright or node is absent the tests that need it skip and
say so; with RAXSS_BROWSER_TESTS=required they fail instead, so that a skip cannot pass for a success.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from raxss import Series
from raxss.explain import Report, report_of, trace
from raxss.method.aggregation import aggregate
from raxss.method.retrieval import retrieve
from raxss.method.windows import windows_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


def needed(thing, found):
    """Skip a test whose tool is absent, unless skipping is forbidden."""
    if found:
        return
    if os.environ.get("RAXSS_BROWSER_TESTS") == "required":
        pytest.fail(f"{thing} is absent, and RAXSS_BROWSER_TESTS=required forbids to skip")
    pytest.skip(f"{thing} is absent")


def signal(rng, n_samples, n_variates=1):
    """Slow noise."""
    walk = np.cumsum(rng.normal(size=(n_variates, n_samples)), axis=1)
    return walk - walk.mean(axis=1, keepdims=True)


def traced(series, posteriors, *, classes, window_length, stride, settings=None, **options):
    """Evidence with real retrieval; ``posteriors`` of all windows, or a function of their number."""
    aggregating = {
        key: options.pop(key) for key in ("weighting", "smoothing", "temperature") if key in options
    }
    windows = windows_of(series, window_length=window_length, stride=stride)
    found = retrieve(series.samples, window_length=window_length, stride=stride, **options)
    values = posteriors(len(windows)) if callable(posteriors) else posteriors
    added = aggregate(values, found.support, neighbors=found.neighbors, flat=found.flat, **aggregating)
    return trace(series, windows, found, added, classes=classes, settings=settings)


def evidence_of(series, *, seed=0, classes=("other", "soz"), window_length=64, **options):
    """Evidence of random posteriors."""

    def posteriors(n):
        scores = np.exp(np.random.default_rng(seed).normal(size=(n, len(classes))))
        return scores / scores.sum(axis=1, keepdims=True)

    options = {"stride": 16, "n_neighbors": 5, "exclusion": window_length // 2, **options}
    settings = {"config_hash": "0123abcd"}
    return traced(
        series, posteriors, classes=classes, window_length=window_length, settings=settings, **options
    )


def recording(names, *, name="night", n_samples=3000, rate=100.0, label=None, **options):
    """The evidence of one recording of these channels."""
    rng = np.random.default_rng(7)
    return [
        evidence_of(
            Series(
                signal(rng, n_samples),
                rate,
                name=f"{name}:{channel}",
                origin={"recording": name, "channel": channel},
                label=label,
            ),
            seed=place,
            **options,
        )
        for place, channel in enumerate(names)
    ]


CONTACTS = [*(f"LA{number}" for number in range(1, 7)), *(f"PD{number}" for number in range(1, 5))]
FACTS = {
    "config_hash": "0123abcd",
    "network": "ConvNet, 12 parameters",
    "window_length": 64,
    "versions": {"raxss": "0"},
    "training_data": {
        "n_series": 30,
        "n_validation": 4,
        "n_groups": 9,
        "classes": {"other": 25, "soz": 5},
        "rates": [100.0],
        "n_samples": [1000, 9000],
        "series": ["deadbeef"],
        "split": None,
    },
}


class Browser:
    """One Chromium; pages that remember what they logged and requested."""

    def __init__(self, chromium):
        self._chromium = chromium

    def open(self, path: Path, *, width=1400, height=900):
        page = self._chromium.new_page(viewport={"width": width, "height": height})
        page.logged, page.requested = [], []
        page.on("console", lambda message: page.logged.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: page.logged.append(f"error: {error}"))
        page.on("request", lambda request: page.requested.append(request.url))
        page.on("dialog", lambda dialog: (page.logged.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(path.as_uri())
        page.wait_for_selector("#report[data-ready]", timeout=20_000)
        return page


def opened(browser, folder, what, *, width=1400, **options):
    """The page of a report, or of evidence, in the browser."""
    report = what if isinstance(what, Report) else report_of(what, **options)
    return browser.open(report.save(folder / "report.html", overwrite=True), width=width)


def shown_page(page):
    """First and last second on the page."""
    return tuple(map(float, page.get_attribute("#report", "data-page").split()))


def rows(page, table):
    """The texts of a table's body."""
    return page.evaluate(
        "name => [...document.querySelectorAll(`table.${name} tbody tr`)].map("
        "row => [...row.cells].map(cell => cell.textContent))",
        table,
    )


def assert_quiet(page):
    """Nothing was logged, and nothing requested but the file itself."""
    assert not page.logged, page.logged
    assert len(page.requested) == 1, page.requested
    assert page.requested[0].startswith("file:///")
