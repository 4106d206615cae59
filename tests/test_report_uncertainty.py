"""Tests of the uncertainty in a report: its data, and the page in a browser."""

import json
import re
from urllib.parse import unquote

import numpy as np
import pytest
from typer.testing import CliRunner

from pages import assert_quiet
from raxss import RAxSSClassifier
from raxss.cli import app
from raxss.errors import DataError, ModelError
from raxss.estimator.persistence import describe_model
from raxss.explain import Report, report_of
from raxss.explain.export.report.verifying import verify_report
from raxss.explain.faithfulness.verdict import verdict_for_report
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
def plain(series):
    return RAxSSClassifier(**SETTINGS).fit(series[:12], validation=series[12:])


def test_the_data_of_a_report_has_both_numbers_the_interval_the_set_and_the_trial(model, series):
    report, evidence = model.report(series[0]), model.explain(series[0])
    (channel,) = report.contents["channels"]
    assert channel["probability"] == evidence.series_probability.tolist()
    assert channel["doubt"] == {
        "calibrated": evidence.probability.tolist(),
        "interval": evidence.interval.to_json(),
        "set": [label in evidence.prediction_set for label in evidence.classes],
        "abstains": evidence.abstains,
    }
    trial = report.contents["trial"]
    assert trial["reliability"] == json.loads(json.dumps(dict(model.validation_report_.reliability)))
    assert trial["n_series"] == 24
    assert "scores" not in trial
    assert report_of(evidence).contents["trial"] is None  # of evidence alone


def test_a_changed_interval_or_set_is_found_by_verification(model, series):
    for name, change in (("abstains", None), ("set", [True, True, True]), ("calibrated", [0.5, 0.5])):
        changed, again = model.report(series[0]), model.report(series[0])
        changed.contents["channels"][0]["doubt"][name] = change
        found = verify_report(changed, again).differences
        assert found
        assert f"doubt.{name}" in found[0]


@pytest.mark.parametrize("calibrated", [True, False])
def test_the_page_shows_interval_both_numbers_set_and_reliability(show, model, plain, series, calibrated):
    model = model if calibrated else plain
    longest = max(series, key=lambda item: item.n_samples)
    evidence = model.explain(longest)
    page = show(model.report(longest))
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
    assert all(str(item) in trust for item in evidence.prediction_set)
    tried = page.locator("section.tried")
    tables = model.validation_report_.reliability
    assert tried.locator("circle").count() == sum(len(rows) for rows in tables.values())
    assert "24 validation series" in tried.text_content()
    assert f"{model.validation_report_.figures['uncalibrated']['brier']:.4f}" in tried.text_content()


VERDICT = {
    "verdict": "partly faithful",
    "why": "some hold",
    "said": [["yes", "It rests on them"], ["no", "Not <b>"]],
}


def with_verdict(folder, model, **changes):
    """A folder as raxss faithfulness leaves it, as far as reports look."""
    about = {"weights_sha256": describe_model(model)["weights_sha256"]}
    found = {"verdicts": {"m": VERDICT | changes, "control": VERDICT}, "about": {"m": about, "control": {}}}
    folder.mkdir()
    (folder / "verdict.json").write_text(json.dumps(found))
    (folder / "page.html").write_text("<!doctype html><title>the page</title>")
    return folder


@pytest.fixture
def explained(model, series, tmp_path):
    """A report with a verdict, and a folder of reports with the same."""
    trust = with_verdict(tmp_path / "ward 7", model)
    model.save_pretrained(tmp_path / "model")
    np.savez(tmp_path / "night.npz", samples=series[0].samples, rate=series[0].rate)
    files = [str(tmp_path / "model"), str(tmp_path / "night.npz")]
    report, options = str(tmp_path / "report.html"), ["--faithfulness", str(trust), "--device", "cpu"]
    done = CliRunner().invoke(app, ["explain", *files, "--out", report, *options])
    assert done.exit_code == 0, done.output
    assert Report.read(report).contents["faithfulness"] == {**VERDICT, "link": "ward%207/page.html"}
    assert CliRunner().invoke(app, ["verify", report, *files, *options]).exit_code == 0
    done = CliRunner().invoke(app, ["verify", report, *files, "--device", "cpu"])
    assert done.exit_code == 1  # without the folder nothing is known of it
    assert "faithfulness" in done.output
    folder = ["--out", str(tmp_path / "why"), "--format", "report"]
    assert CliRunner().invoke(app, ["explain", *files, *folder, *options]).exit_code == 0
    return tmp_path


def test_in_a_folder_of_reports_the_link_leads_out_of_it(explained):
    (report,) = (explained / "why").glob("*/report.html")
    link = Report.read(report).contents["faithfulness"]["link"]
    assert (report.parent / unquote(link)).resolve() == (explained / "ward 7" / "page.html").resolve()


def test_a_report_shows_the_verdict_and_links_to_its_page(browser, explained):
    page = browser.open(explained / "report.html")
    section = page.locator("section.faithful")
    assert "partly faithful: some hold." in section.text_content()
    assert [item.text_content() for item in section.locator("li").all()] == [
        "✓ It rests on them",
        "✗ Not <b>",
    ]
    assert_quiet(page)
    section.locator("a").click()
    page.wait_for_url(re.compile("page.html"))
    assert page.title() == "the page"
    page.close()


@pytest.mark.parametrize("link", ["javascript:alert(1)", "https://example.org", "//example.org", "a b"])
def test_only_a_place_beside_the_report_becomes_a_link(show, model, series, link):
    about = describe_model(model) | {"faithfulness": {**VERDICT, "link": link}}
    page = show(report_of(model.explain(series[0]), model=about))
    assert page.locator("section.faithful li").count() == 2
    assert page.locator("section.faithful a").count() == 0


def test_the_verdict_of_another_model_and_what_is_none_are_refused(model, tmp_path):
    trust = with_verdict(tmp_path / "trust", model)
    with pytest.raises(ModelError, match="is not about this model"):
        verdict_for_report(trust, weights_sha256="0" * 64, beside=tmp_path)
    digest = describe_model(model)["weights_sha256"]
    for broken in ("", "[]", "{}", json.dumps({"verdicts": {}, "about": {"m": {"weights_sha256": digest}}})):
        (trust / "verdict.json").write_text(broken)
        with pytest.raises(DataError, match="has no verdict that can be read"):
            verdict_for_report(trust, weights_sha256=digest, beside=tmp_path)


def test_the_abstain_band_is_where_sets_are_no_answers(show, plain, series):
    """By the threshold: of two classes, both are in the set between 1 - t and t."""
    longest = max(series, key=lambda item: item.n_samples)
    evidence = plain.explain(longest)
    threshold = evidence.settings["conformal_threshold"]
    assert threshold == plain.validation_report_.threshold(0.1, calibrated=False)
    low, high = sorted([threshold, 1 - threshold])
    for score in np.linspace(0, 1, 101):
        if min(abs(score - low), abs(score - high)) > 1e-9:
            inside = 1 - np.array([score, 1 - score]) <= threshold
            assert (inside.sum() != 1) == (low < score < high)
    page = show(plain.report(longest))
    text = page.locator("section.trust").text_content()
    assert f"abstain band{low:.3f} to {high:.3f}" in text.replace("\xa0", " ")
    assert page.locator("section.trust rect.band").count() == 1
