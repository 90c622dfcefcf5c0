"""LMDB: a sample is an entry; the index reads the pages with the keys, not the values.

The tree is read level by level, the pages of a level at once. Values that follow each other in the file are a block.
Its hint has their keys, which are elsewhere, so a recoder puts each before its value: `u16 key bytes, key, value`.
Samples are in the order of the file, not of the keys: about the order in which they were written.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import translate
from itertools import accumulate
from struct import Struct

import msgspec
import numpy as np

from streamer.errors import DecodeError, RecodeError
from streamer.formats.base import (
    Answer,
    Facts,
    Field,
    Format,
    Indexing,
    Need,
    ObjectRecord,
    Opener,
    Recoder,
    Records,
    SampleName,
    Source,
    Survey,
    Surveying,
)
from streamer.formats.failures import damaged, refused
from streamer.formats.lmdb.blocks import VALUES, Places
from streamer.formats.lmdb.pages import META_BYTES, PageError, Tree, UnreadError, children, entries, read_tree
from streamer.formats.names import base_name, is_hidden, kind_of_bytes

FIELD = "value"
_KEY_BYTES = Struct("<H")
# Pages with fewer bytes between them are read together: that costs less than a request.
_NEAR_BYTES = 16 << 10
# Of one request for pages, and of pages that are held at a time.
_READ_BYTES = 1 << 20
_HELD_BYTES = 32 << 20
_TREE = msgspec.msgpack.Decoder(Tree)


class LMDB(Format, frozen=True, forbid_unknown_fields=True):
    """LMDB databases: `data.mdb` of a folder, or a file `x.lmdb`.

    Attributes:
        skip: keys that are no samples, as patterns with `*` and `?`.
    """

    name = "lmdb"
    skip: tuple[str, ...] = ("__len__", "__keys__")

    def accepts(self, key: str) -> bool:
        """`.mdb` and `.lmdb`, but not the lock `lock.mdb`."""
        name = base_name(key).lower()
        return name.endswith((".mdb", ".lmdb")) and name != "lock.mdb" and not is_hidden(key)

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads the heads of all databases: they say how many pages have keys."""
        filled = [record for record in accepted if record.size]
        contents = (yield tuple(map(_head_of, filled))) if filled else ()
        assert isinstance(contents, tuple)
        trees: dict[str, Tree] = {}
        for record, content in zip(filled, contents, strict=True):
            # What is damaged is an error of its index, which may leave it out.
            with suppress(PageError):
                trees[record.url] = read_tree(content)
        sources = [
            Source(each, msgspec.msgpack.encode(trees[each.url]) if each.url in trees else b"") for each in accepted
        ]
        most = {url: tree.key_pages * (tree.page_bytes + _NEAR_BYTES) for url, tree in trees.items()}
        return Survey(sources, read_bytes=sum(min(each.size, most.get(each.url, META_BYTES)) for each in accepted))

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Reads the pages that have keys.

        Raises:
            ManifestError: damaged, or of another kind than is read.
        """
        record = source.record
        try:
            tree = _TREE.decode(source.notes) if source.notes else read_tree((yield from _read_head(record)))
            places = yield from self._places(record, tree)
            yield from places.blocks(source.chunk_bytes)
        except UnreadError as error:
            raise refused(record, str(error), error.offset) from error
        except PageError as error:
            raise damaged(record, str(error), error.offset) from error

    def opener(self, facts: Facts) -> Opener:
        """Takes the key off a record."""
        return EntryOpener()

    def recoder(self, facts: Facts) -> Recoder:
        """Puts keys before values."""
        return EntryRecoder()

    def _places(self, record: ObjectRecord, tree: Tree) -> Generator[tuple[Need, ...], Answer, Places]:
        skipped = re.compile("|".join(map(translate, self.skip)) or r"(?!)").match
        places = Places()
        found = 0
        numbers = yield from _entry_pages(record, tree)
        for pages in _batches(numbers, tree):
            for number, page in (yield from _read_pages(record, tree, pages)):
                for entry in entries(page, number, tree):
                    found += 1
                    if entry.stop > record.size:
                        raise PageError(f"cut off: a value goes on to byte {entry.stop}", record.size)
                    if not skipped(text_of(entry.key)):
                        places.add(entry)
        if found != tree.entries:
            raise PageError(f"{found} entries, its head says {tree.entries}", 0)
        return places


def _entry_pages(record: ObjectRecord, tree: Tree) -> Generator[tuple[Need, ...], Answer, Sequence[int]]:
    """The numbers of the leaf pages, level by level from the root."""
    level, seen = [tree.root] if tree.entries else [], 0
    for _ in range(tree.depth - 1):
        below: list[int] = []
        for pages in _batches(level, tree):
            for number, page in (yield from _read_pages(record, tree, pages)):
                below += children(page, number, tree)
        seen += len(below)
        level = sorted(set(below))
        if len(level) < len(below) or seen > tree.pages:
            raise PageError("a page is below several others", 0)
    return level


def _batches(numbers: Sequence[int], tree: Tree) -> Iterator[list[list[int]]]:
    """Pages, in order, as runs that are read as one range each; as many at a time as may be held."""
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
                batch, held = [], 0
        run.append(number)
    if run:
        yield [*batch, run]


def _read_pages(
    record: ObjectRecord, tree: Tree, runs: Sequence[Sequence[int]]
) -> Generator[tuple[Need, ...], Answer, Iterator[tuple[int, memoryview]]]:
    """Reads runs of pages, all at once; the pages with their numbers."""
    size = tree.page_bytes
    if (runs[-1][-1] + 1) * size > record.size:
        raise PageError(f"cut off: page {runs[-1][-1]} of {size} bytes is missing", record.size)
    contents = yield tuple(Need(run[0] * size, (run[-1] + 1) * size, record) for run in runs)
    assert isinstance(contents, tuple)
    return (
        (number, content[(number - run[0]) * size : (number - run[0] + 1) * size])
        for run, content in zip(runs, contents, strict=True)
        for number in run
    )


def _head_of(record: ObjectRecord) -> Need:
    return Need(0, min(META_BYTES, record.size), record)


def _read_head(record: ObjectRecord) -> Generator[Need, Answer, memoryview]:
    content = (yield _head_of(record)) if record.size else memoryview(b"")
    assert isinstance(content, memoryview)
    return content


class EntryRecoder:
    """Makes records of values: `u16 key bytes, key, value`."""

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """The records of a block.

        Raises:
            RecodeError: the values are not those that were indexed.
        """
        try:
            values = VALUES.decode(hint)
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


class EntryOpener:
    """Opens records."""

    def open(self, content: memoryview, name: SampleName) -> tuple[str, Sequence[Field]]:
        """One field, "value".

        Raises:
            DecodeError: not a record.
        """
        start = _KEY_BYTES.size + int.from_bytes(content[: _KEY_BYTES.size], "little")
        if start > len(content) or len(content) < _KEY_BYTES.size:
            raise DecodeError(f"a record of {len(content)} bytes; its key alone takes {start}", offset=0)
        value = content[start:]
        return text_of(bytes(content[_KEY_BYTES.size : start])), [Field(FIELD, value, kind_of_bytes(value))]


def text_of(key: bytes) -> str:
    """A key as text: UTF-8, otherwise (numbers as bytes) in hexadecimal."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key.hex()
