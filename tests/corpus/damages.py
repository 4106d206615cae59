"""Damage to the files of a recording that was written whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Write = Callable[[Path], Path]
Damage = Callable[[Path], Any]


def damaged(write: Write, damage: Damage) -> Write:
    """Writes a recording, then damages it."""

    def written(folder: Path) -> Path:
        path = write(folder)
        damage(path)
        return path

    return written


def replaced(suffix: str, make: Callable[[Path], Any]) -> Damage:
    """Something else in place of one of the files."""

    def damage(path: Path) -> None:
        path.with_suffix(suffix).unlink()
        make(path.with_suffix(suffix))

    return damage


def lost(suffix: str) -> Damage:
    return lambda path: path.with_suffix(suffix).unlink()


def annex_link(path: Path) -> None:
    path.symlink_to(f".git/annex/objects/Wq/3x/MD5E-s24--0/MD5E-s24--0{path.suffix}")


def annex_pointer(suffix: str) -> Damage:
    return content(f"/annex/objects/MD5E-s24--0{suffix}\n".encode(), suffix)


def text(old: str, new: str, suffix: str = "", name: str = "") -> Damage:
    """Replace some text, once, in a file beside the one given."""

    def damage(path: Path) -> None:
        file = path.with_name(name) if name else path.with_suffix(suffix or path.suffix)
        content = file.read_bytes().decode("latin-1")
        changed, count = re.subn(old, new, content, count=1)
        assert count == 1, f"{old!r} is not in {file.name}"
        file.write_bytes(changed.encode("latin-1"))

    return damage


def content(raw: bytes | Callable[[bytes], bytes], suffix: str = "") -> Damage:
    """Other bytes in one of the files."""

    def damage(path: Path) -> None:
        file = path.with_suffix(suffix or path.suffix)
        file.write_bytes(raw if isinstance(raw, bytes) else raw(file.read_bytes()))

    return damage


def put(offset: int, text: str, width: int = 8) -> Damage:
    """Write another text into a field of an EDF header."""
    return content(lambda raw: raw[:offset] + text.encode().ljust(width) + raw[offset + width :])


def cut(n_bytes: int, suffix: str = "") -> Damage:
    return content(lambda raw: raw[:-n_bytes], suffix)


def more(raw: bytes, suffix: str = "") -> Damage:
    return content(lambda before: before + raw, suffix)


def flipped(place: int, suffix: str = "") -> Damage:
    """Another byte in the middle of the data."""
    return content(lambda raw: raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :], suffix)
