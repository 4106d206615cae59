"""Content-addressed store of partial results, so that a stopped run is resumed and nothing is computed twice.

    what determines a part -> key: SHA-256 of its canonical JSON -> FOLDER/NAME.json, whole or absent

    store = Store(folder, format="raxss part 3")
    content = store.get(name, key, compute)     # read, or computed and written

A part is written beside its place and renamed, so a kill leaves it whole or absent. It holds its key and a hash of
its content, the seal: a part that was cut short or changed, or that has another key, counts as missing and is
computed again. Two writers of one part write the same content, and a reader gets it whole from either. Where a
folder needs one owner at a time, the command that owns it holds `raxss._core.outputs.output_lock`.
Next: jobs/ computes the parts that are missing, in several processes or on a cluster.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from raxss._core.atomic import canonical_hash, json_ready, whole_file, write_text
from raxss._core.bounded import read_json
from raxss._core.outputs import remove
from raxss.errors import DataError, display_name

SEAL = "seal"
FORMAT = "format"
VALUE = "answer"  # entry of a part that holds one value
DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
)  # of reading a damaged part

Value = TypeVar("Value")
_log = logging.getLogger("raxss")


def seal_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of all entries but the seal itself, whatever their order."""
    return canonical_hash({name: value for name, value in content.items() if name != SEAL})


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """JSON content with its hash as a further entry.

    >>> sorted(sealed({"rows": [1, 2]}))
    ['rows', 'seal']
    """
    return {**content, SEAL: seal_of(content)}


def unsealed(content: Mapping[str, Any], format: str = "") -> dict[str, Any]:
    """The content that was sealed; ValueError if it was changed since, or has another format.

    >>> unsealed(sealed({"format": "toy 1", "rows": [1, 2]}), "toy 1")
    {'format': 'toy 1', 'rows': [1, 2]}
    """
    if format and content[FORMAT] != format:
        raise ValueError(f"its format is {content[FORMAT]!r}, needed is {format!r}")
    if content[SEAL] != seal_of(content):
        raise ValueError("its content does not fit its seal")
    return {name: value for name, value in content.items() if name != SEAL}


def write_sealed(path: Path | str, content: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Write JSON with its seal, in one step; ``indent`` None: on one line, for long lists of numbers."""
    write_text(path, _sealed_text(json_ready(dict(content)), indent))


def read_sealed(path: Path | str, format: str = "") -> dict[str, Any]:
    """The content that `write_sealed` wrote; one of `DAMAGE` if the file is not as it was written.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "a.json"
    >>> write_sealed(place, {"format": "toy 1", "rows": [0.5]})
    >>> read_sealed(place, "toy 1")["rows"]
    [0.5]
    """
    return unsealed(read_json(path), format)


def _sealed_text(content: Mapping[str, Any], indent: int | None) -> str:
    separators = (",", ":") if indent is None else None
    text = json.dumps(
        sealed(content), indent=indent, ensure_ascii=False, allow_nan=False, separators=separators
    )
    return text + "\n"


@dataclass(frozen=True)
class Store:
    """A folder of parts.

    Parameters
    ----------
    format
        Written into every part and required of it; empty: none.
    key_name
        Entry of a part that holds its key.
    indent
        Of the JSON; None: one line, for long lists of numbers.
    flushed
        Whether a part must outlast a power failure. Where it need not, its seal tells later whether it is whole.
    accepts_unsealed
        Whether a value (see `computed_once`) without a seal is read: raxss 0.1 wrote none where the path tells the
        key.
    entries
        Entries that every part must have, and their types: a part may be sealed and yet not be one of ours.
    advice
        What the error about a part that cannot be written recommends; None: the usual.

    Examples
    --------
    >>> import tempfile
    >>> store = Store(Path(tempfile.mkdtemp()), format="toy 1")
    >>> key = canonical_hash({"model": "m1", "file": "a.edf"})
    >>> store.get("a", key, lambda: {"rows": [0.5]})["rows"], store.get("a", key, lambda: {"rows": [0.7]})["rows"]
    ([0.5], [0.5])
    >>> print(store.read("a", "another key"))
    None
    """

    folder: Path
    format: str = ""
    key_name: str = "key"
    indent: int | None = 2
    flushed: bool = True
    accepts_unsealed: bool = False
    entries: Mapping[str, type] = field(default_factory=dict)
    advice: str | None = None

    # JSON parts

    def path(self, name: str) -> Path:
        """The file of a JSON part."""
        return self.folder / f"{name}.json"

    def read(self, name: str, key: str) -> dict[str, Any] | None:
        """The content of a part; None if it is missing, damaged, or of another key."""
        found = self.recover(self.path(name).name, self._load)
        return found if found is not None and found.get(self.key_name, key) == key else None

    def require(self, name: str, key: str) -> dict[str, Any]:
        """The content of a part that was written just now; DataError if it cannot be read."""
        path = self.path(name)
        try:
            found = self._load(path)
            if found.get(self.key_name, key) != key:
                raise ValueError("it has another key")
        except DAMAGE as error:
            raise DataError(
                f"the part {display_name(path)} cannot be read ({error}); it was cut short or changed. "
                "Run the command again."
            ) from error
        return found

    def write(self, name: str, key: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Write a part, and return its content as a reader gets it."""
        head = {FORMAT: self.format} if self.format else {}
        keyed = {} if self.key_name in content else {self.key_name: key}
        body: dict[str, Any] = json_ready({**head, **keyed, **content})
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

    def _load(self, path: Path) -> dict[str, Any]:
        content = read_json(path)
        if self.accepts_unsealed and SEAL not in content:
            return {VALUE: content[VALUE]}
        body = unsealed(content, self.format)
        if not isinstance(body[self.key_name], str):
            raise ValueError("it has no key")
        for name, kind in self.entries.items():
            if not isinstance(body.get(name), kind):
                raise ValueError(f"it lacks its {name}")
        return body

    # Files of any kind

    @contextmanager
    def file(self, filename: str) -> Iterator[Path]:
        """Give a temporary path to write to, and move it into place if the block succeeds."""
        with whole_file(self.folder / filename, flushed=self.flushed, advice=self.advice) as temporary:
            yield temporary

    def recover(self, filename: str, read: Callable[[Path], Value]) -> Value | None:
        """What ``read`` makes of a file; None if there is none, or with a warning if it is damaged."""
        path = self.folder / filename
        try:
            return read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except DAMAGE as error:
            _log.warning("the part %s is damaged (%s); it is computed again.", filename, error)
            return None

    def keep_only(self, filenames: Collection[str]) -> None:
        """Remove all other files: parts of other inputs, and what killed runs left."""
        for left in self.folder.iterdir():
            if left.name not in filenames:
                remove(left)


def computed_once(place: Path, key: str, compute: Callable[[], Any]) -> Any:
    """The value in a file, which is computed and written first if the file is missing or damaged.

    Any value of JSON; a file without a key, as raxss 0.1 wrote it, is taken to be of this one.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "a.json"
    >>> computed_once(place, "k", lambda: [1.5]), computed_once(place, "k", lambda: [2.5])
    ([1.5], [1.5])
    """
    store = Store(place.parent, accepts_unsealed=True)
    return store.get(place.name.removesuffix(".json"), key, lambda: {VALUE: compute()})[VALUE]
