"""Finds the rows of a table of annotations by key, in a folder of two files that all processes of a machine map.

    manifests/<digest>/annotations.json    the fields of every row, the classes, and how keys are written
    manifests/<digest>/rows.arrows         hash, key, row                     by hash, then by key

A row is a record (see `formats.table.records`). A lookup is a binary search for the hash of the key and a comparison of
the keys: no index is held in memory. `parse.py` makes the content in a recoder, `recode/annotations.py` publishes the
folder, and `join.py` looks the keys of samples up. The engine maps tables (`engine/manifests/manifest_store.py`) and
writes lost ones again (`engine/engine.py`); `loader/` and `shards/` read their fields.
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

# Stands for the format in a `GetManifest` and in the job of a recoder that ask for a table, not for a dataset.
ANNOTATIONS = "annotations"
HEAD_NAME = "annotations.json"
ROWS_NAME = "rows.arrows"
ROWS: Schema = {"hash": "int64", "key": "binary", "row": "binary"}

# The largest prime below 2^63: the tables of manifests have int64.
_PRIME = 2**63 - 25
# A name is looked up with at most this many endings. Where keys have more, their dots are no beginnings of extensions.
MOST_ENDINGS = 8
B = TypeVar("B")
_FORMS: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")


class TableBuffers(NamedTuple, Generic[B]):
    """Holds the buffers of a table in the order in which a recoder returns them.

    Attributes:
        hashes: `hash_of` each key, int64, ascending.
        key_offsets: place of each key in `keys`, and of their end: int32 or int64, (rows + 1,).
        row_offsets: place of each record in `rows`, and of their end: int32 or int64, (rows + 1,).
        keys: bytes of the keys, in the order of the hashes.
        rows: records of the rows, in the same order.
        head: an encoded `AnnotationHead`.
    """

    hashes: B
    key_offsets: B
    row_offsets: B
    keys: B
    rows: B
    head: B


class AnnotationHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds facts about all rows, and how keys are spelled in this table.

    Attributes:
        url: url of the file.
        fields: fields of every row.
        classes: names of the labels; empty if unknown.
        in_folders: whether any key contains a folder.
        folder: the folder of all keys, which the names of samples may omit; "" if the keys are in several folders, or
            in none.
        endings: endings of the keys, such as ".jpg", the commonest first; empty if they have no extensions.
        prefix: the deepest folder above all keys, if these are in several folders; else "". It follows from the keys,
            and is no part of the digest.
    """

    url: str
    fields: tuple[FieldSpec, ...]
    classes: tuple[str, ...] = ()
    in_folders: bool = False
    folder: str = ""
    endings: tuple[str, ...] = ()
    prefix: str = ""

    def encode(self) -> bytes:
        """Returns the content of annotations.json, without a prefix that is "": earlier versions do not know it."""
        return msgspec.json.encode(self._facts())

    def digest(self, rows: Table) -> str:
        """Returns the identity of a table with these rows: 32 hex characters, independent of `url`."""
        facts = msgspec.structs.replace(self, url="", prefix="")._facts()
        content = msgspec.json.encode([ANNOTATIONS, facts, digest_of(rows)])
        return blake2b(content, digest_size=16).hexdigest()

    def _facts(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found if self.prefix else {name: value for name, value in found.items() if name != "prefix"}

    def name(self, key: str) -> str:
        """Returns the likeliest name of a sample in this table.

        It is the last part of the sample's key if no key of the table has a folder, else the whole key. A key without a
        folder gets `folder` in front.
        """
        if not self.in_folders:
            return key.rpartition("/")[2]
        return f"{self.folder}/{key}" if self.folder and "/" not in key else key

    def other_names(self, key: str, base: str) -> Iterator[str]:
        """Yields the less likely names of a sample in this table, after that which `name` returns.

        They are the likeliest name behind a slash, paths that begin above the dataset's folder, and all these names in
        composed and decomposed letters.

        Args:
            key: key of the sample.
            base: url of the dataset's folder, or "" if it is not known; the table may have whole urls, or their ends.
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
        """Returns the name, then the name with each of `endings`, or without its extension if keys have none."""
        return [name, *(name + ending for ending in self.endings)] if self.endings else [name, name.rpartition(".")[0]]


def _begun_above(key: str, folder: str, *, reverse: bool = False) -> Iterator[str]:
    """Yields a key behind each beginning of a folder's path, the longest first; in reverse behind each of its ends.

    "cat/1" and "a/b" give "a/b/cat/1" and "a/cat/1", in reverse "a/b/cat/1" and "b/cat/1".
    """
    parts = folder.split("/") if folder else []
    for count in range(len(parts), 0, -1):
        above = parts[len(parts) - count :] if reverse else parts[:count]
        yield "/".join([*above, key])


class AnnotationTable:
    """Returns the rows of a table by key. Immutable, safe to use from any thread; takes no memory per row.

    Args:
        path: folder of the table.
        head: facts about its rows.
        rows: the mapped columns of `ROWS`, ascending by hash.
    """

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
        """Opens the table in a folder, which stays on the disk while the result lives.

        Raises:
            ManifestError: the folder or its annotations.json is missing.
            ManifestCorruptError: a file is malformed, or rows.arrows is missing.
            ConfigError: this process may have no more descriptors.
        """
        return hold_folder(path, cls.map_folder)

    @classmethod
    def open_and_verify(cls, path: Path) -> Self:
        """Opens a table and compares all of its content with the digest that names its folder, at 1 GB/s.

        Raises:
            ManifestError: see `open`.
            ManifestCorruptError: see `open`; also if the digest differs.
        """
        table = cls.open(path)
        if (found := table.head.digest(table.rows)) != path.name:
            raise ManifestCorruptError(f"{path}: content has digest {found}", path=str(path))
        return table

    @classmethod
    def map_folder(cls, path: Path) -> Self:
        """Opens a table as `open`, but does not keep its folder from being removed: only the mapped content stays."""
        try:
            head = msgspec.json.decode((path / HEAD_NAME).read_bytes(), type=AnnotationHead)
        except OSError as error:
            raise ManifestError(f"no annotations at {path}: {error.strerror}", path=str(path)) from error
        except (ValueError, RecursionError) as error:
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
        """Returns the number of a sample's row, or -1 if it has none.

        Args:
            key: key of the sample.
            base: see `AnnotationHead.other_names`.
        """
        if (row := self._find_row_by_name(self.head.name(key))) >= 0:
            return row
        others = self.head.other_names(key, base)
        return next((row for name in others if (row := self._find_row_by_name(name)) >= 0), -1)

    def _find_row_by_name(self, name: str) -> int:
        """Returns the number of the row of a name in any of its spellings, the likeliest first, or -1."""
        likeliest = name if "." in name or not self.head.endings else name + self.head.endings[0]
        if (row := self._row_of(likeliest)) >= 0:
            return row
        return next((row for other in self.head.spellings(name) if (row := self._row_of(other)) >= 0), -1)

    def _row_of(self, text: str) -> int:
        """Returns the number of the row whose key is `text`, or -1."""
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
    """Writes the folder `<root>/<digest>/` of a table of annotations, and returns it; an intact one stays.

    Args:
        head: facts about the rows.
        rows: columns of `ROWS`, ascending by hash.
        place: temporary folder (`workplace`), which gets the files and then its final name.
        root: folder of all manifests.
        durable: whether it returns only when the disk has everything.

    Raises:
        ManifestError: the folder cannot get its name, and there is no intact one.
        OSError: a file cannot be written, or a broken folder cannot be removed.
    """
    # Imported here: an engine that starts does not need it.
    from streamer.manifest.arrow_ipc.writer import write_table

    write_table(place / ROWS_NAME, rows)
    (place / HEAD_NAME).write_bytes(head.encode())
    return settle(place, root / head.digest(rows), durable=durable, check=AnnotationTable.open_and_verify)


def publish_table_again(table: AnnotationTable, root: Path) -> Path:
    """Writes the folder of an open table whose files another program has removed, without waiting for the disk.

    Returns the folder. Raises ManifestError if it cannot be written.
    """
    with workplace(root) as place:
        return publish_table(table.head, table.rows, place, root, durable=False)


class _Strings:
    """Gives a view of each string of a column by its number; 0.2 us each."""

    def __init__(self, column: object) -> None:
        assert isinstance(column, BinaryColumn)
        self._offsets = column.offsets.data
        self._content = column.content.data

    def __getitem__(self, row: int) -> memoryview:
        return self._content[self._offsets[row] : self._offsets[row + 1]]


def hash_of(name: bytes) -> int:
    """Returns a number below 2^63 for a name: its bytes as one number, modulo a prime."""
    return int.from_bytes(name, "little") % _PRIME
