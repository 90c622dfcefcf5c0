"""Superblock, object headers and groups of an HDF5 file.

Source: HDF5 File Format Specification Version 3.0, II, III.A to III.D, IV.A.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

import msgspec
import numpy as np

from streamer.formats.arrays.hdf5 import messages
from streamer.formats.arrays.hdf5.held import HEAD_BYTES, Cursor, Hdf5Error, Hdf5UnreadError, Held
from streamer.formats.arrays.hdf5.trees import GROUPS, read_btree
from streamer.formats.base import Answer, Need

SIGNATURE = b"\x89HDF\r\n\x1a\n"
# MATLAB has 512 bytes of its own before it.
_PLACES = (0, 512, 1024, 2048)
# What is read of an object header at first; most are shorter.
_HEADER_BYTES = 1 << 10
_MOST_HEADER_BYTES = 1 << 20
_HEAP_HEAD_BYTES = 32
# 64 entries; usual are up to 8.
_TABLE_BYTES = 8 + 64 * 40
_NAME = np.dtype("<u8")
# What an entry of a table of symbols may be.
_SOFT_LINK = 2

Message: TypeAlias = tuple[int, Cursor]


class Header(msgspec.Struct, frozen=True):
    """The messages of one object."""

    address: int
    found: tuple[Message, ...]

    def of(self, kind: int) -> Cursor | None:
        """The first message of a kind."""
        return next((Cursor(message.content, message.offset) for number, message in self.found if number == kind), None)


def read_root(held: Held) -> Generator[Need | tuple[Need, ...], Answer, int]:
    """The address of the root group's header.

    Raises:
        Hdf5Error: no HDF5, or addresses of another width.
    """
    head = yield from held.read(0, HEAD_BYTES)
    place = next((place for place in _PLACES if head[place : place + 8] == SIGNATURE), -1)
    if place < 0:
        raise Hdf5Error("it does not begin as HDF5 does")
    block = Cursor(head[place + 8 :], place + 8)
    version = block.number(1)
    if version > 3:
        raise Hdf5UnreadError(f"a superblock of version {version}; write it with libver='v110'")
    if version < 2:
        block.take(4)
    widths = block.number(1), block.number(1)
    if widths != (8, 8):
        raise Hdf5UnreadError(f"addresses and lengths of {widths} bytes, 8 are usual; write it again")
    block.take(1 if version >= 2 else {0: 9, 1: 13}[version])
    # Something was put before the file, where it does not say so itself.
    moved = place - block.number()
    held.base = place
    # Its extension, or where free space is.
    block.take(8)
    stop = block.number() + moved
    if stop > held.record.size:
        raise Hdf5Error(f"it should have {stop} bytes, so it is cut off")
    if version < 2:
        block.take(16)
    return block.number()


def read_header(held: Held, address: int) -> Generator[Need | tuple[Need, ...], Answer, Header]:
    """The messages of an object header, of all its blocks.

    Raises:
        Hdf5Error: damaged.
    """
    start = yield from held.read(address, _HEADER_BYTES)
    prefix = Cursor(start, address)
    if bytes(start[:4]) == b"OHDR":
        prefix.expect(b"OHDR", (2,))
        flags = prefix.number(1)
        prefix.take((16 if flags & 32 else 0) + (4 if flags & 16 else 0))
        length = prefix.number(1 << (flags & 3))
        reader = _Messages(tracked=bool(flags & 4))
    else:
        if prefix.number(1) != 1:
            raise Hdf5Error("no object header is there", address)
        prefix.take(7)
        length = prefix.number(4)
        prefix.take(4)
        reader = _Messages(None)
    blocks, total, found = [(address + prefix.at, length)], 0, []
    while blocks:
        place, length = blocks.pop(0)
        total += length
        if total > _MOST_HEADER_BYTES:
            raise Hdf5Error(f"an object header of {total} bytes and more", address)
        content = yield from held.read(place, length)
        for kind, message in reader.of(Cursor(content, place), is_first=place == address + prefix.at):
            if kind == messages.CONTINUATION:
                blocks.append((message.number(), message.number()))
            else:
                found.append((kind, message))
    return Header(address, tuple(found))


class _Messages:
    """Takes a block of messages apart.

    Args:
        tracked: of version 2: whether messages say in which order they were made; None: version 1.
    """

    def __init__(self, tracked: bool | None) -> None:
        self._tracked = tracked

    def of(self, block: Cursor, *, is_first: bool) -> list[Message]:
        """The kinds and bodies of the messages of a block."""
        is_second = self._tracked is not None
        head_bytes = 8 if not is_second else 6 if self._tracked else 4
        end = 0
        if is_second and not is_first:
            block.expect(b"OCHK")
            end = 4  # the checksum
        found = []
        while block.left - end >= head_bytes:
            kind = block.number(1 if is_second else 2)
            length, flags = block.number(2), block.number(1)
            block.take(head_bytes - (4 if is_second else 5))
            offset = block.offset + block.at
            body = block.take(length)
            if flags & 2 and kind in {messages.DATATYPE, messages.DATASPACE, messages.FILTERS, messages.FILL}:
                raise Hdf5UnreadError("a type that has a name of its own (a committed datatype)", offset)
            found.append((kind, Cursor(body, offset)))
        return found


def read_group(held: Held, header: Header) -> Generator[Need | tuple[Need, ...], Answer, dict[str, int] | None]:
    """The addresses of a group's objects, by name; None: the object is no group.

    Raises:
        Hdf5Error: damaged.
    """
    table = header.of(messages.SYMBOL_TABLE)
    if table is not None:
        return (yield from _read_symbols(held, table.number(), table.number()))
    info = header.of(messages.LINK_INFO)
    if info is None:
        return None
    _, flags = info.number(1), info.number(1)
    info.take(8 if flags & 1 else 0)
    if not messages.is_undefined(info.number()):
        raise Hdf5UnreadError(
            "a group of many objects in the newer layout (dense links); write it with libver='earliest', or "
            "without track_order",
            header.address,
        )
    links = {}
    for message in [Cursor(each.content, each.offset) for kind, each in header.found if kind == messages.LINK]:
        name, address = _link(message)
        if address is not None:
            links[name] = address
    return links


def _link(message: Cursor) -> tuple[str, int | None]:
    """The name and the address of an object in this file; None: a soft or an external link."""
    _, flags = message.number(1), message.number(1)
    kind = message.number(1) if flags & 8 else 0
    message.take((8 if flags & 4 else 0) + (1 if flags & 16 else 0))
    name = _text(message.take(message.number(1 << (flags & 3))))
    return name, message.number() if kind == 0 else None


def _read_symbols(held: Held, tree: int, heap: int) -> Generator[Need | tuple[Need, ...], Answer, dict[str, int]]:
    """The links of a group in the older layout: a B-tree of tables of symbols, and a heap of names."""
    head = Cursor((yield from held.read(heap, _HEAP_HEAD_BYTES)), heap)
    head.expect(b"HEAP", (0,))
    head.take(3)
    length = head.number()
    head.take(8)
    names = bytes((yield from held.read(head.number(), min(length, _MOST_HEADER_BYTES))))
    tables = (yield from read_btree(held, tree, GROUPS, _NAME))["child"].tolist()
    contents = yield from held.read_all([(table, _TABLE_BYTES) for table in tables])
    links: dict[str, int] = {}
    for table, content in zip(tables, contents, strict=True):
        links |= _symbols(Cursor(content, table), names)
    return links


def _symbols(table: Cursor, names: bytes) -> dict[str, int]:
    """The entries of one table of symbols."""
    table.expect(b"SNOD", (1,))
    table.take(1)
    found = {}
    for _ in range(table.number(2)):
        at, address, cached = table.number(), table.number(), table.number(4)
        table.take(20)
        if cached != _SOFT_LINK:
            found[_text(names[at : names.find(b"\0", at)])] = address
    return found


def _text(raw: memoryview | bytes) -> str:
    return str(bytes(raw), "utf-8", "surrogateescape")
