"""Channel names of tables matched with those of recordings: nothing is matched that leaves a choice."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raxss.data.names import (
    LEADING_ZEROS,
    MONTAGE_PREFIX,
    NAMELESS,
    PRIMES,
    canonical,
    loosest,
    match_channels,
    possible_channels,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("POL  G 1 ", "G1"),
        ("EEG LAD3-Ref", "LAD3"),
        ("eeg lad3 REF", "LAD3"),
        ("POL", ""),
        ("  ", ""),
        ("POL1", "POL1"),  # may be a contact of an electrode called POL
        ("REF", "REF"),  # the reference electrode itself
        ("EEG Ref", "REF"),
        ("G01", "G01"),
        ("A1’", "A1'"),
        ("G1-G2", "G1-G2"),
    ],
)
def test_only_what_exports_add_is_taken_off(name, expected):
    assert canonical(name) == expected


@pytest.mark.parametrize(
    ("wanted", "found", "expected"),
    [
        (["G1", "G01"], ["G01", "G1"], [1, 0]),  # both exist: each its own
        (["G1", "G01"], ["POL G01", "POL G1"], [1, 0]),
        (["A1", "A1'"], ["A1′", "A1"], [1, 0]),
        (["A1"], ["A1'"], [None]),
        (["G11"], ["$G11"], [None]),
        (["$G11", "G11"], ["POL G11", "POL $G11"], [1, 0]),
        (["g1"], ["G1", "POL G1"], [None]),  # either
        (["g1", "G1"], ["G1", "POL G1"], [None, 0]),  # what is left over is no proof
        (["G1", "G1"], ["G1"], [None, None]),  # two rows, one channel
        (["G1"], ["G1", "G1"], [None]),
        (["DC1", "DC10"], ["DC10", "DC01"], [1, 0]),
        (["G10"], ["G1"], [None]),
        (["n/a", "G1"], ["POL G1", "POL"], [1, 0]),  # one nameless channel on either side
        (["n/a", "n/a"], ["", ""], [None, None]),
        ([], ["G1"], []),
        (["G1"], [], [None]),
    ],
)
def test_names_match_where_there_is_one_choice(wanted, found, expected):
    assert match_channels(wanted, found) == expected


@pytest.mark.parametrize(
    ("name", "found", "certain", "possible"),
    [
        ("G1", ["G1"], 0, [0]),
        ("g1", ["POL G1", "G2"], 0, [0]),
        ("G1", ["G01", "G1"], 1, [0, 1]),
        ("G1", ["POL G1", "EEG G1"], None, [0, 1]),
        ("G1", ["G1", "G1"], None, [0, 1]),
        ("G1", ["G01", "G001", "G10"], None, [0, 1]),
        ("A'1", ["A1", "A1’"], 1, [1]),
        ("G1", ["$G1"], None, []),
    ],
)
def test_what_a_name_means_for_certain_and_what_it_could_mean(name, found, certain, possible):
    assert possible_channels([name], found) == [(certain, possible)]


@pytest.mark.parametrize("names", [["G1", "G1"], ["G1", "g1", "G01"]])
def test_several_names_may_mean_one_channel(names):
    assert possible_channels(names, ["POL G1"]) == [(0, [0])] * len(names)


spelt = st.sampled_from(
    ["G1", "g1", "POL G1", "G01", "POL G01", "A1'", "A1", "$G11", "G11", "", "n/a", "DC1-Ref"]
)


@given(st.lists(spelt, max_size=8), st.lists(spelt, max_size=8))
def test_a_match_is_one_to_one_and_never_changes_the_contact(wanted, found):
    positions = match_channels(wanted, found)
    given_out = [position for position in positions if position is not None]
    assert len(positions) == len(wanted)
    assert len(set(given_out)) == len(given_out)
    for name, position in zip(wanted, positions, strict=True):
        if position is not None:
            assert canonical(name).replace("0", "") == canonical(found[position]).replace("0", "")
        elif wanted.count(name) == found.count(name) == 1:
            raise AssertionError(f"{name!r} stands once on either side and was not matched")


@given(st.lists(spelt, max_size=8), st.lists(spelt, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_the_recording_does_not_matter(wanted, found, random):
    order = list(range(len(found)))
    random.shuffle(order)
    shuffled = match_channels(wanted, [found[place] for place in order])
    assert [None if place is None else order[place] for place in shuffled] == match_channels(wanted, found)


def test_spellings_are_those_of_the_plain_patterns():
    """The patterns of names.py begin at the first sign of a run alone; these begin anywhere, and mean the same."""
    suffix, prime = re.compile(r"(?<=\S)[-_\s]+REF$"), re.compile(r"(\d+)('+)$")
    rng = np.random.default_rng(8)
    signs = ["-", "_", " ", "REF", "A", "1", "0", "'", "ref", "POL ", "$", "--", "12"]
    n_cut = 0
    for _ in range(20_000):
        name = "".join(signs[k] for k in rng.integers(len(signs), size=rng.integers(1, 9)))
        text = MONTAGE_PREFIX.sub("", " ".join(name.translate(PRIMES).upper().split()))
        plain = suffix.sub("", text)
        n_cut += plain != text
        assert canonical(name) == ("" if plain in NAMELESS else plain.replace(" ", "")), name
        assert loosest(name) == LEADING_ZEROS.sub("", prime.sub(r"\2\1", canonical(name))), name
    assert n_cut > 500


@pytest.mark.parametrize(
    "name", ["1" * 130_000, "0" * 130_000, "-" * 130_000 + "x", "A1-" * 40_000, "'" * 130_000]
)
def test_long_names_take_no_time(name):
    assert match_channels([name, f"{name}1"], ["a", "b"]) == [None, None]  # took minutes
