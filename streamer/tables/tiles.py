"""Makes samples of the rows of arrays that are stored in tiles; used by HDF5 and zarr, which call a tile a chunk.

A tile is a box of items that is stored, and compressed, as a whole. The arrays of a dataset have the same length along
axis 0, and a sample is a row of all of them. If there is one array and its rows are stored one after the other, they
are spans. All other rows are in blocks: runs of rows, with every tile that has a part of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import ConfigError, RecodeError
from streamer.formats.base import Block, Facts, FieldSpec, ObjectRecord, Opener, Records, Span
from streamer.formats.table.records import TableOpener, find_dtype, head_bytes, head_dtype
from streamer.tables.npy import ArrayRows, RowOpener, kind_of_rows

Int64Array = NDArray[np.int64]

# Max tiles of a block: its hint has 15 bytes for each (see `blocks.LONGEST_HINT`), and a manifest has all hints.
_TILES_PER_BLOCK = 2000
# Max bytes of the records of a block, unless a single tile has more: a recoder holds them in memory.
_RECORD_BYTES = 64 << 20
# Max bytes of consecutive rows without a tile. They are part of the block before them.
_MAX_UNWRITTEN_BYTES = 128 << 20


class ArraysError(ValueError):
    """Raised for arrays whose rows cannot be read."""


class TileHint(msgspec.Struct, frozen=True, array_like=True):
    """A tile of a block, for the recoder.

    Attributes:
        origin: place of the tile's first item in the array; along axis 0 it is counted from the first row of the block.
        length: bytes of the tile as stored.
        mask: filters that were left out for the tile, one bit each (HDF5).
    """

    origin: tuple[int, ...]
    length: int
    mask: int = 0


class ColumnHint(msgspec.Struct, frozen=True, array_like=True):
    """An array in a block, for the recoder.

    Attributes:
        kind: kind of the field. The recoder compares it with the facts.
        tile: shape of each tile.
        codecs: how tiles are encoded, in a form that the format chooses; None or empty if they are items as they are.
        fill: bytes of an item that is in no tile, or empty for zero.
        tiles: the tiles, in the order of their bytes in the block.
    """

    kind: str
    tile: tuple[int, ...]
    codecs: Any
    fill: bytes
    tiles: tuple[TileHint, ...]


class Tiles(msgspec.Struct, frozen=True):
    """The places of the tiles of an array.

    Attributes:
        origins: place of the first item of each tile, sorted: int64, shape (tiles, axes).
        starts: byte of its object at which each tile begins: int64, shape (tiles,).
        lengths: bytes of each tile: int64, shape (tiles,).
        masks: `TileHint.mask` of each tile: int64, shape (tiles,).
        objects: object of each tile; empty if all are in the object that is indexed.
    """

    origins: Int64Array
    starts: Int64Array
    lengths: Int64Array
    masks: Int64Array
    objects: Sequence[ObjectRecord] = ()

    def __len__(self) -> int:
        return len(self.starts)


_NONE = np.empty(0, np.int64)
NO_TILES = Tiles(_NONE.reshape(0, 1), _NONE, _NONE, _NONE)


def no_tiles(axes: int) -> Tiles:
    """Returns the places of no tiles, for an array with `axes` axes."""
    return Tiles(_NONE.reshape(0, axes), _NONE, _NONE, _NONE)


class TileColumn(msgspec.Struct, frozen=True):
    """An array whose rows are values of one field.

    Attributes:
        dtype: dtype of the items as stored.
        shape: shape of the array, whose rows are along axis 0.
        tile: shape of each tile, with as many axes, or the shape of the array if it has no tiles.
        tiles: places of the tiles that were written.
        start: byte of the object at which an array without tiles begins, or -1 if it has tiles.
        codecs: see `ColumnHint`.
        fill: see `ColumnHint`.
    """

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    tile: tuple[int, ...]
    tiles: Tiles
    start: int = -1
    codecs: Any = None
    fill: bytes = b""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in a record."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def kind(self) -> str:
        """Kind of the field."""
        return kind_of_rows(self.dtype, self.shape[1:])

    def check(self) -> None:
        """Raises ArraysError if the array is a scalar, has rows of no bytes or no numbers, or impossible tiles."""
        if self.dtype.kind not in "biufc":
            raise ArraysError(f"it holds {self.dtype}, not numbers")
        if not self.shape or min(self.shape[1:], default=1) < 1:
            raise ArraysError(f"its shape {self.shape} has no rows of a byte or more")
        if self.start < 0 and (
            len(self.tile) != len(self.shape) or min(self.tile) < 1 or math.prod(self.tile) >= 1 << 40
        ):
            raise ArraysError(f"tiles of shape {self.tile} in an array of shape {self.shape}")

    def plain_rows(self) -> list[ArrayRows] | None:
        """Returns the runs of rows that are stored one after the other, as they are; None if any row is not."""
        rows = self.shape[0]
        if self.start >= 0:
            return [ArrayRows(self.start, self.row_bytes, rows)]
        step = self.tile[0]
        tiles = self.tiles
        if self.codecs or self.tile[1:] != self.shape[1:] or len(tiles) != -(-rows // step):
            return None
        counts = np.minimum(step, rows - tiles.origins[:, 0])
        stops = tiles.starts + counts * self.row_bytes
        if (tiles.origins[:, 0] != np.arange(len(tiles)) * step).any() or (tiles.lengths < stops - tiles.starts).any():
            return None
        if not tiles.objects and (tiles.starts[1:] < stops[:-1]).any():
            return None
        places = zip(tiles.starts.tolist(), counts.tolist(), strict=True)
        return [ArrayRows(start, self.row_bytes, count) for start, count in places]

    def part(self, first: int, stop: int) -> tuple[ColumnHint, list[_Piece]]:
        """Returns the hint of the tiles that have a part of the rows `[first, stop)`, and the bytes of these tiles."""
        if self.start >= 0:
            begin = self.start + first * self.row_bytes
            length = (stop - first) * self.row_bytes
            whole = TileHint((0,) * len(self.shape), length)
            hint = ColumnHint(
                kind=self.kind, tile=(stop - first, *self.shape[1:]), codecs=None, fill=self.fill, tiles=(whole,)
            )
            return hint, [(None, begin, begin + length)]
        tiles = self.tiles
        above = self.tiles.origins[:, 0]
        among = slice(*np.searchsorted(above, [first - self.tile[0] + 1, stop]).tolist())
        origins = tiles.origins[among].copy()
        lengths = tiles.lengths[among].tolist()
        origins[:, 0] -= first
        places = zip(origins.tolist(), lengths, tiles.masks[among].tolist(), strict=True)
        hints = tuple(TileHint(tuple(origin), length, mask) for origin, length, mask in places)
        owners: Sequence[ObjectRecord | None] = tiles.objects[among] or [None] * len(lengths)
        starts = tiles.starts[among].tolist()
        pieces: list[_Piece] = [
            (owner, start, start + length) for owner, start, length in zip(owners, starts, lengths, strict=True)
        ]
        return ColumnHint(kind=self.kind, tile=self.tile, codecs=self.codecs, fill=self.fill, tiles=hints), pieces


# An object, or None for the one that is indexed, and start and stop of a range of its bytes.
_Piece = tuple[ObjectRecord | None, int, int]


def common_rows(columns: dict[str, TileColumn]) -> int:
    """Returns the number of rows of each array, of which there is one at least; it may be 0.

    Raises:
        ArraysError: the numbers differ, or an array cannot be read by rows (`TileColumn.check`).
    """
    for name, column in columns.items():
        try:
            column.check()
        except ArraysError as error:
            raise ArraysError(f"array {name!r}: {error}") from error
    lengths = {name: column.shape[0] for name, column in columns.items()}
    first = next(iter(lengths))
    if other := next((name for name in lengths if lengths[name] != lengths[first]), None):
        raise ArraysError(
            f"array {first!r} has {lengths[first]} rows, array {other!r} {lengths[other]}; a sample is a row of all of "
            "them"
        )
    return lengths[first]


def facts_of_columns(columns: dict[str, TileColumn]) -> Facts:
    """Returns facts with a field for each array."""
    return Facts(fields=tuple(FieldSpec(name, column.kind) for name, column in columns.items()))


def opener_of(facts: Facts) -> Opener:
    """Returns what opens the samples of a dataset with these facts: rows of one array, or records of several."""
    if len(facts.fields) == 1:
        return RowOpener(facts.fields[0].kind, facts.fields[0].name)
    return TableOpener(facts.fields)


def samples_of(columns: dict[str, TileColumn], chunk_bytes: int) -> Iterator[Span | Block]:
    """Yields the rows of one object that has whole arrays: spans if rows are stored as they are, else blocks.

    Args:
        columns: the arrays, by the name of their field.
        chunk_bytes: bytes of a chunk, about those of a block as fetched.

    Raises:
        ArraysError: as `common_rows`, or more than 128 MiB of consecutive rows were never written.
    """
    rows = common_rows(columns)
    if not rows:
        return
    runs = next(iter(columns.values())).plain_rows() if len(columns) == 1 else None
    if runs is None:
        yield from blocks_of(columns, (0, rows), chunk_bytes)
        return
    for run in runs:
        yield from run.spans(0)


def blocks_of(columns: dict[str, TileColumn], rows: tuple[int, int], chunk_bytes: int) -> Iterator[Block]:
    """Yields blocks with the rows `[rows[0], rows[1])`, each of about `chunk_bytes` as fetched, or less.

    If the array with the longest rows has tiles, blocks begin where its tiles begin. A tile of another array that goes
    on in the next block is fetched twice. Raises ArraysError if a long run of rows was never written.
    """
    fields = facts_of_columns(columns).fields
    row_bytes = sum(column.row_bytes for column in columns.values())
    record_bytes = row_bytes + (head_bytes(fields) if len(fields) > 1 else 0)
    for first, stop in pairwise(_edges(list(columns.values()), rows, chunk_bytes)):
        parts = [column.part(first, stop) for column in columns.values()]
        # Consecutive pieces are joined. A block of rows that were never written gets one byte of the indexed object,
        # because no block is empty.
        pieces: list[_Piece] = []
        for owner, begin, end in (piece for _, found in parts for piece in found):
            if pieces and pieces[-1][2] == begin and pieces[-1][0] == owner:
                pieces[-1] = (owner, pieces[-1][1], end)
            else:
                pieces.append((owner, begin, end))
        pieces = pieces or [(None, 0, 1)]
        owners = tuple(owner for owner, _, _ in pieces if owner is not None)
        hint = msgspec.msgpack.encode([part for part, _ in parts])
        ranges = tuple((start, stop) for _, start, stop in pieces)
        yield Block(
            ranges=ranges, samples=stop - first, record_bytes=(stop - first) * record_bytes, hint=hint, objects=owners
        )


def _edges(columns: Sequence[TileColumn], rows: tuple[int, int], chunk_bytes: int) -> list[int]:
    """Returns the first row of each block, and the row behind the last block; raises ArraysError as `blocks_of`."""
    total = sum(column.row_bytes for column in columns)
    longest = max(columns, key=lambda column: (column.start >= 0 or len(column.tiles) > 0, column.row_bytes))
    if longest.start >= 0:
        return [*range(*rows, max(1, chunk_bytes // total)), rows[1]]
    step = longest.tile[0]
    limit = chunk_bytes * longest.row_bytes // total
    # Tiles that begin in the same row are counted together: the row, the number of tiles, and their bytes.
    among = slice(*np.searchsorted(longest.tiles.origins[:, 0], rows).tolist())
    tops, places, counts = np.unique(longest.tiles.origins[among, 0], return_index=True, return_counts=True)
    lengths = np.add.reduceat(longest.tiles.lengths[among], places) if len(tops) else places
    gaps = np.append(tops, rows[1]) - np.append(rows[0], tops + step)
    widest = int(gaps.argmax())
    if int(gaps[widest]) * total > _MAX_UNWRITTEN_BYTES:
        first = int(tops[widest - 1]) + step if widest else rows[0]
        raise ArraysError(
            f"{int(gaps[widest])} rows from row {first} on, {int(gaps[widest]) * total} bytes, were never written"
        )
    edges = [rows[0]]
    fetched = 0
    tiles = 0
    for top, length, count in zip(tops.tolist(), lengths.tolist(), counts.tolist(), strict=True):
        is_full = fetched + length > limit or tiles + count > _TILES_PER_BLOCK
        if fetched and (is_full or (top + step - edges[-1]) * total > _RECORD_BYTES):
            edges.append(top)
            fetched = tiles = 0
        fetched = fetched + length
        tiles = tiles + count
    return [*edges, rows[1]]


# Max decoders that are kept, because each has buffers.
_MAX_DECODERS = 16

_HINT = msgspec.msgpack.Decoder(tuple[ColumnHint, ...])

Array = NDArray[np.generic]
# Gets the stored bytes of a tile and its mask, and returns its items in the shape of the tile.
Decode = Callable[[memoryview, int], Array]
# Gets dtype and hint of an array, and returns what decodes its tiles.
Decoder = Callable[[np.dtype[np.generic], ColumnHint], Decode]


class TileRecoder:
    """Makes records of the blocks of one dataset, as a `Recoder`.

    Args:
        facts: facts of the dataset.
        decoder: makes what decodes tiles, for arrays that have codecs.
    """

    def __init__(self, facts: Facts, decoder: Decoder) -> None:
        self._fields = facts.fields
        # Dtype of each field, with its shape.
        self._dtypes = [find_dtype(field.kind) for field in facts.fields]
        self._decoder = decoder
        self._decoders: dict[bytes, Decode] = {}

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Decodes the tiles of one block, and makes a record of each row.

        Raises:
            RecodeError: the bytes or the hint are not those of such a block.
            ConfigError: a library that decodes the tiles is not installed.
        """
        try:
            columns = _HINT.decode(hint)
            if [column.kind for column in columns] != [field.kind for field in self._fields]:
                raise RecodeError("its hint is for other fields than those of the dataset")
            if len(columns) == 1:
                dtype = self._dtypes[0]
                assert dtype is not None, "fields are fixed"
                rows: Array = np.empty((samples, *dtype.shape), dtype.base)
                self._put(columns[0], content, rows)
            else:
                records = np.zeros(samples, head_dtype(self._fields))
                for number, column in enumerate(columns):
                    content = self._put(column, content, records[str(number)])
                rows = records
            return Records([rows.reshape(-1).view(np.uint8)], np.full(samples, rows.nbytes // samples, np.int64))
        except (RecodeError, ConfigError):
            raise
        except Exception as error:  # numpy's, those of decompressors, and MemoryError
            raise RecodeError(
                f"tiles of {samples} rows in {len(content)} bytes cannot be decoded: {type(error).__name__}: {error}",
                samples=samples,
                bytes=len(content),
            ) from error

    def _put(self, column: ColumnHint, content: memoryview, rows: Array) -> memoryview:
        """Fills the rows of one array from the first bytes of `content`; returns the rest of it."""
        decode: Decode | None = None
        if column.codecs:
            # The fill value is part of the key, because some filters treat items that have it in another way.
            kind = msgspec.msgpack.encode((rows.dtype.str, column.tile, column.codecs, column.fill))
            if kind not in self._decoders:
                # Files of one dataset have few kinds of tiles.
                if len(self._decoders) >= _MAX_DECODERS:
                    self._decoders.clear()
                self._decoders[kind] = self._decoder(rows.dtype, column)
            decode = self._decoders[kind]
        places = [_overlap(tile.origin, column.tile, rows.shape) for tile in column.tiles]
        if sum(math.prod(stop - start for start, stop in place) for place in places) < rows.size:
            rows[...] = np.frombuffer(column.fill, rows.dtype, 1)[0] if column.fill else 0
        for tile, place in zip(column.tiles, places, strict=True):
            stored = content[: tile.length]
            content = content[tile.length :]
            if len(stored) != tile.length:
                raise RecodeError(f"a tile has {tile.length} bytes, {len(stored)} are left")
            inside = tuple(
                slice(start - first, stop - first) for (start, stop), first in zip(place, tile.origin, strict=True)
            )
            if decode is None:
                items = np.frombuffer(stored, rows.dtype).reshape(column.tile)
            else:
                items = decode(stored, tile.mask)
            rows[tuple(slice(*edges) for edges in place)] = items[inside]
        return content


def _overlap(origin: tuple[int, ...], tile: tuple[int, ...], shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Returns, for each axis, start and stop of the part of a tile that is inside of rows of this shape."""
    axes = zip(origin, tile, shape, strict=True)
    return [(min(max(0, first), size), max(0, min(first + length, size))) for first, length, size in axes]
