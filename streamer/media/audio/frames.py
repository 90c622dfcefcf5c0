"""The bytes of a block in units that are not cut, samples of numbers or packets. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from streamer.base.ranges import Range
from streamer.formats.failures import DamagedError
from streamer.media.audio.windows import Integers, encode_piece
from streamer.media.containers.blocks import pack_columns, unpack_columns

# Size, bytes before it that are of no packet, samples.
_COLUMNS = 3


class Units(Protocol):
    """Units of a block."""

    def between(self, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """The half-open ranges of units with which samples `[start, stop)` are decoded; raises DamagedError."""
        ...

    def first(self, unit: int) -> int:
        """The number of the first sample of a unit."""
        ...

    def piece(self, begin: int, end: int) -> bytes | memoryview:
        """Units `begin` to `end` as a piece of a record."""
        ...


class PackedFrames(msgspec.Struct, frozen=True, array_like=True):
    """Packets in the hint of a block: their number, `AudioFrames.lead`, and compressed columns."""

    count: int
    lead: int
    columns: bytes


class AudioFrames(msgspec.Struct, frozen=True):
    """Packets, one after the other.

    Attributes:
        offsets: (n,) where packets begin.
        sizes: (n,) their bytes.
        firsts: (n + 1,) the first sample of each, and the one behind the last.
        lead: samples before the first wanted one that are decoded, too.
        content: the bytes, where they are there.
        behind: packets behind that of the last wanted sample that are decoded, too.
    """

    offsets: Integers
    sizes: Integers
    firsts: Integers
    lead: int = 0
    content: memoryview = memoryview(b"")
    behind: int = 0

    def between(self, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """The packets of samples and their lead."""
        if not len(self.sizes) or self.firsts[-1] < stops[-1] or self.firsts[0] > starts[0]:
            found = f"{self.firsts[0]} to {self.firsts[-1]}" if len(self.sizes) else "none"
            raise DamagedError(f"samples {starts[0]} to {stops[-1]} are wanted, there are {found}")
        lower = np.searchsorted(self.firsts, starts - self.lead, "right") - 1
        upper = np.searchsorted(self.firsts, stops, "left") + self.behind
        return np.maximum(lower, 0), np.minimum(upper, len(self.sizes))

    def first(self, unit: int) -> int:
        """The first sample of a packet."""
        return int(self.firsts[unit])

    def piece(self, begin: int, end: int) -> bytes:
        """Some packets."""
        offsets = self.offsets[begin:end]
        sizes = self.sizes[begin:end]
        start, stop = int(offsets[0]), int(offsets[-1] + sizes[-1])
        if stop - start == sizes.sum():
            return encode_piece(sizes, [self.content[start:stop]])
        spans = zip(offsets.tolist(), (offsets + sizes).tolist(), strict=True)
        return encode_piece(sizes, [self.content[first:behind] for first, behind in spans])

    def find_inside(self, ranges: Sequence[Range]) -> Integers:
        """The numbers of the packets in ranges of the object."""
        edges = np.searchsorted(self.offsets, np.array(ranges))
        return np.concatenate([np.arange(*edge) for edge in edges.tolist()])

    def write_hint(self, ranges: Sequence[Range]) -> PackedFrames:
        """Returns the packets in ranges of the object, for a hint."""
        which = self.find_inside(ranges)
        (begins, ends) = np.array(ranges).T
        # Places in the object become those in the joined ranges.
        behind = np.searchsorted(begins, self.offsets[which], "right") - 1
        moved = (np.cumsum(ends - begins) - ends)[behind]
        starts = self.offsets[which] + moved
        sizes = self.sizes[which]
        gaps = np.diff(starts, prepend=0) - np.append(0, sizes[:-1])
        firsts = np.append(self.firsts[which], self.firsts[which[-1] + 1])
        return PackedFrames(len(which), self.lead, pack_columns([sizes, gaps, np.diff(firsts)]))

    @classmethod
    def read_hint(cls, content: memoryview, first: int, packed: PackedFrames) -> AudioFrames:
        """Returns the packets of a hint, of which the first one has the sample `first`; raises DamagedError."""
        try:
            sizes, gaps, counts = unpack_columns(packed.columns, [packed.count] * _COLUMNS)
        except ValueError as error:
            raise DamagedError(str(error)) from error
        offsets = np.cumsum(gaps + np.append(0, sizes[:-1]))
        if not packed.count or min(offsets.min(), sizes.min()) < 0 or (offsets + sizes).max() > len(content):
            raise DamagedError(f"{packed.count} packets are not in {len(content)} bytes")
        return cls(
            offsets=offsets,
            sizes=sizes,
            firsts=first + np.append(0, np.cumsum(counts)),
            lead=packed.lead,
            content=content,
        )
