"""Finds the chunks of a dataset in an HDF5 file, and decodes chunks that have the usual filters.

`tables/hdf5/format.py` uses it in the engine (`find_chunks`) and in the recoder (`FilteredChunks`). Chunks with other
filters are decoded by h5py (`tables/hdf5/recode.py`).

Source: HDF5 File Format Specification Version 3.0, III.A.1, VII, VIII.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import RecodeError
from streamer.formats.compressed import inflate
from streamer.formats.failures import DamagedError
from streamer.formats.reading import Reading
from streamer.tables.hdf5 import messages
from streamer.tables.hdf5.messages import UNDEFINED, Cursor, Filter, HeldBytes, Layout
from streamer.tables.hdf5.objects import CHUNKS, read_btree
from streamer.tables.tiles import Array, ColumnHint, Int64Array, Tiles

# The elements of an array of chunks: "address", "length" and "mask" of each chunk, in the order of their numbers in the
# grid of chunks.
Elements = NDArray[np.void]
_ELEMENT = np.dtype([("address", "<u8"), ("length", "<u8"), ("mask", "<u4")])
_CHECKSUM_BYTES = 4
# Bytes of signature, version, kind, and address of the array's head, with which a block of an array begins.
_BLOCK_HEAD_BYTES = 14
_MAX_BITS = 64
# Kinds of elements of an array.
_UNFILTERED = 0
_FILTERED = 1
# Max chunks of a dataset, more than a manifest can have; and a number that is accepted for a file of any size.
_MAX_CHUNKS = 1 << 28
_FEW_CHUNKS = 1 << 16


def find_chunks(
    held: HeldBytes, layout: Layout, shape: tuple[int, ...], item_bytes: int, *, filtered: bool
) -> Reading[Tiles]:
    """Finds the chunks of a dataset that were written.

    Args:
        held: the file.
        layout: layout of the dataset, which has chunks.
        shape: shape of the dataset.
        item_bytes: bytes of an item.
        filtered: whether the dataset has filters, so that lengths of chunks differ.

    Raises:
        DamagedError: the index of the chunks is damaged, or has more chunks than the file can have.
    """
    chunk = layout.chunk
    grid = tuple(-(-size // step) for size, step in zip(shape, layout.chunk, strict=True))
    count = math.prod(grid)
    # Indexes other than a B-tree are read into an array of all chunks, whose length must be bounded by the file's.
    if count > (_MAX_CHUNKS if layout.index == messages.BTREE else held.record.size // 8 + _FEW_CHUNKS):
        raise DamagedError(f"{count} chunks of shape {chunk}, more than the file has", layout.address)
    chunk_bytes = item_bytes * math.prod(chunk)
    if layout.address == UNDEFINED or not count:
        return _tiles(
            held=held,
            layout=layout,
            shape=shape,
            origins=np.empty((0, len(shape)), np.int64),
            elements=np.empty(0, _ELEMENT),
        )
    if layout.index == messages.BTREE:
        key = np.dtype([("length", "<u4"), ("mask", "<u4"), ("offset", "<i8", (len(shape) + 1,))])
        entries = yield from read_btree(held, layout.address, CHUNKS, key)
        elements = np.empty(len(entries), _ELEMENT)
        elements["address"] = entries["child"]
        elements["length"] = entries["key"]["length"]
        elements["mask"] = entries["key"]["mask"]
        origins: Int64Array = entries["key"]["offset"][:, :-1].astype(np.int64)
    else:
        elements = yield from _elements(held, layout, count, chunk_bytes, filtered=filtered)
        numbers = np.flatnonzero(elements["address"] != UNDEFINED)
        elements = elements[numbers]
        origins = np.stack(np.unravel_index(numbers, grid), axis=1) * np.array(chunk)
    if not filtered and (elements["length"] != chunk_bytes).any():
        raise DamagedError(f"chunks that are not {chunk_bytes} bytes long, and have no filters", layout.address)
    return _tiles(held=held, layout=layout, shape=shape, origins=origins, elements=elements)


def _tiles(held: HeldBytes, layout: Layout, shape: tuple[int, ...], origins: Int64Array, elements: Elements) -> Tiles:
    """Returns chunks sorted by their places in the dataset; raises DamagedError for one outside of file or dataset.

    Args:
        held: the file.
        layout: layout of the dataset.
        shape: shape of the dataset.
        origins: place of the first item of each chunk, int64, shape (chunks, axes).
        elements: address, length and mask of each chunk.
    """
    size = np.uint64(held.record.size - held.base)
    stops = elements["address"] + elements["length"]
    if ((elements["length"] == 0) | (stops > size) | (elements["address"] > size)).any():
        raise DamagedError("a chunk outside of the file", layout.address)
    if ((origins < 0) | (origins >= shape) | (origins % layout.chunk != 0)).any():
        raise DamagedError("a chunk outside of the dataset", layout.address)
    order = np.lexsort(origins.T[::-1])
    elements = elements[order]
    return Tiles(
        origins[order],
        elements["address"].astype(np.int64) + held.base,
        elements["length"].astype(np.int64),
        elements["mask"].astype(np.int64),
    )


def _elements(held: HeldBytes, layout: Layout, count: int, chunk_bytes: int, *, filtered: bool) -> Reading[Elements]:
    """Reads an index that is no B-tree: the elements of all `count` chunks; the address is UNDEFINED if not written."""
    elements = np.empty(count, _ELEMENT)
    elements["address"] = UNDEFINED
    elements["length"] = chunk_bytes
    elements["mask"] = 0
    if layout.index == messages.SINGLE:
        elements[0] = (layout.address, layout.length if filtered else chunk_bytes, layout.mask)
    elif layout.index == messages.IMPLICIT:
        elements["address"] = layout.address + np.arange(count, dtype=np.uint64) * np.uint64(chunk_bytes)
    elif layout.index == messages.FIXED_ARRAY:
        yield from _walk_fixed_array(held, layout.address, elements)
    else:
        yield from _extensible_array(held, layout.address, elements)
    return elements


def _entry(client: int, entry_bytes: int, offset: int) -> np.dtype[np.void]:
    """Returns the dtype of an array's elements in the file: an address, and for filtered chunks length and mask.

    Args:
        client: kind of the elements.
        entry_bytes: bytes of an element.
        offset: address of the array, for errors.

    Raises:
        DamagedError: there are no such elements.
    """
    if client == _UNFILTERED and entry_bytes == 8:
        return np.dtype([("address", "<u8")])
    if client == _FILTERED and 13 <= entry_bytes <= 20:
        return np.dtype([("address", "<u8"), ("length", "u1", (entry_bytes - 12,)), ("mask", "<u4")])
    raise DamagedError(f"an array of elements of {entry_bytes} bytes, of kind {client}", offset)


def _put(elements: Elements, first: int, raw: memoryview, entry: np.dtype[np.void]) -> None:
    """Copies a run of elements from the bytes `raw`; the first has number `first`. Surplus ones are left out."""
    found = np.frombuffer(raw, entry)[: max(0, len(elements) - first)]
    among = elements[first : first + len(found)]
    among["address"] = found["address"]
    if "length" in (entry.names or ()):
        lengths = np.zeros((len(found), 8), np.uint8)
        lengths[:, : found["length"].shape[1]] = found["length"]
        among["length"] = lengths.view("<u8")[:, 0]
        among["mask"] = found["mask"]


def _walk_fixed_array(held: HeldBytes, address: int, elements: Elements) -> Reading[None]:
    """Fills `elements` from the fixed array at an address, which may be divided into pages; raises DamagedError."""
    head = Cursor((yield from held.read(address, 28)), address)
    head.expect(b"FAHD", (0,))
    client = head.number(1)
    entry_bytes = head.number(1)
    page_bits = head.number(1)
    count = head.number()
    entry = _entry(client, entry_bytes, address)
    place = head.number()
    if not len(elements) <= count <= _MAX_CHUNKS or page_bits > _MAX_BITS:
        raise DamagedError(f"an array of {count} elements for {len(elements)} chunks", address)
    per_page = 1 << page_bits
    if count <= per_page:
        yield from _read_runs(held, elements, entry, [_ChunkRun(0, place + _BLOCK_HEAD_BYTES, count)])
        return
    pages = -(-count // per_page)
    bitmap_bytes = -(-pages // 8)
    start = Cursor((yield from held.read(place, _BLOCK_HEAD_BYTES + bitmap_bytes)), place)
    start.take(_BLOCK_HEAD_BYTES)
    first_page = place + _BLOCK_HEAD_BYTES + bitmap_bytes + _CHECKSUM_BYTES
    yield from _read_runs(
        held,
        elements,
        entry,
        _pages(first=0, place=first_page, written=_bits(start.take(bitmap_bytes)), per_page=per_page, entry=entry),
    )


class _Extensible(msgspec.Struct, frozen=True):
    """The head of an extensible array, whose elements are in data blocks that grow in size and number by turns.

    Attributes:
        entry: dtype of an element.
        bits: the array can have 2^bits elements.
        own: number of elements in the index block itself.
        least: elements of the smallest data block.
        pointers: least number of data blocks whose addresses are together in a block of addresses.
        page_bits: a data block with more than 2^page_bits elements is divided into pages of so many.
        index: address of the index block.
    """

    entry: np.dtype[np.void]
    bits: int
    own: int
    least: int
    pointers: int
    page_bits: int
    index: int

    @classmethod
    def read(cls, head: Cursor) -> _Extensible:
        """Parses the head of an array; raises DamagedError."""
        head.expect(b"EAHD", (0,))
        client, entry_bytes, bits, own, least, pointers, page_bits = (head.number(1) for _ in range(7))
        if not (0 < bits <= _MAX_BITS and least > 0 and pointers > 1 and page_bits <= _MAX_BITS):
            raise DamagedError("an extensible array of no known shape", head.offset)
        head.take(48)
        return cls(
            entry=_entry(client, entry_bytes, head.offset),
            bits=bits,
            own=own,
            least=least,
            pointers=pointers,
            page_bits=page_bits,
            index=head.number(),
        )

    @property
    def block_head_bytes(self) -> int:
        """Bytes of the head of a data block; the head of a block of addresses has as many."""
        return _BLOCK_HEAD_BYTES + -(-self.bits // 8)

    @property
    def direct(self) -> int:
        """Number of groups (see `groups`), from the first one on, whose addresses are in the index block itself."""
        return 2 * (self.pointers.bit_length() - 1)

    @property
    def index_bytes(self) -> int:
        """Bytes of the index block: its own elements, then addresses of data blocks, then of blocks of addresses."""
        indirect = 1 + self.bits - (self.least.bit_length() - 1) - self.direct
        return _BLOCK_HEAD_BYTES + self.own * self.entry.itemsize + 8 * (2 * (self.pointers - 1) + max(0, indirect))

    def groups(self, elements: int) -> Iterator[tuple[int, int, int]]:
        """Yields the groups of data blocks of one size that the first `elements` elements need.

        A group is the number of its first element, its number of blocks, and the elements of each block.
        """
        first = self.own
        for number in range(1 + self.bits - (self.least.bit_length() - 1)):
            if first >= elements:
                return
            count = 1 << number // 2
            size = self.least << (number + 1) // 2
            yield first, count, size
            first += count * size

    def pages(self, size: int) -> int:
        """Returns the number of pages of a data block with `size` elements; 0 if it is not divided."""
        return size >> self.page_bits if size > 1 << self.page_bits else 0

    def runs(self, first: int, addresses: Sequence[int], size: int, written: NDArray[np.uint8]) -> list[_ChunkRun]:
        """Returns the runs of elements in a group of data blocks.

        Args:
            first: number of the first element of the group.
            addresses: addresses of the blocks, or UNDEFINED for one that was not written.
            size: elements of each block.
            written: whether each page of all blocks was written, 0 or 1, or empty if blocks are not divided.
        """
        found = []
        for number, address in enumerate(addresses):
            start = first + number * size
            place = address + self.block_head_bytes
            if address == UNDEFINED:
                continue
            if pages := self.pages(size):
                bits = written[number * pages : (number + 1) * pages]
                found += _pages(
                    first=start,
                    place=place + _CHECKSUM_BYTES,
                    written=bits,
                    per_page=1 << self.page_bits,
                    entry=self.entry,
                )
            else:
                found.append(_ChunkRun(start, place, size))
        return found


def _extensible_array(held: HeldBytes, address: int, elements: Elements) -> Reading[None]:
    """Fills `elements` from the extensible array at an address; raises DamagedError."""
    array = _Extensible.read(Cursor((yield from held.read(address, 72)), address))
    index = Cursor((yield from held.read(array.index, array.index_bytes)), array.index)
    index.expect(b"EAIB", (0,))
    index.take(_BLOCK_HEAD_BYTES - 5)
    _put(elements, 0, index.take(array.own * array.entry.itemsize), array.entry)
    runs: list[_ChunkRun] = []
    places: list[tuple[int, int]] = []
    indirect: list[tuple[int, int, int, int]] = []
    for number, (first, count, size) in enumerate(array.groups(len(elements))):
        if number < array.direct:
            runs += array.runs(first, [index.number() for _ in range(count)], size, _NO_BITS)
        elif (place := index.number()) != UNDEFINED:
            bitmap_bytes = count * -(-array.pages(size) // 8)
            indirect.append((first, count, size, bitmap_bytes))
            places.append((place, array.block_head_bytes + bitmap_bytes + 8 * count))
    contents = yield from held.read_all(places)
    for (first, count, size, bitmap_bytes), (place, _), content in zip(indirect, places, contents, strict=True):
        block = Cursor(content, place)
        block.expect(b"EASB", (0,))
        block.take(array.block_head_bytes - 5)
        written = _bits(block.take(bitmap_bytes))
        runs += array.runs(first, np.frombuffer(block.take(8 * count), "<u8").tolist(), size, written)
    yield from _read_runs(held, elements, array.entry, runs)


_NO_BITS = np.empty(0, np.uint8)


def _bits(bitmap: memoryview) -> NDArray[np.uint8]:
    """Returns 0 or 1 for each page; the highest bit of the first byte is that of page 0."""
    return np.unpackbits(np.frombuffer(bitmap, np.uint8))


def _pages(
    first: int, place: int, written: NDArray[np.uint8], per_page: int, entry: np.dtype[np.void]
) -> list[_ChunkRun]:
    """Returns a run for each page that was written.

    Element `first` is at address `place`, where the first of all pages begins. `written` has 0 or 1 for each page.
    """
    step = per_page * entry.itemsize + _CHECKSUM_BYTES
    return [_ChunkRun(first + n * per_page, place + n * step, per_page) for n in np.flatnonzero(written).tolist()]


class _ChunkRun(msgspec.Struct, frozen=True):
    """Elements that are stored one after the other: number and address of the first, and their count."""

    first: int
    place: int
    count: int


def _read_runs(
    held: HeldBytes, elements: Elements, entry: np.dtype[np.void], runs: Sequence[_ChunkRun]
) -> Reading[None]:
    """Fills `elements` from runs of the file, which are read together; those behind the last chunk are left out."""
    wanted = [run for run in runs if run.first < len(elements)]
    lengths = [min(run.count, len(elements) - run.first) * entry.itemsize for run in wanted]
    places = [(run.place, length) for run, length in zip(wanted, lengths, strict=True)]
    contents = yield from held.read_all(places)
    for run, length, content in zip(wanted, lengths, contents, strict=True):
        _put(elements, run.first, Cursor(content, run.place).take(length), entry)


# Registered numbers of filters.
DEFLATE = 1
SHUFFLE = 2
FLETCHER32 = 3
_MODULUS = 65535


def filters_of(column: ColumnHint) -> tuple[Filter, ...]:
    """Returns the filters of a column's chunks, from the hint of a block."""
    return msgspec.convert(column.codecs, tuple[Filter, ...])


# Chunks are decoded here also because libhdf5 (2.0) does not check the length of what a filter gives: if it is shorter
# than a chunk, libhdf5 reads on behind its end.
class FilteredChunks:
    """Decodes the chunks of one column, which have only filters of `UNDO`.

    Args:
        dtype: dtype of the items.
        column: hint with shape and filters of the chunks.
    """

    def __init__(self, dtype: np.dtype[np.generic], column: ColumnHint) -> None:
        self._dtype = dtype
        self._shape = column.tile
        self._bytes = dtype.itemsize * int(np.prod(column.tile, dtype=np.int64))
        self._filters = [UNDO[each.number] for each in filters_of(column)]

    def __call__(self, stored: memoryview, mask: int) -> Array:
        """Returns the items of a chunk, in its shape; raises RecodeError if it is damaged, or has another length.

        Args:
            stored: bytes of the chunk in the file.
            mask: bit i says that filter i was left out for this chunk.
        """
        for place in reversed(range(len(self._filters))):
            if not mask >> place & 1:
                stored = self._filters[place](stored, self._dtype.itemsize, self._bytes)
        if len(stored) != self._bytes:
            raise RecodeError(f"a chunk has {len(stored)} bytes, its items {self._bytes}")
        return np.frombuffer(stored, self._dtype).reshape(self._shape)


def _inflate(stored: memoryview, item_bytes: int, limit: int) -> memoryview:
    """Decompresses zlib to at most `limit` bytes and a checksum; raises RecodeError for damaged bytes."""
    unpacker = inflate.decompressobj()
    try:
        content: bytes = unpacker.decompress(stored, limit + _CHECKSUM_BYTES)
    except (zlib.error, inflate.error) as error:
        raise RecodeError(f"a chunk cannot be decompressed: {error}") from error
    return memoryview(content)


def _unshuffle(stored: memoryview, item_bytes: int, limit: int) -> memoryview:
    """Undoes the filter shuffle, which puts the first bytes of all items before their second bytes, and so on."""
    count = len(stored) // item_bytes
    items = np.frombuffer(stored, np.uint8, count * item_bytes).reshape(item_bytes, count)
    return memoryview(items.T.tobytes() + bytes(stored[count * item_bytes :]))


def _verify(stored: memoryview, item_bytes: int, limit: int) -> memoryview:
    """Returns the content without the checksum behind it; raises RecodeError if that is wrong."""
    content = stored[:-_CHECKSUM_BYTES]
    found = int.from_bytes(stored[-_CHECKSUM_BYTES:], "little")
    if fletcher32(content) != found:
        raise RecodeError("the checksum of a chunk is wrong")
    return content


def fletcher32(content: memoryview) -> int:
    """Returns the Fletcher-32 checksum of a content as HDF5 computes it, over big-endian words of 2 bytes."""
    words = np.frombuffer(bytes(content) + bytes(len(content) % 2), ">u2").astype(np.uint64)
    weights = np.arange(len(words), 0, -1, dtype=np.uint64) % np.uint64(_MODULUS)
    sums = int(words.sum()), int((words * weights).sum())
    # The sums are reduced as in HDF5: one that is not zero does not become zero.
    first, second = ((total - 1) % _MODULUS + 1 if total else 0 for total in sums)
    return second << 16 | first


# Functions that undo a filter, by its number. They get the stored bytes, the length of an item, and that of a decoded
# chunk.
UNDO: dict[int, Callable[[memoryview, int, int], memoryview]] = {
    DEFLATE: _inflate,
    SHUFFLE: _unshuffle,
    FLETCHER32: _verify,
}
