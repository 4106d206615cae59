"""Sealed model folders and checkpoints: read within limits, and verified before anything of them is decoded.

    folder -> open_model -> ModelFiles: the entries of config.json, history, tensors by name, dtype and shape
                                        weights() -> the bytes of model.safetensors, if they are the sealed ones
    file   -> open_plain, read_tensor_header, read_all: the same for a checkpoint, which is one safetensors file

Sizes are compared with limits before anything is read, and links are refused. A hash finds damage, mixed-up files
and careless edits; it does not stop somebody who computes the hashes anew. Load models from people you trust.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from raxss._core.atomic import json_ready
from raxss._core.bounded import json_of
from raxss._core.memory import gigabytes
from raxss.errors import ModelError, ModelWarning

FORMAT = "raxss-model-2"
UNSEALED_FORMAT = "raxss-model-1"  # up to raxss 0.1: only the weights have a hash
FACTS, WEIGHTS, HISTORY = "config.json", "model.safetensors", "history.csv"
CARD, SETTINGS = "README.md", "settings.toml"
SEALED = (WEIGHTS, SETTINGS, HISTORY, CARD)  # the files that config.json has hashes of
SEAL = "config_sha256"  # of the text of config.json without this entry
FILES, TENSORS = "files", "tensors"
_END = b"\n}\n"  # of the text of config.json

MIB = 2**20
MOST_TENSORS = 20_000  # half of them of the network, half of what is kept with it
MOST_WEIGHT_BYTES = 2**31 + 2**24  # half of them of the network, as much as the largest ensemble has
MOST_HEADER_BYTES = 16 * MIB  # of a safetensors file: 100,000 tensors with names of 100 letters
MOST_JSON_MEMORY = 500_000_000  # bytes; digests of 800,000 training series take 300 million
MOST_BYTES: Mapping[str, int] = {
    FACTS: 64 * MIB,  # digests of 800,000 training series
    WEIGHTS: MOST_WEIGHT_BYTES + 8 + MOST_HEADER_BYTES,
    CARD: 16 * MIB,
    SETTINGS: 16 * MIB,
    HISTORY: 16 * MIB,  # 100,000 epochs
}
ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
}
"""Bytes of a number by the name that safetensors has for its dtype."""

COPY_AGAIN = "Copy the model again, or refit."
GIVE_FOLDER = "Give the folder that `raxss fit` or save_pretrained wrote."


# Single files ------------------------------------------------------------------------------------------------


@contextmanager
def open_plain(path: Path, label: str, *, most: int, advice: str = COPY_AGAIN) -> Iterator[BufferedReader]:
    """Open a regular file of at most ``most`` bytes; links, pipes and folders are refused."""
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC"):  # some systems lack some of them
        flags |= getattr(os, name, 0)
    try:
        if path.is_symlink():
            raise OSError(errno.ELOOP, "")
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            raise ModelError(
                f"{label} is a link, which may lead to any file; it was not opened. Put a copy of the file itself "
                "in its place."
            ) from None
        reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        raise ModelError(f"{label} cannot be read ({reason}). {advice}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, socket or device"
        raise ModelError(f"{label} cannot be read: it is {kind}, needed is a regular file. {advice}")
    with open(descriptor, "rb") as file:
        if status.st_size > most:
            raise ModelError(
                f"{label} has {gigabytes(status.st_size)}; at most {gigabytes(most)} are read, because larger ones "
                f"would fill the memory. {advice}"
            )
        yield file


def read_all(file: BinaryIO, label: str, *, advice: str = COPY_AGAIN) -> bytes:
    """The whole content of an open file, of the size that `open_plain` found."""
    size = os.fstat(file.fileno()).st_size
    try:
        file.seek(0)
        content = file.read(size)
    except (OSError, MemoryError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it does not fit into memory"
        raise ModelError(f"{label} cannot be read ({reason}). {advice}") from error
    if len(content) != size:
        raise ModelError(f"{label} changed while it was read. {advice}")
    return content


def bounded_json(content: bytes, label: str, *, advice: str = COPY_AGAIN) -> Any:
    """JSON, refused by the memory that it would take before it is decoded."""
    try:
        return json_of(
            content, label, most_memory=MOST_JSON_MEMORY, finite=False, unique=False, error=ModelError
        )
    except ModelError as error:
        # Only the place of the fault: the text may hold names.
        fault = error.__cause__
        if fault is None:  # refused before it was decoded, for the memory that it would take
            raise ModelError(f"{error} {advice}") from error
        place = (
            f"at position {fault.pos:,}" if isinstance(fault, json.JSONDecodeError) else type(fault).__name__
        )
        raise ModelError(f"{label} cannot be read: it is not valid JSON ({place}). {advice}") from error


# Tensors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorHeader:
    """Header of a safetensors file."""

    start: int  # where the numbers begin in the file
    dtypes: dict[str, str]  # under the names of safetensors: "F32"
    shapes: dict[str, tuple[int, ...]]
    places: dict[str, tuple[int, int]]  # first and last byte of each tensor, from ``start``
    metadata: dict[str, str]

    def described(self) -> dict[str, list[Any]]:
        """Dtype and shape of each tensor, as config.json has them."""
        return {name: [self.dtypes[name], list(self.shapes[name])] for name in sorted(self.dtypes)}

    def n_numbers(self, prefix: str) -> int:
        """Total size of the tensors whose names begin so."""
        return sum(math.prod(shape) for name, shape in self.shapes.items() if name.startswith(prefix))

    def array(self, content: bytes, name: str) -> NDArray[np.float64]:
        """A float64 array out of the content of the file."""
        if self.dtypes.get(name) != "F64":
            raise ValueError(f"its {name!r} is {self.dtypes.get(name, 'missing')}; needed is F64")
        count = math.prod(self.shapes[name])
        found = np.frombuffer(content, np.dtype("<f8"), count, self.start + self.places[name][0])
        return found.reshape(self.shapes[name]).astype(np.float64)


def read_tensor_header(
    file: BinaryIO, label: str, *, most_tensors: int = MOST_TENSORS, advice: str = COPY_AGAIN
) -> TensorHeader:
    """The header of a safetensors file, if it describes the file to the last byte.

    safetensors itself would read a header of 100 MB, which costs gigabytes.
    """

    def refuse(reason: str) -> ModelError:
        return ModelError(f"{label} cannot be read: {reason}. {advice}")

    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    n_header = int.from_bytes(file.read(8), "little")
    if size < 8 or n_header > size - 8:
        raise refuse(f"it is no safetensors file, or was cut off: it has {size:,} bytes")
    if n_header > MOST_HEADER_BYTES:
        raise refuse(
            f"its header has {gigabytes(n_header)}; at most {gigabytes(MOST_HEADER_BYTES)} are read, because "
            "larger ones would fill the memory"
        )
    text = file.read(n_header)
    n_tensors = text.count(b'"data_offsets"')  # before they are parsed, which takes long
    if n_tensors > most_tensors:
        raise refuse(
            f"it has {n_tensors:,} tensors; at most {most_tensors:,} are read, because no network has more"
        )
    header = bounded_json(text, f"the header of {label}", advice=advice)
    if not isinstance(header, dict):
        raise refuse(f"its header is {type(header).__name__}, needed is an object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise refuse("the metadata in its header are no texts")
    found = TensorHeader(8 + n_header, {}, {}, {}, metadata)
    for number, (name, entry) in enumerate(header.items()):
        dtype, shape, place = _checked_entry(entry)
        if dtype is None:
            raise refuse(
                f"entry {number} of its header is not dtype, shape and place of a tensor that go together"
            )
        found.dtypes[name], found.shapes[name], found.places[name] = dtype, shape, place
    last = 0
    for first, end in sorted(found.places.values()):
        if first != last:
            raise refuse("its tensors overlap, or leave gaps")
        last = end
    if last != size - found.start:
        raise refuse(f"its header describes {found.start + last:,} bytes, but it has {size:,}")
    return found


def _checked_entry(entry: Any) -> tuple[str | None, tuple[int, ...], tuple[int, int]]:
    """Dtype, shape and place of a tensor; a dtype of None where they do not go together."""
    if isinstance(entry, dict) and set(entry) == {"dtype", "shape", "data_offsets"}:
        dtype, shape, place = entry["dtype"], entry["shape"], entry["data_offsets"]
        are_lists = isinstance(shape, list) and isinstance(place, list) and len(place) == 2
        if are_lists and all(type(number) is int and number >= 0 for number in (*shape, *place)):
            known = isinstance(dtype, str) and dtype in ITEM_BYTES
            if known and place[1] - place[0] == math.prod(shape) * ITEM_BYTES[dtype]:
                return dtype, tuple(shape), (place[0], place[1])
    return None, (), (0, 0)


def digest_around(content: bytes, found: str, start: int) -> str:
    """SHA-256 of a file with zeros in place of its own digest ``found``.

    Empty where the digest is not exactly once in the first ``start`` bytes.
    """
    head = content[:start]
    mark = f'"sha256":"{found}"'.encode()
    if head.count(mark) != 1:
        return ""
    place = head.index(mark) + len(b'"sha256":"')
    digest = hashlib.sha256(memoryview(content)[:place])
    digest.update(b"0" * len(found))
    digest.update(memoryview(content)[place + len(found) :])
    return digest.hexdigest()


# Model folders -----------------------------------------------------------------------------------------------


def sealed_text(facts: Mapping[str, Any], contents: Mapping[str, bytes], tensors: Mapping[str, Any]) -> str:
    """The text of config.json: the entries, size and hash of the other files, and the hash of all that.

    ``contents``: of the other files, by name; ``tensors``: as `TensorHeader.described` has them.
    """
    files = {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents.items()
    }
    entries = json_ready({**facts, FILES: files, TENSORS: tensors})
    text = json.dumps(entries, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    return text.removesuffix(_END.decode()) + f',\n  "{SEAL}": "{digest}"' + _END.decode()


def _has_whole_seal(content: bytes) -> bool:
    """Whether the last entry of config.json is the hash of all the text before it."""
    mark = f',\n  "{SEAL}": "'.encode()
    place = len(content) - len(_END) - 1 - 64 - len(mark)
    if place < 0 or not content.endswith(b'"' + _END) or not content.startswith(mark, place):
        return False
    found = content[place + len(mark) : -len(_END) - 1]
    digest = hashlib.sha256(memoryview(content)[:place])
    digest.update(_END)
    return digest.hexdigest().encode() == found


@dataclass
class ModelFiles:
    """An open model folder whose text files were checked."""

    name: str
    facts: dict[str, Any]  # the entries of config.json, without its seal
    sealed: bool
    history: bytes  # content of history.csv
    header: TensorHeader  # of model.safetensors
    _file: BinaryIO

    def weights(self) -> bytes:
        """The content of model.safetensors, if it is the file that config.json was written with."""
        content = read_all(self._file, _label(WEIGHTS, self.name))
        if hashlib.sha256(content).hexdigest() != self.facts.get("weights_sha256"):
            raise _other_file(WEIGHTS, self.name, "its SHA-256 differs")
        return content


@contextmanager
def open_model(folder: Path) -> Iterator[ModelFiles]:
    """Open a model folder: limits, links and the seal are checked, and no tensor is read yet.

    A folder of raxss 0.1 has no seal: a `ModelWarning` says so, and only its weights and settings are
    checked.
    """
    name = folder.name
    facts, seal = _read_sealed_facts(folder)
    contents: dict[str, bytes] = {}
    for text in (HISTORY,) if seal is None else (SETTINGS, HISTORY, CARD):
        contents[text] = _read_text(folder, text)
        if seal is not None and hashlib.sha256(contents[text]).hexdigest() != seal[text]["sha256"]:
            raise _other_file(text, name, "its SHA-256 differs")
    label = _label(WEIGHTS, name)
    with open_plain(folder / WEIGHTS, label, most=MOST_BYTES[WEIGHTS]) as file:
        if seal is not None:
            size, stated = os.fstat(file.fileno()).st_size, seal[WEIGHTS]["size"]
            if size != stated:
                raise _other_file(WEIGHTS, name, f"{size:,} bytes, needed are {stated:,}")
            if facts["weights_sha256"] != seal[WEIGHTS]["sha256"]:
                raise ModelError(
                    f"{FACTS} in model {name!r} has two different hashes of {WEIGHTS}. {COPY_AGAIN}"
                )
        header = read_tensor_header(file, label)
        if seal is not None and facts[TENSORS] != header.described():
            raise _other_file(WEIGHTS, name, "names, dtypes or shapes of its tensors differ")
        if seal is None:
            warnings.warn(
                f"the model {name!r} was written by raxss 0.1 and is not sealed: its weights and settings are "
                "checked, but changes of its class names or other facts would not be noticed. Load it and save it "
                "anew (save_pretrained) to seal it.",
                ModelWarning,
                stacklevel=5,
            )
        yield ModelFiles(name, facts, seal is not None, contents[HISTORY], header, file)


def read_facts(folder: Path) -> dict[str, Any]:
    """The entries of config.json of a model folder, if its seal is whole; nothing else is read."""
    return _read_sealed_facts(folder)[0]


def _read_sealed_facts(folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The entries of config.json, and size and hash of each other file: None where it has no seal."""
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        raise ModelError(f"there is no model folder {folder.name!r}: {found} was found there. {GIVE_FOLDER}")
    if missing := [name for name in (FACTS, WEIGHTS, HISTORY) if not os.path.lexists(folder / name)]:
        raise ModelError(
            f"the folder {folder.name!r} is not a whole raxss model: {', '.join(missing)} is missing. {GIVE_FOLDER}"
        )
    label = _label(FACTS, folder.name)
    content = _read_text(folder, FACTS)
    facts = bounded_json(content, label)
    stated = facts.get("format") if isinstance(facts, dict) else type(facts).__name__
    if stated not in (FORMAT, UNSEALED_FORMAT):
        raise ModelError(
            f"the folder {folder.name!r} is not a model of this version: its format is {str(stated)[:40]!r}, "
            f"needed is {FORMAT!r}. It may belong to another program or to a newer raxss."
        )
    if stated == UNSEALED_FORMAT:
        if {SEAL, FILES, TENSORS} & set(facts):
            raise ModelError(
                f"{label} was changed after the model was saved: its format {stated!r} has no seal, but it has "
                f"parts of one. {COPY_AGAIN}"
            )
        return facts, None
    if not _has_whole_seal(content):
        raise ModelError(
            f"{label} was changed after the model was saved: its text does not match the SHA-256 in it. Settings "
            f"of a model are changed in Python (set_params, then save_pretrained), not in the file. {COPY_AGAIN}"
        )
    seal = facts.get(FILES)
    if not isinstance(seal, dict) or set(seal) != set(SEALED) or not all(map(_is_sealing, seal.values())):
        raise ModelError(f"{label} does not say size and SHA-256 of {', '.join(SEALED)}. {COPY_AGAIN}")
    if not isinstance(facts.get(TENSORS), dict) or "weights_sha256" not in facts:
        raise ModelError(f"{label} does not say what its tensors are. {COPY_AGAIN}")
    return {key: value for key, value in facts.items() if key != SEAL}, seal


def _is_sealing(entry: Any) -> bool:
    return isinstance(entry, dict) and type(entry.get("size")) is int and isinstance(entry.get("sha256"), str)


def _read_text(folder: Path, name: str) -> bytes:
    label = _label(name, folder.name)
    with open_plain(folder / name, label, most=MOST_BYTES[name]) as file:
        return read_all(file, label)


def _label(file: str, name: str) -> str:
    return f"{file} in model {name!r}"


def _other_file(file: str, name: str, difference: str) -> ModelError:
    return ModelError(
        f"{_label(file, name)} is not the file that {FACTS} was written with ({difference}); the model is damaged, "
        f"was changed, or was mixed with another. {COPY_AGAIN}"
    )
