"""BrainVision triplets, line by line: sound ones, damaged ones, bombs and pointers out of the folder.

What a recording must decode to is worked out here, from the integers that were written and the header's text.
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
from .damages import Write, annex_link, annex_pointer, content, damaged, replaced
from .edf import PERSON
from .places import beside_a_secret

MAGIC = "Brain Vision Data Exchange Header File Version 1.0"
SAMPLE_TYPES = {"INT_16": "<i2", "INT_32": "<i4", "IEEE_FLOAT_32": "<f4"}
FACTORS = {"µV": 1.0, "μV": 1.0, "uV": 1.0, "mV": 1e3, "V": 1e6, "nV": 1e-3, "": 1.0}  # to microvolts
NEW_SEGMENT = "New Segment,,1,1,0,20200102030405000000"
PAUSE = "New Segment,,201,1,0,20200102030505000000"  # a minute after the start


@dataclass(frozen=True)
class Triplet:
    """A whole recording. ``common`` and ``binary`` replace fields, or remove them (None)."""

    first_line: str = MAGIC
    common: Mapping[str, str | None] = field(default_factory=dict)
    binary: Mapping[str, str | None] = field(default_factory=dict)
    channels: Sequence[str] | None = ("Fz,,0.5,µV", "Cz,,0.5,µV", "Pz,,2,µV")
    extra: str = ""  # after the channels
    markers: Sequence[str] | None = (NEW_SEGMENT, "Stimulus,S  1,50,1,0")
    n_samples: int = 400
    values: NDArray[np.int64] | None = None  # (n_samples, channels) instead of random ones
    name: str = "a"
    encoding: str = "utf-8"
    newline: str = "\r\n"
    tail: bytes = b""  # of the data file
    cut: int = 0  # bytes that are missing at its end

    @property
    def binary_format(self) -> str:
        return self.binary.get("BinaryFormat") or "INT_16"

    def stored(self) -> NDArray[np.int64]:
        """``(n_samples, channels)`` integers, which every format holds exactly."""
        if self.values is not None:
            return self.values
        shape = (self.n_samples, len(self.channels or "abc"))
        return np.random.default_rng(7).integers(-3000, 3000, size=shape)

    def data(self) -> bytes:
        stored = self.stored().astype(SAMPLE_TYPES.get(self.binary_format, "<i2"))
        if self.common.get("DataOrientation") == "VECTORIZED":
            stored = stored.T
        whole = np.ascontiguousarray(stored).tobytes()
        return whole[: len(whole) - self.cut] + self.tail

    def header(self) -> str:
        common = {
            "Codepage": "UTF-8",
            "DataFile": f"{self.name}.eeg",
            "MarkerFile": f"{self.name}.vmrk",
            "DataFormat": "BINARY",
            "DataOrientation": "MULTIPLEXED",
            "NumberOfChannels": str(len(self.channels or "abc")),
            "SamplingInterval": "2000",
        }
        sections = [_section("Common Infos", {**common, **self.common})]
        sections.append(_section("Binary Infos", {"BinaryFormat": "INT_16", **self.binary}))
        if self.channels is not None:
            lines = {f"Ch{place}": line for place, line in enumerate(self.channels, start=1)}
            sections.append(_section("Channel Infos", lines))
        comment = f"[Comment]\nPatient: {PERSON}"
        return "\n".join([self.first_line, *sections, self.extra, comment, ""]).replace("\n", self.newline)

    def write(self, folder: Path) -> Path:
        path = folder / f"{self.name}.vhdr"
        path.write_bytes(self.header().encode(self.encoding))
        path.with_suffix(".eeg").write_bytes(self.data())
        if self.markers is not None:
            lines = [f"Mk{place}={line}" for place, line in enumerate(self.markers, start=1)]
            first = "Brain Vision Data Exchange Marker File, Version 1.0"
            infos = ["[Common Infos]", f"DataFile={self.name}.eeg", "[Marker Infos]"]
            text = "\r\n".join([first, *infos, *lines, ""])
            path.with_suffix(".vmrk").write_bytes(text.encode(self.encoding))
        return path

    def decoded(self, n_samples: int | None = None) -> dict[int, NDArray[np.float64]]:
        """Stored times resolution, voltages in microvolts."""
        samples = {}
        for place, line in enumerate(self.channels or ()):
            _, _, resolution, unit, *_ = [*line.split(","), "", "", ""]
            factor = float(resolution or 1) * FACTORS.get(unit, 1.0)
            samples[place] = self.stored()[:n_samples, place] * factor
        return samples


def _section(name: str, fields: Mapping[str, str | None]) -> str:
    return "\n".join(
        [f"[{name}]", *(f"{key}={value}" for key, value in fields.items() if value is not None), ""]
    )


def accepted(name: str, triplet: Triplet, *codes: str, n_samples: int | None = None, **expected: Any) -> Case:
    """Read, with a warning for each code; samples are those that were written."""
    names = tuple(line.split(",")[0].replace(r"\1", ",") for line in triplet.channels or ())
    known = {"samples": triplet.decoded(n_samples), "names": names, "rates": (500.0,) * len(names)}
    return Case(f"bv-{name}", triplet.write, "warning" if codes else "ok", codes, **(known | expected))


def refused(name: str, write: Triplet | Callable[[Path], Path], code: str, *tags: str) -> Case:
    writer = write.write if isinstance(write, Triplet) else write
    return Case(f"bv-{name}", writer, "refused", (code,), frozenset(tags))


def marked(
    name: str, *markers: str, codes: Any = ("gaps",), starts: Any = (0.0, 60.0), **common: Any
) -> Case:
    """A recording with these markers after the first."""
    triplet = Triplet(markers=(NEW_SEGMENT, *markers), common=common)
    return accepted(name, triplet, *codes, starts=starts)


def bomb(name: str, triplet: Triplet, code: str = "header-damaged") -> Case:
    return refused(f"bomb-{name}", triplet, code, "bomb")


def escape(name: str, triplet: Triplet, link: str = "") -> Case:
    return refused(f"escape-{name}", beside_a_secret(triplet.write, link), "outside", "escape")


def with_common(**fields: str | None) -> Triplet:
    return Triplet(common=fields)


def with_channels(*lines: str, **changes: Any) -> Triplet:
    return Triplet(channels=lines, **changes)


def cases() -> list[Case]:
    return [*sound(), *warned(), *damaged_headers(), *damaged_data(), *bombs(), *escapes()]


def sound() -> list[Case]:
    return [
        accepted("plain", Triplet()),
        accepted("version-2", Triplet(first_line=MAGIC.replace("1.0", "2.0"))),
        accepted("one-word-magic", Triplet(first_line=MAGIC.replace("Brain Vision", "BrainVision"))),
        accepted("unix-lines", Triplet(newline="\n")),
        accepted("int-32", Triplet(binary={"BinaryFormat": "INT_32"})),
        accepted("float-32", Triplet(binary={"BinaryFormat": "IEEE_FLOAT_32"})),
        accepted("vectorized", with_common(DataOrientation="VECTORIZED", DataPoints="400")),
        accepted(
            "names-and-markers-in-an-old-code-page",
            Triplet(
                channels=("F\u00fchler,,1,\u00b5V",),
                markers=(NEW_SEGMENT, "Comment,m\u00fcde,2,1,0"),
                common={"Codepage": None},
                encoding="latin-1",
            ),
        ),
        accepted("ansi", Triplet(common={"Codepage": "ANSI"}, encoding="cp1252")),
        accepted("comma-in-a-name", with_channels(r"F\1z,,0.5,µV", "Cz,,1,µV")),
        accepted("blank-resolution-is-1", with_channels("Fz,,,µV", "Cz,,1,µV")),
        accepted("millivolts-and-nanovolts", with_channels("Fz,,0.5,mV", "Cz,,3,nV", "Pz,,1e-6,V")),
        accepted("greek-mu", with_channels("Fz,,0.5,μV", "Cz,,0.5,uV")),
        accepted("coordinates-damaged", Triplet(extra="[Coordinates]\nCh1=1,here,0\n")),  # not read
        Case(
            "bv-common-infos-of-neurone",
            _text(Triplet().header().replace("[Common Infos]", "[Common infos]")),
            "ok",
            samples=Triplet().decoded(),
        ),
        Case("bv-folder-with-a-line-break", _below_a_line_break, "ok", samples=Triplet().decoded()),
        accepted("base-name", with_common(DataFile="$b.eeg", MarkerFile="$b.vmrk")),
        accepted("no-marker-file", Triplet(common={"MarkerFile": None}, markers=None)),
        accepted("data-points-agree", with_common(DataPoints="400", DataType="TIMEDOMAIN")),
        accepted("a-signal-longer-than-one-block", replace(Triplet(), n_samples=20_000)),
    ]


def warned() -> list[Case]:
    overlapping, backwards = (PAUSE.replace("20200102030505000000", date) for date in
                              ("20200102030405300000", "20190102030505000000"))  # fmt: skip
    twice = ("gaps", "header-inconsistent")
    segmented = with_common(SegmentationType="MARKERBASED", SegmentDataPoints="100")
    return [
        accepted("blank-unit", with_channels("Fz,,0.5,", "Cz,,0.5"), "blank-unit"),
        accepted("unit-of-temperature", with_channels("Fz,,0.5,µV", "T,,0.1,C"), "unknown-unit"),
        accepted("two-names-alike", with_channels("Fz,,0.5,µV", "Fz,,1,µV"), "duplicate-channel"),
        accepted("no-name", with_channels("Fz,,0.5,µV", ",,1,µV"), "nameless-channel"),
        accepted("last-frame-torn", Triplet(cut=3), "data-truncated", n_samples=399),
        accepted("fewer-points-than-declared", with_common(DataPoints="500"), "data-truncated"),
        accepted("more-points-than-declared", with_common(DataPoints="300"), "header-inconsistent"),
        accepted("marker-file-missing", Triplet(markers=None), "sidecar-missing"),
        marked("marker-after-the-end", "Stimulus,S  1,401,1,0", codes=["events-outside"], starts=(0.0,)),
        marked("a-pause", PAUSE),
        marked("a-pause-without-a-date", "New Segment,,201,1,0", starts=(0.0, 0.4)),
        marked("a-pause-undated-after-one-dated", PAUSE, "New Segment,,301,1,0", starts=(0.0, 60.0, 60.2)),
        marked("a-pause-that-overlaps", overlapping, codes=twice, starts=(0.0, 0.4)),
        marked("a-pause-without-a-marker-line", PAUSE, MarkerFile=None),
        marked("a-pause-in-a-marker-file-of-another-name", PAUSE, codes=twice, MarkerFile="before.vmrk"),
        marked("a-pause-in-small-letters", PAUSE.replace("Segment", "segment")),
        marked("a-pause-back-in-time", backwards, codes=twice, starts=(0.0, 0.4)),
        accepted("epochs", segmented, "gaps", starts=(0.0, 0.2, 0.4, 0.6)),
        accepted("says-utf-8-is-latin-1", Triplet(encoding="latin-1"), "non-ascii"),
        accepted(
            "vectorized-with-a-tail",
            Triplet(common={"DataOrientation": "VECTORIZED", "DataPoints": "400"}, tail=b"\0"),
            "data-longer",
        ),
    ]


def damaged_headers() -> list[Case]:
    twice = Triplet(extra="[Common Infos]\nNumberOfChannels=2\n")
    channel_twice = Triplet(extra="").header().replace("Ch2=", "Ch1=")
    of_a_field = {
        ("SamplingInterval", "bad-rate"): (
            "0",
            "-2000",
            "NaN",
            "inf",
            "fast",
            "1e-300",
            "1e300",
            "2_000",
            "",
        ),
        ("SamplingInterval", "header-damaged"): (None,),
        ("NumberOfChannels", "header-damaged"): (None, "4", "2", "0", "-3", "3.0"),
        ("Codepage", "header-damaged"): ("zlib_codec", "utf-7"),
        ("DataFile", "header-damaged"): (None, "a.eeg\0.txt", "", "a\x1f.eeg"),
        ("DataFile", "not-readable"): ("x" * 5000,),
        ("DataFormat", "header-damaged"): (None, "binary"),
        ("DataFormat", "not-supported"): ("ASCII",),
        ("DataOrientation", "header-damaged"): (None, "multiplexed"),
        ("DataPoints", "header-damaged"): ("many",),
        ("DataType", "not-supported"): ("FREQUENCYDOMAIN",),
        ("Compressed", "not-supported"): ("1",),
    }
    cases = [
        refused(f"{field_name}-{code}-{place}", with_common(**{field_name: text}), code)
        for (field_name, code), texts in of_a_field.items()
        for place, text in enumerate(texts)
    ]
    for text in ("0", "nan", "1e999", "-0.5", "half"):
        cases.append(refused(f"resolution-{text}", with_channels(f"Fz,,{text},µV", "Cz,,1,µV"), "bad-range"))
    return [
        *cases,
        refused("magic-of-another-format", Triplet(first_line="0       EDF"), "not-this-format"),
        refused("version-3", Triplet(first_line=MAGIC.replace("1.0", "3.0")), "not-supported"),
        refused("utf-16", Triplet(encoding="utf-16"), "not-this-format"),
        refused("empty-header", _text(""), "not-this-format"),
        refused("first-line-only", _text(MAGIC + "\n"), "header-damaged"),
        refused("old-mac-lines", _text(Triplet(newline="\r").header()), "header-damaged"),
        refused("common-infos-in-two-spellings", Triplet(extra="[Common infos]\nx=1\n"), "header-damaged"),
        refused("comment-twice", Triplet(extra="[Comment]\nx\n"), "header-damaged"),
        refused("channel-field-unknown", _text(Triplet().header().replace("Ch3=", "C3=")), "header-damaged"),
        refused("header-an-annex-pointer", _text("/annex/objects/MD5E-s24--0.vhdr\n"), "not-found"),
        refused("common-infos-twice", twice, "header-damaged"),
        refused("channel-line-twice", _text(channel_twice), "header-damaged"),
        refused("line-that-is-no-field", Triplet(extra="[Coordinates]\nnonsense\n"), "header-damaged"),
        refused("no-channel-lines", Triplet(channels=None), "header-damaged"),
        refused("channel-zero", _text(Triplet().header().replace("Ch3=", "Ch0=")), "header-damaged"),
        refused("channel-lacks-a-comma", with_channels("Fz,,0.5,µV", "Cz,0.5"), "header-damaged"),
        refused("channel-of-two-lines", with_channels("Fz,,0.5,µV\n  x", "Cz,,1,µV"), "header-damaged"),
        refused("format-unknown", Triplet(binary={"BinaryFormat": "IEEE_FLOAT_64"}), "not-supported"),
        refused("format-unsigned", Triplet(binary={"BinaryFormat": "UINT_16"}), "not-supported"),
        refused("format-missing", Triplet(binary={"BinaryFormat": None}), "header-damaged"),
        refused("big-endian", Triplet(binary={"UseBigEndianOrder": "YES"}), "not-supported"),
        refused("data-offset", Triplet(binary={"DataOffset": "1024"}), "not-supported"),
        refused("marker-line-damaged", Triplet(markers=(NEW_SEGMENT, "Stimulus")), "sidecar-damaged"),
    ]


def damaged_data() -> list[Case]:
    vectorized = Triplet(common={"DataOrientation": "VECTORIZED"}, cut=1)
    return [
        refused("data-empty", Triplet(n_samples=0), "no-data"),
        refused("data-less-than-a-frame", Triplet(n_samples=1, cut=2), "no-data"),
        refused("vectorized-torn", vectorized, "data-missing"),
        refused("renamed-triplet", with_common(DataFile="before.eeg"), "not-found"),
        refused("data-is-a-folder", _data_replaced(lambda path: path.mkdir()), "not-readable"),
        refused("data-is-a-pipe", _data_replaced(os.mkfifo), "not-readable"),
        refused("data-not-downloaded", _data_replaced(annex_link), "not-found"),
        refused("data-an-annex-pointer", damaged(Triplet().write, annex_pointer(".eeg")), "not-found"),
    ]


def bombs() -> list[Case]:
    many = tuple(f"c{place},,1,µV" for place in range(60_000))
    padding = "[Padding]\n"
    epochs = {"SegmentationType": "FIXTIME", "SegmentDataPoints": "1"}
    vectorized = with_common(DataOrientation="VECTORIZED", DataPoints="99999999999")
    segments = [f"New Segment,,{k},1,0" for k in range(1, 2502)]
    every_sample = Triplet(common=epochs, channels=("a,,1,µV",), n_samples=4_000_000)
    return [
        bomb("channels-declared", with_common(NumberOfChannels="999999999")),
        bomb("channels-described", Triplet(channels=many, n_samples=1)),
        bomb("header", Triplet(extra=padding + "x=1\n" * 2_000_000)),
        bomb("one-line", Triplet(extra=f"{padding}x=" + "y" * 9_000_000)),
        bomb("segments", every_sample, "too-many-pieces"),
        bomb("new-segments", Triplet(markers=segments, n_samples=3000), "too-many-pieces"),
        bomb("markers", Triplet(markers=("Stimulus,S  1,1,1,0",) * 350_000), "too-large"),
        bomb("points", vectorized, "data-missing"),
    ]


def escapes() -> list[Case]:
    pointers = {
        "parent": "../secret.bin",
        "far-up": "../../../../../../../../etc/passwd",
        "absolute": "/etc/passwd",
        "into-and-out": "sub/../../secret.bin",
        "backslashes": "..\\..\\secret.bin",
        "drive": "C:\\data\\secret.bin",
        "drive-relative": "C:secret.bin",
        "network": "\\\\server\\share\\secret.bin",
        "address": "http://127.0.0.1/secret.bin",
        "file-address": "file:///etc/passwd",
    }
    return [
        *(escape(f"data-{name}", with_common(DataFile=pointer)) for name, pointer in pointers.items()),
        *(
            escape(f"marker-{name}", with_common(MarkerFile=pointers[name]))
            for name in ("parent", "absolute")
        ),
        escape("data-link", Triplet(), "a.eeg"),
        escape("marker-link", Triplet(), "a.vmrk"),
        escape("marker-that-is-not-named", with_common(MarkerFile=None), "a.vmrk"),
        escape("marker-of-the-same-name", with_common(MarkerFile="gone.vmrk"), "a.vmrk"),
        escape("header-link", Triplet(), "a.vhdr"),
    ]


def _text(header: str) -> Write:
    """A triplet with this header."""
    return damaged(Triplet().write, content(header.encode()))


def _data_replaced(make: Callable[[Path], Any]) -> Write:
    """A triplet whose data file is something else."""
    return damaged(Triplet().write, replaced(".eeg", make))


def _below_a_line_break(folder: Path) -> Path:
    (folder / "a\nb").mkdir()
    return Triplet().write(folder / "a\nb")
