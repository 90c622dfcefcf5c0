"""Describes recordings as an index finds them, and the units of which windows are made: packets, or PCM values.

The readers of files (`flac.py`, `ogg.py`, `mp3.py`, `wav.py`, `tracks.py`) return a `Recording`. `index.py` cuts it
into blocks, and `recode.py` makes records of units. `media/video/clip_audio.py` uses both for the audio of videos.

A "sample" here is a value of each channel at one time, not a sample of the dataset.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import ClassVar, Protocol

import msgspec
import numpy as np

from streamer.formats.failures import DamagedError
from streamer.formats.reading import Range
from streamer.media.audio.windows import Integers, encode_piece
from streamer.media.containers.blocks import pack_columns, unpack_columns
from streamer.media.containers.entries import TrackCodec

# Columns of `PackedFrames`, each with a number for every packet: its size, the bytes since the packet before it, and
# its samples.
_COLUMNS = 3


class Units(Protocol):
    """Units of a block, which are copied whole: packets (`AudioFrames`), or samples of a WAV (`recode.Numbers`)."""

    def between(self, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """Returns the half-open ranges of units that decoding of samples `[start, stop)` needs: (N,) first, and stop.

        Raises:
            DamagedError: the units do not have these samples. Samples of a WAV notice it only in `piece`.
        """
        ...

    def first(self, unit: int) -> int:
        """Returns the index of the first sample of a unit."""
        ...

    def piece(self, begin: int, end: int) -> bytes | memoryview:
        """Returns units `[begin, end)` as a piece of a record (`audio.windows`).

        Raises:
            DamagedError: the block of a WAV does not have all of them. Of packets, only `between` checks it.
        """
        ...


class PackedFrames(msgspec.Struct, frozen=True, array_like=True):
    """The packets of a block, in its hint.

    Attributes:
        count: number of packets.
        lead: see `AudioFrames`.
        columns: sizes, gaps and numbers of samples of the packets, compressed; see `AudioFrames.write_hint`.
    """

    count: int
    lead: int
    columns: bytes


class AudioFrames(msgspec.Struct, frozen=True):
    """Packets of a recording, or of a block of it, one after the other.

    Attributes:
        offsets: (n,) byte at which each packet begins, in the object or, of a block, in `content`.
        sizes: (n,) length of each packet in bytes.
        firsts: (n + 1,) index of the first sample of each packet, and of the sample behind the last packet.
        lead: samples before the first wanted one that are decoded, too.
        content: the bytes of the block; empty while a recording is indexed.
        behind: packets behind that of the last wanted sample that are decoded, too.
    """

    offsets: Integers
    sizes: Integers
    firsts: Integers
    lead: int = 0
    content: memoryview = memoryview(b"")
    behind: int = 0

    def between(self, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """Returns the ranges of packets that have these samples and their lead; see `Units`."""
        if not len(self.sizes) or self.firsts[-1] < stops[-1] or self.firsts[0] > starts[0]:
            found = f"{self.firsts[0]} to {self.firsts[-1]}" if len(self.sizes) else "none"
            raise DamagedError(f"samples {starts[0]} to {stops[-1]} are wanted, there are {found}")
        lower = np.searchsorted(self.firsts, starts - self.lead, "right") - 1
        upper = np.searchsorted(self.firsts, stops, "left") + self.behind
        return np.maximum(lower, 0), np.minimum(upper, len(self.sizes))

    def first(self, unit: int) -> int:
        """Returns the index of the first sample of a packet."""
        return int(self.firsts[unit])

    def piece(self, begin: int, end: int) -> bytes:
        """Returns packets `[begin, end)` of `content` as a piece of a record."""
        offsets = self.offsets[begin:end]
        sizes = self.sizes[begin:end]
        start, stop = int(offsets[0]), int(offsets[-1] + sizes[-1])
        if stop - start == sizes.sum():
            return encode_piece(sizes, [self.content[start:stop]])
        spans = zip(offsets.tolist(), (offsets + sizes).tolist(), strict=True)
        return encode_piece(sizes, [self.content[first:behind] for first, behind in spans])

    def find_inside(self, ranges: Sequence[Range]) -> Integers:
        """Returns the numbers of the packets that begin in these ranges of the object."""
        edges = np.searchsorted(self.offsets, np.array(ranges))
        return np.concatenate([np.arange(*edge) for edge in edges.tolist()])

    def write_hint(self, ranges: Sequence[Range]) -> PackedFrames:
        """Returns the packets in ranges of the object for a hint, with offsets in the joined bytes of these ranges.

        `behind` is not kept.
        """
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
        """Returns the packets of a block by its hint.

        Args:
            content: bytes of the block.
            first: index of the first sample of the first packet.
            packed: what `write_hint` returned.

        Raises:
            DamagedError: the hint is damaged, or packets are not in `content`.
        """
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


# Ranges with fewer bytes between them are fetched as one: these cost less than another request.
_NEAR_BYTES = 64 << 10


class Recording(msgspec.Struct, frozen=True):
    """A recording, and which of its bytes have which samples. Each kind of file has its own subclass.

    Attributes:
        audio: how it is encoded.
        total: number of samples that are played.
    """

    audio: TrackCodec
    total: int

    @property
    def near_bytes(self) -> int:
        """Ranges of the object with fewer bytes between them are fetched as one."""
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
        """Returns the half-open byte ranges that decoding of samples `[start, stop)` needs: (N,) first, and stop."""
        raise NotImplementedError

    def sample_at(self, byte: int) -> int:
        """Returns the index of the first sample whose bytes begin at `byte`, which is a first byte of `bounds`.

        It is below 0 where samples are decoded, but not played.
        """
        raise NotImplementedError

    def packets_before(self, places: Integers) -> Integers:
        """Returns the number of packets before each place in the object that a hint has to list; here none."""
        return np.zeros_like(places)

    def packets_in(self, ranges: Sequence[Range]) -> PackedFrames | None:
        """Returns the packets in ranges of the object for the hint; None if the recoder finds them in the bytes."""
        return None


class Edge(msgspec.Struct, frozen=True):
    """The beginning of a frame or page.

    Attributes:
        byte: byte of the object at which it begins.
        sample: index of its first sample.
    """

    byte: int
    sample: int


class Edged(Recording, frozen=True):
    """A recording of which it is known where some frames or pages begin, and nothing between them.

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
        """The length of the object, so that ranges of a block become one: frames between edges may begin anywhere."""
        return self.edges[-1].byte

    def max_bytes(self, samples: Integers) -> Integers:
        """Returns the bytes that these numbers of samples take at most: (N,)."""
        raise NotImplementedError

    def bounds(self, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """Returns ranges from the last edge before the samples and their lead to the next edge behind them.

        A range ends before that edge if the samples after its last inner edge cannot reach so far (`max_bytes`).
        """
        bytes_, samples = (np.array([getattr(edge, name) for edge in self.edges]) for name in ("byte", "sample"))
        begin = np.maximum(np.searchsorted(samples, starts - self.lead, "right") - 1, 0)
        end = np.searchsorted(samples, stops, "left")
        limit = bytes_[end - 1] + self.max_bytes(stops - samples[end - 1])
        return bytes_[begin], np.minimum(np.minimum(bytes_[end], limit) + self.behind, bytes_[-1])

    def sample_at(self, byte: int) -> int:
        """Returns the index of the first sample of the edge at `byte`."""
        return self.edges[bisect_left(self.edges, byte, key=lambda edge: edge.byte)].sample


class Packeted(Recording, frozen=True):
    """A recording of which all packets are known.

    Attributes:
        frames: its packets, without `content`.
        played_at: see `Recording`.
    """

    frames: AudioFrames
    played_at: float = 0.0

    def bounds(self, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """Returns the byte ranges of the packets with these samples and their lead; raises DamagedError if any lack."""
        lower, upper = self.frames.between(starts, stops)
        return self.frames.offsets[lower], self.frames.offsets[upper - 1] + self.frames.sizes[upper - 1]

    def sample_at(self, byte: int) -> int:
        """Returns the index of the first sample of the packet that begins at `byte`."""
        return self.frames.first(int(np.searchsorted(self.frames.offsets, byte)))

    @property
    def is_interleaved(self) -> bool:
        """Whether other bytes are between its packets."""
        return bool((self.frames.offsets[1:] > (self.frames.offsets + self.frames.sizes)[:-1]).any())

    def packets_before(self, places: Integers) -> Integers:
        """Returns the number of packets that begin before each place in the object."""
        return np.searchsorted(self.frames.offsets, places)

    def packets_in(self, ranges: Sequence[Range]) -> PackedFrames:
        """Returns the packets in ranges of the object for the hint."""
        return self.frames.write_hint(ranges)
