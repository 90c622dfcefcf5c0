"""Verifies that a manifest is what was written, by its digests, and that its values and keys make sense.

`manifest/transfer.py` and `manifest/staging.py` verify manifests that they install, `engine/datasets.py` checks the
keys of others, and `indexing/publish.py` stamps those that it has made. A manifest may come from a url: a range that
points outside must be found before a reader follows it. A key names a file in a cache that several users and buckets
share. The writer of a manifest could put the key of another dataset's chunk into it, and have other bytes kept under
that name. So keys are computed again from what the manifest says of each chunk, and a chunk with another key than its
own is refused.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base.user_urls import has_secret
from streamer.errors import ManifestCorruptError
from streamer.manifest.blocks import Block, decode_hints, first_ranges, key_head, key_of_blocks, key_options
from streamer.manifest.chunking import key_at_endpoint, key_of_extents, name_extent
from streamer.manifest.columns import KEY_BYTES, BinaryColumn, digest_of, encode_text
from streamer.manifest.layout import file_name
from streamer.manifest.model import Chunk, Codec, ObjectRecord
from streamer.manifest.table import Manifest

Int64Array = NDArray[np.int64]

# Most chunks whose keys are computed together; their rows are copied.
_BATCH = 1024
# The broken rule that the error for a wrong key names in its details.
KEYS_RULE = "keys are those of their chunks"
# The broken rule of a manifest of another program, or of a version of streamer that kept the logins of urls.
SECRETS_RULE = "urls have no logins and no signatures"
_RANGE_BYTES = 16
# The ranges of a block of which nothing was written; see `tables.tiles.blocks_of`.
_NOTHING = ((0, 1),)
_START_BYTES = 4
# No object of any store is this long. Sums of 500 such lengths fit into int64, and the number is exact as a float.
MAX_OBJECT_BYTES = 1 << 53
# Chunks are shorter than this: all ranges of a chunk are planned at once, at most 131,072 of 8 MiB.
MAX_CHUNK_BYTES = 1 << 40


def open_and_verify(path: Path) -> Manifest:
    """Opens a manifest and verifies it; reads all of its tables.

    Raises:
        ManifestError: see `Manifest.open` and `verify`.
    """
    manifest = Manifest.open(path)
    verify(manifest)
    return manifest


def verify(manifest: Manifest) -> None:
    """Compares the content of every table with its digest (1 GB/s), and checks that its ranges and keys make sense.

    Raises:
        ManifestCorruptError: a table does not have its digest, or a rule is broken, which the error names.
    """
    for part, (digests, tables) in enumerate(zip(manifest.digests, manifest.tables, strict=True)):
        for name, table in tables.items():
            expected = digests[name]
            actual = digest_of(table)
            if actual != expected:
                where = str(manifest.path / file_name(name, part))
                raise ManifestCorruptError(
                    f"{where}: content has digest {actual}, expected {expected}; index again",
                    path=where,
                    expected=expected,
                    actual=actual,
                )
    _require(manifest, {SECRETS_RULE: not _has_secrets(manifest)})
    _check_values(manifest)
    check_keys(manifest)


def _has_secrets(manifest: Manifest) -> bool:
    """Whether an indexed url or that of an object has a login or signature; only the user's options may have one."""
    base = manifest.content.base
    if any(map(has_secret, (base, *manifest.urls))):
        return True
    for tables in manifest.tables:
        keys = cast("BinaryColumn", tables["objects"]["key"])
        signs = np.isin(keys.content, np.frombuffer(b"@?", np.uint8))
        is_whole = "?" not in base and "://" in base
        if is_whole and not signs.any():
            continue
        if any(has_secret(base + keys[row].decode("utf-8", "replace")) for row in range(len(keys))):
            return True
    return False


def _check_values(manifest: Manifest) -> None:
    """Raises ManifestCorruptError unless samples are in chunks, extents in objects, and lengths add up."""
    strings = [
        column
        for tables in manifest.tables
        for table in tables.values()
        for column in table.values()
        if isinstance(column, BinaryColumn)
    ]
    first = manifest.chunk_first
    local_bytes = manifest.chunk_local_bytes
    sizes = _column(manifest, "objects", "size")
    rules = {
        "chunks begin at sample 0 and have samples": first[0] == 0 and (first[1:] > first[:-1]).all(),
        "lengths are not negative and below 2^53": all(
            _is_within(lengths, 0, MAX_OBJECT_BYTES) for lengths in (local_bytes, sizes)
        ),
        "chunks are shorter than 1 TiB": _is_within(local_bytes, 0, MAX_CHUNK_BYTES),
        "codecs are known": (_column(manifest, "chunks", "codec") == manifest.content.codec).all(),
        "byte strings are in order": all((column.offsets[1:] >= column.offsets[:-1]).all() for column in strings),
        "labels are classes": _is_within(manifest.labels, -1, len(manifest.classes)),
    }
    _require(manifest, rules)
    if not manifest.recoded:
        starts = _column(manifest, "samples", "start")
        begins = np.zeros(len(starts), bool)
        begins[first[:-1]] = True
        ascend = begins[1:] | (starts[1:] >= starts[:-1])
        last = starts[first[1:] - 1]
        fit = bool(ascend.all() and (starts[first[:-1]] == 0).all() and (last <= local_bytes).all())
        _require(manifest, {"samples are inside their chunks": fit})
    if not manifest.whole_objects:
        _require(manifest, _extent_rules(manifest))
    else:
        total = sums_of(sizes, first[:-1])
        are_whole = manifest.samples == manifest.objects and (total == local_bytes).all()
        _require(manifest, {"chunks are as long as their objects": are_whole})


def _column(manifest: Manifest, table: str, name: str) -> Int64Array:
    return manifest.column(table, name).astype(np.int64, copy=False)


def _extent_rules(manifest: Manifest) -> dict[str, bool | np.bool_]:
    """Returns whether each rule of extents holds; the later rules are left out if one of the first two is broken."""
    number, start, stop = (_column(manifest, "extents", name) for name in ("object", "start", "stop"))
    first = np.append(_column(manifest, "chunks", "first_extent"), len(number))
    in_order = first[0] == 0 and bool((first[1:] > first[:-1]).all())
    known = _is_within(number, 0, manifest.objects)
    if not (in_order and known):
        return {"chunks have extents": in_order, "extents name objects": known}
    sizes = _column(manifest, "objects", "size")
    fetch_bytes = _column(manifest, "chunks", "fetch_bytes")
    inside = bool(((start >= 0) & (start < stop) & (stop <= sizes[number])).all())
    # The sums are checked only for extents inside their objects: the lengths of others may not fit into int64.
    total = sums_of(stop - start, first[:-1]) if inside else fetch_bytes
    return {
        "extents are inside their objects": inside,
        "chunks are as long as their extents": (total == fetch_bytes).all(),
        "chunks are shorter than 1 TiB": _is_within(fetch_bytes, 0, MAX_CHUNK_BYTES),
        "unchanged chunks are as long as they were": manifest.recoded
        or (manifest.chunk_local_bytes == fetch_bytes).all(),
    }


def sums_of(lengths: Int64Array, first: Int64Array) -> Int64Array:
    """Returns the sum of each group of lengths, int64, shape (m,); -1 for one of `MAX_CHUNK_BYTES` or more.

    Args:
        lengths: int64, shape (n,).
        first: int64, shape (m,): place where each group begins, ascending.
    """
    sums = np.add.reduceat(lengths, first)
    too_long = np.add.reduceat(lengths.astype(np.float64), first) >= MAX_CHUNK_BYTES
    found: Int64Array = np.where(too_long, -1, sums)
    return found


def _is_within(values: NDArray[np.signedinteger], lower: int, upper: int) -> bool:
    return not len(values) or bool(values.min() >= lower and values.max() < upper)


def _require(manifest: Manifest, rules: dict[str, bool | np.bool_]) -> None:
    for rule, holds in rules.items():
        if not holds:
            raise ManifestCorruptError(
                f"{manifest.path}: broken rule: {rule}; index again", path=str(manifest.path), rule=rule
            )


# ------------------------------------------------------------ keys


def check_keys(manifest: Manifest) -> None:
    """Computes the key of every chunk and compares it with the one that the manifest has.

    Takes 5 us for a chunk of a container, 25 us for one of blocks (2026-11-28).

    Raises:
        ManifestCorruptError: a chunk has another key.
    """
    stored = manifest.chunk_keys.tobytes()
    endpoint = manifest.content.endpoint
    for chunk, key in enumerate(base_keys(manifest)):
        if key is None or key_at_endpoint(key, endpoint) != stored[KEY_BYTES * chunk : KEY_BYTES * (chunk + 1)]:
            raise foreign(manifest, chunk)


def check_key(manifest: Manifest, chunk: int) -> None:
    """Computes the key of one chunk and compares it with the one that the manifest has.

    Does nothing for a chunk of blocks of several objects, for which that takes too long.

    Raises:
        ManifestCorruptError: the chunk has another key.
    """
    keys = _Keys(manifest)
    if manifest.recoded and not keys.is_of_one(manifest.chunk(chunk)):
        return
    key = next(keys.between(chunk, chunk + 1))
    if key is None or key_at_endpoint(key, manifest.content.endpoint) != manifest.chunk_keys[chunk].tobytes():
        raise foreign(manifest, chunk)


def stamp_keys(folder: Path) -> None:
    """Writes a file beside a manifest's folder, if it can: the keys in its files, as they are now, were checked."""
    with suppress(OSError):  # Without it they are checked again.
        _stamp_path(folder).write_text(_describe_files(folder))


def has_key_stamp(folder: Path) -> bool:
    """Whether `stamp_keys` has written its file for a folder, and the folder's files have not changed since."""
    try:
        return _stamp_path(folder).read_text() == _describe_files(folder)
    except (OSError, UnicodeDecodeError):
        return False


def _stamp_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.checked")


def _describe_files(folder: Path) -> str:
    """Returns a line for each file of a folder, with its name, size and time of change."""
    files = [(entry.name, entry.stat()) for entry in os.scandir(folder)]
    return "".join(f"{name} {status.st_size} {status.st_mtime_ns}\n" for name, status in sorted(files))


def base_keys(manifest: Manifest) -> Iterator[bytes | None]:
    """Yields the computed key of each chunk, as it is without an endpoint, or None if no key can be right."""
    return _Keys(manifest).between(0, manifest.chunks)


def foreign(manifest: Manifest, chunk: int) -> ManifestCorruptError:
    """Returns the error for a chunk that has another key than the computed one."""
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
        self._base = encode_text(content.base)
        self._runs = [part.tables for part in content.parts]
        self._firsts = {table: [run[table].first for run in self._runs] for table in content.schemas}
        self._options = key_options(content.options, manifest.facts.fields)
        self._named: dict[int, bytes] = {}
        # Number of the object whose index has found the last chunk of blocks.
        self._owner = 0
        self._heads: dict[str, bytes] = {}

    def between(self, first: int, stop: int) -> Iterator[bytes | None]:
        """Yields the computed keys of the chunks `[first, stop)`; see `base_keys`."""
        if self._manifest.recoded:
            yield from map(self._find_block_key, map(self._manifest.chunk, range(first, stop)))
            return
        batch = self._object_keys if self._manifest.whole_objects else self._extent_keys
        while first < stop:
            part = bisect_right(self._firsts["chunks"], first) - 1
            run = self._runs[part]["chunks"]
            end = min(first + _BATCH, run.first + run.count, stop)
            yield from batch(part, first, end)
            first = end

    # ------------------------------------------------------------ chunks that are kept as they are fetched

    def _object_keys(self, part: int, first: int, stop: int) -> Iterator[bytes]:
        """Yields the keys of the chunks `[first, stop)`, of whole objects, which are all in this part."""
        edges = self._manifest.chunk_first[first : stop + 1].tolist()
        start = edges[0]
        end = edges[-1]
        ranges = np.zeros((end - start, 2), np.int64)
        ranges[:, 1] = self._rows(part=part, table="objects", name="size", first=start, stop=end)
        names = [self._name(number) for number in range(start, end)]
        places = [edge - start for edge in edges]
        return self._keys(
            names=names,
            ranges=ranges,
            extents=places,
            starts=self._rows(part=part, table="samples", name="start", first=start, stop=end),
            samples=places,
        )

    def _extent_keys(self, part: int, first: int, stop: int) -> Iterator[bytes]:
        """Yields the keys of the chunks `[first, stop)`, of extents, which are all in this part."""
        edges = self._manifest.chunk_first[first : stop + 1].tolist()
        run = self._runs[part]
        rows = min(stop + 1, run["chunks"].first + run["chunks"].count)
        extents = self._rows(part=part, table="chunks", name="first_extent", first=first, stop=rows).tolist()
        if len(extents) == stop - first:
            extents.append(run["extents"].first + run["extents"].count)
        owners, *spans = (
            self._rows(part=part, table="extents", name=name, first=extents[0], stop=extents[-1])
            for name in ("object", "start", "stop")
        )
        known = self._named
        names = [known.get(number) or self._name(number) for number in owners.tolist()]
        starts = self._rows(part=part, table="samples", name="start", first=edges[0], stop=edges[-1])
        places = [[edge - each[0] for edge in each] for each in (extents, edges)]
        return self._keys(
            names=names, ranges=np.stack(spans, axis=1), extents=places[0], starts=starts, samples=places[1]
        )

    def _rows(self, part: int, table: str, name: str, first: int, stop: int) -> NDArray[np.generic]:
        """Returns the rows `[first, stop)` of a column of numbers, counted over all parts; all are in this part."""
        column = self._manifest.tables[part][table][name]
        assert isinstance(column, np.ndarray)
        before = self._firsts[table][part]
        return column[first - before : stop - before]

    def _name(self, number: int) -> bytes:
        """Returns an object as keys name it; names of containers are kept, because many chunks need them."""
        part = bisect_right(self._firsts["objects"], number) - 1
        table = self._manifest.tables[part]["objects"]
        row = number - self._firsts["objects"][part]
        key = table["key"]
        version = table["version"]
        assert isinstance(key, BinaryColumn)
        assert isinstance(version, BinaryColumn)
        name = name_extent(self._base + key[row], version[row])
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
        """Yields the keys of consecutive chunks.

        Args:
            names: object of each extent (`name_extent`).
            ranges: start and stop of each extent, shape (e, 2).
            extents: place of each chunk's first extent, and their number.
            starts: chunk-local start of each sample.
            samples: place of each chunk's first sample, and their number.
        """
        spans = ranges.astype("<i8").tobytes()
        begins = starts.astype("<u4").tobytes()
        for a, b, c, d in zip(extents, extents[1:], samples, samples[1:], strict=False):
            own = spans[_RANGE_BYTES * a : _RANGE_BYTES * b], begins[_START_BYTES * c : _START_BYTES * d]
            yield key_of_extents(self._format, 0, (b - a, d - c), (*names[a:b], *own))

    # ------------------------------------------------------------ chunks of blocks

    @staticmethod
    def is_of_one(chunk: Chunk) -> bool:
        """Whether all ranges of a chunk are of one object."""
        return len({extent.object.url for extent in chunk.extents}) == 1

    def _find_block_key(self, chunk: Chunk) -> bytes | None:
        """Returns the key of a chunk of blocks, or None if no object of the manifest gives the one that it has.

        A key includes the object whose index has found the blocks. If their bytes are of several objects, the chunk's
        row does not say which object that is: it is the same as for the chunk before, or a later one.
        """
        blocks = _blocks(chunk)
        if blocks is None:
            return None
        if self.is_of_one(chunk):
            key = self._key_of_object(chunk.extents[0].object, blocks)
            if key_at_endpoint(key, self._endpoint) == chunk.key:
                return key
        owners = iter(chunk.extents)
        complete = [
            msgspec.structs.replace(block, objects=tuple(next(owners).object for _ in block.ranges)) for block in blocks
        ]
        # A block of which nothing was written has a byte of the indexed object, and its key does not name the object.
        partly = [own if block.ranges == _NOTHING else block for own, block in zip(blocks, complete, strict=True)]
        ways = [complete] if partly == complete else [complete, partly]
        for number in range(self._owner, self._manifest.objects):
            for way in ways:
                key = self._key_of_object(self._manifest.object(number), way)
                if key_at_endpoint(key, self._endpoint) == chunk.key:
                    self._owner = number
                    return key
        return None

    def _key_of_object(self, record: ObjectRecord, blocks: Sequence[Block]) -> bytes:
        """Returns the key that these blocks have if the index of this object has found them."""
        head = self._heads.get(record.url)
        if head is None:
            content = self._manifest.content
            # The object before stays known: blocks of several objects come back to the one that has found them.
            self._heads = dict([*self._heads.items()][-1:])
            head = self._heads[record.url] = key_head(content.format, content.revision, self._options, record)
        return key_of_blocks(head, blocks)


def _blocks(chunk: Chunk) -> list[Block] | None:
    """Returns the blocks of a chunk with all that its key depends on, or None if its row contradicts itself."""
    ranges = [(extent.start, extent.stop) for extent in chunk.extents]
    blocks = list[Block]()
    try:
        for hint in decode_hints(chunk.hint):
            own = first_ranges(ranges, hint.fetch_bytes)
            ranges = ranges[len(own) :]
            blocks.append(
                Block(
                    ranges=tuple(own),
                    samples=hint.samples,
                    record_bytes=0,
                    hint=hint.hint,
                    objects=(),
                    parts=hint.parts,
                    part_ranges=hint.part_ranges,
                )
            )
    except (ValueError, IndexError):
        return None
    codec = Codec.SHARED if any(block.part_ranges for block in blocks) else Codec.RECORDS
    if ranges or codec != chunk.codec or sum(block.samples for block in blocks) != chunk.samples:
        return None
    return blocks
