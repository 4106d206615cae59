"""Damaged and hostile case libraries: each is refused by name, with what to do, and nothing outside is read."""

import hashlib
import json
import os
import shutil

import numpy as np
import pytest

from case_libraries import ToyEncoder, built, contents, recordings
from raxss.errors import LibraryError, LibraryWarning
from raxss.library import CaseLibrary
from raxss.library.folder import MOST_JSON_BYTES
from raxss.library.patient_file import MOST_BYTES


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return built(tmp_path_factory.mktemp("original") / "library", recordings(n_samples=120))


@pytest.fixture
def copied(original, tmp_path):
    """A copy of the folder with its key file, and the cases of its second group."""
    folder = shutil.copytree(original.folder, tmp_path / "library")
    shutil.copy(original.folder.with_name("library.key"), tmp_path)
    return folder, folder / "patients" / original.groups[1] / "cases.safetensors"


def refusal(folder):
    """The message with which a library is refused when it is opened and read; fails where it is not."""
    with pytest.raises(LibraryError, match="library 'library'") as caught:
        CaseLibrary.open(folder).cases()
    assert "Traceback" not in str(caught.value)
    return str(caught.value)


def header_of(content):
    n_header = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + n_header]), content[8 + n_header :]


def resealed(entries, data):
    """The bytes of a file whose digest somebody computed anew."""
    entries["__metadata__"]["sha256"] = "0" * 64
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    content = len(text).to_bytes(8, "little") + text + data
    digest = hashlib.sha256(content).hexdigest()
    return content.replace(b'"sha256":"' + b"0" * 64, b'"sha256":"' + digest.encode(), 1)


def reseal(path, change):
    """Change the facts of a file, or what stands in its header, and compute its digest anew."""
    entries, data = header_of(path.read_bytes())
    facts = json.loads(entries["__metadata__"]["facts"])
    data = change(entries, facts, data) or data
    if entries["__metadata__"].get("facts"):
        entries["__metadata__"]["facts"] = json.dumps(facts)
    path.write_bytes(resealed(entries, data))


def test_the_copy_is_sound_and_resealing_changes_nothing(copied):
    folder, path = copied
    before = CaseLibrary.open(folder).cases()
    reseal(path, lambda *_: None)
    np.testing.assert_array_equal(CaseLibrary.open(folder).cases().keys, before.keys)


# Damage -----------------------------------------------------------------------------------------------------


def test_every_changed_byte_of_a_group_is_noticed(copied, rng):
    folder, path = copied
    content = path.read_bytes()
    n_header = 8 + int.from_bytes(content[:8], "little")
    places = {*range(8), *rng.integers(8, n_header, 60), *rng.integers(n_header, len(content), 60)}
    for place in sorted(map(int, places)):
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        assert path.parent.name in refusal(folder), place


def test_truncated_empty_longer_and_other_files_are_refused(copied, rng):
    folder, path = copied
    content = path.read_bytes()
    for cut in (0, 1, 7, 8, 9, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:cut])
        assert "cut off" in (message := refusal(folder)) or "describes" in message, (cut, message)
    path.write_bytes(content + b"\0")
    assert "but it has" in refusal(folder)
    path.write_bytes(b"PK\x03\x04" + rng.bytes(5000))
    refusal(folder)
    path.write_bytes((10**15).to_bytes(8, "little") + content[8:])
    refusal(folder)


def test_an_oversized_file_is_refused_before_it_is_read(copied):
    folder, path = copied
    os.truncate(path, MOST_BYTES + 1)  # sparse
    assert "at most 8.6 GB are read" in refusal(folder)
    os.truncate(folder / "library.json", MOST_JSON_BYTES + 1)
    assert "library.json" in refusal(folder)


def test_a_group_that_vanished_since_opening_is_named(copied):
    folder, path = copied
    library = CaseLibrary.open(folder)
    shutil.rmtree(path.parent)
    with pytest.raises(LibraryError, match=rf"{path.parent.name}.* is missing.*Open the library again"):
        library.cases()
    assert len(CaseLibrary.open(folder).cases().group_names) == 5


def test_a_library_without_one_of_its_parts_says_which(copied):
    folder, path = copied
    path.unlink()
    assert "is missing" in refusal(folder)
    (folder / "policy.toml").rename(folder / "away")
    assert "policy.toml of library 'library' cannot be read" in refusal(folder)
    shutil.rmtree(folder / "patients")
    (folder / "away").rename(folder / "policy.toml")
    assert "the folder 'patients' of library 'library' cannot be read" in refusal(folder)
    (folder / "library.json").unlink()
    assert "there is no case library 'library': library.json is needed, a folder without it" in refusal(
        folder
    )
    shutil.rmtree(folder)
    assert "nothing was found" in refusal(folder)


def test_what_a_killed_writer_left_is_passed_over_and_removed_by_the_next(copied, original):
    folder, path = copied
    for place in (
        folder / ".library.json.host-1-ab.partial",
        path.parent / ".cases.safetensors.h-1-c.partial",
    ):
        place.write_bytes(b"half")
    left = folder / "patients" / f".{'a' * 32}.partial"
    left.mkdir()
    (left / "cases.safetensors").write_bytes(b"half")
    library = CaseLibrary.open(folder)
    assert len(library.cases()) == len(original.cases())
    library.add(ToyEncoder(), recordings(n_samples=120), site="bern")
    assert contents(folder) == contents(original.folder)


def test_a_damaged_group_may_leave_and_a_damaged_library_says_what_was_done(copied, original):
    folder, path = copied
    path.write_bytes(b"damaged")
    library = CaseLibrary.open(folder)
    with pytest.raises(
        LibraryError, match=rf"the group was removed, but another .* damaged.*{path.parent.name}"
    ):
        library.withdraw(original.groups[0])
    assert not (folder / "patients" / original.groups[0]).exists()
    with pytest.raises(LibraryError, match="nothing was removed, but another one"):
        library.withdraw("nobody")
    assert library.withdraw(path.parent.name) == 0
    assert len(CaseLibrary.open(folder).cases().group_names) == 4


def test_a_withdrawal_that_was_interrupted_is_completed_and_no_other_is_taken_for_it(copied):
    folder, path = copied
    left = path.parent.rename(path.parent.with_name(f".{path.parent.name}.partial"))
    with pytest.raises(LibraryError, match="the group 'Ann Lee' is not in the library"):  # Leigh
        CaseLibrary.open(folder).withdraw("Ann Lee")
    assert not left.exists()
    left.mkdir()
    assert CaseLibrary.open(folder).withdraw(path.parent.name) == 0
    assert not left.exists()


# Links, pipes and foreign files -----------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["library.json", "policy.toml", "patients", "group", "cases"])
def test_links_are_refused_wherever_they_lead(copied, tmp_path, part):
    folder, path = copied
    place = {"group": path.parent, "cases": path}.get(part, folder / part)
    elsewhere = tmp_path / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    message = refusal(folder)
    assert "link" in message
    assert "elsewhere" not in message
    if part == "cases":  # the link leaves with its group, what it leads to stays
        assert CaseLibrary.open(folder).withdraw(path.parent.name) == 0
        assert not path.parent.exists()
    else:
        with pytest.raises(LibraryError, match="link"):
            CaseLibrary.open(folder).withdraw(path.parent.name)
    assert elsewhere.exists()


@pytest.mark.parametrize("part", ["library.json", "cases"])
def test_pipes_and_folders_are_not_waited_for(copied, part):
    folder, path = copied
    place = path if part == "cases" else folder / part
    place.unlink()
    os.mkfifo(place)
    assert "a pipe, socket or device" in refusal(folder)
    place.unlink()
    place.mkdir()
    assert "a folder" in refusal(folder)


@pytest.mark.parametrize("name", ["thumbs.db", "A" * 32, "a" * 31, "a" * 32, "evil.safetensors", ".hidden"])
def test_foreign_files_among_the_groups_are_refused_by_name(copied, name):
    folder, _ = copied
    (folder / "patients" / name).write_bytes(b"x")
    assert f"holds a file that is none of its groups, '{name}'" in refusal(folder)


def test_foreign_files_in_the_folder_of_a_group_are_refused_and_reserved_names_are_not(copied):
    folder, path = copied
    (path.parent / "consent.json").write_text("{}")
    (path.parent / "snippets.bin").write_bytes(b"")
    CaseLibrary.open(folder).cases()
    (path.parent / "notes.txt").write_text("x")
    assert f"the folder of group '{path.parent.name}' in library 'library' holds 'notes.txt'" in refusal(
        folder
    )


# Files that somebody sealed anew ----------------------------------------------------------------------------


def test_swapped_and_renamed_groups_are_refused(copied, original):
    folder, path = copied
    other = folder / "patients" / original.groups[0] / "cases.safetensors"
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    assert f"is of another group, '{original.groups[0]}'" in refusal(folder)
    path.write_bytes(content)
    path.parent.rename(folder / "patients" / ("f" * 32))
    assert f"is of another group, '{original.groups[1]}'" in refusal(folder)


def test_a_group_of_another_encoder_is_refused(copied, tmp_path):
    folder, _ = copied
    series = recordings(n_samples=120)
    other = built(tmp_path / "other", series, encoder=ToyEncoder(seed=1))
    group = other.groups[0]
    shutil.copytree(other.folder / "patients" / group, folder / "patients" / group)
    assert f"group '{group}' in library 'library' was encoded by another model" in refusal(folder)
    with pytest.raises(LibraryError, match="was encoded by another model"):
        CaseLibrary.open(folder).add(ToyEncoder(), series, site="bern")


def other_shape(name, dtype, shape):
    def change(entries, facts, data):
        place = 0
        sizes = {"F64": 8, "F32": 4, "F16": 2, "I32": 4, "I64": 8}
        arrays = {key: value for key, value in entries.items() if key != "__metadata__"}
        arrays[name] = {"dtype": dtype, "shape": shape}
        for key, entry in arrays.items():
            size = int(np.prod(entry["shape"])) * sizes[entry["dtype"]]
            entries[key] = {**entry, "data_offsets": [place, place + size]}
            place += size
        return bytes(place)

    return change


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "found"),
    [
        ("keys", "F64", [10, 4], "'keys' is ('F64', (10, 4)), needed is ('F32', (10, 4))"),
        ("keys", "F16", [10, 4], "'keys' is ('F16', (10, 4))"),
        ("keys", "F32", [10, 5], "'keys' is ('F32', (10, 5))"),
        ("keys", "F32", [9, 4], "'keys' is ('F32', (9, 4))"),
        ("keys", "F32", [40], "'keys' is ('F32', (40,))"),
        ("start_s", "F32", [10], "'start_s' is ('F32', (10,)), needed is ('F64', (10,))"),
        ("quality", "I32", [10], "'quality' is ('I32', (10,))"),
        ("more", "I64", [3], "'more' is ('I64', (3,)), needed is no such array"),
    ],
)
def test_arrays_of_another_dtype_or_shape_are_refused(copied, name, dtype, shape, found):
    folder, path = copied
    reseal(path, other_shape(name, dtype, shape))
    assert found in refusal(folder)


def test_values_that_no_window_has_are_refused(copied):
    folder, path = copied
    content = path.read_bytes()
    arrays = {"start_s": "<f8", "end_s": "<f8", "keys": "<f4", "quality": "<f4"}
    for name, value, found in [
        ("keys", np.nan, "values in 'keys' that are not finite"),
        ("keys", np.inf, "values in 'keys' that are not finite"),
        ("start_s", np.nan, "values in 'start_s' that are not finite"),
        ("start_s", 1e9, "end before they begin"),
        ("quality", 1.5, "whose quality is not from 0 to 1"),
        ("quality", -0.5, "whose quality is not from 0 to 1"),
    ]:

        def change(entries, facts, data, name=name, value=value):
            place = entries[name]["data_offsets"][0]
            number = np.array([value], arrays[name]).tobytes()
            return data[:place] + number + data[place + len(number) :]

        path.write_bytes(content)
        reseal(path, change)
        assert found in refusal(folder), name


def changed_facts(**entries):
    def change(_, facts, data):
        facts.update(entries)

    return change


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (changed_facts(encoder=3), "its encoder is no text"),
        (changed_facts(unit="ward"), "its unit is 'ward', needed is one of patient, pair, recording"),
        (changed_facts(site=""), "its site has 0 letters"),
        (changed_facts(site="x" * 101), "its site has 101 letters"),
        (changed_facts(more=1), "its facts are not encoder, group"),
        (changed_facts(group="../../etc"), "its group is no pseudonym"),
        (changed_facts(recordings=[]), "it has no list of recordings"),
        (changed_facts(recordings={"a": 1}), "it has no list of recordings"),
        (changed_facts(recordings=[["a", "b", 0]]), "recording 0 is not a pseudonym"),
        (changed_facts(recordings=[["a" * 32, "b" * 16, 2, 10]]), "label 2 of 2"),
        (changed_facts(recordings=[["a" * 32, "b" * 16, -1, 10]]), "label -1 of 2"),
        (changed_facts(recordings=[["a" * 32, "b" * 16, True, 10]]), "recording 0 is not"),
        (changed_facts(recordings=[["a" * 32, "b" * 16, 0, 0]]), "0 windows, of which one at"),
        (changed_facts(recordings=[["a" * 32, "b" * 16, 0, 2**50]]), f"{2**50} windows"),
        (changed_facts(recordings=[["a" * 32, "b" * 16, 0, 5]] * 2), "or one comes twice"),
        (changed_facts(recordings=[["a" * 32, "b" * 16, 0, 10**9]]), "needed is ('F32', (1000000000, 4))"),
        (changed_facts(recordings=[["no", "b" * 16, 0, 10]]), "recording 0 has no pseudonym"),
    ],
)
def test_hostile_facts_are_refused(copied, change, found):
    folder, path = copied
    reseal(path, change)
    assert found in refusal(folder)


@pytest.mark.parametrize(
    "facts",
    [
        "",
        "null",
        "[]",
        "{",
        "[" * 5000 + "]" * 5000,
        '{"encoder": NaN}',
        '{"group": "a", "group": "b"}',
        "9" * 500,
    ],
)
def test_facts_that_are_no_object_of_facts_are_refused(copied, facts):
    folder, path = copied
    entries, data = header_of(path.read_bytes())
    entries["__metadata__"]["facts"] = facts
    path.write_bytes(resealed(entries, data))
    assert path.parent.name in refusal(folder)


def test_a_file_without_format_or_digest_is_refused(copied):
    folder, path = copied
    content = path.read_bytes()
    for name, found in {"format": "its format is 'None'", "sha256": "it has no SHA-256 of the file"}.items():
        entries, data = header_of(content)
        del entries["__metadata__"][name]
        text = json.dumps(entries, separators=(",", ":")).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        assert found in refusal(folder)


def test_a_header_of_very_many_arrays_is_refused_before_it_is_parsed(copied):
    folder, path = copied
    entries = {f"{n:06}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(60_000)}
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    assert "60,000 tensors" in refusal(folder)


# library.json and policy.toml -------------------------------------------------------------------------------


def test_every_entry_of_library_json_that_is_missing_or_of_another_kind_is_refused(copied):
    folder, _ = copied
    place = folder / "library.json"
    facts = json.loads(place.read_text())
    for name in facts:
        for value in (None, [1], {"a": 1}, 1.5, "x", -1, [["a"]], ["b", "a"], ["a", "a"]):
            if name == "name" and value == "x":
                continue  # another name is a name
            place.write_text(json.dumps({**facts, name: value}))
            if name == "classes" and value in ([1], ["b", "a"]):
                continue  # labels of another model, which its encoder will notice
            if name == "sites" and value == ["a"]:
                continue
            if name == "model" and value == {"a": 1}:
                continue  # unknown facts are left out
            assert "library.json" in refusal(folder), (name, value)
        place.write_text(json.dumps({key: value for key, value in facts.items() if key != name}))
        assert "library.json" in refusal(folder), name
    place.write_text(json.dumps({**facts, "more": 1}))
    assert "'more'" in refusal(folder)
    place.write_text(json.dumps({**facts, "selection": {**facts["selection"], "seed": -1}}))
    assert "seed must be a whole number" in refusal(folder)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b"\xff\xfe",
        b"[" * 10**5,
        b'{"format": 1, "format": 2}',
        b"{}" * 2,
        b"\0" * 100,
        b"1e999",
    ],
)
def test_hostile_json_is_refused(copied, text):
    folder, _ = copied
    (folder / "library.json").write_bytes(text)
    assert "library.json of library 'library'" in refusal(folder)


@pytest.mark.parametrize(
    "text", [b"", b"show = 3", b"\xff", b"format = 'raxss-policy-1'\nmin_patients = 0", b"a" * 70_000, b"[[["]
)
def test_a_hostile_policy_is_refused(copied, text):
    folder, _ = copied
    (folder / "policy.toml").write_bytes(text)
    assert "policy.toml of library 'library'" in refusal(folder)


def test_a_width_or_classes_that_are_not_those_of_the_keys_are_refused(copied):
    folder, _ = copied
    place = folder / "library.json"
    facts = json.loads(place.read_text())
    place.write_text(json.dumps({**facts, "width": 5}))
    assert "('F32', (10, 4)), needed is ('F32', (10, 5))" in refusal(folder)
    place.write_text(json.dumps({**facts, "classes": ["calm"]}))
    assert "label 1 of 1" in refusal(folder)


def test_an_edited_id_is_noticed_when_the_key_is_used(copied):
    folder, _ = copied
    place = folder / "library.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "id": "0" * 32}))
    with pytest.raises(LibraryError, match=r"'library.key' is of another library than 'library'"):
        CaseLibrary.open(folder).withdraw("Ann Leigh")


def test_a_library_that_is_exchanged_while_open_is_noticed(copied, tmp_path):
    folder, _ = copied
    library = CaseLibrary.open(folder)
    other = built(tmp_path / "other", recordings(n_samples=120))
    shutil.rmtree(folder)
    shutil.copytree(other.folder, folder)
    with pytest.raises(LibraryError, match="'library' was replaced by another one"):
        library.withdraw(library.groups[0])


def test_a_key_file_that_others_read_is_warned_of_and_a_long_one_refused(copied, tmp_path):
    folder, _ = copied
    key = tmp_path / "library.key"
    key.chmod(0o640)
    with pytest.warns(LibraryWarning, match="mode 640"):
        CaseLibrary.open(folder).own_groups(recordings()[0])
    key.write_bytes(b"raxss-library-key-1\n" + b"a" * 5000)
    with pytest.raises(LibraryError, match=r"key file 'library.key' has 5,020 bytes; at most 4,096"):
        CaseLibrary.open(folder).own_groups(recordings()[0])
