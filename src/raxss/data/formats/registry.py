"""Registry of file formats: what a format is, and which format a file has.

    Format(name, suffixes, inspect, open, ...) -> register_format -> format_of(path), header_of(path)

Everything that depends on a file's type (opening, inspection, folder search, BIDS, manifests) uses this registry:
a format is one module, which registers it. A format of your own is registered from outside likewise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raxss.data.confinement import root_of
from raxss.data.formats.fields import H, inspected
from raxss.data.problems import Problem, refusals
from raxss.data.recording import Recording
from raxss.errors import ConfigError, RecordingError, display_name

#: By datatype: suffixes that BIDS allows and no format here reads; and of files that belong to one of these.
UNREAD = {"ieeg": (".set", ".nwb", ".mefd"), "eeg": (".set",)}
UNREAD_COMPANIONS = (".fdt",)


@dataclass(frozen=True, kw_only=True)
class Format:
    """A file format of recordings.

    >>> from raxss.data.recording import ArrayRecording
    >>> def opened(path, root, rate):
    ...     return ArrayRecording(path.name, [[0.0] * 10], rate=rate or 1.0)
    >>> Format(name="zeros", suffixes=(".zeros",), inspect=lambda path, root: [], open=opened).by_channel
    False
    """

    #: As messages call it.
    name: str
    #: Of the file that a recording is known by, in lower case: ``(".vhdr",)``.
    suffixes: tuple[str, ...]
    #: ``(path, root) -> problems``, from headers and sizes alone: nothing is decoded, and no file outside of the
    #: folder ``root`` is opened (`raxss.data.confinement`).
    inspect: Callable[[Path, Path], list[Problem]]
    #: ``(path, root, rate) -> Recording``, of a file that was not refused. ``rate`` is for files that do not state
    #: one (None: not given). Raises `RecordingError`, or `MissingExtraError` where a decoder is not installed.
    open: Callable[[Path, Path, float | None], Recording]
    #: Suffixes of the other files of a recording: ``(".eeg", ".vmrk")``.
    companions: tuple[str, ...] = ()
    #: Suffixes that the file with the samples may have where it is not the header, the usual one first.
    data_suffixes: tuple[str, ...] = ()
    #: ``(path) -> files`` that the header points to. None: the recording is one file.
    files: Callable[[Path], Iterable[Path]] | None = None
    #: Every channel is a series of its own, chosen by sidecars or by name; False: all channels are one series.
    by_channel: bool = False
    #: Of BIDS, in which the format may occur.
    datatypes: tuple[str, ...] = ()
    #: Files of these suffixes in a folder are recordings; False: they may be anything, and are named one by one.
    searched: bool = True
    #: The file states its sampling rate; False: one may be given with it.
    self_describing: bool = True
    #: A recording may be given by its name without a suffix.
    bare_names: bool = False


def header_format(
    examine: Callable[[Path, Path, list[Problem]], H | None],
    recording: Callable[[Path, H], Recording],
    *,
    files: Callable[[Path, H], Iterable[Path]] | None = None,
    **options: Any,
) -> Format:
    """A format whose files have a header, which is examined before samples are read on request.

    ``examine(path, root, problems) -> header`` adds what is wrong to ``problems``; it returns None, or raises
    `Refused`, where it must not be read. ``recording(path, header) -> Recording``. ``files(path, header)``
    and ``options`` are as in `Format`.
    """

    def examined(path: Path, root: Path) -> tuple[H | None, list[Problem]]:
        return inspected(path, lambda problems: examine(path, root, problems))

    def read_header(path: Path, root: Path) -> H:
        header, problems = examined(path, root)
        if refused := refusals(problems):
            raise RecordingError(f"recording {display_name(path)} is refused: {refused[0].message}")
        assert header is not None
        return header

    return Format(
        inspect=lambda path, root: list(dict.fromkeys(examined(path, root)[1])),
        open=lambda path, root, rate: recording(path, read_header(path, root)),
        files=None if files is None else lambda path: files(path, read_header(path, root_of(path))),
        **options,
    )


FORMATS: dict[str, Format] = {}
"""Name -> format, in the order in which messages list them."""


def register_format(known: Format) -> Format:
    """Make a format known by its suffixes, to everything that reads, inspects or searches for recordings.

    A format of the same name is replaced if it was defined in the same place, as when a notebook cell runs twice.

    >>> edf = FORMATS["EDF"]
    >>> register_format(Format(name="mine", suffixes=(".edf",), inspect=edf.inspect, open=edf.open))
    Traceback (most recent call last):
    raxss.errors.ConfigError: format 'mine' has the suffix '.edf', which belongs to format 'EDF'. ...
    """
    every = (*known.suffixes, *known.companions)
    wrong = [suffix for suffix in every if not re.fullmatch(r"\.[^./\\A-Z\s]+", suffix)]
    if wrong or not known.suffixes:
        raise ConfigError(
            f"format {known.name!r} has {f'the suffix {wrong[0]!r}' if wrong else 'no suffix'}; a dot and small "
            "letters or digits are needed, such as '.edf'."
        )
    mine, *theirs = (
        f"{item.open.__module__}.{getattr(item.open, '__qualname__', type(item.open).__qualname__)}"
        for item in (known, FORMATS.get(known.name))
        if item is not None
    )
    if theirs not in ([], [mine]):
        raise ConfigError(
            f"the format name {known.name!r} belongs to {theirs[0]} already and cannot also mean {mine}. Register "
            "it under another name."
        )
    for other in FORMATS.values():
        taken = [suffix for suffix in known.suffixes if suffix in (*other.suffixes, *other.companions)]
        if taken and other.name != known.name:
            raise ConfigError(
                f"format {known.name!r} has the suffix {taken[0]!r}, which belongs to format {other.name!r}. Give "
                "its files another suffix."
            )
    FORMATS[known.name] = known
    return known


def format_of(path: Path) -> Format | None:
    """The format of a recording, given by any of its files; None where no format has its suffix.

    >>> format_of(Path("night.EDF")).name, format_of(Path("a.vmrk")).name, format_of(Path("notes.txt"))
    ('EDF', 'BrainVision', None)
    """
    suffix = header_of(path).suffix.lower()
    return next((entry for entry in FORMATS.values() if suffix in entry.suffixes), None)


def header_of(path: Path) -> Path:
    """The one file that a recording is known by, whichever of its files was named.

    A suffix that several formats use (``.dat``) belongs to the one whose header is there.

    >>> print(header_of(Path("a.eeg")), header_of(Path("a.edf")))
    a.vhdr a.edf
    """
    suffix, formats = path.suffix.lower(), list(FORMATS.values())
    if any(suffix in entry.suffixes for entry in formats):
        return path
    owners = [entry for entry in formats if suffix in entry.companions]
    if owners:
        owners += [entry for entry in formats if suffix in entry.data_suffixes and entry not in owners]
        suffixes = [own for entry in owners for own in entry.suffixes]
        headers = [path.with_suffix(spelt) for own in suffixes for spelt in (own, own.upper())]
        return next((header for header in headers if header.exists()), headers[0])
    if path.name and not path.is_dir():
        named = [
            path.with_name(path.name + own) for entry in formats if entry.bare_names for own in entry.suffixes
        ]
        return next((header for header in named if header.is_file()), path)
    return path


def searched_suffixes() -> tuple[str, ...]:
    """Suffixes by which recordings are found in a folder."""
    return tuple(suffix for entry in FORMATS.values() if entry.searched for suffix in entry.suffixes)


def all_suffixes() -> tuple[str, ...]:
    """Suffixes of all files that belong to a recording: of headers first, then of their companions."""
    named = (suffix for entry in FORMATS.values() for suffix in entry.suffixes)
    beside = (suffix for entry in FORMATS.values() for suffix in entry.companions)
    return tuple(dict.fromkeys((*searched_suffixes(), *named, *beside)))


def bids_suffixes(datatype: str | None = None) -> tuple[str, ...]:
    """Suffixes of the recordings that are read below ``sub-*`` of a BIDS dataset, of one datatype or of all.

    >>> bids_suffixes("ieeg"), bids_suffixes()
    (('.edf', '.vhdr'), ('.edf', '.bdf', '.vhdr'))
    """
    return tuple(
        suffix
        for entry in FORMATS.values()
        if (datatype in entry.datatypes if datatype else entry.datatypes)
        for suffix in entry.suffixes
    )
