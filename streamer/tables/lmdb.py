"""The format "lmdb": a sample is an entry of an LMDB database. The index reads pages with keys, but no long values.

`formats/registry.py` makes it for engine, recoders and workers. The tree is read level by level, the pages of a level
at once. Values that follow each other in the file are a block. Its hint has their keys, which are elsewhere in the
file, so a recoder puts each key before its value: `u16 key bytes, key, value`. Samples are in the order of the file,
not of the keys: about the order in which they were written.

Files are of data format 1 (LMDB 0.9) of 64 bits, little-endian. A page is `u64 number, u16 -, u16 flags, u16 lower, u16
upper`, then the places of its nodes (u16 each, up to `lower`), and the nodes. A node is `u16 low, u16 high, u16 flags,
u16 key bytes, key, value`. On branch pages `low`, `high` and `flags` are the 48-bit number of the page below. On leaf
pages `low` and `high` are the length of the value. A long value is on overflow pages instead, and the node has the
number of the first one. Overflow pages are consecutive, and only the first has a head. Damaged bytes raise
`DamagedError`, and what is not read `UnreadError`; their offsets are in the file.
Source: LMDB 0.9, libraries/liblmdb/mdb.c, `MDB_page`, `MDB_node`, `MDB_meta`, `MDB_db`.
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
from streamer.formats.failures import DamagedError, UnreadError, errors_of
from streamer.formats.names import base_name, kind_of_bytes
from streamer.formats.reading import Reading, read_each, read_range, read_ranges
from streamer.manifest.beside import is_hidden
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Need, Source, Survey, Surveying

FIELD = "value"
_KEY_BYTES = Struct("<H")
# Pages with fewer bytes between them are read together: that costs less than a request.
_NEAR_BYTES = 16 << 10
# Max bytes of a request for pages, and of the pages that are held at a time.
_READ_BYTES = 1 << 20
_HELD_BYTES = 32 << 20
# Values with fewer bytes between them are fetched as one range, such as pages of keys, which lie between them.
_NEAR_VALUES_BYTES = 64 << 10
# Max bytes of the hint of a block, about: with many keys, blocks are shorter than a chunk.
_MAX_HINT_BYTES = 32 << 10
# Max bytes of a value in a hint, besides its key: two lengths, and the length of the key.
_HINT_BYTES = 13


class LMDB(Format, frozen=True, forbid_unknown_fields=True):
    """Reads LMDB databases: `data.mdb` in a folder, or a file `x.lmdb`.

    Attributes:
        skip: keys that are not samples, as patterns with `*` and `?`.
    """

    name = "lmdb"
    skip: tuple[str, ...] = ("__len__", "__keys__")

    def accepts(self, key: str) -> bool:
        """Whether an object is a database: `.mdb` or `.lmdb`, but not the lock file `lock.mdb`."""
        name = base_name(key).lower()
        return name.endswith((".mdb", ".lmdb")) and name != "lock.mdb" and not is_hidden(key)

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Takes all databases, and reads their heads, which say how many pages have keys."""
        trees = yield from read_each(accepted, _head, lambda content, size: read_tree(content))
        notes = {url: msgspec.msgpack.encode(tree) for url, tree in trees.items()}
        sources = [Source(each, notes.get(each.url, b"")) for each in accepted]
        read_bytes = {url: tree.key_pages * (tree.page_bytes + _NEAR_BYTES) for url, tree in trees.items()}
        return Survey(
            sources, read_bytes=sum(min(each.size, read_bytes.get(each.url, META_BYTES)) for each in accepted)
        )

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the values by the pages that have keys; yields them as blocks.

        Raises:
            ManifestError: the database is damaged, or of a kind that is not read.
        """
        record = source.record
        with errors_of(record):
            head = memoryview(b"") if source.notes else (yield from read_range(*_head(record), record))
            tree = _TREE.decode(source.notes) if source.notes else read_tree(head)
            skipped = re.compile("|".join(map(translate, self.skip)) or r"(?!)").match
            places = _Places()
            found = 0
            # The tree is read level by level from the root, down to the leaf pages.
            numbers = [tree.root] if tree.entries else []
            seen = 0
            for _ in range(tree.depth - 1):
                below: list[int] = []
                for pages in _batches(numbers, tree):
                    for number, page in (yield from _read_pages(record, tree, pages)):
                        below += children(page, number, tree)
                seen += len(below)
                numbers = sorted(set(below))
                if len(numbers) < len(below) or seen > tree.pages:
                    raise DamagedError("a page is below several others", 0)
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
            yield from places.blocks(source.chunk_bytes)

    def open(self, content: memoryview, name: SampleName) -> tuple[str, Sequence[Field]]:
        """Returns the key of a record as text (`text_of`), and the field "value"; raises DecodeError."""
        start = _KEY_BYTES.size + int.from_bytes(content[: _KEY_BYTES.size], "little")
        if start > len(content) or len(content) < _KEY_BYTES.size:
            raise DecodeError(f"a record of {len(content)} bytes; its key alone takes {start}", offset=0)
        value = content[start:]
        return text_of(bytes(content[_KEY_BYTES.size : start])), [Field(FIELD, value, kind_of_bytes(value))]

    def recoder(self, facts: Facts) -> EntryRecoder:
        """Returns what makes records of values by putting their keys before them."""
        return EntryRecoder()


def _batches(numbers: Sequence[int], tree: LMDBTree) -> Iterator[list[list[int]]]:
    """Yields lists of runs of these ascending page numbers. A run is read as one range, a list of them at a time."""
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
    record: ObjectRecord, tree: LMDBTree, runs: Sequence[Sequence[int]]
) -> Reading[Iterator[tuple[int, memoryview]]]:
    """Reads runs of pages, all at once; returns the pages with their numbers. Raises DamagedError if one is missing."""
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
    """Collects the places of the values of a database, and their keys: 24 bytes for each entry, and the key."""

    def __init__(self) -> None:
        self._starts = array("q")
        self._stops = array("q")
        self._key_stops = array("q", [0])
        self._keys = bytearray()

    def add(self, entry: LMDBEntry) -> None:
        """Adds the place of a value, and its key."""
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
            if run and (self._stops[number] - self._starts[run[0]] > chunk_bytes or hint_bytes > _MAX_HINT_BYTES):
                yield self._block(run)
                run = []
                hint_bytes = 0
            run.append(number)
            hint_bytes += _HINT_BYTES + key_bytes
        if run:
            yield self._block(run)

    def _block(self, run: list[int]) -> Block:
        """Makes the block of these values, given by number in the order of the file."""
        ranges: list[tuple[int, int]] = []
        skipped = list[int]()
        lengths = list[int]()
        keys = list[bytes]()
        for number in run:
            start, stop = self._starts[number], self._stops[number]
            if not ranges or start - ranges[-1][1] > _NEAR_VALUES_BYTES:
                # A range has at least one byte: an empty value takes the byte before it, which belongs to its node.
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
    """Makes records of values, as a `Recoder`: `u16 key bytes, key, value`."""

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes the records of a block of `samples` values; raises RecodeError if hint and bytes do not agree."""
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
    """Returns a key as text: UTF-8, or hexadecimal digits if it is not UTF-8 (binary numbers)."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key.hex()


HEAD_BYTES = 16
# Both meta pages, whatever the page size is.
META_BYTES = 2 * (64 << 10)
_PAGE = Struct("<QHHHH")
_NODE = Struct("<HHHH")
_META = Struct("<II")
_DATABASE = Struct("<IHHQQQQQ")
_NUMBER = Struct("<Q")
_BRANCH = 1
_ENTRIES = 2
_KINDS = 0x4F
_META_PAGE = 8
_LONG = 1
_NAMED = 2
_DUPLICATES = 4
_MAGIC = 0xBEEFC0DE
_FORMAT = 1
_PAGE_BYTES = (4096, 8192, 16384, 32768, 65536)
# Behind the head of a meta page: magic, format, address, map size; two databases; last page, transaction.
_DATABASES_AT = 24
_LAST_AT = 24 + 2 * _DATABASE.size
_FIRST_DATA_PAGE = 2
_EMPTY = (1 << 64) - 1
_DEEPEST = 32
_UNREAD = "has named databases, or several values for a key (DUPSORT), which is not read"


class LMDBTree(msgspec.Struct, frozen=True):
    """The main database of a file.

    Attributes:
        page_bytes: size of a page.
        pages: number of pages in use; every page number is below it.
        depth: levels of pages from the root to the leaves, or 0 if there are no entries.
        root: number of the topmost page.
        entries: number of entries.
        key_pages: number of pages that have keys: branches and leaves.
    """

    page_bytes: int
    pages: int
    depth: int
    root: int
    entries: int
    key_pages: int


_TREE = msgspec.msgpack.Decoder(LMDBTree)


class LMDBEntry(msgspec.Struct, frozen=True, array_like=True):
    """A key, and where its value is in the file: the half-open byte range `[start, stop)`."""

    key: bytes
    start: int
    stop: int


def read_tree(content: memoryview) -> LMDBTree:
    """Returns the main database by the newer one of the two meta pages.

    Args:
        content: the first `META_BYTES` of the file, or all of it if it is shorter.

    Raises:
        DamagedError: the bytes are not an LMDB.
        UnreadError: it is an LMDB that is not read: big-endian, of another format, or with several values for a key.
    """
    if len(content) < HEAD_BYTES + _LAST_AT + 2 * _NUMBER.size:
        raise DamagedError(f"{len(content)} bytes are not an LMDB", 0)
    magic, version = _META.unpack_from(content, HEAD_BYTES)
    if magic == int.from_bytes(_MAGIC.to_bytes(4, "little"), "big"):
        raise UnreadError("is an LMDB of a big-endian machine, which is not read", HEAD_BYTES)
    if magic != _MAGIC:
        raise DamagedError("not an LMDB of 64 bits: the magic number is missing", HEAD_BYTES)
    if version != _FORMAT:
        raise UnreadError(
            f"is an LMDB of data format {version}; only {_FORMAT} is read, which LMDB 0.9 writes", HEAD_BYTES + 4
        )
    # The page size is in a field of the free list's database that other databases do not use.
    page_bytes: int = _DATABASE.unpack_from(content, HEAD_BYTES + _DATABASES_AT)[0]
    if page_bytes not in _PAGE_BYTES or len(content) < 2 * page_bytes:
        raise DamagedError(f"pages of {page_bytes} bytes, and {len(content)} bytes of them", HEAD_BYTES + _DATABASES_AT)
    metas = [_read_meta(content, number * page_bytes, page_bytes) for number in (0, 1)]
    _, tree = max(metas, key=lambda meta: meta[0])
    return tree


def _read_meta(content: memoryview, page: int, page_bytes: int) -> tuple[int, LMDBTree]:
    """Returns the number of the transaction that wrote the meta page at byte `page`, and the tree that it names."""
    _, _, flags, _, _ = _PAGE.unpack_from(content, page)
    at = page + HEAD_BYTES
    if not flags & _META_PAGE or _META.unpack_from(content, at) != (_MAGIC, _FORMAT):
        raise DamagedError("no meta page", page)
    found = _DATABASE.unpack_from(content, at + _DATABASES_AT + _DATABASE.size)
    _, flags, depth, branches, entry_pages, _, entries, root = found
    (last,) = _NUMBER.unpack_from(content, at + _LAST_AT)
    (transaction,) = _NUMBER.unpack_from(content, at + _LAST_AT + _NUMBER.size)
    if flags & _DUPLICATES:
        raise UnreadError(_UNREAD, at)
    if root == _EMPTY:
        return transaction, LMDBTree(page_bytes=page_bytes, pages=last + 1, depth=0, root=0, entries=0, key_pages=0)
    if not 1 <= depth <= _DEEPEST or not _FIRST_DATA_PAGE <= root <= last:
        raise DamagedError(f"a tree of {depth} levels whose root is page {root} of {last + 1}", at)
    return transaction, LMDBTree(
        page_bytes=page_bytes, pages=last + 1, depth=depth, root=root, entries=entries, key_pages=branches + entry_pages
    )


def children(page: memoryview, number: int, tree: LMDBTree) -> list[int]:
    """Returns the numbers of the pages below a branch page, in the order of the keys."""
    found = []
    for at in _nodes(page, number, tree, _BRANCH):
        low, high, top, _ = _NODE.unpack_from(page, at)
        child = low | high << 16 | top << 32
        if not _FIRST_DATA_PAGE <= child < tree.pages:
            raise DamagedError(f"page {number} is above page {child}, of {tree.pages}", number * tree.page_bytes + at)
        found.append(child)
    return found


def entries(page: memoryview, number: int, tree: LMDBTree) -> Iterator[LMDBEntry]:
    """Yields the entries of a leaf page, in the order of the keys."""
    base = number * tree.page_bytes
    for at in _nodes(page, number, tree, _ENTRIES):
        low, high, flags, key_bytes = _NODE.unpack_from(page, at)
        length = low | high << 16
        value = at + _NODE.size + key_bytes
        if flags & (_NAMED | _DUPLICATES):
            raise UnreadError(_UNREAD, base + at)
        stop = value + (_NUMBER.size if flags & _LONG else length)
        if stop > tree.page_bytes:
            raise DamagedError(f"an entry goes on after page {number}", base + at)
        start = base + value
        if flags & _LONG:
            (first,) = _NUMBER.unpack_from(page, value)
            start = first * tree.page_bytes + HEAD_BYTES
            if first < _FIRST_DATA_PAGE or start + length > tree.pages * tree.page_bytes:
                raise DamagedError(f"a value of {length} bytes on page {first} of {tree.pages}", base + at)
        yield LMDBEntry(bytes(page[at + _NODE.size : value]), start, start + length)


def _nodes(page: memoryview, number: int, tree: LMDBTree, kind: int) -> Iterator[int]:
    """Yields where in the page its nodes begin; raises DamagedError unless it is page `number` of this kind."""
    stated, _, flags, lower, upper = _PAGE.unpack_from(page)
    if stated != number or flags & _KINDS != kind or not HEAD_BYTES <= lower <= upper <= tree.page_bytes or lower % 2:
        kinds = "branch" if kind == _BRANCH else "leaf"
        raise DamagedError(f"no {kinds} page where page {number} should be", number * tree.page_bytes)
    for place in range(HEAD_BYTES, lower, 2):
        at = page[place] | page[place + 1] << 8
        if not upper <= at <= tree.page_bytes - _NODE.size:
            raise DamagedError(f"a node outside of page {number}", number * tree.page_bytes + place)
        yield at
