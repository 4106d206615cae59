"""Contacts in clinical shorthand, and the channels that they label."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raxss.data.contacts import electrode_of, is_contact, label_channels, looks_like_contacts, parse_contacts


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("AD1-4, ATT1,2", "AD1 AD2 AD3 AD4 ATT1 ATT2"),
        ("TT1-3; AST1-2, mst1-2", "TT1 TT2 TT3 AST1 AST2 mst1 mst2"),
        ("AD1-AD4", "AD1 AD2 AD3 AD4"),
        ("AD[1-4]", "AD1 AD2 AD3 AD4"),
        ("AD(1,3), G2", "AD1 AD3 G2"),
        ("AD[1-2,5] G1", "AD1 AD2 AD5 G1"),
        ("G 1-3", "G1 G2 G3"),
        ("G 1 - 3", "G1 G2 G3"),
        ("A’1, B′2", "A'1 B'2"),
        ("AD1: ATT2/G3", "AD1 ATT2 G3"),
        ("AD4-1", "AD1 AD2 AD3 AD4"),
        ("AD1 to 3", "AD1 AD2 AD3"),
        ("AD1 through AD3", "AD1 AD2 AD3"),
        ("TO1-2", "TO1 TO2"),
        ("AD-1", "AD1"),
        ("LA01-03, G1", "LA01 LA02 LA03 G1"),
        ("PD", "PD*"),
        ("AD1-2, PD", "AD1 AD2 PD*"),
        ("AD1, AD1-2", "AD1 AD2"),
        ("AD1, n/a", "AD1"),
        ("", ""),
        ("n/a", ""),
        (" N/A ", ""),
        ("none", ""),
    ],
)
def test_shorthand_means_these_contacts(text, meant):
    assert parse_contacts(text) == meant.split()


@pytest.mark.parametrize(
    ("text", "understood", "left"),
    [
        ("AD1?, PD1", ["PD1"], ["AD1?"]),
        ("AD1 (spread to PD1-4)", ["AD1"], ["(spread to PD1-4)"]),
        ("AD1(spread to PD1", ["AD1"], ["(spread to PD1"]),
        ("AD1-PD2", [], ["AD1-PD2"]),
        ("AD1-999999", [], ["AD1-999999"]),
        ("3, 4", [], ["3", "4"]),
        ("AD1, PD1?, 2", ["AD1"], ["PD1?", "2"]),  # whose second contact is no longer certain
        ("=HYPERLINK(A1)", [], ["=HYPERLINK", "(A1)"]),
    ],
)
def test_what_is_no_contact_comes_back_as_written(text, understood, left):
    found = parse_contacts(text)
    assert [item for item in found if is_contact(item)] == understood
    assert [item for item in found if not is_contact(item)] == left


SHAFTS = st.from_regex(r"[A-Z]{1,4}'?", fullmatch=True).filter(
    lambda name: name not in ("AND", "NA", "TO", "NAN")
)


@given(
    st.dictionaries(SHAFTS, st.sets(st.integers(1, 20), min_size=1), min_size=1, max_size=4),
    st.sampled_from([", ", ";", " ", "\n", " and ", " & ", ":"]),
    st.sampled_from(["-", "–", " - "]),
    st.booleans(),
)
def test_every_way_to_write_a_set_of_contacts_gives_that_set(wanted, between, dash, lower):
    pieces = []
    for shaft, numbers in wanted.items():
        rest = sorted(numbers)
        while rest:  # the longest run of consecutive numbers becomes a range
            end = 1
            while end < len(rest) and rest[end] == rest[0] + end:
                end += 1
            pieces.append(f"{shaft}{rest[0]}{dash}{rest[end - 1]}" if end > 1 else f"{shaft}{rest[0]}")
            rest = rest[end:]
    text = between.join(pieces)
    found = parse_contacts(text.lower() if lower else text)
    meant = sorted(f"{shaft}{number}" for shaft, some in wanted.items() for number in some)
    assert sorted(item.upper() for item in found) == meant


@given(st.text(alphabet="ABd12-–,;:/ ()[]'?\n*&", max_size=30))
def test_no_text_with_a_letter_or_digit_vanishes(text):
    found = parse_contacts(text)
    has_word = any(character.isalnum() for character in text)
    assert bool(found) >= has_word
    written = {character for character in text.upper() if character.isalpha()}
    assert written <= {character for piece in found for character in piece.upper()}


def test_the_shaft_is_the_name_without_the_contact():
    names = ["ATT1", "A'12", "POL G1", "AHR1-AHR2", "Fpz", "-0", "n/a"]
    assert list(map(electrode_of, names)) == ["ATT", "A'", "G", "AHR", "FPZ", "-0", ""]


@pytest.mark.parametrize(
    ("channels", "contacts", "labels", "unmatched"),
    [
        ("POL AD1, EEG AD02-Ref, ad 3, PD1, PD10", "AD1, AD2, AD3, PD1, XY1", "soz soz soz soz other", "XY1"),
        ("PD1, PD2, PDX1, P1", "pd, XY9", "soz soz other other", "XY9"),  # a shaft alone
        ("POL AD1, EEG AD1, PD1, PD2", "AD1, PD1", "- - soz other", "AD1"),
        ("G01, G001, PD1, PD2", "G1, PD1", "- - soz other", "G1"),
        ("G01, G1, G2", "G01", "soz - other", ""),
        ("G01, G1, G2", "G1", "- soz other", ""),
        ("a1, A1, G2", "a1", "soz - other", ""),
        ("A1', A1, B1'", "A'1, B1'", "soz other soz", ""),  # a prime may stand behind the number
        ("AD1-AD2, AD3-4, PD1-PD2, G1", "AD1, AD4, G1", "- - other soz", "AD1 AD4"),
        ("AD1-AD2, AD3, PD1-AVG, G1", "AD, PD1", "- soz - other", "PD1"),
        ("AD1-AD2, PD1-PD2", "AD1-2", "- -", "AD1 AD2"),
        ("a1, A1, G1, G2", "A, G1", "- - soz other", "A*"),
        ("PD1, n/a, G2", "PD1", "soz - other", ""),
    ],
)
def test_contacts_label_the_channels_that_they_mean_for_certain(channels, contacts, labels, unmatched):
    found, left = label_channels(channels.split(", "), parse_contacts(contacts))
    assert [item or "-" for item in found] == labels.split()
    assert left == unmatched.split()


HERE = ("A1", "A2", "AD1", "AD2", "AD3", "AD4", "PD1", "G1", "G2", "L1", "AH1")


@pytest.mark.parametrize(
    ("cell", "soz", "understood"),
    [
        ("AD1, G1-2.", "AD1 G1 G2", True),
        ("AD1~4", "AD1 AD2 AD3 AD4", True),
        ("AD1..AD3", "AD1 AD2 AD3", True),
        ("AD1 … 3", "AD1 AD2 AD3", True),
        ("AD1–2", "AD1 AD2", True),
        ("AD1|2", "AD1 AD2", True),
        ("AD１-２", "AD1 AD2", True),
        ("AD1, PD", "AD1 PD1", True),
        ("AD1;\npd\nXY9", "AD1 PD1", True),
        # a contact that was not understood: nothing is other
        *(
            (cell, "PD1", False)
            for cell in ("AD1?, PD1", "AD1:4, PD1", "PD1, AD1.2", "PD1; AD1-G2", "PD1, -4")
        ),
        # free text: nothing is certain
        *((cell, "", False) for cell in ("AD1-4 -> PD1", "AD1-4 -> PD1, G1", "AD1 with a spread to PD1")),
        *(
            (cell, "", False)
            for cell in ("not PD, AD1", "all AD except AD3", "1-4 AD", "L AH1", "AD1, PD (late)")
        ),
        *(
            (cell, "", False)
            for cell in ("AD1 ?", "AD1, QD", "Grid 1-2, AD1", "Strip 1-2, AD1", "AD1 or AD2")
        ),
        *((cell, "", False) for cell in ("SOZ: AD1", "AD1 John Smith 12-3-1980")),
    ],
)
def test_the_rest_is_other_only_where_a_cell_is_understood(cell, soz, understood):
    labels, unmatched = label_channels(HERE, parse_contacts(cell))
    assert [name for name, label in zip(HERE, labels, strict=True) if label == "soz"] == soz.split()
    assert ("other" in labels) == understood
    assert understood == (None not in labels)
    assert understood or unmatched


def test_only_what_can_be_no_more_than_contacts_may_be_quoted():
    for piece in ("XY9", "AD1?", "AD1-PD2", "AD1.2", "A'1"):
        assert looks_like_contacts(piece)
    for piece in ("John", "PD*", "Smith12", "AD1980", "12-3-1980", "(AD1)", "AD1->PD1"):
        assert not looks_like_contacts(piece)
