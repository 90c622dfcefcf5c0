"""The filters of HDF5 that most files have: deflate, shuffle, Fletcher32. h5py applies the others.

libhdf5 believes that what a filter gives is as long as a chunk, and reads on behind its end if it is not (2.0).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import msgspec
import numpy as np

from streamer.errors import RecodeError
from streamer.formats.compressed import inflate
from streamer.tables.hdf5.messages import Filter
from streamer.tables.tiles import Array, ColumnHint

DEFLATE = 1
SHUFFLE = 2
FLETCHER32 = 3
_CHECKSUM_BYTES = 4
_MODULUS = 65535


def filters_of(column: ColumnHint) -> tuple[Filter, ...]:
    """Returns the filters of the chunks of a block."""
    return msgspec.convert(column.codecs, tuple[Filter, ...])


class FilteredChunks:
    """Decodes chunks of one shape that have only these filters."""

    def __init__(self, dtype: np.dtype[np.generic], column: ColumnHint) -> None:
        self._dtype = dtype
        self._shape = column.tile
        self._bytes = dtype.itemsize * int(np.prod(column.tile, dtype=np.int64))
        self._filters = [UNDO[each.number] for each in filters_of(column)]

    def __call__(self, stored: memoryview, mask: int) -> Array:
        """Returns the items of a chunk; raises RecodeError if it is damaged, or has another length."""
        for place in reversed(range(len(self._filters))):
            if not mask >> place & 1:
                stored = self._filters[place](stored, self._dtype.itemsize, self._bytes)
        if len(stored) != self._bytes:
            raise RecodeError(f"a chunk has {len(stored)} bytes, its items {self._bytes}")
        return np.frombuffer(stored, self._dtype).reshape(self._shape)


def _inflate(stored: memoryview, item_bytes: int, limit: int) -> memoryview:
    unpacker = inflate.decompressobj()
    try:
        content: bytes = unpacker.decompress(stored, limit + _CHECKSUM_BYTES)
    except (zlib.error, inflate.error) as error:
        raise RecodeError(f"a chunk cannot be unpacked: {error}") from error
    return memoryview(content)


def _unshuffle(stored: memoryview, item_bytes: int, limit: int) -> memoryview:
    """Undoes the shuffle: the first bytes of all items stand before the second ones."""
    count = len(stored) // item_bytes
    items = np.frombuffer(stored, np.uint8, count * item_bytes).reshape(item_bytes, count)
    return memoryview(items.T.tobytes() + bytes(stored[count * item_bytes :]))


def _verify(stored: memoryview, item_bytes: int, limit: int) -> memoryview:
    content = stored[:-_CHECKSUM_BYTES]
    found = int.from_bytes(stored[-_CHECKSUM_BYTES:], "little")
    if fletcher32(content) != found:
        raise RecodeError("the checksum of a chunk is wrong")
    return content


def fletcher32(content: memoryview) -> int:
    """Returns the checksum of big-endian words of 2 bytes."""
    words = np.frombuffer(bytes(content) + bytes(len(content) % 2), ">u2").astype(np.uint64)
    weights = np.arange(len(words), 0, -1, dtype=np.uint64) % np.uint64(_MODULUS)
    sums = int(words.sum()), int((words * weights).sum())
    # Folded as HDF5 does it: a sum that is not zero does not become zero.
    first, second = ((total - 1) % _MODULUS + 1 if total else 0 for total in sums)
    return second << 16 | first


UNDO: dict[int, Callable[[memoryview, int, int], memoryview]] = {
    DEFLATE: _inflate,
    SHUFFLE: _unshuffle,
    FLETCHER32: _verify,
}
