"""Header of a BrainVision recording, compared with its data and marker files.

    .vhdr + .eeg + .vmrk -> problems, or BrainVisionHeader

The header is read by MNE's rules, then checked for what MNE does not look at: pointers out of the folder, the
length of the data, and flags that would change the samples (byte order, offsets, frequency domain).
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from raxss.data.confinement import open_confined
from raxss.data.formats.brainvision.markers import Marker, read_markers
from raxss.data.formats.fields import (
    Refused,
    channel_problems,
    described,
    follow,
    header_bytes,
    number,
    problem,
    refuse_many_segments,
    refuse_no_text,
    refuse_rate,
    whole,
)
from raxss.data.problems import Problem

MOST_CHANNELS = 4096
MAGIC = re.compile(rb"Brain ?Vision( Core| V-Amp)? Data( Exchange)? Header File,? Version (\d+)\.\d+")
SAMPLE_TYPES = {"INT_16": "<i2", "INT_32": "<i4", "IEEE_FLOAT_32": "<f4"}
ORIENTATIONS = ("MULTIPLEXED", "VECTORIZED")
CODEPAGES = re.compile(r"(?i)utf-?8|us-ascii|ascii|ansi|latin-?1|iso-?8859-\d{1,2}|(cp|windows-?)125\d")
OFFSETS = ("channeloffset", "dataoffset", "segmentheadersize", "trailersize")
CHANNEL_KEY = re.compile(r"ch(\d{1,9})", re.ASCII)
SEGMENTATIONS = ("NOTSEGMENTED", "MARKERBASED", "FIXTIME")
FAULTS: dict[type[configparser.Error], str] = {  # without the text that the error quotes
    configparser.DuplicateSectionError: "a section stands there twice",
    configparser.DuplicateOptionError: "a field stands there twice",
    configparser.MissingSectionHeaderError: "text before the first section",
}
# No data file has one of these endings: such a DataFile names another part of this or of another recording.
NOT_DATA = (
    *(".vhdr", ".vmrk", ".ahdr", ".amrk", ".edf", ".bdf", ".hea", ".set", ".fif", ".npy", ".npz", ".mat"),
    *(".csv", ".tsv", ".json", ".txt", ".xlsx"),
)

Fields = Mapping[str, str]


@dataclass(frozen=True)
class BrainVisionHeader:
    """What a BrainVision header states, checked.

    ``segment_starts`` are the first samples of stretches without a gap, ``segment_seconds`` when they began: both
    from the markers "New Segment". A stretch without a date follows the one before.
    """

    data_file: Path
    marker_file: Path | None
    rate: float
    binary_format: str
    orientation: str
    names: tuple[str, ...]
    resolutions: tuple[float, ...]
    units: tuple[str, ...]  # as written; a blank one is microvolts, as the format has it
    n_samples: int  # a channel, from the size of the data file; only whole frames count
    segment_starts: tuple[int, ...] = (0,)
    segment_seconds: tuple[float, ...] = (0.0,)


def examine(path: Path, root: Path, problems: list[Problem]) -> BrainVisionHeader:
    """The header of a recording, given by its .vhdr file; what is wrong is added to ``problems``."""
    sections = _sections_of(_text_of(path, root, problems))
    common = _common_infos(sections)
    n_channels, rate, orientation = _layout(common)
    binary_format = _binary_format(common, sections.get("Binary Infos", {}))
    names, resolutions, units = _channel_infos(sections.get("Channel Infos", {}), n_channels, problems)
    data_file = _data_file(common, path, root)
    frame_bytes = n_channels * np.dtype(SAMPLE_TYPES[binary_format]).itemsize
    n_samples = _n_samples(data_file, frame_bytes, orientation, common, problems)
    marker_file = _marker_file(common, path, root, problems)
    markers = [] if marker_file is None else read_markers(marker_file, root, data_file, n_samples, problems)
    starts, seconds = _segments_of(markers, n_samples, rate, common, problems)
    layout = (rate, binary_format, orientation, names, resolutions, units)
    return BrainVisionHeader(data_file, marker_file, *layout, n_samples, starts, seconds)


def _text_of(path: Path, root: Path, problems: list[Problem]) -> str:
    """All below the first line, decoded as MNE decodes it: by its code page, else UTF-8, else Latin-1."""
    content = header_bytes(path, root)
    first, _, content_below = content.partition(b"\n")
    magic = MAGIC.search(first[:200])
    if magic is None:
        needed = "'Brain Vision Data Exchange Header File Version 1.0'"
        raise Refused("not-this-format", f"the first line is not that of a BrainVision header ({needed})")
    if magic[3] not in (b"1", b"2"):
        found = f"the header is of version {described(magic[3].decode())}"
        raise Refused("not-supported", f"{found}; 1 and 2 are supported. Export it as version 2.")
    refuse_no_text(content)
    codepage = re.search(r"Codepage=(.+)", content_below.decode("ascii", "ignore"))
    encoding = codepage[1].strip() if codepage else "utf-8"
    unknown = Refused("header-damaged", "Codepage is not one that is known; UTF-8 is needed")
    if not CODEPAGES.fullmatch(encoding):
        raise unknown
    encoding = "cp1252" if encoding.upper() == "ANSI" else encoding
    try:
        return content_below.decode(encoding)
    except LookupError:
        raise unknown from None
    except UnicodeDecodeError:
        if codepage:
            message = "the header is not in the code page that it names; it is taken as Latin-1."
            problems.append(Problem("non-ascii", message))
        return content_below.decode("latin-1")


def _sections_of(text: str) -> Mapping[str, Fields]:
    """Section -> its fields, in small letters. What comes after [Comment] is free text and is not looked at."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        if text.count("[Comment]") > 1:
            raise configparser.Error("more than one section [Comment]")
        parser.read_string(text.partition("[Comment]")[0])
        sections = {name: dict(parser.items(name)) for name in parser.sections()}
    except configparser.Error as error:
        line = getattr(error, "lineno", None)
        where = f"in line {line + 1} " if isinstance(line, int) else ""
        fault = FAULTS.get(type(error), "a line that is no field")
        found = f"the header cannot be understood {where}({fault})"
        raise Refused("header-damaged", f"{found}; sections of lines 'Field=value' are needed") from None
    if "Common infos" in sections:  # NeurOne writes it so, and MNE knows
        if "Common Infos" in sections:
            raise Refused("header-damaged", "the header has two sections of common infos; one is needed")
        sections["Common Infos"] = sections.pop("Common infos")
    return sections


def _common_infos(sections: Mapping[str, Fields]) -> Fields:
    if "Common Infos" not in sections:
        raise Refused("header-damaged", "there is no section [Common Infos]; it is cut off or no header")
    common = sections["Common Infos"]
    if common.get("datatype", "").strip().upper() not in ("", "TIMEDOMAIN"):
        raise Refused("not-supported", "DataType is not TIMEDOMAIN, which is needed. Export it so.")
    compressed = [name for name in common if "compress" in name]
    if any(common[name].strip().upper() not in ("", "0", "NO", "FALSE", "NONE") for name in compressed):
        raise Refused("not-supported", "by the header the data is compressed. Export it as plain binary.")
    return common


def _layout(common: Fields) -> tuple[int, float, str]:
    """Number of channels, rate, and orientation."""
    n_channels = whole(_needed(common, "NumberOfChannels"))
    if not n_channels or n_channels > MOST_CHANNELS:
        found = f"NumberOfChannels is {described(common['numberofchannels'])}"
        raise Refused("header-damaged", f"{found}; a whole number from 1 to {MOST_CHANNELS} is needed")
    interval = number(_needed(common, "SamplingInterval"))
    rate = 1e6 / interval if interval else None
    refuse_rate(rate, f"a SamplingInterval of {described(common['samplinginterval'])} microseconds")
    assert rate is not None
    orientation = _needed(common, "DataOrientation")
    if orientation not in ORIENTATIONS:
        raise Refused("header-damaged", f"DataOrientation is neither {' nor '.join(ORIENTATIONS)}")
    return n_channels, rate, orientation


def _needed(common: Fields, field: str) -> str:
    if field.lower() not in common:
        raise Refused("header-damaged", f"[Common Infos] has no {field}, which is needed")
    return common[field.lower()]


def _binary_format(common: Fields, binary: Fields) -> str:
    data_format = _needed(common, "DataFormat")
    if data_format == "ASCII":
        found = "DataFormat is ASCII, whose decimal signs and columns are ambiguous"
        raise Refused("not-supported", f"{found}. Export the recording as BINARY.")
    if data_format != "BINARY":
        raise Refused("header-damaged", "DataFormat is neither BINARY nor ASCII; BINARY is needed")
    binary_format = binary.get("binaryformat", "")
    if binary_format not in SAMPLE_TYPES:
        is_known = re.fullmatch(r"U?INT_\d+|IEEE_FLOAT_\d+", binary_format) is not None
        found = binary_format if is_known else "not one that is known"
        needed = f"one of {', '.join(SAMPLE_TYPES)} is needed"
        raise Refused("not-supported" if is_known else "header-damaged", f"BinaryFormat is {found}; {needed}")
    if binary.get("usebigendianorder", "NO").strip().upper() not in ("", "NO", "0", "FALSE"):
        raise Refused("not-supported", "UseBigEndianOrder is set; little-endian is needed. Export it so.")
    for field in OFFSETS:
        if whole(binary.get(field, "0") or "0") != 0:
            found = f"[Binary Infos] has {field} = {described(binary[field])}"
            raise Refused("not-supported", f"{found}, which is not skipped; 0 is needed")
    return binary_format


def _channel_infos(
    infos: Fields, n_channels: int, problems: list[Problem]
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[str, ...]]:
    """Names, resolutions and units, in the order of the data."""
    lines: dict[int, str] = {}
    for key, value in infos.items():
        match = CHANNEL_KEY.fullmatch(key)
        if match is None:
            raise Refused("header-damaged", "[Channel Infos] has a field that is not Ch1, Ch2 and so on")
        lines[int(match[1])] = value
    if len(lines) != len(infos) or sorted(lines) != list(range(1, n_channels + 1)):
        found = f"[Channel Infos] has {len(infos)} lines, which are not Ch1 to Ch{n_channels}, each once"
        raise Refused("header-damaged", f"{found}; which samples belong to which channel is not certain")
    names, resolutions, units = [], [], []
    for position in range(1, n_channels + 1):
        if "\n" in lines[position]:
            raise Refused("header-damaged", f"Ch{position} runs over several lines; one is needed")
        fields = [*lines[position].split(","), ""]
        if len(fields) < 4:
            needed = "name, reference, resolution and unit are needed"
            raise Refused("header-damaged", f"Ch{position} lacks fields; {needed}")
        resolution = number(fields[2]) if fields[2].strip() else 1.0
        if resolution is None or not 1e-15 <= resolution <= 1e15:
            found = f"Ch{position} has the resolution {described(fields[2])}"
            raise Refused("bad-range", f"{found}; a number above 0, or nothing for 1, is needed")
        names.append(fields[0].replace(r"\1", ","))
        resolutions.append(resolution)
        units.append(fields[3].replace("\xc2", "") if fields[3].isprintable() else "?")
    problems += channel_problems(names, units, blank="They are in microvolts, as the format has it.")
    return tuple(names), tuple(resolutions), tuple(units)


def _data_file(common: Fields, path: Path, root: Path) -> Path:
    name = _needed(common, "DataFile").replace("$b", path.stem)  # the header's name without its ending
    found_file = follow(name, path.parent, root, "DataFile")
    with open_confined(found_file, root) as file:
        is_text = re.match(rb"(\xef\xbb\xbf)?Brain ?Vision", file.read(32)) is not None
    if is_text or found_file.suffix.lower() in NOT_DATA or found_file.samefile(path):
        found = "DataFile names a header, a marker file or a file of another format, not the samples"
        raise Refused("header-damaged", f"{found}. Write the name of the .eeg file into the header.")
    return found_file


def _n_samples(
    data_file: Path, frame_bytes: int, orientation: str, common: Fields, problems: list[Problem]
) -> int:
    """Whole frames in the data file, held against DataPoints where the header has it."""
    size = data_file.stat().st_size
    n_samples, rest = divmod(size, frame_bytes)
    declared_text = common.get("datapoints", "").strip()
    declared = whole(declared_text)
    if declared_text and declared is None:
        raise Refused("header-damaged", f"DataPoints is {described(declared_text)}; a whole number is needed")
    if n_samples == 0:
        found = f"the data file has {size:,} bytes"
        raise Refused("no-data", f"{found}, and one sample of all channels {frame_bytes:,}")
    if orientation == "VECTORIZED" and (n_samples != declared if declared_text else rest):
        found = f"the data file has {size:,} bytes, {n_samples:,} samples a channel and {rest} more"
        needed = f"DataPoints is {declared_text or 'not given'}; one channel is stored after the other"
        raise Refused("data-missing", f"{found}, and {needed}, so none is where it should be")
    if orientation == "VECTORIZED" and not declared_text:
        # a file that was cut may still divide by the number of channels, and the second begin within the first
        found = "DataOrientation is VECTORIZED without DataPoints; where channels begin is not certain"
        to_do = f"If all is there, write DataPoints={n_samples} into [Common Infos]; or export it again."
        raise Refused("not-supported", f"{found}. {to_do}")
    message = f"DataPoints is {declared or 0:,}, and the data file has {n_samples:,} samples a channel"
    if declared and declared > n_samples:
        problems.append(problem("data-truncated", f"{message}; these are read"))
    elif rest and orientation == "MULTIPLEXED":
        end = f"the data file ends {rest} bytes after its last whole frame, and a frame has {frame_bytes}"
        problems.append(problem("data-truncated", f"{end}; what is whole is read"))
    elif rest:
        end = f"the data file has {rest} bytes too many, which are not read."
        problems.append(Problem("data-longer", end))
    if declared is not None and declared < n_samples:
        message = f"{message}; the file counts. Check which one is right."
        problems.append(Problem("header-inconsistent", message))
    return n_samples


def _marker_file(common: Fields, path: Path, root: Path, problems: list[Problem]) -> Path | None:
    """The one that the header names, or else the one beside it."""
    named, beside = common.get("markerfile", "").replace("$b", path.stem), f"{path.stem}.vmrk"
    for name in filter(None, dict.fromkeys((named, beside))):
        try:
            found = follow(name, path.parent, root, "MarkerFile")
        except Refused as refused:
            if refused.problem.code != "not-found":
                raise
            continue
        if named and name != named:
            message = "the marker file that the header names is missing; the one named as the header is used."
            problems.append(Problem("header-inconsistent", message))
        return found
    if named:
        message = "the marker file is missing; whether the recording has gaps is not known"
        problems.append(Problem("sidecar-missing", f"{message}. Copy the .vmrk file beside the header."))
    return None


def _segments_of(
    markers: Sequence[Marker], n_samples: int, rate: float, common: Fields, problems: list[Problem]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Where each stretch begins: sample, and seconds after the first."""
    dates = {
        marker.position - 1: marker.date
        for marker in markers
        if marker.begins_segment and 1 <= marker.position <= n_samples
    }
    every = _samples_in_a_segment(common, n_samples, problems, is_marked=len(dates) > 1)
    refuse_many_segments(-(-n_samples // every))
    for start in range(0, n_samples, every):
        dates.setdefault(start, None)
    starts = tuple(sorted(dates))
    refuse_many_segments(len(starts))
    seconds, n_unknown, n_early = _times_of(starts, dates, rate)
    if len(starts) > 1:
        message = f"the recording was interrupted {len(starts) - 1} times; each stretch is a segment."
        if n_unknown:
            message += f" When {n_unknown} of them began is not known; they follow the one before."
        problems.append(Problem("gaps", message))
    if n_early:
        message = f"by the dates of their markers {n_early} segments begin before the one before is over"
        problems.append(Problem("header-inconsistent", f"{message}; these dates are not used."))
    return starts, seconds


def _samples_in_a_segment(common: Fields, n_samples: int, problems: list[Problem], *, is_marked: bool) -> int:
    """Samples in each epoch of a recording that was cut into epochs; all of one that was not."""
    kind, text = (common.get(field, "").strip() for field in ("segmentationtype", "segmentdatapoints"))
    every = whole(text)
    if kind.upper() not in ("", *SEGMENTATIONS) or (text and every is None):
        found = f"SegmentationType is not known, or SegmentDataPoints is no whole number ({described(text)})"
        raise Refused("header-damaged", f"{found}; where epochs begin is not certain")
    is_cut = kind.upper() not in ("", "NOTSEGMENTED")
    if not is_cut and every and every != n_samples:
        message = f"SegmentDataPoints is {every:,}, and SegmentationType does not say that there are segments"
        problems.append(Problem("header-inconsistent", f"{message}; the recording is read in one piece."))
    if is_cut and not every and not is_marked:
        found = "SegmentationType states segments, and neither SegmentDataPoints nor markers say where"
        raise Refused("header-damaged", f"{found}. Add SegmentDataPoints to the header, or export it again.")
    if is_cut and every and n_samples % every:
        found = f"segments have {every:,} samples, and the last one {n_samples % every:,}"
        problems.append(problem("data-truncated", f"{found}; it is read as it is"))
    return every if is_cut and every else n_samples


def _times_of(
    starts: tuple[int, ...], dates: Mapping[int, datetime | None], rate: float
) -> tuple[tuple[float, ...], int, int]:
    """When each stretch began, never before the last was over; how many have no date, and too early a one."""
    known: tuple[datetime, float] | None = None  # the last date, and the seconds that it stands for
    seconds, n_unknown, n_early, before = [0.0], 0, 0, 0
    for start in starts:
        end = seconds[-1] + (start - before) / rate
        date, begun = dates[start], end
        if date is not None and known is not None:
            begun = known[1] + (date - known[0]).total_seconds()
        elif start:
            n_unknown += 1
        is_early = begun < end - 1 / rate
        n_early += is_early
        if start:
            seconds.append(max(begun, end))
        if date is not None and not is_early:
            known = date, seconds[-1]
        before = start
    return tuple(seconds), n_unknown, n_early
