"""Damaged recordings, made from sound ones by seeded damage: none may be read as something else without a word.

Each is refused, or warned about, or decodes to exactly the samples, names, units, rates and times of the sound one.
What no fact in a file can tell (a changed sample without a checksum, whole lines lost at the end) is not made here.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import raw_format
from corpus import edf
from corpus.brainvision import Triplet
from corpus.damages import Damage, Write, content
from raxss.data.formats import FORMATS, files_of, register_format
from raxss.data.formats.opening import UNEXPECTED, open_recording
from raxss.data.inspection import inspect_file
from raxss.errors import RAxSSError
from test_agreement import (
    BDF,
    BV_GAP,
    EDF,
    EPOCHS,
    PLUS_D,
    VECTORIZED,
    compressed,
    matlab,
    npy,
    npz,
    segmented,
    wfdb,
)
from test_formats import EXAMPLES

SOUND: dict[str, Write] = {
    **{name: case.write for name, case in EXAMPLES.items()},
    "edf": EDF,
    "edf+d": PLUS_D,
    "bdf": BDF,
    "brainvision": BV_GAP,
    "vectorized": VECTORIZED,
    "epochs": EPOCHS,
    "wfdb": wfdb(),
    "wfdb-212": wfdb(fmt="212"),
    "wfdb-segments": segmented,
    "wfdb-mat": matlab,
    "wfdb-flac": compressed,
    "npz-packed": npz(packed=True),
}
TEXTS = (".vhdr", ".vmrk", ".hea", ".csv")


@dataclass(frozen=True)
class Damaged:
    """A damage to one of the sound recordings."""

    base: str
    name: str
    damage: Damage

    def __str__(self) -> str:
        return f"{self.base}-{self.name}"


def marker_damages() -> dict[str, Callable[[bytes], bytes]]:
    return {
        "zeros": lambda raw: bytes(len(raw)),
        "noise": lambda raw: np.random.default_rng(17).bytes(300),
        "empty": lambda raw: b"",
        "utf-16": lambda raw: raw.decode().encode("utf-16"),
        "lone-cr": lambda raw: raw.replace(b"\r\n", b"\r"),
        "lone-lf": lambda raw: raw.replace(b"\r\n", b"\n"),
        "one-line": lambda raw: raw.replace(b"\r\n", b" "),
        "bom": lambda raw: b"\xef\xbb\xbf" + raw,
        "zeros-at-the-end": lambda raw: raw[:-60] + bytes(60),
        "zeros-in-the-middle": lambda raw: raw[:100] + bytes(40) + raw[140:],
        "small-letters": lambda raw: raw.replace(b"Mk", b"mk"),
        "semicolons": lambda raw: raw.replace(b",", b";"),
        "markers-commented-out": lambda raw: raw.replace(b"Mk2", b"; Mk2"),
        "section-lost": lambda raw: raw.replace(b"[Marker Infos]\r\n", b""),
        "section-twice": lambda raw: raw + b"[Marker Infos]\r\n",
        "spaces-for-commas": lambda raw: raw.replace(b",201,", b" 201 "),
        "bits-flipped": lambda raw: bytes(byte ^ 0x80 for byte in raw),
    }


def companions() -> Iterator[Damaged]:
    """Files exchanged for those of another recording, or for each other."""

    def swapped(first: str, second: str) -> Damage:
        return lambda path: _swap(path.with_suffix(first), path.with_suffix(second))

    def exchanged(write: Write, suffix: str) -> Damage:
        def damage(path: Path) -> None:
            other = path.parent / "other"
            other.mkdir()
            shutil.copy(write(other).with_suffix(suffix), path.with_suffix(suffix))

        return damage

    def another_header(path: Path) -> None:
        text = path.read_text().replace("r.dat", "q.dat")
        path.with_suffix(".dat").rename(path.with_name("q.dat"))
        path.write_text(text)
        path.with_suffix(".dat").write_bytes(b"\1\2" * 500)

    for first, second in ((".eeg", ".vmrk"), (".vhdr", ".vmrk"), (".vhdr", ".eeg")):
        yield Damaged("brainvision", f"swapped{first}{second}", swapped(first, second))
    shorter = Triplet(n_samples=300)
    yield Damaged("brainvision", "data-of-a-shorter-one", exchanged(shorter.write, ".eeg"))
    yield Damaged("vectorized", "data-of-a-shorter-one", exchanged(shorter.write, ".eeg"))
    yield Damaged("brainvision", "data-as-floats", exchanged(
        Triplet(binary={"BinaryFormat": "IEEE_FLOAT_32"}).write, ".eeg"))  # fmt: skip
    yield Damaged("wfdb", "swapped.hea.dat", swapped(".hea", ".dat"))
    yield Damaged("wfdb", "data-named-otherwise", another_header)
    yield Damaged("wfdb-212", "data-of-another", content(lambda raw: raw[::-1], ".dat"))
    yield Damaged("wfdb", "header-of-another", exchanged(wfdb(n_samples=300), ".hea"))
    yield Damaged("wfdb", "data-in-format-212", exchanged(wfdb(fmt="212"), ".dat"))
    yield Damaged("NPZ", "npy", lambda path: npy(path.parent).rename(path))
    yield Damaged("NPY", "npz", lambda path: npz()(path.parent).rename(path))
    yield Damaged("CSV", "npy", lambda path: npy(path.parent).rename(path))
    for end in ("hea", "dat"):
        names = f"s1.{end}", f"s2.{end}"
        yield Damaged("wfdb-segments", f"segments-swapped.{end}", lambda path, names=names: _swap(
            *(path.with_name(name) for name in names)))  # fmt: skip


def _swap(first: Path, second: Path) -> None:
    before = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(before)


def numbers_changed() -> Iterator[Damaged]:
    """A digit of an EDF header made another one: size of the header, number of records, signals and samples.

    Limits, units and the duration of a record of a plain file are stated once.
    """
    rng = np.random.default_rng(23)

    def digit(place: int, by: int) -> Damage:
        def change(raw: bytes) -> bytes:
            other = ord("0") + (raw[place] - ord("0") + by) % 10
            return raw[:place] + bytes([other]) + raw[place + 1 :]

        return content(change)

    fields = (*range(184, 192), *range(236, 244), *range(252, 256), *range(256 + 216 * 2, 256 + 224 * 2))
    for base, raw in {"edf": edf.plain().bytes(), "bdf": edf.bdf().bytes()}.items():
        for place in (place for place in fields if chr(raw[place]).isdigit()):
            yield Damaged(base, f"digit-{place}", digit(place, int(rng.integers(1, 10))))


def of_every_file(path: Path) -> Iterator[tuple[str, Path, bytes | None]]:
    """Each file of a recording lost, empty and cut, and the header replaced."""
    for file in files_of(path):
        raw = file.read_bytes()
        yield "empty", file, b""
        if file != path:
            yield "lost", file, None
        else:
            random = np.random.default_rng(1).bytes(len(raw))
            for name, changed in {"zeros": bytes(len(raw)), "random": random, "text": b"hello\n"}.items():
                yield name, file, changed
        for share in (0.01, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.99):
            end = int(share * len(raw))
            while raw[end - 1 : end] in (
                b"\n",
                b"\r",
            ):  # whole lines lost at the end of a text cannot be told
                end -= 1
            yield f"cut-to-{share}", file, raw[:end]
        if file.suffix not in TEXTS:
            for n in (1, 2, 3, 100, 101, 600):
                yield f"cut-by-{n}", file, raw[:-n]


def damaged() -> list[Damaged]:
    """Those that are made for one recording."""
    found = [Damaged("brainvision", f"markers-{name}", content(change, ".vmrk"))
             for name, change in marker_damages().items()]  # fmt: skip
    starts = {
        "edf": "",
        "NPY": "",
        "vectorized": ".eeg",
        "wfdb": ".dat",
        "wfdb-212": ".dat",
        "wfdb-mat": ".mat",
    }
    for base, suffix in starts.items():
        for n in (2, 4, 100):
            for start in (0, 1500):
                lost = content(lambda raw, start=start, n=n: raw[:start] + raw[start + n :], suffix)
                found.append(Damaged(base, f"lost-{n}-at-{start}", lost))
    return [*found, *companions(), *numbers_changed()]


DAMAGED = damaged()


@pytest.fixture(autouse=True, scope="module")
def _format_from_outside():
    """RAW is registered as a user would, and forgotten again."""
    register_format(raw_format.RAW)
    yield
    del FORMATS["RAW"]


def read(path: Path) -> tuple[object, ...]:
    """Everything that a reader of a recording goes by."""
    with open_recording(path) as recording:
        samples = [
            recording.read([place], segment=segment).tobytes()
            for place in range(len(recording.channels))
            for segment in range(len(recording.segments))
        ]
        return recording.channels, recording.segments, samples


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Each sound recording, its problems, and what it decodes to."""
    found = {}
    for name, write in SOUND.items():
        path = write(tmp_path_factory.mktemp(name.replace("+", "-")))
        codes = {problem.code for problem in inspect_file(path, signals=True).problems}
        found[name] = path, codes, read(path)
    return found


def check(path: Path, known: set[str], expected: tuple[object, ...]) -> str:
    """A damaged recording is refused, warned about, or read as the sound one; the verdict."""
    inspection = inspect_file(path, signals=True)
    codes = {problem.code for problem in inspection.problems}
    assert not any(UNEXPECTED in problem.message for problem in inspection.problems)
    if inspection.verdict == "refused":
        with pytest.raises(RAxSSError):  # typed, whatever it is
            read(path)
    elif not codes - known:
        assert read(path) == expected, f"silently read as something else; found only: {codes or 'ok'}"
    return inspection.verdict


def test_the_sound_ones_are_sound(sound):
    codes = {code for _, found, _ in sound.values() for code in found}
    assert codes <= {"gaps", "rate-unknown"}
    assert len(sound["brainvision"][2][1]) == 2
    assert len(DAMAGED) == len({str(item) for item in DAMAGED}) >= 80


@pytest.mark.parametrize("base", SOUND)
def test_damage_to_any_file_is_never_read_as_something_else(base, sound, tmp_path):
    original, known, expected = sound[base]
    shutil.copytree(original.parent, tmp_path / "copy")
    path = tmp_path / "copy" / original.name
    for name, file, changed in of_every_file(path):
        raw = file.read_bytes()
        file.unlink() if changed is None else file.write_bytes(changed)
        verdict = check(path, known, expected)
        assert verdict == "refused" or file != path or name.startswith("cut-"), (file.name, name)
        file.write_bytes(raw)
    assert read(path) == expected


@pytest.mark.parametrize("item", DAMAGED, ids=str)
def test_nothing_damaged_is_read_as_something_else_without_a_word(item, sound, tmp_path):
    original, known, expected = sound[item.base]
    shutil.copytree(original.parent, tmp_path / "copy")
    path = tmp_path / "copy" / original.name
    item.damage(path)
    check(path, known, expected)
