"""Arranges the samples of a plain dataset in the order of another one, to which it is joined.

Used by `loader/members/joins.py`. The other dataset is the left side of the join, the arranged one the right side, and
its samples are the rows. The rows of the samples of one left chunk become a chunk of their own, or a few. So a rank
that opens a left chunk fetches just these rows, in as many requests as they have runs. The result is a manifest of
the same objects. A row that samples of several left chunks have is in a chunk for each of them.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.indexing.listed_rows import Listing
from streamer.indexing.publish import publish
from streamer.indexing.rows import ManifestRows, rows_of_objects
from streamer.manifest.chunking import chunk_key
from streamer.manifest.columns import BinaryColumn, read_name
from streamer.manifest.model import Facts
from streamer.manifest.protocols import Indexer
from streamer.manifest.table import Manifest

Int64Array = NDArray[np.int64]

# Longest chunk, but for the end of its last row: a chunk is fetched as a whole, in memory. The rows of one left chunk
# that are longer together become several chunks.
_MOST_CHUNK_BYTES = 32 << 20


class _Runs(msgspec.Struct, frozen=True, eq=False):
    """The samples of the arranged manifest, and where its chunks begin.

    Attributes:
        right: (n,) ordinals in the right manifest.
        sizes: (n,) length of each sample in bytes.
        first: (chunks + 1,) number of each chunk's first sample, and n.
    """

    right: Int64Array
    sizes: Int64Array
    first: Int64Array

    @property
    def starts(self) -> Int64Array:
        """Byte of its chunk at which each sample begins: (n,)."""
        ends = np.cumsum(self.sizes)
        begin = ends - self.sizes
        return begin - np.repeat(begin[self.first[:-1]], np.diff(self.first))


def arrange(
    left: Manifest, right: Manifest, joined: tuple[Int64Array, Int64Array], indexer: Indexer, root: Path
) -> tuple[Path, Int64Array]:
    """Writes a manifest with those samples of `right` that are joined to `left`.

    Their order is by chunk of `left`, and within a chunk that of `right`. Each sample is there once for each such
    chunk.

    Args:
        left: manifest of the dataset whose order counts.
        right: manifest of a plain dataset (not recoded).
        joined: place of the first row of each sample of `left`, (samples + 1,); and the rows, at least one, as ordinals
            in `right`.
        indexer: the format of `right`.
        root: folder of manifests on the local disk.

    Returns:
        The folder of the new manifest, and the rows as ordinals in it.

    Raises:
        ManifestError: see `publish`.
    """
    first, rows = joined
    chunk = np.repeat(np.arange(left.chunks), np.diff(first[left.chunk_first]))
    order = np.lexsort((rows, chunk))
    chunks = chunk[order]
    sorted_rows = rows[order]
    new = np.ones(len(rows), np.bool_)
    new[1:] = (chunks[1:] != chunks[:-1]) | (sorted_rows[1:] != sorted_rows[:-1])
    place = np.empty(len(rows), np.int64)
    place[order] = np.cumsum(new) - 1
    # Rows are cut where the chunk of the left dataset changes, and where they are long together.
    chunks = chunks[new]
    sorted_rows = sorted_rows[new]
    _, start, stop = right.locate(sorted_rows)
    sizes = stop - start
    ends = np.cumsum(sizes)
    begins = np.flatnonzero(np.append(True, chunks[1:] != chunks[:-1]))
    offset = (ends - sizes) - np.repeat((ends - sizes)[begins], np.diff(np.append(begins, len(sorted_rows))))
    slot = offset // _MOST_CHUNK_BYTES
    opens = np.append(True, (chunks[1:] != chunks[:-1]) | (slot[1:] != slot[:-1]))
    runs = _Runs(sorted_rows, sizes, np.append(np.flatnonzero(opens), len(sorted_rows)))
    if right.whole_objects:
        listing = _listing(right).only(runs.right.tolist())
        in_order = np.arange(len(runs.right), dtype=np.int64)
        made = rows_of_objects(
            listing=listing, format_name=right.format, chunk_bytes=right.chunk_bytes, order=in_order, first=runs.first
        )
    else:
        made = _arrange_extents(right, runs)
    made = msgspec.structs.replace(made, indexer=indexer, facts=right.content.facts or Facts())
    return publish(made, root), place


def _arrange_extents(right: Manifest, runs: _Runs) -> ManifestRows:
    """Returns the manifest's rows for samples of containers; samples that follow each other share an extent."""
    listing = _listing(right)
    owner, begin = _places(right, runs.right)
    stop = begin + runs.sizes
    # A sample continues the extent before it where it follows it in the object.
    opens = np.append(True, (owner[1:] != owner[:-1]) | (begin[1:] != stop[:-1]))
    opens[runs.first[:-1]] = True
    extents = np.flatnonzero(opens)
    first_extent = np.searchsorted(extents, runs.first)
    extent_start = begin[extents]
    extent_stop = stop[np.append(extents[1:], len(stop)) - 1]
    extent_owner = owner[extents]
    starts = runs.starts.astype(np.uint32)
    names = [(listing.url(number), listing.versions[number]) for number in range(len(listing))]
    ranges = np.stack([extent_start, extent_stop], axis=1)
    keys = [
        chunk_key(right.format, [names[number] for number in extent_owner[a:b].tolist()], ranges[a:b], starts[c:d])
        for (a, b), (c, d) in zip(pairwise(first_extent.tolist()), pairwise(runs.first.tolist()), strict=True)
    ]
    ends = np.append(0, np.cumsum(runs.sizes))
    return ManifestRows(
        listing=listing,
        format=right.format,
        chunk_bytes=right.chunk_bytes,
        whole_objects=False,
        first_sample=runs.first,
        first_extent=first_extent.astype(np.int64),
        chunk_keys=np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 16),
        local_bytes=np.diff(ends[runs.first]),
        sample_start=starts,
        extent_object=extent_owner.astype(np.uint32),
        extent_start=extent_start,
        extent_stop=extent_stop,
    )


def _places(right: Manifest, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Returns the number of the object that has each sample of `right`, and the sample's first byte in it."""
    numbers, starts, stops = (right.column("extents", name).astype(np.int64) for name in ("object", "start", "stop"))
    before = np.append(0, np.cumsum(stops - starts))
    first_extent = right.column("chunks", "first_extent").astype(np.int64)
    chunk, start, _ = right.locate(rows)
    at = before[first_extent[chunk]] + start
    last = np.append(first_extent[1:], len(numbers))[chunk] - 1
    # An empty sample at the end of a chunk belongs to the chunk's last extent.
    extent = np.minimum(before.searchsorted(at, "right") - 1, last)
    return numbers[extent], starts[extent] + at - before[extent]


def _listing(manifest: Manifest) -> Listing:
    """Returns the objects of a manifest as a listing."""
    texts = {}
    for name in ("key", "version"):
        columns = [tables["objects"][name] for tables in manifest.tables]
        texts[name] = [
            column[row] for column in columns if isinstance(column, BinaryColumn) for row in range(len(column))
        ]
    return Listing(
        urls=manifest.urls,
        base=manifest.content.base,
        keys=texts["key"],
        versions=texts["version"],
        sizes=manifest.column("objects", "size").astype(np.int64),
        labels=manifest.labels,
        classes=tuple(map(read_name, manifest.content.classes)),
    )
