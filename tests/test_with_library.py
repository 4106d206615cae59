"""Prediction with cases: equal bits without votes, sums, own groups, leaks, shuffled labels, groups that leave."""

import dataclasses
import json
import shutil
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import roc_auc_score

from raxss import AutoRAxSS, RAxSSClassifier, Series
from raxss.errors import ConfigError, DataError, LabelError, LibraryError, LibraryWarning, ModelError
from raxss.estimator.with_library import CaseModel
from raxss.library import CaseLibrary
from raxss.library.case_index import CaseIndex
from raxss.library.vote_fit import (
    BY_DEFAULT,
    BY_MODE,
    DEFAULT_MIXING,
    DEFAULT_TAU,
    GIVEN,
    ON_LIBRARY,
    ON_SERIES,
    ON_UNSEEN,
    FittedVotes,
    fit_votes,
)
from raxss.library.vote_settings import VoteSettings
from raxss.library.votes import LabelledCases
from raxss.method.window_scorer import Scorer
from toys import NETWORK, waves

RIDGE = {"backbone": "ridge", "window_length": 32, "stride": 16, "random_state": 0, "device": "cpu"}
BUILD = {"site": "bern", "windows_a_recording": 5}
SPEEDS = {"slow": 0.2, "fast": 0.45}
FIXED = VoteSettings(tau=0.1, mixing=0.4, least_similarity=-1.0)


def people(names, *, n_each=2, seed=0, label=None, n_samples=120):
    """Recordings of people whose oscillations have a speed of their own, around that of their label."""
    series = []
    for number, name in enumerate(names):
        rng = np.random.default_rng([seed, *name.encode()])
        kind = ("slow", "fast")[number % 2]
        speed = SPEEDS[kind] + rng.uniform(-0.05, 0.05) if label is None else rng.uniform(0.15, 0.6)
        level, size = (0, 1) if label is None else (rng.uniform(-3, 3), rng.uniform(0.5, 3))
        for each in range(n_each):
            wave = np.sin(np.arange(n_samples) * speed + rng.uniform(0, 6)) + 0.3 * rng.normal(size=n_samples)
            series.append(
                Series(
                    level + size * wave,
                    rate=10.0,
                    label=kind if label is None else label(number),
                    name=f"{name} night {each}",
                    origin={"patient": name},
                )
            )
    return series


def named(prefix, n):
    return [f"{prefix}{number}" for number in range(n)]


def auc(model, series):
    scores = (
        np.stack([item.score.probability for item in model]) if not isinstance(model, np.ndarray) else model
    )
    return roc_auc_score([item.label == "fast" for item in series], scores[:, 0])


@pytest.fixture(scope="module")
def model():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return RAxSSClassifier(**RIDGE).fit(waves(np.random.default_rng(0), n_series=24))


@pytest.fixture(scope="module")
def known():
    return people(named("ann", 12))


@pytest.fixture(scope="module")
def new():
    return people(named("zoe", 8))


@pytest.fixture(scope="module")
def library(model, known, tmp_path_factory):
    return CaseLibrary.build(model, known, folder=tmp_path_factory.mktemp("cases") / "library", **BUILD)


def copied(library, place):
    """The same library, with its key, where it may be changed."""
    shutil.copytree(library.folder, place / "library")
    shutil.copy(library.folder.with_name("library.key"), place / "library.key")
    return CaseLibrary.open(place / "library")


def ignoring(function, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LibraryWarning)
        return function(*args, **kwargs)


# Scores -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["evidence", "mixed"])
def test_without_lambda_probabilities_are_those_of_the_model_bit_for_bit(model, library, new, mode):
    with_cases = model.with_library(library, mode, settings=VoteSettings(mixing=0.0))
    assert with_cases.fitted.mixing == 0
    assert with_cases.predict_proba(new).tobytes() == model.predict_proba(new).tobytes()
    assert_array_equal(with_cases.predict(new), model.predict(new))
    for item, expected in zip(with_cases.score_cases(new), model.predict_proba(new), strict=True):
        assert item.score.probability.tobytes() == expected.tobytes()
        assert len(item.cases_table())  # shown all the same
        assert (item.cases_table()["contribution"] == 0).all()


@pytest.mark.parametrize("settings", [{"smoothing": 0.3}, {"weighting": "uniform"}, {"stride": 8}])
def test_bits_are_those_of_the_model_under_other_settings_of_prediction(
    model, known, new, tmp_path, settings
):
    changed = RAxSSClassifier.from_pretrained(model.save_pretrained(tmp_path / "model")).set_params(
        **settings
    )
    library = CaseLibrary.build(changed, known, folder=tmp_path / "library", **BUILD)
    with_cases = changed.with_library(library)
    assert with_cases.predict_proba(new).tobytes() == changed.predict_proba(new).tobytes()


@pytest.mark.parametrize(("mode", "mixing"), [("votes", None), ("mixed", 0.3)])
def test_contributions_add_up_to_the_probability(model, library, new, mode, mixing):
    with_cases = model.with_library(library, mode, settings=VoteSettings(mixing=mixing))
    probability = with_cases.predict_proba(new)
    for item, expected in zip(with_cases.score_cases(new), probability, strict=True):
        parts = item.score.contributions()
        assert_allclose(parts.sum(axis=(0, 1)), expected, rtol=0, atol=1e-9)
        table = item.cases_table()
        for place, label in enumerate(with_cases.classes_):
            of_cases = table.loc[table["label"] == label, "contribution"].sum()
            assert_allclose(of_cases + item.score.from_model[:, place].sum(), expected[place], atol=1e-9)
        groups = item.groups_table()
        assert_allclose(groups["share"].sum(), table["contribution"].sum(), atol=1e-9)
        assert_allclose(groups["influence"].sum(), 1, atol=1e-9)
    assert_allclose(probability.sum(axis=1), 1, atol=1e-9)
    assert np.abs(probability - model.predict_proba(new)).max() > 0.01


def test_tables_name_windows_cases_and_times(model, library, known, new):
    item = next(model.with_library(library, "votes").score_cases(new[:1]))
    table, cases = item.cases_table(), library.cases()
    assert item.name == new[0].name
    assert set(table["group"]) <= set(library.groups)
    assert set(table["case"]) <= set(cases.case_names)
    assert set(table["site"]) == {"bern"}
    assert_allclose(table["start_s"].unique(), 1.6 * np.arange(len(item.windows)))
    assert_allclose(table["end_s"] - table["start_s"], 3.2)
    assert_allclose(table["case_end_s"] - table["case_start_s"], 3.2)
    assert table.groupby("window")["rank"].apply(list).map(lambda ranks: ranks == [*range(1, 11)]).all()
    assert table.groupby(["window", "group"]).size().max() <= 2
    by_name = dict(zip(cases.case_names, cases.case_labels, strict=True))
    assert all(cases.classes[by_name[row.case]] == row.label for row in table.itertuples())
    assert not any(name in table.to_csv() for name in ("ann", "night"))
    groups = item.groups_table()
    assert (groups["influence"].diff().dropna() <= 0).all()
    assert set(groups["labels"]) <= {"slow", "fast"}


def test_a_window_that_is_mostly_missing_has_no_cases(model, library):
    samples = people(["gaps"])[0].samples.copy()
    samples[:, 60:100] = np.nan
    gaps = Series(samples, rate=10.0, name="gaps", origin={"patient": "gaps"}, gaps_marked=True)
    with_cases = model.with_library(library, settings=FIXED)
    (item,) = with_cases.score_cases([gaps])
    assert 0 < len(item.windows) < 6
    assert with_cases.predict_proba([gaps]).tobytes() == model.predict_proba([gaps]).tobytes()


def test_the_search_for_settings_passes_a_library_on(model, library, new):
    auto = AutoRAxSS()
    auto.best_estimator_ = model
    found = auto.with_library(library, "votes", settings=FIXED)
    expected = model.with_library(library, mode="votes", settings=FIXED)
    assert_array_equal(found.predict_proba(new), expected.predict_proba(new))


# Own groups and leaks ---------------------------------------------------------------------------------------


def test_the_own_group_is_never_listed(model, library, known):
    for item, series in zip(model.with_library(library, "votes").score_cases(known), known, strict=True):
        own = library.own_groups(series)
        assert len(own) == 1
        assert not set(item.cases_table()["group"]) & set(own)
        assert not item.group_unknown


def test_recordings_of_the_same_samples_do_not_vote_under_another_name(model, library, known):
    copy = dataclasses.replace(known[0], name="copy", origin={"patient": "someone else"})
    (item,) = model.with_library(library, "votes").score_cases([copy])
    (case,) = [
        name
        for name, digest in zip(item.index.case_names, item.index.digests, strict=True)
        if digest == copy.digest
    ]
    assert case not in set(item.cases_table()["case"])
    assert set(library.own_groups(known[0])) & set(item.cases_table()["group"])  # by the other recording


def test_the_leak_meter_rises_where_people_differ_and_labels_do_not(model, tmp_path):
    rng = np.random.default_rng(5)
    drawn = rng.permutation(["slow", "fast"] * 8)  # by person, and by nothing that can be seen
    series = people(named("pat", 16), n_each=3, label=lambda number: str(drawn[number]))
    library = CaseLibrary.build(model, series, folder=tmp_path / "library", **BUILD)
    with_cases = model.with_library(library, "votes", settings=VoteSettings(tau=0.02, least_similarity=-1.0))
    honest = auc(with_cases.score_cases(series), series)
    leaking = auc(with_cases.score_cases(series, allow_own_group=True), series)
    assert leaking > 0.85, (honest, leaking)
    assert honest < 0.65, (honest, leaking)


def test_shuffled_labels_are_at_chance_where_true_ones_are_not(model, library, new):
    with_cases = model.with_library(library, "votes", settings=VoteSettings(tau=0.1, least_similarity=-1))
    assert auc(with_cases.predict_proba(new), new) > 0.95
    found, rng, figures = list(with_cases.score_cases(new)), np.random.default_rng(0), []
    labelled = found[0].index.labelled
    of_group = np.array([labelled.labels[labelled.groups == group][0] for group in range(12)])
    for _ in range(100):
        shuffled = rng.permutation(of_group)[labelled.groups]  # people change labels, not recordings
        cases = LabelledCases(shuffled, labelled.groups, labelled.group_names, n_classes=2)
        scores = [dataclasses.replace(item.score, cases=cases).probability for item in found]
        figures.append(auc(np.stack(scores), new))
    assert abs(np.mean(figures) - 0.5) < 0.1
    inverted = LabelledCases(1 - labelled.labels, labelled.groups, labelled.group_names, n_classes=2)
    scores = [dataclasses.replace(item.score, cases=inverted).probability for item in found]
    assert auc(np.stack(scores), new) < 0.05


@pytest.mark.parametrize("place", [0, 3, 8])
@pytest.mark.parametrize(
    "settings", [VoteSettings(), VoteSettings(mixing=0.5, least_similarity=0.3, prior=(0.4, 0.6), n_cases=6)]
)
def test_without_a_group_is_what_a_library_answers_that_it_left(
    model, library, new, tmp_path, place, settings
):
    mode = "votes" if settings.mixing is None else "mixed"
    whole = model.with_library(library, mode, settings=settings)
    left = copied(library, tmp_path)
    gone = library.groups[place]
    left.withdraw(gone)
    held = CaseIndex.of(library).standardisations
    rebuilt = CaseModel(model, left, mode=mode, settings=settings, standardisations=held)
    rebuilt._fitted = dataclasses.replace(whole.fitted, state=left.state)  # tau, lambda and limits held
    n_listed, queries = 0, [*new, *strange_signals()]
    for before, after in zip(whole.score_cases(queries), rebuilt.score_cases(queries), strict=True):
        expected = after.score.probability[before.predicted]
        without = before.score.without(gone).probability
        assert_allclose(without, after.score.probability, rtol=0, atol=1e-12)
        groups = before.groups_table().set_index("group")
        if gone in groups.index:
            n_listed += 1
            assert_allclose(groups.loc[gone, "probability_without"], expected, rtol=0, atol=1e-12)
            change = expected - before.probability[before.predicted]
            assert_allclose(groups.loc[gone, "change"], change, rtol=0, atol=1e-12)
    assert n_listed


def test_without_a_group_is_that_of_a_library_where_its_leaving_leaves_one_class(model, known, tmp_path):
    own, seen, others = known[2:4], known[6:8], known[4:6]  # fast, fast, slow: the others see slow and fast
    library = CaseLibrary.build(model, [*own, *seen, *others], folder=tmp_path / "library", **BUILD)
    # Without `seen` there are two classes, but the own group has one of them.
    whole = model.with_library(library, "votes", settings=FIXED)
    (gone,) = library.own_groups(seen[0])
    (tmp_path / "copy").mkdir()
    left = copied(library, tmp_path / "copy")
    left.withdraw(gone)
    held = CaseIndex.of(library).standardisations
    after = next(CaseModel(model, left, mode="votes", settings=FIXED, standardisations=held).score_cases(own))
    assert "one class" in after.case_notes
    before = next(whole.score_cases(own))
    assert "one class" not in before.case_notes
    found = before.groups_table().set_index("group").loc[gone, "probability_without"]
    assert_allclose(found, after.score.probability[before.predicted], rtol=0, atol=1e-12)
    assert_allclose(after.probability, model.predict_proba(own)[0], rtol=0, atol=1e-12)


# Fitting ----------------------------------------------------------------------------------------------------


def test_tau_and_least_similarity_are_fitted_on_other_groups(library):
    index = CaseIndex.of(library)
    found = fit_votes(index, VoteSettings(), mode="votes")
    assert (found.tau_from, found.mixing_from, found.mixing) == (ON_LIBRARY, BY_MODE, 1.0)
    keys, group = np.concatenate(index.blocks), index.labelled.groups[index.key_case]
    unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    best = np.where(group[:, None] == group, -np.inf, unit @ unit.T).max(axis=1)
    assert_allclose(found.least_similarity, np.sort(best)[int(np.ceil(0.01 * len(best))) - 1], atol=1e-6)
    assert found.most_distance > 0
    given = fit_votes(index, FIXED, mode="mixed")
    assert (given.tau, given.mixing, given.least_similarity, given.most_distance) == (0.1, 0.4, None, None)
    assert (given.tau_from, given.mixing_from) == (GIVEN, GIVEN)


def trained_on():
    return list(waves(np.random.default_rng(0), n_series=24))


@pytest.mark.parametrize("mode", ["votes", "evidence"])
def test_nothing_is_fitted_on_recordings_that_the_model_was_trained_on(model, new, tmp_path, mode):
    people = [dataclasses.replace(item, origin={"patient": item.name}) for item in trained_on()]
    library = CaseLibrary.build(model, people, folder=tmp_path / "library", **BUILD)
    if mode == "votes":
        with pytest.warns(
            LibraryWarning,
            match=r"tau is 1 and every window votes.*trained on 24 of 24 recordings .* not enough others. Give "
            r"fit_on=.*VoteSettings\(tau=..., least_similarity=...\)",
        ):
            found = model.with_library(library, mode).fitted
    else:
        found = model.with_library(library, mode).fitted  # nothing rests on it
    assert (found.tau, found.least_similarity, found.most_distance) == (DEFAULT_TAU, None, None)
    assert (found.tau_from, found.least_similarity_from) == (BY_DEFAULT, BY_DEFAULT)
    found = model.with_library(library, mode, fit_on=new).fitted
    assert (found.tau_from, found.least_similarity_from) == (ON_SERIES, ON_SERIES)
    assert found.n_series == len(new)
    assert found.least_similarity < 1
    assert found.most_distance > 0
    given = model.with_library(library, mode, settings=FIXED).fitted  # and says nothing
    assert (given.tau_from, given.least_similarity_from) == (GIVEN, GIVEN)


def test_a_library_that_the_model_has_seen_in_part_is_fitted_on_its_other_groups(model, known, tmp_path):
    some = CaseLibrary.build(model, [*trained_on()[:4], *known], folder=tmp_path / "some", **BUILD)
    found = model.with_library(some, "votes").fitted  # twelve people besides
    assert (found.tau_from, found.least_similarity_from) == (ON_UNSEEN, ON_UNSEEN)
    few = CaseLibrary.build(model, [*trained_on()[:4], *known[:18]], folder=tmp_path / "few", **BUILD)
    with pytest.warns(LibraryWarning, match="trained on 4 of 22 recordings"):
        assert model.with_library(few, "votes").fitted.tau_from == BY_DEFAULT


def test_a_group_with_one_recording_that_was_seen_is_left_out_of_the_fit(library):
    index = CaseIndex.of(library)
    group = index.labelled.groups[index.key_case]
    seen = np.zeros(len(index), bool)
    seen[[np.flatnonzero(index.labelled.groups == place)[0] for place in (0, 1)]] = True  # one of two of each
    found = fit_votes(index, VoteSettings(), mode="votes", seen=seen)
    assert (found.tau_from, found.least_similarity_from) == (ON_UNSEEN, ON_UNSEEN)
    keys = np.concatenate(index.blocks)
    unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    best = np.where(group[:, None] == group, -np.inf, unit @ unit.T).max(axis=1)[group > 1]
    assert_allclose(found.least_similarity, np.sort(best)[int(np.ceil(0.01 * len(best))) - 1], atol=1e-6)
    seen[np.flatnonzero(index.labelled.groups == 2)[0]] = True  # nine are left
    assert fit_votes(index, VoteSettings(), mode="votes", seen=seen).tau_from == BY_DEFAULT


def test_lambda_is_large_where_cases_know_more_than_the_model_and_zero_where_they_know_nothing(
    model, known, tmp_path
):
    fit_on = people(named("val", 20), seed=3)
    # The model takes one for the other: cases know what it does not.
    other = {"slow": "fast", "fast": "slow"}
    swapped = [dataclasses.replace(item, label=other[item.label]) for item in (*known, *fit_on)]
    swapped_library = CaseLibrary.build(model, swapped[: len(known)], folder=tmp_path / "swapped", **BUILD)
    found = model.with_library(swapped_library, "mixed", fit_on=swapped[len(known) :]).fitted
    assert (found.mixing_from, found.n_series, found.n_groups) == (ON_SERIES, 40, 20)
    assert found.mixing > 0.8
    assert found.gain > 4
    plain = CaseLibrary.build(model, swapped[: len(known)], folder=tmp_path / "wrong", **BUILD)
    assert model.with_library(plain, "mixed", fit_on=fit_on).fitted.mixing == 0


def test_lambda_without_series_to_fit_it_on_is_small_and_said(model, library):
    with pytest.warns(LibraryWarning, match=r"lambda is 0.1 by default.*Give fit_on"):
        found = model.with_library(library, "mixed").fitted
    assert (found.mixing, found.mixing_from) == (DEFAULT_MIXING, BY_DEFAULT)


def test_series_that_the_model_was_fitted_on_or_of_unknown_labels_are_refused(model, library, new):
    training = list(waves(np.random.default_rng(0), n_series=24))[:3]
    with pytest.raises(
        DataError, match=r"3 of 19 series of fit_on are of the training data .*wave 0, wave 1"
    ):
        model.with_library(library, "mixed", fit_on=[*new, *training])
    odd = dataclasses.replace(new[3], label="odd")
    with pytest.raises(LabelError, match=r"1 of 1 series of fit_on .* with 'odd'; needed is one of 'fast'"):
        model.with_library(library, "mixed", fit_on=[odd])


def test_what_changed_is_read_and_fitted_again_and_said(model, library, known, new, tmp_path):
    changing = copied(library, tmp_path)
    with_cases = model.with_library(changing, "votes")
    before = with_cases.predict_proba(new)
    gone = changing.groups[0]
    changing.withdraw(gone)
    with pytest.warns(LibraryWarning, match=r"library 'library' has changed since votes were fitted: tau is"):
        after = with_cases.predict_proba(new)
    assert with_cases.fitted.state == changing.state
    assert np.abs(after - before).max() > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert_array_equal(with_cases.predict_proba(new), after)
        fresh = model.with_library(CaseLibrary.open(changing.folder), "votes")
        assert_array_equal(fresh.predict_proba(new), after)
    assert all(gone not in set(item.cases_table()["group"]) for item in with_cases.score_cases(new))
    changing.add(model, known, site="bern")
    assert_array_equal(ignoring(with_cases.predict_proba, new), before)


def test_what_another_object_changed_is_seen_at_each_call(model, library, known, new, tmp_path):
    here = copied(library, tmp_path)
    with_cases = model.with_library(here, "votes", settings=FIXED)
    before = with_cases.predict_proba(new)
    elsewhere = CaseLibrary.open(here.folder)  # as another process has it
    gone = elsewhere.groups[0]
    elsewhere.withdraw(gone)
    with pytest.warns(LibraryWarning, match="has changed since votes were fitted"):
        after = with_cases.predict_proba(new)
    assert np.abs(after - before).max() > 0
    assert all(gone not in set(item.cases_table()["group"]) for item in with_cases.score_cases(new))
    elsewhere.add(model, people(["cid", "dan"]), site="bonn")
    items = ignoring(lambda: list(with_cases.score_cases(new)))
    assert items[0].index.sites == ("bern", "bonn")
    assert len(items[0].index.labelled.group_names) == 13
    shutil.rmtree(here.folder)
    CaseLibrary.build(model, known, folder=here.folder, key_file=tmp_path / "new.key", make_key=True, **BUILD)
    with pytest.raises(LibraryError, match="was replaced by another one since it was opened"):
        with_cases.predict_proba(new)


# Files ------------------------------------------------------------------------------------------------------


def test_saved_votes_are_read_again_without_cases(model, library, new, tmp_path):
    fit_on = people(named("val", 6), seed=3)
    saved = model.with_library(library, "mixed", settings=VoteSettings(n_cases=7), fit_on=fit_on)
    path = saved.save(tmp_path / "votes")
    text = path.read_text()
    assert not any(name in text for name in (*library.groups, *library.cases().case_names, "val0"))
    assert json.loads(text)["fitted"]["library"] == library.id
    opened = CaseModel.open(tmp_path / "votes", model, library)
    assert (opened.fitted, opened.settings, opened.mode) == (saved.fitted, saved.settings, "mixed")
    assert_array_equal(opened.predict_proba(new), saved.predict_proba(new))


def test_opened_beside_a_library_that_changed_lambda_is_not_used_or_fitted_again(model, library, tmp_path):
    fit_on = people(named("val", 6), seed=3)
    changing = copied(library, tmp_path)
    saved = model.with_library(changing, "mixed", fit_on=fit_on)
    saved._fitted = dataclasses.replace(saved.fitted, mixing=0.7)
    saved.save(tmp_path / "votes")
    changing.withdraw(changing.groups[0])
    opened = CaseModel.open(tmp_path / "votes", model, changing)
    with pytest.warns(LibraryWarning, match=r"lambda 0.1 \(was 0.7\); lambda was fitted on series .*fit_on"):
        assert opened.fitted.mixing == DEFAULT_MIXING
    again = CaseModel.open(tmp_path / "votes", model, changing, fit_on=fit_on)
    with pytest.warns(LibraryWarning, match="fitted again"):
        assert again.fitted.mixing_from == ON_SERIES


def test_another_library_and_damaged_votes_are_refused(model, library, known, tmp_path):
    saved = model.with_library(library, "votes", settings=FIXED)
    path = saved.save(tmp_path / "votes")
    other = CaseLibrary.build(model, known, folder=tmp_path / "other", **BUILD)
    with pytest.raises(
        LibraryError, match=rf"with the library {library.id}, but the library 'other' is {other.id}"
    ):
        CaseModel.open(tmp_path / "votes", model, other)
    path.write_text(path.read_text().replace('"tau": 0.1', '"tau": 0.2', 1))
    with pytest.raises(
        ModelError, match=r"'votes.json' cannot be read \(its content does not fit its seal\)"
    ):
        CaseModel.open(tmp_path / "votes", model, library)
    with pytest.raises(ModelError, match=r"'votes.json' cannot be read"):
        CaseModel.open(tmp_path / "nowhere", model, library)
    for name, value, needed in (
        ("tau", -1.0, "a number above 0"), ("tau", 0.0, "a number above 0"), ("library", 3, "text"),
        ("state", None, "text"), ("tau_from", 1, "text"), ("least_similarity", "0.5", "a number from -1 to 1"),
        ("least_similarity", 2, "a number from -1 to 1"), ("most_distance", -1, "a number from 0 to inf"),
        ("most_distance", float("nan"), "a number from 0 to inf"), ("mixing", None, "a number from 0 to 1"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"have {name} .*; needed is {needed}"):
            FittedVotes.from_json({**saved.fitted.as_json, name: value})
    with pytest.raises(ConfigError, match=r"have the entries \['tau'\]; needed are"):
        FittedVotes.from_json({"tau": 1.0})


# Bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_cases": 0}, "n_cases must be a whole number of at least 1"),
        ({"most_a_group": 1.5}, "most_a_group must be a whole number of at least 1"),
        ({"tau": -1}, "tau is -1; needed is a number above 0"),
        ({"mixing": 1.1}, "mixing is 1.1; needed is a number from 0 to 1"),
        ({"least_similarity": -2}, "least_similarity is -2; needed is a number from -1 to 1"),
        ({"prior": 0.5}, "prior is 0.5; needed is a probability of each class"),
        ({"prior": "half"}, "prior is 'half'; needed is a probability of each class"),
        ({"prior": (0.0, 0.0)}, r"prior is \[0.0, 0.0\]"),
        ({"local_site": 3}, "local_site is 3; needed is the name of a site"),
        ({"standardise_by": "place"}, "standardise_by is 'place'.*Known: library, site"),
    ],
)
def test_settings_are_checked(wrong, message):
    with pytest.raises(ConfigError, match=message):
        VoteSettings(**wrong)


def test_unknown_settings_modes_sites_and_priors_are_refused(model, library):
    with pytest.raises(ConfigError, match=r"no setting 'n_case' of votes; did you mean 'n_cases'\?"):
        VoteSettings.from_json({"n_case": 3})
    assert VoteSettings.from_json(VoteSettings(prior=(0.2, 0.8)).as_json) == VoteSettings(prior=(0.2, 0.8))
    with pytest.raises(ConfigError, match=r"mode is 'vote'; did you mean 'votes'\?"):
        model.with_library(library, "vote")
    with pytest.raises(LibraryError, match=r"no site 'berne'; did you mean 'bern'\?"):
        model.with_library(library, settings=VoteSettings(local_site="berne"))
    with pytest.raises(ConfigError, match="a probability of each of 2 classes"):
        model.with_library(library, settings=VoteSettings(prior=(0.1, 0.2, 0.7)))


def test_a_library_of_another_model_is_refused(library):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = RAxSSClassifier(**RIDGE | {"window_length": 24}).fit(waves(np.random.default_rng(0)))
    with pytest.raises(LibraryError, match=r"was built with another model .*window_length 32 there, 24 here"):
        other.with_library(library)


def test_labels_that_the_model_does_not_know_are_refused(model, library, tmp_path):
    changed = copied(library, tmp_path)
    path = changed.folder / "library.json"
    path.write_text(path.read_text().replace('"slow"', '"idle"'))
    with pytest.raises(
        LibraryError, match="cases of the classes 'fast', 'idle', but the model knows 'fast', 'slow'"
    ):
        model.with_library(CaseLibrary.open(changed.folder))


def test_a_library_of_one_class_or_none_is_refused_and_one_class_may_be_evidence(model, known, new, tmp_path):
    slow = [item for item in known if item.label == "slow"]
    with pytest.warns(LibraryWarning):
        library = CaseLibrary.build(model, slow, folder=tmp_path / "library", **BUILD)
    for mode in ("votes", "mixed"):
        with pytest.raises(LibraryError, match="only of the class 'slow'; votes need two classes"):
            model.with_library(library, mode)
    with pytest.warns(LibraryWarning, match="only of the class 'slow'.*As evidence they are shown"):
        shown = model.with_library(library)
    assert_array_equal(ignoring(shown.predict_proba, new), model.predict_proba(new))
    for group in library.groups:
        library.withdraw(group)
    with pytest.raises(LibraryError, match="has cases of no class"):
        model.with_library(library)
    with pytest.raises(LibraryError, match="has no cases: every group was withdrawn"):
        CaseIndex.of(library)


def test_where_no_case_or_one_class_is_left_the_model_answers_and_says_so(model, known, tmp_path):
    own = [known[0], dataclasses.replace(known[1], label="fast")]
    library = CaseLibrary.build(model, own, folder=tmp_path / "own", **BUILD)
    with_cases = model.with_library(library, "votes", settings=FIXED)
    with pytest.warns(
        LibraryWarning, match=r"'ann0 night 0': no case may vote: all 2 cases .*\(1 more series"
    ):
        found = with_cases.predict_proba(own)
    assert_array_equal(found, model.predict_proba(own))
    with pytest.warns(
        LibraryWarning, match=r"tau is 1 and every window votes.* by default, not fitted: without"
    ):
        alone = model.with_library(library, "votes").fitted  # one group of two classes: nothing to leave out
    assert (alone.least_similarity, alone.most_distance, alone.tau) == (None, None, DEFAULT_TAU)
    assert (alone.tau_from, alone.least_similarity_from) == (BY_DEFAULT, BY_DEFAULT)
    two = CaseLibrary.build(model, known[:4], folder=tmp_path / "two", **BUILD)
    with_cases = model.with_library(two, "votes", settings=FIXED)
    with pytest.warns(LibraryWarning, match=r"'ann0 night 0': all cases that the series may see are 'fast'"):
        found = with_cases.predict_proba(known[:1])
    assert_array_equal(found, model.predict_proba(known[:1]))


def strange_signals():
    """Signals that are no oscillations of people."""
    rng, time = np.random.default_rng(0), np.arange(120)
    signals = {
        "noise": rng.normal(size=120), "flat": 1 + 1e-3 * rng.normal(size=120), "ramp": 0.1 * time,
        "alternating": (-1.0) ** time, "square": np.sign(np.sin(0.9 * time)), "spikes": 5.0 * (time % 16 == 5),
        "growing": np.exp(time / 20), "outliers": 50 * rng.standard_cauchy(120),
        "walk": np.cumsum(rng.normal(size=120)), "saw": 1.0 * (time % 7),
    }  # fmt: skip
    return [
        Series(values, rate=10.0, name=name, origin={"patient": name}) for name, values in signals.items()
    ]


def test_a_series_that_no_case_is_near_says_so_instead_of_voting(model, library, new):
    with_cases, strange = model.with_library(library, "votes"), strange_signals()
    for item in with_cases.score_cases(strange):
        assert item.far_share > 0.8
        assert any(sentence.startswith("far from all cases: windows with") for sentence in item.warnings)
        assert item.score.mixing_of_windows[~item.score.is_near].sum() == 0
    assert item.far_share == pytest.approx(1)  # and then bits are the model's
    assert item.probability.tobytes() == model.predict_proba(strange)[-1].tobytes()
    assert not any("far" in item.case_notes for item in with_cases.score_cases(new))
    with pytest.warns(LibraryWarning, match=r"series 'noise': far from all cases.*\(9 more series likewise"):
        with_cases.predict(strange)
    trusting = model.with_library(library, "votes", settings=VoteSettings(least_similarity=-1))
    assert not any("far" in item.case_notes for item in trusting.score_cases(strange))
    strict = model.with_library(library, "votes", settings=VoteSettings(least_similarity=1))
    (item,) = strict.score_cases(new[:1])
    assert "similarity at most 0." in item.case_notes["far"]


def test_distances_are_those_of_the_nearest_key_listed(model, library, new):
    (item,) = model.with_library(library, "votes").score_cases(new[:1])
    features = next(model.encoder().encode(new[:1])).features
    queries = item.index.standardisation_of(new[0], VoteSettings()).apply(features).astype(float)
    keys = np.concatenate(item.index.blocks).astype(float)[item.score.lists.keys]
    assert_allclose(
        item.score.distances, np.linalg.norm(queries[:, None] - keys, axis=2).min(axis=1), atol=1e-6
    )
    with pytest.raises(DataError, match="most_distance is 2, but distances need the norms"):
        dataclasses.replace(item.score, most_distance=2.0, norms=None)


def test_a_series_is_scored_once(model, library, new, monkeypatch):
    with_cases, n_calls = model.with_library(library, "votes", settings=FIXED), []
    launch = Scorer.launch
    monkeypatch.setattr(
        Scorer, "launch", lambda *args, **kwargs: n_calls.append(1) or launch(*args, **kwargs)
    )
    list(with_cases.score_cases(new))
    assert len(n_calls) == len(new)


def test_without_lambda_bits_are_those_of_a_network(known, new, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = RAxSSClassifier(**NETWORK | {"max_epochs": 1}).fit(
            waves(np.random.default_rng(0), n_series=8)
        )
    library = CaseLibrary.build(network, known[:8], folder=tmp_path / "library", **BUILD)
    shown = network.with_library(library, settings=FIXED)
    assert shown.predict_proba(new).tobytes() == network.predict_proba(new).tobytes()


def test_an_unknown_group_is_said(model, library, new, tmp_path):
    nameless = dataclasses.replace(new[0], origin={}, group=None)
    with_cases = model.with_library(library, "votes", settings=FIXED)
    with pytest.warns(
        LibraryWarning,
        match=r"own group is unknown \(known of it is its recording, but .* are each a patient\)",
    ):
        with_cases.predict_proba([nameless])
    without_key = copied(library, tmp_path)
    (tmp_path / "library.key").unlink()
    with_cases = model.with_library(without_key, "votes", settings=FIXED)
    (item,) = with_cases.score_cases(new[:1])
    assert item.group_unknown
    assert "the key file of the library is missing" in item.case_notes["group unknown"]
    (tmp_path / "library.key").write_text("raxss-library-key-1\n" + "0" * 64 + "\n")
    (tmp_path / "library.key").chmod(0o600)
    with pytest.raises(LibraryError, match=r"key file 'library\.key' is of another library"):
        with_cases.predict_proba(new[:1])
    (tmp_path / "library.key").unlink()
    with pytest.warns(LibraryWarning, match="the own group of 16 series of fit_on is unknown"):
        model.with_library(without_key, "mixed", fit_on=new)


@pytest.mark.parametrize(
    ("in_library", "of_series", "unknown"),
    [
        ({"patient": "ann0"}, {"patient": "ann0"}, False),
        ({"recording": "ann0"}, {"patient": "ann0"}, True),  # may be hers, and nobody can tell
        ({"patient": "ann0"}, {"recording": "ann0"}, True),
        ({"recording": "ann0"}, {"recording": "night"}, False),
        ({"patient": "ann0"}, {"patient": "zoe"}, False),
    ],
)
def test_groups_are_unknown_where_library_and_series_know_them_by_other_units(
    model, known, new, tmp_path, in_library, of_series, unknown
):
    (unit,) = in_library
    series = [dataclasses.replace(item, origin={unit: item.origin["patient"]}) for item in known[::2]]
    library = CaseLibrary.build(model, series, folder=tmp_path / "library", **BUILD)
    with_cases = model.with_library(library, settings=FIXED)
    asked = dataclasses.replace(new[0], origin=of_series)
    assert next(with_cases.score_cases([asked])).group_unknown is unknown
    # One group known by another unit is enough: it may be the patient's.
    other = {"patient": "recording", "recording": "patient"}[unit]
    library.add(model, [dataclasses.replace(known[1], origin={other: "someone"})], site="bern")
    (item,) = ignoring(lambda: list(with_cases.score_cases([asked])))
    assert item.group_unknown


def test_a_group_with_more_than_a_fifth_of_the_listed_cases_is_named(model, library, new):
    settings = dataclasses.replace(FIXED, n_cases=4, most_a_group=2)
    n_said = 0
    for item in model.with_library(library, settings=settings).score_cases(new):
        shares = item.cases_table()["group"].value_counts(normalize=True)
        said = [sentence for sentence in item.warnings if sentence.startswith("one group holds")]
        assert len(said) == (shares.max() > 0.2)
        if said:
            n_said += 1
            assert f"{shares.max():.0%}" in said[0]
            assert any(name in said[0] for name in shares.index[shares == shares.max()])
    assert n_said
    even = model.with_library(library, settings=FIXED).score_cases(new)  # two of ten at most
    assert not any(sentence.startswith("one group") for item in even for sentence in item.warnings)


@pytest.mark.parametrize("name", ["series", "series 3", "row 0", ""])
def test_a_default_name_is_no_group(model, known, new, tmp_path, name):
    series = [dataclasses.replace(item, origin={}) for item in known]
    library = CaseLibrary.build(model, series, folder=tmp_path / "library", **BUILD)
    nameless = dataclasses.replace(new[0], origin={}, name=name)
    (item,) = model.with_library(library, settings=FIXED).score_cases([nameless])
    assert "(it has no name of its own)" in item.case_notes["group unknown"]
    named = dataclasses.replace(nameless, name="night")
    (item,) = model.with_library(library, settings=FIXED).score_cases([named])
    assert not item.group_unknown


def test_a_group_that_leaves_while_series_are_scored_does_not_vote_for_itself(model, known, new, tmp_path):
    library = CaseLibrary.build(model, known, folder=tmp_path / "library", **BUILD)
    settings = dataclasses.replace(FIXED, n_cases=30)  # every case that may be is listed
    expected = [
        item.cases_table() for item in model.with_library(library, settings=settings).score_cases(known)
    ]
    with_cases = model.with_library(library, settings=settings)
    scored = with_cases.score_cases(known)
    found = [next(scored).cases_table()]
    (own,) = library.own_groups(known[2])
    with_cases.library.withdraw("ann1")
    with_cases.library.add(model, new, site="bonn")
    found += [item.cases_table() for item in scored]
    assert own not in set(found[2]["group"])
    for one, other in zip(found, expected, strict=True):
        assert one.equals(other)
    # One that comes has no case in what is scored.
    scored = ignoring(with_cases.score_cases, people(["late", "later"]))
    next(scored)
    with_cases.library.add(model, people(["late"]), site="bern")
    assert len(list(scored)) == 3


def test_sites_are_standardised_by_themselves_and_local_cases_come_first(model, known, new, tmp_path):
    def moved(series):
        return [
            dataclasses.replace(item.with_samples(3 * item.samples + 5), name=item.name) for item in series
        ]

    library = CaseLibrary.build(model, known[:12], folder=tmp_path / "library", **BUILD)
    library.add(model, moved(people(named("bob", 6), seed=9)), site="bonn")
    settings = VoteSettings(standardise_by="site", local_site="bonn", tau=0.1, n_cases=4, least_similarity=-1)
    item = next(model.with_library(library, "votes", settings=settings).score_cases(moved(new[:1])))
    assert set(item.cases_table()["site"]) == {"bonn"}
    index = item.index
    for site in library.sites:
        keys = [
            block for block, own in zip(index.blocks, library.blocks(), strict=True) if site in own.site_names
        ]
        means = np.mean([block.mean(axis=0) for block in keys], axis=0)
        assert_allclose(means, 0, atol=1e-4)
    nowhere = VoteSettings(standardise_by="site", tau=0.1, least_similarity=-1)
    item = next(model.with_library(library, "votes", settings=nowhere).score_cases(new[:1]))
    assert "the library has no site ''" in item.case_notes["site"]


def test_a_calibration_of_series_is_not_applied_to_votes_and_said(model, known, new, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrated = RAxSSClassifier(
            **RIDGE, calibration="temperature", calibration_level="series", validation_fraction=0.3
        ).fit(waves(np.random.default_rng(0), n_series=24))
    library = CaseLibrary.build(calibrated, known, folder=tmp_path / "library", **BUILD)
    shown = calibrated.with_library(library)
    assert shown.predict_proba(new).tobytes() == calibrated.predict_proba(new).tobytes()
    (item,) = calibrated.with_library(library, "votes", settings=FIXED).score_cases(new[:1])
    assert "is not applied" in item.case_notes["calibration"]
    assert_allclose(item.score.contributions().sum(axis=(0, 1)), item.probability, atol=1e-9)
