"""LMDB: a sample is an entry; the index reads the pages with the keys, not the values.

The tree is read level by level, the pages of a level at once. Values that follow each other in the file are a block.
Its hint has their keys, which are elsewhere, so a recoder puts each before its value: `u16 key bytes, key, value`.
Samples are in the order of the file, not of the keys: about the order in which they were written.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import translate
from itertools import accumulate
from struct import Struct

import msgspec
import numpy as np

from streamer.errors import DecodeError, RecodeError
from streamer.formats.base import Block, Facts, Field, Format, Records, SampleName
from streamer.formats.failures import DamagedError, errors_of
from streamer.formats.names import base_name, kind_of_bytes
from streamer.formats.reading import Reading, read_each, read_range, read_ranges
from streamer.manifest.beside import is_hidden
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Need, Source, Survey, Surveying
from streamer.tables.lmdb.pages import META_BYTES, Entry, Tree, children, entries, read_tree

FIELD = "value"
_KEY_BYTES = Struct("<H")
# Pages with fewer bytes between them are read together: that costs less than a request.
_NEAR_BYTES = 16 << 10
# Longest request for pages, and pages that are held at a time.
_READ_BYTES = 1 << 20
_HELD_BYTES = 32 << 20
# Values with fewer bytes between them are fetched as one range; pages of keys are among them.
_NEAR_VALUES_BYTES = 64 << 10
# Hint of a block; a chunk has several blocks if it has many keys.
_MOST_HINT_BYTES = 32 << 10
# A value in a hint, besides its key: two lengths, and the length of the key.
_HINT_BYTES = 13
_TREE = msgspec.msgpack.Decoder(Tree)


class LMDB(Format, frozen=True, forbid_unknown_fields=True):
    """LMDB databases: `data.mdb` of a folder, or a file `x.lmdb`.

    Attributes:
        skip: keys that are not samples, as patterns with `*` and `?`.
    """

    name = "lmdb"
    skip: tuple[str, ...] = ("__len__", "__keys__")

    def accepts(self, key: str) -> bool:
        """Accepts `.mdb` and `.lmdb`, but not the lock `lock.mdb`."""
        name = base_name(key).lower()
        return name.endswith((".mdb", ".lmdb")) and name != "lock.mdb" and not is_hidden(key)

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads the heads of all databases: they say how many pages have keys."""
        trees = yield from read_each(accepted, _head, lambda content, size: read_tree(content))
        notes = {url: msgspec.msgpack.encode(tree) for url, tree in trees.items()}
        sources = [Source(each, notes.get(each.url, b"")) for each in accepted]
        most = {url: tree.key_pages * (tree.page_bytes + _NEAR_BYTES) for url, tree in trees.items()}
        return Survey(sources, read_bytes=sum(min(each.size, most.get(each.url, META_BYTES)) for each in accepted))

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the values by the pages that have keys."""
        record = source.record
        with errors_of(record):
            head = memoryview(b"") if source.notes else (yield from read_range(*_head(record), record))
            tree = _TREE.decode(source.notes) if source.notes else read_tree(head)
            places = yield from self._places(record, tree)
            yield from places.blocks(source.chunk_bytes)

    def open(self, content: memoryview, name: SampleName) -> tuple[str, Sequence[Field]]:
        """Takes the key off a record; returns one field, "value"."""
        start = _KEY_BYTES.size + int.from_bytes(content[: _KEY_BYTES.size], "little")
        if start > len(content) or len(content) < _KEY_BYTES.size:
            raise DecodeError(f"a record of {len(content)} bytes; its key alone takes {start}", offset=0)
        value = content[start:]
        return text_of(bytes(content[_KEY_BYTES.size : start])), [Field(FIELD, value, kind_of_bytes(value))]

    def recoder(self, facts: Facts) -> EntryRecoder:
        """Puts keys before values."""
        return EntryRecoder()

    def _places(self, record: ObjectRecord, tree: Tree) -> Reading[_Places]:
        skipped = re.compile("|".join(map(translate, self.skip)) or r"(?!)").match
        places = _Places()
        found = 0
        numbers = yield from _entry_pages(record, tree)
        for pages in _batches(numbers, tree):
            for number, page in (yield from _read_pages(record, tree, pages)):
                for entry in entries(page, number, tree):
                    found += 1
                    if entry.stop > record.size:
                        raise DamagedError(f"cut off: a value goes on to byte {entry.stop}", record.size)
                    if not skipped(text_of(entry.key)):
                        places.add(entry)
        if found != tree.entries:
            raise DamagedError(f"{found} entries, its head says {tree.entries}", 0)
        return places


def _entry_pages(record: ObjectRecord, tree: Tree) -> Reading[Sequence[int]]:
    """Returns the numbers of the leaf pages; reads the tree level by level from the root."""
    level = [tree.root] if tree.entries else []
    seen = 0
    for _ in range(tree.depth - 1):
        below: list[int] = []
        for pages in _batches(level, tree):
            for number, page in (yield from _read_pages(record, tree, pages)):
                below += children(page, number, tree)
        seen += len(below)
        level = sorted(set(below))
        if len(level) < len(below) or seen > tree.pages:
            raise DamagedError("a page is below several others", 0)
    return level


def _batches(numbers: Sequence[int], tree: Tree) -> Iterator[list[list[int]]]:
    """Yields pages, in order, as runs that are read as one range each; as many at a time as may be held."""
    near, most_run, most_held = (limit // tree.page_bytes for limit in (_NEAR_BYTES, _READ_BYTES, _HELD_BYTES))
    batch: list[list[int]] = []
    run: list[int] = []
    held = 0
    for number in numbers:
        if run and (number - run[-1] > near or number - run[0] >= most_run):
            batch.append(run)
            held += run[-1] + 1 - run[0]
            run = []
            if held >= most_held:
                yield batch
                batch = []
                held = 0
        run.append(number)
    if run:
        yield [*batch, run]


def _read_pages(
    record: ObjectRecord, tree: Tree, runs: Sequence[Sequence[int]]
) -> Reading[Iterator[tuple[int, memoryview]]]:
    """Reads runs of pages, all at once; returns the pages with their numbers."""
    size = tree.page_bytes
    if (runs[-1][-1] + 1) * size > record.size:
        raise DamagedError(f"cut off: page {runs[-1][-1]} of {size} bytes is missing", record.size)
    contents = yield from read_ranges([Need(run[0] * size, (run[-1] + 1) * size, record) for run in runs])
    return (
        (number, content[(number - run[0]) * size : (number - run[0] + 1) * size])
        for run, content in zip(runs, contents, strict=True)
        for number in run
    )


def _head(record: ObjectRecord) -> tuple[int, int]:
    return 0, min(META_BYTES, record.size)


class _Places:
    """The places of the values of a database, and their keys. Of 10^7 entries: 24 bytes of each, and the key."""

    def __init__(self) -> None:
        self._starts = array("q")
        self._stops = array("q")
        self._key_stops = array("q", [0])
        self._keys = bytearray()

    def add(self, entry: Entry) -> None:
        """Adds a value."""
        self._starts.append(entry.start)
        self._stops.append(entry.stop)
        self._keys += entry.key
        self._key_stops.append(len(self._keys))

    def blocks(self, chunk_bytes: int) -> Iterator[Block]:
        """Yields the values as blocks, in the order of the file; raises DamagedError if two have bytes in common."""
        starts = np.array(self._starts, np.int64)
        stops = np.array(self._stops, np.int64)
        order = np.argsort(starts, kind="stable")
        shared = np.flatnonzero(stops[order[:-1]] > starts[order[1:]])
        if len(shared):
            raise DamagedError("two values at one place", int(starts[order[shared[0] + 1]]))
        run: list[int] = []
        hint_bytes = 0
        for number in order.tolist():
            key_bytes = self._key_stops[number + 1] - self._key_stops[number]
            if run and (self._stops[number] - self._starts[run[0]] > chunk_bytes or hint_bytes > _MOST_HINT_BYTES):
                yield self._block(run)
                run = []
                hint_bytes = 0
            run.append(number)
            hint_bytes += _HINT_BYTES + key_bytes
        if run:
            yield self._block(run)

    def _block(self, run: list[int]) -> Block:
        ranges: list[tuple[int, int]] = []
        skipped = list[int]()
        lengths = list[int]()
        keys = list[bytes]()
        for number in run:
            start, stop = self._starts[number], self._stops[number]
            if not ranges or start - ranges[-1][1] > _NEAR_VALUES_BYTES:
                # A range has at least one byte: a value of no bytes has the one before it, which is of its node.
                begin = min(start, stop - 1)
                ranges.append((begin, begin))
            begin, passed = ranges[-1]
            ranges[-1] = (begin, stop)
            skipped.append(start - passed)
            lengths.append(stop - start)
            keys.append(bytes(self._keys[self._key_stops[number] : self._key_stops[number + 1]]))
        record_bytes = sum(lengths) + sum(map(len, keys)) + 2 * len(run)
        return Block(tuple(ranges), len(run), record_bytes, msgspec.msgpack.encode(_Values(skipped, lengths, keys)))


class _Values(msgspec.Struct, frozen=True, array_like=True):
    """The hint of a block: bytes between values before each of them, the lengths of the values, and their keys."""

    skipped: list[int]
    lengths: list[int]
    keys: list[bytes]


_VALUES = msgspec.msgpack.Decoder(_Values)


class EntryRecoder:
    """Makes records of values: `u16 key bytes, key, value`."""

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes the records of a block."""
        try:
            values = _VALUES.decode(hint)
            sizes = [part for pair in zip(values.skipped, values.lengths, strict=True) for part in pair]
            edges = list(accumulate(sizes, initial=0))
            if len(values.keys) != samples or len(values.lengths) != samples or min(sizes) < 0:
                raise ValueError(f"the hint has {len(values.lengths)} values and {len(values.keys)} keys")
            if edges[-1] != len(content):
                raise ValueError(f"its values take {edges[-1]} bytes")
        except (msgspec.MsgspecError, ValueError) as error:
            raise RecodeError(
                f"{len(content)} bytes are not {samples} values of LMDB: {error}", samples=samples, bytes=len(content)
            ) from error
        parts: list[memoryview | bytes] = []
        for key, first, stop in zip(values.keys, edges[1::2], edges[2::2], strict=True):
            parts += [_KEY_BYTES.pack(len(key)) + key, content[first:stop]]
        keys = np.fromiter(map(len, values.keys), np.int64, samples)
        return Records(parts, keys + np.array(values.lengths, np.int64) + _KEY_BYTES.size)


def text_of(key: bytes) -> str:
    """Returns a key as text: UTF-8, otherwise (numbers as bytes) in hexadecimal."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key.hex()
