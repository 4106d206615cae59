"""Paths of EDF files that are none: folders, pipes and links, within the folder and out of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import Case
from .edf import SECRET, plain

SOUND, HIDDEN = plain().bytes(), plain(patient=SECRET).bytes()
DESCRIPTION = b'{"Name": "x", "BIDSVersion": "1.8.0"}'
RUN = "sub-1/eeg/sub-1_task-rest_eeg.edf"
NIGHT = "inside/night.edf"

Tree = Mapping[str, bytes | Callable[[Path], Any]]  # content, or what makes something else there


def link(target: str) -> Callable[[Path], Any]:
    return lambda path: path.symlink_to(target)


def planted(tree: Tree, given: str) -> Callable[[Path], Path]:
    """Writes a tree of files, links and more, of which ``given`` is checked."""

    def write(folder: Path) -> Path:
        for name, content in tree.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content) if isinstance(content, bytes) else content(path)
        return folder / given

    return write


def beside_a_secret(write: Callable[[Path], Path], link_name: str = "") -> Callable[[Path], Path]:
    """A recording in a folder of its own, secrets outside of it, and perhaps a link for one of its files."""

    def written(folder: Path) -> Path:
        for suffix in (".bin", ".dat", ".hea"):
            (folder / f"secret{suffix}").write_bytes(SECRET * 100)
        inside = folder / "recording"
        (inside / "sub").mkdir(parents=True)
        path = write(inside)
        if link_name:
            (inside / link_name).unlink()
            (inside / link_name).symlink_to(folder / "secret.hea")
        return path

    return written


def cases() -> list[Case]:
    """All of them."""
    return [*places(), *escapes()]


def places() -> list[Case]:
    """Not a regular file, or none at all; or a link that stays inside."""

    def refused(name: str, tree: Tree, given: str, code: str) -> Case:
        return Case(f"edf-{name}", planted(tree, given), "refused", (code,))

    inner = {"real.edf": SOUND, "link.edf": link("real.edf")}
    annexed = {
        "set/.git/annex/objects/aa/KEY.edf": SOUND,
        "set/dataset_description.json": DESCRIPTION,
        f"set/{RUN}": link("../../.git/annex/objects/aa/KEY.edf"),
    }
    loop = {"a.edf": link("b.edf"), "b.edf": link("a.edf")}
    far = {"far/night.edf": SOUND, "near": link("far")}
    return [
        refused("absent", {}, "absent.edf", "not-found"),
        refused("is-a-folder", {"folder.edf": Path.mkdir}, "folder.edf", "not-readable"),
        refused("is-a-pipe", {"pipe.edf": os.mkfifo}, "pipe.edf", "not-readable"),
        refused("folder-with-a-pipe", {"data/pipe.edf": os.mkfifo}, "data", "not-readable"),
        refused("link-to-itself", loop, "a.edf", "not-readable"),
        refused("folder-of-nothing", {"notes.txt": b"nothing here"}, "", "not-a-recording"),
        refused("compressed", {"a.edf.gz": b"\x1f\x8b" + bytes(50)}, "a.edf.gz", "not-a-recording"),
        Case("edf-link-within-the-folder", planted(inner, "link.edf"), "ok"),
        Case(
            "edf-annex-link-within-the-dataset",
            planted(annexed, f"set/{RUN}"),
            "warning",
            ("sidecar-missing",),
        ),
        Case("edf-folder-given-by-a-link", planted(far, "near"), "ok"),
    ]


def escapes() -> list[Case]:
    """Names that lead to a file elsewhere, which must never be opened."""

    def escape(name: str, tree: Tree, given: str = NIGHT) -> Case:
        secret = {"outside/secret.edf": HIDDEN, f"outside/{RUN[6:]}": HIDDEN}
        write = planted({**secret, **tree}, given)
        return Case(f"edf-escape-{name}", write, "refused", ("outside",), frozenset({"escape"}))

    def absolute(path: Path) -> None:
        path.symlink_to(path.parents[1].absolute() / "outside" / "secret.edf")

    dataset = {"inside/dataset_description.json": DESCRIPTION}
    relative = {NIGHT: link("../outside/secret.edf")}
    steps = {NIGHT: link("next.edf"), "inside/next.edf": link("last"), "inside/last": relative[NIGHT]}
    alike = {"inside-too/secret.edf": HIDDEN, NIGHT: link("../inside-too/secret.edf")}
    run, subject = (
        {f"inside/{RUN}": link("../../../outside/secret.edf")},
        {"inside/sub-1": link("../outside")},
    )
    return [
        escape("absolute-link", {NIGHT: absolute}),
        escape("relative-link", relative),
        escape("chain-of-links", steps),
        escape("link-in-a-folder", relative, "inside"),
        escape("linked-folder", {"inside/more": link("../outside")}, "inside"),
        escape("dangling-link", {NIGHT: link("../outside/not-yet.edf")}),
        escape("device", {NIGHT: link("/dev/zero")}),
        escape("own-environment", {"inside/night.bdf": link("/proc/self/environ")}, "inside/night.bdf"),
        escape("pipe", {"outside/pipe": os.mkfifo, NIGHT: link("../outside/pipe")}),
        escape("out-of-a-dataset", {**dataset, **run}, f"inside/{RUN}"),
        escape("subject-elsewhere", {**dataset, **subject}, f"inside/{RUN}"),
        escape("name-that-begins-alike", alike),
    ]
