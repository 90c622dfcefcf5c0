"""The bytes of an HDF5 file that are held, and a place among them. No I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Sequence

from streamer.formats.base import Answer, Need, ObjectRecord

# The first read: of most files it has all object headers.
HEAD_BYTES = 16 << 10
# What is read at least: structures are written near each other.
_LEAST_BYTES = 2 << 10
# Two structures are read together if less is between them.
_NEAR_BYTES = 4 << 10
UNDEFINED = (1 << 64) - 1

Reading = Generator[Need | tuple[Need, ...], Answer, memoryview]
ReadingAll = Generator[Need | tuple[Need, ...], Answer, list[memoryview]]


class Hdf5Error(ValueError):
    """Bytes that are no HDF5.

    Args:
        reason: what is wrong.
        offset: of the structure, in the file.
    """

    def __init__(self, reason: str, offset: int = 0) -> None:
        super().__init__(reason)
        self.offset = offset


class Hdf5UnreadError(Hdf5Error):
    """HDF5 that is not read; says what to do."""


class Cursor:
    """Takes numbers from bytes, one after the other.

    Args:
        content: of a structure.
        offset: of it in the file.
    """

    def __init__(self, content: memoryview, offset: int = 0) -> None:
        self.content = content
        self.at = 0
        self.offset = offset

    @property
    def left(self) -> int:
        """Bytes that were not taken."""
        return len(self.content) - self.at

    def take(self, length: int) -> memoryview:
        """The next bytes."""
        if length > self.left:
            raise Hdf5Error(f"a structure ends {length - self.left} bytes too early", self.offset + self.at)
        self.at += length
        return self.content[self.at - length : self.at]

    def number(self, width: int = 8) -> int:
        """The next unsigned number, little-endian."""
        return int.from_bytes(self.take(width), "little")

    def expect(self, signature: bytes, version: Sequence[int] = ()) -> int:
        """A signature, and a version of one byte if there are versions."""
        found = bytes(self.take(len(signature)))
        if found != signature:
            raise Hdf5Error(f"no {signature.decode()} is there, but {found!r}", self.offset)
        number = self.number(1) if version else 0
        if version and number not in version:
            raise Hdf5UnreadError(f"version {number} of {signature.decode()} is not known; write it again", self.offset)
        return number


class Held:
    """What was read of one file.

    Args:
        record: the file.
    """

    def __init__(self, record: ObjectRecord) -> None:
        self.record = record
        # Of address 0 in the file: what stands before it is the user's.
        self.base = 0
        self._pieces: list[tuple[int, memoryview]] = []

    def read(self, address: int, length: int) -> Reading:
        """The bytes of a structure; fewer at the end of the file."""
        found = yield from self.read_all([(address, length)])
        return found[0]

    def read_all(self, places: Sequence[tuple[int, int]]) -> ReadingAll:
        """The bytes of many structures, as addresses and lengths, read together.

        Raises:
            Hdf5Error: outside of the file.
        """
        size = self.record.size
        spans = []
        for address, length in places:
            start = address + self.base
            if not start < size:
                raise Hdf5Error(f"an address {address} outside of the file", min(start, size))
            spans.append((start, min(start + length, size)))
        found = [self._find(*span) for span in spans]
        needs: list[Need] = []
        for start, end in sorted(span for span, piece in zip(spans, found, strict=True) if piece is None):
            stop = max(end, min(start + _LEAST_BYTES, size))
            if needs and start - needs[-1].stop < _NEAR_BYTES:
                needs[-1] = Need(needs[-1].start, max(stop, needs[-1].stop), self.record)
            else:
                needs.append(Need(start, stop, self.record))
        read: list[tuple[int, memoryview]] = []
        if needs:
            answers = yield tuple(needs)
            assert isinstance(answers, tuple)
            read = [(need.start, answer) for need, answer in zip(needs, answers, strict=True)]
            self._pieces = sorted([*self._pieces, *read], key=_start_of)
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
