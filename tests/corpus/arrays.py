"""Arrays and tables: sound ones, doubtful ones, bombs, pipes and links out of the folder."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import Case
from .edf import SECRET

CHUNK = 2**22
SAMPLES = np.random.default_rng(5).normal(size=(2, 1000))


def header(shape: tuple[int, ...], kind: str) -> bytes:
    """An array's own header, whatever follows."""
    raw = io.BytesIO()
    np.lib.format.write_array_header_1_0(raw, {"descr": kind, "fortran_order": False, "shape": shape})
    return raw.getvalue()


def packed(
    n_samples: int,
    kind: str,
    noise: int = 0,
    packing: int = zipfile.ZIP_DEFLATED,
    shape: tuple[int, ...] | None = None,
) -> Callable[[Path], Path]:
    """An archive of zeros that really are in it; of every 4 MB, ``noise`` bytes are random and do not pack."""

    def write(folder: Path) -> Path:
        rng, left = np.random.default_rng(0), n_samples * np.dtype(kind).itemsize
        with zipfile.ZipFile(folder / "a.npz", "w", packing, compresslevel=1) as archive:
            archive.writestr("rate.npy", header((), "<f8") + np.float64(250).tobytes())
            with archive.open("samples.npy", "w", force_zip64=True) as file:
                file.write(header(shape or (1, n_samples), kind))
                while left > 0:
                    size = min(left, CHUNK)
                    file.write((rng.bytes(noise) + bytes(CHUNK - noise))[:size])
                    left -= size
        return folder / "a.npz"

    return write


def lzma_dictionary(folder: Path) -> Path:
    """A small archive whose LZMA stream asks for a dictionary of 4 GB."""
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("samples.npy", header((1, 1000), "<f8") + SAMPLES[0].tobytes())
        start = archive.getinfo("samples.npy").header_offset + 30 + len("samples.npy")
    raw = bytearray((folder / "a.npz").read_bytes())
    raw[start + 5 : start + 9] = b"\xff\xff\xff\xff"  # after version, length and the byte of lc, lp and pb
    (folder / "a.npz").write_bytes(raw)
    return folder / "a.npz"


def long_header(folder: Path) -> Path:
    """An array whose header is said to be, and is, 300 MB long."""
    with (
        zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("samples.npy", "w", force_zip64=True) as file,
    ):
        file.write(b"\x93NUMPY\x02\x00" + (300 * 2**20).to_bytes(4, "little"))
        for _ in range(75):
            file.write(b" " * CHUNK)
    return folder / "a.npz"


def saved(name: str, *array: Any, **arrays: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        np.savez(folder / name, **arrays) if arrays else np.save(folder / name, *array)
        return folder / name

    return write


def text(content: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "a.csv").write_text(content)
        return folder / "a.csv"

    return write


def pipe(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        os.mkfifo(folder / name)
        return folder / name

    return write


def link(name: str, target: str | None = None) -> Callable[[Path], Path]:
    """A link to a file outside: to ``target``, or to a sound recording with something secret in it."""

    def write(folder: Path) -> Path:
        inside = folder / "inside"
        inside.mkdir()
        if target is None:
            (folder / name).write_bytes(SECRET + b"\n1\n2\n3\n")
        (inside / name).symlink_to(target or folder / name)
        return inside / name

    return write


def rows(*first: str) -> str:
    return "\n".join([*first, *(f"{left},{right}" for left, right in SAMPLES.T.tolist()), ""])


def cases() -> list[Case]:
    """All of them."""
    sound = {"samples": {0: SAMPLES[0], 1: SAMPLES[1]}}
    bomb, escape = frozenset({"bomb"}), frozenset({"escape"})
    numbers = np.arange(1000)[None] % 100
    return [
        Case("arrays-npz", saved("a.npz", samples=SAMPLES, rate=250.0), "ok", rates=(250, 250), **sound),
        Case("arrays-npz-times", saved("a.npz", data=SAMPLES, times_s=np.arange(1000) / 250 - 1), "ok",
             rates=(250, 250), starts=(-1.0,), **sound),
        Case("arrays-npz-integers", saved("a.npz", samples=numbers.astype("i1"), rate=250.0), "ok",
             samples={0: numbers[0].astype(float)}),
        Case("arrays-npz-flat", packed(8_000_000, "|i1"), "warning", ("flat",)),
        Case("arrays-npz-no-rate", saved("a.npz", samples=SAMPLES), "warning", ("rate-unknown",), **sound),
        Case("arrays-npy", saved("a.npy", SAMPLES), "warning", ("rate-unknown",), rates=(1, 1), **sound),
        Case("arrays-csv", text(rows("C3,C4")), "warning", ("rate-unknown",), names=("C3", "C4"), **sound),
        Case("arrays-csv-pandas", text(rows("0,1")), "refused", ("header-doubtful",)),
        Case("arrays-csv-counted", text(rows("1,2")), "refused", ("header-doubtful",)),
        Case("arrays-npz-transposed", saved("a.npz", samples=SAMPLES.T, rate=250.0), "warning",
             ("shape-doubtful",)),
        Case("arrays-npz-rate-1e9", saved("a.npz", samples=SAMPLES, rate=1e9), "refused", ("bad-rate",)),
        Case("arrays-npz-times-1e9", saved("a.npz", samples=SAMPLES, times_s=np.arange(1000) / 1e9), "refused",
             ("header-damaged",)),
        Case("arrays-bomb-int8", packed(2**28 - 200, "|i1"), "refused", ("too-large",), bomb),
        Case("arrays-bomb-bool", packed(10_000_000, "|b1"), "refused", ("too-large",), bomb),
        Case("arrays-bomb-float64", packed(2**25 - 20, "<f8"), "refused", ("too-large",), bomb),
        Case("arrays-bomb-noisy", packed(40_000_000, "<f8", noise=100_000), "refused", ("too-large",), bomb),
        Case("arrays-bomb-bzip2", packed(50_000_000, "|i1", packing=zipfile.ZIP_BZIP2), "refused",
             ("not-supported",), bomb),
        Case("arrays-bomb-lzma", lzma_dictionary, "refused", ("not-supported",), bomb),
        Case("arrays-bomb-channels", packed(8_000_000, "|i1", shape=(8_000_000, 1)), "refused",
             ("too-large",), bomb),
        Case("arrays-bomb-header", long_header, "refused", ("not-this-format",), bomb),
        Case("arrays-pipe-npz", pipe("a.npz"), "refused", ("not-readable",)),
        Case("arrays-pipe-csv", pipe("a.csv"), "refused", ("not-readable",)),
        Case("arrays-link-csv", link("a.csv"), "refused", ("outside",), escape),
        Case("arrays-link-npz", link("a.npz"), "refused", ("outside",), escape),
        Case("arrays-link-zero", link("a.csv", "/dev/zero"), "refused", ("outside",), escape),
    ]  # fmt: skip
