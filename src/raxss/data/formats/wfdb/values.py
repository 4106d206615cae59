"""First values and MATLAB headers of WFDB data files, compared with the record's header.

    signals of one data file, its first bytes -> problems

The first value of every signal is in the header, so a data file of another record, or one that lost its first
bytes, can be recognised. A .mat file begins with a header of its own, with type, channels and samples once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raxss.data.confinement import open_confined
from raxss.data.formats.fields import Refused, problem
from raxss.data.formats.wfdb.header import WfdbSignal
from raxss.data.problems import Problem
from raxss.errors import join_names

MAT_BYTES = 20  # of a MATLAB 4 header: type, rows, columns, whether complex, length of the name
MAT_WIDTHS = {2: 4, 3: 2, 4: 2, 5: 1}  # bytes of a sample, by the type's third digit; others are no integers
FORMAT_WIDTHS = {"16": 2, "61": 2, "160": 2, "32": 4, "80": 1}  # that a matrix of MATLAB can have


def first_value_problems(path: Path, root: Path, signals: Sequence[WfdbSignal]) -> list[Problem]:
    """Signals of one file that do not begin with the header's first value. Only plain formats are compared here."""
    width = sum(signal.per_frame for signal in signals)
    with open_confined(path, root) as file:
        file.seek(signals[0].offset)
        values = first_samples(file.read(4 * width + 8), signals[0].format, width)
    if values is None or len(values) < width:
        return []
    starts = accumulate((signal.per_frame for signal in signals), initial=0)
    return compare_first_values(signals, values[list(starts)[:-1]].tolist())


def compare_first_values(signals: Sequence[WfdbSignal], found: Sequence[int]) -> list[Problem]:
    """Signals that begin with another value than the header's; of one that lags it is not specified which."""
    wrong = [
        f"signal {signal.position}"
        for signal, value in zip(signals, found, strict=True)
        if signal.first_value not in (None, value) and not signal.skew
    ]
    message = f"{len(wrong)} of {len(signals)} signals do not begin with the first value in the header"
    to_do = "One of the files was exchanged or changed; samples are read as they are. Compare it with the original."
    return [Problem("first-value", f"{message}: {join_names(wrong)}. {to_do}")] if wrong else []


def first_samples(raw: bytes, storage: str, count: int) -> NDArray[np.int64] | None:
    """The first ``count`` samples of a plain format, as the integers that are stored; None of other formats."""
    plain = {"16": "<i2", "32": "<i4", "61": ">i2", "80": "u1", "160": "<u2"}
    if storage in plain:
        usable = len(raw) // np.dtype(plain[storage]).itemsize * np.dtype(plain[storage]).itemsize
        zero = {"80": 128, "160": 32768}.get(storage, 0)
        return np.frombuffer(raw[:usable], plain[storage]).astype(np.int64)[:count] - zero
    padded = np.frombuffer(raw + bytes(-len(raw) % 12), np.uint8).astype(np.int64)
    if storage == "24":
        low, middle, high = padded.reshape(-1, 3).T
        return _signed(low | middle << 8 | high << 16, 24)[:count]
    if storage == "212":
        low, shared, high = padded.reshape(-1, 3).T
        pairs = np.stack([low | (shared & 0x0F) << 8, high | (shared & 0xF0) << 4], axis=1)
        return _signed(pairs.ravel(), 12)[:count]
    if storage == "310":
        first, second = (padded[::2] | padded[1::2] << 8).reshape(-1, 2).T
        third = first >> 11 | second >> 11 << 5
        return _signed(np.stack([first >> 1 & 0x3FF, second >> 1 & 0x3FF, third], axis=1).ravel(), 10)[:count]
    if storage == "311":
        words = padded.reshape(-1, 4) @ (1 << 8 * np.arange(4))
        thirds = np.stack([words >> 10 * place & 0x3FF for place in range(3)], axis=1)
        return _signed(thirds.ravel(), 10)[:count]
    return None


def _signed(values: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    return values - ((values >> (bits - 1)) << bits)


def matlab_problems(path: Path, root: Path, signals: Sequence[WfdbSignal], frames: int) -> list[Problem]:
    """Whether the header that a .mat file begins with says the same as the record's: type, channels, samples."""
    storage, offset, width = signals[0].format, signals[0].offset, sum(item.per_frame for item in signals)
    with open_confined(path, root) as file:
        raw = file.read(MAT_BYTES + 64)
    matrix = _matlab_header(raw)
    if matrix is None:
        return []
    kind, rows, columns, begin = matrix
    if offset < begin:
        found = f"the header says that samples begin at byte {offset} of the .mat file"
        raise Refused("header-damaged", f"{found}, whose own header has {begin} bytes")
    if offset > begin:  # samples are those of a later matrix
        return []
    if storage in FORMAT_WIDTHS and MAT_WIDTHS.get(kind) != FORMAT_WIDTHS[storage]:
        found = f"the header says that samples are stored in format {storage}"
        raise Refused("header-damaged", f"{found}, and the .mat file that they are of another type ({kind})")
    is_vector = width == 1 and 1 in (rows, columns)
    if rows != width and not is_vector:
        found = f"the header has {width} samples in a frame of the .mat file, which has {rows:,} rows"
        raise Refused("header-damaged", f"{found}; samples of all signals would be mixed up")
    length = rows * columns if is_vector else columns
    if length == frames:
        return []
    message = f"the header declares {frames:,} samples, and the .mat file {length:,}; the header counts"
    return [problem("header-inconsistent", message)]


def _matlab_header(raw: bytes) -> tuple[int, int, int, int] | None:
    """Type of number, rows, columns and length of the header of a MATLAB 4 file; None of anything else."""
    if len(raw) < MAT_BYTES:
        return None
    for order in ("<i4", ">i4"):
        kind, rows, columns, is_complex, n_letters = np.frombuffer(raw[:MAT_BYTES], order).tolist()
        name = raw[MAT_BYTES : MAT_BYTES + max(n_letters, 0)]
        is_kind = 0 <= kind < 5000 and kind // 100 % 10 == 0 and kind // 10 % 10 <= 5 and kind % 10 <= 2
        is_name = 2 <= n_letters <= 64 and name[-1:] == b"\0" and name[:-1].isalnum()
        if is_kind and is_name and rows > 0 and columns > 0 and is_complex == 0:
            return kind // 10 % 10, rows, columns, MAT_BYTES + n_letters
    return None
