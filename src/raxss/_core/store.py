"""Content-addressed store of partial results, so that a stopped run is resumed and nothing is computed twice.

    what determines a part -> key: SHA-256 of its canonical JSON -> FOLDER/NAME.json, whole or absent

Parts are written atomically and hold their key and a hash of their content, the seal: a part that was cut
short or changed, or that has another key, counts as missing. Two writers of one part write the same content.
Where a folder needs one owner at a time, the command that owns it holds `raxss._core.outputs.output_lock`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raxss._core.atomic import canonical_hash, json_ready, whole_file, write_text
from raxss._core.bounded import read_json
from raxss._core.outputs import remove
from raxss.errors import DataError, display_name

SEAL = "seal"
FORMAT = "format"
KEY = "key"
VALUE = "answer"  # entry of a part that holds one value
#: Errors of reading a damaged part.
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)

_log = logging.getLogger("raxss")


def seal_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of all entries but the seal itself, whatever their order."""
    return canonical_hash({name: value for name, value in content.items() if name != SEAL})


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """JSON content with its hash as a further entry."""
    return {**content, SEAL: seal_of(content)}


def unsealed(content: Mapping[str, Any], format: str = "") -> dict[str, Any]:
    """The content that was sealed; ValueError if it was changed since, or has another format."""
    if format and content[FORMAT] != format:
        raise ValueError(f"its format is {content[FORMAT]!r}, needed is {format!r}")
    if content[SEAL] != seal_of(content):
        raise ValueError("its content does not fit its seal")
    return {name: value for name, value in content.items() if name != SEAL}


def write_sealed(path: Path | str, content: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Write JSON with its seal atomically; ``indent`` None: on one line, for long lists of numbers."""
    write_text(path, _sealed_text(json_ready(dict(content)), indent))


def _sealed_text(content: Mapping[str, Any], indent: int | None) -> str:
    separators = (",", ":") if indent is None else None
    options: dict[str, Any] = {"ensure_ascii": False, "allow_nan": False, "separators": separators}
    return json.dumps(sealed(content), indent=indent, **options) + "\n"


@dataclass(frozen=True)
class Store:
    """A folder of parts.

    >>> import tempfile
    >>> store = Store(Path(tempfile.mkdtemp()), format="toy 1")
    >>> key = canonical_hash({"model": "m1", "file": "a.edf"})
    >>> store.get("a", key, lambda: {"rows": [0.5]})["rows"], store.get("a", key, lambda: {"rows": [0.7]})["rows"]
    ([0.5], [0.5])
    """

    folder: Path
    format: str = ""  # written into every part and required of it
    indent: int | None = 2  # of the JSON; None: one line, for long lists of numbers
    flushed: bool = True  # False: a power failure may lose a part, which its seal then reveals
    accepts_unsealed: bool = False  # read values without a seal, as raxss 0.1 wrote them
    entries: Mapping[str, type] = field(default_factory=dict)  # that every part must have, by type
    advice: str | None = None  # of the error about a part that cannot be written; None: the usual

    def path(self, name: str) -> Path:
        """The file of a JSON part."""
        return self.folder / f"{name}.json"

    def read(self, name: str, key: str) -> dict[str, Any] | None:
        """The content of a part; None if it is missing, of another key, or (with a warning) damaged."""
        try:
            found = self._load(name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except DAMAGE as error:
            _log.warning("the part %s is damaged (%s); it is computed again.", self.path(name).name, error)
            return None
        return found if found.get(KEY, key) == key else None

    def require(self, name: str, key: str) -> dict[str, Any]:
        """The content of a part that was written just now; DataError if it cannot be read."""
        try:
            found = self._load(name)
            if found.get(KEY, key) != key:
                raise ValueError("it has another key")
        except DAMAGE as error:
            raise DataError(
                f"the part {display_name(self.path(name))} cannot be read ({error}); it was cut short or changed. "
                "Run the command again."
            ) from error
        return found

    def write(self, name: str, key: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Write a part, and return its content as a reader gets it."""
        head = {FORMAT: self.format} if self.format else {}
        body: dict[str, Any] = json_ready({**head, KEY: key, **content})
        with self.file(self.path(name).name) as temporary:
            temporary.write_text(_sealed_text(body, self.indent), "utf-8")
        return body

    def get(self, name: str, key: str, compute: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The content of a part, which is computed and written first if it is missing."""
        found = self.read(name, key)
        if found is None:
            self.write(name, key, compute())
            found = self.require(name, key)  # from the file: the same value whether or not it was there
        return found

    def _load(self, name: str) -> dict[str, Any]:
        content = read_json(self.path(name))
        if self.accepts_unsealed and SEAL not in content:
            return {VALUE: content[VALUE]}
        body = unsealed(content, self.format)
        for entry, kind in {KEY: str, **self.entries}.items():
            if not isinstance(body.get(entry), kind):
                raise ValueError(f"it lacks its {entry}")
        return body

    @contextmanager
    def file(self, filename: str) -> Iterator[Path]:
        """Atomic write of a file of any kind beside the parts: yields the temporary path."""
        with whole_file(self.folder / filename, flushed=self.flushed, advice=self.advice) as temporary:
            yield temporary

    def keep_only(self, filenames: Collection[str]) -> None:
        """Remove all other files: parts of other inputs, and what killed runs left."""
        for left in self.folder.iterdir():
            if left.name not in filenames:
                remove(left)


def computed_once(place: Path, key: str, compute: Callable[[], Any]) -> Any:
    """The value in a file, computed and written first if the file is missing or damaged.

    A file without a key, as raxss 0.1 wrote it, is taken to be of this one.
    """
    store = Store(place.parent, accepts_unsealed=True)
    return store.get(place.name.removesuffix(".json"), key, lambda: {VALUE: compute()})[VALUE]
