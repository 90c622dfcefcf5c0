"""Parses tar archives, one header at a time and without I/O: POSIX ustar, GNU long names, PAX headers.

Used by `formats/webdataset.py`, which finds samples with it and opens them; `formats/detect.py` takes the endings of
index files from here, and `shards/` the size of a block. Headers are checked strictly (checksum, sizes, ends). An entry
is only a byte range: nothing is unpacked to disk. Damaged bytes raise `DamagedError`, and a compressed archive raises
`UnreadError`.
Source: POSIX.1-2017 `pax`, "ustar Interchange Format" and "pax Extended Header". GNU tar manual, "Basic Tar Format".

Index files beside tars say where samples are (`sample_edges`):

    x.tar.idx, x.idx    Megatron Energon's: uint64, where each sample begins and where the last one ends
    x.idx               DALI's (`wds2idx`): "v1.2 <samples>", then for each sample a line of "ending offset size name"
                        for each of its entries; the offset is that of an entry's content

The `wids` index of webdataset says how many samples a tar has, but not where: it does not help.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from struct import Struct, iter_unpack
from zlib import adler32

import msgspec

from streamer.formats.failures import DamagedError, UnreadError
from streamer.formats.names import find_compression_of_bytes
from streamer.formats.reading import Window
from streamer.manifest.protocols import Need

BLOCK = 512
# Max bytes of a long name or of PAX records. Linux paths have 4 KiB; a hostile archive must not fill the memory.
META_BYTES = 1 << 20
# Max bytes behind the end mark. GNU tar pads to 20 blocks; the largest padding in use is 1 MiB.
TRAILER_BYTES = 1 << 20

_ZERO = bytes(BLOCK)
# The fields of a header that are read: name, size, checksum, type flag, magic, prefix.
_FIELDS = Struct("<100s24x12s12x8sB100x6s82x155s12x")
# Type flags of links, devices, directories and fifos, which have no content by definition.
_EMPTY = frozenset(b"123456")
# Type flags of regular files, as Python's `TarInfo.isreg` has them: also those of old archives, and contiguous files.
# All other types (V: a label, D: a listing, A: access rights, I: an inode, N: a name) have content, but are no files.
_FILES = frozenset(b"0\x007")
_HARD_LINK, _SYMBOLIC_LINK = b"12"
# Solaris writes X for the PAX header x.
_LONG_NAME, _LONG_LINK, _PAX, _PAX_SOLARIS, _PAX_GLOBAL = b"LKxXg"
_EXTENDED = frozenset([_LONG_NAME, _LONG_LINK, _PAX, _PAX_SOLARIS, _PAX_GLOBAL])
_KNOWN_REFUSED = {ord("S"): "a sparse file", ord("M"): "a part of a multi-volume archive"}


class TarEntry(msgspec.Struct, frozen=True):
    """One entry of an archive. All places are bytes from the beginning of what is parsed.

    Attributes:
        name: path of the entry.
        is_file: whether the entry is a file with its content.
        start: where its first header begins.
        content_start: where its content begins.
        content_stop: where its content ends.
        stop: where the padding behind its content ends.
        is_link: whether the entry is a hard or symbolic link, whose content is elsewhere.
    """

    name: str
    is_file: bool
    start: int
    content_start: int
    content_stop: int
    stop: int
    is_link: bool = False


class Parser(msgspec.Struct):
    """Turns header blocks into entries; remembers the long-name and PAX headers of the next entry."""

    _start: int | None = None
    _name: str | None = None
    _pax: dict[str, str] = msgspec.field(default_factory=dict)

    def header(self, block: bytes, offset: int) -> tuple[int, int] | TarEntry | None:
        """Parses the header block at byte `offset`.

        Returns:
            An entry. For an extended header, the byte range of its content, which the caller gives to `meta` next. For
            the end mark, None.

        Raises:
            DamagedError: the block is no header, or is of an entry that cannot be read.
        """
        if block == _ZERO:
            if self._start is not None:
                raise DamagedError("the archive ends after an extended header", offset)
            return None
        kind, size, name = parse_header(block, offset)
        if self._start is None:
            self._start = offset
        if kind in _EXTENDED:
            if size > META_BYTES:
                raise DamagedError(f"an extended header of {size} bytes", offset)
            return offset + BLOCK, offset + BLOCK + size
        if reason := _KNOWN_REFUSED.get(kind):
            raise DamagedError(f"{name!r} is {reason}, which cannot be streamed", offset)
        return self._entry(kind, self._name or name, size, offset)

    def meta(self, kind: int, payload: bytes, offset: int) -> None:
        """Parses the content of an extended header, which is about the next entry; raises DamagedError.

        Args:
            kind: type flag of the header.
            payload: the content.
            offset: byte at which the content begins, for errors.
        """
        if kind == _LONG_NAME:
            self._name = _text(payload)
        elif kind in {_PAX, _PAX_SOLARIS}:
            self._pax.update(parse_pax(payload, offset))
        elif kind == _PAX_GLOBAL and parse_pax(payload, offset).keys() & {"path", "size"}:
            raise DamagedError("a global PAX header renames or resizes all entries", offset)

    def _entry(self, kind: int, name: str, size: int, offset: int) -> TarEntry:
        """Makes the entry of a header, with what extended headers before it say; raises DamagedError."""
        if self._pax:
            # The PAX header before an entry may name and size it.
            pax, self._pax = self._pax, {}
            if any(key.startswith("GNU.sparse.") for key in pax):
                raise DamagedError(f"{name!r} is a sparse file, which cannot be streamed", offset)
            text = pax.get("size", str(size))
            if not (text.isascii() and text.isdecimal() and len(text) < 20):
                raise DamagedError(f"PAX size {text[:40]!r} is not a number", offset)
            name = pax.get("path") or name
            size = int(text)
        empty = kind in _EMPTY
        if empty:
            size = 0
        start = offset if self._start is None else self._start
        content = offset + BLOCK
        self._start = self._name = None
        # A ustar name that ends in a slash is a directory in archives older than type flags.
        is_file = kind in _FILES and not name.endswith("/")
        is_link = kind in {_HARD_LINK, _SYMBOLIC_LINK}
        return TarEntry(
            name=name,
            is_file=is_file,
            start=start,
            content_start=content,
            content_stop=content + size,
            stop=content + pad_size(size),
            is_link=is_link,
        )


def pad_size(size: int) -> int:
    """Returns the bytes that a content of `size` bytes takes in the archive: whole blocks of 512 bytes."""
    return -(-size // BLOCK) * BLOCK


def parse_header(block: bytes, offset: int) -> tuple[int, int, str]:
    """Returns type flag, length of the content in bytes, and name from a header of 512 bytes. Raises DamagedError."""
    if len(block) < BLOCK:
        raise DamagedError(f"cut off inside a header: {len(block)} of {BLOCK} bytes", offset)
    name, size, checksum, kind, magic, prefix = _FIELDS.unpack(block)
    stored = _number(checksum, offset)
    # The checksum is the sum of all bytes, with spaces in place of its own. The lower half of the Adler-32 of at most
    # 256 bytes is their sum, and takes 0.15 us where `sum` takes 0.9 (2026-11-22).
    whole = (adler32(block[:256], 0) & 0xFFFF) + (adler32(block[256:], 0) & 0xFFFF)
    body = whole - sum(block[148:156]) + 8 * 0x20
    if stored != body:
        # Some old programs summed signed bytes.
        high = sum(1 for byte in block[:148] + block[156:] if byte >= 0x80)
        if stored != body - 256 * high:
            raise DamagedError(f"not a tar header: checksum {stored}, expected {body}", offset)
    text = _text(name)
    # The prefix exists in POSIX archives only: GNU's old format keeps times there.
    if magic == b"ustar\0" and prefix[0]:
        text = f"{_text(prefix)}/{text}"
    return kind, _number(size, offset), text


def parse_pax(payload: bytes, offset: int) -> dict[str, str]:
    """Returns the values in a PAX header by key. Each record is: length, space, key=value, newline.

    Raises DamagedError with `offset`, the byte at which the payload begins.
    """
    records: dict[str, str] = {}
    position = 0
    while position < len(payload):
        space = payload.find(b" ", position, position + 20)
        digits = payload[position : max(space, position)]
        stop = position + int(digits) if digits.isdigit() else 0
        key, equals, value = payload[space + 1 : stop - 1].partition(b"=")
        if not position < space < stop <= len(payload) or not equals or payload[stop - 1] != 0x0A:
            raise DamagedError("a PAX header with a broken record", offset)
        records[_text(key)] = _text(value)
        position = stop
    return records


def read_entries(size: int, position: int = 0) -> Generator[Need | TarEntry, memoryview | None, None]:
    """Walks over an archive: yields its entries in order, and needs, of which it is sent the bytes; they go forward.

    Args:
        size: length of the archive, bytes.
        position: byte at which an entry begins, the first one to be found.

    Raises:
        DamagedError: the archive is damaged, cut off, or has no end mark.
        UnreadError: the archive is compressed.
    """
    window = Window(size, position)
    parser = Parser()
    if position == 0 < size:
        yield from window.reach(0, min(BLOCK, size))
        if compression := find_compression_of_bytes(window.content):
            raise UnreadError(f"is compressed with {compression}; decompress it to a plain .tar")
    while position + BLOCK <= size:
        if not window.covers(position, position + BLOCK):
            yield from window.reach(position, position + BLOCK)
        block = window.take(position, position + BLOCK)
        found = parser.header(block, position)
        if found is None:
            yield from _check_trailer(window, position + BLOCK)
            return
        if isinstance(found, TarEntry):
            if found.content_stop > size:
                missing = found.content_stop - size
                raise DamagedError(f"cut off inside {found.name!r}, which needs {missing} more bytes", size)
            yield found
            position = found.stop
        else:
            start, stop = found
            end = start + pad_size(stop - start)
            if end > window.size:
                raise DamagedError("cut off inside an extended header", window.size)
            if not window.covers(start, end):
                yield from window.reach(start, end)
            parser.meta(block[156], window.take(start, stop), start)
            position = end
    raise DamagedError("cut off: the end-of-archive mark is missing", size)


def entries_of(content: memoryview) -> Generator[TarEntry, None, None]:
    """Yields the entries of bytes in memory that consist of whole entries without an end mark; raises DamagedError."""
    parser = Parser()
    position = 0
    size = len(content)
    while position < size:
        block = bytes(content[position : position + BLOCK])
        found = parser.header(block, position)
        if found is None:
            raise DamagedError("an end-of-archive mark inside a sample", position)
        if isinstance(found, TarEntry):
            if found.content_stop > size:
                raise DamagedError(f"cut off inside {found.name!r}", size)
            yield found
            position = found.stop
        else:
            start, stop = found
            if stop > size:
                raise DamagedError("cut off inside an extended header", size)
            parser.meta(block[156], bytes(content[start:stop]), start)
            position = start + pad_size(stop - start)


def _check_trailer(window: Window, start: int) -> Generator[Need, memoryview | None, None]:
    """Raises DamagedError if anything but zeros, or more than `TRAILER_BYTES`, follows the end mark.

    Otherwise `cat a.tar b.tar` would lose b in silence.
    """
    stop = window.size
    if stop - start > TRAILER_BYTES:
        raise DamagedError(f"{stop - start} bytes follow the end-of-archive mark", start)
    if start < stop and not window.covers(start, stop):
        yield from window.reach(start, stop)
    if window.take(start, stop).strip(b"\0"):
        raise DamagedError("more than zeros follow the end-of-archive mark (joined archives?)", start)


def _number(digits: bytes, offset: int) -> int:
    """Returns the number in a header field: octal text, or base 256 if its first bit is set (GNU, from 8 GiB on)."""
    if digits[0] == 0x80:
        return int.from_bytes(digits[1:], "big")
    text = digits.strip(b" \0")
    try:
        # int() also takes signs, underscores and spaces inside; a header may not have them.
        if text and not text.isdigit():
            raise ValueError(text)
        return int(text or b"0", 8)
    except ValueError:
        raise DamagedError(f"not a tar header: {digits!r} is not an octal number", offset) from None


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


# Endings of index files, as `formats/sidecars.py` takes them: "x.tar.idx", and "x.idx" in place of the extension.
INDEX_ENDINGS = (".idx", "/.idx")
# Bytes of a tar that are read beside its index file: the headers of the first and of the last sample.
INDEX_PROBE_BYTES = 2 * BLOCK
_DALI = b"v1."


def sample_edges(content: bytes, size: int) -> list[int]:
    """Returns the bytes at which the samples of a tar begin, and the one at which the last sample ends.

    Args:
        content: content of the index file.
        size: length of the tar, bytes.

    Raises:
        ValueError: the index file has neither layout, or its numbers do not fit the tar.
    """
    if content.startswith(_DALI):
        # A sample begins where the last entry of the one before it ends.
        edges = [0]
        try:
            for line in content.splitlines()[1:]:
                # An entry has four words. A name with a blank has more, and is refused.
                if (words := line.split()) and len(words) % 4:
                    raise ValueError("a name with a blank in it")
                if words:
                    ends = zip(words[1::4], words[2::4], strict=True)
                    edges.append(max(int(offset) + pad_size(int(length)) for offset, length in ends))
        except ValueError as error:
            raise ValueError(f"it has neither offsets (Energon) nor lines (DALI): {error}") from error
    elif len(content) % 8:
        raise ValueError("it has neither offsets (Energon) nor lines (DALI)")
    else:
        edges = [edge for (edge,) in iter_unpack("<Q", content)]
    apart = all(stop - first >= BLOCK for first, stop in pairwise(edges))
    if len(edges) < 2 or edges[0] < 0 or edges[-1] > size or not apart:
        raise ValueError("its offsets do not ascend within the tar")
    if any(edge % BLOCK for edge in edges):
        raise ValueError(f"its offsets are not multiples of {BLOCK}")
    return edges


def begins_entry(head: memoryview) -> bool:
    """Whether an entry of a tar can begin with these bytes, at most 512; False if there are fewer."""
    try:
        parse_header(bytes(head), 0)
    except DamagedError:
        return False
    return True
