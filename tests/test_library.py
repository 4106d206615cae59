"""Case libraries: what is in the folder, what adding and withdrawing leave, keys of real models, kills."""

import dataclasses
import json
import os
import re
import stat
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file

from case_libraries import CLASSES, PEOPLE, WIDTH, ToyEncoder, built, contents, of_person, recordings
from raxss import AutoRAxSS, RAxSSClassifier, Series
from raxss._core.outputs import output_lock
from raxss.errors import BackboneError, LabelError, LibraryError, LibraryWarning, OutputInUseError
from raxss.estimator.encoder import encoder_of
from raxss.library import CaseLibrary, Policy, Selection, Standardisation
from raxss.library.selection import evenly, medoids
from toys import SIGNAL, SMALL, Tiny, waves

# The folder -------------------------------------------------------------------------------------------------


def test_the_folder_holds_two_texts_and_one_file_a_group(tmp_path):
    library = built(tmp_path / "library")
    assert set(contents(library.folder)) == {
        "library.json",
        "policy.toml",
        *(f"patients/{group}/cases.safetensors" for group in library.groups),
    }
    facts = json.loads((library.folder / "library.json").read_text())
    assert facts["selection"] == {"windows_a_recording": 5, "selection": "spread", "seed": 0}
    assert (facts["sites"], facts["units"], facts["classes"], facts["width"]) == (
        ["bern"],
        ["patient"],
        list(CLASSES),
        WIDTH,
    )
    assert facts["model"]["window_length"] == 32
    assert Policy.from_toml((library.folder / "policy.toml").read_text(), "policy.toml") == Policy()


def test_the_files_are_those_of_safetensors(tmp_path):
    library = built(tmp_path / "library")
    for group, block in zip(library.groups, library.blocks(), strict=True):
        arrays = load_file(library.folder / "patients" / group / "cases.safetensors")
        assert_array_equal(arrays["keys"], block.keys)
        assert arrays["keys"].dtype == np.float32
        assert_array_equal(arrays["start_s"], block.start_s)
        assert block.keys.ctypes.data % 8 == 0  # aligned where it lies in the file


def test_no_name_stands_in_the_folder_or_its_file_names(tmp_path):
    library = built(tmp_path / "library")
    everything = b"\n".join([*map(str.encode, contents(library.folder)), *contents(library.folder).values()])
    assert b"bern" in everything  # the search finds what is there
    for person in PEOPLE:
        for word in (person, person.split()[1], f"{person} night 0"):
            for spelt in (word, word.lower(), word.upper()):
                assert spelt.encode() not in everything, spelt
                assert spelt.encode("utf-16-le") not in everything, spelt
    assert b"night" not in everything


@pytest.mark.parametrize("seed", range(4))
def test_bytes_do_not_depend_on_the_order_of_adding_and_withdrawing(tmp_path, seed):
    rng, series, key = np.random.default_rng(seed), recordings(), tmp_path / "key"
    gone = PEOPLE[seed]
    kept = [item for item in series if item.origin["patient"] != gone]
    plain = built(tmp_path / "plain", kept, key_file=key, make_key=True)
    order = rng.permutation(len(series))
    first, *others = np.array_split(order, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LibraryWarning)  # some parts are of one class
        library = built(tmp_path / "other" / "elsewhere", [series[i] for i in first], key_file=key)
        for part in others:
            library.add(ToyEncoder(), [series[i] for i in part], site="bern")
        library.add(ToyEncoder(), of_person(series, PEOPLE[5]), site="bonn")
    assert library.withdraw(gone) == 2
    library.withdraw(PEOPLE[5], site="bonn")
    assert contents(library.folder) == contents(plain.folder)
    assert (library.id, library.state) == (plain.id, plain.state)


def test_a_group_that_leaves_changes_no_byte_of_the_others(tmp_path):
    library = built(tmp_path / "library")
    before, leaving = contents(library.folder), library.groups[2]
    library.withdraw(leaving)
    assert contents(library.folder) == {
        name: content for name, content in before.items() if leaving not in name
    }


def test_the_id_stays_and_the_state_follows_what_is_there(tmp_path):
    series = recordings()
    library = built(tmp_path / "library", of_person(series, *PEOPLE[:4]))
    known, states = library.id, [library.state]
    library.add(ToyEncoder(), of_person(series, PEOPLE[4]), site="bern")
    states.append(library.state)
    library.withdraw(PEOPLE[4])
    states.append(library.state)
    assert library.id == known == CaseLibrary.open(library.folder).id
    assert states[0] == states[2] != states[1]
    assert built(tmp_path / "b", series, key_file=tmp_path / "library.key", name="b").id != known


def test_opening_reads_no_keys_and_needs_no_key_file(tmp_path):
    library = built(tmp_path / "library")
    (tmp_path / "library.key").unlink()
    for group in library.groups:
        (library.folder / "patients" / group / "cases.safetensors").write_bytes(b"not read")
    opened = CaseLibrary.open(library.folder)
    assert (opened.groups, opened.sites, opened.unit) == (library.groups, ("bern",), "patient")
    with pytest.raises(LibraryError, match=f"group '{library.groups[0]}' in library 'library'"):
        opened.cases()


# Cases ------------------------------------------------------------------------------------------------------


def test_cases_are_the_windows_that_the_encoder_gave(tmp_path):
    encoder, series = ToyEncoder(), recordings(n_each=3)
    cases = built(tmp_path / "library", series, encoder=encoder).cases()
    of_content = {item.digest: item for item in series}
    assert set(cases.digests) == set(of_content)
    assert len(cases) == 5 * len(series)
    for case, digest in enumerate(cases.digests):
        rows, item = np.flatnonzero(cases.case == case), of_content[digest]
        encoded = next(encoder.encode([item]))
        chosen = evenly(len(encoded), 5)
        assert_array_equal(cases.keys[rows], encoded.features[chosen])
        assert_array_equal(cases.start_s[rows], encoded.start_s[chosen])
        assert_array_equal(cases.end_s[rows], encoded.end_s[chosen])
        assert {cases.classes[label] for label in cases.label[rows]} == {item.label}
        people = {series_.origin["patient"] for series_ in map(of_content.get, cases.digests)}
        assert len({cases.group[row] for row in rows}) == 1
    assert len(people) == len(cases.group_names) == 6
    assert list(cases.group_names) == sorted(cases.group_names)
    assert_array_equal(cases.case_labels, [CLASSES.index(of_content[d].label) for d in cases.digests])
    for person in PEOPLE:  # the recordings of a person are one group, and no other's
        own = [c for c, digest in enumerate(cases.digests) if of_content[digest].origin["patient"] == person]
        assert len(own) == 3
        assert len(set(cases.case_groups[own])) == 1


def test_cases_of_one_site(tmp_path):
    series = recordings()
    library = built(tmp_path / "library", of_person(series, *PEOPLE[:2]))
    library.add(ToyEncoder(), of_person(series, *PEOPLE[2:]), site="bonn")
    every, some = library.cases(), library.cases(site="bonn")
    assert (every.site_names, some.site_names) == (("bern", "bonn"), ("bonn",))
    assert_array_equal(some.keys, every.keys[every.site == 1])
    assert_array_equal(np.repeat(every.case_sites, 5), every.site)
    assert len(some) == 5 * 8
    with pytest.raises(LibraryError, match=r"no site 'bon'; did you mean 'bonn'\?"):
        library.cases(site="bon")


def test_quality_is_the_share_of_samples_that_are_there_and_unusable_windows_are_left_out(tmp_path):
    samples = np.random.default_rng(0).normal(size=320)
    samples[40:72], samples[200:204] = np.nan, np.nan
    gaps = Series(samples, rate=8.0, label="calm", name="gaps", origin={"patient": "x"}, gaps_marked=True)
    dead = dataclasses.replace(gaps, samples=np.full((1, 320), np.nan), name="dead")
    with pytest.warns(LibraryWarning, match=r"1 recordings have no window with enough samples.*'dead'"):
        library = built(tmp_path / "library", [*recordings(), gaps, dead], windows_a_recording=100)
    (block,) = [one for one in library.blocks() if gaps.digest in one.digests]
    assert dead.digest not in library.cases().digests
    missing = np.array([np.isnan(samples[start : start + 32]).mean() for start in range(0, 289, 16)])
    assert (missing > 0.5).sum() == 2
    assert_allclose(block.quality, 1 - missing[missing <= 0.5])


def test_standardisation_counts_every_group_alike_and_each_site_by_itself(tmp_path):
    rng = np.random.default_rng(3)
    many = [
        Series(5 + rng.normal(size=400), label="busy", name=f"Guy {i}", origin={"patient": "Guy"})
        for i in range(9)
    ]
    series = recordings()
    library = built(tmp_path / "library", series)
    with pytest.warns(LibraryWarning, match="'bonn' has 'busy'"):
        library.add(ToyEncoder(), many, site="bonn")
    blocks = [block.keys.astype(np.float64) for block in library.blocks()]
    weights = np.concatenate([np.full(len(block), 1 / len(block) / len(blocks)) for block in blocks])
    keys = np.concatenate(blocks)
    mean = weights @ keys
    scale = np.sqrt(weights @ (keys - mean) ** 2)
    found = library.standardisation()
    assert_allclose(found.mean, mean, rtol=1e-12)
    assert_allclose(found.scale, scale, rtol=1e-12)
    assert (found.n_groups, found.n_windows) == (7, len(keys))
    assert_allclose(found.apply(blocks[0]), (blocks[0] - mean) / scale, atol=1e-5)
    assert abs(found.mean[0] - 5 / 7) < 0.2  # not 9/21 of 5
    library.withdraw("Guy")
    again, alone = (
        library.standardisation(),
        built(tmp_path / "alone", series, key_file=tmp_path / "library.key"),
    )
    for name in ("mean", "scale"):
        assert getattr(again, name).tobytes() == getattr(alone.standardisation("bern"), name).tobytes()


def test_a_feature_that_never_changes_is_divided_by_one():
    features = np.tile(np.float32([0.1, 1e20]), (77, 1))
    features[:, 1] += np.float32(1e16) * np.arange(77, dtype=np.float32)
    found = Standardisation.of([features[:40], features[40:]])
    assert found.scale[0] == 1.0
    assert found.scale[1] > 1e15
    assert np.abs(found.apply(features)[:, 0]).max() < 1e-6
    with pytest.raises(LibraryError, match="no window to standardise"):
        Standardisation.of([np.zeros((0, 3))])


# Selection --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "n_chosen"), [(25, 24), (24, 24), (100, 7), (3, 2), (1000, 24), (9, 1)])
def test_spread_windows_are_as_far_apart_as_can_be(n, n_chosen):
    chosen = evenly(n, n_chosen)
    assert len(set(chosen.tolist())) == n_chosen
    assert np.ptp(np.diff(chosen)) <= 1 if n_chosen > 2 else True
    if n_chosen > 1:
        assert (chosen[0], chosen[-1]) == (0, n - 1)


@pytest.mark.parametrize("selection", ["spread", "k-medoids"])
def test_selection_takes_usable_windows_alone_and_at_most_so_many(selection, rng):
    features, usable = rng.normal(size=(60, 3)), rng.random(60) < 0.5
    some = Selection(windows_a_recording=7, selection=selection)
    chosen = some.chosen(features, usable)
    assert len(set(chosen.tolist())) == 7
    assert list(chosen) == sorted(chosen)
    assert usable[chosen].all()
    assert_array_equal(chosen, some.chosen(features, usable))
    few = np.zeros(60, bool)
    few[[3, 9]] = True
    assert_array_equal(some.chosen(features, few), [3, 9])


def test_medoids_are_nearer_to_all_than_random_rows(rng):
    centres = rng.normal(size=(5, 4)) * 20
    features = np.concatenate([centre + rng.normal(size=(30, 4)) for centre in centres])

    def cost(rows):
        return np.sqrt(((features[:, None] - features[rows]) ** 2).sum(axis=2)).min(axis=1).sum()

    chosen = medoids(features, 5, seed=1)
    assert set(chosen // 30) == set(range(5))  # one of each cluster
    assert cost(chosen) < 0.9 * min(cost(rng.choice(150, 5, replace=False)) for _ in range(50))
    assert_array_equal(medoids(np.ones((6, 2)), 3, seed=0).shape, (3,))  # equal rows are no trouble


def test_k_medoids_and_seed_are_kept(tmp_path):
    settings = {"selection": "k-medoids", "seed": 7}
    library = built(tmp_path / "library", **settings)
    assert CaseLibrary.open(library.folder).selection == Selection(windows_a_recording=5, **settings)
    library.add(ToyEncoder(), recordings(["New One"]), site="bern")
    every = built(
        tmp_path / "b", recordings([*PEOPLE, "New One"]), key_file=tmp_path / "library.key", **settings
    )
    assert contents(every.folder) == contents(library.folder)


# Adding and withdrawing -------------------------------------------------------------------------------------


def test_what_is_there_already_is_not_encoded_again(tmp_path):
    encoder, series = ToyEncoder(), recordings()
    library = built(tmp_path / "library", series, encoder=encoder)
    before, n_encoded = contents(library.folder), len(encoder.encoded)
    done = library.add(encoder, series, site="bern")
    assert (done.n_new, done.n_unchanged, done.n_windows) == (0, 12, 0)
    built(library.folder, series, encoder=encoder)  # the same build again is complete already
    assert (len(encoder.encoded), contents(library.folder)) == (n_encoded, before)


def test_a_recording_with_other_samples_or_another_label_is_refused_by_name_unless_it_replaces(tmp_path):
    series = recordings()
    library, before = built(tmp_path / "library", series), contents(tmp_path / "library")
    other = series[0].with_samples(series[0].samples + 1)
    relabelled = dataclasses.replace(series[3], label="calm")
    for changed in (other, relabelled):
        with pytest.raises(LibraryError, match=rf"1 recordings .*{changed.name}.*replace=True"):
            library.add(ToyEncoder(), [changed, *recordings(["New One"])], site="bern")
        assert contents(library.folder) == before
    done = library.add(ToyEncoder(), [other, relabelled], site="bern", replace=True)
    assert (done.n_new, done.n_replaced, done.n_windows) == (0, 2, 10)
    series[0], series[3] = other, relabelled
    assert contents(library.folder) == contents(
        built(tmp_path / "b", series, key_file=tmp_path / "library.key").folder
    )


def test_two_recordings_of_one_name_that_differ_are_refused(tmp_path):
    series = recordings(n_each=1)
    twin = dataclasses.replace(series[0], samples=series[0].samples * 2)
    with pytest.raises(LibraryError, match="two recordings are called 'Ann Leigh night 0' and differ"):
        built(tmp_path / "library", [*series, twin])
    assert not (tmp_path / "library").exists()


def test_the_same_samples_under_another_name_are_warned_of(tmp_path):
    series = recordings()
    library = built(tmp_path / "library", series)
    copy = dataclasses.replace(series[0], name="copy", label="busy", group="Zoe", origin={"patient": "Zoe"})
    with pytest.warns(
        LibraryWarning, match=r"'copy' \(in another group, there with another label\)"
    ) as found:
        library.add(ToyEncoder(), [copy], site="bern")
    assert not re.search("[0-9a-f]{32}", "".join(str(warning.message) for warning in found))


def test_groups_are_patients_else_pairs_else_recordings(tmp_path):
    def taken(place, **facts):
        series = [
            dataclasses.replace(item, **{"group": None, "origin": {}, **{k: v(n) for k, v in facts.items()}})
            for n, item in enumerate(recordings())
        ]
        library = built(tmp_path / place, series)
        return len(library), library.unit

    assert taken("a", group=lambda n: f"person {n // 4}") == (3, "patient")
    assert taken("b", origin=lambda n: {"pair": f"p{n // 2}", "recording": f"r{n // 6}"}) == (6, "pair")
    assert taken("c", origin=lambda n: {"recording": f"r{n}"}) == (12, "recording")
    assert taken("d") == (12, "recording")
    series = recordings()
    series[3] = dataclasses.replace(series[3], group=None, origin={})
    with pytest.raises(
        LibraryError, match="1 of 12 recordings have no known patient, the first is 'Bob Rayner n"
    ):
        built(tmp_path / "e", series)
    library = built(tmp_path / "f")
    unnamed = [dataclasses.replace(item, group=None, origin={}) for item in recordings(seed=1)]
    library.add(ToyEncoder(), unnamed, site="x")
    assert library.unit == "recording"


def test_people_of_two_sites_are_two(tmp_path):
    library = built(tmp_path / "library")
    with pytest.warns(LibraryWarning, match="samples of others"):
        library.add(ToyEncoder(), recordings(), site="bonn")
    assert len(library) == 12
    ann = recordings()[0]
    assert len(library.own_groups(ann)) == 2
    with pytest.raises(
        LibraryError, match=r"2 groups are called 'Ann Leigh', at bern, bonn\. Say site="
    ) as found:
        library.withdraw("Ann Leigh")
    assert not re.search("[0-9a-f]{32}", str(found.value))  # a name and its pseudonym are never told together
    assert library.withdraw("Ann Leigh", site="bonn") == 2
    assert len(library.own_groups(ann)) == 1
    assert library.own_groups(Series([0.0], origin={"patient": "nobody"})) == ()


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        ({"origin": {"recording": "rec0"}}, {"origin": {"patient": "ann", "recording": "rec0"}}),
        ({"origin": {"pair": "p0"}}, {"origin": {"patient": "ann", "pair": "p0"}}),
        (
            {"origin": {"recording": "rec0", "pair": "p0"}},
            {"origin": {"patient": "ann", "recording": "rec0", "pair": "p0"}},
        ),
        ({"group": "ann"}, {"origin": {"patient": "Ann L.", "recording": "rec0"}, "group": "ann"}),
        ({"name": "rec0"}, {"origin": {"patient": "ann", "recording": "rec0"}}),
        ({"group": 1}, {"group": 1.0}),
        ({"group": 1.0}, {"group": np.int64(1)}),
        ({"origin": {"patient": "1"}}, {"origin": {"patient": 1.0}}),
    ],
)
def test_own_groups_are_found_whatever_was_known_when_they_were_added(tmp_path, known, asked):
    samples = recordings()[0].samples[0]
    others = {} if "name" in known else dict.fromkeys(known.get("origin", ["patient"]), "x")
    added = [
        Series(samples, label="calm", **({"name": "C3"} | known)),
        Series(samples + 1, label="busy", name="else", origin=others),
    ]
    library = built(tmp_path / "library", added)
    assert len(library) == 2
    own = library.own_groups(Series(samples, name="C4", **asked))
    assert len(own) == 1
    assert library.withdraw(own[0]) == 1
    assert library.cases().digests == (added[1].digest,)


def test_whole_numbers_are_one_group_of_any_type(tmp_path):
    series = [dataclasses.replace(item, group=n // 4, origin={}) for n, item in enumerate(recordings())]
    library = built(tmp_path / "library", series)
    again = [dataclasses.replace(item, group=np.float64(item.group)) for item in series]
    assert library.add(ToyEncoder(), again, site="bern").n_unchanged == len(series)
    assert library.withdraw(2.0) == 4
    assert library.withdraw(np.int32(1)) == 4


def test_recordings_without_windows_are_not_counted_as_new(tmp_path):
    series = recordings()
    library = built(tmp_path / "library", series)
    gaps = series[0].with_samples(np.full(400, np.nan))
    empty = dataclasses.replace(
        series[0], name="gaps", samples=np.full((1, 401), np.nan), group="New", origin={}
    )
    with pytest.warns(LibraryWarning, match="2 recordings have no window"):
        done = library.add(ToyEncoder(), [gaps, empty, *recordings(["New One"])], site="bern", replace=True)
    assert (done.n_new, done.n_replaced, done.n_windows) == (2, 0, 10)
    assert set(done.without_windows) == {series[0].name, "gaps"}


class Refusing(ToyEncoder):
    """Of the same fingerprint; refuses when it is asked, or after so many recordings."""

    after = -1

    def encode(self, series):
        found = list(super().encode(series))
        if self.after < 0:
            raise BackboneError("not prepared as the model's training data")

        def given():
            yield from found[: self.after]
            raise KeyboardInterrupt

        return given()


class Stopping(Refusing):
    after = 3  # within the second person


class StoppingAtOnce(Refusing):
    after = 1  # within the first person: no group is written


def test_an_addition_that_the_encoder_refuses_changes_nothing(tmp_path):
    library = built(tmp_path / "library")
    before = contents(library.folder)
    written = []
    write, library._folder.write_facts = library._folder.write_facts, written.append
    with pytest.raises(BackboneError):
        library.add(Refusing(), recordings(seed=1), site="bonn")
    assert {facts.sites for facts in written} <= {("bern",)}  # not even for a moment
    library._folder.write_facts = write
    assert (contents(library.folder), library.sites) == (before, ("bern",))


def test_an_addition_that_is_interrupted_leaves_the_sites_that_are_there(tmp_path):
    library = built(tmp_path / "library")
    before = contents(library.folder)
    with pytest.raises(KeyboardInterrupt):
        library.add(StoppingAtOnce(), recordings(seed=1), site="bonn")
    assert (contents(library.folder), library.sites) == (before, ("bern",))
    with pytest.raises(KeyboardInterrupt):
        library.add(Stopping(), recordings(seed=1), site="bonn")
    assert library.sites == CaseLibrary.open(library.folder).sites == ("bern", "bonn")
    assert (len(library), len(library.cases(site="bonn").case_names)) == (7, 2)


@pytest.mark.parametrize(
    ("encoder", "series"),
    [(ToyEncoder(), recordings()), (Refusing(), recordings(["New One"]))],
    ids=["nothing new", "refused"],
)
def test_sites_of_a_killed_addition_go_with_the_next_one(tmp_path, encoder, series):
    library = built(tmp_path / "library")
    before = contents(library.folder)
    facts = dataclasses.replace(library._facts, sites=("bern", "bonn"))
    library._folder.write_facts(facts)  # as one leaves it that is killed before its first group
    killed = CaseLibrary.open(library.folder)
    assert len(list(killed.blocks(site="bonn"))) == 0
    with suppress(BackboneError):
        killed.add(encoder, series, site="bern")
    assert (contents(library.folder), killed.sites) == (before, ("bern",))


def test_what_others_added_or_withdrew_is_seen_after_a_refresh(tmp_path):
    library = built(tmp_path / "library")
    other, state = CaseLibrary.open(library.folder), library.state
    other.add(ToyEncoder(), recordings(["New One"]), site="bonn")
    assert (len(library), library.sites, library.state) == (6, ("bern",), state)
    library.refresh()
    assert (library.groups, library.sites, library.state) == (other.groups, ("bern", "bonn"), other.state)
    other.withdraw("New One")
    library.refresh()
    assert (len(library), library.sites, library.state) == (6, ("bern",), state)


def test_a_refused_build_leaves_no_key_file(tmp_path):
    with pytest.raises(LabelError):
        built(tmp_path / "library", [dataclasses.replace(item, label=None) for item in recordings()])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(LibraryError):
        built(tmp_path / "full")
    assert {path.name for path in tmp_path.iterdir()} == {"full"}


def test_the_lock_of_a_writer_may_lie_inside_the_folder(tmp_path):
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / ".lock").touch()  # as output_lock does where the folder around cannot be written
    assert len(built(tmp_path / "library")) == 6


def test_centres_of_series_are_sites_where_none_is_given(tmp_path):
    series = [
        dataclasses.replace(item, origin={**item.origin, "centre": "ab"[n // 6]})
        for n, item in enumerate(recordings())
    ]
    assert built(tmp_path / "library", series, site=None).sites == ("a", "b")
    assert built(tmp_path / "local", site=None).sites == ("local",)
    for site in ("", " ", "a\nb", "x" * 101, 3):
        with pytest.raises(LibraryError, match="needed is the name of a place"):
            built(tmp_path / "none", site=site)


def test_withdrawing_what_is_not_there_says_so(tmp_path):
    library = built(tmp_path / "library")
    with pytest.raises(LibraryError, match="the group 'Ann' is not in the library 'library', of 6 groups"):
        library.withdraw("Ann")
    pseudonym = library.groups[0]
    (tmp_path / "library.key").unlink()
    with pytest.raises(LibraryError, match="is not in the library"):
        library.withdraw("Ann Leigh")  # nobody can tell without the key
    assert library.withdraw(pseudonym) == 2
    with pytest.raises(LibraryError, match=pseudonym):
        library.withdraw(pseudonym)


def test_the_last_group_may_leave_and_an_empty_library_says_so(tmp_path):
    library = built(tmp_path / "library", recordings(["Ann Leigh"]))
    library.withdraw("Ann Leigh")
    assert (len(library), library.sites, library.unit) == (0, (), "recording")
    with pytest.raises(LibraryError, match="the library 'library' has no cases"):
        CaseLibrary.open(library.folder).cases()
    with pytest.raises(LibraryError, match="cases of no class"):
        library.check_votes()
    library.add(ToyEncoder(), recordings(["Ann Leigh"]), site="bern")
    library.check_votes()


def test_one_class_no_label_an_unknown_label_and_no_series(tmp_path):
    series = recordings()
    with pytest.warns(LibraryWarning, match="all cases are of the class 'busy'"):
        library = built(tmp_path / "library", series[1::2])
    with pytest.raises(LibraryError, match="cases only of the class 'busy'; votes need two"):
        library.check_votes()
    for label, message in {
        "bussy": "label 'bussy', which the model does not know; did you mean 'busy'",
        None: "'Ann Leigh night 0' has no label",
        True: "label True, which",
    }.items():
        with pytest.raises(LabelError, match=message):
            library.add(ToyEncoder(), [dataclasses.replace(series[0], label=label)], site="bern")
    with pytest.raises(LabelError, match="label True"):
        built(
            tmp_path / "b", [dataclasses.replace(series[0], label=True)], encoder=ToyEncoder(classes=(0, 1))
        )
    numbers = [dataclasses.replace(item, label=CLASSES.index(item.label)) for item in series]
    floats = built(tmp_path / "c", numbers, encoder=ToyEncoder(classes=(0.0, 1.0)))
    assert set(floats.cases().label) == {0, 1}  # 1 and 1.0 are one label
    with pytest.raises(LibraryError, match="no recordings were given"):
        library.add(ToyEncoder(), [], site="bern")


def test_sites_with_other_classes_are_warned_of_by_name(tmp_path):
    library, new = built(tmp_path / "library"), recordings(["New One"])
    with pytest.warns(
        LibraryWarning, match=r"'bern' has 'calm', 'busy'; 'bonn' has 'calm'\. Where two sites"
    ):
        library.add(ToyEncoder(), new[:1], site="bonn")
    library.add(ToyEncoder(), new, site="bonn")  # no warning: both have both


def test_another_encoder_is_refused_with_what_differs(tmp_path):
    library = built(tmp_path / "library")
    with pytest.raises(LibraryError, match=r"'library' was built with another model \(other weights or"):
        library.add(ToyEncoder(seed=1), recordings(), site="bern")
    with pytest.raises(LibraryError, match=r"stride 16 there, 8 here"):
        library.check_encoder(ToyEncoder(stride=8))
    with pytest.raises(LibraryError, match="the classes 'calm', 'busy', but the model knows 'a', 'b'"):
        library.check_encoder(ToyEncoder(classes=("a", "b")))
    with pytest.raises(LibraryError, match="a dict was given where a fitted model is needed"):
        library.check_encoder({})
    library.check_encoder(ToyEncoder())


def test_a_build_never_mixes_with_what_is_there(tmp_path):
    series = recordings()
    library = built(tmp_path / "library", series)
    before = contents(library.folder)
    for other in ({"series": series[:4]}, {"windows_a_recording": 6}, {"policy": Policy(show="nothing")}):
        with pytest.raises(LibraryError, match="'library' holds a library already"):
            built(library.folder, **other)
    assert contents(library.folder) == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(LibraryError, match=r"'full' holds 'thesis.txt' and is no case library"):
        built(tmp_path / "full")


def test_an_encoder_that_gives_no_numbers_is_refused_by_the_name_of_the_recording(tmp_path):
    class Broken(ToyEncoder):
        def _one(self, item):
            found = super()._one(item)
            return dataclasses.replace(found, features=found.features * np.float32(np.nan))

    with pytest.raises(
        LibraryError, match=r"recording '.* night .' has windows whose features are not finite"
    ):
        built(tmp_path / "library", encoder=Broken())
    with pytest.raises(LibraryError, match=r"gave features of shape \(24, 4\) .* needed is \(24, 5\)"):
        built(tmp_path / "b", encoder=ToyEncoder(n_features=5))
    assert len(CaseLibrary.open(tmp_path / "b")) == 0


# Key files and policy ---------------------------------------------------------------------------------------


def test_a_key_file_is_its_owners_alone_and_outside_the_library(tmp_path):
    library = built(tmp_path / "library")
    key = tmp_path / "library.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(library.folder)
    for place in (
        library.folder / "key",
        tmp_path / "link" / "key",
        library.folder / "patients" / ".." / "k",
    ):
        with pytest.raises(LibraryError, match="would lie inside the library"):
            built(tmp_path / "library", key_file=place, make_key=True)
    with pytest.raises(LibraryError, match=r"key file 'missing' cannot be read \(No such file"):
        built(tmp_path / "b", key_file=tmp_path / "missing")
    key.chmod(0o644)
    with pytest.warns(LibraryWarning, match=r"'library.key' can be read or changed by other users.*mode 644"):
        library.withdraw("Ann Leigh")


def test_another_key_file_is_refused(tmp_path):
    library = built(tmp_path / "library")
    built(tmp_path / "other")
    wrong = CaseLibrary.open(library.folder, key_file=tmp_path / "other.key")
    with pytest.raises(LibraryError, match=r"the key file 'other.key' is of another library than 'library'"):
        wrong.add(ToyEncoder(), recordings(["New One"]), site="bern")
    (tmp_path / "library.key").write_text("raxss-library-key-1\nabc\n")
    (tmp_path / "library.key").chmod(0o600)
    with pytest.raises(LibraryError, match=r"'library.key' is no key of a case library"):
        library.withdraw("Ann Leigh")


def test_two_keys_share_no_pseudonym(tmp_path):
    first, second = built(tmp_path / "a"), built(tmp_path / "b")
    assert not {*first.groups, *first.cases().case_names, first.id} & {
        *second.groups,
        *second.cases().case_names,
        second.id,
    }
    assert first.cases().digests != ()


def test_a_policy_is_kept_as_it_was_written(tmp_path):
    policy = Policy(purposes=("DUO:0000006",), min_patients=5, show="waveform", expiry="2031-12-31")
    library = built(tmp_path / "library", policy=policy)
    library.withdraw(library.groups[0])
    assert CaseLibrary.open(library.folder).policy == policy
    for text, message in {
        "format = 'raxss-policy-1'\nshow = 'all'": "show is 'all'",
        "format = 'raxss-policy-1'\nmin_patient = 3": "unknown entry 'min_patient'; did you mean 'min_patients'",
        "format = 'raxss-policy-1'\nexpiry = 'soon'": "expiry must be a day",
        "show = 'facts'": "its format is not 'raxss-policy-1'",
        "format = ": "valid TOML",
    }.items():
        with pytest.raises(LibraryError, match=message):
            Policy.from_toml(text, "policy.toml")


# Writers ----------------------------------------------------------------------------------------------------


def test_a_second_writer_is_told_of_the_first(tmp_path):
    library, failed = built(tmp_path / "library"), []

    def write():
        for call in (lambda: library.withdraw(PEOPLE[0]), lambda: built(library.folder)):
            try:
                call()
            except OutputInUseError as error:
                failed.append(str(error))

    with output_lock(library.folder):
        other = threading.Thread(target=write)
        other.start()
        other.join()
    assert len(failed) == 2
    assert "'library' is being written by another thread" in failed[0]
    assert len(CaseLibrary.open(library.folder)) == 6


KILLS = """
import os, shutil, sys, warnings
from pathlib import Path
from case_libraries import ToyEncoder, built, contents, of_person, recordings, PEOPLE
from raxss.library import CaseLibrary
warnings.simplefilter("ignore")
root = Path(sys.argv[1])
series, key = recordings(PEOPLE[:3], n_samples=120), root / "key"
some = of_person(series, *PEOPLE[:2])

def add():
    CaseLibrary.open(root / "library", key_file=key).add(ToyEncoder(), series, site="bern")

def withdraw():
    try:
        CaseLibrary.open(root / "library", key_file=key).withdraw(PEOPLE[1])
    except ValueError as error:
        assert "is not in the library" in str(error)  # it was gone already

def build():
    built(root / "library", some, key_file=key, make_key=True)

def killed_at(step, call):
    # Whether a child that dies at this change of the disk came so far.
    child = os.fork()
    if child == 0:
        left = [step]
        def counted(plain):
            def change(*arguments, **options):
                if left[0] == 0:
                    os._exit(9)
                left[0] -= 1
                return plain(*arguments, **options)
            return change
        for name in ("rename", "replace", "mkdir", "rmdir", "unlink", "fsync"):
            setattr(os, name, counted(getattr(os, name)))
        call()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9

n_kills = 0
build()
with_some = contents(root / "library")
shutil.copytree(root / "library", root / "some")
add()
with_all = contents(root / "library")
without = {
    name: content
    for name, content in with_some.items()
    if CaseLibrary.open(root / "some", key_file=key).own_groups(some[-1])[0] not in name
}
whole = {
    "build": (build, None, with_some),
    "add": (add, "some", with_all),
    "withdraw": (withdraw, "some", without),
}
for name, (call, start, wanted) in whole.items():
    for step in range(1000):
        shutil.rmtree(root / "library", ignore_errors=True)
        if start:
            shutil.copytree(root / start, root / "library")
        if not killed_at(step, call):
            break
        n_kills += 1
        if (root / "library" / "library.json").exists():  # it opens, and every group in it is whole
            library = CaseLibrary.open(root / "library", key_file=key)
            list(library.blocks())
            assert len(library) <= 3, len(library)
        call()
        found = contents(root / "library")
        assert found == wanted, (name, step, sorted(set(found) ^ set(wanted)))
print(n_kills)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_whenever_a_writer_is_killed_the_library_opens_and_the_same_call_completes_it(tmp_path):
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(tmp_path)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 40


# Real models ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def series():
    return waves(np.random.default_rng(5), n_series=12)


@pytest.fixture(scope="module")
def models(series):
    """A window classifier, a network with gate and projection, and a mixture of both kinds of member."""
    settings = {**SMALL, "max_epochs": 1, "space": "features", "validation_fraction": 0.4}
    heads = {"refresh": "batch", "projection": 3, "weighting": "gated", "series_loss_weight": 1.0}
    members = [{"backbone": "ridge", "view": "statistics"}, {"backbone": "convnet", "width": 2}]
    made = {
        "ridge": RAxSSClassifier("ridge", **settings, backbone_options={"view": "statistics"}),
        "network": RAxSSClassifier(
            "convnet", **settings, **heads, batch_size=64, backbone_options={"width": 2}
        ),
        "mixture": RAxSSClassifier("mixture", **settings, backbone_options={"members": members}),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few series say little
        return {name: model.fit(series) for name, model in made.items()}


@pytest.mark.parametrize("kind", ["ridge", "network", "mixture"])
def test_keys_are_the_features_that_prediction_standardises(models, series, kind):
    model = models[kind]
    encoder = encoder_of(model)
    for encoded, scores in zip(
        encoder.encode(list(series)[:4]),
        model.predictor().window_scores(list(series)[:4], with_features=True),
        strict=True,
    ):
        assert encoded.features.shape == (len(encoded), encoder.n_features)
        assert encoded.features.dtype == np.float32
        standard = (encoded.features - model.feature_mean_) / model.feature_scale_
        assert_allclose(standard, scores.features, atol=2e-4)
        assert np.abs(encoded.features - scores.features).max() > 1e-3  # not standardised themselves
        assert_array_equal(encoded.posteriors, scores.posteriors)
        assert_array_equal(encoded.start_s, scores.windows.start_seconds)


@pytest.mark.parametrize("kind", ["ridge", "network", "mixture"])
def test_the_fingerprint_is_that_of_the_saved_model_and_changes_with_what_changes_keys(
    models, tmp_path, kind, series
):
    model = models[kind]
    known = model.encoder().fingerprint
    loaded = RAxSSClassifier.from_pretrained(model.save_pretrained(tmp_path / "model"), device="cpu")
    assert loaded.encoder().fingerprint == known
    assert loaded.encoder().classes == ("fast", "slow")
    loaded.set_params(n_neighbors=3, temperature=0.5)
    assert loaded.encoder().fingerprint == known  # keys do not depend on these
    loaded.set_params(stride=4)
    assert loaded.encoder().fingerprint != known
    loaded.set_params(stride=8)
    name, tensor = next((n, t) for n, t in loaded.backbone_.state_dict().items() if t.numel() > 1)
    tensor.view(-1)[0] += 1e-3
    assert loaded.encoder().fingerprint != known, name


def test_a_library_of_a_model_serves_the_loaded_model_and_refuses_the_other(models, series, tmp_path):
    model = models["ridge"]
    library = CaseLibrary.build(model, series, folder=tmp_path / "library", windows_a_recording=4)
    assert (library.unit, len(library)) == ("patient", 2)
    loaded = RAxSSClassifier.from_pretrained(model.save_pretrained(tmp_path / "model"), device="cpu")
    library.check_encoder(loaded)
    assert library.add(loaded, series).n_unchanged == 12
    with pytest.raises(LibraryError, match=r"another model \(16 features there, 32 here\)"):
        library.check_encoder(models["network"])
    auto = AutoRAxSS()
    auto.best_estimator_ = model
    library.check_encoder(auto)


def test_a_network_without_features_is_refused(series):
    model = RAxSSClassifier(Tiny, **SIGNAL).fit(series)
    with pytest.raises(BackboneError, match="backbone Tiny has no method features"):
        model.encoder()
