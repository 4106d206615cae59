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

from corpus import edf
from corpus.brainvision import Triplet
from corpus.damages import Damage, Write, content, lost
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
    csv,
    matlab,
    npy,
    npz,
    segmented,
    wfdb,
)

SOUND: dict[str, Write] = {
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
    "npy": npy,
    "npz": npz(),
    "npz-packed": npz(packed=True),
    "csv": csv,
}
# What holds the samples, and what describes them.
DATA = {"brainvision": ".eeg", "vectorized": ".eeg", "epochs": ".eeg", "wfdb": ".dat", "wfdb-212": ".dat",
        "wfdb-mat": ".mat", "wfdb-flac": ".dat"}  # fmt: skip
MARKED = ("brainvision",)
RECORDS = ("wfdb", "wfdb-212")
CUTS = (1, 2, 3, 100, 101, 600)


@dataclass(frozen=True)
class Damaged:
    """A damage to one of the sound recordings."""

    base: str
    name: str
    damage: Damage

    def __str__(self) -> str:
        return f"{self.base}-{self.name}"


def cut_to(share: float, suffix: str = "", name: str = "") -> Damage:
    """Keep that share of a file; of text, never whole lines, which nothing can tell from a whole file."""

    def damage(path: Path) -> None:
        file = path.with_name(name) if name else path.with_suffix(suffix or path.suffix)
        raw = file.read_bytes()
        end = int(share * len(raw))
        while file.suffix in (".vmrk", ".csv", ".hea", ".vhdr") and raw[end - 1 : end] in (b"\n", b"\r"):
            end -= 1
        file.write_bytes(raw[:end])

    return damage


def cut_by(n_bytes: int, suffix: str = "") -> Damage:
    return content(lambda raw: raw[:-n_bytes], suffix)


def without(start: int, n_bytes: int, suffix: str = "") -> Damage:
    """Bytes lost in the middle."""
    return content(lambda raw: raw[:start] + raw[start + n_bytes :], suffix)


def marker_damages() -> dict[str, Callable[[bytes], bytes]]:
    rng = np.random.default_rng(17)
    noise = rng.bytes(300)
    printable = bytes(rng.integers(32, 127, size=300, dtype=np.uint8))
    return {
        "zeros": lambda raw: bytes(len(raw)),
        "noise": lambda raw: noise,
        "printable-noise": lambda raw: printable,
        "empty": lambda raw: b"",
        "blank-lines": lambda raw: b"\r\n\r\n",
        "utf-16": lambda raw: raw.decode().encode("utf-16"),
        "utf-16-be": lambda raw: raw.decode().encode("utf-16-be"),
        "utf-32": lambda raw: raw.decode().encode("utf-32"),
        "lone-cr": lambda raw: raw.replace(b"\r\n", b"\r"),
        "lone-lf": lambda raw: raw.replace(b"\r\n", b"\n"),
        "one-line": lambda raw: raw.replace(b"\r\n", b" "),
        "bom": lambda raw: b"\xef\xbb\xbf" + raw,
        "zeros-at-the-end": lambda raw: raw[:-60] + bytes(60),
        "zeros-in-the-middle": lambda raw: raw[:100] + bytes(40) + raw[140:],
        "html": lambda raw: b"<!DOCTYPE html><html><body>404 Not Found</body></html>\n",
        "a-pointer": lambda raw: b"/annex/objects/MD5E-s24--0.vmrk\n",
        "small-letters": lambda raw: raw.replace(b"Mk", b"mk"),
        "semicolons": lambda raw: raw.replace(b",", b";"),
        "markers-commented-out": lambda raw: raw.replace(b"Mk2", b"; Mk2"),
        "section-lost": lambda raw: raw.replace(b"[Marker Infos]\r\n", b""),
        "section-twice": lambda raw: raw + b"[Marker Infos]\r\n",
        "second-segment-lost": lambda raw: b"\r\n".join(
            line for line in raw.split(b"\r\n") if not line.startswith(b"Mk2")
        ),
        "spaces-for-commas": lambda raw: raw.replace(b",201,", b" 201 "),
        "position-a-word": lambda raw: raw.replace(b",201,", b",2O1,"),
        "another-type": lambda raw: raw.replace(b"New Segment,,201", b"Neu Segment,,201"),
        "bits-flipped": lambda raw: bytes(byte ^ 0x80 for byte in raw),
    }


def companions() -> Iterator[Damaged]:
    """Files exchanged for those of another recording, or for each other."""

    def swapped(first: str, second: str) -> Damage:
        def damage(path: Path) -> None:
            item, two = path.with_suffix(first), path.with_suffix(second)
            spare = path.with_name("spare")
            item.rename(spare)
            two.rename(item)
            spare.rename(two)

        return damage

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
    reversed_samples = content(lambda raw: raw[::-1], ".dat")
    yield Damaged("wfdb", "data-of-another", reversed_samples)
    yield Damaged("wfdb-212", "data-of-another", reversed_samples)
    yield Damaged("wfdb", "header-of-another", exchanged(wfdb(n_samples=300), ".hea"))
    yield Damaged("wfdb", "data-in-format-212", exchanged(wfdb(fmt="212"), ".dat"))
    yield Damaged("edf", "bdf", content(edf.bdf().bytes()))
    yield Damaged("bdf", "edf", content(edf.plain().bytes()))
    yield Damaged("npz", "npy", lambda path: npy(path.parent).rename(path))
    yield Damaged("npy", "npz", lambda path: npz()(path.parent).rename(path))
    yield Damaged("csv", "npy", lambda path: npy(path.parent).rename(path))
    yield Damaged("wfdb-segments", "segments-swapped.hea", lambda path: _swap(path, ".hea"))
    yield Damaged("wfdb-segments", "segments-swapped.dat", lambda path: _swap(path, ".dat"))
    yield Damaged("wfdb-segments", "segment-lost", lambda path: path.with_name("s2.dat").unlink())


def _swap(path: Path, suffix: str) -> None:
    first, second = (path.with_name(f"{name}{suffix}") for name in ("s1", "s2"))
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])


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


def damaged() -> list[Damaged]:
    """All of them."""
    found = []
    for base in SOUND:
        suffix = DATA.get(base, "")
        if base not in ("wfdb-segments", "csv"):
            found += [Damaged(base, f"cut-by-{n}", cut_by(n, suffix)) for n in CUTS]
            found += [Damaged(base, f"cut-to-{share}", cut_to(share, suffix)) for share in (0.0, 0.3, 0.9)]
        if suffix:
            header = [0.0, 0.2, 0.5, 0.7, 0.9, 0.99]
            found += [Damaged(base, f"header-cut-to-{share}", cut_to(share)) for share in header]
            found.append(Damaged(base, "header-zeros", content(lambda raw: bytes(len(raw)))))
            found.append(Damaged(base, "data-lost", lost(suffix)))
    found += [Damaged("csv", f"cut-to-{share}", cut_to(share)) for share in (0.0, 0.1, 0.31, 0.52, 0.9)]
    for share in (0.1, 0.5, 0.8, 0.9, 0.99):
        found.append(Damaged("wfdb-segments", f"header-cut-to-{share}", cut_to(share)))
        found.append(Damaged("wfdb-segments", f"segment-cut-to-{share}", cut_to(share, name="s2.dat")))
        found.append(Damaged("wfdb-segments", f"segment-header-cut-to-{share}", cut_to(share, name="s2.hea")))
    for base in MARKED:
        for name, change in marker_damages().items():
            found.append(Damaged(base, f"markers-{name}", content(change, ".vmrk")))
        for share in np.arange(0.0, 1.0, 0.05).round(2).tolist():
            found.append(Damaged(base, f"markers-cut-to-{share}", cut_to(share, ".vmrk")))
    for base in (*RECORDS, "wfdb-mat", "vectorized", "edf", "npy"):
        suffix = DATA.get(base, "")
        found += [Damaged(base, f"lost-{n}-at-the-start", without(0, n, suffix)) for n in (2, 4, 100)]
        found += [Damaged(base, f"lost-{n}-within", without(1500, n, suffix)) for n in (2, 4, 100)]
    return [*found, *companions(), *numbers_changed()]


DAMAGED = damaged()


@dataclass(frozen=True)
class Content:
    """Everything that a reader of a recording goes by."""

    channels: tuple[object, ...]
    segments: tuple[object, ...]
    samples: tuple[bytes, ...]


def read(path: Path) -> Content:
    with open_recording(path) as recording:
        samples = [
            recording.read([place], segment=segment).tobytes()
            for place in range(len(recording.channels))
            for segment in range(len(recording.segments))
        ]
        return Content(recording.channels, recording.segments, tuple(samples))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Each sound recording, its problems, and what it decodes to."""
    found = {}
    for name, write in SOUND.items():
        path = write(tmp_path_factory.mktemp(name.replace("+", "-")))
        found[name] = (
            path,
            {problem.code for problem in inspect_file(path, signals=True).problems},
            read(path),
        )
    return found


def test_there_are_enough_of_every_kind():
    assert len(DAMAGED) == len({str(item) for item in DAMAGED}) >= 250
    counts = {base: sum(item.base == base for item in DAMAGED) for base in SOUND}
    assert min(counts.values()) >= 5, counts


def test_the_sound_ones_are_sound(sound):
    codes = {code for _, found, _ in sound.values() for code in found}
    assert codes <= {"gaps", "rate-unknown"}
    assert len(sound["brainvision"][2].segments) == 2


@pytest.mark.parametrize("item", DAMAGED, ids=str)
def test_nothing_damaged_is_read_as_something_else_without_a_word(item, sound, tmp_path):
    original, known, expected = sound[item.base]
    shutil.copytree(original.parent, tmp_path / "copy")
    path = tmp_path / "copy" / original.name
    item.damage(path)
    inspection = inspect_file(path, signals=True)
    codes = {problem.code for problem in inspection.problems}
    assert not any(UNEXPECTED in problem.message for problem in inspection.problems)
    if inspection.verdict == "refused" or codes - known:
        if inspection.verdict == "refused":
            with pytest.raises(RAxSSError):  # typed, whatever it is
                read(path)
        return
    assert read(path) == expected, f"silently read as something else; found only: {codes or 'ok'}"
