"""Parses the pages of LMDB's files, data format 1 (LMDB 0.9) of 64 bits, little-endian. No I/O.

A page is `u64 number, u16 -, u16 flags, u16 lower, u16 upper`, then the places of its nodes (u16 each, up to `lower`),
and the nodes. A node is `u16 low, u16 high, u16 flags, u16 key bytes, key, value`: of branch pages the number of the
page below (48 bits, with the flags), of leaf pages the length of the value, which is there or, if it is long, on
overflow pages, whose number is there. These are consecutive, and only the first has a head. Other bytes raise
`DamagedError`, whose offsets are in the file.
Source: LMDB 0.9, libraries/liblmdb/mdb.c, `MDB_page`, `MDB_node`, `MDB_meta`, `MDB_db`.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import msgspec

from streamer.formats.failures import DamagedError, UnreadError

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


class Tree(msgspec.Struct, frozen=True):
    """The main database of a file.

    Attributes:
        page_bytes: size of a page.
        pages: number of pages in use: all page numbers are below.
        depth: levels of pages from the root to the leaves; 0: there are no entries.
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


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A key, and where its value is in the file: the half-open byte range `[start, stop)`."""

    key: bytes
    start: int
    stop: int


def read_tree(content: memoryview) -> Tree:
    """Parses the meta pages, of which the newer one counts, from the first `META_BYTES` of a file."""
    page_bytes = _page_bytes(content)
    metas = [_read_meta(content, number * page_bytes, page_bytes) for number in (0, 1)]
    _, tree = max(metas, key=lambda meta: meta[0])
    return tree


def _page_bytes(content: memoryview) -> int:
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
    # The page size is in the place of the free list's database that other databases do not use.
    page_bytes: int = _DATABASE.unpack_from(content, HEAD_BYTES + _DATABASES_AT)[0]
    if page_bytes not in _PAGE_BYTES or len(content) < 2 * page_bytes:
        raise DamagedError(f"pages of {page_bytes} bytes, and {len(content)} bytes of them", HEAD_BYTES + _DATABASES_AT)
    return page_bytes


def _read_meta(content: memoryview, page: int, page_bytes: int) -> tuple[int, Tree]:
    """Returns the number of the last transaction, and its tree."""
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
        return transaction, Tree(page_bytes, last + 1, 0, 0, 0, 0)
    if not 1 <= depth <= _DEEPEST or not _FIRST_DATA_PAGE <= root <= last:
        raise DamagedError(f"a tree of {depth} levels whose root is page {root} of {last + 1}", at)
    return transaction, Tree(page_bytes, last + 1, depth, root, entries, branches + entry_pages)


def children(page: memoryview, number: int, tree: Tree) -> list[int]:
    """Returns the numbers of the pages below a branch page, in the order of the keys."""
    found = []
    for at in _nodes(page, number, tree, _BRANCH):
        low, high, top, _ = _NODE.unpack_from(page, at)
        child = low | high << 16 | top << 32
        if not _FIRST_DATA_PAGE <= child < tree.pages:
            raise DamagedError(f"page {number} is above page {child}, of {tree.pages}", number * tree.page_bytes + at)
        found.append(child)
    return found


def entries(page: memoryview, number: int, tree: Tree) -> Iterator[Entry]:
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
        yield Entry(bytes(page[at + _NODE.size : value]), start, start + length)


def _nodes(page: memoryview, number: int, tree: Tree, kind: int) -> Iterator[int]:
    """Yields the places of the nodes of a page in it."""
    stated, _, flags, lower, upper = _PAGE.unpack_from(page)
    if stated != number or flags & _KINDS != kind or not HEAD_BYTES <= lower <= upper <= tree.page_bytes or lower % 2:
        kinds = "branch" if kind == _BRANCH else "leaf"
        raise DamagedError(f"no {kinds} page where page {number} should be", number * tree.page_bytes)
    for place in range(HEAD_BYTES, lower, 2):
        at = page[place] | page[place + 1] << 8
        if not upper <= at <= tree.page_bytes - _NODE.size:
            raise DamagedError(f"a node outside of page {number}", number * tree.page_bytes + place)
        yield at
