"""What the index knows of recordings, and the units of their blocks that are not cut. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import ClassVar, Protocol

import msgspec
import numpy as np

from streamer.base.ranges import Range
from streamer.formats.failures import DamagedError
from streamer.media.audio.windows import Integers, encode_piece
from streamer.media.containers.blocks import pack_columns, unpack_columns
from streamer.media.containers.entries import TrackCodec

# Size, bytes before it that are of no packet, samples.
_COLUMNS = 3


class Units(Protocol):
    """Units of a block: `AudioFrames`, or the numbers of a WAV (`recode.Numbers`)."""

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


# A request costs as much as the bytes that a connection transfers in its time; see `formats.reading`.
_NEAR_BYTES = 64 << 10


class Recording(msgspec.Struct, frozen=True):
    """A recording of which the index knows where its samples are.

    Attributes:
        audio: how it is encoded.
        total: samples of all channels that are played.
    """

    audio: TrackCodec
    total: int

    @property
    def near_bytes(self) -> int:
        """Ranges of bytes with less between them are one."""
        return _NEAR_BYTES

    @property
    def is_interleaved(self) -> bool:
        """Whether other bytes are between its packets."""
        return False

    @property
    def played_at(self) -> float:
        """When the first sample is played, seconds."""
        return 0.0

    def bounds(self, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """The bytes with which samples `[start, stop)` can be decoded: (N,) first, and behind the last."""
        raise NotImplementedError

    def sample_at(self, byte: int) -> int:
        """The number of the first sample whose bytes begin at a place that `bounds` has returned.

        Below 0: it is decoded, but not played.
        """
        raise NotImplementedError

    def packets_before(self, places: Integers) -> Integers:
        """The packets before places in the object, as far as the recoder cannot find them in the bytes."""
        return np.zeros_like(places)

    def packets_in(self, ranges: Sequence[Range]) -> PackedFrames | None:
        """Returns the packets in ranges of the object, None if the recoder finds them in the bytes."""
        return None


class Edge(msgspec.Struct, frozen=True):
    """Where a frame begins, and its first sample."""

    byte: int
    sample: int


class Edged(Recording, frozen=True):
    """A recording of which the index knows where some frames or pages begin, and nothing between them.

    Attributes:
        edges: some beginnings: the first one, one near the beginning of each chunk, and the end.
        lead: samples before the first wanted one that are decoded, too.
        behind: bytes behind an edge that may belong to samples before it.
    """

    edges: tuple[Edge, ...]
    lead: ClassVar[int] = 0
    behind: ClassVar[int] = 0

    @property
    def near_bytes(self) -> int:
        """All ranges of a block are one: what begins in it is not known."""
        return self.edges[-1].byte

    def max_bytes(self, samples: Integers) -> Integers:
        """The bytes that samples take at most."""
        raise NotImplementedError

    def bounds(self, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """From the last edge before the samples and their lead to what they take at most behind the last one."""
        bytes_, samples = (np.array([getattr(edge, name) for edge in self.edges]) for name in ("byte", "sample"))
        begin = np.maximum(np.searchsorted(samples, starts - self.lead, "right") - 1, 0)
        end = np.searchsorted(samples, stops, "left")
        limit = bytes_[end - 1] + self.max_bytes(stops - samples[end - 1])
        return bytes_[begin], np.minimum(np.minimum(bytes_[end], limit) + self.behind, bytes_[-1])

    def sample_at(self, byte: int) -> int:
        """The number of the first sample of an edge."""
        return self.edges[bisect_left(self.edges, byte, key=lambda edge: edge.byte)].sample


class Packeted(Recording, frozen=True):
    """A recording of which the index knows all packets.

    Attributes:
        frames: they, without bytes.
        played_at: see `Recording`.
    """

    frames: AudioFrames
    played_at: float = 0.0

    def bounds(self, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """The bytes of packets and their lead."""
        lower, upper = self.frames.between(starts, stops)
        return self.frames.offsets[lower], self.frames.offsets[upper - 1] + self.frames.sizes[upper - 1]

    def sample_at(self, byte: int) -> int:
        """The number of the first sample of a packet."""
        return self.frames.first(int(np.searchsorted(self.frames.offsets, byte)))

    @property
    def is_interleaved(self) -> bool:
        """Whether other bytes are between its packets."""
        return bool((self.frames.offsets[1:] > (self.frames.offsets + self.frames.sizes)[:-1]).any())

    def packets_before(self, places: Integers) -> Integers:
        """The packets before places in the object."""
        return np.searchsorted(self.frames.offsets, places)

    def packets_in(self, ranges: Sequence[Range]) -> PackedFrames:
        """The packets in ranges of the object."""
        return self.frames.write_hint(ranges)
