"""Opens a manifest for reading: its objects, chunks and samples as numpy views over mapped files.

Used by the engine, by trainers and their workers (`loader/`, `batches/`), by the commands, and by all that makes or
reads datasets (`indexing/`, `recode/`, `formats/`, `media/`, `annotations/`, `shards/`).
Shapes: M chunks, n samples; k is the length of an argument.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamer.base.linux import map_file
from streamer.base.sorting import unique
from streamer.base.system_limits import limit_error
from streamer.errors import ManifestCorruptError, ManifestError
from streamer.manifest.arrow_ipc.reader import read_table
from streamer.manifest.columns import BinaryColumn, Table, decode_text, read_name
from streamer.manifest.layout import ROOT_LIMIT_BYTES, ROOT_NAME, Root, TableRun, decode_root, file_name
from streamer.manifest.model import Chunk, Codec, Extent, Facts, ObjectRecord, SampleName

Int64Array = NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)


class Manifest:
    """Objects, chunks and samples of one dataset.

    Immutable and safe to use from any thread; holds one read-only mapping per file, shared by all processes of
    a machine. Opening costs no time or memory per sample.

    Attributes:
        digest: 32 hex characters, the identity of the content.
        format: name of the container format.
        recoded: whether a recoder makes other bytes of the fetched ones. Then the chunk files have the starts of
            samples, and the manifest has none.
        path: the folder.
        urls: the indexed urls, as they were written when this folder was made.
        classes: class names by label: the names of folders, sorted, or those in the files of the dataset.
        chunk_bytes: wanted size of the chunks that the samples were cut into.
        total_bytes: sum of the sizes of all objects.
        samples, chunks, objects: numbers of samples, chunks and objects.
        content: the part of root.json that the digest covers.
        tables: the columns of each table, part by part.
    """

    def __init__(self, path: Path, root: Root, tables: list[dict[str, Table]]) -> None:
        content = root.content
        self.content = content
        self.tables = tables
        self.path = path
        self.digest = root.digest
        self.format = content.format
        self.recoded = content.codec != Codec.IDENTITY
        self.urls = tuple(root.urls)
        self.classes = content.facts.classes if content.facts else tuple(map(read_name, content.classes))
        self.chunk_bytes = content.chunk_bytes
        self.total_bytes = content.total_bytes
        self.samples, self.chunks, self.objects = map(content.count, ("samples", "chunks", "objects"))
        self._firsts = {table: [part.tables[table].first for part in content.parts] for table in content.schemas}

    @classmethod
    def open(cls, path: Path) -> Self:
        """Maps a manifest folder. Checks only versions, lengths and layout; `validation.open_and_verify` reads it all.

        Raises:
            ManifestError: there is no manifest.
            ManifestVersionError: it has another version.
            ManifestCorruptError: a file is missing, truncated or malformed.
            ConfigError: this process may open no more files, or map no more memory.
        """
        where = path / ROOT_NAME
        try:
            with where.open("rb") as file:
                raw = file.read(ROOT_LIMIT_BYTES + 1)
        except OSError as error:
            raise limit_error(error) or ManifestError(
                f"no manifest at {path}: {error.strerror}", path=str(path)
            ) from error
        root = decode_root(raw, str(where))
        kinds = root.content.schemas
        tables = [{table: _open_table(path, root, table, i) for table in kinds} for i in range(len(root.content.parts))]
        return cls(path, root, tables)

    def __repr__(self) -> str:
        return (
            f"Manifest({self.digest[:8]}, {self.format}, {self.samples} samples, {self.chunks} chunks, "
            f"{self.objects} objects, {self.total_bytes} bytes)"
        )

    def __reduce__(self) -> tuple[Callable[[Path], Manifest], tuple[Path]]:
        # A worker maps the same files.
        return type(self).open, (self.path,)

    @property
    def whole_objects(self) -> bool:
        """Whether every object is one sample, so that sample i is object i."""
        return self.content.whole_objects

    @property
    def digests(self) -> list[dict[str, str]]:
        """The digest that each table of each part should have."""
        return [{name: run.digest for name, run in part.tables.items()} for part in self.content.parts]

    @property
    def facts(self) -> Facts:
        """Facts about the whole dataset; without any, all fields are empty."""
        return self.content.facts or Facts()

    @property
    def parts(self) -> int:
        """Number of parts in which the tables are stored."""
        return len(self.tables)

    @cached_property
    def chunk_first(self) -> Int64Array:
        """Ordinal of each chunk's first sample, and the number of samples: int64, shape (M + 1,)."""
        firsts = self.column("chunks", "first_sample").view(np.int64)
        return _frozen(np.append(firsts, self.samples))

    @cached_property
    def chunk_samples(self) -> Int64Array:
        """Samples per chunk: int64, shape (M,)."""
        return _frozen(np.diff(self.chunk_first))

    @cached_property
    def chunk_local_bytes(self) -> Int64Array:
        """Bytes per chunk on the SSD, without header and checksums: int64, shape (M,).

        For a recoded dataset these are planned; the header of a chunk file has the real length.
        """
        return self.column("chunks", "local_bytes").view(np.int64)

    @cached_property
    def chunk_keys(self) -> NDArray[np.uint8]:
        """Names of the chunks in the cache: uint8, shape (M, 16)."""
        return self.column("chunks", "key").view(np.uint8)

    @property
    def chunk_words(self) -> NDArray[np.uint64]:
        """The first 8 bytes of each chunk's key as a little-endian number: uint64, shape (M,)."""
        return np.ascontiguousarray(self.chunk_keys[:, :8]).view("<u8").reshape(-1).astype(np.uint64, copy=False)

    @cached_property
    def labels(self) -> NDArray[np.int32]:
        """Class number of each sample, -1 if it has none: int32, shape (n,); empty unless `whole_objects`."""
        if not self.whole_objects:
            return _frozen(np.empty(0, np.int32))
        found = [_array(tables["samples"], "label") for tables in self.tables]
        return _frozen(found[0] if len(found) == 1 else np.concatenate(found)).view(np.int32)

    def column(self, table: str, name: str) -> NDArray[np.generic]:
        """Returns a column of numbers (or keys) of a table, over all parts; read-only, copied if there are several."""
        found = [_array(tables[table], name) for tables in self.tables]
        return _frozen(found[0] if len(found) == 1 else np.concatenate(found))

    def find_chunks(self, ordinals: NDArray[np.integer]) -> Int64Array:
        """Returns the number of the chunk that has each of these samples, which exist: int64, shape (k,)."""
        return self.chunk_first.searchsorted(ordinals, "right") - 1

    def chunk(self, index: int) -> Chunk:
        """Returns chunk number `index`, 0..M-1, with its extents.

        Raises:
            IndexError: there is no such chunk.
        """
        if not 0 <= index < self.chunks:
            raise IndexError(f"chunk {index} of {self.chunks}")
        part = bisect_right(self._firsts["chunks"], index) - 1
        table = self.tables[part]["chunks"]
        row = index - self._firsts["chunks"][part]
        first = int(self.chunk_first[index])
        samples = int(self.chunk_first[index + 1]) - first
        if self.whole_objects:
            records = map(self.object, range(first, first + samples))
            extents = tuple(Extent(record, 0, record.size) for record in records if record.size)
        else:
            firsts = _array(table, "first_extent")
            owned = self.tables[part]["extents"]
            base = self._firsts["extents"][part]
            end = base + len(_array(owned, "object"))
            stop = int(firsts[row + 1]) if row + 1 < len(firsts) else end
            rows = range(int(firsts[row]) - base, stop - base)
            numbers, starts, stops = (_array(owned, name) for name in ("object", "start", "stop"))
            extents = tuple(Extent(self.object(int(numbers[r])), int(starts[r]), int(stops[r])) for r in rows)
        return Chunk(
            index=index,
            key=_array(table, "key")[row].tobytes(),
            extents=extents,
            first_sample=first,
            samples=samples,
            fetch_bytes=int(_array(table, "fetch_bytes")[row]),
            local_bytes=int(_array(table, "local_bytes")[row]),
            codec=Codec(int(_array(table, "codec")[row])),
            hint=_binary(table, "hint")[row] if self.recoded else b"",
        )

    def sample_offsets(self, chunk: int) -> Int64Array:
        """Returns the bytes at which the samples of a chunk begin in it, and its length: int64, shape (samples + 1,).

        Not for recoded datasets, whose chunk files have the starts of samples.
        """
        first = int(self.chunk_first[chunk])
        stop = int(self.chunk_first[chunk + 1])
        offsets = np.empty(stop - first + 1, np.int64)
        offsets[:-1] = self._starts(np.arange(first, stop))
        offsets[-1] = self.chunk_local_bytes[chunk]
        return offsets

    def locate(self, ordinals: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Finds samples in their chunks.

        Args:
            ordinals: int64, shape (k,), each in 0..n-1, in any order.

        Returns:
            Chunk number, and chunk-local start and stop in bytes; int64, shape (k,) each. Start and stop are -1 in a
            recoded dataset.

        Raises:
            IndexError: an ordinal is outside of 0..n-1.
        """
        ordinals = np.asarray(ordinals, np.int64)
        # Negative ones are the largest as unsigned numbers.
        if len(ordinals) and np.maximum.reduce(ordinals.view(np.uint64)) >= self.samples:
            raise IndexError(f"ordinals {ordinals.min()}..{ordinals.max()} of {self.samples} samples")
        first = self.chunk_first
        chunk = first.searchsorted(ordinals, "right") - 1
        if self.recoded:
            return chunk, np.full_like(chunk, -1), np.full_like(chunk, -1)
        following = ordinals + 1
        inner = first[chunk + 1] != following
        stop = self.chunk_local_bytes[chunk]
        stop[inner] = self._starts(following[inner])
        return chunk, self._starts(ordinals), stop

    def name(self, ordinal: int) -> SampleName:
        """Returns path and label of a sample that is a whole object, else an empty name; raises IndexError."""
        if not 0 <= ordinal < self.samples:
            raise IndexError(f"sample {ordinal} of {self.samples}")
        if not self.whole_objects:
            return SampleName()
        part = bisect_right(self._firsts["samples"], ordinal) - 1
        row = ordinal - self._firsts["samples"][part]
        label = int(_array(self.tables[part]["samples"], "label")[row])
        return SampleName(_text(self.tables[part]["objects"], "key", row), label)

    def object(self, index: int) -> ObjectRecord:
        """Returns object number `index`, 0..objects-1.

        Raises:
            IndexError: there is no such object.
        """
        if not 0 <= index < self.objects:
            raise IndexError(f"object {index} of {self.objects}")
        part = bisect_right(self._firsts["objects"], index) - 1
        table = self.tables[part]["objects"]
        row = index - self._firsts["objects"][part]
        return ObjectRecord(
            url=self.content.base + _text(table, "key", row),
            size=int(_array(table, "size")[row]),
            version=_text(table, "version", row),
        )

    def extent_of(self, ordinal: int) -> Extent:
        """Returns where a sample is in its object (see `Chunk.extent_of`). A whole object is all of it.

        For a sample of a recoded dataset it is the range from the first to the last byte of its chunk in the object
        where the chunk begins, which the other samples of the chunk share.

        Raises:
            IndexError: there is no such sample.
        """
        chunk, start, stop = (int(column[0]) for column in self.locate(np.array([ordinal], np.int64)))
        if self.whole_objects:
            return Extent(self.object(ordinal), 0, stop - start)
        found = self.chunk(chunk)
        if self.recoded:
            first = found.extents[0]
            stops = (extent.stop for extent in found.extents if extent.object == first.object)
            return Extent(first.object, first.start, max(stops))
        return found.extent_of(start, stop)

    def _starts(self, ordinals: Int64Array) -> Int64Array:
        """Returns where these samples begin in their chunks, in bytes: int64, shape (k,)."""
        if len(self.tables) == 1:
            return _array(self.tables[0]["samples"], "start")[ordinals].astype(np.int64)
        starts = np.empty(len(ordinals), np.int64)
        owner = np.searchsorted(self._firsts["samples"], ordinals, side="right") - 1
        for part in unique(owner):
            mine = owner == part
            rows = ordinals[mine] - self._firsts["samples"][part]
            starts[mine] = _array(self.tables[part]["samples"], "start")[rows]
        return starts


def _open_table(path: Path, root: Root, name: str, part: int) -> Table:
    """Maps one file of a manifest; raises ManifestCorruptError if it does not have the bytes and rows of root.json."""
    file = file_name(name, part)
    where = path / file
    expected = root.file_bytes[file]
    try:
        mapping = map_file(where)
    except OSError as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be mapped: {error}"
        raise limit_error(error) or ManifestCorruptError(
            f"{where} {what}; index again", path=str(where), expected=expected
        ) from error
    if len(mapping) != expected:
        raise ManifestCorruptError(
            f"{where} has {len(mapping)} bytes, expected {expected}; index again", path=str(where), expected=expected
        )
    table = read_table(mapping, root.content.schemas[name], str(where))
    run: TableRun = root.content.parts[part].tables[name]
    if any(len(column) != run.count for column in table.values()):
        raise ManifestCorruptError(f"{where}: not the {run.count} rows expected", path=str(where))
    return table


def _array(table: Table, name: str) -> NDArray[np.generic]:
    column = table[name]
    assert isinstance(column, np.ndarray)
    return column


def _binary(table: Table, name: str) -> BinaryColumn:
    column = table[name]
    assert isinstance(column, BinaryColumn)
    return column


def _text(table: Table, name: str, row: int) -> str:
    return decode_text(_binary(table, name)[row])


def _frozen(values: NDArray[Scalar]) -> NDArray[Scalar]:
    values.flags.writeable = False
    return values
