"""Damaged copies of a file, from a seed: values of other kinds, huge numbers, missing keys, broken bytes."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np

RAW = "@raw:{}@"  # becomes a token of JSON that Python's encoder does not write
TOKENS = [
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999", "9" * 50, "9" * 5000, "[" * 3000, "-0", "1e308",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.5, 1e308, 5e-324, "", "x", "\0",
    "\ud800", "</script>", "=1+1", "a" * 5000, "1", "nan", [], {}, [[]], [None], [1, 2, 3], {"a": 1}, {"": {}},
    [[[[[[]]]]]],
    *(RAW.format(token) for token in TOKENS),
]  # fmt: skip
ODD_BYTES = [
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"\r", b"\n\n", b"\t\t", b",,", b"1e999", b"nan", b"{", b"[",
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value."""
    found = [path]
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            found += places(inner, (*path, key))
    return found


def mutated_json(value: Any, rng: np.random.Generator) -> bytes:
    """One to three changes to a JSON value, and now and then a change to its bytes."""
    value = copy.deepcopy(value)
    for _ in range(rng.integers(1, 4)):
        value = _changed(value, rng)
    text = json.dumps(value)
    for token in TOKENS:
        text = text.replace(f'"{RAW.format(token)}"', token)
    content = text.encode("utf-8", "surrogatepass")
    return mutated_bytes(content, rng) if rng.random() < 0.15 else content


def _changed(value: Any, rng: np.random.Generator) -> Any:
    found = places(value)
    # the outermost levels decide most: every second change is there
    near = [path for path in found if len(path) <= 2] if rng.random() < 0.5 else found
    path = near[rng.integers(len(near))]
    new = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
    if not path:
        return new if rng.random() < 0.1 else value
    above = value
    for key in path[:-1]:
        above = above[key]
    old, kind = above[path[-1]], rng.integers(6)
    if kind == 0:
        del above[path[-1]]
    elif kind == 1 and isinstance(above, list):
        above.append(copy.deepcopy(old))
    elif kind == 2 and isinstance(above, dict):
        above[f"{path[-1]}x"] = above.pop(path[-1])
    elif kind == 3:
        above[path[-1]] = [old]
    elif kind == 4 and isinstance(old, int | float) and not isinstance(old, bool):
        above[path[-1]] = [-old, old * 1e6, str(old), float(old), RAW.format("1e999")][rng.integers(5)]
    else:
        above[path[-1]] = new
    return value


def mutated_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    """Cut short, a byte changed, a piece left out, doubled or put in."""
    changed = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(len(changed) + 1))
        length = int(rng.integers(1, 20))
        kind = rng.integers(6)
        if kind == 0:
            del changed[place:]
        elif kind == 1 and place < len(changed):
            changed[place] = int(rng.integers(256))
        elif kind == 2:
            del changed[place : place + length]
        elif kind == 3:
            changed[place:place] = changed[place : place + length]
        elif kind == 4:
            changed[place:place] = rng.bytes(length)
        else:
            changed[place:place] = ODD_BYTES[rng.integers(len(ODD_BYTES))]
    return bytes(changed)


HEADER_PIECES = [
    b"", b"0", b"-1", b"-0", b"1e-300", b"1e308", b"1e309", b"nan", b"inf", b"99999999", b"-99999999", b"0x10",
    b"1_0", b"99999999999999999999", b"\xff\xff\xff\xff", b"\0\0\0\0", b"2 2", b"1.5", b".", b"+", b"-", b"1e",
    b"--1", b"  7", b"EDF+D", b"BDF+C", b",", b"=", b"\n", b"\r", b"\0", b"\xff", b"[", b"]", b"../", b"/", b"$b",
    b" ", b"\t", b"x", b":", b"(", b"~", b"#", b";", b"%", b"\\1", b"\xc2\xb5", b"e", b"_", b"\x1c", b"\x1f",
    b"\x85", b"\x0b", b"'",
]  # fmt: skip


def mutated_header(content: bytes, rng: np.random.Generator) -> bytes:
    """One to three damages to a header of text or of fields: bytes or lines put in, lost, doubled or exchanged."""
    for _ in range(rng.integers(1, 4)):
        at, kind, lines = (
            int(rng.integers(min(len(content), 1500) + 1)),
            rng.integers(8),
            content.split(b"\n"),
        )
        line, piece = int(rng.integers(len(lines))), HEADER_PIECES[rng.integers(len(HEADER_PIECES))]
        field = at // 4 * 4  # of a header whose fields have places
        content = [
            content[:at] + piece + content[at:],
            content[:at] + content[at + int(rng.integers(1, 6)) :],
            content[:at] + bytes([rng.integers(256)]) + content[at + 1 :],
            b"\n".join([*lines[:line], lines[int(rng.integers(len(lines)))], *lines[line:]]),
            b"\n".join([*lines[:line], *lines[line + 1 :]]),
            content[:field] + piece.ljust(8)[:8] + content[field + 8 :],
            content[: int(rng.integers(len(content) + 1))] if rng.random() < 0.3 else content,
            content[:at] + content[at : at + 8][::-1] + content[at + 8 :],
        ][kind]
    return content


def mutated_table(text: str, separator: str, rng: np.random.Generator) -> bytes:
    """One to three cells, columns or rows changed, and now and then the bytes."""
    rows = [line.split(separator) for line in text.splitlines()]
    for _ in range(rng.integers(1, 4)):
        row = rows[rng.integers(len(rows))]
        kind, place = rng.integers(6), int(rng.integers(len(row) or 1))
        if kind == 0 and row:
            del row[place]
        elif kind == 1 and row:
            row.insert(place, row[place])
        elif kind == 2:
            rows.insert(int(rng.integers(len(rows) + 1)), list(row))
        elif kind == 3 and len(rows) > 1:
            del rows[rng.integers(len(rows))]
        elif row:
            odd = [
                "", "n/a", "nan", "inf", "1e999", "-1", "0", "9" * 400, "x" * 300, '"', "a\0b", "../../x", "\u0661",
                "1_0", "=1+1", "A1-512", "A1-999999", "\u212b" * 50, "\x1b[31m", "/", ".", "C:\\x", "x" * 140_000,
            ]  # fmt: skip
            row[place] = odd[rng.integers(len(odd))]
    content = "\n".join(separator.join(row) for row in rows).encode()
    return mutated_bytes(content, rng) if rng.random() < 0.25 else content


def mutated_toml(text: str, rng: np.random.Generator) -> bytes:
    """One to three values or names of settings changed, and now and then the bytes."""
    lines = text.splitlines()
    odd = [
        "nan", "inf", "-inf", "1e999", "-1", "0", "true", '""', '"x"', "[]", "{}", "[1, 2]", '["a", 1]',
        "1979-05-27", "07:32:00", "9" * 50, "9" * 5000, "0.5", "[[[]]]", '{ a = 1 }', "'" + "x" * 300 + "'",
        "[" * 200 + "]" * 200, "1_0",
        '"\\ud800"', '"\\u0000"',
    ]  # fmt: skip
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(len(lines)))
        name, equals, _ = lines[place].partition("=")
        kind = rng.integers(5)
        if equals and kind < 3:
            lines[place] = f"{name}= {odd[rng.integers(len(odd))]}"
        elif equals and kind == 3:
            lines[place] = f"{name.strip()}x = 1"
        elif kind == 4:
            del lines[place]
            lines = lines or [""]
        else:
            lines.insert(
                place,
                lines[place].replace("[", "[[").replace("]", "]]") if rng.random() < 0.5 else lines[place],
            )
    content = "\n".join(lines).encode()
    return mutated_bytes(content, rng) if rng.random() < 0.25 else content
