"""WFDB records, line by line: sound ones, damaged ones, bombs and pointers out of the folder.

What a record must decode to is worked out here, from the integers that were written: (stored - baseline) / gain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import Case
from .damages import annex_pointer, content, damaged, lost, replaced
from .edf import PERSON
from .places import beside_a_secret

TYPES = {"16": "<i2", "32": "<i4", "61": ">i2", "80": "u1", "160": "<u2"}
ZEROS = {"80": 128, "160": 32768}  # formats that store no sign


@dataclass(frozen=True)
class Record:
    """A record of one data file. ``lines`` replaces the signal lines, ``first`` the record line."""

    name: str = "r"
    rate: str = "250"
    n_samples: int = 500
    fmt: str = "16"
    declared: str | None = None  # instead of n_samples
    gain: str = "200(10)/mV"
    signals: tuple[str, ...] = ("MLII", "V5")
    first: str | None = None
    lines: Sequence[str] | None = None
    comments: str = f"# age: 51 sex: F {PERSON}"
    offset: int = 0
    cut: int = 0
    tail: bytes = b""
    encoding: str = "utf-8"
    values: NDArray[np.int64] | None = None  # (n_samples, signals) instead of random ones

    def stored(self) -> NDArray[np.int64]:
        """``(n_samples, signals)``; small enough for every format."""
        if self.values is not None:
            return self.values
        return np.random.default_rng(11).integers(-100, 100, size=(self.n_samples, len(self.signals)))

    def data(self) -> bytes:
        flat = self.stored().ravel()
        if self.fmt == "212":  # two samples of 12 bits in three bytes
            pairs = (flat & 0xFFF).reshape(-1, 2)
            low, high = pairs[:, 0], pairs[:, 1]
            packed = np.stack([low & 0xFF, (low >> 8) | ((high >> 8) << 4), high & 0xFF], axis=1)
            whole = packed.astype("u1").tobytes()
        elif self.fmt == "24":
            whole = (flat & 0xFFFFFF).astype("<u4").view("u1").reshape(-1, 4)[:, :3].tobytes()
        else:
            whole = (flat + ZEROS.get(self.fmt, 0)).astype(TYPES.get(self.fmt, "<i2")).tobytes()
        return b"\0" * self.offset + whole[: len(whole) - self.cut] + self.tail

    def header(self) -> str:
        declared = str(self.n_samples) if self.declared is None else self.declared
        first = self.first or f"{self.name} {len(self.signals)} {self.rate} {declared}"
        offset = f"+{self.offset}" if self.offset else ""
        lines = self.lines
        if lines is None:
            lines = [
                f"{self.name}.dat {self.fmt}{offset} {self.gain} 12 0 0 0 0 {name}" for name in self.signals
            ]
        return "\n".join([first, *lines, self.comments, ""])

    def write(self, folder: Path) -> Path:
        (folder / f"{self.name}.hea").write_bytes(self.header().encode(self.encoding))
        (folder / f"{self.name}.dat").write_bytes(self.data())
        return folder / f"{self.name}.hea"

    def decoded(self, gain: float = 200.0, baseline: int = 10) -> dict[int, NDArray[np.float64]]:
        return {place: (column - baseline) / gain for place, column in enumerate(self.stored().T)}


@dataclass(frozen=True)
class Segmented:
    """A record of segments: ``lines`` of the header, and the records beside it."""

    lines: Sequence[str]
    records: Mapping[str, Record] = field(default_factory=dict)
    declared: str = "1000"
    n_segments: str | None = None

    def write(self, folder: Path) -> Path:
        for record in self.records.values():
            record.write(folder)
        n_segments = len(self.lines) if self.n_segments is None else self.n_segments
        text = "\n".join([f"m/{n_segments} 2 250 {self.declared}", *self.lines, f"# {PERSON}", ""])
        (folder / "m.hea").write_text(text)
        return folder / "m.hea"


def accepted(
    name: str, record: Record, *codes: str, gain: float = 200.0, baseline: int = 10, **expected: Any
) -> Case:
    known = {"samples": record.decoded(gain, baseline), "names": record.signals}
    known["rates"] = (250.0,) * len(record.signals)
    return Case(f"wfdb-{name}", record.write, "warning" if codes else "ok", codes, **(known | expected))


def refused(name: str, write: Record | Segmented | Callable[[Path], Path], code: str, *tags: str) -> Case:
    writer = write.write if isinstance(write, Record | Segmented) else write
    return Case(f"wfdb-{name}", writer, "refused", (code,), frozenset(tags))


def bomb(name: str, write: Record | Segmented | Callable[[Path], Path], code: str) -> Case:
    return refused(f"bomb-{name}", write, code, "bomb")


def escape(name: str, record: Record | Segmented, link: str = "") -> Case:
    return refused(f"escape-{name}", beside_a_secret(record.write, link), "outside", "escape")


def cases() -> list[Case]:
    return [*sound(), *warned(), *segmented(), *faulty(), *bombs(), *escapes()]


def sound() -> list[Case]:
    return [
        *(accepted(f"format-{fmt}", Record(fmt=fmt)) for fmt in ("16", "212", "24", "32", "61", "80", "160")),
        Case("wfdb-compressed", compressed, "ok", samples=Record().decoded(), names=Record().signals),
        accepted("rate-with-a-counter", Record(rate="250/8(0)")),
        accepted("rate-a-fraction", Record(rate="249.853"), rates=(249.853, 249.853)),
        accepted("byte-offset", Record(offset=24)),
        accepted("time-and-date", Record(declared="500 10:20:30 01/02/1990")),
        accepted("negative-gain", Record(gain="-200(10)/mV"), gain=-200.0),
        accepted("gain-in-powers-of-ten", Record(gain="2e2(10)/mV")),
        accepted("length-from-the-file", Record(first="r 2 250")),
        accepted("windows-lines", Record(comments="\r\n# nobody\r\n")),
        accepted("a-long-record", Record(n_samples=50_000)),
    ]


def warned() -> list[Case]:
    frames = Record(
        n_samples=500, lines=["r.dat 16x1 200(10)/mV 12 0 0 0 0 I", "r.dat 16x3 200(10)/mV 12 0 0 0 0 II"]
    )
    flat = np.random.default_rng(11).integers(-100, 100, size=(500, 2)).ravel()[:1000].reshape(-1, 4)
    slow, fast = (flat[:, 0] - 10) / 200, (flat[:, 1:].ravel() - 10) / 200
    return [
        accepted("gain-zero", Record(gain="0(10)/mV"), "uncalibrated"),
        accepted("unit-blank", Record(gain="200(10)"), "blank-unit"),
        accepted(
            "no-gain",
            Record(lines=["r.dat 16", "r.dat 16"]),
            "uncalibrated",
            "blank-unit",
            "nameless-channel",
            baseline=0,
            names=("", ""),
        ),
        accepted("names-alike", Record(signals=("II", "II")), "duplicate-channel"),
        accepted(
            "name-not-ascii", Record(signals=("II", "Brustgürtel")), "non-ascii", names=("II", "Brustgrtel")
        ),
        accepted("data-longer", Record(tail=b"\1" * 40), "data-longer"),
        Case(
            "wfdb-several-samples-a-frame",
            replace(frames, declared="250").write,
            "warning",
            ("mixed-rates",),
            samples={0: slow, 1: fast},
            names=("I", "II"),
            rates=(250.0, 750.0),
        ),
    ]


def segmented() -> list[Case]:
    two = {name: Record(name=name) for name in ("s1", "s2")}
    both = {place: np.concatenate([samples, samples]) for place, samples in two["s1"].decoded().items()}
    read = {"samples": both, "names": ("MLII", "V5"), "rates": (250.0, 250.0)}
    layout = Record(
        name="lay", declared="0", lines=["~ 0 200(10)/mV 12 0 0 0 0 MLII", "~ 0 200(10)/mV 12 0 0 0 0 V5"]
    )
    scaled = {**two, "s2": Record(name="s2", gain="200(10)/uV")}
    nested = {**two, "s2": Record(name="s2", first="s2/1 2 250 500", lines=["s1 500"])}
    whole = Segmented(["s1 500", "s2 500"], two)
    gap = Segmented(["s1 500", "~ 250", "s2 500"], two, "1250")
    laid_out = Segmented(["lay 0", "s1 500", "s2 500"], {**two, "lay": layout})
    less = replace(whole, declared="1200")
    return [
        Case("wfdb-segments", whole.write, "ok", starts=(0.0,), **read),
        Case("wfdb-segments-with-a-gap", gap.write, "warning", ("gaps",), starts=(0.0, 3.0), **read),
        Case("wfdb-segments-with-a-layout", laid_out.write, "ok", starts=(0.0,), **read),
        Case("wfdb-segments-sum-to-less", less.write, "warning", ("header-inconsistent",), **read),
        refused("segment-missing", Segmented(["s1 500", "s3 500"], two), "not-found"),
        refused("segment-of-itself", Segmented(["m 1000"]), "not-supported"),
        refused("segments-nested", Segmented(["s1 500", "s2 500"], nested), "not-supported"),
        refused("segments-of-other-units", Segmented(["s1 500", "s2 500"], scaled), "not-supported"),
        refused("segments-fewer-than-declared", Segmented(["s1 500"], two, n_segments="3"), "header-damaged"),
        refused("segments-none", Segmented([], n_segments="0"), "header-damaged"),
        refused("segments-only-gaps", Segmented(["~ 500", "~ 500"]), "no-data"),
        refused("segment-line-damaged", Segmented(["s1 many", "s2 500"], two), "header-damaged"),
    ]


def faulty() -> list[Case]:
    of_a_field = {
        ("rate", "bad-rate"): ("0", "-250", "nan", "fast", "9999999999", "2e2"),
        ("gain", "bad-range"): ("nan(0)/mV", "inf/mV", "1e999/mV", "1e-300/mV", "high/mV"),
        ("gain", "header-damaged"): ("200(10)/µV",),
        ("first", "bad-rate"): ("r 2",),
        ("first", "header-damaged"): ("r 3 250 500", "r 1 250 500"),
        ("declared", "not-supported"): ("0",),
        ("declared", "header-damaged"): ("-5", "500.5", "500 10:20:30 45/13/1990", "500 99:99:99"),
    }
    of_both_lines = {
        "number-damaged": ("r.dat 16 200/mV 12.5 0 0 0 0 I", "header-damaged"),
        "number-only-a-sign": ("r.dat 16 200/mV 12 - I", "header-damaged"),
        "format-unknown": ("r.dat 99 200/mV", "not-supported"),
        "format-8": ("r.dat 8 200/mV", "not-supported"),
        "format-missing": ("r.dat", "header-damaged"),
        "skew-longer-than-the-record": ("r.dat 16:9999 200/mV", "header-damaged"),
        "samples-a-frame-zero": ("r.dat 16x0 200/mV", "header-damaged"),
        "control-character": ("r.dat 16\x1f200/mV", "header-damaged"),
        "offset-beyond-the-data": ("r.dat 16+99999 200/mV", "no-data"),
        "name-with-spaces-in-the-header": ("my data.dat 16 200/mV", "header-damaged"),
    }
    contents = {
        "empty": b"",
        "only-comments": b"# nothing\n",
        "binary": b"\0\1\2",
        "of-another": b"Brain Vision\n",
    }
    lengthless = {"s1": Record(name="s1"), "s2": Record(name="s2", first="s2 2 250")}
    return [
        *(
            refused(f"{name}-{code}-{place}", Record(**{name: text}), code)
            for (name, code), texts in of_a_field.items()
            for place, text in enumerate(texts)
        ),
        *(refused(name, Record(lines=[line] * 2), code) for name, (line, code) in of_both_lines.items()),
        *(
            refused(f"header-{name}", damaged(Record().write, content(raw)), "header-damaged")
            for name, raw in contents.items()
        ),
        refused("unit-not-ascii-latin-1", Record(gain="200(10)/µV", encoding="latin-1"), "header-damaged"),
        refused("signals-zero", Record(first="r 0 250 500", lines=[]), "no-data"),
        refused("compressed-is-not", Record(fmt="516"), "not-this-format"),
        refused("files-interleaved", _interleaved, "not-supported"),
        refused(
            "skews-of-several-lengths",
            Record(
                signals=("a", "b", "c"), lines=["r.dat 16 200/mV", "r.dat 16:3 200/mV", "r.dat 16:1 200/mV"]
            ),
            "not-supported",
        ),
        refused("header-in-capitals", _in_capitals, "not-supported"),
        refused("segment-without-a-length-cut", Segmented(["s1 500", "s2 900"], lengthless), "data-missing"),
        refused("data-missing", damaged(Record().write, lost(".dat")), "not-found"),
        refused("data-an-annex-pointer", damaged(Record().write, annex_pointer(".dat")), "not-found"),
        refused("frames-too-fast", Record(lines=["r.dat 16x500 200/mV"] * 2, declared="1"), "bad-rate"),
        refused("name-with-two-dots", _two_dots, "header-damaged"),
        refused(
            "segment-with-a-dot", Segmented(["s.1 500"], {"s.1": Record(name="s.1")}, "500"), "header-damaged"
        ),
        refused("data-empty", Record(n_samples=0, declared="500"), "no-data"),
        refused("data-is-a-pipe", damaged(Record().write, replaced(".dat", os.mkfifo)), "not-readable"),
    ]


def bombs() -> list[Case]:
    small = {"s1": Record(name="s1")}
    many = Record(first="r 200000 250 1", lines=["r.dat 16 200/mV"] * 200_000, n_samples=1)
    rates = Record(first="r 40 1 1", lines=[f"r.dat 16x{k} 200/mV" for k in range(1, 41)])
    return [
        bomb("samples", Record(declared="100000000000"), "too-large"),
        bomb("samples-compressed", Record(declared="100000000000", fmt="516"), "too-large"),
        bomb("samples-a-frame", Record(lines=["r.dat 16x99999999 200/mV"] * 2), "too-large"),
        bomb("skew", Record(lines=["r.dat 16:99999999999 200/mV"] * 2), "header-damaged"),
        bomb("signals", many, "header-damaged"),
        bomb("gap", Segmented(["s1 500", "~ 99999999999"], small), "too-large"),
        bomb("one-segment-often", _often, "too-large"),
        bomb("segments", Segmented(["s1 500", "~ 500"] * 4500, small), "too-many-pieces"),
        bomb("segments-of-signals", Segmented(["s1 500"] * 400, small), "too-many-pieces"),
        bomb("rates", rates, "too-many-pieces"),
        bomb("header", Record(comments="# x\n" * 2_000_000), "header-damaged"),
    ]


def escapes() -> list[Case]:
    pointers = {
        "parent": "../secret.dat",
        "absolute": "/etc/passwd",
        "backslashes": "..\\secret.dat",
        "drive": "C:\\secret.dat",
        "address": "http://127.0.0.1/secret.dat",
        "bucket": "s3://bucket/secret.dat",
    }
    segments = {"parent": "../secret", "absolute": "/etc/secret", "address": "http://host/r"}
    leading_out = Record(name="s1", lines=["../secret.dat 16 200/mV"] * 2)
    return [
        *(escape(f"data-{name}", Record(lines=[f"{file} 16 200/mV"] * 2)) for name, file in pointers.items()),
        *(escape(f"segment-{name}", Segmented([f"{file} 500"])) for name, file in segments.items()),
        escape("data-link", Record(), "r.dat"),
        escape("header-link", Record(), "r.hea"),
        escape("segment-link", Segmented(["s1 500"], {"s1": Record(name="s1")}), "s1.hea"),
        escape("data-of-a-segment", Segmented(["s1 500"], {"s1": leading_out})),
    ]


def summed(record: Record) -> Record:
    """A record whose header has the first values of its samples and their sums, as 16 bits with a sign."""
    stored = record.stored()
    sums = (stored.sum(axis=0) + 2**15) % 2**16 - 2**15
    lines = [
        f"{record.name}.dat {record.fmt} 200(10)/mV 12 0 {first} {total} 0 {name}"
        for first, total, name in zip(stored[0], sums, record.signals, strict=True)
    ]
    return replace(record, lines=lines)


def compressed(folder: Path) -> Path:
    """The same samples as FLAC, by the package wfdb."""
    import wfdb

    record = Record()
    wfdb.wrsamp(
        record.name,
        fs=250,
        units=["mV", "mV"],
        sig_name=list(record.signals),
        d_signal=record.stored(),
        fmt=["516", "516"],
        adc_gain=[200.0, 200.0],
        baseline=[10, 10],
        write_dir=str(folder),
    )
    return folder / "r.hea"


def _in_capitals(folder: Path) -> Path:
    return Record().write(folder).rename(folder / "r.HEA")


def _two_dots(folder: Path) -> Path:
    path = Record(lines=["r.1.dat 16 200/mV"] * 2).write(folder)
    path.with_suffix(".dat").rename(folder / "r.1.dat")
    return path


def _interleaved(folder: Path) -> Path:
    lines = ["r.dat 16 200/mV", "q.dat 16 200/mV", "r.dat 16 200/mV"]
    path = Record(signals=("a", "b", "c"), lines=lines).write(folder)
    (folder / "q.dat").write_bytes(b"\0" * 1000)
    return path


def _often(folder: Path) -> Path:
    """One megabyte, played four hundred times over."""
    record = Record(name="s1", n_samples=250_000)
    return Segmented(["s1 250000"] * 370, {"s1": record}, str(250_000 * 370)).write(folder)
