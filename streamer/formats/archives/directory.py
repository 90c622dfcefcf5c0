"""The directory at the end of a zip file, also of 64 bits. No I/O.

Source: PKWARE, APPNOTE.TXT, 4.3 and 4.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct, error

import msgspec

# End record, and the longest comment behind it; before it what is there of 64 bits.
_END = Struct("<4s4H2LH")
_END_MAGIC = b"PK\x05\x06"
_LOCATOR = Struct("<4sLQL")
_LOCATOR_MAGIC = b"PK\x06\x07"
_END_64 = Struct("<4sQ2H2L4Q")
_END_64_MAGIC = b"PK\x06\x06"
TAIL_BYTES = _END.size + (1 << 16) + _LOCATOR.size + _END_64.size
_ENTRY = Struct("<4s6H3L5H2L")
_ENTRY_MAGIC = b"PK\x01\x02"
_EXTRA = Struct("<HH")
_EXTRA_64 = 1
_MOST_32 = (1 << 32) - 1
ENCRYPTED, _UTF_8 = 1, 1 << 11
# Of 5 million members, which have 50 bytes and a name each.
MOST_DIRECTORY_BYTES = 512 << 20


class ZipError(ValueError):
    """Bytes that are no such directory.

    Attributes:
        offset: in the file.
    """

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(what)
        self.offset = offset


class Directory(msgspec.Struct, frozen=True):
    """Where the directory is: the half-open byte range, and how many members it has."""

    start: int
    stop: int
    members: int


class Member(msgspec.Struct, frozen=True):
    """One member.

    Attributes:
        name: with its folders.
        start: of its head in the file.
        packed_bytes, bytes: of its content, as it is in the file and unpacked.
        method: 0: as it is, 8: deflated.
        encrypted: whether it is.
    """

    name: str
    start: int
    packed_bytes: int
    bytes: int
    method: int
    encrypted: bool


def find_directory(tail: memoryview, size: int) -> Directory:
    """Finds the directory.

    Args:
        tail: the last bytes of the file: `TAIL_BYTES`, or all if it is shorter.
        size: of the file.

    Raises:
        ZipError: there is none, or it is in several files.
    """
    base, content = size - len(tail), bytes(tail)
    at = content.rfind(_END_MAGIC)
    while at >= 0 and not _ends(content, at):
        at = content.rfind(_END_MAGIC, 0, at)
    if at < 0:
        raise ZipError("no zip file: its end record is missing", size)
    found = _END.unpack_from(content, at)
    locator = at - _LOCATOR.size
    if locator >= 0 and content[locator : locator + 4] == _LOCATOR_MAGIC:
        _, _, place, _ = _LOCATOR.unpack_from(content, locator)
        at = place - base
        if not 0 <= at <= locator - _END_64.size or content[at : at + 4] != _END_64_MAGIC:
            raise ZipError(f"no end record of 64 bits at byte {place}", base + locator)
        found = _END_64.unpack_from(content, at)[3:]
    disk, first_disk, here, members, length, start = found[1:7]
    if disk or first_disk or here != members:
        raise ZipError("one of several files", base + at)
    if start + length != base + at or length < members * _ENTRY.size or length > MOST_DIRECTORY_BYTES:
        raise ZipError(f"a directory of {members} members in {length} bytes from byte {start} on", base + at)
    return Directory(start, start + length, members)


def _ends(content: bytes, at: int) -> bool:
    """Whether an end record is here, behind which there is nothing but its comment."""
    return at + _END.size <= len(content) and at + _END.size + _END.unpack_from(content, at)[7] == len(content)


def read_members(content: memoryview, directory: Directory) -> Iterator[Member]:
    """The members, in the order of the directory.

    Raises:
        ZipError: the directory is damaged.
    """
    at = 0
    for _ in range(directory.members):
        try:
            fields = _ENTRY.unpack_from(content, at)
        except error as cause:
            raise ZipError("cut off in its directory", directory.start + at) from cause
        magic, _, _, flags, method, _, _, _, packed, whole, name_length, extra_length, comment = fields[:13]
        start = fields[-1]
        name_stop = at + _ENTRY.size + name_length
        stop = name_stop + extra_length + comment
        if magic != _ENTRY_MAGIC or stop > len(content):
            raise ZipError("no entry of a directory", directory.start + at)
        name = name_of(content[at + _ENTRY.size : name_stop], flags)
        extra = content[name_stop : name_stop + extra_length]
        whole, packed, start = wide_numbers(extra, [whole, packed, start], directory.start + name_stop)
        yield Member(name, start, packed, whole, method, bool(flags & ENCRYPTED))
        at = stop
    if at != len(content):
        raise ZipError(f"{len(content) - at} bytes behind the last entry of its directory", directory.start + at)


def name_of(content: memoryview, flags: int) -> str:
    """The name of a member."""
    return str(content, "utf-8" if flags & _UTF_8 else "cp437", "replace")


def wide_numbers(extra: memoryview, numbers: list[int], at: int) -> list[int]:
    """The numbers, of which those that have no room in 32 bits are in the extra field.

    Raises:
        ZipError: they are not; at this place.
    """
    wanted = [place for place, number in enumerate(numbers) if number == _MOST_32]
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
    raise ZipError("an entry of 64 bits without its numbers", at)
