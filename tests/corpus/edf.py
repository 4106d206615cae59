"""EDF and BDF files, byte by byte: sound ones, damaged ones and bombs.

The writer knows nothing of any library that reads EDF; what a file must decode to is worked out here, from the
integers that were written and the text of the header.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import Case

PERSON = "MCH-0234567 F 02-MAY-1951 Haagse_Harry"  # must never come out again
RECORDED = "Startdate 02-MAR-2002 EMG561 BK/JOP Sony_Canary"
SECRET = b"SECRET-CONTENT-OF-ANOTHER-PATIENT"
MICROVOLTS = {"V": 1e6, "mV": 1e3, "uV": 1.0, "nV": 1e-3, b"\xb5V": 1.0, b"\xc2\xb5V": 1.0, b"\xce\xbcV": 1.0}
WIDTHS = (16, 80, 8, 8, 8, 8, 8, 80, 8, 32)  # bytes of the fields of a signal


@dataclass(frozen=True)
class Signal:
    """One signal as its header says; any text may be nonsense. ``n`` integers a record, of this seed."""

    label: str | bytes = "EEG Fpz-Cz"
    unit: str | bytes = "uV"
    pmin: str | bytes = "-3276.8"
    pmax: str | bytes = "3276.7"
    dmin: str | bytes = "-32768"
    dmax: str | bytes = "32767"
    n: int = 100
    n_text: str | bytes | None = None  # instead of n, in the header
    transducer: str | bytes = "AgAgCl electrode"
    prefilter: str | bytes = "HP:0.1Hz LP:75Hz"
    seed: int = 1
    low: int = -5000
    high: int = 5000
    values: NDArray[np.int64] | None = None  # (records, n) instead of random ones

    def fields(self) -> tuple[str | bytes, ...]:
        """As they stand in the header, of `WIDTHS` bytes each."""
        n = str(self.n) if self.n_text is None else self.n_text
        limits = (self.pmin, self.pmax, self.dmin, self.dmax)
        return (self.label, self.transducer, self.unit, *limits, self.prefilter, n, "")

    def integers(self, n_records: int) -> NDArray[np.int64]:
        if self.values is not None:
            return self.values
        return np.random.default_rng(self.seed).integers(self.low, self.high, size=(n_records, self.n))

    def physical(self, n_records: int) -> NDArray[np.float64]:
        """What a reader must give: the line through both pairs of limits, voltages in microvolts."""
        low, high, bottom, top = (float(text) for text in (self.dmin, self.dmax, self.pmin, self.pmax))
        scaled = bottom + (self.integers(n_records).ravel() - low) * (top - bottom) / (high - low)
        return scaled * MICROVOLTS.get(self.unit, 1.0)


@dataclass(frozen=True)
class File:
    """A whole file. ``onsets`` gives each record's time to an annotation signal; bytes are written as they are."""

    signals: Sequence[Signal] = (Signal(), Signal("EEG Pz-Oz", seed=2))
    family: str = "EDF"
    version: bytes | None = None
    patient: str | bytes = PERSON
    recording: str | bytes = RECORDED
    date: str | bytes = "02.03.02"
    time: str | bytes = "14.27.00"
    header_bytes: str | None = None
    reserved: str | bytes = ""
    n_records: int = 8
    n_records_text: str | None = None
    seconds: str = "1"
    n_signals: str | None = None
    onsets: Sequence[str | bytes] | None = None
    annotation_label: str | bytes | None = None
    annotation_bytes: int = 60  # of each record; divisible by 2 and by 3
    tail: bytes = b""

    @property
    def width(self) -> int:
        return 3 if self.family == "BDF" else 2

    def all_signals(self) -> list[Signal]:
        if self.onsets is None:
            return list(self.signals)
        label = self.annotation_label or f"{self.family} Annotations"
        n = self.annotation_bytes // self.width
        limits = ("-8388608", "8388607") if self.family == "BDF" else ("-32768", "32767")
        return [*self.signals, Signal(label, "", "-1", "1", *limits, n=n, transducer="", prefilter="")]

    def header(self) -> bytes:
        signals = self.all_signals()
        version = self.version or (b"\xffBIOSEMI" if self.family == "BDF" else b"0       ")
        count = len(signals)
        fixed = [
            (version, 8),
            (self.patient, 80),
            (self.recording, 80),
            (self.date, 8),
            (self.time, 8),
            (self.header_bytes or str(256 * (count + 1)), 8),
            (self.reserved, 44),
            (self.n_records_text or str(self.n_records), 8),
            (self.seconds, 8),
            (self.n_signals or str(count), 4),
        ]
        whole = b"".join(padded(text, width) for text, width in fixed)
        columns = zip(WIDTHS, zip(*(signal.fields() for signal in signals), strict=True), strict=False)
        return whole + b"".join(padded(text, width) for width, texts in columns for text in texts)

    def records(self) -> bytes:
        parts = [self._stored(signal.integers(self.n_records)) for signal in self.signals]
        if self.onsets is not None:
            texts = (raw if isinstance(raw, bytes) else f"{raw}\x14\x14\0".encode() for raw in self.onsets)
            parts.append([text.ljust(self.annotation_bytes, b"\0") for text in texts])
        return b"".join(part[number] for number in range(self.n_records) for part in parts)

    def _stored(self, integers: NDArray[np.int64]) -> list[bytes]:
        if self.width == 2:
            return [row.astype("<i2").tobytes() for row in integers]
        return [row.astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes() for row in integers]

    def bytes(self) -> bytes:
        return self.header() + self.records() + self.tail


def padded(text: str | bytes, width: int) -> bytes:
    """A field of the header; too long a text is an error of this file."""
    raw = text if isinstance(text, bytes) else text.encode("ascii")
    assert len(raw) <= width, text
    return raw.ljust(width)


def cases() -> list[Case]:
    """All of them."""
    return [*sound(), *odd(), *frames(), *numbers(), *times(), *contents(), *bombs()]


TWO = (Signal(), Signal("EEG Pz-Oz", seed=2))
BDF_TWO = tuple(
    replace(item, pmin="-262144", pmax="262144", dmin="-8388608", dmax="8388607", low=-(10**6), high=10**6)
    for item in TWO
)
EVEN = [f"+{number}" for number in range(8)]


def plain(**changes: Any) -> File:
    return replace(File(), **changes)


def one_signal(**changes: Any) -> File:
    """A file whose first signal is changed."""
    return File(signals=(replace(TWO[0], **changes), TWO[1]))


def plus(kind: str = "EDF+C", onsets: Sequence[str | bytes] = EVEN, **changes: Any) -> File:
    return replace(File(reserved=kind, onsets=onsets, family=kind[:3]), **changes)


def bdf(**changes: Any) -> File:
    return replace(File(family="BDF", signals=BDF_TWO, reserved="24BIT"), **changes)


def case(
    name: str,
    file: File,
    verdict: str,
    *codes: str,
    suffix: str | None = None,
    change: Callable[[bytes], bytes] = lambda raw: raw,
    cut: int = 0,
    tags: Sequence[str] = (),
    decoded: bool = True,
    n_read: int | None = None,
    starts: Sequence[float] = (0.0,),
) -> Case:
    """A case whose file, ``cut`` by so many bytes, decodes to what was written, if it is accepted at all."""

    def write(folder: Path) -> Path:
        path = folder / f"{name}{suffix or f'.{file.family.lower()}'}"
        raw = change(file.bytes())
        path.write_bytes(raw[: len(raw) - cut])
        return path

    known: dict[str, Any] = {}
    if verdict != "refused" and decoded:
        known["samples"] = {
            place: signal.physical(file.n_records)[
                : (file.n_records if n_read is None else n_read) * signal.n
            ]
            for place, signal in enumerate(file.signals)
        }
        known["rates"] = tuple(signal.n / float(file.seconds) for signal in file.signals)
        known["starts"] = tuple(starts)
        labels = (signal.label for signal in file.signals)
        known["names"] = tuple(text if isinstance(text, str) else text.decode("latin-1") for text in labels)
    return Case(f"edf-{name}", write, verdict, codes, frozenset(tags), **known)


def ok(name: str, file: File, **how: Any) -> Case:
    return case(name, file, "ok", **how)


def warned(name: str, file: File, *codes: str, **how: Any) -> Case:
    return case(name, file, "warning", *codes, **how)


def refused(name: str, file: File, code: str, **how: Any) -> Case:
    return case(name, file, "refused", code, **how)


def sound() -> list[Case]:
    """Nothing to say about these."""
    slow = replace(TWO[1], n=10)
    texts = [f"+{k}\x14\x14\x00+{k}.5\x15.25\x14{PERSON[:20]}\x14\x00".encode() for k in range(8)]
    return [
        ok("plain", plain()),
        ok("one-signal", plain(signals=TWO[:1])),
        ok("many-signals", plain(signals=[replace(TWO[0], label=f"G{k}", seed=k) for k in range(300)])),
        ok("upper-case-name", plain(), suffix=".EDF"),
        ok("plus-c", plus()),
        ok("plus-c-starts-late", plus(onsets=[f"+{k}.347" for k in range(8)])),
        ok("plus-c-with-texts", plus(onsets=texts)),
        ok("plus-d-without-a-gap", plus("EDF+D")),
        ok("bdf", bdf()),
        ok("bdf-plus-c", bdf(reserved="BDF+C", onsets=EVEN)),
        ok("bdf-status", bdf(signals=(*BDF_TWO, _status()))),
        ok("negative-gain", one_signal(pmin="3276.7", pmax="-3276.8")),
        ok("all-positive-digital", one_signal(dmin="0", dmax="4095", low=100, high=4000)),
        ok("exponent-in-a-limit", one_signal(pmin="-3.2e3", pmax="3.2e3")),
        ok("signed-and-bare-numbers", one_signal(pmin="-.5", pmax="+7.", dmin="-32768", dmax="+32767")),
        ok("right-justified-numbers", one_signal(pmin=" -3276.8", pmax="  3276.7", dmin="  -32768")),
        ok("millivolts", one_signal(unit="mV", pmin="-5", pmax="5")),
        ok("long-records", plain(seconds="30", signals=[replace(s, n=3000) for s in TWO])),
        ok("100-khz", plain(seconds="0.001")),
        ok("one-sample-a-record", plain(signals=[replace(s, n=1) for s in TWO], n_records=64)),
        ok("records-over-61440-bytes", plain(signals=[replace(s, n=20000) for s in TWO])),
        warned("mixed-rates", plain(signals=(TWO[0], slow)), "mixed-rates"),
    ]


def _annotation_signal() -> Signal:
    """A second one, whose bytes are all zero."""
    return Signal("EDF Annotations", "", "-1", "1", n=10, low=0, high=1, transducer="", prefilter="")


def _status() -> Signal:
    return replace(BDF_TWO[0], label="Status", unit="Boolean", pmin="-8388608", pmax="8388607", seed=9)


def _annotations_first() -> File:
    """The time-keeping signal stands before the others; all its bytes are zero, so records follow each other."""
    return File(signals=(_annotation_signal(), *TWO), reserved="EDF+C")


def odd() -> list[Case]:
    """These can be read, and a reader should know."""
    unknown = plain(n_records_text="-1")
    two_annotations = plus(signals=(*TWO, _annotation_signal()))
    return [
        warned("records-unknown", unknown, "header-inconsistent"),
        warned("truncated-at-a-record", plain(n_records_text="20"), "data-truncated"),
        warned("truncated-in-a-record", plain(), "data-truncated", cut=37, n_read=7),
        warned("most-records-declared", plain(n_records_text="99999999"), "data-truncated"),
        warned("unknown-and-cut", unknown, "header-inconsistent", "data-longer", cut=37, n_read=7),
        warned("more-records-than-declared", plain(n_records_text="5"), "data-longer", n_read=5),
        warned("annotations-first", _annotations_first(), "header-inconsistent", decoded=False),
        warned("time-in-the-second-annotations", two_annotations, "header-inconsistent", decoded=False),
        warned("blank-unit", one_signal(unit=""), "blank-unit"),
        warned("unit-of-nothing-but-zeros", one_signal(unit=b"\x00" * 8), "blank-unit", "non-ascii"),
        warned("percent", one_signal(unit="%", label="SaO2"), "unknown-unit"),
        warned("unit-in-capitals", one_signal(unit="UV"), "unknown-unit"),
        warned("micro-sign-latin-1", one_signal(unit=b"\xb5V"), "non-ascii"),
        warned("micro-sign-utf-8", one_signal(unit=b"\xc2\xb5V"), "non-ascii"),
        warned("greek-mu-utf-8", one_signal(unit=b"\xce\xbcV"), "non-ascii"),
        warned("same-label-twice", plain(signals=(TWO[0], replace(TWO[0], seed=3))), "duplicate-channel"),
        warned("no-label", one_signal(label=""), "nameless-channel"),
        warned("accented-label", one_signal(label=b"Elektrode \xdc1"), "non-ascii"),
        warned("accented-patient", plain(patient=b"X M 01-JAN-1951 J\xfcrgen_Canary"), "non-ascii"),
        warned("utf-8-recording", plain(recording="Startdate X Canary żółć".encode()), "non-ascii"),
        warned("escape-sequence-in-label", one_signal(label=b"C3\x1b[31m"), "non-ascii", decoded=False),
        warned("no-such-day", plain(date="31.02.02"), "header-inconsistent"),
    ]


def frames() -> list[Case]:
    """The header's own frame does not hold."""
    changes = {
        "empty": ("no-data", lambda raw: b""),
        "255-bytes": ("header-damaged", lambda raw: raw[:255]),
        "256-bytes": ("header-damaged", lambda raw: raw[:256]),
        "cut-in-the-signal-headers": ("header-damaged", lambda raw: raw[:700]),
        "header-only": ("no-data", lambda raw: raw[:768]),
        "less-than-a-record": ("no-data", lambda raw: raw[: 768 + 399]),
        "text": ("not-this-format", lambda raw: b"Dear colleague, " * 100),
        "zeros": ("not-this-format", lambda raw: bytes(len(raw))),
        "crlf-converted": ("bad-range", lambda raw: raw[:100] + b"\r\n" + raw[100:]),
        "utf-16": ("not-this-format", lambda raw: raw[:256].decode("latin-1").encode("utf-16")),
        "one-byte-missing-in-the-header": ("header-damaged", lambda raw: raw[:200] + raw[201:]),
    }
    return [
        *(refused(name, plain(), code, change=change) for name, (code, change) in changes.items()),
        refused("bdf-named-edf", bdf(), "not-this-format", suffix=".edf"),
        refused("edf-named-bdf", plain(), "not-this-format", suffix=".bdf"),
        refused("no-signals", plain(signals=()), "no-data"),
    ]


def numbers() -> list[Case]:
    """Numbers that cannot be: by field and code."""
    of_the_file = {
        ("header_bytes", "header-damaged"): ("256", "1024", "abc", "-768"),
        ("n_signals", "header-damaged"): ("two", "-2", "1_0", " ", "3", "1"),
        ("n_records_text", "header-damaged"): ("many", "-2", "8.5", "8\0"),
        ("n_records_text", "no-data"): ("0",),
        ("seconds", "bad-rate"): ("0", "-1", "1e-300", "1e-320", "1e300", "1e999", "0.0009"),  # above 100 kHz
        ("seconds", "header-damaged"): ("nan", "inf", "one", " ", "0,5", "0x1"),
    }
    of_a_signal = {
        ("n_text", "header-damaged"): ("-100", "lots", "99.5", "", "\u0661\u0660\u0660".encode()),
        ("n_text", "bad-rate"): ("0",),
        ("pmin", "bad-range"): ("nan", "-3276,8", "3276.7", "3276.70"),
        ("pmax", "bad-range"): ("nan", "inf", "1e400", "high", "", b"3276\0\0\0\0"),
        ("dmin", "bad-range"): ("-100.5", "", "32767"),
        ("dmax", "bad-range"): ("65535", "32768", "max", "-32768"),
    }
    limits = {
        "both-nan": {"pmin": "NaN", "pmax": "NaN"},
        "beyond-float32": {"pmin": "-1e300", "pmax": "1e300"},
        "too-close": {"pmin": "0", "pmax": "1e-310"},
        "blank": {"pmin": "", "pmax": ""},
        "digital-reversed": {"dmin": "32767", "dmax": "-32768"},
    }
    first, second = BDF_TWO
    return [
        *(
            refused(f"{field}-{code}-{place}", plain(**{field: text}), code)
            for (field, code), texts in of_the_file.items()
            for place, text in enumerate(texts)
        ),
        *(
            refused(f"{field}-{code}-{place}", one_signal(**{field: text}), code)
            for (field, code), texts in of_a_signal.items()
            for place, text in enumerate(texts)
        ),
        *(refused(f"limits-{name}", one_signal(**texts), "bad-range") for name, texts in limits.items()),
        refused("bdf-beyond-24-bits", bdf(signals=(replace(first, dmax="8388608"), second)), "bad-range"),
        refused(
            "every-range-wrong", plain(signals=[replace(s, pmin="x", dmin="y") for s in TWO]), "bad-range"
        ),
    ]


def times() -> list[Case]:
    """EDF+ and what its records say about time."""
    gap = [f"+{second}" for second in (0, 1, 2, 3, 3600, 3601, 3602, 3603)]
    many = [f"+{10 * number}" for number in range(8)]
    shuffled = ["+0", "+2", "+1", *EVEN[3:]]
    undated = {
        "times-backwards": shuffled,
        "records-overlap": [f"+{0.5 * k}" for k in range(8)],
        "times-missing-discontinuous": [b"\x00"] * 8,
        "times-garbage": [b"garbage"] * 8,
        "times-without-a-sign": [f"{k}\x14\x14\x00".encode() for k in range(8)],
        "times-nan": ["+nan"] * 8,
        "times-of-400-digits": [*EVEN[:7], b"+" + b"9" * 59],
        "text-before-time": [f"+{k}\x14Canary\x14\x00".encode() for k in range(8)],
    }
    return [
        *(refused(name, plus("EDF+D", onsets), "header-damaged") for name, onsets in undated.items()),
        warned("gap-of-an-hour", plus("EDF+D", gap), "gaps", starts=(0, 3600)),
        warned("gap-after-every-record", plus("EDF+D", many), "gaps", starts=range(0, 80, 10)),
        warned(
            "gap-in-a-continuous-file", plus("EDF+C", gap), "gaps", "header-inconsistent", starts=(0, 3600)
        ),
        warned(
            "gap-and-truncated",
            plus("EDF+D", gap),
            "gaps",
            "data-truncated",
            cut=10,
            n_read=7,
            starts=(0, 3600),
        ),
        ok("jitter-of-a-millisecond", plus("EDF+D", [f"+{k + 0.0005 * (k % 2)}" for k in range(8)])),
        warned("times-missing-continuous", plus("EDF+C", [b"\x00"] * 8), "header-inconsistent"),
        warned(
            "one-time-missing-continuous",
            plus("EDF+C", [*EVEN[:3], b"\x00", *EVEN[4:]]),
            "header-inconsistent",
        ),
        warned("plus-c-in-small-letters", plus(reserved="edf+c"), "header-inconsistent"),
        warned("plus-d-in-small-letters", plus("EDF+D", gap, reserved="edf+d"), "gaps", starts=(0, 3600)),
        warned("plus-neither-c-nor-d", plus(reserved="EDF+"), "header-inconsistent"),
        refused("annotations-only", plain(signals=(), onsets=EVEN, reserved="EDF+C"), "no-data"),
        refused("annotation-label-in-capitals", plus(annotation_label="EDF ANNOTATIONS"), "header-damaged"),
        refused(
            "annotation-label-nul-padded", plus(annotation_label=b"EDF Annotations\x00"), "header-damaged"
        ),
        refused("annotation-label-indented", plus(annotation_label=" EDF Annotations"), "header-damaged"),
        refused("bdf-annotations-in-edf", plus(annotation_label="BDF Annotations"), "header-damaged"),
        warned("gap-of-27-samples", _fast_with_gaps(), "gaps", starts=(0, 1.0009, 2.0018)),
        refused("many-pieces", _many_pieces(), "too-many-pieces", tags=["bomb"]),
        refused(
            "many-rates",
            plain(signals=[replace(TWO[0], label=f"C{k}", n=k + 1) for k in range(200)]),
            "too-many-pieces",
            tags=["bomb"],
        ),
        ok("many-short-records", _many_short_records()),
    ]


def _many_short_records() -> File:
    """A time for every sample: slow to read if each took a call of its own."""
    tiny = (replace(TWO[0], n=1),)
    return plus("EDF+D", [f"+{k / 100:.2f}" for k in range(20000)], signals=tiny, seconds="0.01", n_records=20000,
                annotation_bytes=12)  # fmt: skip


def _fast_with_gaps() -> File:
    fast = [replace(TWO[0], n=30_000)]
    return plus("EDF+D", ["+0", "+1.0009", "+2.0018"], signals=fast, n_records=3)


def _many_pieces() -> File:
    """Every record apart from the next."""
    tiny = (replace(TWO[0], n=10),)
    return plus("EDF+D", [f"+{k}" for k in range(20_000)], signals=tiny, seconds="0.01", n_records=20_000,
                annotation_bytes=12)  # fmt: skip


def contents() -> list[Case]:
    """Sound headers, bad signals. Ten channels' worth of placements are in test_inspection.py."""
    rail = replace(TWO[0], low=32767, high=32768)
    return [
        warned("flat-whole", plain(signals=(replace(TWO[0], low=7, high=8), TWO[1])), "flat"),
        warned("flat-by-a-step", plain(signals=(replace(TWO[0], low=7, high=9), TWO[1])), "flat"),
        warned("railed-whole", plain(signals=(rail, TWO[1])), "flat", "railed"),
    ]


def bombs() -> list[Case]:
    """At most 10 MB on the disk, and gigabytes if believed."""

    def bomb(name: str, file: File, code: str, size: int) -> Case:
        """Only the header is written; the rest of the file is a hole that takes no room."""

        def write(folder: Path) -> Path:
            path = folder / f"{name}.{file.family.lower()}"
            path.write_bytes(file.header())
            os.truncate(path, max(size, path.stat().st_size))
            return path

        return Case(f"edf-bomb-{name}", write, "refused", (code,), frozenset({"bomb"}))

    def mixed(n_slow: int, n_fast: int) -> list[Signal]:
        return [replace(TWO[0], n=n_fast), *(replace(TWO[0], label=f"S{k}", n=1) for k in range(n_slow))]

    huge = "99999999"
    slow_bdf = [replace(BDF_TWO[0], n=30000), *(replace(BDF_TWO[0], label=f"S{k}", n=1) for k in range(999))]
    mixed_bdf = plain(family="BDF", signals=slow_bdf, n_records=99)
    every_record = [replace(TWO[0], label=f"S{k}", n_text=huge) for k in range(9999)]
    cancelling = [replace(TWO[0], n_text=huge), replace(TWO[1], n_text="-9999998")]
    million = plus("EDF+D", signals=(replace(TWO[0], n=1),), annotation_bytes=6, n_records_text="1200000")
    return [
        bomb("mixed-rates", plain(signals=mixed(999, 30000), n_records=99), "too-large", 6_200_000),
        bomb("mixed-rates-bdf", mixed_bdf, "too-large", 9_500_000),
        bomb(
            "9999-signals-declared", plain(n_signals="9999", header_bytes="2560000"), "header-damaged", 5_000
        ),
        bomb("samples-in-a-record", one_signal(n_text=huge), "no-data", 10_000),
        bomb("samples-in-every-record", plain(signals=every_record), "no-data", 9_000_000),
        bomb("negative-samples-cancel", plain(signals=cancelling), "header-damaged", 1_000_000),
        bomb("rate-of-1e302", plain(seconds="1e-300", n_records_text=huge), "bad-rate", 1_000_000),
        bomb("times-of-a-million-records", million, "header-damaged", 9_900_000),
    ]
