"""Parquet tables, with a bound on the memory they can take.

    path -> pyarrow.Table; refused where it would unpack to more than a table of its size should

A few kilobytes can hold a billion equal numbers, or one long text that a million rows share. The end of the
file states how many rows there are, and each page how many bytes it unpacks to; both are checked before
anything is unpacked, and texts are kept once until the room that all of them take is known. The end is read
here, by `_struct`: pyarrow's accessors of row groups and columns abort the process where it is damaged.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from raxss._core.bounded import read_bytes
from raxss.errors import DataError, display_name

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BYTES = 2**32
SMALL_FILE = 50_000_000  # bytes; of a larger one, the table may take twenty times as many
MAX_UNPACKED = 300_000_000
MAX_RATIO = 20
MAX_END_BYTES = 2**22  # of the end of a file, which lists columns and pieces; of a large file a fiftieth
WIDTHS = {"BOOLEAN": 1, "INT32": 8, "INT64": 8, "FLOAT": 8, "DOUBLE": 8, "BYTE_ARRAY": 16}  # in memory
ENCODINGS = {0, 2, 3, 4, 8}  # PLAIN, dictionaries and run lengths; others repeat beginnings of texts
MAX_PAGES = 1_000_000
MAX_STRUCTURES = 600_000  # at the end of a file: six or so for each piece of a column
MAX_TEXTS = 2_500_000
DICTIONARY = {2, 8}
SKIPPED = {1: 0, 2: 0, 3: 1, 7: 8}  # bytes of values that are not needed: true, false, small and real numbers


def read_parquet_table(path: Path | str) -> pa.Table:
    """A table of numbers and texts, read by the calling thread alone; refused if it would take too much memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    what = f"table {display_name(Path(path))}"
    content = read_bytes(path, what, MAX_BYTES, why="no table of raxss is longer")
    most = MAX_UNPACKED if len(content) <= SMALL_FILE else MAX_RATIO * len(content)
    end, most_of_end = int.from_bytes(content[-8:-4], "little"), max(MAX_END_BYTES, len(content) // 50)
    if content[-4:] == b"PAR1" and end > most_of_end:
        raise DataError(
            f"{what} has a list of columns of {end:,} bytes; at most {most_of_end:,} are read, because no table of "
            "raxss has so many."
        )
    source = pa.BufferReader(content)
    with pq.ParquetFile(source) as file:
        schema, texts = file.schema_arrow, _refuse_large(file.metadata.schema, content, most, what)
    plain_texts = [name for name in texts if not pa.types.is_dictionary(schema.field(name).type)]
    source.seek(0)
    with pq.ParquetFile(source, read_dictionary=plain_texts) as file:
        table = file.read(use_threads=False)
        table.validate(full=True)  # texts that are not UTF-8 would fail where they are used
    del content, source
    n_letters = sum(map(_letters, (table.column(name) for name in texts)))
    if table.nbytes + n_letters > most:
        raise _too_large(what, table.nbytes + n_letters, most)
    for name in plain_texts:
        place = schema.get_field_index(name)
        chunks = [chunk.dictionary_decode() for chunk in table.column(place).chunks]
        plain = pa.chunked_array(chunks, pa.string() if not chunks else None).cast(schema.field(place).type)
        table = table.set_column(place, schema.field(place), plain)
    return table


def _refuse_large(schema: Any, content: bytes, most: int, what: str) -> list[str]:
    """An error unless what the file states fits; the names of the columns of texts that are stored once."""
    columns = [schema.column(k) for k in range(len(schema))]
    for column in columns:
        is_nested = column.max_repetition_level or column.max_definition_level > 1
        if is_nested or column.physical_type not in WIDTHS:
            raise DataError(f"{what} has a column of lists, or of a kind that no table of raxss has.")
    n_rows, row_groups = _end_of(content, len(columns), what)
    in_memory = n_rows * sum(WIDTHS[column.physical_type] for column in columns)
    if in_memory > most:
        raise _too_large(what, in_memory, most)
    unpacked = n_pages = 0
    in_dictionary: set[str] = set()
    for pieces in row_groups:
        for column, (start, length) in zip(columns, pieces, strict=True):
            for size, has_dictionary in _pages(content, start, length, what):
                unpacked, n_pages = unpacked + size, n_pages + 1
                if has_dictionary and column.physical_type == "BYTE_ARRAY":
                    in_dictionary.add(column.name)
                if unpacked > most or n_pages > MAX_PAGES:
                    raise _too_large(what, unpacked, most)
    if len(in_dictionary) * n_rows > MAX_TEXTS:
        raise DataError(
            f"{what} has {n_rows:,} rows in {len(in_dictionary)} columns of texts; at most {MAX_TEXTS:,} "
            "texts are read, because each must be looked up. Make it anew."
        )
    return sorted(in_dictionary)


Pieces = list[tuple[int, int]]  # of the columns of one row group: where each begins, and its bytes


def _end_of(content: bytes, n_columns: int, what: str) -> tuple[int, list[Pieces]]:
    """The number of rows, and where the columns of each row group with any lie, by the end of the file."""
    end = int.from_bytes(content[-8:-4], "little")
    try:
        facts, _ = _Structures(content[-8 - end : -8]).struct(0, 0)
        n_rows, groups = facts[3], facts[4]
        found: list[Pieces] = []
        for group in groups:
            chunks, n_of_group = group[1], group[3]
            if len(chunks) != n_columns or n_of_group < 0 or any(1 in chunk for chunk in chunks):
                raise ValueError  # a path: the column would lie in another file
            facts_of = [chunk[3] for chunk in chunks]
            if any(fact[5] != n_of_group for fact in facts_of):
                raise DataError(f"{what} has columns of different lengths; it is damaged.")
            if n_of_group:  # without rows it may have no page to begin with
                found.append([_place_of(fact, len(content)) for fact in facts_of])
        if n_rows < 0 or n_rows != sum(group[3] for group in groups):
            raise ValueError
    except (IndexError, KeyError, ValueError, TypeError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{what} is not a whole Parquet table: its list of columns is damaged.") from error
    return n_rows, found


def _place_of(facts: dict[int, Any], n_bytes: int) -> tuple[int, int]:
    """First byte and length of a piece of a column, whose dictionary comes first."""
    start, length = facts[9], facts[7]
    if facts.get(11):
        start = min(start, facts[11])
    if not (0 < start <= n_bytes and 0 <= length <= n_bytes - start):
        raise ValueError
    return start, length


def _letters(column: pa.ChunkedArray) -> int:
    """How many bytes the texts of all rows take, each text counted as often as it stands there."""
    import pyarrow.compute as pc

    return sum(
        pc.sum(pc.binary_length(chunk.dictionary).take(chunk.indices)).as_py() or 0 for chunk in column.chunks
    )


def _too_large(what: str, n_bytes: int, most: int) -> DataError:
    return DataError(
        f"{what} would unpack to {n_bytes:,} bytes or more; at most {most:,} are read from a file of its size, "
        "because no table of raxss is packed so tightly. Make it anew."
    )


# --- structures, as Thrift's compact protocol writes them


def _pages(content: bytes, start: int, length: int, what: str) -> list[tuple[int, bool]]:
    """How many bytes each page of a piece of a column unpacks to, by its header; and if it has a dictionary."""
    sizes, place, end = [], start, start + length
    structures = _Structures(content)
    try:
        while place < end:
            structures.n_read = 0
            header, place = structures.struct(place, 0)
            encodings = [header[k].get(field, 0) for k, field in ((5, 2), (7, 2), (8, 4)) if k in header]
            if header[2] < 0 or header[3] < 0 or not set(encodings) <= ENCODINGS:
                raise ValueError
            sizes.append((header[2], 7 in header or bool(DICTIONARY & set(encodings))))
            place += header[3]
    except (IndexError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{what} has pages that cannot be read, or are packed in a way of others.") from error
    return sizes


class _Structures:
    """Reads structures out of bytes: whole numbers, lists and structures by number of field; texts become None."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.n_read = 0

    def struct(self, place: int, depth: int) -> tuple[dict[int, Any], int]:
        """The structure at a place, and the place behind it."""
        self.n_read += 1
        if depth > 8 or self.n_read > MAX_STRUCTURES:
            raise ValueError
        fields: dict[int, Any] = {}
        number = 0
        while (kind := self.content[place]) != 0:
            place += 1
            if kind >> 4:
                number += kind >> 4
            else:
                number, place = _signed(self.content, place)
            fields[number], place = self._value(place, kind & 15, depth)
        return fields, place + 1

    def _value(self, place: int, kind: int, depth: int) -> tuple[Any, int]:
        if kind in SKIPPED:
            return None, place + SKIPPED[kind]
        if kind in (4, 5, 6):
            return _signed(self.content, place)
        if kind == 8:
            length, place = _varint(self.content, place)
            return None, place + length
        if kind == 9:
            return self._list(place, depth)
        if kind == 12:
            return self.struct(place, depth + 1)
        raise ValueError  # sets and maps, which Parquet has none of

    def _list(self, place: int, depth: int) -> tuple[list[Any] | None, int]:
        """A list; only of structures are the values kept."""
        size, kind = self.content[place] >> 4, self.content[place] & 15
        place += 1
        if size == 15:
            size, place = _varint(self.content, place)
        if size > len(self.content) - place:  # each takes a byte at least
            raise ValueError
        if kind in (1, 2):  # in a list truth values take a byte each
            return None, place + size
        values = []
        for _ in range(size):
            value, place = self._value(place, kind, depth)
            if kind == 12:
                values.append(value)
        return values, place


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        value |= (content[place] & 127) << shift
        shift, place = shift + 7, place + 1
        if content[place - 1] < 128:
            return value, place
    raise ValueError


def _signed(content: bytes, place: int) -> tuple[int, int]:
    value, place = _varint(content, place)
    return (value >> 1) ^ -(value & 1), place
