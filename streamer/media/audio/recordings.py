"""What the index knows of recordings. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np

from streamer.base.ranges import Range
from streamer.media.audio.frames import AudioFrames, PackedFrames
from streamer.media.audio.windows import Integers
from streamer.media.containers.entries import TrackCodec

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
