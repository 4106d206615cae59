"""Which series do these files hold?

    a recording file          -> Series
    a CSV manifest            -> SeriesCollection, one series a line
    paths on a command line   -> SeriesCollection

Errors name the file as the reader wrote it, never the folders of this machine.
Next: datasets/ has collections by name; preparation.py makes samples ready.
"""

from __future__ import annotations

import csv
import math
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raxss.errors import EmptyDataError, LabelError, RecordingError, nearest
from raxss.recordings.formats import SUFFIXES, Content, file_of, read_content, shown
from raxss.recordings.series import Series, SeriesCollection

COLUMNS = ("path", "label", "group", "rate", "channel")
N_LISTED = 10  # missing files that an error names one by one


def read_series(
    path: Path | str,
    *,
    rate: float | None = None,
    channel: str | int | None = None,
    label: Any = None,
    group: Hashable = None,
    name: str | None = None,
) -> Series:
    """Read one recording: ``.npz``, ``.npy``, ``.csv`` or a WFDB record.

    Parameters
    ----------
    path
        A file, or a WFDB record by any of its files or its bare name. A ``.npz`` holds ``samples`` (variates ×
        time), ``rate`` and perhaps ``channels``; a ``.csv`` has one column a variate, with or without names.
    rate
        Samples per second, for files that do not say. Neither known: 1, so that times count samples.
    channel
        Name or position of the one variate to keep; all of them otherwise.
    name
        How the series is called; the file's name without its suffix otherwise, with ``:channel`` if one is given.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "night.npz"
    >>> np.savez(path, samples=np.zeros((2, 600)), rate=100.0, channels=["C3", "C4"])
    >>> read_series(path)
    Series('night', 2 variates, 600 samples at 100 Hz = 6 s)
    >>> read_series(path, channel="C4", label="sleep")
    Series('night:C4', 1 variate, 600 samples at 100 Hz = 6 s, label='sleep')
    """
    path = Path(path)
    content = read_content(path)
    samples = content.samples
    if channel is not None:
        position = _channel_position(content, channel, path)
        samples = samples[position : position + 1]
    if rate is not None and content.rate is not None and not math.isclose(rate, content.rate):
        raise RecordingError(
            f"recording {shown(path)} says {content.rate:g} Hz itself, and {rate:g} Hz was asked for. Leave "
            "the rate out; to change it, resample the recording."
        )
    rate = rate if rate is not None else content.rate
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise RecordingError(
            f"recording {shown(path)} has a rate of {rate} Hz; a finite number above 0 is needed."
        )
    if name is None:
        name = _series_name(_without_suffix(path).name, channel)
    return Series(samples, 1.0 if rate is None else rate, label=label, group=group, name=_printable(name))


def read_manifest(path: Path | str, *, labels_required: bool = True) -> SeriesCollection:
    """Read the recordings that a CSV lists: columns ``path, label, group``, perhaps ``rate, channel``.

    Paths are relative to the manifest's folder. A group says what must not be in training and test at once; it
    may be empty, in every line or in none. Without ``labels_required`` (for prediction) labels may be absent.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.savez(folder / "a.npz", samples=np.zeros((2, 600)), rate=100.0)
    >>> _ = (folder / "all.csv").write_text("path,label,group,channel\\na.npz,ill,p1,0\\na.npz,well,p1,1\\n")
    >>> read_manifest(folder / "all.csv").names
    ['a:0', 'a:1']
    """
    return _read_all(_listed(Path(path), labels_required=labels_required))


def read_inputs(
    paths: Iterable[Path | str],
    *,
    rate: float | None = None,
    channel: str | int | None = None,
    labels_required: bool = False,
) -> SeriesCollection:
    """Read what a command line names: recordings, manifests (CSV with a ``path`` column), or both.

    ``rate`` and ``channel`` are for the recordings; a manifest has columns of its own for them. Recordings of
    the same name get as many folders in front of it as tell them apart.
    """
    asked = [
        _listed(path, labels_required=labels_required)
        if _is_manifest(path)
        else [_Line(path, written=str(path), where=shown(path), rate=rate, channel=channel)]
        for path in map(Path, paths)
    ]
    if not asked:
        raise EmptyDataError("no input was given; name at least one recording or manifest.")
    lines = [line for some in asked for line in some]
    if repeat := _first_repeat(lines):
        inputs = [number for number, some in enumerate(asked, start=1) for _ in some]
        first, again = (f"input {inputs[place]} ({lines[place].where})" for place in repeat)
        raise RecordingError(
            f"the same series is given twice, by {first} and by {again}; once is needed. Remove one of them."
        )
    return _read_all(lines)


@dataclass(frozen=True)
class _Line:
    """One series that was asked for, by a line of a manifest or directly."""

    path: Path  # from the current folder
    written: str  # from the manifest's folder, or as path
    where: str  # it was asked for
    number: int = 0  # of the line in its manifest; 0 if asked for directly
    label: str | None = None
    group: str | None = None
    rate: float | None = None
    channel: str | int | None = None


def _read_all(lines: list[_Line]) -> SeriesCollection:
    """Read every line's series."""
    names = _distinct_names(lines)
    series = []
    for line in lines:
        try:
            series.append(
                read_series(
                    line.path,
                    rate=line.rate,
                    channel=line.channel,
                    label=line.label,
                    group=line.group,
                    name=_series_name(names[os.path.abspath(line.path)], line.channel),
                )
            )
        except RecordingError as error:
            if not line.number:
                raise
            raise RecordingError(f"{line.where}: {error}") from error
    return SeriesCollection(series)


def _first_repeat(lines: list[_Line]) -> tuple[int, int] | None:
    """Where the first series stands that is asked for again, however its path is spelled."""
    seen: dict[tuple[str, str], int] = {}
    for place, line in enumerate(lines):
        try:
            key = os.path.realpath(file_of(line.path)), str(line.channel)
        except (OSError, ValueError):  # reading it will say what is wrong
            continue
        if (first := seen.setdefault(key, place)) != place:
            return first, place
    return None


def _listed(path: Path, *, labels_required: bool) -> list[_Line]:
    """The series of a manifest, all of which are there, each once."""
    lines = _manifest_lines(path, labels_required=labels_required)
    _refuse_missing(path, lines)
    if repeat := _first_repeat(lines):
        first, again = (lines[place] for place in repeat)
        spelled = "" if first.written == again.written else f" (there as {shown(again.written)})"
        raise RecordingError(
            f"manifest {shown(path)} lists {shown(_series_name(first.written, first.channel))} in lines "
            f"{first.number} and {again.number}{spelled}; each series once is needed. Remove one of them."
        )
    return lines


def _manifest_lines(path: Path, *, labels_required: bool) -> list[_Line]:
    """Everything a manifest says, checked before any recording is opened."""
    what = f"manifest {shown(path)}"
    rows = _rows(path, what)
    header = [cell.strip() for cell in rows[0][1]] if rows else []
    _check_header(header, what, labels_required=labels_required)
    lines: list[_Line] = []
    for number, row in rows[1:]:
        if len(row) != len(header):
            raise RecordingError(
                f"{what} has {len(row)} values in line {number} and {len(header)} columns "
                f"({', '.join(header)}); one value a column is needed. Put quotes around values with commas."
            )
        cells = dict(zip(header, (cell.strip() for cell in row), strict=True))
        line = _line(number, cells, path.parent, what)
        if labels_required and line.label is None:
            raise LabelError(
                f"{what} has no label in line {number} ({shown(line.written)}); every line needs one here."
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


def _rows(path: Path, what: str) -> list[tuple[int, list[str]]]:
    """(line number, cells) of each line that is not blank."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except FileNotFoundError as error:
        raise RecordingError(f"{what} was not found; check the path.") from error
    except OSError as error:
        raise RecordingError(
            f"{what} cannot be read: {error.strerror or error}. A CSV file with a column 'path' is needed."
        ) from error
    except (csv.Error, ValueError) as error:
        raise RecordingError(
            f"{what} is not a CSV file in UTF-8 ({error}). Write it again as one."
        ) from error


def _check_header(header: list[str], what: str, *, labels_required: bool) -> None:
    for name in header:
        if name not in COLUMNS:
            raise RecordingError(
                f"{what} has an unknown column {name!r}{nearest(name.lower(), COLUMNS)} Rename it or remove it."
            )
        if header.count(name) > 1:
            raise RecordingError(
                f"{what} has the column {name!r} {header.count(name)} times; once is needed."
            )
    if "path" not in header:
        raise RecordingError(
            f"{what} has no column 'path' in its first line (found: {', '.join(header) or 'nothing'}); "
            "needed are path, label and group, and perhaps rate and channel."
        )
    if labels_required and "label" not in header:
        raise LabelError(f"{what} has no column 'label' (found: {', '.join(header)}); training needs one.")


def _line(number: int, cells: Mapping[str, str], folder: Path, what: str) -> _Line:
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
    return _Line(
        folder / cells["path"],
        written=cells["path"],
        where=f"{what}, line {number}",
        number=number,
        label=cells.get("label") or None,
        group=cells.get("group") or None,
        rate=rate,
        channel=cells.get("channel") or None,
    )


def _refuse_missing(manifest: Path, lines: list[_Line]) -> None:
    """All files that are not there, in one error."""
    missing = [line for line in lines if not _is_there(line.path)]
    if not missing:
        return
    listed = ", ".join(f"{shown(line.written)} (line {line.number})" for line in missing[:N_LISTED])
    more = f" and {len(missing) - N_LISTED} more" if len(missing) > N_LISTED else ""
    raise RecordingError(
        f"manifest {shown(manifest)} names {len(missing)} of {len(lines)} recordings that were not found: "
        f"{listed}{more}. Paths are relative to the manifest's folder; correct them or put the files there."
    )


def _is_there(path: Path) -> bool:
    try:
        return path.exists() or file_of(path).is_file()
    except OSError:  # a name too long, a folder that may not be entered: reading it will say so
        return True


def _is_manifest(path: Path) -> bool:
    """A CSV whose first line has a column ``path``."""
    if path.suffix.lower() != ".csv" or not os.path.isfile(path):
        return False
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
            return "path" in [cell.strip() for cell in next(csv.reader([file.readline()]), [])]
    except (OSError, csv.Error):  # reading it as a recording will say what is wrong
        return False


def _channel_position(content: Content, channel: str | int, path: Path) -> int:
    """Where the channel of that name or position is."""
    if isinstance(channel, str) and channel in content.channels:
        if content.channels.count(channel) > 1:
            raise RecordingError(
                f"recording {shown(path)} has {content.channels.count(channel)} channels named {channel!r}; "
                f"give the position instead, 0 to {len(content.samples) - 1}."
            )
        return content.channels.index(channel)
    if str(channel).isdecimal() and int(channel) < len(content.samples):
        return int(channel)
    raise RecordingError(
        f"recording {shown(path)} has no channel {channel!r}{nearest(str(channel), content.channels)} It has "
        f"{len(content.samples)} channels; a position from 0 to {len(content.samples) - 1} will do as well."
    )


def _without_suffix(path: Path) -> Path:
    return path.with_suffix("") if path.suffix.lower() in SUFFIXES else path


def _series_name(base: str, channel: str | int | None) -> str:
    return base if channel is None else f"{base}:{channel}"


def _printable(name: str) -> str:
    """A name that can be written as UTF-8: bytes of a file name that are not are spelled out."""
    return name.encode("utf-8", "backslashreplace").decode()


def _distinct_names(lines: Iterable[_Line]) -> dict[str, str]:
    """Absolute path -> name: the path as written without suffix; of an absolute one, only the last part.

    Names that would be equal get one folder more in front until they are not; files that differ in suffix alone
    keep it.
    """
    n_parts: dict[str, int] = {}
    for line in lines:
        written = Path(os.path.normpath(line.written))
        n_written = 1 if written.is_absolute() else sum(part != ".." for part in written.parts)
        path = os.path.abspath(line.path)
        n_parts[path] = max(n_parts.get(path, 1), n_written)
    named = {path: _without_suffix(Path(path)).parts[1:] for path in n_parts}
    while True:
        names = {path: _printable("/".join(named[path][-n:])) for path, n in n_parts.items()}
        counts = Counter(names.values())
        equal = [path for path in names if counts[names[path]] > 1]
        if not equal:
            return names
        if all(n_parts[path] > len(named[path]) for path in equal):  # a name in bytes that spells another
            files = " and ".join(shown(Path(path)) for path in equal)
            raise RecordingError(f"recordings {files} would have the same name; rename one of them.")
        whole = Counter(named[path] for path in equal)
        for path in equal:
            with_suffix = Path(path).parts[1:]
            if whole[named[path]] > 1 and named[path] != with_suffix:
                named[path] = with_suffix
            else:
                n_parts[path] += 1
