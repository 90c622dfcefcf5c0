"""The bytes of an HDF5 file that are held, and a place among them. No I/O."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence

from streamer.formats.failures import DamagedError, UnreadError
from streamer.formats.reading import Range, Reading, near_needs, read_ranges
from streamer.manifest.model import ObjectRecord

# The first read: of most files it has all object headers.
HEAD_BYTES = 16 << 10
# Least length of a read: structures are written near each other.
_LEAST_BYTES = 2 << 10
# Two structures are read together if less is between them.
_NEAR_BYTES = 4 << 10
UNDEFINED = (1 << 64) - 1


class Cursor:
    """Takes numbers from the bytes of a structure at `offset` in the file, one after the other."""

    def __init__(self, content: memoryview, offset: int = 0) -> None:
        self.content = content
        self.at = 0
        self.offset = offset

    @property
    def left(self) -> int:
        """Number of bytes that were not taken."""
        return len(self.content) - self.at

    def take(self, length: int) -> memoryview:
        """Returns the next bytes."""
        if length > self.left:
            raise DamagedError(f"a structure ends {length - self.left} bytes too early", self.offset + self.at)
        self.at += length
        return self.content[self.at - length : self.at]

    def number(self, width: int = 8) -> int:
        """Returns the next unsigned number, little-endian."""
        return int.from_bytes(self.take(width), "little")

    def expect(self, signature: bytes, version: Sequence[int] = ()) -> int:
        """Takes a signature, and a version of one byte if there are versions; returns the version."""
        found = bytes(self.take(len(signature)))
        if found != signature:
            raise DamagedError(f"no {signature.decode()} is there, but {found!r}", self.offset)
        number = self.number(1) if version else 0
        if version and number not in version:
            raise UnreadError(f"version {number} of {signature.decode()} is not known; write it again", self.offset)
        return number


class Held:
    """The parts of one file that were read."""

    def __init__(self, record: ObjectRecord) -> None:
        self.record = record
        # Place of address 0 in the file: what stands before it is the user's.
        self.base = 0
        self._pieces: list[tuple[int, memoryview]] = []

    def read(self, address: int, length: int) -> Reading[memoryview]:
        """Reads the bytes of a structure; fewer at the end of the file."""
        found = yield from self.read_all([(address, length)])
        return found[0]

    def read_all(self, places: Sequence[tuple[int, int]]) -> Reading[list[memoryview]]:
        """Reads the bytes of many structures together, from their addresses and lengths."""
        size = self.record.size
        spans: list[Range] = []
        for address, length in places:
            start = address + self.base
            if not start < size:
                raise DamagedError(f"an address {address} outside of the file", min(start, size))
            spans.append((start, min(start + length, size)))
        found = [self._find(*span) for span in spans]
        missing = [span for span, piece in zip(spans, found, strict=True) if piece is None]
        wanted = [(start, max(stop, min(start + _LEAST_BYTES, size))) for start, stop in missing]
        needs = near_needs(self.record, wanted, _NEAR_BYTES)
        answers = yield from read_ranges(needs)
        read = [(need.start, answer) for need, answer in zip(needs, answers, strict=True)]
        for piece in read:
            insort(self._pieces, piece, key=_start_of)
        return [
            _cut(read[bisect_right(read, start, key=_start_of) - 1], start, stop) if piece is None else piece
            for (start, stop), piece in zip(spans, found, strict=True)
        ]

    def _find(self, start: int, stop: int) -> memoryview | None:
        place = bisect_right(self._pieces, start, key=_start_of)
        # A longer piece may begin before shorter ones; one that is not found is read again.
        for piece in self._pieces[max(0, place - 4) : place]:
            if stop <= piece[0] + len(piece[1]):
                return _cut(piece, start, stop)
        return None


def _start_of(piece: tuple[int, memoryview]) -> int:
    return piece[0]


def _cut(piece: tuple[int, memoryview], start: int, stop: int) -> memoryview:
    return piece[1][start - piece[0] : stop - piece[0]]
