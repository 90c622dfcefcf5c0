"""The format "zip": every file in an archive is one sample, stored as it is or deflated; hidden files are left out.

`formats/registry.py` makes it for engine and workers. The index comes from the directory at the end of an archive. The
bytes of a sample begin at the head of the entry, which has its name, and go on to the head of the next entry; the
worker that opens a sample decompresses it. The directory is read here and not by zipfile: an entry takes 2.2 us and 225
bytes of memory, and with zipfile 5.3 us and 700 bytes (200,000 entries, 2026-11-25).

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
# Flag of an entry whose checksum and lengths are behind its content, because the writer could not go back.
_BEHIND = 1 << 3
_BEHIND_MAGIC = b"PK\x07\x08"
_LENGTHS = (Struct("<LLL"), Struct("<LQQ"))
_RAW = -15
# Max bytes of a decompressed entry: a worker holds it as a whole. Deflate makes at most 1,032 bytes of one.
MAX_BYTES = 256 << 20
_MAX_RATIO = 1032
# An archive ends with the end record and a comment of at most 64 KiB. Large archives have two more records before it,
# with numbers of 64 bits.
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
# Max bytes of a directory, for 5 million entries: each has 50 bytes and a name.
_MAX_DIRECTORY_BYTES = 512 << 20


class _Directory(msgspec.Struct, frozen=True):
    """The half-open byte range of an archive's directory, and the number of entries in it."""

    start: int
    stop: int
    entries: int


class _ZipEntry(msgspec.Struct, frozen=True):
    """An entry of the directory.

    Attributes:
        name: path in the archive.
        start: byte of the archive at which its head begins.
        packed_bytes: length of its content in the archive.
        bytes: length of the decompressed content.
        method: number of the compression method.
        encrypted: whether the content is encrypted.
    """

    name: str
    start: int
    packed_bytes: int
    bytes: int
    method: int
    encrypted: bool


_DIRECTORY = msgspec.msgpack.Decoder(_Directory)


class Zip(Format, frozen=True, forbid_unknown_fields=True):
    """Reads zip archives. It has no options."""

    name = "zip"
    endings = (".zip",)

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Takes all archives, and reads their ends to find the directories, whose lengths are what the index reads."""
        found = yield from read_each(accepted, _tail, _find_directory)
        notes = {url: msgspec.msgpack.encode(directory) for url, directory in found.items()}
        sources = [Source(record, notes.get(record.url, b"")) for record in accepted]
        return Survey(sources, read_bytes=sum(directory.stop - directory.start for directory in found.values()))

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the entries by the directory. Folders and hidden files are not samples.

        Raises:
            ManifestError: the directory is damaged, or an entry is encrypted, too long, or compressed by a method that
                is not read.
        """
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
        """Returns the path in the archive as key, and one field, named by the extension (`names.extension`).

        Raises:
            DecodeError: the bytes are not an entry, or its checksum differs.
        """
        try:
            head = _read_head(content)
            if head.method == _STORED:
                # Comparing the checksum takes 0.016 CPU s/GB, reading an epoch 0.7 (110 KB at a time, 2026-11-24).
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
    """Reads the directory; returns the entries in the order of the archive, each with the byte where the next begins.

    Raises:
        DamagedError: the directory is damaged, or entries overlap.
    """
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
    """Finds the place of the directory of an archive; raises DamagedError.

    Args:
        tail: the last `_TAIL_BYTES` of the archive, or all of it.
        size: length of the archive, bytes.
    """
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
    """Whether `content` ends with an end record that begins at `at`, and the comment that it announces."""
    return at + _END.size <= len(content) and at + _END.size + _END.unpack_from(content, at)[7] == len(content)


def _read_entries(content: memoryview, directory: _Directory) -> Iterator[_ZipEntry]:
    """Yields the entries of the directory with these bytes, in its order; raises DamagedError."""
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
    """The head of an entry in a sample.

    Attributes:
        name: path in the archive.
        method: number of the compression method.
        behind: whether checksum and lengths are behind the content.
        checksum: CRC-32 of the decompressed content, unless `behind` is true.
        packed_bytes: length of the content in the archive. It may be 0 if `behind` is true.
        bytes: length of the decompressed content. It may be 0 if `behind` is true.
        rest: the bytes of the sample behind the head: the content, and what follows it.
    """

    name: str
    method: int
    behind: bool
    checksum: int
    packed_bytes: int
    bytes: int
    rest: memoryview


def _read_head(content: memoryview) -> _Head:
    """Parses the head of an entry; raises ValueError or struct.error."""
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
    """Returns the length of a stored content whose length is behind it, with or without a magic; raises ValueError."""
    for magic in (_BEHIND_MAGIC, b""):
        for layout in _LENGTHS:
            length = len(rest) - layout.size - len(magic)
            if length >= 0 and rest[length : length + len(magic)] == magic:
                _, packed, unpacked = layout.unpack_from(rest, length + len(magic))
                if packed == unpacked == length:
                    return length
    raise ValueError("its length is neither before nor behind it")


def _inflate(head: _Head) -> memoryview:
    """Decompresses the content of an entry and compares its lengths and checksum; raises ValueError.

    If the head has no length, the limit is what deflate can make of the bytes.
    """
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
    """Returns the content; raises ValueError if its checksum is not that in the head, or in the bytes `behind` it."""
    expected = head.checksum
    if head.behind:
        expected = int.from_bytes(behind[4:8] if behind[:4] == _BEHIND_MAGIC else behind[:4], "little")
    if (found := crc32(content)) != expected:
        raise ValueError(f"the checksum of {head.name!r} is {found:#x}, not {expected:#x}")
    return content


def _name_of(content: memoryview, flags: int) -> str:
    """Decodes the name of an entry: UTF-8 if its flags say so, else code page 437."""
    return str(content, "utf-8" if flags & _UTF_8 else "cp437", "replace")


def _wide_numbers(extra: memoryview, numbers: list[int], at: int) -> list[int]:
    """Replaces, in `numbers`, those that need 64 bits by the ones in the extra field; returns the list.

    Args:
        extra: the extra field of the entry.
        numbers: numbers of the entry, with 2^32 - 1 for one that needs 64 bits.
        at: byte at which the extra field begins, for errors.

    Raises:
        DamagedError: the extra field does not have the numbers.
    """
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
