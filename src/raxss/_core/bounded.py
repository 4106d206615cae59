"""Readers of whole text, JSON and TOML files with a bound on the memory they can take.

    path -> bytes, text, or the value of a JSON file; refused by its size before it is read or decoded

The size of a file does not bound what it becomes: three bytes of JSON (``[],``) are eighty in memory. So what
a decoder would allocate is estimated from the bytes first. Every refusal states the limit and its reason.
"""

from __future__ import annotations

import json
import math
import os
import stat
import tomllib
from pathlib import Path
from typing import IO, Any

from raxss.errors import ConfigError, DataError, RAxSSError, display_name

MAX_JSON_BYTES = 2**26
MAX_JSON_MEMORY = 300_000_000  # bytes that a JSON text may take while it is decoded, by `json_memory`
MAX_JSON_DEPTH = 64  # lists and objects inside each other; what raxss writes has fewer than ten
MAX_JSON_DIGITS = 100  # of a whole number
MAX_TOML_BYTES = 2**16  # of settings and studies, which people write by hand

Kind = type[RAxSSError]


def read_bytes(path: str | Path, what: str, most: int, *, why: str, error: Kind = DataError) -> bytes:
    """The content of a regular file of at most ``most`` bytes; an `OSError` of the system stays one.

    ``what`` names the file in messages (``"table 'events.tsv'"``), ``why`` gives the reason of the limit.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for without end
        raise error(f"{what} is not a regular file; check the path.")
    with open(path, "rb") as file:
        return read_open(file, what, most, why=why, error=error)


def read_open(file: IO[bytes], what: str, most: int, *, why: str, error: Kind = DataError) -> bytes:
    """`read_bytes` of a file that is open; never reads more than one byte above the limit."""
    size = os.fstat(file.fileno()).st_size
    content = file.read(most + 1) if size <= most else b""
    if max(size, len(content)) > most:  # it may grow meanwhile
        raise error(
            f"{what} has {max(size, len(content)):,} bytes; at most {most:,} are read, because {why}."
        )
    return content


def decoded(content: bytes, what: str, *, error: Kind = DataError) -> str:
    """Text in UTF-8, without byte order mark."""
    refuse_no_text(content, what, error=error)
    return content.decode("utf-8-sig")


def refuse_no_text(content: bytes, what: str, *, error: Kind = DataError) -> None:
    """Raise, with the line, unless the content is UTF-8 without zero bytes."""
    try:
        content.decode("utf-8-sig")
    except UnicodeDecodeError as found:
        line = content.count(b"\n", 0, found.start) + 1
        raise error(f"{what} is not UTF-8 in line {line}. Save it again as UTF-8.") from found
    if (place := content.find(b"\0")) >= 0:
        line = content.count(b"\n", 0, place) + 1
        raise error(f"{what} has a zero byte in line {line}, so it is no text. Copy or write it again.")


def read_text(
    path: str | Path, what: str, most: int, *, why: str = "no such file is longer", error: Kind = DataError
) -> str:
    """`read_bytes` as text in UTF-8."""
    return decoded(read_bytes(path, what, most, why=why, error=error), what, error=error)


def read_json(
    path: str | Path, *, what: str = "", most: int = MAX_JSON_BYTES, error: Kind = DataError
) -> Any:
    """The value of a JSON file; see `json_of`. An `OSError` of the system stays one."""
    what = what or display_name(Path(path))
    return json_of(
        read_bytes(path, what, most, why="no such file of raxss is longer", error=error), what, error=error
    )


def json_of(
    content: bytes,
    what: str,
    *,
    most_memory: int = MAX_JSON_MEMORY,
    finite: bool = True,
    unique: bool = True,
    error: Kind = DataError,
) -> Any:
    """The value of a JSON text, if decoding it takes at most ``most_memory`` bytes.

    Stricter than `json.loads`: numbers are finite, whole numbers have at most 100 digits, nothing is nested
    more than 64 deep, and an object has every field once. Files of others may hold ``NaN``: ``finite=False``,
    and who uses a number checks it. Where a seal over the text reveals an added field, ``unique=False``; of
    two, the last counts.

    >>> json_of(b'{"SamplingFrequency": 250, "SamplingFrequency": 500}', "'a_ieeg.json'")
    Traceback (most recent call last):
    ...
    raxss.errors.DataError: 'a_ieeg.json' is not JSON that can be read: it has the field 'SamplingFrequency' ...
    """
    needed = json_memory(content)
    if needed > most_memory:
        raise error(
            f"{what} has {len(content):,} bytes of JSON that would take up to {needed / 1e6:,.0f} MB of memory; at "
            f"most {most_memory / 1e6:,.0f} MB are taken, because no real one needs more. Check what wrote it."
        )
    try:
        strict: dict[str, Any] = (
            {"parse_constant": _no_constant, "parse_float": _finite, "parse_int": _whole} if finite else {}
        )
        if unique:
            strict["object_pairs_hook"] = _unique
        value = json.loads(content.decode("utf-8-sig"), **strict)
        if _is_deep(value):
            raise RecursionError
    except RecursionError as found:
        raise error(
            f"{what} has JSON nested more than {MAX_JSON_DEPTH} deep, which no real one is. Write or copy it again."
        ) from found
    except UnicodeDecodeError as found:
        raise error(f"{what} is not text in UTF-8. Write or copy it again.") from found
    except ValueError as found:
        reason = (
            f"{found.msg} in line {found.lineno}" if isinstance(found, json.JSONDecodeError) else str(found)
        )
        raise error(f"{what} is not JSON that can be read: {reason}. Write or copy it again.") from found
    return value


def json_memory(content: bytes) -> int:
    """Upper bound of the bytes that Python takes to decode a JSON text, from the characters in it.

    A list takes 104 bytes with its first values, an object 200, an entry of it 64, a text 60 beside its
    letters, any other value 42; the text itself is held as bytes and as letters. Characters inside texts
    count as well.
    """
    letters = 2 if content.isascii() else 8  # as text, and as the texts in it; four bytes each at most
    count = content.count
    return (
        len(content) * (1 + letters)
        + 104 * count(b"[")
        + 200 * count(b"{")
        + 64 * count(b":")
        + 30 * count(b'"')
        + 42 * count(b",")
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:  # the name of a field is quoted, never a value
            raise ValueError(
                f"it has the field {display_name(name)} twice; which value counts is not certain"
            )
        found[name] = value
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"it holds {name}, and JSON has no such number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _whole(text: str) -> int:
    if len(text) > MAX_JSON_DIGITS:
        raise ValueError("a number is too large")
    return int(text)


def _is_deep(value: Any) -> bool:
    """Whether lists and objects are nested deeper than `MAX_JSON_DEPTH`; does not recurse itself."""
    level = [value]  # all that are so deep
    for _ in range(MAX_JSON_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return bool(level)


# --- settings and studies


def read_toml_text(path: Path | str, what: str) -> str:
    """The text of a TOML file that a person wrote; an `OSError` of the system stays one."""
    return read_text(path, what, MAX_TOML_BYTES, why="what is written by hand is shorter", error=ConfigError)


def toml_of(text: str, what: str) -> dict[str, Any]:
    """The tables of a TOML text."""
    try:
        tables = tomllib.loads(text)
        if _is_deep(tables):
            raise RecursionError
        if _has_huge(tables):
            raise ValueError("a whole number is larger than 64 bits hold")
    except RecursionError as error:
        raise ConfigError(
            f"{what} has sections or lists more than {MAX_JSON_DEPTH} deep inside each other; no setting needs "
            "more than three."
        ) from error
    except ValueError as error:  # bad syntax; a number of thousands of digits
        raise ConfigError(f"{what} is not valid TOML: {error}.") from error
    return tables


def _has_huge(value: Any) -> bool:
    """Whether any whole number is beyond what TOML allows; no deeper than `MAX_JSON_DEPTH`."""
    if isinstance(value, dict | list):
        return any(map(_has_huge, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not -(2**63) <= value < 2**63
