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
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raxss.errors import EmptyDataError, LabelError, RecordingError, nearest
from raxss.recordings.formats import SUFFIXES, Content, read_content
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
        position = _channel_position(content, channel, path.name)
        samples = samples[position : position + 1]
    if rate is not None and content.rate is not None and not math.isclose(rate, content.rate):
        raise RecordingError(
            f"recording {path.name!r} says {content.rate:g} Hz itself, and {rate:g} Hz was asked for. Leave "
            "the rate out; to change it, resample the recording."
        )
    rate = rate if rate is not None else content.rate
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise RecordingError(
            f"recording {path.name!r} has a rate of {rate} Hz; a finite number above 0 is needed."
        )
    if name is None:
        name = _series_name(_without_suffix(path).name, channel)
    return Series(samples, 1.0 if rate is None else rate, label=label, group=group, name=name)


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
    path = Path(path)
    lines = _manifest_lines(path, labels_required=labels_required)
    _refuse_missing(path, lines)
    names = _distinct_names(line.path for line in lines)
    series = []
    for line in lines:
        try:
            series.append(
                read_series(
                    path.parent / line.path,
                    rate=line.rate,
                    channel=line.channel,
                    label=line.label,
                    group=line.group,
                    name=_series_name(names[line.path], line.channel),
                )
            )
        except RecordingError as error:
            raise RecordingError(f"manifest {path.name!r}, line {line.number}: {error}") from error
    return SeriesCollection(series)


def read_inputs(
    paths: Iterable[Path | str],
    *,
    rate: float | None = None,
    channel: str | int | None = None,
    labels_required: bool = False,
) -> SeriesCollection:
    """Read what a command line names: recordings, manifests (CSV with a ``path`` column), or both.

    ``rate`` and ``channel`` are for the recordings; a manifest has columns of its own for them.
    """
    written = [str(path) for path in paths]
    if not written:
        raise EmptyDataError("no input was given; name at least one recording or manifest.")
    names = _distinct_names(written)
    series: list[Series] = []
    for one in written:
        if _is_manifest(Path(one)):
            series += read_manifest(one, labels_required=labels_required)
        else:
            series.append(
                read_series(one, rate=rate, channel=channel, name=_series_name(names[one], channel))
            )
    return SeriesCollection(series)


@dataclass(frozen=True)
class _Line:
    """One line of a manifest."""

    number: int
    path: str
    label: str | None
    group: str | None
    rate: float | None
    channel: str | None


def _manifest_lines(path: Path, *, labels_required: bool) -> list[_Line]:
    """Everything a manifest says, checked before any recording is opened."""
    what = f"manifest {path.name!r}"
    rows = _rows(path, what)
    header = [cell.strip() for cell in rows[0][1]] if rows else []
    _check_header(header, what, labels_required=labels_required)
    lines: list[_Line] = []
    seen: dict[tuple[str, str | None], int] = {}
    for number, row in rows[1:]:
        if len(row) != len(header):
            raise RecordingError(
                f"{what} has {len(row)} values in line {number} and {len(header)} columns "
                f"({', '.join(header)}); one value a column is needed. Put quotes around values with commas."
            )
        line = _line(number, dict(zip(header, (cell.strip() for cell in row), strict=True)), what)
        if labels_required and line.label is None:
            raise LabelError(
                f"{what} has no label in line {number} ({line.path!r}); every line needs one here."
            )
        earlier = seen.setdefault((line.path, line.channel), number)
        if earlier != number:
            raise RecordingError(
                f"{what} lists {_series_name(line.path, line.channel)!r} in lines {earlier} and {number}; "
                "each series once is needed. Remove one of them."
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
        raise RecordingError(f"{what} cannot be read: {error.strerror or error}.") from error
    except (csv.Error, UnicodeDecodeError) as error:
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


def _line(number: int, cells: Mapping[str, str], what: str) -> _Line:
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
        number,
        cells["path"],
        cells.get("label") or None,
        cells.get("group") or None,
        rate,
        cells.get("channel") or None,
    )


def _refuse_missing(manifest: Path, lines: list[_Line]) -> None:
    """All files that are not there, in one error."""
    missing = [line for line in lines if not _is_there(manifest.parent / line.path)]
    if not missing:
        return
    listed = ", ".join(f"{line.path!r} (line {line.number})" for line in missing[:N_LISTED])
    more = f" and {len(missing) - N_LISTED} more" if len(missing) > N_LISTED else ""
    raise RecordingError(
        f"manifest {manifest.name!r} names {len(missing)} of {len(lines)} recordings that were not found: "
        f"{listed}{more}. Paths are relative to the manifest's folder; correct them or put the files there."
    )


def _is_there(path: Path) -> bool:
    return path.exists() or path.with_name(path.name + ".hea").is_file()


def _is_manifest(path: Path) -> bool:
    """A CSV whose first line has a column ``path``."""
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
            return "path" in [cell.strip() for cell in next(csv.reader([file.readline()]), [])]
    except (OSError, csv.Error):  # reading it as a recording will say what is wrong
        return False


def _channel_position(content: Content, channel: str | int, file_name: str) -> int:
    """Where the channel of that name or position is."""
    if isinstance(channel, str) and channel in content.channels:
        if content.channels.count(channel) > 1:
            raise RecordingError(
                f"recording {file_name!r} has {content.channels.count(channel)} channels named {channel!r}; "
                f"give the position instead, 0 to {len(content.samples) - 1}."
            )
        return content.channels.index(channel)
    if str(channel).isdecimal() and int(channel) < len(content.samples):
        return int(channel)
    raise RecordingError(
        f"recording {file_name!r} has no channel {channel!r}{nearest(str(channel), content.channels)} It has "
        f"{len(content.samples)} channels; a position from 0 to {len(content.samples) - 1} will do as well."
    )


def _without_suffix(path: Path) -> Path:
    return path.with_suffix("") if path.suffix.lower() in SUFFIXES else path


def _series_name(base: str, channel: str | int | None) -> str:
    return base if channel is None else f"{base}:{channel}"


def _distinct_names(written: Iterable[str]) -> dict[str, str]:
    """Path as written -> name: without suffix; of an absolute path, only as many last parts as tell it apart."""
    paths = {one: Path(one) for one in written}
    stems = Counter(_without_suffix(path) for path in paths.values())
    # two files that differ in suffix alone keep it
    paths = {one: bare if stems[bare := _without_suffix(path)] == 1 else path for one, path in paths.items()}
    names = {one: path.as_posix() for one, path in paths.items() if not path.is_absolute()}
    n_parts = 0
    while unnamed := {one: path for one, path in paths.items() if one not in names}:
        n_parts += 1
        tails = Counter(path.parts[1:][-n_parts:] for path in unnamed.values())
        for one, path in unnamed.items():
            tail = path.parts[1:][-n_parts:]
            if tails[tail] == 1 or n_parts >= len(path.parts):
                names[one] = "/".join(tail)
    return names
