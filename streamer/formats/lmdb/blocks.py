"""Values of LMDB as blocks: runs of them in the order of the file, with what a recoder needs to find them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec
import numpy as np

from streamer.formats.base import Block
from streamer.formats.lmdb.pages import Entry, PageError

# Values with fewer bytes between them are fetched as one range; pages of keys are among them.
_NEAR_BYTES = 64 << 10
# Of a block; a chunk has several if it has many keys.
_MOST_HINT_BYTES = 32 << 10
# Of a value in a hint, besides its key: two lengths, and the length of the key.
_HINT_BYTES = 13


class Values(msgspec.Struct, frozen=True, array_like=True):
    """The hint of a block.

    Attributes:
        skipped: bytes before each value that are no value's.
        lengths: of the values.
        keys: of the values.
    """

    skipped: list[int]
    lengths: list[int]
    keys: list[bytes]


VALUES = msgspec.msgpack.Decoder(Values)


class Places:
    """Where the values of a database are, and their keys. Of 10^7 entries: 24 bytes of each, and the key."""

    def __init__(self) -> None:
        self._starts, self._stops, self._key_stops = array("q"), array("q"), array("q", [0])
        self._keys = bytearray()

    def add(self, entry: Entry) -> None:
        """Adds a value."""
        self._starts.append(entry.start)
        self._stops.append(entry.stop)
        self._keys += entry.key
        self._key_stops.append(len(self._keys))

    def blocks(self, chunk_bytes: int) -> Iterator[Block]:
        """The values as blocks, in the order of the file.

        Raises:
            PageError: two values have bytes in common.
        """
        starts, stops = np.array(self._starts, np.int64), np.array(self._stops, np.int64)
        order = np.argsort(starts, kind="stable")
        shared = np.flatnonzero(stops[order[:-1]] > starts[order[1:]])
        if len(shared):
            raise PageError("two values at one place", int(starts[order[shared[0] + 1]]))
        run: list[int] = []
        hint_bytes = 0
        for number in order.tolist():
            key_bytes = self._key_stops[number + 1] - self._key_stops[number]
            if run and (self._stops[number] - self._starts[run[0]] > chunk_bytes or hint_bytes > _MOST_HINT_BYTES):
                yield self._block(run)
                run, hint_bytes = [], 0
            run.append(number)
            hint_bytes += _HINT_BYTES + key_bytes
        if run:
            yield self._block(run)

    def _block(self, run: list[int]) -> Block:
        ranges: list[tuple[int, int]] = []
        skipped, lengths, keys = list[int](), list[int](), list[bytes]()
        for number in run:
            start, stop = self._starts[number], self._stops[number]
            if not ranges or start - ranges[-1][1] > _NEAR_BYTES:
                # A range has at least one byte: a value of no bytes has the one before it, which is of its node.
                begin = min(start, stop - 1)
                ranges.append((begin, begin))
            begin, passed = ranges[-1]
            ranges[-1] = (begin, stop)
            skipped.append(start - passed)
            lengths.append(stop - start)
            keys.append(bytes(self._keys[self._key_stops[number] : self._key_stops[number + 1]]))
        record_bytes = sum(lengths) + sum(map(len, keys)) + 2 * len(run)
        return Block(tuple(ranges), len(run), record_bytes, msgspec.msgpack.encode(Values(skipped, lengths, keys)))
