"""Finds the chunks of zarr arrays: each is an object, or in a shard, which has an index of its chunks."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from streamer.formats.failures import damaged
from streamer.formats.reading import Reading, read_ranges
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Need
from streamer.tables.arrays.tiles import NO_TILES, Column, Int64Array, Tiles
from streamer.tables.zarr.codecs import checksum_of
from streamer.tables.zarr.metadata import ZarrArray

_UNWRITTEN = (1 << 64) - 1
_CHECKSUM_BYTES = 4


class Stored(msgspec.Struct, frozen=True):
    """The objects of an array, or of some of its rows, sorted by `origins`, the first item of each."""

    array: ZarrArray
    origins: list[tuple[int, ...]]
    objects: list[ObjectRecord]

    def column(self, tiles: Tiles = NO_TILES) -> Column:
        """Returns the rows of the array."""
        array = self.array
        codecs = msgspec.to_builtins(array.codecs)
        return Column(np.dtype(array.dtype), array.shape, array.tile, tiles, codecs=codecs, fill=array.fill)

    def tiles(self) -> Tiles:
        """Returns the chunks, each an object; raises ManifestError if one is not as long as a chunk."""
        array = self.array
        sizes = [record.size for record in self.objects]
        expected = math.prod(array.tile) * np.dtype(array.dtype).itemsize
        wrong = (record for record in self.objects if not record.size or (not array.codecs and record.size != expected))
        if record := next(wrong, None):
            raise damaged(record, f"a chunk of shape {array.tile} and type {array.dtype} has {expected} bytes", 0)
        lengths = np.array(sizes, np.int64)
        none = np.zeros_like(lengths)
        origins = np.array(self.origins, np.int64).reshape(-1, len(array.shape))
        return Tiles(origins, none, lengths, none, self.objects)

    def chunks(self) -> Reading[Tiles]:
        """Returns the chunks; reads the indexes of all shards at once, and raises ManifestError if one is damaged."""
        shard = self.array.shard
        if shard is None or not self.objects:
            return self.tiles()
        length = self.array.index_bytes
        for record in self.objects:
            if record.size < length:
                raise damaged(record, f"the index of a shard of this array has {length} bytes", 0)
        starts = [record.size - length if shard.at_end else 0 for record in self.objects]
        answers = yield from read_ranges(
            [Need(start, start + length, record) for start, record in zip(starts, self.objects, strict=True)]
        )
        found = [
            self._in_shard(place, content, start)
            for place, (content, start) in enumerate(zip(answers, starts, strict=True))
        ]
        origins, places, owners = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.lexsort(origins.T[::-1])
        starts_of, lengths = places[order].T
        objects = [self.objects[owner] for owner in owners[order].tolist()]
        return Tiles(origins[order], starts_of, lengths, np.zeros_like(lengths), objects)

    def _in_shard(self, place: int, index: memoryview, at: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Returns the chunks of one shard that were written: first item, start and length, number of the object."""
        array = self.array
        record = self.objects[place]
        assert array.shard is not None
        if array.shard.has_checksum:
            index, checksum = index[:-_CHECKSUM_BYTES], index[-_CHECKSUM_BYTES:]
            if checksum_of(index) != int.from_bytes(checksum, "little"):
                raise damaged(record, "the checksum of the index of its chunks is wrong", at)
        entries = np.frombuffer(index, "<u8").reshape(-1, 2)
        grid = tuple(size // step for size, step in zip(array.object_shape, array.tile, strict=True))
        origins = np.stack(np.unravel_index(np.arange(len(entries)), grid), axis=1) * np.array(array.tile)
        origins += np.array(self.origins[place])
        written = (entries != _UNWRITTEN).any(axis=1) & (origins < np.array(array.shape)).all(axis=1)
        starts, lengths = entries[written].T
        size = np.uint64(record.size)
        if ((starts > size) | (lengths > size - np.minimum(starts, size)) | (lengths == 0)).any():
            raise damaged(record, "its index says that chunks are outside of it", at)
        if not array.codecs:
            expected = math.prod(array.tile) * np.dtype(array.dtype).itemsize
            if (lengths != expected).any():
                raise damaged(record, f"its index says that chunks do not have {expected} bytes", at)
        return origins[written], entries[written].astype(np.int64), np.full(len(starts), place)
