"""Reads superblock, object headers, groups and B-trees of an HDF5 file.

`tables/hdf5/format.py` finds datasets with it, and `tables/hdf5/chunks.py` reads B-trees of chunks. Damaged bytes raise
`DamagedError`, and structures that are not read `UnreadError`.
Source: HDF5 File Format Specification Version 3.0, II, III.A to III.D, IV.A.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.formats.failures import DamagedError, UnreadError
from streamer.formats.reading import Reading
from streamer.tables.hdf5 import messages
from streamer.tables.hdf5.messages import HEAD_BYTES, UNDEFINED, Cursor, HeldBytes

SIGNATURE = b"\x89HDF\r\n\x1a\n"
# Bytes of a file at which the signature is looked for: MATLAB has 512 bytes of its own before it.
_PLACES = (0, 512, 1024, 2048)
# Bytes of the first read of an object header; most headers are shorter.
_HEADER_BYTES = 1 << 10
_MAX_HEADER_BYTES = 1 << 20
_HEAP_HEAD_BYTES = 32
# Max bytes of the names in one group: ten million of usual length. It bounds the memory that a damaged number takes.
_MAX_HEAP_BYTES = 256 << 20
_TABLE_HEAD_BYTES = 8
_SYMBOL_BYTES = 40
# Number of symbols that are read of a table at first: usually it has at most 8, more if the writer was told so.
_USUAL_SYMBOLS = 64
_NAME = np.dtype("<u8")
# Numbers that say that an entry in a table of symbols, and a link, is a soft link.
_SOFT_ENTRY = 2
_SOFT_LINK = 1

# Kinds of B-trees.
GROUPS = 0
CHUNKS = 1
_NODE_HEAD_BYTES = 24
# Number of entries that are read of a node at first, which is the usual maximum of nodes of chunks.
_USUAL_ENTRIES = 64

Message: TypeAlias = tuple[int, Cursor]


class Path(msgspec.Struct, frozen=True):
    """A soft link: the path of another object; "" for a link to another file (external), or of an unknown kind."""

    path: str


# Content of a group by name: the address of an object's header, or a soft link.
Links: TypeAlias = dict[str, int | Path]


class Header(msgspec.Struct, frozen=True):
    """The header of one object: its address, and its messages with their kinds, in order."""

    address: int
    found: tuple[Message, ...]

    def find(self, kind: int) -> Cursor | None:
        """Returns the first message of a kind, from its beginning; None if there is none."""
        return next((Cursor(message.content, message.offset) for number, message in self.found if number == kind), None)


def read_root(held: HeldBytes) -> Reading[int]:
    """Reads the superblock, sets `held.base`, and returns the address of the root group's header.

    Raises:
        DamagedError: the file is not HDF5, or is cut off.
        UnreadError: the superblock is of a kind that is not read.
    """
    head = yield from held.read(0, HEAD_BYTES)
    place = next((place for place in _PLACES if head[place : place + 8] == SIGNATURE), -1)
    if place < 0:
        raise DamagedError("it does not begin as HDF5 does")
    block = Cursor(head[place + 8 :], place + 8)
    version = block.number(1)
    if version > 3:
        raise UnreadError(f"a superblock of version {version}; write it with libver='v110'")
    if version < 2:
        block.take(4)
    widths = block.number(1), block.number(1)
    if widths != (8, 8):
        raise UnreadError(f"addresses and lengths of {widths} bytes, 8 are usual; write it again")
    block.take(1 if version >= 2 else {0: 9, 1: 13}[version])
    # If other bytes were put before the file afterwards, its own base address does not count them.
    moved = place - block.number()
    held.base = place
    # The address of the extension, or of free space, is not needed.
    block.take(8)
    stop = block.number() + moved
    if stop > held.record.size:
        raise DamagedError(f"it should have {stop} bytes, so it is cut off")
    if version < 2:
        block.take(16)
    return block.number()


def read_header(held: HeldBytes, address: int) -> Reading[Header]:
    """Reads the header of an object, all its blocks; raises DamagedError or UnreadError."""
    start = yield from held.read(address, _HEADER_BYTES)
    prefix = Cursor(start, address)
    # Messages of version 2 have two more bytes with flag 4: their places in the order of creation.
    if bytes(start[:4]) == b"OHDR":
        prefix.expect(b"OHDR", (2,))
        flags = prefix.number(1)
        prefix.take((16 if flags & 32 else 0) + (4 if flags & 16 else 0))
        length = prefix.number(1 << (flags & 3))
        version = 2
        head_bytes = 6 if flags & 4 else 4
    else:
        if prefix.number(1) != 1:
            raise DamagedError("no object header is there", address)
        prefix.take(7)
        length = prefix.number(4)
        prefix.take(4)
        version = 1
        head_bytes = 8
    blocks = [(address + prefix.at, length)]
    total = 0
    found = []
    while blocks:
        place, length = blocks.pop(0)
        total += length
        if total > _MAX_HEADER_BYTES:
            raise DamagedError(f"an object header of {total} bytes and more", address)
        content = yield from held.read(place, length)
        block = Cursor(content, place)
        if version == 2 and place != address + prefix.at:
            block.expect(b"OCHK")
        for kind, message in _messages_of(block, version, head_bytes):
            if kind == messages.CONTINUATION:
                blocks.append((message.number(), message.number()))
            else:
                found.append((kind, message))
    return Header(address, tuple(found))


def _messages_of(block: Cursor, version: int, head_bytes: int) -> list[Message]:
    """Returns kind and body of each message in a block of an object header; raises UnreadError for a committed type."""
    # Blocks behind the first one end with a checksum.
    end = 4 if version == 2 and block.at else 0
    found = []
    while block.left - end >= head_bytes:
        kind = block.number(1 if version == 2 else 2)
        length = block.number(2)
        flags = block.number(1)
        block.take(head_bytes - (4 if version == 2 else 5))
        offset = block.offset + block.at
        body = block.take(length)
        if flags & 2 and kind in {messages.DATATYPE, messages.DATASPACE, messages.FILTERS, messages.FILL}:
            raise UnreadError("a type that has a name of its own (a committed datatype)", offset)
        found.append((kind, Cursor(body, offset)))
    return found


def read_group(held: HeldBytes, header: Header) -> Reading[Links | None]:
    """Reads what a group contains, by name; returns None if the object is not a group.

    Raises:
        DamagedError: the group is damaged.
        UnreadError: the group has dense links, the newer layout for many objects.
    """
    table = header.find(messages.SYMBOL_TABLE)
    if table is not None:
        return (yield from _read_symbols(held, table.number(), table.number()))
    info = header.find(messages.LINK_INFO)
    if info is None:
        return None
    _ = info.number(1)
    flags = info.number(1)
    info.take(8 if flags & 1 else 0)
    if info.number() != UNDEFINED:
        raise UnreadError(
            "a group of many objects in the newer layout (dense links); write it with libver='earliest', or "
            "without track_order",
            header.address,
        )
    found = [Cursor(each.content, each.offset) for kind, each in header.found if kind == messages.LINK]
    return dict(map(_link, found))


def _link(message: Cursor) -> tuple[str, int | Path]:
    """Returns the name and the target of a link."""
    _ = message.number(1)
    flags = message.number(1)
    kind = message.number(1) if flags & 8 else 0
    message.take((8 if flags & 4 else 0) + (1 if flags & 16 else 0))
    name = _text(message.take(message.number(1 << (flags & 3))))
    if kind == 0:
        return name, message.number()
    return name, Path(_text(message.take(message.number(2))) if kind == _SOFT_LINK else "")


def _read_symbols(held: HeldBytes, tree: int, heap: int) -> Reading[Links]:
    """Reads what a group in the older layout contains.

    Args:
        held: the file.
        tree: address of a B-tree of tables of symbols.
        heap: address of a heap of names.

    Raises:
        DamagedError: a structure is damaged, or a link has no name, or that of another one.
        UnreadError: the names are longer than the maximum.
    """
    names = yield from _read_names(held, heap)
    links: Links = {}
    for symbols in (yield from _read_tables(held, tree)):
        while symbols.left:
            place = symbols.offset + symbols.at
            name = _name_at(names, symbols.number(), place)
            address = symbols.number()
            cached = symbols.number(4)
            symbols.take(4)
            path_at = symbols.number(4)
            symbols.take(12)
            if not name or name in links:
                raise DamagedError(f"a second link {name!r} in a group" if name else "a link without a name", place)
            links[name] = Path(_name_at(names, path_at, place)) if cached == _SOFT_ENTRY else address
    return links


def _read_names(held: HeldBytes, heap: int) -> Reading[bytes]:
    """Reads the heap of names of a group, all of it; raises DamagedError, or UnreadError if it is too long."""
    head = Cursor((yield from held.read(heap, _HEAP_HEAD_BYTES)), heap)
    head.expect(b"HEAP", (0,))
    head.take(3)
    length = head.number()
    head.take(8)
    place = head.number()
    if length > held.record.size - held.base - place:
        raise DamagedError(f"{length} bytes of names at address {place}, which are more than the file has", heap)
    if length > _MAX_HEAP_BYTES:
        raise UnreadError(
            f"a group whose names have {length} bytes, {_MAX_HEAP_BYTES} at most are read; write it in several files",
            heap,
        )
    return bytes((yield from held.read(place, length)))


def _read_tables(held: HeldBytes, tree: int) -> Reading[list[Cursor]]:
    """Reads the tables of symbols of a group, and returns the symbols of each; raises DamagedError or UnreadError."""
    tables = (yield from read_btree(held, tree, GROUPS, _NAME))["child"].tolist()
    usual = _TABLE_HEAD_BYTES + _USUAL_SYMBOLS * _SYMBOL_BYTES
    contents = yield from held.read_all([(table, usual) for table in tables])
    lengths = []
    for table, content in zip(tables, contents, strict=True):
        head = Cursor(content, table)
        head.expect(b"SNOD", (1,))
        head.take(1)
        lengths.append(_TABLE_HEAD_BYTES + head.number(2) * _SYMBOL_BYTES)
    if any(length > usual for length in lengths):
        contents = yield from held.read_all(list(zip(tables, lengths, strict=True)))
    found = []
    for table, content, length in zip(tables, contents, lengths, strict=True):
        whole = Cursor(content, table)
        whole.take(_TABLE_HEAD_BYTES)
        found.append(Cursor(whole.take(length - _TABLE_HEAD_BYTES), table + _TABLE_HEAD_BYTES))
    return found


def _name_at(names: bytes, at: int, place: int) -> str:
    """Returns the text at a byte of the heap of names; raises DamagedError at `place` if none is there."""
    end = names.find(b"\0", at)
    if end < 0:
        raise DamagedError(f"a name at byte {at} of a group's {len(names)} bytes of names, where none ends", place)
    return _text(names[at:end])


def _text(raw: memoryview | bytes) -> str:
    return str(bytes(raw), "utf-8", "surrogateescape")


def read_btree(held: HeldBytes, root: int, kind: int, key: np.dtype[np.generic]) -> Reading[NDArray[np.void]]:
    """Reads all leaves of a B-tree of version 1, one level after the other.

    Args:
        held: the file.
        root: address of the root node.
        kind: GROUPS or CHUNKS.
        key: dtype of a key.

    Returns:
        The entries of the leaves in order: "key", and "child", an address.

    Raises:
        DamagedError: the nodes do not form such a tree.
    """
    entry = np.dtype([("key", key), ("child", "<u8")])
    nodes = [root]
    level = -1
    while True:
        contents = yield from held.read_all(
            [(node, _NODE_HEAD_BYTES + _USUAL_ENTRIES * entry.itemsize) for node in nodes]
        )
        heads = []
        for node, content in zip(nodes, contents, strict=True):
            head = Cursor(content, node)
            head.expect(b"TREE")
            if (own := head.number(1)) != kind:
                raise DamagedError(f"a node of another kind, {own}", node)
            # A head is the level of the node, and how many entries it has.
            heads.append((head.number(1), head.number(2)))
        levels = {found for found, _ in heads}
        if len(levels) > 1 or (level >= 0 and levels != {level - 1}):
            raise DamagedError(f"nodes of levels {sorted(levels)} below one of level {level}", root)
        level = levels.pop()
        lengths = [_NODE_HEAD_BYTES + count * entry.itemsize for _, count in heads]
        if any(count > _USUAL_ENTRIES for _, count in heads):
            contents = yield from held.read_all(list(zip(nodes, lengths, strict=True)))
        found = [
            np.frombuffer(Cursor(content[_NODE_HEAD_BYTES:], node).take(count * entry.itemsize), entry)
            for node, content, (_, count) in zip(nodes, contents, heads, strict=True)
        ]
        entries = np.concatenate(found)
        if level == 0:
            return entries
        nodes = entries["child"].tolist()
        if not nodes or len(set(nodes)) < len(nodes):
            raise DamagedError(f"{len(nodes)} nodes below a level, of which some are the same", root)
