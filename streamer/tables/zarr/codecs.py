"""Finds the chunks of zarr arrays, and decodes them.

`tables/zarr/format.py` uses it in the engine (`Stored`) and in the recoder (`ZarrChunkDecoder`). A chunk is an object,
or a part of an object that is a shard, which has an index of its chunks.
"""

from __future__ import annotations

import importlib
import math
import zlib
from typing import Any

import msgspec
import numpy as np

from streamer.base.extras import require_extra
from streamer.errors import RecodeError
from streamer.formats.compressed import DecompressError, decompress
from streamer.formats.failures import make_damage_error
from streamer.formats.reading import Reading, read_ranges
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Need
from streamer.tables.tiles import NO_TILES, Array, ColumnHint, Int64Array, TileColumn, Tiles
from streamer.tables.zarr.metadata import ZarrArray, ZarrCodec

_CHECKSUM_BYTES = 4
# Codecs that `formats/compressed.py` decompresses, and its names for them.
_OWN_NAMES = {"gzip": "gz", "zstd": "zst", "bz2": "bz2"}
# Bytes of the head of a content, by codec, for those that numcodecs decompresses.
_LEAST_BYTES = {"blosc": 16, "lz4": 4}
# Bytes that a codec may give beyond those of the chunk: a compressed chunk, which is longer, may be compressed again.
_SPARE_BYTES = 1 << 16


class ZarrChunkDecoder:
    """Decodes the chunks of one array.

    Args:
        dtype: dtype of the items.
        column: hint with shape and codecs of the chunks.
    """

    def __init__(self, dtype: np.dtype[np.generic], column: ColumnHint) -> None:
        self._dtype = dtype
        codecs = msgspec.convert(column.codecs, tuple[ZarrCodec, ...])
        self._compressions = [codec.name for codec in reversed(codecs) if codec.name != "transpose"]
        axes = np.arange(len(column.tile))
        for codec in codecs:
            if codec.name == "transpose":
                axes = axes[codec.configuration["order"]]
        self._stored = tuple(column.tile[axis] for axis in axes.tolist())
        self._axes = np.argsort(axes)
        self._bytes = dtype.itemsize * math.prod(column.tile)

    def __call__(self, stored: memoryview, mask: int) -> Array:
        """Returns the items of a chunk, in its shape; `mask` has no meaning for zarr.

        Raises:
            RecodeError: the chunk cannot be decompressed, or has another length.
            ConfigError: a library for its codecs is not installed.
        """
        for compression in self._compressions:
            try:
                stored = self._decompress(compression, stored)
            except (DecompressError, zlib.error) as error:
                raise RecodeError(f"a chunk of {len(stored)} bytes, stored by {compression}: {error}") from error
        if len(stored) != self._bytes:
            raise RecodeError(f"a chunk has {len(stored)} bytes, its items {self._bytes}")
        return np.frombuffer(stored, self._dtype).reshape(self._stored).transpose(self._axes)

    def _decompress(self, compression: str, stored: memoryview) -> memoryview:
        """Undoes one codec (of `metadata.COMPRESSIONS`); raises DecompressError or zlib.error."""
        limit = self._bytes + _SPARE_BYTES
        if compression in _OWN_NAMES:
            return decompress(_OWN_NAMES[compression], stored, limit)
        if compression == "zlib":
            unpacker = zlib.decompressobj()
            content = unpacker.decompress(stored, limit)
            if not unpacker.eof:
                raise DecompressError(f"is cut off, or has more than {limit} bytes")
            return memoryview(content)
        if compression == "crc32c":
            checked = stored[:-_CHECKSUM_BYTES]
            checksum = stored[-_CHECKSUM_BYTES:]
            if checksum_of(checked) != int.from_bytes(checksum, "little"):
                raise DecompressError("its checksum is wrong")
            return checked
        # numcodecs decompresses the others, and trusts the lengths in the head: so these are checked first.
        head = stored[4:8] if compression == "blosc" else stored[:4]
        length = int.from_bytes(head, "little")
        least = _LEAST_BYTES.get(compression, 0)
        if len(stored) < least:
            raise DecompressError(f"it is cut off: it has {len(stored)} bytes, and its head alone {least}")
        if length > limit or (compression == "blosc" and stored[12:16] != len(stored).to_bytes(4, "little")):
            raise DecompressError(f"it says that it has {length} bytes, and can have up to {limit}")
        place = np.empty(length, np.uint8)
        library = _library(f"numcodecs.{compression}")
        if compression == "blosc":
            # Threads would not help, because there are as many recoders as there are cores to spare.
            library.use_threads = False
        try:
            library.decompress(stored, place)
        except (RuntimeError, ValueError) as error:
            raise DecompressError(str(error)) from error
        return place.data


def checksum_of(content: memoryview) -> int:
    """Returns the CRC-32C of a content; raises ConfigError if google_crc32c is not installed."""
    found: int = _library("google_crc32c").value(bytes(content))
    return found


def _library(name: str) -> Any:  # noqa: ANN401
    with require_extra("decoding the codecs of this zarr array", field="format"):
        return importlib.import_module(name)


_UNWRITTEN = (1 << 64) - 1


class Stored(msgspec.Struct, frozen=True):
    """The objects of an array, or those of some of its rows.

    Attributes:
        array: metadata of the array.
        origins: place of the first item of each object, sorted.
        objects: the objects, in the order of `origins`.
    """

    array: ZarrArray
    origins: list[tuple[int, ...]]
    objects: list[ObjectRecord]

    def column(self, tiles: Tiles = NO_TILES) -> TileColumn:
        """Returns the rows of the array as a column with these tiles."""
        array = self.array
        codecs = msgspec.to_builtins(array.codecs)
        return TileColumn(np.dtype(array.dtype), array.shape, array.tile, tiles, codecs=codecs, fill=array.fill)

    def tiles(self) -> Tiles:
        """Returns the objects as tiles, for an array without shards.

        Raises ManifestError if an object is empty, or has no codecs and another length than a chunk.
        """
        array = self.array
        sizes = [record.size for record in self.objects]
        expected = math.prod(array.tile) * np.dtype(array.dtype).itemsize
        wrong = (record for record in self.objects if not record.size or (not array.codecs and record.size != expected))
        if record := next(wrong, None):
            raise make_damage_error(
                record, f"a chunk of shape {array.tile} and type {array.dtype} has {expected} bytes", 0
            )
        lengths = np.array(sizes, np.int64)
        none = np.zeros_like(lengths)
        origins = np.array(self.origins, np.int64).reshape(-1, len(array.shape))
        return Tiles(origins=origins, starts=none, lengths=lengths, masks=none, objects=self.objects)

    def chunks(self) -> Reading[Tiles]:
        """Returns the chunks as tiles; reads the indexes of all shards at once.

        Raises:
            ManifestError: an object or the index of a shard is damaged.
            ConfigError: the indexes have checksums, and google_crc32c is not installed.
        """
        shard = self.array.shard
        if shard is None or not self.objects:
            return self.tiles()
        length = self.array.index_bytes
        for record in self.objects:
            if record.size < length:
                raise make_damage_error(record, f"the index of a shard of this array has {length} bytes", 0)
        starts = [record.size - length if shard.at_end else 0 for record in self.objects]
        answers = yield from read_ranges(
            [Need(start, start + length, record) for start, record in zip(starts, self.objects, strict=True)]
        )
        found = [
            self._find_shard_chunks(place, content, start)
            for place, (content, start) in enumerate(zip(answers, starts, strict=True))
        ]
        origins, places, owners = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.lexsort(origins.T[::-1])
        starts_of, lengths = places[order].T
        objects = [self.objects[owner] for owner in owners[order].tolist()]
        return Tiles(
            origins=origins[order], starts=starts_of, lengths=lengths, masks=np.zeros_like(lengths), objects=objects
        )

    def _find_shard_chunks(self, place: int, index: memoryview, at: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Returns the chunks of one shard that were written, sorted as in the index.

        Args:
            place: number of the shard among `objects`.
            index: the bytes of its index.
            at: byte of the object at which the index begins, for errors.

        Returns:
            Place of the first item of each chunk, its start and length in the object, and `place` for each.
        """
        array = self.array
        record = self.objects[place]
        assert array.shard is not None
        if array.shard.has_checksum:
            checksum = int.from_bytes(index[-_CHECKSUM_BYTES:], "little")
            index = index[:-_CHECKSUM_BYTES]
            if checksum_of(index) != checksum:
                raise make_damage_error(record, "the checksum of the index of its chunks is wrong", at)
        entries = np.frombuffer(index, "<u8").reshape(-1, 2)
        grid = tuple(size // step for size, step in zip(array.object_shape, array.tile, strict=True))
        origins = np.stack(np.unravel_index(np.arange(len(entries)), grid), axis=1) * np.array(array.tile)
        origins += np.array(self.origins[place])
        written = (entries != _UNWRITTEN).any(axis=1) & (origins < np.array(array.shape)).all(axis=1)
        starts, lengths = entries[written].T
        size = np.uint64(record.size)
        if ((starts > size) | (lengths > size - np.minimum(starts, size)) | (lengths == 0)).any():
            raise make_damage_error(record, "its index says that chunks are outside of it", at)
        if not array.codecs:
            expected = math.prod(array.tile) * np.dtype(array.dtype).itemsize
            if (lengths != expected).any():
                raise make_damage_error(record, f"its index says that chunks do not have {expected} bytes", at)
        return origins[written], entries[written].astype(np.int64), np.full(len(starts), place)
