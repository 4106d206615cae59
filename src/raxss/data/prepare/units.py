"""Unit of preparation: one recording becomes one file of samples, in the memory of a few blocks.

    RecordingPlan, Preparation -> Unit -> <slug>.npy, and <slug>.json that describes it: parts of a store

All channels of one rate and stretch are read side by side, a block at a time; each is pooled or resampled on its
way and written at its place. The z-score is a second pass over what was written. A unit is there whole or not at
all, and its key hashes all that went into it. Next: preparing.py works through many.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import warnings
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from raxss._core.atomic import canonical_hash, sha256_of
from raxss._core.store import Store
from raxss.data.plan import RecordingPlan, SeriesPlan, sample_range
from raxss.data.prepare.folder import FORMAT, SAMPLE_BYTES
from raxss.data.prepare.preprocessing import CHUNK, Preparation, level, z_scored
from raxss.data.recording import Recording
from raxss.data.series import ORIGINS
from raxss.errors import DataError, RAxSSWarning, RecordingError, display_name

if TYPE_CHECKING:
    from hashlib import _Hash

KEPT: Final = (
    "Recordings that were prepared are kept; mend the cause, or make room, and run the same command again: it goes "
    "on from there"
)
BLOCK_BYTES: Final = 16 << 20  # of float64 samples that are read at once, all channels together

Result = dict[str, Any]  # of `write_unit`


@dataclass(frozen=True)
class Input:
    """A file as it was when it was hashed."""

    name: str  # relative to the dataset
    sha256: str
    n_bytes: int
    modified: int  # nanoseconds


@dataclass(frozen=True)
class Unit:
    """The work on one recording; can be sent to another process."""

    recording: RecordingPlan
    preparation: Preparation
    inputs: tuple[Input, ...]  # of recording.files

    @property
    def slug(self) -> str:
        """What its files are called."""
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", self.recording.name)[:60].strip("-.") or "recording"
        return f"{stem}-{hashlib.sha256(self.recording.name.encode()).hexdigest()[:8]}"

    @property
    def key(self) -> str:
        """Hash of all that the result depends on."""
        series = [
            [entry.name, entry.channels, entry.segment, entry.label, dict(entry.origin), entry.crop]
            for entry in self.recording.series
        ]
        inputs = [[item.name, item.sha256] for item in self.inputs]
        return canonical_hash([FORMAT, self.recording.name, inputs, series, str(self.preparation)])


def units_in(work: Path) -> Store:
    """The store of finished units; its owner clears the folder, so that nothing waits for the disk."""
    return Store(work, indent=None, flushed=False, advice=KEPT)


def read_unit(unit: Unit, work: Path) -> Result | None:
    """What an earlier run has left of a unit, if that is whole and of this key."""
    result = units_in(work).read(unit.slug, unit.key)
    try:
        whole = result is not None and sha256_of(work / f"{unit.slug}.npy") == result["sha256"]
    except OSError:
        return None
    return result if whole else None


def write_unit(unit: Unit, work: Path) -> Result:
    """Write the samples and then the result, each in one step.

    The result has ``series`` (rows of the table, without ``file`` and ``group``), ``left_out``, ``problems``,
    ``warnings``, ``sha256`` and ``n_bytes`` of the samples, and ``key``.
    """
    store = units_in(work)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with unit.recording.open_recording() as recording, store.file(f"{unit.slug}.npy") as temporary:
            result = _write_samples(unit, recording, temporary)
    _refuse_changed(unit)
    # Warnings of other libraries may quote a header or a path; ours never do.
    result["warnings"] = sorted(
        {str(item.message) for item in caught if issubclass(item.category, RAxSSWarning)}
    )
    return store.write(unit.slug, unit.key, result)


def _refuse_changed(unit: Unit) -> None:
    """Samples must come from the very files that were hashed."""
    for file, before in zip(unit.recording.files, unit.inputs, strict=True):
        try:
            now = os.stat(file)
            same = (now.st_size, now.st_mtime_ns) == (before.n_bytes, before.modified)
        except OSError:
            same = False
        if not same:
            raise RecordingError(
                f"the file {display_name(before.name)} changed while it was read. Run the same command again when "
                "nothing writes to it any more."
            )


# Samples ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stretch:
    """Samples ``start`` to ``stop`` of some channels, and where they go."""

    plan: SeriesPlan
    rate: float
    start: int
    stop: int
    n_out: int
    offset: int  # in samples from the first of the file

    @property
    def side_by_side(self) -> tuple[int, float, int, int]:
        """Equal for series that can be read at once."""
        return self.plan.segment, self.rate, self.start, self.stop


def _write_samples(unit: Unit, recording: Recording, path: Path) -> dict[str, Any]:
    stretches, left_out = _laid_out(unit, recording)
    n_samples = sum(stretch.n_out * len(stretch.plan.channels) for stretch in stretches)
    header = _npy_header(n_samples)
    with open(path, "w+b") as file:
        file.write(header)
        together = sorted(stretches, key=lambda item: item.side_by_side)
        for _, some in groupby(together, key=lambda item: item.side_by_side):
            _write_stretches(list(some), recording, unit.preparation, file, len(header))
        file.truncate(len(header) + n_samples * SAMPLE_BYTES)
        whole = hashlib.sha256(header)
        rows = [
            _finish(stretch, recording, unit.preparation, file, len(header), whole) for stretch in stretches
        ]
    return {
        "series": rows,
        "left_out": left_out,
        "problems": [{"code": problem.code, "message": problem.message} for problem in recording.problems],
        "sha256": whole.hexdigest(),
        "n_bytes": len(header) + n_samples * SAMPLE_BYTES,
    }


def _laid_out(unit: Unit, recording: Recording) -> tuple[list[_Stretch], list[str]]:
    """Where each series goes; and in whole sentences, those of which nothing is left."""
    stretches: list[_Stretch] = []
    left_out: list[str] = []
    offset = 0
    for item in unit.recording.series:
        recording.stretch(item.channels, item.segment)  # refuses channels of several rates
        rate = recording.channels[item.channels[0]].rate
        start, stop = sample_range(recording, item)
        try:
            n_out = unit.preparation.stream(rate, stop - start).n_out if stop > start else 0
        except DataError as error:
            raise RecordingError(f"series {item.name!r}: {error}") from error
        if n_out == 0:
            within = "" if item.crop is None else f" from {item.crop[0]:g} to {item.crop[1]:g} s"
            left_out.append(
                f"series {item.name!r} has {max(stop - start, 0)} samples{within}, too few to be prepared."
            )
            continue
        stretches.append(_Stretch(item, rate, start, stop, n_out, offset))
        offset += n_out * len(item.channels)
    return stretches, left_out


def _npy_header(n_samples: int) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(  # type: ignore[no-untyped-call]
        header, {"descr": "<f4", "fortran_order": False, "shape": (n_samples,)}
    )
    return header.getvalue()


def _write_stretches(
    stretches: list[_Stretch], recording: Recording, preparation: Preparation, file: BinaryIO, begin: int
) -> None:
    """Write each block's output at its place; by seek, because touched pages of a map count as our memory."""
    first = stretches[0]
    channels = [channel for stretch in stretches for channel in stretch.plan.channels]
    places = [
        stretch.offset + row * stretch.n_out
        for stretch in stretches
        for row in range(len(stretch.plan.channels))
    ]
    stream = preparation.stream(first.rate, first.stop - first.start)
    n_block = max(1, BLOCK_BYTES // (8 * len(channels)))
    for start in range(first.start, first.stop, n_block):
        stop = min(start + n_block, first.stop)
        outs = [stream.push(_read(recording, channels, first.plan.segment, start, stop))]
        if stop == first.stop:
            outs.append(stream.finish())
        for out in outs:
            for row, place in enumerate(places):
                file.seek(begin + place * SAMPLE_BYTES)
                file.write(out[row].astype("<f4", copy=False).tobytes())
            places = [place + out.shape[1] for place in places]


def _read(
    recording: Recording, channels: list[int], segment: int, start: int, stop: int
) -> NDArray[np.float64]:
    try:
        block = recording.read(channels, segment=segment, start=start, stop=stop)
    except OSError as error:  # of the input, not of what is being written
        raise RecordingError(
            f"recording {recording.name!r} cannot be read: {error.strerror or 'unknown reason'}."
        ) from error
    if block.shape != (len(channels), stop - start):
        raise RecordingError(
            f"recording {recording.name!r} gave {block.shape[-1]} samples from {start} on, where {stop - start} "
            "were to come; it is cut off or damaged. Copy it again."
        )
    return block


def _finish(
    stretch: _Stretch,
    recording: Recording,
    preparation: Preparation,
    file: BinaryIO,
    begin: int,
    whole: _Hash,
) -> dict[str, Any]:
    """The z-score, if wanted, and the row of the table; reads what was written, a chunk at a time."""
    own, n_finite = hashlib.sha256(), 0
    for row in range(len(stretch.plan.channels)):
        at = begin + (stretch.offset + row * stretch.n_out) * SAMPLE_BYTES

        def chunk_of(piece: slice, at: int = at) -> NDArray[np.float32]:
            file.seek(at + piece.start * SAMPLE_BYTES)
            return np.frombuffer(file.read((piece.stop - piece.start) * SAMPLE_BYTES), dtype="<f4")

        scaled = preparation.scaling == "series"
        mean, deviation = level(chunk_of, stretch.n_out) if scaled else (0.0, 1.0)
        for start in range(0, stretch.n_out, CHUNK):
            chunk = chunk_of(slice(start, min(start + CHUNK, stretch.n_out)))
            if scaled:
                chunk = z_scored(chunk, mean, deviation)
                file.seek(at + start * SAMPLE_BYTES)
                file.write(chunk.tobytes())
            n_finite += int(np.isfinite(chunk).sum())
            own.update(chunk.tobytes())
            whole.update(chunk.tobytes())
    plan, channel = stretch.plan, recording.channels[stretch.plan.channels[0]]
    since = recording.segments[plan.segment].start_seconds + stretch.start / stretch.rate
    rate, start_seconds = preparation.timing(stretch.rate, since)
    return {
        "name": plan.name,
        "label": plan.label,
        **{item: plan.origin.get(item) for item in ORIGINS},
        "rate": rate,
        "n_variates": len(plan.channels),
        "n_samples": stretch.n_out,
        "start_seconds": start_seconds,
        "original_rate": stretch.rate,
        "unit": channel.unit,
        "finite_share": n_finite / (stretch.n_out * len(plan.channels)),
        "offset": stretch.offset,
        "sha256": own.hexdigest(),
    }
