"""Computes the keys of a manifest's chunks again, from what the manifest says of each chunk.

A key names a file in a cache that several users and buckets share. Whoever writes a manifest could put the key of
another dataset's chunk into it, and have other bytes kept under that name. So the keys of a manifest that comes from
elsewhere are computed again, and a foreign one is refused; so is the key of each chunk before it is fetched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import ManifestCorruptError
from streamer.manifest.blocks import Block, decode_hints, first_ranges, key_head, key_of_blocks, key_options
from streamer.manifest.columns import KEY_BYTES, BinaryColumn, encoded
from streamer.manifest.model import Chunk, Codec, ObjectRecord
from streamer.manifest.packing import at_endpoint, key_of_extents, named
from streamer.manifest.table import Manifest

# So many chunks are looked at together: their columns are copied.
_BATCH = 1024
# Among the details of the error for a foreign key.
KEYS_RULE = "keys are those of their chunks"
_RANGE_BYTES = 16
_START_BYTES = 4


def check_keys(manifest: Manifest) -> None:
    """Compares every key with the chunk that it names; 5 us a chunk of a container, 25 us one of blocks (2026-11-28).

    Raises:
        ManifestCorruptError: a key is that of another chunk.
    """
    stored, endpoint = manifest.chunk_keys.tobytes(), manifest.content.endpoint
    for chunk, key in enumerate(base_keys(manifest)):
        if key is None or at_endpoint(key, endpoint) != stored[KEY_BYTES * chunk : KEY_BYTES * (chunk + 1)]:
            raise foreign(manifest, chunk)


def check_key(manifest: Manifest, chunk: int) -> None:
    """Does the same for one chunk; not for blocks of several objects, because finding their names takes too long here.

    Raises:
        ManifestCorruptError: its key is that of another chunk.
    """
    keys = _Keys(manifest)
    if manifest.recoded and not keys.is_of_one(manifest.chunk(chunk)):
        return
    key = next(keys.between(chunk, chunk + 1))
    if key is None or at_endpoint(key, manifest.content.endpoint) != manifest.chunk_keys[chunk].tobytes():
        raise foreign(manifest, chunk)


def base_keys(manifest: Manifest) -> Iterator[bytes | None]:
    """Yields the key of each chunk as it is where no endpoint was named; None for a row that cannot have one."""
    return _Keys(manifest).between(0, manifest.chunks)


def foreign(manifest: Manifest, chunk: int) -> ManifestCorruptError:
    """Returns the error for a chunk whose key is not its own."""
    return ManifestCorruptError(
        f"{manifest.path}: broken rule: the key of chunk {chunk} is not that of its objects, versions and ranges; the "
        "manifest was changed after it was written, or a version of streamer that made other keys has written it: "
        "index again",
        path=str(manifest.path),
        rule=KEYS_RULE,
        chunk=chunk,
    )


class _Keys:
    """Computes keys of consecutive chunks of one manifest."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        content = manifest.content
        self._endpoint = content.endpoint
        self._format = manifest.format.encode()
        self._base = encoded(content.base)
        self._runs = [part.tables for part in content.parts]
        self._firsts = {table: [run[table].first for run in self._runs] for table in content.schemas}
        self._options = key_options(content.options, manifest.facts.fields)
        self._named: dict[int, bytes] = {}
        # The object whose index has found the last chunk of blocks.
        self._owner = 0
        self._heads: dict[str, bytes] = {}

    def between(self, first: int, stop: int) -> Iterator[bytes | None]:
        """Yields the keys of these chunks, as they are where no endpoint was named."""
        if self._manifest.recoded:
            yield from map(self._of_blocks, map(self._manifest.chunk, range(first, stop)))
            return
        batch = self._of_objects if self._manifest.whole_objects else self._of_extents
        while first < stop:
            part = bisect_right(self._firsts["chunks"], first) - 1
            run = self._runs[part]["chunks"]
            end = min(first + _BATCH, run.first + run.count, stop)
            yield from batch(part, first, end)
            first = end

    # ------------------------------------------------------------ chunks that are kept as they are fetched

    def _of_objects(self, part: int, first: int, stop: int) -> Iterator[bytes]:
        edges = self._manifest.chunk_first[first : stop + 1].tolist()
        start, end = edges[0], edges[-1]
        ranges = np.zeros((end - start, 2), np.int64)
        ranges[:, 1] = self._rows(part, "objects", "size", start, end)
        names = [self._name(number) for number in range(start, end)]
        places = [edge - start for edge in edges]
        return self._keys(names, ranges, places, self._rows(part, "samples", "start", start, end), places)

    def _of_extents(self, part: int, first: int, stop: int) -> Iterator[bytes]:
        edges = self._manifest.chunk_first[first : stop + 1].tolist()
        run = self._runs[part]
        rows = min(stop + 1, run["chunks"].first + run["chunks"].count)
        extents = self._rows(part, "chunks", "first_extent", first, rows).tolist()
        if len(extents) == stop - first:
            extents.append(run["extents"].first + run["extents"].count)
        owners, *spans = (
            self._rows(part, "extents", name, extents[0], extents[-1]) for name in ("object", "start", "stop")
        )
        known = self._named
        names = [known.get(number) or self._name(number) for number in owners.tolist()]
        starts = self._rows(part, "samples", "start", edges[0], edges[-1])
        places = [[edge - each[0] for edge in each] for each in (extents, edges)]
        return self._keys(names, np.stack(spans, axis=1), places[0], starts, places[1])

    def _rows(self, part: int, table: str, name: str, first: int, stop: int) -> NDArray[np.generic]:
        """Rows of a numeric column, by their numbers in the whole manifest; all of them are in this part."""
        column = self._manifest.tables[part][table][name]
        assert isinstance(column, np.ndarray)
        before = self._firsts[table][part]
        return column[first - before : stop - before]

    def _name(self, number: int) -> bytes:
        """The name of an object as keys have it; those of containers are asked for again and again."""
        part = bisect_right(self._firsts["objects"], number) - 1
        table, row = self._manifest.tables[part]["objects"], number - self._firsts["objects"][part]
        key, version = table["key"], table["version"]
        assert isinstance(key, BinaryColumn)
        assert isinstance(version, BinaryColumn)
        name = named(self._base + key[row], version[row])
        if not self._manifest.whole_objects:
            self._named[number] = name
        return name

    def _keys(
        self,
        names: Sequence[bytes],
        ranges: NDArray[np.generic],
        extents: Sequence[int],
        starts: NDArray[np.generic],
        samples: Sequence[int],
    ) -> Iterator[bytes]:
        """Yields the keys of chunks whose extents and samples have these edges."""
        spans, begins = ranges.astype("<i8").tobytes(), starts.astype("<u4").tobytes()
        for a, b, c, d in zip(extents, extents[1:], samples, samples[1:], strict=False):
            own = spans[_RANGE_BYTES * a : _RANGE_BYTES * b], begins[_START_BYTES * c : _START_BYTES * d]
            yield key_of_extents(self._format, 0, (b - a, d - c), (*names[a:b], *own))

    # ------------------------------------------------------------ chunks of blocks

    @staticmethod
    def is_of_one(chunk: Chunk) -> bool:
        """Whether all ranges of a chunk are of one object."""
        return len({extent.object.url for extent in chunk.extents}) == 1

    def _of_blocks(self, chunk: Chunk) -> bytes | None:
        """The key of a chunk of blocks; None if no object of the manifest gives the one that it has.

        A key names the object whose index has found the blocks. If they consist of several objects, the row does not
        say which one that is: it is the same as for the chunk before, or one that follows.
        """
        blocks = _blocks(chunk)
        if blocks is None:
            return None
        if self.is_of_one(chunk):
            key = self._with_head(chunk.extents[0].object, blocks)
            if at_endpoint(key, self._endpoint) == chunk.key:
                return key
        blocks = _with_objects(blocks, chunk)
        for number in range(self._owner, self._manifest.objects):
            key = self._with_head(self._manifest.object(number), blocks)
            if at_endpoint(key, self._endpoint) == chunk.key:
                self._owner = number
                return key
        return None

    def _with_head(self, record: ObjectRecord, blocks: Sequence[Block]) -> bytes:
        head = self._heads.get(record.url)
        if head is None:
            content = self._manifest.content
            # Of the object before as well: blocks of several objects come back to the one that has found them.
            self._heads = dict([*self._heads.items()][-1:])
            head = self._heads[record.url] = key_head(content.format, content.revision, self._options, record)
        return key_of_blocks(head, blocks)


def _blocks(chunk: Chunk) -> list[Block] | None:
    """The blocks of a chunk, as far as its key depends on them; None if its row contradicts itself."""
    ranges, blocks = [(extent.start, extent.stop) for extent in chunk.extents], list[Block]()
    try:
        for hint in decode_hints(chunk.hint):
            own = first_ranges(ranges, hint.fetch_bytes)
            ranges = ranges[len(own) :]
            blocks.append(Block(tuple(own), hint.samples, 0, hint.hint, (), hint.parts, hint.part_ranges))
    except (msgspec.MsgspecError, IndexError):
        return None
    codec = Codec.SHARED if any(block.part_ranges for block in blocks) else Codec.RECORDS
    if ranges or codec != chunk.codec or sum(block.samples for block in blocks) != chunk.samples:
        return None
    return blocks


def _with_objects(blocks: Sequence[Block], chunk: Chunk) -> list[Block]:
    """The same blocks, each with the objects of its ranges."""
    owners = iter(chunk.extents)
    return [
        msgspec.structs.replace(block, objects=tuple(next(owners).object for _ in block.ranges)) for block in blocks
    ]
