"""Reading of recording files and CSV manifests as series.

    recording files, CSV manifests -> SeriesCollection

Errors name the file as the reader wrote it, never the folders of this machine.
Next: datasets/ has collections by name; prepare/preprocessing.py makes samples ready.
"""

from __future__ import annotations

import io
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from raxss._core import bounded
from raxss.data.confinement import open_confined, root_of
from raxss.data.formats.csv_tables import LINE_BYTES
from raxss.data.formats.opening import is_channelwise, open_recording
from raxss.data.formats.registry import all_suffixes, header_of
from raxss.data.plan import SeriesPlan, read_planned
from raxss.data.recording import Recording
from raxss.data.selection import select_channels
from raxss.data.series import Series, SeriesCollection
from raxss.data.tables import MalformedCsvError, cells_of, records
from raxss.errors import (
    EmptyDataError,
    LabelError,
    RAxSSWarning,
    RecordingError,
    did_you_mean,
    display_name,
    join_names,
)

ORIGIN_COLUMNS = ("centre", "patient", "recording", "electrode", "pair")
MAX_MANIFEST_BYTES, MAX_MANIFEST_ROWS = 2**26, 200_000
COLUMNS = ("path", "label", "group", "rate", "channel", *ORIGIN_COLUMNS)


def position_of(recording: Recording, channel: str | int) -> int:
    """Where a channel is, given by its name or its position, which may be written as text."""
    named = any(item.name == channel for item in recording.channels)
    return recording.position(int(channel) if not named and str(channel).isdecimal() else channel)


def channel_name(recording: Recording, position: int) -> str:
    """A channel's name; where it is not its alone, or empty, with its position: ``C3``, ``C4#1``, ``#2``."""
    name = recording.channels[position].name
    n_equal = sum(channel.name == name for channel in recording.channels)
    return name if name and n_equal == 1 else f"{name}#{position}"


def plans_of(
    recording: Recording, position: int | None, name: str, *, called: str | int | None = None
) -> list[SeriesPlan]:
    """One series for each stretch of a channel, or of all channels side by side where none is given.

    ``called``: how the channel is called, if not by its own name.
    """
    origin, whole_name, positions = {"recording": name}, name, tuple(range(len(recording.channels)))
    if position is not None:
        channel = channel_name(recording, position) if called is None else printable(str(called))
        origin["channel"], whole_name, positions = channel, f"{name}:{channel}", (position,)
    return [
        SeriesPlan(
            whole_name + (f"@{segment.start_seconds:.10g}s" if number else ""),
            positions,
            segment=number,
            origin=origin,
        )
        for number, segment in enumerate(recording.segments)
    ]


def refuse_other_rate(path: Path, requested: float | None, stored: float | None) -> None:
    """Raise if a rate given beside a recording is not the one stored in it."""
    if requested is not None and stored is not None and not math.isclose(requested, stored):
        raise RecordingError(
            f"recording {display_name(path)} says {stored:g} Hz itself, and {requested:g} Hz was asked for. Leave "
            "the rate out; to change it, resample the recording."
        )


def read_manifest(path: Path | str, *, labels_required: bool = True) -> SeriesCollection:
    """Read the recordings that a CSV lists: columns ``path, label, group``, perhaps ``rate, channel``.

    Paths are relative to the manifest's folder. A group says what must not be in training and test at once; it
    may be empty, in every line or in none. Without ``labels_required`` (for prediction) labels may be absent.
    Columns ``centre, patient, recording, electrode, pair`` say where a series comes from; without a column
    ``group`` the patient is the group. A channel with gaps becomes one series for each stretch between them.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.savez(folder / "a.npz", samples=np.zeros((2, 600)), rate=100.0)
    >>> _ = (folder / "all.csv").write_text("path,label,group,channel\\na.npz,ill,p1,0\\na.npz,well,p1,1\\n")
    >>> read_manifest(folder / "all.csv").names
    ['a:0', 'a:1']
    """
    return read_lines(lines_of(Path(path), labels_required=labels_required))


def read_inputs(
    paths: Iterable[Path | str],
    *,
    rate: float | None = None,
    channel: str | int | None = None,
    labels_required: bool = False,
) -> SeriesCollection:
    """Read recordings, manifests (CSV with a ``path`` column), or both.

    ``rate`` is for files that store none, and for lines of a manifest that have none in a column of their own;
    ``channel`` is for recordings, a manifest has a column for it. Recordings of the same name get as many folders
    in front of it as make them distinct. A ``.npz``, ``.npy``, ``.csv`` or WFDB record is one series, of all its
    variates. Of EDF, BDF and BrainVision files each channel is one, in microvolts: those that a BIDS tree would
    have, by the ``channels.tsv`` that applies to the file, without bad channels and what is no electrode, or by
    their names where there is none. What has gaps becomes one series for each stretch between them.

    >>> import tempfile, numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "night.npz"
    >>> np.savez(path, samples=np.zeros((2, 600)), rate=100.0, channels=["C3", "C4"])
    >>> read_inputs([path])[0]
    Series('night', 2 variates, 600 samples at 100 Hz = 6 s)
    >>> read_inputs([path], channel="C4").names
    ['night:C4']
    """
    return read_lines(lines_of_inputs(paths, rate=rate, channel=channel, labels_required=labels_required))


def lines_of_inputs(
    paths: Iterable[Path | str],
    *,
    rate: float | None = None,
    channel: str | int | None = None,
    labels_required: bool = False,
) -> list[Line]:
    """Lines of what `read_inputs` reads, each once; no recording is opened."""
    by_input = [
        [
            line if line.rate is not None else replace(line, rate=rate)
            for line in lines_of(path, labels_required=labels_required)
        ]
        if _is_manifest(path)
        else [Line(path, written=str(path), where=display_name(path), rate=rate, channel=channel)]
        for path in map(Path, paths)
    ]
    if not by_input:
        raise EmptyDataError("no input was given; name at least one recording or manifest.")
    lines = [line for some in by_input for line in some]
    if repeat := _first_repeat(lines):
        inputs = [number for number, some in enumerate(by_input, start=1) for _ in some]
        first, again = (f"input {inputs[place]} ({lines[place].where})" for place in repeat)
        raise RecordingError(
            f"the same series is given twice, by {first} and by {again}; once is needed. Remove one of them."
        )
    return lines


@dataclass(frozen=True, slots=True)
class Line:
    """Request for one series, by a line of a manifest or directly."""

    path: Path  # from the current folder
    written: str  # from the manifest's folder, or as path
    where: str  # it was requested
    number: int = 0  # of the line in its manifest; 0 if requested directly
    label: str | None = None
    group: str | None = None
    rate: float | None = None
    channel: str | int | None = None
    origin: Mapping[str, str] = field(default_factory=dict)

    @property
    def called(self) -> str:
        """The recording as written, and its channel."""
        return self.written if self.channel is None else f"{self.written}:{self.channel}"


def read_lines(lines: list[Line], names: Mapping[str, str] | None = None) -> SeriesCollection:
    """Read every line's series.

    ``names``: `distinct_names` of all lines, where these are some of them.
    """
    names = distinct_names(lines) if names is None else names
    series: dict[str, Series] = {}
    # lines about one file usually follow each other, and it is inspected once
    for (path, rate), group in groupby(lines, key=lambda line: (line.path, line.rate)):
        some = list(group)
        line = some[0]
        try:
            with open_recording(path, rate=rate) as recording:
                for line in some:
                    for plan in requested_plans(line, names[os.path.abspath(path)], recording):
                        # a channel by name and by position, or one of a file that is given whole
                        if plan.name in series:
                            raise RecordingError(
                                f"the series {display_name(plan.name)} is given twice; once is needed. Remove one."
                            )
                        found = read_planned(recording, plan)
                        origin = {**found.origin, **line.origin}
                        series[plan.name] = replace(found, label=line.label, group=line.group, origin=origin)
        except RecordingError as error:
            if not line.number:
                raise
            raise RecordingError(f"{line.where}: {error}") from error
    return SeriesCollection(series.values())


def requested_plans(line: Line, name: str, recording: Recording) -> list[SeriesPlan]:
    """The channel that a line names; or all of them, of EDF, BDF and BrainVision one by one, else side by side."""
    if line.channel is not None:
        position = position_of(recording, line.channel)
        refuse_other_rate(line.path, line.rate, recording.channels[position].rate)
        # a channel of EDF, BDF and BrainVision has one name, however it was requested
        return plans_of(recording, position, name, called=None if is_channelwise(line.path) else line.channel)
    for item in recording.channels:
        refuse_other_rate(line.path, line.rate, item.rate)
    if not is_channelwise(line.path):
        return plans_of(recording, None, name)
    if line.number and len(recording.channels) > 1:
        raise RecordingError(
            f"recording {display_name(line.path)} has {len(recording.channels)} channels, each of which is a "
            "series; say which one in a column 'channel', one line for each."
        )
    positions = _electrodes(line.path, recording)
    return [plan for position in positions for plan in plans_of(recording, position, name)]


def _electrodes(path: Path, recording: Recording) -> Sequence[int]:
    """The channels of a file of which none was named; warns of what was left out without a table saying so."""
    if not is_channelwise(path):
        return range(len(recording.channels))
    positions, sentences = select_channels(path, recording)
    if sentences:
        warnings.warn(" ".join(sentences), RAxSSWarning, stacklevel=4)
    return positions


def _first_repeat(lines: list[Line]) -> tuple[int, int] | None:
    """Positions of the first series that is requested twice, however its path is spelled."""
    seen: dict[tuple[str, str], int] = {}
    for place, line in enumerate(lines):
        try:
            key = os.path.realpath(header_of(line.path)), str(line.channel)
        except (OSError, ValueError):  # reading it reports what is wrong
            continue
        if (first := seen.setdefault(key, place)) != place:
            return first, place
    return None


def lines_of(path: Path, *, labels_required: bool) -> list[Line]:
    """The series of a manifest, all of which are there, each once."""
    lines = _manifest_lines(path, labels_required=labels_required)
    _refuse_missing(path, lines)
    if repeat := _first_repeat(lines):
        first, again = (lines[place] for place in repeat)
        spelled = "" if first.written == again.written else f" (there as {display_name(again.written)})"
        raise RecordingError(
            f"manifest {display_name(path)} lists {display_name(first.called)} in "
            f"lines {first.number} and {again.number}{spelled}; each series once is needed. Remove one of them."
        )
    return lines


def _manifest_lines(path: Path, *, labels_required: bool) -> list[Line]:
    """Lines of a manifest, checked before any recording is opened."""
    what = f"manifest {display_name(path)}"
    rows = _rows(path, what)
    header = [cell.strip() for cell in next(rows, (0, []))[1]]
    _check_header(header, what, labels_required=labels_required)
    lines: list[Line] = []
    for number, row in rows:
        if len(row) != len(header):
            raise RecordingError(
                f"{what} has {len(row)} values in line {number} and {len(header)} columns "
                f"({', '.join(header)}); one value per column is needed. Put quotes around values with commas."
            )
        cells = dict(zip(header, (cell.strip() for cell in row), strict=True))
        line = _line(number, cells, path.parent, what)
        if labels_required and line.label is None:
            raise LabelError(
                f"{what} has no label in line {number} ({display_name(line.written)}); every line needs one here."
            )
        lines.append(line)
    if not lines:
        raise EmptyDataError(f"{what} lists no recordings; at least one line below the header is needed.")
    without = [line.number for line in lines if line.group is None]
    if 0 < len(without) < len(lines):
        raise RecordingError(
            f"{what} has no group in {len(without)} of {len(lines)} lines (the first is line {without[0]}); "
            "all lines or none need one, because series without a group could sit in training and test at once."
        )
    return lines


def _rows(path: Path, what: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of each line that is not blank."""
    why = f"a manifest has at most {MAX_MANIFEST_ROWS:,} lines"
    try:
        with open_confined(path, root_of(path)) as file:
            content = bounded.read_open(file, what, MAX_MANIFEST_BYTES, why=why, error=RecordingError)
        content.decode("utf-8-sig")  # before any of it is used
        yield from records(content.removeprefix(b"\xef\xbb\xbf"), what, MAX_MANIFEST_ROWS)
    except RecordingError:
        raise
    except FileNotFoundError as error:
        raise RecordingError(f"{what} was not found; check the path.") from error
    except OSError as error:
        raise RecordingError(
            f"{what} cannot be read: {error.strerror or error}. A CSV file with a column 'path' is needed."
        ) from error
    except ValueError as error:  # neither UTF-8 nor CSV
        raise RecordingError(
            f"{what} is not a CSV file in UTF-8 ({error}). Write it again as one."
        ) from error


def _check_header(header: list[str], what: str, *, labels_required: bool) -> None:
    for name in header:
        if name not in COLUMNS:
            raise RecordingError(
                f"{what} has an unknown column {name!r}{did_you_mean(name.lower(), COLUMNS)} Rename it or remove "
                "it."
            )
        if header.count(name) > 1:
            raise RecordingError(
                f"{what} has the column {name!r} {header.count(name)} times; once is needed."
            )
    if "path" not in header:
        raise RecordingError(
            f"{what} has no column 'path' in its first line (found: {', '.join(header) or 'nothing'}); "
            "needed are path, label and group, and perhaps rate, channel and where a series comes from."
        )
    if labels_required and "label" not in header:
        raise LabelError(f"{what} has no column 'label' (found: {', '.join(header)}); training needs one.")


def _line(number: int, cells: Mapping[str, str], folder: Path, what: str) -> Line:
    if not cells["path"]:
        raise RecordingError(f"{what} has no path in line {number}; a recording is needed in every line.")
    rate = None
    if text := cells.get("rate"):
        try:
            rate = float(text)
        except ValueError:
            rate = math.nan
        if not (math.isfinite(rate) and rate > 0):
            raise RecordingError(
                f"{what} has the rate {text!r} in line {number}; samples per second, a number above 0, are needed."
            )
    return Line(
        folder / cells["path"],
        written=cells["path"],
        where=f"{what}, line {number}",
        number=number,
        label=cells.get("label") or None,
        group=(cells["group"] if "group" in cells else cells.get("patient")) or None,
        rate=rate,
        channel=cells.get("channel") or None,
        origin={level: cells[level] for level in ORIGIN_COLUMNS if cells.get(level)},
    )


def _refuse_missing(manifest: Path, lines: list[Line]) -> None:
    """All files that are not there, in one error."""
    missing = [line for line in lines if not _is_there(line.path)]
    if not missing:
        return
    named = join_names(f"{display_name(line.written)} (line {line.number})" for line in missing)
    raise RecordingError(
        f"manifest {display_name(manifest)} names {len(missing)} of {len(lines)} recordings that were not found: "
        f"{named}. Paths are relative to the manifest's folder; correct them or put the files there."
    )


def _is_there(path: Path) -> bool:
    try:
        return path.exists() or header_of(path).is_file()
    except OSError:  # a name too long, a folder that may not be entered: reading it reports that
        return True


def _is_manifest(path: Path) -> bool:
    """A CSV whose first line has a column ``path``."""
    if path.suffix.lower() != ".csv" or not os.path.isfile(path):
        return False
    try:
        # opened like a recording: no pipe, no device, no link out of its folder
        with open_confined(path, root_of(path)) as binary:
            file = io.TextIOWrapper(binary, encoding="utf-8-sig", errors="replace", newline="")
            return "path" in [cell.strip() for cell in cells_of(file.readline(LINE_BYTES))]
    except (OSError, MalformedCsvError):  # reading it as a recording reports what is wrong
        return False


def _without_suffix(path: Path) -> Path:
    return path.with_suffix("") if path.suffix.lower() in all_suffixes() else path


def printable(name: str) -> str:
    """A name that can be written as UTF-8: bytes of a file name that are not are spelled out."""
    return name.encode("utf-8", "backslashreplace").decode()


def distinct_names(lines: Iterable[Line]) -> dict[str, str]:
    """Absolute path -> name: the path as a manifest has it, without suffix; else only its last part.

    Folders may be called after a patient; those of a manifest are its own choice. Names that would be equal get one
    folder more in front until they are not; files that differ in suffix alone keep it.
    """
    n_parts: dict[str, int] = {}
    for line in lines:
        written = Path(os.path.normpath(line.written))
        relative = line.number and not written.is_absolute()  # as folders of a manifest are
        n_written = sum(part != ".." for part in written.parts) if relative else 1
        path = os.path.abspath(line.path)
        n_parts[path] = max(n_parts.get(path, 1), n_written)
    named = {path: _without_suffix(Path(path)).parts[1:] for path in n_parts}
    while True:
        names = {path: printable("/".join(named[path][-n:])) for path, n in n_parts.items()}
        counts = Counter(names.values())
        equal = [path for path in names if counts[names[path]] > 1]
        if not equal:
            return names
        if all(n_parts[path] > len(named[path]) for path in equal):  # a name in bytes that spells another
            files = " and ".join(display_name(Path(path)) for path in equal)
            raise RecordingError(f"recordings {files} would have the same name; rename one of them.")
        whole = Counter(named[path] for path in equal)
        for path in equal:
            with_suffix = Path(path).parts[1:]
            if whole[named[path]] > 1 and named[path] != with_suffix:
                named[path] = with_suffix
            else:
                n_parts[path] += 1
