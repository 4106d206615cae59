"""What a report says about the trust in its scores, in its data and in a real browser."""

import importlib.util
import json

import numpy as np
import pytest

from pages import CHROMIUM, Browser, assert_quiet, needed
from raxss import RAxSSClassifier
from raxss.evidence.channel_page import said_of_doubt
from raxss.evidence.report.verifying import verify_report
from toys import SMALL, waves

SETTINGS = {**SMALL, "batch_size": 32, "lr": 1e-2}


@pytest.fixture(scope="module")
def series():
    return waves(np.random.default_rng(69421), n_series=36)


@pytest.fixture(scope="module")
def model(series):
    settings = {"calibration": "venn-abers", "calibration_level": "series", "conformal_alpha": 0.1}
    return RAxSSClassifier(**SETTINGS, **settings).fit(series[:12], validation=series[12:])


@pytest.fixture(scope="module")
def browser():
    needed("chromium", CHROMIUM)
    needed("playwright", importlib.util.find_spec("playwright"))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield Browser(chromium)
        chromium.close()


def test_the_data_of_a_report_has_both_numbers_the_interval_the_set_and_the_trial(model, series):
    report, evidence = model.report(series[0]), model.explain(series[0])
    (channel,) = report.contents["channels"]
    assert channel["probability"] == evidence.series_probability.tolist()
    assert channel["doubt"] == {
        "calibrated": evidence.probability.tolist(),
        "interval": evidence.interval.to_json(),
        "set": [one in evidence.prediction_set for one in evidence.classes],
        "abstains": evidence.abstains,
    }
    trial = report.contents["trial"]
    assert trial["reliability"] == json.loads(json.dumps(dict(model.trial_.reliability)))
    assert trial["n_series"] == 24
    assert "scores" not in trial


def test_a_changed_interval_or_set_is_found_by_verification(model, series):
    for name, change in (("abstains", None), ("set", [True, True, True]), ("calibrated", [0.5, 0.5])):
        changed, again = model.report(series[0]), model.report(series[0])
        changed.contents["channels"][0]["doubt"][name] = change
        found = verify_report(changed, again).differences
        assert found
        assert f"doubt.{name}" in found[0]


def test_a_report_of_evidence_alone_has_no_trial(model, series):
    from raxss.evidence import report_of

    assert report_of(model.explain(series[0])).contents["trial"] is None


def test_the_printed_page_says_it_on_one_line(model, series):
    evidence = model.explain(series[0])
    told = said_of_doubt(evidence, "fast")
    assert f"{evidence.interval.low[0]:.3f} to {evidence.interval.high[0]:.3f} (Venn-Abers)" in told
    assert f"windows add up to {evidence.series_probability[0]:.3f}" in told
    assert "90 % set: " in told
    assert ("(abstains)" in told) == evidence.abstains


@pytest.mark.parametrize("calibrated", [True, False])
def test_the_page_shows_interval_both_numbers_set_and_reliability(
    browser, model, series, tmp_path, calibrated
):
    if not calibrated:
        model = RAxSSClassifier(**SETTINGS).fit(series[:12], validation=series[12:])
    longest = max(series, key=lambda one: one.n_samples)
    evidence = model.explain(longest)
    model.report(longest).save(tmp_path / "report.html")
    page = browser.open(tmp_path / "report.html")
    place = evidence.classes.index(evidence.predicted)
    assert f"{evidence.probability[place]:.3f}" in page.locator(".title .score").text_content()
    trust = page.locator("section.trust").text_content()
    low, high = evidence.interval.low[place], evidence.interval.high[place]
    assert f"{low:.3f} to {high:.3f} ({evidence.interval.method}" in trust
    assert ("what the windows add up to" in trust) == calibrated
    if calibrated:
        assert f"{evidence.series_probability[place]:.3f}: what the windows add up to" in trust
    assert "90 % prediction set" in trust
    assert ("abstains" in trust) == evidence.abstains
    assert all(str(one) in trust for one in evidence.prediction_set)
    tried = page.locator("section.tried")
    tables = model.trial_.reliability
    assert tried.locator("circle").count() == sum(len(rows) for rows in tables.values())
    assert "24 validation series" in tried.text_content()
    assert f"{model.trial_.figures['uncalibrated']['brier']:.4f}" in tried.text_content()
    assert_quiet(page)
    page.close()
