"""EDF and BDF files, byte by byte: sound ones, damaged ones, bombs and links out of the folder.

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

    def integers(self, n_records: int) -> NDArray[np.int64]:
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
        columns: list[tuple[Callable[[Signal], str | bytes], int]] = [
            (lambda item: item.label, 16),
            (lambda item: item.transducer, 80),
            (lambda item: item.unit, 8),
            (lambda item: item.pmin, 8),
            (lambda item: item.pmax, 8),
            (lambda item: item.dmin, 8),
            (lambda item: item.dmax, 8),
            (lambda item: item.prefilter, 80),
            (lambda item: str(item.n) if item.n_text is None else item.n_text, 8),
            (lambda item: "", 32),
        ]
        whole = b"".join(padded(text, width) for text, width in fixed)
        return whole + b"".join(
            padded(column(signal), width) for column, width in columns for signal in signals
        )

    def records(self) -> bytes:
        parts = [self._stored(signal.integers(self.n_records)) for signal in self.signals]
        if self.onsets is not None:
            texts = [
                told if isinstance(told, bytes) else f"{told}\x14\x14\0".encode() for told in self.onsets
            ]
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
    return [*sound(), *odd(), *frames(), *numbers(), *times(), *contents(), *places(), *bombs(), *escapes()]


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
    tags: Sequence[str] = (),
    decoded: bool = True,
    n_read: int | None = None,
    starts: Sequence[float] | None = None,
) -> Case:
    """A case whose file decodes to what was written, if it is accepted at all."""
    suffix = suffix or f".{file.family.lower()}"

    def write(folder: Path) -> Path:
        path = folder / f"{name}{suffix}"
        path.write_bytes(change(file.bytes()))
        return path

    known: dict[str, Any] = {}
    if verdict != "refused" and decoded:
        count = file.n_records if n_read is None else n_read
        known["samples"] = {
            place: signal.physical(file.n_records)[: count * signal.n]
            for place, signal in enumerate(file.signals)
        }
        known["rates"] = tuple(signal.n / float(file.seconds) for signal in file.signals)
        known["starts"] = tuple(starts or (0.0,))
        known["names"] = tuple(_plain_text(signal.label) for signal in file.signals)
    return Case(f"edf-{name}", write, verdict, codes, frozenset(tags), **known)


def _plain_text(label: str | bytes) -> str | Any:
    return label if isinstance(label, str) else label.decode("latin-1")


def sound() -> list[Case]:
    """Nothing to say about these."""
    slow = replace(TWO[1], n=10)
    return [
        case("plain", plain(), "ok"),
        case("one-signal", plain(signals=TWO[:1]), "ok"),
        case("one-record", plain(n_records=1), "ok"),
        case(
            "many-signals", plain(signals=[replace(TWO[0], label=f"G{k}", seed=k) for k in range(300)]), "ok"
        ),
        case("upper-case-name", plain(), "ok", suffix=".EDF"),
        case("plus-c", plus(), "ok"),
        case("plus-c-starts-late", plus(onsets=[f"+{k}.347" for k in range(8)]), "ok"),
        case(
            "plus-c-with-texts",
            plus(onsets=[f"+{k}\x14\x14\0+{k}.5\x15.25\x14{PERSON[:20]}\x14\0".encode() for k in range(8)]),
            "ok",
        ),
        case("plus-d-without-a-gap", plus("EDF+D"), "ok"),
        case("bdf", bdf(), "ok"),
        case("bdf-upper-case-name", bdf(), "ok", suffix=".BDF"),
        case("bdf-plus-c", bdf(reserved="BDF+C", onsets=EVEN), "ok"),
        case("bdf-status", bdf(signals=(*BDF_TWO, _status())), "ok"),
        case("negative-gain", one_signal(pmin="3276.7", pmax="-3276.8"), "ok"),
        case("all-positive-digital", one_signal(dmin="0", dmax="4095", low=100, high=4000), "ok"),
        case("physical-offset", one_signal(pmin="100", pmax="200"), "ok"),
        case("exponent-in-a-limit", one_signal(pmin="-3.2e3", pmax="3.2e3"), "ok"),
        case(
            "signed-and-bare-numbers", one_signal(pmin="-.5", pmax="+7.", dmin="-32768", dmax="+32767"), "ok"
        ),
        case("right-justified-numbers", one_signal(pmin=" -3276.8", pmax="  3276.7", dmin="  -32768"), "ok"),
        case("millivolts", one_signal(unit="mV", pmin="-5", pmax="5"), "ok"),
        case("volts", one_signal(unit="V", pmin="-0.005", pmax="0.005"), "ok"),
        case("nanovolts", one_signal(unit="nV", pmin="-999999", pmax="999999"), "ok"),
        case("short-records", plain(seconds="0.1"), "ok"),
        case("long-records", plain(seconds="30", signals=[replace(s, n=3000) for s in TWO]), "ok"),
        case("uneven-rate", plain(seconds="1.0006"), "ok"),
        case("100-khz", plain(seconds="0.001"), "ok"),
        case("one-sample-a-record", plain(signals=[replace(s, n=1) for s in TWO], n_records=64), "ok"),
        case("records-over-61440-bytes", plain(signals=[replace(s, n=20000) for s in TWO]), "ok"),
        case("mixed-rates", plain(signals=(TWO[0], slow)), "warning", "mixed-rates"),
        case(
            "mixed-rates-bdf", bdf(signals=(BDF_TWO[0], replace(BDF_TWO[1], n=10))), "warning", "mixed-rates"
        ),
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
    return [
        case("records-unknown", plain(n_records_text="-1"), "warning", "header-inconsistent"),
        case("truncated-at-a-record", plain(n_records_text="20"), "warning", "data-truncated"),
        case(
            "truncated-in-a-record",
            plain(),
            "warning",
            "data-truncated",
            change=lambda raw: raw[:-37],
            n_read=7,
        ),
        case(
            "truncated-by-a-byte", plain(), "warning", "data-truncated", change=lambda raw: raw[:-1], n_read=7
        ),
        case("truncated-bdf", bdf(), "warning", "data-truncated", change=lambda raw: raw[:-100], n_read=7),
        case(
            "truncated-plus-c", plus(), "warning", "data-truncated", change=lambda raw: raw[:-500], n_read=6
        ),
        case("most-records-declared", plain(n_records_text="99999999"), "warning", "data-truncated"),
        case(
            "unknown-and-cut",
            plain(n_records_text="-1"),
            "warning",
            "header-inconsistent",
            "data-longer",
            change=lambda raw: raw[:-37],
            n_read=7,
        ),
        case("more-records-than-declared", plain(n_records_text="5"), "warning", "data-longer", n_read=5),
        case("bytes-after-the-end", plain(tail=b"trailing"), "warning", "data-longer"),
        case("bdf-longer", bdf(n_records_text="3"), "warning", "data-longer", n_read=3),
        case("annotations-first", _annotations_first(), "warning", "header-inconsistent", decoded=False),
        case(
            "time-in-the-second-annotation-signal",
            plus(signals=(*TWO, _annotation_signal())),
            "warning",
            "header-inconsistent",
            decoded=False,
        ),
        case("blank-unit", one_signal(unit=""), "warning", "blank-unit"),
        case("unit-of-nothing-but-zeros", one_signal(unit=b"\0" * 8), "warning", "blank-unit", "non-ascii"),
        case("no-units-at-all", plain(signals=[replace(s, unit="") for s in TWO]), "warning", "blank-unit"),
        case("percent", one_signal(unit="%", label="SaO2"), "warning", "unknown-unit"),
        case("degrees", one_signal(unit="degreeC", label="Temp"), "warning", "unknown-unit"),
        case("unit-in-capitals", one_signal(unit="UV"), "warning", "unknown-unit"),
        case("micro-sign-latin-1", one_signal(unit=b"\xb5V"), "warning", "non-ascii"),
        case("micro-sign-utf-8", one_signal(unit=b"\xc2\xb5V"), "warning", "non-ascii"),
        case("greek-mu-utf-8", one_signal(unit=b"\xce\xbcV"), "warning", "non-ascii"),
        case(
            "same-label-twice",
            plain(signals=(TWO[0], replace(TWO[0], seed=3))),
            "warning",
            "duplicate-channel",
        ),
        case(
            "all-labels-the-same",
            plain(signals=[replace(TWO[0], seed=k) for k in range(30)]),
            "warning",
            "duplicate-channel",
        ),
        case("no-label", one_signal(label=""), "warning", "nameless-channel"),
        case("no-labels", plain(signals=[replace(s, label="") for s in TWO]), "warning", "nameless-channel"),
        case("accented-label", one_signal(label=b"Elektrode \xdc1"), "warning", "non-ascii"),
        case("accented-patient", plain(patient=b"X M 01-JAN-1951 J\xfcrgen_Canary"), "warning", "non-ascii"),
        case("utf-8-recording", plain(recording="Startdate X Canary żółć".encode()), "warning", "non-ascii"),
        case("accented-transducer", one_signal(transducer=b"\xe9lectrode"), "warning", "non-ascii"),
        case("tab-in-prefilter", one_signal(prefilter=b"HP:0.1\tLP:70"), "warning", "non-ascii"),
        case(
            "escape-sequence-in-label", one_signal(label=b"C3\x1b[31m"), "warning", "non-ascii", decoded=False
        ),
        case(
            "line-break-in-label", one_signal(label=b"C3\nok  x.edf"), "warning", "non-ascii", decoded=False
        ),
        case("no-such-day", plain(date="31.02.02"), "warning", "header-inconsistent"),
        case("date-of-words", plain(date="tomorrow"), "warning", "header-inconsistent"),
        case("no-date", plain(date="", time=""), "warning", "header-inconsistent"),
        case("25-oclock", plain(time="25.00.00"), "warning", "header-inconsistent"),
        case("date-with-slashes", plain(date="02/03/02"), "warning", "header-inconsistent"),
    ]


def frames() -> list[Case]:
    """The header's own frame does not hold."""
    return [
        case("empty", plain(), "refused", "no-data", change=lambda raw: b""),
        case("one-byte", plain(), "refused", "header-damaged", change=lambda raw: raw[:1]),
        case("255-bytes", plain(), "refused", "header-damaged", change=lambda raw: raw[:255]),
        case("256-bytes", plain(), "refused", "header-damaged", change=lambda raw: raw[:256]),
        case("cut-in-the-signal-headers", plain(), "refused", "header-damaged", change=lambda raw: raw[:700]),
        case("header-only", plain(), "refused", "no-data", change=lambda raw: raw[:768]),
        case("less-than-a-record", plain(), "refused", "no-data", change=lambda raw: raw[: 768 + 399]),
        case("text", plain(), "refused", "not-this-format", change=lambda raw: b"Dear colleague, " * 100),
        case("zip", plain(), "refused", "not-this-format", change=lambda raw: b"PK\x03\x04" + raw),
        case("zeros", plain(), "refused", "not-this-format", change=lambda raw: bytes(len(raw))),
        case("spaces", plain(), "refused", "not-this-format", change=lambda raw: b" " * len(raw)),
        case("html", plain(), "refused", "not-this-format", change=lambda raw: b"<!doctype html>" + raw),
        case("version-1", plain(version=b"1       "), "refused", "not-this-format"),
        case(
            "bdf-with-a-wrong-name",
            plain(version=b"\xffBIOSEMX"),
            "refused",
            "not-this-format",
            suffix=".bdf",
        ),
        case("bdf-named-edf", bdf(), "refused", "not-this-format", suffix=".edf"),
        case("edf-named-bdf", plain(), "refused", "not-this-format", suffix=".bdf"),
        case(
            "byte-order-mark", plain(), "refused", "not-this-format", change=lambda raw: b"\xef\xbb\xbf" + raw
        ),
        case(
            "crlf-converted",
            plain(),
            "refused",
            "bad-range",
            change=lambda raw: raw[:100] + b"\r\n" + raw[100:],
        ),
        case(
            "utf-16",
            plain(),
            "refused",
            "not-this-format",
            change=lambda raw: raw[:256].decode("latin-1").encode("utf-16"),
        ),
        case("header-size-too-small", plain(header_bytes="256"), "refused", "header-damaged"),
        case("header-size-too-large", plain(header_bytes="1024"), "refused", "header-damaged"),
        case("header-size-of-words", plain(header_bytes="abc"), "refused", "header-damaged"),
        case("header-size-negative", plain(header_bytes="-768"), "refused", "header-damaged"),
        case("no-signals", plain(signals=()), "refused", "no-data"),
        case("signals-of-words", plain(n_signals="two"), "refused", "header-damaged"),
        case("signals-negative", plain(n_signals="-2"), "refused", "header-damaged"),
        case("signals-with-underscore", plain(n_signals="1_0"), "refused", "header-damaged"),
        case("signals-blank", plain(n_signals=" "), "refused", "header-damaged"),
        case("more-signals-than-headers", plain(n_signals="3"), "refused", "header-damaged"),
        case("fewer-signals-than-headers", plain(n_signals="1"), "refused", "header-damaged"),
        case(
            "one-byte-missing-in-the-header",
            plain(),
            "refused",
            "header-damaged",
            change=lambda raw: raw[:200] + raw[201:],
        ),
    ]


def numbers() -> list[Case]:
    """Numbers that cannot be."""
    bad_range = ("refused", "bad-range")
    return [
        case("records-of-words", plain(n_records_text="many"), "refused", "header-damaged"),
        case("records-minus-two", plain(n_records_text="-2"), "refused", "header-damaged"),
        case("records-fractional", plain(n_records_text="8.5"), "refused", "header-damaged"),
        case("records-zero", plain(n_records_text="0"), "refused", "no-data"),
        case("records-nul-padded", plain(n_records_text="8\0"), "refused", "header-damaged"),
        case("duration-zero", plain(seconds="0"), "refused", "bad-rate"),
        case("duration-negative", plain(seconds="-1"), "refused", "bad-rate"),
        case("duration-tiny", plain(seconds="1e-300"), "refused", "bad-rate"),
        case("duration-denormal", plain(seconds="1e-320"), "refused", "bad-rate"),
        case("duration-huge", plain(seconds="1e300"), "refused", "bad-rate"),
        case("duration-overflows", plain(seconds="1e999"), "refused", "bad-rate"),
        case("duration-nan", plain(seconds="nan"), "refused", "header-damaged"),
        case("duration-inf", plain(seconds="inf"), "refused", "header-damaged"),
        case("duration-of-words", plain(seconds="one"), "refused", "header-damaged"),
        case("duration-blank", plain(seconds=" "), "refused", "header-damaged"),
        case("duration-comma", plain(seconds="0,5"), "refused", "header-damaged"),
        case("duration-hexadecimal", plain(seconds="0x1"), "refused", "header-damaged"),
        case("rate-above-100-khz", plain(seconds="0.0009"), "refused", "bad-rate"),
        case("samples-zero", one_signal(n=0), "refused", "bad-rate"),
        case("samples-negative", one_signal(n_text="-100"), "refused", "header-damaged"),
        case("samples-of-words", one_signal(n_text="lots"), "refused", "header-damaged"),
        case("samples-fractional", one_signal(n_text="99.5"), "refused", "header-damaged"),
        case("samples-blank", one_signal(n_text=""), "refused", "header-damaged"),
        case("samples-arabic-digits", one_signal(n_text="١٠٠".encode()), "refused", "header-damaged"),
        case("physical-nan", one_signal(pmin="nan"), *bad_range),
        case("physical-both-nan", one_signal(pmin="NaN", pmax="NaN"), *bad_range),
        case("physical-inf", one_signal(pmax="inf"), *bad_range),
        case("physical-overflows", one_signal(pmax="1e400"), *bad_range),
        case("physical-beyond-float32", one_signal(pmin="-1e300", pmax="1e300"), *bad_range),
        case("physical-equal", one_signal(pmin="0", pmax="0"), *bad_range),
        case("physical-equal-but-spelt-differently", one_signal(pmin="1", pmax="1.0"), *bad_range),
        case("physical-too-close", one_signal(pmin="0", pmax="1e-310"), *bad_range),
        case("physical-of-words", one_signal(pmax="high"), *bad_range),
        case("physical-blank", one_signal(pmin="", pmax=""), *bad_range),
        case("physical-comma", one_signal(pmin="-3276,8"), *bad_range),
        case("physical-nul-padded", one_signal(pmax=b"3276\0\0\0\0"), *bad_range),
        case("digital-equal", one_signal(dmin="0", dmax="0"), *bad_range),
        case("digital-reversed", one_signal(dmin="32767", dmax="-32768"), *bad_range),
        case("digital-beyond-16-bits", one_signal(dmax="65535"), *bad_range),
        case("digital-32768", one_signal(dmax="32768"), *bad_range),
        case("digital-fractional", one_signal(dmin="-100.5"), *bad_range),
        case("digital-of-words", one_signal(dmax="max"), *bad_range),
        case("digital-blank", one_signal(dmin=""), *bad_range),
        case(
            "bdf-digital-beyond-24-bits",
            bdf(signals=(replace(BDF_TWO[0], dmax="8388608"), BDF_TWO[1])),
            *bad_range,
        ),
        case("bdf-physical-nan", bdf(signals=(replace(BDF_TWO[0], pmax="nan"), BDF_TWO[1])), *bad_range),
        case("bdf-duration-zero", bdf(seconds="0"), "refused", "bad-rate"),
        case("every-range-wrong", plain(signals=[replace(s, pmin="x", dmin="y") for s in TWO]), *bad_range),
    ]


def times() -> list[Case]:
    """EDF+ and what its records say about time."""
    gap = [f"+{second}" for second in (0, 1, 2, 3, 3600, 3601, 3602, 3603)]
    many = [f"+{10 * number}" for number in range(8)]
    shuffled = ["+0", "+2", "+1", *EVEN[3:]]
    refused = ("refused", "header-damaged")
    return [
        case("gap-of-an-hour", plus("EDF+D", gap), "warning", "gaps", starts=(0, 3600)),
        case("gap-after-every-record", plus("EDF+D", many), "warning", "gaps", starts=range(0, 80, 10)),
        case(
            "gap-of-half-a-second",
            plus("EDF+D", [*EVEN[:4], "+4.5", "+5.5", "+6.5", "+7.5"]),
            "warning",
            "gaps",
            starts=(0, 4.5),
        ),
        case("gap-bdf", bdf(reserved="BDF+D", onsets=gap), "warning", "gaps", starts=(0, 3600)),
        case(
            "gap-in-a-continuous-file",
            plus("EDF+C", gap),
            "warning",
            "gaps",
            "header-inconsistent",
            starts=(0, 3600),
        ),
        case(
            "gap-and-truncated",
            plus("EDF+D", gap),
            "warning",
            "gaps",
            "data-truncated",
            change=lambda raw: raw[:-10],
            n_read=7,
            starts=(0, 3600),
        ),
        case("first-record-late", plus("EDF+D", [f"+{k}" for k in range(100, 108)]), "ok"),
        case("jitter-of-a-millisecond", plus("EDF+D", [f"+{k + 0.0005 * (k % 2)}" for k in range(8)]), "ok"),
        case("times-backwards", plus("EDF+D", shuffled), *refused),
        case("times-backwards-continuous", plus("EDF+C", shuffled), *refused),
        case("times-all-zero", plus("EDF+D", ["+0"] * 8), *refused),
        case("records-overlap", plus("EDF+D", [f"+{0.5 * k}" for k in range(8)]), *refused),
        case("times-missing-discontinuous", plus("EDF+D", [b"\0"] * 8), *refused),
        case("one-time-missing-discontinuous", plus("EDF+D", [*EVEN[:7], b"\0"]), *refused),
        case("times-missing-continuous", plus("EDF+C", [b"\0"] * 8), "warning", "header-inconsistent"),
        case(
            "one-time-missing-continuous",
            plus("EDF+C", [*EVEN[:3], b"\0", *EVEN[4:]]),
            "warning",
            "header-inconsistent",
        ),
        case("times-garbage", plus("EDF+D", [b"garbage"] * 8), *refused),
        case("times-garbage-continuous", plus("EDF+C", [b"\xff" * 60] * 8), *refused),
        case("times-without-a-sign", plus("EDF+D", [f"{k}\x14\x14\0".encode() for k in range(8)]), *refused),
        case("times-nan", plus("EDF+D", ["+nan"] * 8), *refused),
        case("times-of-400-digits", plus("EDF+D", [*EVEN[:7], b"+" + b"9" * 59]), *refused),
        case(
            "text-before-time", plus("EDF+D", [f"+{k}\x14Canary\x14\0".encode() for k in range(8)]), *refused
        ),
        case("comma-in-times", plus("EDF+D", [f"+{k},0" for k in range(8)]), *refused),
        case("plus-c-without-annotations", plain(reserved="EDF+C"), "warning", "header-inconsistent"),
        case("plus-d-without-annotations", plain(reserved="EDF+D"), *refused),
        case("plus-c-in-small-letters", plus(reserved="edf+c"), "warning", "header-inconsistent"),
        case(
            "plus-d-in-small-letters",
            plus("EDF+D", gap, reserved="edf+d"),
            "warning",
            "gaps",
            starts=(0, 3600),
        ),
        case("plus-neither-c-nor-d", plus(reserved="EDF+"), "warning", "header-inconsistent"),
        case("plus-x", plus(reserved="EDF+X"), "warning", "header-inconsistent"),
        case("annotations-in-a-plain-file", plus(reserved=""), "warning", "header-inconsistent"),
        case("annotations-only", plain(signals=(), onsets=EVEN, reserved="EDF+C"), "refused", "no-data"),
        case("annotation-label-in-capitals", plus(annotation_label="EDF ANNOTATIONS"), *refused),
        case("annotation-label-nul-padded", plus(annotation_label=b"EDF Annotations\0"), *refused),
        case("annotation-label-indented", plus(annotation_label=" EDF Annotations"), *refused),
        case("bdf-annotations-in-edf", plus(annotation_label="BDF Annotations"), *refused),
        case("gap-of-27-samples", _fast_with_gaps(), "warning", "gaps", starts=(0, 1.0009, 2.0018)),
        case("many-pieces", _many_pieces("EDF"), "refused", "too-many-pieces", tags=["bomb"]),
        case("many-pieces-bdf", _many_pieces("BDF"), "refused", "too-many-pieces", tags=["bomb"]),
        case(
            "many-rates",
            plain(signals=[replace(TWO[0], label=f"C{k}", n=k + 1) for k in range(200)]),
            "refused",
            "too-many-pieces",
            tags=["bomb"],
        ),
        case("many-short-records", _many_short_records(), "ok"),
    ]


def _many_short_records() -> File:
    """A time for every sample: slow to read if each took a call of its own."""
    tiny = (replace(TWO[0], n=1),)
    return plus("EDF+D", [f"+{k / 100:.2f}" for k in range(20000)], signals=tiny, seconds="0.01", n_records=20000,
                annotation_bytes=12)  # fmt: skip


def _fast_with_gaps() -> File:
    fast = [replace(TWO[0], n=30_000)]
    return plus("EDF+D", ["+0", "+1.0009", "+2.0018"], signals=fast, n_records=3)


def _many_pieces(family: str) -> File:
    """Every record apart from the next."""
    tiny = (replace((BDF_TWO if family == "BDF" else TWO)[0], n=10),)
    return plus(f"{family}+D", [f"+{k}" for k in range(20_000)], signals=tiny, seconds="0.01", n_records=20_000,
                annotation_bytes=12)  # fmt: skip


def contents() -> list[Case]:
    """Sound headers, bad signals. Ten channels' worth of placements are in test_inspection.py."""
    rail = replace(TWO[0], low=32767, high=32768)
    return [
        case("flat-whole", plain(signals=(replace(TWO[0], low=7, high=8), TWO[1])), "warning", "flat"),
        case("flat-by-a-step", plain(signals=(replace(TWO[0], low=7, high=9), TWO[1])), "warning", "flat"),
        case("railed-whole", plain(signals=(rail, TWO[1])), "warning", "flat", "railed"),
        case(
            "railed-below-zero",
            plain(signals=(replace(rail, low=-32768, high=-32767), TWO[1])),
            "warning",
            "railed",
        ),
    ]


def places() -> list[Case]:
    """Not a regular file, or none at all."""

    def at(name: str, make: Callable[[Path], Path], *codes: str) -> Case:
        return Case(f"edf-{name}", make, "refused", codes)

    def absent(folder: Path) -> Path:
        return folder / "absent.edf"

    def directory(folder: Path) -> Path:
        (folder / "folder.edf").mkdir()
        return folder / "folder.edf"

    def pipe(folder: Path) -> Path:
        os.mkfifo(folder / "pipe.edf")
        return folder / "pipe.edf"

    def pipe_inside(folder: Path) -> Path:
        (folder / "data").mkdir()
        os.mkfifo(folder / "data" / "pipe.edf")
        return folder / "data"

    def loop(folder: Path) -> Path:
        (folder / "a.edf").symlink_to("b.edf")
        (folder / "b.edf").symlink_to("a.edf")
        return folder / "a.edf"

    def nothing(folder: Path) -> Path:
        (folder / "notes.txt").write_text("nothing here")
        return folder

    def packed(folder: Path) -> Path:
        (folder / "night.edf.gz").write_bytes(b"\x1f\x8b" + bytes(50))
        return folder / "night.edf.gz"

    def inner_link(folder: Path) -> Path:
        (folder / "real.edf").write_bytes(plain().bytes())
        (folder / "link.edf").symlink_to("real.edf")
        return folder / "link.edf"

    def annex(folder: Path) -> Path:
        objects = folder / "set" / ".git" / "annex" / "objects" / "aa"
        objects.mkdir(parents=True)
        (objects / "KEY.edf").write_bytes(plain().bytes())
        (folder / "set" / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.8.0"}')
        where = folder / "set" / "sub-1" / "eeg"
        where.mkdir(parents=True)
        link = where / "sub-1_task-rest_eeg.edf"
        link.symlink_to("../../.git/annex/objects/aa/KEY.edf")
        return link

    def through_a_link(folder: Path) -> Path:
        (folder / "far").mkdir()
        (folder / "far" / "night.edf").write_bytes(plain().bytes())
        (folder / "near").symlink_to("far")
        return folder / "near"

    return [
        at("absent", absent, "not-found"),
        at("is-a-folder", directory, "not-readable"),
        at("is-a-pipe", pipe, "not-readable"),
        at("folder-with-a-pipe", pipe_inside, "not-readable"),
        at("link-to-itself", loop, "not-readable"),
        at("folder-of-nothing", nothing, "not-a-recording"),
        at("compressed", packed, "not-a-recording"),
        Case("edf-link-within-the-folder", inner_link, "ok"),
        Case("edf-annex-link-within-the-dataset", annex, "warning", ("sidecar-missing",)),
        Case("edf-folder-given-by-a-link", through_a_link, "ok"),
    ]


def bombs() -> list[Case]:
    """At most 10 MB on the disk, and gigabytes if believed."""

    def bomb(name: str, file: File, code: str, *, size: int) -> Case:
        """Only the header is written; the rest of the file is a hole that takes no room."""

        def write(folder: Path) -> Path:
            path = folder / f"{name}.{file.family.lower()}"
            path.write_bytes(file.header())
            os.truncate(path, max(size, path.stat().st_size))
            return path

        return Case(f"edf-{name}", write, "refused", (code,), frozenset({"bomb"}))

    def mixed(n_slow: int, n_fast: int) -> list[Signal]:
        return [replace(TWO[0], n=n_fast), *(replace(TWO[0], label=f"S{k}", n=1) for k in range(n_slow))]

    huge = "99999999"
    slow_bdf = [replace(BDF_TWO[0], n=30000), *(replace(BDF_TWO[0], label=f"S{k}", n=1) for k in range(999))]
    return [
        bomb("bomb-mixed-rates", plain(signals=mixed(999, 30000), n_records=99), "too-large", size=6_200_000),
        bomb(
            "bomb-mixed-rates-unknown-length",
            plain(signals=mixed(999, 30000), n_records_text="-1"),
            "too-large",
            size=9_000_000,
        ),
        bomb(
            "bomb-mixed-rates-bdf",
            plain(family="BDF", signals=slow_bdf, n_records=99),
            "too-large",
            size=9_500_000,
        ),
        bomb(
            "bomb-9999-signals-of-one-sample",
            plain(signals=mixed(9998, 40000), n_records=50),
            "too-large",
            size=9_900_000,
        ),
        bomb(
            "bomb-9999-signals-declared",
            plain(n_signals="9999", header_bytes="2560000"),
            "header-damaged",
            size=5_000,
        ),
        bomb("bomb-header-size", plain(header_bytes=huge), "header-damaged", size=5_000),
        bomb("bomb-samples-in-a-record", one_signal(n_text=huge), "no-data", size=10_000),
        bomb(
            "bomb-samples-in-every-record",
            plain(signals=[replace(TWO[0], label=f"S{k}", n_text=huge) for k in range(9999)]),
            "no-data",
            size=9_000_000,
        ),
        bomb(
            "bomb-negative-samples-cancel",
            plain(signals=[replace(TWO[0], n_text=huge), replace(TWO[1], n_text="-9999998")]),
            "header-damaged",
            size=1_000_000,
        ),
        bomb("bomb-rate-of-1e302", plain(seconds="1e-300", n_records_text=huge), "bad-rate", size=1_000_000),
        bomb(
            "bomb-a-record-of-1e300-seconds",
            plain(seconds="1e300", n_records_text=huge),
            "bad-rate",
            size=1_000_000,
        ),
        bomb(
            "bomb-times-of-a-million-records",
            plus("EDF+D", signals=(replace(TWO[0], n=1),), annotation_bytes=6, n_records_text="1200000"),
            "header-damaged",
            size=9_900_000,
        ),
    ]


def escapes() -> list[Case]:
    """Names that lead to a file elsewhere, which must never be opened."""

    def escape(name: str, make: Callable[[Path, Path], Path]) -> Case:
        def write(folder: Path) -> Path:
            inside, outside = folder / "inside", folder / "outside"
            inside.mkdir()
            (outside / "eeg").mkdir(parents=True)
            secret = plain(patient=SECRET).bytes()
            for path in (outside / "secret.edf", outside / "eeg" / "sub-1_task-rest_eeg.edf"):
                path.write_bytes(secret)
            return make(inside, outside)

        return Case(f"edf-{name}", write, "refused", ("outside",), frozenset({"escape"}))

    def absolute(inside: Path, outside: Path) -> Path:
        (inside / "night.edf").symlink_to(outside.absolute() / "secret.edf")
        return inside / "night.edf"

    def relative(inside: Path, outside: Path) -> Path:
        (inside / "night.edf").symlink_to("../outside/secret.edf")
        return inside / "night.edf"

    def chain(inside: Path, outside: Path) -> Path:
        (inside / "night.edf").symlink_to("next.edf")
        (inside / "next.edf").symlink_to("last")
        (inside / "last").symlink_to("../outside/secret.edf")
        return inside / "night.edf"

    def in_a_folder(inside: Path, outside: Path) -> Path:
        return relative(inside, outside).parent

    def linked_folder(inside: Path, outside: Path) -> Path:
        (inside / "more").symlink_to("../outside")
        return inside

    def dangling(inside: Path, outside: Path) -> Path:
        (inside / "night.edf").symlink_to("../outside/not-yet.edf")
        return inside / "night.edf"

    def device(inside: Path, outside: Path) -> Path:
        (inside / "night.edf").symlink_to("/dev/zero")
        return inside / "night.edf"

    def own_environment(inside: Path, outside: Path) -> Path:
        (inside / "night.bdf").symlink_to("/proc/self/environ")
        return inside / "night.bdf"

    def pipe(inside: Path, outside: Path) -> Path:
        os.mkfifo(outside / "pipe")
        (inside / "night.edf").symlink_to("../outside/pipe")
        return inside / "night.edf"

    def dataset(inside: Path) -> None:
        (inside / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.8.0"}')

    def out_of_a_dataset(inside: Path, outside: Path) -> Path:
        dataset(inside)
        (inside / "sub-1" / "eeg").mkdir(parents=True)
        link = inside / "sub-1" / "eeg" / "sub-1_task-rest_eeg.edf"
        link.symlink_to("../../../outside/secret.edf")
        return link

    def subject_elsewhere(inside: Path, outside: Path) -> Path:
        dataset(inside)
        (inside / "sub-1").symlink_to("../outside")
        return inside / "sub-1" / "eeg" / "sub-1_task-rest_eeg.edf"

    def looks_inside(inside: Path, outside: Path) -> Path:
        """The folder's name begins like that of the root."""
        twin = inside.with_name("inside-too")
        twin.mkdir()
        (twin / "secret.edf").write_bytes(plain(patient=SECRET).bytes())
        (inside / "night.edf").symlink_to("../inside-too/secret.edf")
        return inside / "night.edf"

    return [
        escape("escape-absolute-link", absolute),
        escape("escape-relative-link", relative),
        escape("escape-chain-of-links", chain),
        escape("escape-link-in-a-folder", in_a_folder),
        escape("escape-linked-folder", linked_folder),
        escape("escape-dangling-link", dangling),
        escape("escape-device", device),
        escape("escape-own-environment", own_environment),
        escape("escape-pipe", pipe),
        escape("escape-out-of-a-dataset", out_of_a_dataset),
        escape("escape-subject-elsewhere", subject_elsewhere),
        escape("escape-name-that-begins-alike", looks_inside),
    ]
