"""Makes records of tiles: the part that runs in a recoder."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import ConfigError, RecodeError
from streamer.formats.base import Facts, Records
from streamer.formats.table.records import fixed_dtype, head_dtype
from streamer.tables.arrays.tiles import ColumnHint

# Decoders have buffers.
_MOST_DECODERS = 16

_HINT = msgspec.msgpack.Decoder(tuple[ColumnHint, ...])

Array = NDArray[np.generic]
# Decodes the bytes of a tile as stored, and its mask, to its items in the shape of the tile.
Decode = Callable[[memoryview, int], Array]
# Makes the decoder of an array's tiles, from its dtype and its hint.
Decoder = Callable[[np.dtype[np.generic], ColumnHint], Decode]


class TileRecoder:
    """Makes records of the blocks of one dataset; `decoder` is for tiles that are compressed, or in another order."""

    def __init__(self, facts: Facts, decoder: Decoder) -> None:
        self._fields = facts.fields
        # Dtypes with their shapes.
        self._dtypes = [fixed_dtype(field.kind) for field in facts.fields]
        self._decoder = decoder
        self._decoders: dict[bytes, Decode] = {}

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Decodes the tiles of one block, and makes a record of each row."""
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
        """Fills the rows of one array; returns the rest of the content."""
        decode = self._decode_of(rows.dtype, column)
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
            rows[tuple(slice(*edges) for edges in place)] = decode(stored, tile.mask)[inside]
        return content

    def _decode_of(self, dtype: np.dtype[np.generic], column: ColumnHint) -> Decode:
        if not column.codecs:
            return lambda stored, mask: np.frombuffer(stored, dtype).reshape(column.tile)
        # With the fill value, which some filters leave as it is.
        kind = msgspec.msgpack.encode((dtype.str, column.tile, column.codecs, column.fill))
        if kind not in self._decoders:
            # Files of one dataset have few kinds of tiles.
            if len(self._decoders) >= _MOST_DECODERS:
                self._decoders.clear()
            self._decoders[kind] = self._decoder(dtype, column)
        return self._decoders[kind]


def _overlap(origin: tuple[int, ...], tile: tuple[int, ...], shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Returns the place of a tile in rows of this shape, along each axis."""
    axes = zip(origin, tile, shape, strict=True)
    return [(min(max(0, first), size), max(0, min(first + length, size))) for first, length, size in axes]
