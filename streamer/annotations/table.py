"""The rows of a table of annotations by key, in files that all processes of a machine map.

    manifests/<digest>/annotations.json    the fields of every row, the classes, and how keys are written
    manifests/<digest>/rows.arrows         hash, key, row                     by hash, then by key

A row is a record (see `formats.table.records`). A lookup is a binary search for the hash of the key and a comparison of
the keys: no index is held in memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar
from unicodedata import normalize

import msgspec
import numpy as np

from streamer.errors import ManifestCorruptError, ManifestError
from streamer.manifest.arrow_ipc.reader import map_table
from streamer.manifest.columns import BinaryColumn, Schema, Table, digest_of
from streamer.manifest.model import FieldSpec
from streamer.manifest.reader_lock import hold_folder
from streamer.manifest.staging import settle, workplace

# The format of a manifest request that asks for a table, not for a dataset.
ANNOTATIONS = "annotations"
HEAD_NAME = "annotations.json"
ROWS_NAME = "rows.arrows"
ROWS: Schema = {"hash": "int64", "key": "binary", "row": "binary"}

# The largest prime below 2^63: the tables of manifests have int64.
_PRIME = 2**63 - 25
# A name is compared with at most this many endings; keys with more have dots of their own.
MOST_ENDINGS = 8
B = TypeVar("B")
_FORMS: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")


class TableBuffers(NamedTuple, Generic[B]):
    """The buffers of a table, as a recoder makes them: each begins where its dtype may be, the wide ones first.

    Attributes:
        hashes: hash of each key, int64, ascending.
        key_offsets, row_offsets: places in the next two, one more than there are rows.
        keys, rows: the keys, and the records of the rows.
        head: an encoded `AnnotationHead`.
    """

    hashes: B
    key_offsets: B
    row_offsets: B
    keys: B
    rows: B
    head: B


class AnnotationHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts about all rows.

    Attributes:
        url: url of the file.
        fields: fields of every row.
        classes: names of the labels; empty if unknown.
        in_folders: whether keys contain folders.
        folder: the folder that contains all keys, which the names of samples may omit; "" if there is none.
        endings: endings of the keys, such as ".jpg"; empty if they have no extensions.
        prefix: the folder that contains all keys, where they are in several folders below it; "" if there is none. It
            follows from the keys.
    """

    url: str
    fields: tuple[FieldSpec, ...]
    classes: tuple[str, ...] = ()
    in_folders: bool = False
    folder: str = ""
    endings: tuple[str, ...] = ()
    prefix: str = ""

    def encode(self) -> bytes:
        """Returns the content of annotations.json; earlier versions read it where there is no prefix."""
        return msgspec.json.encode(self._facts())

    def digest(self, rows: Table) -> str:
        """Returns the identity of a table: 32 hex characters. It does not depend on the place of the file."""
        facts = msgspec.structs.replace(self, url="", prefix="")._facts()
        content = msgspec.json.encode([ANNOTATIONS, facts, digest_of(rows)])
        return blake2b(content, digest_size=16).hexdigest()

    def _facts(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found if self.prefix else {name: value for name, value in found.items() if name != "prefix"}

    def name(self, key: str) -> str:
        """Returns a sample's key, with folders if the table's keys have them; a table without any names only files."""
        if not self.in_folders:
            return key.rpartition("/")[2]
        return f"{self.folder}/{key}" if self.folder and "/" not in key else key

    def other_names(self, key: str, base: str) -> Iterator[str]:
        """Yields what the table may call a sample besides `name`: paths that begin above the dataset, other letters.

        Args:
            key: key of the sample.
            base: url of the dataset's folder, where it is known: keys may be whole urls, or begin within it.
        """
        names = [self.name(key), f"/{self.name(key)}"]
        if self.in_folders:
            names += (name for name in _begun_above(key, self.prefix or self.folder) if name != names[0])
            ends = _begun_above(key, base.rstrip("/"), reverse=True)
            names += (name for name in ends if name.startswith(self.prefix or self.folder))
        yield from names[1:]
        # macOS writes names in decomposed letters, most tables are written in composed ones.
        if not all(name.isascii() for name in names):
            for form in _FORMS:
                yield from (normalize(form, name) for name in names)

    def spellings(self, name: str) -> list[str]:
        """Returns possible spellings of a name: with the extensions of the keys, or without one if these have none."""
        return [name, *(name + ending for ending in self.endings)] if self.endings else [name, name.rpartition(".")[0]]


def _begun_above(key: str, folder: str, *, reverse: bool = False) -> Iterator[str]:
    """Yields a key as it is called from the folders above it, the longest first: "/b/cat/1" of "cat/1" in "/a/b".

    All names begin as the folder does, or, in reverse, all end as it does: "a/b/cat/1", "b/cat/1".
    """
    parts = folder.split("/") if folder else []
    for count in range(len(parts), 0, -1):
        above = parts[len(parts) - count :] if reverse else parts[:count]
        yield "/".join([*above, key])


class AnnotationTable:
    """Rows by key. Immutable, safe to use from any thread; takes no memory per row."""

    def __init__(self, path: Path, head: AnnotationHead, rows: Table) -> None:
        self.path = path
        self.head = head
        self.rows = rows
        hashes = rows["hash"]
        assert isinstance(hashes, np.ndarray)
        # A memoryview gives Python's integers, which `bisect` compares faster than numpy's.
        self._hashes = hashes.view(np.int64).data
        self._keys = _Strings(rows["key"])
        self._rows = _Strings(rows["row"])

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens the table in a folder, which must stay on the disk while the result lives.

        Raises:
            ManifestError: there is no table.
            ManifestCorruptError: a file is missing or malformed.
        """
        return hold_folder(path, cls.map_folder)

    @classmethod
    def open_and_verify(cls, path: Path) -> Self:
        """Opens a table and compares its content with its digest (1 GB/s); raises ManifestCorruptError for another."""
        table = cls.open(path)
        if (found := table.head.digest(table.rows)) != path.name:
            raise ManifestCorruptError(f"{path}: content has digest {found}", path=str(path))
        return table

    @classmethod
    def map_folder(cls, path: Path) -> Self:
        """Does the same as `open` for a folder that may be removed meanwhile: the mapped content stays."""
        try:
            head = msgspec.json.decode((path / HEAD_NAME).read_bytes(), type=AnnotationHead)
        except OSError as error:
            raise ManifestError(f"no annotations at {path}: {error.strerror}", path=str(path)) from error
        except msgspec.MsgspecError as error:
            raise ManifestCorruptError(f"{path / HEAD_NAME}: {error}", path=str(path)) from error
        return cls(path, head, map_table(path / ROWS_NAME, ROWS))

    def __repr__(self) -> str:
        return f"AnnotationTable({self.head.url}, {len(self)} rows)"

    def __len__(self) -> int:
        return len(self._hashes)

    def key(self, row: int) -> str:
        """Returns the key of a row, which is in 0..len-1."""
        return str(self._keys[row], "utf-8", "surrogateescape")

    def row(self, row: int) -> bytearray:
        """Returns the record of a row, in memory of its own."""
        return bytearray(self._rows[row])

    def find(self, key: str, base: str = "") -> int:
        """Returns the row of a sample's key, or -1; `base`: see `AnnotationHead.other_names`."""
        if (row := self._find_row_by_name(self.head.name(key))) >= 0:
            return row
        others = self.head.other_names(key, base)
        return next((row for name in others if (row := self._find_row_by_name(name)) >= 0), -1)

    def _find_row_by_name(self, name: str) -> int:
        likeliest = name if "." in name or not self.head.endings else name + self.head.endings[0]
        if (row := self._row_of(likeliest)) >= 0:
            return row
        return next((row for other in self.head.spellings(name) if (row := self._row_of(other)) >= 0), -1)

    def _row_of(self, text: str) -> int:
        name = text.encode("utf-8", "surrogateescape")
        hashes = self._hashes
        wanted = hash_of(name)
        row = bisect_left(hashes, wanted)
        while row < len(hashes) and hashes[row] == wanted:
            if self._keys[row] == name:
                return row
            row += 1
        return -1


def publish_table(head: AnnotationHead, rows: Table, place: Path, root: Path, *, durable: bool = True) -> Path:
    """Writes the folder `<root>/<digest>/` of a table of annotations, by way of a temporary folder; returns it."""
    # Imported here: an engine that starts does not need it.
    from streamer.manifest.arrow_ipc.writer import write_table

    write_table(place / ROWS_NAME, rows)
    (place / HEAD_NAME).write_bytes(head.encode())
    return settle(place, root / head.digest(rows), durable=durable, check=AnnotationTable.open_and_verify)


def publish_table_again(table: AnnotationTable, root: Path) -> Path:
    """Writes the folder of an open table whose files another program has removed; returns the folder."""
    with workplace(root) as place:
        return publish_table(table.head, table.rows, place, root, durable=False)


class _Strings:
    """Returns views of the strings of a column; 0.2 us each."""

    def __init__(self, column: object) -> None:
        assert isinstance(column, BinaryColumn)
        self._offsets = column.offsets.data
        self._content = column.content.data

    def __getitem__(self, row: int) -> memoryview:
        return self._content[self._offsets[row] : self._offsets[row + 1]]


def hash_of(name: bytes) -> int:
    """Returns a number below 2^63 for a name: its bytes as one number, modulo a prime."""
    return int.from_bytes(name, "little") % _PRIME
