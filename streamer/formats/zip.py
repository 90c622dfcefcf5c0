"""Zip archives: a sample is an entry, stored or deflated; the index is the directory at the end.

A sample has its own head, with its name, and goes on to the head of the next one. The worker that opens it inflates it.
A thread of the engine reads the directory, without zipfile: 2.2 us and 225 bytes of memory for an entry, with zipfile
5.3 us and 700 bytes (200,000 entries, 2026-11-25).

Source: PKWARE, APPNOTE.TXT, 4.3 and 4.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from struct import Struct, error

import msgspec

from streamer.errors import DecodeError
from streamer.formats.base import Facts, Field, Format, SampleName
from streamer.formats.checksum import crc32
from streamer.formats.compressed import inflate
from streamer.formats.failures import DamagedError, errors_of, make_refusal
from streamer.formats.names import extension, splits_in
from streamer.formats.reading import Reading, read_each, read_range
from streamer.manifest.beside import is_hidden
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Note, Source, Span, Survey, Surveying

_HEAD = Struct("<4s5H3L2H")
_HEAD_MAGIC = b"PK\x03\x04"
_STORED = 0
_DEFLATED = 8
# Checksum and lengths are behind the content, because the writer could not go back.
_BEHIND = 1 << 3
_BEHIND_MAGIC = b"PK\x07\x08"
_LENGTHS = (Struct("<LLL"), Struct("<LQQ"))
_RAW = -15
# An entry is unpacked as a whole, in a worker. Deflate makes at most 1,032 bytes of one.
MAX_BYTES = 256 << 20
_MAX_RATIO = 1032
# End record, and the longest comment behind it; before it what is there of 64 bits.
_END = Struct("<4s4H2LH")
_END_MAGIC = b"PK\x05\x06"
_LOCATOR = Struct("<4sLQL")
_LOCATOR_MAGIC = b"PK\x06\x07"
_END_64 = Struct("<4sQ2H2L4Q")
_END_64_MAGIC = b"PK\x06\x06"
_TAIL_BYTES = _END.size + (1 << 16) + _LOCATOR.size + _END_64.size
_ENTRY = Struct("<4s6H3L5H2L")
_ENTRY_MAGIC = b"PK\x01\x02"
_EXTRA = Struct("<HH")
_EXTRA_64 = 1
_SPLITS = (
    "entries of archives are in folders of several splits, which are one dataset here; archives of their own are "
    "datasets of their own"
)
_MAX_32 = (1 << 32) - 1
_ENCRYPTED = 1
_UTF_8 = 1 << 11
# 5 million entries, which have 50 bytes and a name each.
_MAX_DIRECTORY_BYTES = 512 << 20


class _Directory(msgspec.Struct, frozen=True):
    """The place of the directory: the half-open byte range, and how many entries it has."""

    start: int
    stop: int
    entries: int


class _ZipEntry(msgspec.Struct, frozen=True):
    """An entry: name with folders, place of its head, length of its content packed and unpacked, method."""

    name: str
    start: int
    packed_bytes: int
    bytes: int
    method: int
    encrypted: bool


_DIRECTORY = msgspec.msgpack.Decoder(_Directory)


class Zip(Format, frozen=True, forbid_unknown_fields=True):
    """Zip archives."""

    name = "zip"
    endings = (".zip",)

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads the ends of all archives: they say where the directories are, and so how much the index reads."""
        found = yield from read_each(accepted, _tail, _find_directory)
        notes = {url: msgspec.msgpack.encode(directory) for url, directory in found.items()}
        sources = [Source(record, notes.get(record.url, b"")) for record in accepted]
        return Survey(sources, read_bytes=sum(directory.stop - directory.start for directory in found.values()))

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the entries by the directory; hidden files are not samples."""
        record = source.record
        with errors_of(record):
            entries = yield from _entries(source)
        names = []
        for entry, stop in entries:
            if entry.start >= start and not is_hidden(entry.name):
                if entry.encrypted:
                    raise make_refusal(record, f"has an entry {entry.name!r} that is encrypted", entry.start)
                if entry.method not in {_STORED, _DEFLATED}:
                    raise make_refusal(
                        record,
                        f"has an entry {entry.name!r} that is compressed by method {entry.method}; only stored and "
                        "deflated ones are read",
                        entry.start,
                    )
                if entry.method == _DEFLATED and not entry.bytes <= min(MAX_BYTES, _MAX_RATIO * entry.packed_bytes):
                    raise make_refusal(
                        record,
                        f"has an entry {entry.name!r} that {entry.packed_bytes} bytes decompress to {entry.bytes}; at "
                        f"most {MAX_BYTES} are decompressed, and {_MAX_RATIO} of each",
                        entry.start,
                    )
                yield Span(entry.start, stop)
                names.append(entry.name)
        if splits := splits_in(names, of_files=False):
            yield Note(f"{_SPLITS} ({', '.join(splits)})", len(names), repr(names[0]))

    def open(self, content: memoryview, name: SampleName) -> tuple[str, Sequence[Field]]:
        """Returns one field, named by the extension (see `names`); the key is the name with its folders."""
        try:
            head = _read_head(content)
            if head.method == _STORED:
                # Its checksum takes 0.016 CPU s/GB, an epoch 0.7 (110 KB at a time, 2026-11-24).
                length = _length_before(head.rest) if head.behind and not head.packed_bytes else head.packed_bytes
                if length > len(head.rest):
                    raise ValueError(f"it has {len(head.rest)} of {length} bytes")
                value = _same(head, head.rest[:length], head.rest[length:])
            else:
                value = _inflate(head)
        except (ValueError, error, inflate.error) as cause:
            raise DecodeError(f"{len(content)} bytes are not an entry of a zip file: {cause}", offset=0) from cause
        return head.name, [Field(extension(head.name), value, checked=True)]


def _tail(record: ObjectRecord) -> tuple[int, int]:
    return max(0, record.size - _TAIL_BYTES), record.size


def _entries(source: Source) -> Reading[list[tuple[_ZipEntry, int]]]:
    """Returns the entries in the order of the file, and where each ends: where the next one begins."""
    record = source.record
    if source.notes:
        directory = _DIRECTORY.decode(source.notes)
    else:
        directory = _find_directory((yield from read_range(*_tail(record), record)), record.size)
    content = yield from read_range(directory.start, directory.stop, record)
    found = sorted(_read_entries(content, directory), key=lambda entry: entry.start)
    starts = [*(entry.start for entry in found), directory.start]
    for entry, (start, stop) in zip(found, pairwise(starts), strict=True):
        if start + _HEAD.size + entry.packed_bytes > stop:
            raise DamagedError(f"entry {entry.name!r} goes on behind byte {stop}, where another begins", start)
    return list(zip(found, starts[1:], strict=True))


def _find_directory(tail: memoryview, size: int) -> _Directory:
    """Finds the directory of a file of `size` bytes in its last bytes (`_TAIL_BYTES`, or all)."""
    base = size - len(tail)
    content = bytes(tail)
    at = content.rfind(_END_MAGIC)
    while at >= 0 and not _ends(content, at):
        at = content.rfind(_END_MAGIC, 0, at)
    if at < 0:
        raise DamagedError("not a zip file: its end record is missing", size)
    found = _END.unpack_from(content, at)
    locator = at - _LOCATOR.size
    if locator >= 0 and content[locator : locator + 4] == _LOCATOR_MAGIC:
        _, _, place, _ = _LOCATOR.unpack_from(content, locator)
        at = place - base
        if not 0 <= at <= locator - _END_64.size or content[at : at + 4] != _END_64_MAGIC:
            raise DamagedError(f"no end record of 64 bits at byte {place}", base + locator)
        found = _END_64.unpack_from(content, at)[3:]
    disk, first_disk, here, entries, length, start = found[1:7]
    if disk or first_disk or here != entries:
        raise DamagedError("one of several files", base + at)
    if start + length != base + at or length < entries * _ENTRY.size or length > _MAX_DIRECTORY_BYTES:
        raise DamagedError(f"a directory of {entries} entries in {length} bytes from byte {start} on", base + at)
    return _Directory(start, start + length, entries)


def _ends(content: bytes, at: int) -> bool:
    """Whether an end record is here, behind which there is nothing but its comment."""
    return at + _END.size <= len(content) and at + _END.size + _END.unpack_from(content, at)[7] == len(content)


def _read_entries(content: memoryview, directory: _Directory) -> Iterator[_ZipEntry]:
    """Yields the entries, in the order of the directory."""
    at = 0
    for _ in range(directory.entries):
        try:
            fields = _ENTRY.unpack_from(content, at)
        except error as cause:
            raise DamagedError("cut off in its directory", directory.start + at) from cause
        magic, _, _, flags, method, _, _, _, packed, whole, name_length, extra_length, comment = fields[:13]
        start = fields[-1]
        name_stop = at + _ENTRY.size + name_length
        stop = name_stop + extra_length + comment
        if magic != _ENTRY_MAGIC or stop > len(content):
            raise DamagedError("no entry of a directory", directory.start + at)
        name = _name_of(content[at + _ENTRY.size : name_stop], flags)
        extra = content[name_stop : name_stop + extra_length]
        whole, packed, start = _wide_numbers(extra, [whole, packed, start], directory.start + name_stop)
        yield _ZipEntry(
            name=name, start=start, packed_bytes=packed, bytes=whole, method=method, encrypted=bool(flags & _ENCRYPTED)
        )
        at = stop
    if at != len(content):
        raise DamagedError(f"{len(content) - at} bytes behind the last entry of its directory", directory.start + at)


class _Head(msgspec.Struct):
    """The head of an entry, and the bytes behind it: its content, and more."""

    name: str
    method: int
    behind: bool
    checksum: int
    packed_bytes: int
    bytes: int
    rest: memoryview


def _read_head(content: memoryview) -> _Head:
    magic, _, flags, method, _, _, checksum, packed, length, name_bytes, extra_bytes = _HEAD.unpack_from(content)
    name_stop = _HEAD.size + name_bytes
    start = name_stop + extra_bytes
    if magic != _HEAD_MAGIC or start > len(content) or flags & _ENCRYPTED or method not in {_STORED, _DEFLATED}:
        raise ValueError(f"it begins with {magic!r}, flags {flags}, method {method}")
    length, packed = _wide_numbers(content[name_stop:start], [length, packed], name_stop)
    name = _name_of(content[_HEAD.size : name_stop], flags)
    return _Head(
        name=name,
        method=method,
        behind=bool(flags & _BEHIND),
        checksum=checksum,
        packed_bytes=packed,
        bytes=length,
        rest=content[start:],
    )


def _length_before(rest: memoryview) -> int:
    """Returns the length of the content that is before its length; the writers of these may leave out the magic."""
    for magic in (_BEHIND_MAGIC, b""):
        for layout in _LENGTHS:
            length = len(rest) - layout.size - len(magic)
            if length >= 0 and rest[length : length + len(magic)] == magic:
                _, packed, unpacked = layout.unpack_from(rest, length + len(magic))
                if packed == unpacked == length:
                    return length
    raise ValueError("its length is neither before nor behind it")


def _inflate(head: _Head) -> memoryview:
    """Decompresses the content; if its head does not tell the length, at most what deflate can make of the bytes."""
    known = not head.behind or head.bytes > 0
    limit = min(head.bytes if known else MAX_BYTES, MAX_BYTES, _MAX_RATIO * len(head.rest))
    unpacker = inflate.decompressobj(_RAW)
    made = unpacker.decompress(head.rest, limit + 1)
    behind = unpacker.unused_data
    found = len(head.rest) - len(behind), len(made)
    if not unpacker.eof or len(made) > limit or (known and found != (head.packed_bytes, head.bytes)):
        declared = f"{head.packed_bytes} and {head.bytes}"
        raise ValueError(f"{found[0]} bytes decompress to {found[1]}, its head says {declared}")
    return _same(head, memoryview(made), behind)


def _same(head: _Head, content: memoryview, behind: memoryview) -> memoryview:
    """Returns the content, if it has the checksum that is in its head, or behind it."""
    expected = head.checksum
    if head.behind:
        expected = int.from_bytes(behind[4:8] if behind[:4] == _BEHIND_MAGIC else behind[:4], "little")
    if (found := crc32(content)) != expected:
        raise ValueError(f"the checksum of {head.name!r} is {found:#x}, not {expected:#x}")
    return content


def _name_of(content: memoryview, flags: int) -> str:
    """Returns the name of an entry."""
    return str(content, "utf-8" if flags & _UTF_8 else "cp437", "replace")


def _wide_numbers(extra: memoryview, numbers: list[int], at: int) -> list[int]:
    """Returns the numbers; those that have no room in 32 bits are in the extra field, which is at byte `at`."""
    wanted = [place for place, number in enumerate(numbers) if number == _MAX_32]
    if not wanted:
        return numbers
    place = 0
    while place + _EXTRA.size <= len(extra):
        kind, length = _EXTRA.unpack_from(extra, place)
        place += _EXTRA.size
        if kind == _EXTRA_64 and place + length <= len(extra) and length >= 8 * len(wanted):
            for number, which in enumerate(wanted):
                numbers[which] = int.from_bytes(extra[place + 8 * number : place + 8 * number + 8], "little")
            return numbers
        place += length
    raise DamagedError("an entry of 64 bits without its numbers", at)
