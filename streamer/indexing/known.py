"""Takes the samples of unchanged objects from earlier manifests, so that the objects are not read again.

`indexing/build.py` calls it before it indexes the other objects. The rows of an object in a manifest depend on its
bytes, the format and the facts alone. Its samples are cut into chunks again. Blocks depend on `chunk_bytes`, too, since
formats choose their size by it, so they are taken only if it is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamer.manifest.blocks import Block, decode_hints, first_ranges, plan_local_bytes
from streamer.manifest.chunking import Cut, cut_object
from streamer.manifest.model import Facts, ObjectRecord
from streamer.manifest.protocols import Indexer, Source
from streamer.manifest.table import Manifest

Int64Array = NDArray[np.int64]


def take_over(
    sources: Sequence[Source], manifests: Sequence[Manifest], indexer: Indexer, facts: Facts, chunk_bytes: int
) -> dict[int, Cut | list[Block]]:
    """Returns what the manifests know of the sources, by the number of the source. Unknown ones are left out.

    A source with an index file is left out, too: reading it costs little, and it may have been corrected.

    Args:
        sources: the objects to index, as a survey returned them.
        manifests: earlier manifests, of which the first one that knows an object counts.
        indexer: the format.
        facts: facts from the survey; a manifest with others knows nothing.
        chunk_bytes: size of the chunks into which samples are cut.
    """
    found: dict[int, Cut | list[Block]] = {}
    for manifest in manifests:
        content = manifest.content
        asked = (indexer.name, indexer.revision, indexer.options, facts, False)
        if (content.format, content.revision, content.options, manifest.facts, content.whole_objects) != asked:
            # Another format, or the same one with other options or facts, may find other samples.
            continue
        rows = _Rows(manifest)
        for number, source in enumerate(sources):
            if number not in found and source.sidecar is None:
                known = rows.find(source.record, chunk_bytes)
                if known is not None:
                    found[number] = known
    return found


class _Rows:
    """Finds the rows of a manifest by object; the manifest has no whole objects."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._numbers = {manifest.object(number).url: number for number in range(manifest.objects)}
        owner = manifest.column("extents", "object").astype(np.int64)
        self._start = manifest.column("extents", "start").astype(np.int64)
        self._stop = manifest.column("extents", "stop").astype(np.int64)
        self._first_extent = np.append(manifest.column("chunks", "first_extent").astype(np.int64), len(owner))
        # The object of a chunk's first extent is that of all, in a chunk whose extents are of one object.
        self._owner = owner[self._first_extent[:-1]]
        # Blocks that have bytes of several objects may change with an object that their rows do not name.
        self._are_of_one = not manifest.recoded or bool(
            np.array_equal(owner, np.repeat(self._owner, np.diff(self._first_extent)))
        )
        self._sample_start = np.empty(0) if manifest.recoded else manifest.column("samples", "start")

    def find(self, record: ObjectRecord, chunk_bytes: int) -> Cut | list[Block] | None:
        """Returns the samples of an object, cut into chunks, or its blocks; None if they are not known for sure.

        That is so if the object is unknown or has changed, if chunks of the manifest have blocks of several objects or
        another size, or if a sample has no bytes.
        """
        number = self._numbers.get(record.url)
        if number is None or self._manifest.object(number) != record or not self._are_of_one:
            return None
        first, stop = np.searchsorted(self._owner, [number, number + 1]).tolist()
        if self._manifest.recoded:
            if self._manifest.chunk_bytes != chunk_bytes:
                return None
            return [block for chunk in range(first, stop) for block in self._blocks(chunk)]
        manifest = self._manifest
        extents = slice(int(self._first_extent[first]), int(self._first_extent[stop]))
        start = self._start[extents]
        lengths = (self._stop - self._start)[extents]
        # Positions in the concatenated bytes of the chunks: samples fill their extents without a gap.
        base = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        samples = slice(int(manifest.chunk_first[first]), int(manifest.chunk_first[stop]))
        local = self._sample_start[samples].astype(np.int64)
        chunk_base = np.concatenate([[0], np.cumsum(manifest.chunk_local_bytes[first:stop])]).astype(np.int64)
        begins = local + np.repeat(chunk_base[:-1], manifest.chunk_samples[first:stop])
        extent = np.searchsorted(base, begins, side="right") - 1
        sizes = np.append(begins[1:], base[-1:]) - begins
        starts: Int64Array = start[extent] + begins - base[extent] if len(begins) else begins
        stops = starts + sizes
        if (starts >= stops).any():  # the rows do not say in which extent a sample of 0 bytes is
            return None
        return cut_object(starts, stops, record.size, chunk_bytes)

    def _blocks(self, chunk: int) -> list[Block]:
        """Returns the blocks of a chunk; its record bytes are divided in proportion to the samples of each."""
        found = self._manifest.chunk(chunk)
        ranges = [(extent.start, extent.stop) for extent in found.extents]
        hints = decode_hints(found.hint)
        rest = found.local_bytes - plan_local_bytes(hints, 0)
        blocks = list[Block]()
        for number, hint in enumerate(hints):
            last = number == len(hints) - 1
            share = rest if last else rest * hint.samples // max(1, sum(each.samples for each in hints[number:]))
            own = first_ranges(ranges, hint.fetch_bytes)
            ranges = ranges[len(own) :]
            rest = rest - share
            blocks.append(
                Block(
                    ranges=tuple(own),
                    samples=hint.samples,
                    record_bytes=share,
                    hint=hint.hint,
                    objects=(),
                    parts=hint.parts,
                    part_ranges=hint.part_ranges,
                )
            )
        return blocks
