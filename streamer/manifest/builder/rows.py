"""From cuts to the rows of a manifest: numbers that count through all objects, and the keys of the chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.manifest.builder.listing import Listing
from streamer.manifest.columns import BinaryColumn, Table
from streamer.manifest.layout import PART_SAMPLES
from streamer.manifest.packing import Cut, chunk_key

Int64Array = NDArray[np.int64]


class PartRows(msgspec.Struct, frozen=True):
    """One part: its tables, and the number of each table's first row."""

    tables: dict[str, Table]
    first: dict[str, int]


class Rows(msgspec.Struct, frozen=True):
    """A whole dataset, before it is written.

    Attributes:
        first_sample, first_extent: int64, shape (M + 1,), as in `Cut`.
        objects: the listing, in the order of the objects table.
        chunk_keys: uint8, shape (M, 16).
        extent_object: uint32, number of each extent's object; empty for whole objects.
    """

    listing: Listing
    format: str
    chunk_bytes: int
    whole_objects: bool
    first_sample: Int64Array
    first_extent: Int64Array
    chunk_keys: NDArray[np.uint8]
    local_bytes: Int64Array
    sample_start: NDArray[np.uint32]
    extent_object: NDArray[np.uint32]
    extent_start: Int64Array
    extent_stop: Int64Array

    @property
    def samples(self) -> int:
        """How many."""
        return len(self.sample_start)

    def parts(self, part_samples: int = PART_SAMPLES) -> Iterator[PartRows]:
        """Cuts the rows into parts of whole chunks, at most `part_samples` samples each (but one chunk)."""
        chunk = objects = 0
        chunks = len(self.chunk_keys)
        while chunk < chunks:
            limit = self.first_sample[chunk] + part_samples
            stop = int(np.searchsorted(self.first_sample, limit, side="right")) - 1
            stop = min(max(stop, chunk + 1), chunks)
            objects_stop = len(self.listing) if stop == chunks else self._objects_until(stop)
            yield self._part(chunk, stop, objects, objects_stop)
            chunk, objects = stop, objects_stop

    def _objects_until(self, chunk: int) -> int:
        if self.whole_objects:
            return int(self.first_sample[chunk])
        # An object that goes on in the next part belongs to the part in which it begins.
        return int(self.extent_object[self.first_extent[chunk] - 1]) + 1

    def _part(self, chunk: int, stop: int, objects: int, objects_stop: int) -> PartRows:
        samples = slice(int(self.first_sample[chunk]), int(self.first_sample[stop]))
        extents = slice(int(self.first_extent[chunk]), int(self.first_extent[stop]))
        rows = slice(objects, objects_stop)
        tables: dict[str, Table] = {
            "objects": {
                "key": BinaryColumn.of(self.listing.keys[rows]),
                "version": BinaryColumn.of(self.listing.versions[rows]),
                "size": self.listing.sizes[rows],
            },
            "chunks": {
                "key": self.chunk_keys[chunk:stop],
                "first_sample": self.first_sample[chunk:stop],
                "first_extent": self.first_extent[chunk:stop],
                "fetch_bytes": self.local_bytes[chunk:stop],
                "local_bytes": self.local_bytes[chunk:stop],
                "codec": np.zeros(stop - chunk, np.uint8),
            },
            "samples": {"start": self.sample_start[samples]},
        }
        first = {"objects": objects, "chunks": chunk, "samples": samples.start}
        if self.whole_objects:
            tables["samples"]["label"] = self.listing.labels[samples]
        else:
            first["extents"] = extents.start
            tables["extents"] = {
                "object": self.extent_object[extents],
                "start": self.extent_start[extents],
                "stop": self.extent_stop[extents],
            }
        return PartRows(tables, first)


def rows_of_objects(listing: Listing, format_name: str, chunk_bytes: int, order: Int64Array, first: Int64Array) -> Rows:
    """Rows of whole objects, in the order of their packing; an object of 0 bytes has a sample, too."""
    ordered = listing.only(order.tolist())
    position = np.concatenate([[0], np.cumsum(ordered.sizes)]).astype(np.int64)
    base = np.repeat(position[first[:-1]], np.diff(first))
    start = (position[:-1] - base).astype(np.uint32)
    nothing = np.empty(0, np.int64)
    return Rows(
        listing=ordered,
        format=format_name,
        chunk_bytes=chunk_bytes,
        whole_objects=True,
        first_sample=first,
        first_extent=first,
        chunk_keys=_object_chunk_keys(ordered, format_name, first, start),
        local_bytes=np.diff(position[first]),
        sample_start=start,
        extent_object=nothing.astype(np.uint32),
        extent_start=nothing,
        extent_stop=nothing,
    )


def rows_of_containers(listing: Listing, format_name: str, chunk_bytes: int, cuts: Sequence[Cut]) -> Rows:
    """Rows of containers, in the order of the listing."""
    owner = np.repeat(np.arange(len(cuts), dtype=np.uint32), [len(cut.extent_start) for cut in cuts])
    keys = [key for i, cut in enumerate(cuts) for key in _cut_keys(listing, i, cut, format_name)]
    return Rows(
        listing=listing,
        format=format_name,
        chunk_bytes=chunk_bytes,
        whole_objects=False,
        first_sample=_counted([cut.first_sample for cut in cuts]),
        first_extent=_counted([cut.first_extent for cut in cuts]),
        chunk_keys=np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 16),
        local_bytes=np.concatenate([cut.chunk_bytes for cut in cuts]),
        sample_start=np.concatenate([cut.sample_start for cut in cuts]),
        extent_object=owner,
        extent_start=np.concatenate([cut.extent_start for cut in cuts]),
        extent_stop=np.concatenate([cut.extent_stop for cut in cuts]),
    )


def _object_chunk_keys(
    listing: Listing, format_name: str, first: Int64Array, start: NDArray[np.uint32]
) -> NDArray[np.uint8]:
    ranges = np.stack([np.zeros(len(listing), np.int64), listing.sizes], axis=1)
    keys = []
    for a, b in pairwise(first.tolist()):
        names = [(listing.url(i), listing.versions[i]) for i in range(a, b)]
        keys.append(chunk_key(format_name, names, ranges[a:b], start[a:b]))
    return np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 16)


def _cut_keys(listing: Listing, number: int, cut: Cut, format_name: str) -> Iterator[bytes]:
    name = (listing.url(number), listing.versions[number])
    ranges = np.stack([cut.extent_start, cut.extent_stop], axis=1)
    extents, samples = cut.first_extent.tolist(), cut.first_sample.tolist()
    for i in range(cut.chunks):
        mine = slice(extents[i], extents[i + 1])
        starts = cut.sample_start[samples[i] : samples[i + 1]]
        yield chunk_key(format_name, [name] * (mine.stop - mine.start), ranges[mine], starts)


def _counted(edges: Sequence[Int64Array]) -> Int64Array:
    """Joins edges that each begin at 0 to edges that count through."""
    steps = [np.diff(part) for part in edges]
    return np.concatenate([[0], np.cumsum(np.concatenate(steps))]).astype(np.int64)
