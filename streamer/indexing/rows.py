"""Turns findings about objects into the rows of a manifest, with numbers that count through all objects.

`indexing/build.py`, `indexing/arrange.py` and `shards/finish.py` make rows with it, and `indexing/publish.py` writes
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import ManifestError
from streamer.indexing.listed_rows import Listing
from streamer.manifest.blocks import (
    LONGEST_HINT,
    MOST_FETCH_BYTES,
    MOST_RECORD_BYTES,
    Block,
    cut_blocks,
    encode_hints,
    key_options,
    plan_local_bytes,
    recoded_chunk_key,
)
from streamer.manifest.chunking import Cut, chunk_key
from streamer.manifest.columns import BinaryColumn, Table, encode_text
from streamer.manifest.layout import PART_SAMPLES
from streamer.manifest.model import Codec, Facts
from streamer.manifest.protocols import Indexer

Int64Array = NDArray[np.int64]


class PartRows(msgspec.Struct, frozen=True):
    """One part of a manifest.

    Attributes:
        tables: its tables by name.
        first: number of the part's first row in each table, counted through all parts.
    """

    tables: dict[str, Table]
    first: dict[str, int]


class ManifestRows(msgspec.Struct, frozen=True):
    """A whole dataset of M chunks, n samples and e extents, before it is written.

    Attributes:
        listing: the objects, in the order of their samples.
        format: name of the format.
        chunk_bytes: wanted size of chunks.
        whole_objects: whether every object is one sample, so that the extents are the objects.
        first_sample, first_extent: int64, shape (M + 1,), as in `Cut`, counted through all objects.
        chunk_keys: uint8, shape (M, 16).
        local_bytes: int64, shape (M,): lengths of chunks on the SSD, or planned ones if they are recoded.
        sample_start: uint32, shape (n,), as in `Cut`, empty for recoded chunks.
        extent_object: uint32, shape (e,): number of each extent's object, empty for whole objects.
        extent_start, extent_stop: int64, shape (e,): byte ranges in the objects, empty for whole objects.
        indexer: the format, or None for a manifest without options and revision.
        facts: facts about the dataset.
        fetch_bytes: int64, shape (M,): lengths of recoded chunks as fetched. None means equal to `local_bytes`.
        hints: hint of each recoded chunk (`Chunk.hint`), else empty.
        codec: codec of all chunks.
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
    indexer: Indexer | None = None
    facts: Facts = Facts()
    fetch_bytes: Int64Array | None = None
    hints: list[bytes] = msgspec.field(default_factory=list)
    codec: Codec = Codec.IDENTITY

    @property
    def samples(self) -> int:
        """Number of samples."""
        return int(self.first_sample[-1])

    @property
    def recoded(self) -> bool:
        """Whether the chunks consist of blocks."""
        return self.codec != Codec.IDENTITY

    def parts(self, part_samples: int = PART_SAMPLES) -> Iterator[PartRows]:
        """Yields the rows in parts of whole chunks, with at most `part_samples` samples each (or one chunk)."""
        chunk = objects = 0
        chunks = len(self.chunk_keys)
        while chunk < chunks:
            limit = self.first_sample[chunk] + part_samples
            stop = int(np.searchsorted(self.first_sample, limit, side="right")) - 1
            stop = min(max(stop, chunk + 1), chunks)
            if stop == chunks:
                objects_stop = len(self.listing)
            elif self.whole_objects:
                objects_stop = int(self.first_sample[stop])
            else:
                # An object that continues in the next part belongs to the part in which it begins.
                objects_stop = int(self.extent_object[: self.first_extent[stop]].max()) + 1
            yield self._part(chunk, stop, objects, objects_stop)
            chunk = stop
            objects = objects_stop

    def _part(self, chunk: int, stop: int, objects: int, objects_stop: int) -> PartRows:
        """Returns the tables of the chunks `[chunk, stop)` and the objects `[objects, objects_stop)`."""
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
                "fetch_bytes": (self.local_bytes if self.fetch_bytes is None else self.fetch_bytes)[chunk:stop],
                "local_bytes": self.local_bytes[chunk:stop],
                "codec": np.full(stop - chunk, self.codec, np.uint8),
            },
        }
        first = {"objects": objects, "chunks": chunk}
        if self.recoded:
            tables["chunks"]["hint"] = BinaryColumn.of(self.hints[chunk:stop])
        else:
            first["samples"] = samples.start
            tables["samples"] = {"start": self.sample_start[samples]}
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


def rows_of_objects(
    listing: Listing, format_name: str, chunk_bytes: int, order: Int64Array, first: Int64Array
) -> ManifestRows:
    """Returns the rows of objects that are one sample each; an object of 0 bytes is a sample, too.

    Args:
        listing: the objects.
        format_name: name of the format.
        chunk_bytes: wanted size of chunks, which the manifest states.
        order: int64, shape (n,): places in the listing of the objects, in the order of the samples.
        first: int64, shape (chunks + 1,): number of each chunk's first sample, and n.
    """
    ordered = listing.only(order.tolist())
    position = np.concatenate([[0], np.cumsum(ordered.sizes)]).astype(np.int64)
    base = np.repeat(position[first[:-1]], np.diff(first))
    start = (position[:-1] - base).astype(np.uint32)
    nothing = np.empty(0, np.int64)
    ranges = np.stack([np.zeros(len(ordered), np.int64), ordered.sizes], axis=1)
    keys = []
    for a, b in pairwise(first.tolist()):
        names = [(ordered.url(i), ordered.versions[i]) for i in range(a, b)]
        keys.append(chunk_key(format_name, names, ranges[a:b], start[a:b]))
    return ManifestRows(
        listing=ordered,
        format=format_name,
        chunk_bytes=chunk_bytes,
        whole_objects=True,
        first_sample=first,
        first_extent=first,
        chunk_keys=np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 16),
        local_bytes=np.diff(position[first]),
        sample_start=start,
        extent_object=nothing.astype(np.uint32),
        extent_start=nothing,
        extent_stop=nothing,
    )


class Contained(msgspec.Struct, frozen=True):
    """Makes the rows of a dataset of containers.

    Attributes:
        listing: the containers, in the order of their samples.
        indexer: the format.
        facts: facts from the survey.
        chunk_bytes: size of chunks into which samples were cut, and into which blocks are cut here.
    """

    listing: Listing
    indexer: Indexer
    facts: Facts
    chunk_bytes: int

    def rows(self, found: Sequence[Cut | list[Block]]) -> ManifestRows:
        """Returns the rows of the dataset from the cut samples or the blocks of each object, in their order.

        Raises:
            ManifestError: one object has blocks and another samples; a block is too large, has bytes of an object that
                is not listed, or shares parts in another way than other blocks.
        """
        cuts = [each for each in found if isinstance(each, Cut)]
        if len(cuts) == len(found):
            return self._rows_of_samples(cuts)
        blocks = [[] if isinstance(each, Cut) else each for each in found]
        if any(cut.chunks for cut in cuts):
            examples = next(self.listing.record(i).url for i, each in enumerate(blocks) if each)
            raise ManifestError(
                f"{examples} must be decoded as a whole, other objects of the dataset must not (format "
                f"{self.indexer.name!r}); name them as two datasets",
                url=examples,
            )
        return self._rows_of_blocks(blocks)

    def _rows_of_samples(self, cuts: Sequence[Cut]) -> ManifestRows:
        """Returns the rows of samples that are cut into chunks; `cuts` has one for each object."""
        owner = np.repeat(np.arange(len(cuts), dtype=np.uint32), [len(cut.extent_start) for cut in cuts])
        name = self.indexer.name
        keys = []
        for number, cut in enumerate(cuts):
            identity = (self.listing.url(number), self.listing.versions[number])
            ranges = np.stack([cut.extent_start, cut.extent_stop], axis=1)
            extents = cut.first_extent.tolist()
            samples = cut.first_sample.tolist()
            for chunk in range(cut.chunks):
                mine = slice(extents[chunk], extents[chunk + 1])
                starts = cut.sample_start[samples[chunk] : samples[chunk + 1]]
                keys.append(chunk_key(name, [identity] * (mine.stop - mine.start), ranges[mine], starts))
        return ManifestRows(
            listing=self.listing,
            format=name,
            chunk_bytes=self.chunk_bytes,
            whole_objects=False,
            first_sample=_join_edges([cut.first_sample for cut in cuts]),
            first_extent=_join_edges([cut.first_extent for cut in cuts]),
            chunk_keys=np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 16),
            local_bytes=np.concatenate([cut.chunk_bytes for cut in cuts]),
            sample_start=np.concatenate([cut.sample_start for cut in cuts]),
            extent_object=owner,
            extent_start=np.concatenate([cut.extent_start for cut in cuts]),
            extent_stop=np.concatenate([cut.extent_stop for cut in cuts]),
            indexer=self.indexer,
            facts=self.facts,
        )

    def _rows_of_blocks(self, blocks: Sequence[list[Block]]) -> ManifestRows:
        """Cuts the blocks of each object into chunks and returns their rows; raises ManifestError, see `rows`."""
        chunks = [
            (number, blocks[number][first:stop])
            for number in range(len(blocks))
            for first, stop in pairwise(cut_blocks(blocks[number], self.chunk_bytes).tolist())
        ]
        for number, members in chunks:
            for block in members:
                self._check(number, block)
        ranges = self._ranges(chunks)
        owner, start, stop = np.array(ranges, np.int64).reshape(-1, 3).T
        samples = np.array([sum(block.samples for block in members) for _, members in chunks], np.int64)
        shared = {block.part_ranges: number for number, members in chunks for block in members}
        if len(shared) > 1:
            url = self.listing.record(shared[max(shared)]).url
            raise ManifestError(
                f"{url} has blocks whose samples have {max(shared)} ranges of shared parts, others have {min(shared)} "
                f"(format {self.indexer.name!r}); all blocks of a dataset have the same number",
                url=url,
            )
        local_bytes = [plan_local_bytes(members, sum(block.record_bytes for block in members)) for _, members in chunks]
        return ManifestRows(
            listing=self.listing,
            format=self.indexer.name,
            chunk_bytes=self.chunk_bytes,
            whole_objects=False,
            first_sample=_edges(samples),
            first_extent=_edges([sum(len(block.ranges) for block in members) for _, members in chunks]),
            chunk_keys=self._block_keys(chunks),
            local_bytes=np.array(local_bytes, np.int64),
            sample_start=np.empty(0, np.uint32),
            extent_object=owner.astype(np.uint32),
            extent_start=start,
            extent_stop=stop,
            indexer=self.indexer,
            facts=self.facts,
            fetch_bytes=np.array([sum(block.fetch_bytes for block in members) for _, members in chunks], np.int64),
            hints=[encode_hints(members) for _, members in chunks],
            codec=Codec.SHARED if any(shared) else Codec.RECORDS,
        )

    def _ranges(self, chunks: Sequence[tuple[int, list[Block]]]) -> list[tuple[int, int, int]]:
        """Returns object number, start and stop of each range; raises ManifestError if the object is not listed.

        Args:
            chunks: number of the object, and the blocks, of each chunk.
        """
        of_several = any(block.objects for _, members in chunks for block in members)
        numbers = {self.listing.url(i): i for i in range(len(self.listing))} if of_several else {}
        ranges = []
        for number, members in chunks:
            for block in members:
                owners = [numbers.get(encode_text(record.url), -1) for record in block.objects]
                if -1 in owners:
                    raise ManifestError(
                        f"a block of format {self.indexer.name!r} has bytes of {block.objects[owners.index(-1)].url}, "
                        "which is not a source of its survey",
                        url=block.objects[owners.index(-1)].url,
                    )
                pairs = zip(owners or [number] * len(block.ranges), block.ranges, strict=True)
                ranges += [(owner, *span) for owner, span in pairs]
        return ranges

    def _block_keys(self, chunks: Sequence[tuple[int, list[Block]]]) -> NDArray[np.uint8]:
        """Returns the keys of chunks of blocks, (chunks, 16); `chunks` as for `_ranges`."""
        indexer = self.indexer
        options = key_options(self.indexer.options, self.facts.fields)
        keys = [
            recoded_chunk_key(
                format_name=indexer.name,
                revision=indexer.revision,
                options=options,
                record=self.listing.record(number),
                blocks=members,
            )
            for number, members in chunks
        ]
        return np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 16)

    def _check(self, number: int, block: Block) -> None:
        """Raises ManifestError if a block of object `number` is larger than chunks may be."""
        limits = (
            ("bytes", block.fetch_bytes, MOST_FETCH_BYTES),
            ("bytes of records", block.record_bytes, MOST_RECORD_BYTES),
            ("bytes of hint", len(block.hint), LONGEST_HINT),
        )
        for what, actual, most in limits:
            if actual > most:
                url = self.listing.record(number).url
                raise ManifestError(
                    f"{url} has a block of {actual} {what} (at byte {block.ranges[0][0]}), which can only be decoded "
                    f"as a whole; at most {most} can be: write it in smaller blocks",
                    url=url,
                    offset=block.ranges[0][0],
                )


def _edges(counts: Sequence[int] | Int64Array) -> Int64Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _join_edges(edges: Sequence[Int64Array]) -> Int64Array:
    """Joins edges that each begin at 0 to edges that count through."""
    steps = [np.diff(part) for part in edges]
    return np.concatenate([[0], np.cumsum(np.concatenate(steps))]).astype(np.int64)
