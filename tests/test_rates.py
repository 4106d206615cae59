"""Sampling rates other than those of the training series: refused, warned about, resampled, or unknown."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from raxss import RAxSSClassifier
from raxss.cli import app
from raxss.data.prepare.preprocessing import Preparation, is_rate_known, resampled
from raxss.data.series import Series
from raxss.errors import ConfigError, DataError, RateMismatchError, RAxSSWarning, SignalWarning
from toys import SMALL, waves

ENGINES = {"serial": (), "local": ("--engine", "local", "--workers", "1")}


@pytest.fixture(scope="module")
def known():
    """Learned from series of 10 Hz."""
    return RAxSSClassifier(**SMALL).fit(waves(np.random.default_rng(69421)))


@pytest.fixture(scope="module")
def unknown():
    """Learned from arrays, whose rate is unknown."""
    series = waves(np.random.default_rng(69421))
    return RAxSSClassifier(**SMALL).fit([item.samples for item in series], series.labels)


@pytest.fixture(scope="module")
def folders(known, unknown, tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    for name, model in (("known", known), ("unknown", unknown)):
        model.save_pretrained(place / name)
    return place


def wave(rate, seconds=12.0, name="x"):
    """One hertz, at any rate."""
    return Series(np.sin(2 * np.pi * np.arange(round(rate * seconds)) / rate), rate=rate, name=name)


def saved(folder, series, name="x.npz"):
    np.savez(folder / name, samples=series.samples, rate=series.rate)
    return folder / name


def raxss(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def predicted(model, path, out, *options):
    raxss("predict", model, path, "--out", out, "--device", "cpu", "--overwrite", *options)
    return pd.read_csv(out)


# In Python


@pytest.mark.parametrize("rate", [2.0, 5.0, 8.9, 11.1, 20.0, 1000.0])
def test_a_rate_more_than_a_tenth_off_is_refused_with_both_rates(known, rate):
    series = wave(rate, seconds=100 / rate + 10, name="far one")
    message = rf"'far one' has a rate of {rate:g} Hz.* fitted at 10 Hz.*resampled"
    for method in ("predict_proba", "predict", "explain", "score_series", "report", "window_probabilities"):
        with pytest.raises(RateMismatchError, match=message):
            list(getattr(known, method)([series]))
    with pytest.raises(RateMismatchError, match="'far one'"):
        known.faithfulness(series)


@pytest.mark.parametrize(
    ("rate", "is_warned"), [(9.0, True), (9.8, True), (9.95, False), (10.05, False), (11.0, True)]
)
def test_a_rate_within_a_tenth_is_scored_and_beyond_a_hundredth_warned_about(known, rate, is_warned):
    series = wave(rate)
    if not is_warned:
        known.predict_proba([series])
        assert not any("rate" in note for note in known.explain(series).notes)
        return
    with pytest.warns(
        SignalWarning, match=f"'x' has a rate of {rate:g} Hz, but the model was fitted at 10 Hz"
    ):
        known.predict_proba([series])
    assert f"{rate:g} Hz" in known.explain(series).notes[0]


def test_any_rate_of_the_training_series_will_do():
    series = waves(np.random.default_rng(3))
    mixed = [replace(item, rate=(10.0, 40.0)[place % 2]) for place, item in enumerate(series)]
    with pytest.warns(SignalWarning, match="rates from 10 to 40 Hz"):
        model = RAxSSClassifier(**SMALL).fit(mixed)
    model.predict_proba([wave(10.0), wave(40.0)])
    with pytest.raises(
        RateMismatchError, match=r"has a rate of 20 Hz, but the model was fitted at 10, 40 Hz"
    ):
        model.predict_proba([wave(20.0)])


def test_rates_that_are_not_known_are_never_refused(known, unknown):
    array = wave(10.0).samples
    known.predict_proba([array])
    unknown.predict_proba([array])
    unknown.predict_proba([wave(1000.0)])
    note = "the rate of series 'series' is not known, and the model was fitted at 10 Hz"
    assert note in known.explain(array).notes[0]
    assert not any("rate" in note for note in unknown.explain(array).notes)


def test_pooling_does_not_make_an_unknown_rate_known():
    assert is_rate_known(1000 / 12, "pool 24/12, z-score")
    assert not is_rate_known(1 / 12, "pool 24/12, z-score")
    pool = Preparation(pooling=(2, 2))
    series = waves(np.random.default_rng(4))
    untimed = [pool.apply(Series(item.samples, name=item.name)) for item in series]
    model = RAxSSClassifier(**{**SMALL, "window_length": 16}).fit(untimed, series.labels)
    model.predict_proba([pool.apply(wave(500.0))])  # of the training series no rate is known
    timed = RAxSSClassifier(**{**SMALL, "window_length": 16}).fit(
        list(map(pool.apply, series)), series.labels
    )
    timed.predict_proba([pool.apply(Series(wave(10.0).samples))])
    with pytest.raises(
        RateMismatchError, match=r"has a rate of 10 Hz.*fitted at 5 Hz \(both after 'pool 2/2'\).*to 10 Hz"
    ):
        timed.predict_proba([pool.apply(wave(20.0))])
    ready = timed.preparation_of_model(resample=True).apply(wave(20.0))
    assert (ready.rate, ready.preparation) == (5.0, "pool 2/2")
    timed.predict_proba([ready])


def test_a_resampled_series_is_the_one_that_was_recorded_at_that_rate(known):
    far, near = resampled(wave(50.0), 10.0), wave(10.0)
    np.testing.assert_allclose(far.samples, near.samples, atol=0.1)  # the filter looks beyond both ends
    np.testing.assert_allclose(far.samples[:, 30:-30], near.samples[:, 30:-30], atol=1e-3)
    assert (far.rate, far.preparation, far.n_samples) == (10.0, "", near.n_samples)
    np.testing.assert_allclose(known.predict_proba([far]), known.predict_proba([near]), atol=0.02)
    assert known.explain(far).notes[0] == "series 'x' was resampled from 50 to 10 Hz."
    with pytest.warns(SignalWarning, match="5 Hz is below the 10 Hz asked for"):
        assert "holds nothing above 2.5 Hz" in resampled(wave(5.0, 40), 10.0).notes[0]


def test_what_cannot_be_resampled_is_refused(known):
    with pytest.raises(DataError, match=r"'x' was prepared already.*Start from the recording"):
        resampled(Preparation(scaling="series").apply(wave(20.0)), 10.0)
    with pytest.raises(DataError, match="its own rate is not known"):
        resampled(Series(np.zeros(100)), 10.0)


# On the command line


@pytest.mark.parametrize("engine", ENGINES)
def test_predict_refuses_another_rate_unless_it_is_resampled(folders, tmp_path, engine):
    path, out = saved(tmp_path, wave(50.0)), tmp_path / "p.csv"
    with pytest.raises(DataError) as refused:
        predicted(folders / "known", path, out, *ENGINES[engine])
    assert engine == "local" or isinstance(refused.value, RateMismatchError)
    assert not out.exists()
    table = predicted(folders / "known", path, out, "--resample", *ENGINES[engine])
    assert "series 'x' was resampled from 50 to 10 Hz." in table["warnings"][0]
    assert table["seconds"][0] == 12.0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["known", "unknown"])
def test_a_table_says_where_no_rate_is_known(folders, tmp_path, model, engine):
    np.save(tmp_path / "bare.npy", wave(10.0, seconds=900).samples)  # 9,000 samples, once called 9000.0 s
    out = tmp_path / "p.csv"
    table = predicted(folders / model, tmp_path / "bare.npy", out, *ENGINES[engine])
    assert np.isnan(table["seconds"][0])
    assert "the rate of series 'bare' is not known" in table["warnings"][0]
    table = predicted(folders / model, tmp_path / "bare.npy", out, "--rate", 10, *ENGINES[engine])
    assert table["seconds"][0] == 900.0
    assert "not known" not in str(table["warnings"][0])


def test_a_given_rate_is_used_for_lines_of_a_manifest_and_compared_with_files(folders, tmp_path):
    np.save(tmp_path / "bare.npy", wave(10.0).samples)
    (tmp_path / "m.csv").write_text("path\nbare.npy\n")
    table = predicted(folders / "known", tmp_path / "m.csv", tmp_path / "p.csv", "--rate", 10)
    assert table["seconds"][0] == 12
    with pytest.raises(RateMismatchError, match="rate of 40 Hz"):
        predicted(folders / "known", tmp_path / "m.csv", tmp_path / "p.csv", "--rate", 40)
    with pytest.raises(DataError, match="says 10 Hz itself, and 40 Hz was asked for"):
        predicted(folders / "known", saved(tmp_path, wave(10.0)), tmp_path / "p.csv", "--rate", 40)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf"])
def test_a_rate_that_is_none_is_refused(folders, tmp_path, rate, engine):
    np.save(tmp_path / "bare.npy", wave(10.0).samples)
    with pytest.raises(ConfigError, match="--rate is"):
        predicted(
            folders / "known", tmp_path / "bare.npy", tmp_path / "p.csv", f"--rate={rate}", *ENGINES[engine]
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rate_that_nothing_takes_is_refused(folders, tmp_path, engine):
    (tmp_path / "m.csv").write_text("path,label\nx.npz,slow\n")
    saved(tmp_path, wave(10.0))
    raxss("prepare", tmp_path / "m.csv", "--out", tmp_path / "ready", "--scaling", "none")
    with pytest.raises(ConfigError, match="--rate 10 is for files that tell no rate"):
        predicted(folders / "known", tmp_path / "ready", tmp_path / "p.csv", "--rate", 10, *ENGINES[engine])


def test_explain_and_verify_refuse_resample_and_say_so(folders, tmp_path):
    path = saved(tmp_path, wave(50.0))
    with pytest.raises(RateMismatchError, match="rate of 50 Hz"):
        raxss("explain", folders / "known", path, "--out", tmp_path / "why", "--device", "cpu")
    raxss("explain", folders / "known", path, "--out", tmp_path / "why", "--device", "cpu", "--resample")
    (evidence,) = (tmp_path / "why").rglob("evidence.json")
    assert "resampled from 50 to 10 Hz" in json.loads(evidence.read_text())["notes"][0]
    (report,) = (tmp_path / "why").rglob("report.html")
    assert "resampled from 50 to 10 Hz" in report.read_text()
    verified = raxss("verify", report, folders / "known", path, "--device", "cpu", "--resample")
    assert verified.exit_code == 0, verified.output


def test_a_table_with_times_says_so_in_its_scores(folders, tmp_path):
    series = wave(10.0)
    rows = [f"{place / 10:.1f},{value:.5f}" for place, value in enumerate(series.samples[0])]
    (tmp_path / "t.csv").write_text("\n".join(["time (s),C3", *rows, ""]))
    table = predicted(folders / "known", tmp_path / "t.csv", tmp_path / "p.csv")
    assert table["seconds"][0] == 12.0
    assert "'time (s)' is the time axis, at 10 Hz; it is no channel" in table["warnings"][0]


def test_a_tree_of_another_rate_is_resampled_too(known, folders, tmp_path):
    from make_bids import make_bids

    root = make_bids(tmp_path / "tree", n_centres=1, patients_per_centre=1, runs=1, seconds=12, rate=40).root
    with pytest.raises(RateMismatchError, match="rate of 40 Hz"):
        predicted(folders / "known", root, tmp_path / "p.csv")
    of_tree = predicted(folders / "known", root, tmp_path / "p.csv", "--resample")
    of_file = predicted(folders / "known", next(root.rglob("*.vhdr")), tmp_path / "q.csv", "--resample")
    assert of_tree["name"].str.rpartition(":")[2].tolist() == of_file["name"].str.rpartition(":")[2].tolist()
    np.testing.assert_allclose(of_tree["probability_slow"], of_file["probability_slow"])
    assert of_tree["warnings"].str.contains("resampled from 40 to 10 Hz").all()


def test_engines_compute_anew_when_a_sidecar_of_a_file_changes(folders, tmp_path):
    from make_bids import make_bids

    root = make_bids(tmp_path / "tree", n_centres=1, patients_per_centre=1, runs=1, seconds=12, rate=10).root
    path, out = next(root.rglob("*.vhdr")), tmp_path / "p.csv"
    assert len(predicted(folders / "known", path, out, *ENGINES["local"])) == 8
    (sidecar,) = root.rglob("*_channels.tsv")
    sidecar.write_text(sidecar.read_text().replace("AD1\tECOG", "AD1\tTRIG"))
    with pytest.warns(RAxSSWarning, match="ECOGChannelCount is 9, and channels.tsv has 8"):
        assert len(predicted(folders / "known", path, out, *ENGINES["local"])) == 7
