"""Where the chunks of an HDF5 dataset are.

Source: HDF5 File Format Specification Version 3.0, III.A.1, VII, VIII.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.formats.arrays.hdf5 import messages
from streamer.formats.arrays.hdf5.held import UNDEFINED, Cursor, Hdf5Error, Held
from streamer.formats.arrays.hdf5.messages import Layout, is_undefined
from streamer.formats.arrays.hdf5.trees import CHUNKS, read_btree
from streamer.formats.arrays.tiles import Tiles
from streamer.formats.base import Answer, Need

Int64Array = NDArray[np.int64]
Finding = Generator[Need | tuple[Need, ...], Answer, Tiles]
# Addresses, lengths and masks of chunks, by their number in the grid.
Elements = NDArray[np.void]
_ELEMENT = np.dtype([("address", "<u8"), ("length", "<u8"), ("mask", "<u4")])
_CHECKSUM_BYTES = 4
# Signature, version, kind, address of the array's head.
_BLOCK_HEAD_BYTES = 14
_MOST_BITS = 64
_UNFILTERED, _FILTERED = 0, 1
# More than a manifest holds.
_MOST_CHUNKS = 1 << 28
_FEW_CHUNKS = 1 << 16


def find_chunks(held: Held, layout: Layout, shape: tuple[int, ...], item_bytes: int, *, filtered: bool) -> Finding:
    """The chunks that were written.

    Args:
        held: the file.
        layout: of the dataset, which has chunks.
        shape: of the dataset.
        item_bytes: of an item.
        filtered: whether there are filters, so that the lengths of chunks differ.

    Raises:
        Hdf5Error: an index that is damaged, or contradicts the shape.
    """
    chunk, grid = layout.chunk, tuple(-(-size // step) for size, step in zip(shape, layout.chunk, strict=True))
    count = math.prod(grid)
    # Of the other indexes an array of all chunks is made.
    if count > (_MOST_CHUNKS if layout.index == messages.BTREE else held.record.size // 8 + _FEW_CHUNKS):
        raise Hdf5Error(f"{count} chunks of shape {chunk}, more than the file has", layout.address)
    chunk_bytes = item_bytes * math.prod(chunk)
    if is_undefined(layout.address) or not count:
        return _tiles(held, layout, shape, np.empty((0, len(shape)), np.int64), np.empty(0, _ELEMENT))
    if layout.index == messages.BTREE:
        key = np.dtype([("length", "<u4"), ("mask", "<u4"), ("offset", "<i8", (len(shape) + 1,))])
        entries = yield from read_btree(held, layout.address, CHUNKS, key)
        elements = np.empty(len(entries), _ELEMENT)
        elements["address"], elements["length"] = entries["child"], entries["key"]["length"]
        elements["mask"] = entries["key"]["mask"]
        origins: Int64Array = entries["key"]["offset"][:, :-1].astype(np.int64)
    else:
        elements = yield from _elements(held, layout, count, chunk_bytes, filtered=filtered)
        numbers = np.flatnonzero(elements["address"] != UNDEFINED)
        elements = elements[numbers]
        origins = np.stack(np.unravel_index(numbers, grid), axis=1) * np.array(chunk)
    if not filtered and (elements["length"] != chunk_bytes).any():
        raise Hdf5Error(f"chunks that are not {chunk_bytes} bytes long, and have no filters", layout.address)
    return _tiles(held, layout, shape, origins, elements)


def _tiles(held: Held, layout: Layout, shape: tuple[int, ...], origins: Int64Array, elements: Elements) -> Tiles:
    """The chunks in the order of their places, checked."""
    size = np.uint64(held.record.size - held.base)
    stops = elements["address"] + elements["length"]
    if ((elements["length"] == 0) | (stops > size) | (elements["address"] > size)).any():
        raise Hdf5Error("a chunk outside of the file", layout.address)
    if ((origins < 0) | (origins >= shape) | (origins % layout.chunk != 0)).any():
        raise Hdf5Error("a chunk outside of the dataset", layout.address)
    order = np.lexsort(origins.T[::-1])
    elements = elements[order]
    return Tiles(
        origins[order],
        elements["address"].astype(np.int64) + held.base,
        elements["length"].astype(np.int64),
        elements["mask"].astype(np.int64),
    )


def _elements(
    held: Held, layout: Layout, count: int, chunk_bytes: int, *, filtered: bool
) -> Generator[Need | tuple[Need, ...], Answer, Elements]:
    """All chunks by number; those that were not written have no address."""
    elements = np.empty(count, _ELEMENT)
    elements["address"], elements["length"], elements["mask"] = UNDEFINED, chunk_bytes, 0
    if layout.index == messages.SINGLE:
        elements[0] = (layout.address, layout.length if filtered else chunk_bytes, layout.mask)
    elif layout.index == messages.IMPLICIT:
        elements["address"] = layout.address + np.arange(count, dtype=np.uint64) * np.uint64(chunk_bytes)
    elif layout.index == messages.FIXED_ARRAY:
        yield from _fixed_array(held, layout.address, elements)
    else:
        yield from _extensible_array(held, layout.address, elements)
    return elements


Reading = Generator[Need | tuple[Need, ...], Answer, None]


def _entry(client: int, entry_bytes: int, offset: int) -> np.dtype[np.void]:
    """An element of an array: an address, and of filtered chunks the length and the mask."""
    if client == _UNFILTERED and entry_bytes == 8:
        return np.dtype([("address", "<u8")])
    if client == _FILTERED and 13 <= entry_bytes <= 20:
        return np.dtype([("address", "<u8"), ("length", "u1", (entry_bytes - 12,)), ("mask", "<u4")])
    raise Hdf5Error(f"an array of elements of {entry_bytes} bytes, of kind {client}", offset)


def _put(elements: Elements, first: int, raw: memoryview, entry: np.dtype[np.void]) -> None:
    """Takes the elements from number `first` on out of a run of them."""
    found = np.frombuffer(raw, entry)[: max(0, len(elements) - first)]
    among = elements[first : first + len(found)]
    among["address"] = found["address"]
    if "length" in (entry.names or ()):
        lengths = np.zeros((len(found), 8), np.uint8)
        lengths[:, : found["length"].shape[1]] = found["length"]
        among["length"], among["mask"] = lengths.view("<u8")[:, 0], found["mask"]


def _fixed_array(held: Held, address: int, elements: Elements) -> Reading:
    head = Cursor((yield from held.read(address, 28)), address)
    head.expect(b"FAHD", (0,))
    client, entry_bytes, page_bits, count = head.number(1), head.number(1), head.number(1), head.number()
    entry, place = _entry(client, entry_bytes, address), head.number()
    if not len(elements) <= count <= _MOST_CHUNKS or page_bits > _MOST_BITS:
        raise Hdf5Error(f"an array of {count} elements for {len(elements)} chunks", address)
    per_page = 1 << page_bits
    if count <= per_page:
        yield from _read_runs(held, elements, entry, [_Run(0, place + _BLOCK_HEAD_BYTES, count)])
        return
    pages = -(-count // per_page)
    bitmap_bytes = -(-pages // 8)
    start = Cursor((yield from held.read(place, _BLOCK_HEAD_BYTES + bitmap_bytes)), place)
    start.take(_BLOCK_HEAD_BYTES)
    first_page = place + _BLOCK_HEAD_BYTES + bitmap_bytes + _CHECKSUM_BYTES
    yield from _read_runs(
        held, elements, entry, _pages(0, first_page, _bits(start.take(bitmap_bytes)), per_page, entry)
    )


class _Extensible(msgspec.Struct, frozen=True):
    """The head of an extensible array: its elements are in data blocks, which double in size and in number by turns."""

    entry: np.dtype[np.void]
    bits: int
    own: int
    least: int
    pointers: int
    page_bits: int
    index: int

    @classmethod
    def read(cls, head: Cursor) -> _Extensible:
        """Takes the head apart."""
        head.expect(b"EAHD", (0,))
        client, entry_bytes, bits, own, least, pointers, page_bits = (head.number(1) for _ in range(7))
        if not (0 < bits <= _MOST_BITS and least > 0 and pointers > 1 and page_bits <= _MOST_BITS):
            raise Hdf5Error("an extensible array of no known shape", head.offset)
        head.take(48)
        return cls(_entry(client, entry_bytes, head.offset), bits, own, least, pointers, page_bits, head.number())

    @property
    def block_head_bytes(self) -> int:
        """Of data blocks, and of blocks of their addresses."""
        return _BLOCK_HEAD_BYTES + -(-self.bits // 8)

    @property
    def direct(self) -> int:
        """Groups of data blocks of one size, whose addresses are in the index block."""
        return 2 * (self.pointers.bit_length() - 1)

    @property
    def index_bytes(self) -> int:
        """Of the index block: its own elements, addresses of data blocks, and of blocks of such addresses."""
        indirect = 1 + self.bits - (self.least.bit_length() - 1) - self.direct
        return _BLOCK_HEAD_BYTES + self.own * self.entry.itemsize + 8 * (2 * (self.pointers - 1) + max(0, indirect))

    def groups(self, elements: int) -> Iterator[tuple[int, int, int]]:
        """Of data blocks of one size: the first element, how many blocks, elements of each."""
        first = self.own
        for number in range(1 + self.bits - (self.least.bit_length() - 1)):
            if first >= elements:
                return
            count, size = 1 << number // 2, self.least << (number + 1) // 2
            yield first, count, size
            first += count * size

    def pages(self, size: int) -> int:
        """Of a data block with so many elements; 0: it has none."""
        return size >> self.page_bits if size > 1 << self.page_bits else 0

    def runs(self, first: int, addresses: Sequence[int], size: int, written: NDArray[np.uint8]) -> list[_Run]:
        """The elements of a group of data blocks; of those of pages, one bit for each says which were written."""
        found = []
        for number, address in enumerate(addresses):
            start, place = first + number * size, address + self.block_head_bytes
            if is_undefined(address):
                continue
            if pages := self.pages(size):
                bits = written[number * pages : (number + 1) * pages]
                found += _pages(start, place + _CHECKSUM_BYTES, bits, 1 << self.page_bits, self.entry)
            else:
                found.append(_Run(start, place, size))
        return found


def _extensible_array(held: Held, address: int, elements: Elements) -> Reading:
    array = _Extensible.read(Cursor((yield from held.read(address, 72)), address))
    index = Cursor((yield from held.read(array.index, array.index_bytes)), array.index)
    index.expect(b"EAIB", (0,))
    index.take(_BLOCK_HEAD_BYTES - 5)
    _put(elements, 0, index.take(array.own * array.entry.itemsize), array.entry)
    runs: list[_Run] = []
    places: list[tuple[int, int]] = []
    indirect: list[tuple[int, int, int, int]] = []
    for number, (first, count, size) in enumerate(array.groups(len(elements))):
        if number < array.direct:
            runs += array.runs(first, [index.number() for _ in range(count)], size, _NO_BITS)
        elif not is_undefined(place := index.number()):
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
    """One for each page; the highest bit of the first byte is that of page 0."""
    return np.unpackbits(np.frombuffer(bitmap, np.uint8))


def _pages(first: int, place: int, written: NDArray[np.uint8], per_page: int, entry: np.dtype[np.void]) -> list[_Run]:
    """The pages that were written."""
    step = per_page * entry.itemsize + _CHECKSUM_BYTES
    return [_Run(first + n * per_page, place + n * step, per_page) for n in np.flatnonzero(written).tolist()]


class _Run(msgspec.Struct, frozen=True):
    """Elements one after the other: the number of the first, where it is, how many."""

    first: int
    place: int
    count: int


def _read_runs(held: Held, elements: Elements, entry: np.dtype[np.void], runs: Sequence[_Run]) -> Reading:
    """Reads elements; those behind the last chunk are left out."""
    wanted = [run for run in runs if run.first < len(elements)]
    lengths = [min(run.count, len(elements) - run.first) * entry.itemsize for run in wanted]
    places = [(run.place, length) for run, length in zip(wanted, lengths, strict=True)]
    contents = yield from held.read_all(places)
    for run, length, content in zip(wanted, lengths, contents, strict=True):
        _put(elements, run.first, Cursor(content, run.place).take(length), entry)
