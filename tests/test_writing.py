"""Tests of output folders of many recordings. Together with BIDS tables: test_derivatives.py."""

import numpy as np
import pytest

from raxss import RAxSSClassifier, Series
from raxss.estimator.persistence import describe_model
from raxss.explain.export.writing import write_recordings, write_report
from raxss.explain.findings import by_recording, model_facts
from toys import SMALL, waves


@pytest.fixture(scope="module")
def toy():
    return RAxSSClassifier(**SMALL).fit(waves(np.random.default_rng(1)))


def channels(name, n, rng):
    return [
        Series(
            rng.normal(size=300), 10.0, name=f"{name}:C{k}", origin={"recording": name, "channel": f"C{k}"}
        )
        for k in range(n)
    ]


def test_recordings_that_come_mixed_are_kept_apart_and_each_is_done_once(toy, rng, tmp_path):
    night, day = channels("night", 3, rng), channels("day", 1, rng)
    recordings = by_recording([night[0], day[0], *night[1:]])
    assert {name: len(some) for name, some in recordings.items()} == {"night": 3, "day": 1}
    done = []
    evidence = toy.explain_each([item for some in recordings.values() for item in some])
    out = write_recordings(
        evidence,
        recordings.items(),
        tmp_path / "why",
        model=model_facts(describe_model(toy)),
        formats=["report", "json"],
        when_done=done.append,
    )
    assert [(item.name, len(item.channels)) for item in done] == [("night", 3), ("day", 1)]
    files = {file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file()}
    assert "night/report.html" in files
    assert sum(name.startswith("night/") and name.endswith("evidence.json") for name in files) == 3
    alone = {name.partition("/")[2] for name in files if name.startswith("day")}
    assert {"report.html", "evidence.json"} <= alone  # one series, one folder


def test_the_report_alone_is_the_one_in_the_folder(toy, rng, tmp_path):
    recordings = by_recording(channels("night", 2, rng))
    about = model_facts(describe_model(toy))
    write_report(toy.explain_each(recordings["night"]), tmp_path / "r.html", name="night", model=about)
    evidence = toy.explain_each(recordings["night"])
    write_recordings(evidence, recordings.items(), tmp_path / "why", model=about, formats=["report"])
    alone = (tmp_path / "r.html").read_bytes()
    assert (tmp_path / "why" / "night" / "report.html").read_bytes() == alone
    assert toy.report(recordings["night"]).save(tmp_path / "p.html").read_bytes() == alone


def test_facts_about_a_model_have_no_digest_of_a_series(toy):
    facts = describe_model(toy)
    assert len(facts["training_data"]["series"]) > 0
    text = str(model_facts(facts))
    assert not any(digest in text for digest in facts["training_data"]["series"])
    assert model_facts(facts)["training_data"]["n_series"] == facts["training_data"]["n_series"]
