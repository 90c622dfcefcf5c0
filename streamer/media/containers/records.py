"""Writes and reads the record of a sample of a video.

Recoders write it (`recode.py`), workers read it (`media/decode/video.py`), and packs make videos of it
(`media/video/mp4.py`). It has a head, and parts with packets. A part is in the chunk file once, and the clips that need
it share it.

    head   u32 bytes | MessagePack of `ClipHeader`
    part   u32 packets | u32 bytes of codec | packets x (u32 size, i64 pts) | MessagePack of `TrackCodec` | packets
    audio  pieces of `media/audio/windows.py`, if the head says so

Only parts that begin with a key packet have codec parameters. The highest bit of their number of packets says that
packets before them are left out. Numbers are little-endian, times ticks of the track.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.media.containers.clips import Pattern, draw_numbers
from streamer.media.containers.entries import TrackCodec
from streamer.media.containers.tables import Integers

# The kinds of the fields of clips; see `streamer.media.decode.video`.
CLIP = "clip"
PTS = "clip-pts"
DURATION = "clip-duration"
CLIP_AUDIO = "clip-audio"

_LENGTH = struct.Struct("<I")
_PART = struct.Struct("<II")
_PACKET = struct.Struct("<Iq")
_GAP = 1 << 31
# The lengths and numbers of a head take at most so many bytes: MessagePack has up to 5 for a length, 9 for a number.
_HEAD_BYTES = 64


class ClipAudioHeader(msgspec.Struct, frozen=True, array_like=True):
    """The audio of the clips of a record, as its head describes it. "Samples" here are values of audio at one time.

    Attributes:
        codec: how it is encoded.
        total: number of samples of the track, for each channel.
        length: number of samples of a clip.
        played_at: when sample 0 is played, seconds.
        first: the number of the first sample that the packets decode to.
        stored: bytes of the packets, at the end of the record.
    """

    codec: TrackCodec
    total: int
    length: int
    played_at: float
    first: int = 0
    stored: int = 0

    def begin(self, seconds: float) -> int:
        """Returns the number of the first audio sample of a clip whose first frame is shown at `seconds`."""
        return round((seconds - self.played_at) * self.codec.rate)


class ClipHeader(msgspec.Struct, frozen=True, array_like=True):
    """The head of a record: what a sample has besides packets.

    Attributes:
        key: path of the video.
        timescale: number of ticks in a second.
        pts: times of the frames of its clips one after the other, or of all frames that its clips may have if the
            worker draws them: bytes of int64, ticks.
        duration: durations of the same frames: bytes of int64, ticks.
        pattern: the frames of a clip.
        draws: bytes of int64 (clips, 2) if the worker draws the clips: the place in `pts` where a clip may begin first,
            and the number of places where it may begin. Otherwise it is empty.
        extra: the record of its row in a table, see `formats.table.records`, or b"" if there is no table.
        audio: the audio of its clips, or None if they have none.
    """

    key: str
    timescale: int
    pts: bytes
    duration: bytes
    pattern: Pattern
    draws: bytes = b""
    extra: bytes = b""
    audio: ClipAudioHeader | None = None

    def draw(self, rng: np.random.Generator | None) -> tuple[Integers, Integers]:
        """Returns times and durations of the frames of the sample, in ticks.

        Args:
            rng: draws the clips, if workers draw them. Equal generators draw equal clips for all fields of a sample.
                None takes the middle one of the clips that may be drawn.
        """
        pts = np.frombuffer(self.pts, "<i8")
        duration = np.frombuffer(self.duration, "<i8")
        if not self.draws:
            return pts, duration
        base, number = np.frombuffer(self.draws, "<i8").reshape(-1, 2).T
        chosen = self.pattern.find_frames(pts, base + draw_numbers(number, rng)).ravel()
        return pts[chosen], duration[chosen]

    def shape(self, frames: int) -> tuple[int, ...]:
        """Returns the shape of so many frames: () for an image, (frames,) for one clip, (clips, frames) for several."""
        if not self.pattern.count:
            return ()
        clips = frames // self.pattern.count
        return (frames,) if clips == 1 else (clips, self.pattern.count)

    def seconds(self, rng: np.random.Generator | None = None, *, durations: bool = False) -> NDArray[np.float64]:
        """Returns the times of the frames, or their durations, in seconds and in the shape of `shape`; see `draw`."""
        found = self.draw(rng)[durations]
        return (found / self.timescale).reshape(self.shape(len(found)))


class OpenedRecord(msgspec.Struct, frozen=True):
    """A record whose bytes are not copied.

    Attributes:
        head: the head of the sample.
        codec: parameters of its packets.
        packets: its packets in the order stored.
        pts: the time of each packet, ticks.
        keys: numbers of the key packets.
        gaps: numbers of the packets before which packets of the video are left out.
    """

    head: ClipHeader
    codec: TrackCodec
    packets: Sequence[memoryview]
    pts: Sequence[int]
    keys: Sequence[int]
    gaps: Sequence[int]

    def span(self, wanted: Integers) -> tuple[int, int]:
        """Returns which packets `[first, stop)` are decoded for frames; all of them unless clips are drawn.

        Args:
            wanted: times of the frames, ticks.

        Raises:
            ValueError: a frame is not in the record.
        """
        if not self.head.draws:
            return 0, len(self.packets)
        pts = np.array(self.pts)
        order = np.argsort(pts, kind="stable")
        places = order[np.minimum(np.searchsorted(pts[order], wanted), len(pts) - 1)]
        if not np.array_equal(pts[places], wanted):
            raise ValueError("a clip without the packets of its frames")
        first = int(places.min())
        stop = int(places.max()) + 1
        keys = [key for key in self.keys if key <= first and pts[key] <= wanted.min()]
        return (keys[-1] if keys else 0), stop


_encode = msgspec.msgpack.encode
_HEAD = msgspec.msgpack.Decoder(ClipHeader)


@lru_cache(maxsize=64)
def _codec(content: bytes) -> TrackCodec:
    return msgspec.msgpack.decode(content, type=TrackCodec)


def heads_bytes(key: str, samples: int, numbers: int, audio: ClipAudioHeader | None = None) -> int:
    """Returns the maximum number of bytes that the heads of the samples of a block take.

    Args:
        key: path of the video.
        samples: number of samples.
        numbers: number of frames in all rows, plus numbers in all draws.
        audio: the audio of the clips, or None.
    """
    more = _HEAD_BYTES + len(_encode(audio)) if audio else 0
    return samples * (_HEAD_BYTES + len(key.encode()) + more) + 16 * numbers


def part_bytes(packets: int, codec: TrackCodec | None) -> int:
    """Returns the bytes of a part besides its packets; `codec` is None if it does not begin with a key packet."""
    return _PART.size + _PACKET.size * packets + (len(_encode(codec)) if codec else 0)


def encode_head(head: ClipHeader) -> bytes:
    """Returns the bytes of a head, with their length in front."""
    content = _encode(head)
    return _LENGTH.pack(len(content)) + content


def encode_part(
    pts: Sequence[int], content: Sequence[memoryview], codec: TrackCodec | None, *, behind_gap: bool
) -> bytes:
    """Returns the bytes of a part.

    Args:
        pts: times of its packets, ticks.
        content: its packets.
        codec: codec parameters, if it begins with a key packet; otherwise None.
        behind_gap: whether packets of the video before it are left out.
    """
    described = _encode(codec) if codec else b""
    head = _PART.pack(len(pts) | _GAP * behind_gap, len(described))
    return b"".join([head, *map(_PACKET.pack, map(len, content), pts), described, *content])


def read_head(record: memoryview) -> tuple[ClipHeader, memoryview]:
    """Reads the head of a record; returns it and the bytes behind it.

    Raises:
        ValueError, struct.error, msgspec.MsgspecError: bytes that are no record.
    """
    [length] = _LENGTH.unpack_from(record)
    body = record[_LENGTH.size : _LENGTH.size + length]
    return _HEAD.decode(body), record[_LENGTH.size + length :]


def open_record(record: memoryview) -> OpenedRecord:
    """Reads a record.

    Raises:
        ValueError, struct.error, msgspec.MsgspecError: bytes that are no record.
    """
    head, rest = read_head(record)
    rest = rest[: len(rest) - (head.audio.stored if head.audio else 0)]
    codec: TrackCodec | None = None
    packets = list[memoryview]()
    pts = list[int]()
    keys = list[int]()
    gaps = list[int]()
    at = 0
    while at < len(rest):
        count, codec_bytes = _PART.unpack_from(rest, at)
        if count & _GAP:
            gaps.append(len(packets))
            count ^= _GAP
        at += _PART.size
        table = rest[at : at + _PACKET.size * count]
        at = at + _PACKET.size * count
        if codec is None:
            codec = _codec(bytes(rest[at : at + codec_bytes]))
        if codec_bytes:
            keys.append(len(packets))
        at += codec_bytes
        for size, time in _PACKET.iter_unpack(table):
            packets.append(rest[at : at + size])
            at += size
            pts.append(time)
    if codec is None or at != len(rest):
        raise ValueError(f"packets up to byte {at} of {len(rest)}")
    return OpenedRecord(head=head, codec=codec, packets=packets, pts=pts, keys=keys, gaps=gaps)
