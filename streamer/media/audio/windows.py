"""Computes which samples each window of a recording has, and encodes and reads the record of a window.

The modules of `media/audio/` make windows and records, and `media/decode/` decodes these. The audio of clips
(`media/video/clip_audio.py`) has the same pieces.

    record   uint32 length of the head | head (MessagePack) | pieces
    piece    of PCM: the values; of packets: uint32 count | uint32 length of each | packets

A record has all that decoding of its window needs: the pieces from the one in which decoding begins to the one with the
last sample of the window. A "sample" here is a value of each channel at one time, not a sample of the dataset.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import DecodeError
from streamer.media.containers.clips import draw_numbers
from streamer.media.containers.entries import TrackCodec

Integers = NDArray[np.int64]
_LENGTH = struct.Struct("<I")
# The kinds of the fields of a record: the audio, and when it begins. `streamer.media.decode.audio` decodes them.
AUDIO = "audio"
START = "audio-start"
# Mark between the path of a file and a time in it, in the keys of samples.
TIME_MARK = "#t="
# The codec of recordings that are PCM values. `extradata` is their dtype; "i3" and ">i3" are integers of three bytes.
PCM = "pcm"


class Windows(msgspec.Struct, frozen=True, array_like=True):
    """Windows of one recording, one after the other.

    Attributes:
        total: samples of the recording.
        length: samples of a window; the last window may end behind the recording.
        step: samples from the beginning of a window to that of the next one.
        first: number of the first window.
        count: number of windows.
        random: whether a window may begin with any sample until the next one begins.
    """

    total: int
    length: int
    step: int
    first: int
    count: int
    random: bool = False

    @classmethod
    def cut(cls, total: int, length: int, step: int, *, pad: bool, random: bool = False) -> Windows:
        """Returns all windows of a recording.

        Args:
            total: samples of the recording.
            length: see `Windows`.
            step: see `Windows`.
            pad: whether windows go on to the end of the recording; else all of them are inside of it.
            random: see `Windows`.
        """
        inside = max(0, (total - length) // step + 1)
        # A padded window follows where samples are left, unless it would begin behind the end.
        rest = pad and inside * step < total and (inside == 0 or (inside - 1) * step + length < total)
        return cls(total=total, length=length, step=step, first=0, count=inside + rest, random=random)

    def part(self, first: int, stop: int) -> Windows:
        """Returns windows `[first, stop)` of these."""
        return msgspec.structs.replace(self, first=self.first + first, count=stop - first)

    @property
    def starts(self) -> Integers:
        """(count,) the first sample of each window, or the first one with which it may begin."""
        return (self.first + np.arange(self.count, dtype=np.int64)) * self.step

    @property
    def places(self) -> Integers:
        """(count,) number of samples with which each window may begin so that it ends in the recording; at least 1."""
        limit = self.step if self.random else 1
        found: Integers = np.clip(self.total - self.length + 1 - self.starts, 1, limit)
        return found

    @property
    def stops(self) -> Integers:
        """(count,) the sample behind the last one that each window may have, wherever it begins."""
        found: Integers = np.minimum(self.starts + self.places - 1 + self.length, self.total)
        return found


def cut_parts(lower: Integers, upper: Integers) -> tuple[Integers, Integers, Integers]:
    """Cuts what ranges `[lower, upper)` cover into parts, at every place where one of the ranges begins or ends.

    Records that overlap then share parts instead of having copies.

    Args:
        lower: (N,) ascending.
        upper: (N,) ascending.

    Returns:
        Where the parts begin and where they end, (M,) each, and the half-open range of parts of each range: (N, 1, 2).
    """
    edges = np.unique(np.concatenate([lower, upper]))
    begin = np.searchsorted(edges, lower)
    end = np.searchsorted(edges, upper)
    depth = np.cumsum(np.bincount(begin, minlength=len(edges)) - np.bincount(end, minlength=len(edges)))
    used = depth[:-1] > 0
    number = np.concatenate([[0], np.cumsum(used)]).astype(np.int64)
    return edges[:-1][used], edges[1:][used], np.stack([number[begin], number[end]], 1)[:, None]


class WindowHeader(msgspec.Struct, frozen=True, array_like=True):
    """The head of a record.

    Attributes:
        path: path of the object below the dataset's url, or "" for a window of a file that a worker has read.
        audio: how it is encoded.
        first: index of the first sample that the pieces decode to.
        start: first sample of the window, or the first one with which it may begin.
        stop: sample behind the last one that the window may have.
        length: samples of the window.
        places: number of samples, from `start` on, with which the window may begin.
        played_at: when sample 0 is played, seconds.
    """

    path: str
    audio: TrackCodec
    first: int
    start: int
    stop: int
    length: int
    places: int = 1
    played_at: float = 0.0

    def draw(self, rng: np.random.Generator | None) -> int:
        """Returns the first sample of the window, which `rng` draws among the places. None takes the middle place."""
        return self.start + int(draw_numbers(self.places, rng))

    def seconds(self, sample: int) -> float:
        """Returns when a sample is played, in seconds."""
        return self.played_at + sample / self.audio.rate


_HEAD = msgspec.msgpack.Decoder(WindowHeader)


def encode_head(head: WindowHeader) -> bytes:
    """Returns the beginning of a record: the length of the head, and the head."""
    content = msgspec.msgpack.encode(head)
    return _LENGTH.pack(len(content)) + content


def split_record(content: memoryview) -> tuple[WindowHeader, memoryview]:
    """Returns head and pieces of a record; raises DecodeError."""
    try:
        (length,) = _LENGTH.unpack_from(content)
        head = _HEAD.decode(content[_LENGTH.size : _LENGTH.size + length])
    except (struct.error, ValueError) as error:
        raise DecodeError(f"{len(content)} bytes are not a window of audio: {error}", offset=0) from error
    return head, content[_LENGTH.size + length :]


def encode_piece(lengths: Integers, packets: Sequence[memoryview | bytes]) -> bytes:
    """Returns a piece of a record. `packets` together have these lengths; several may be joined in one buffer."""
    return b"".join([_LENGTH.pack(len(lengths)), lengths.astype("<u4").tobytes(), *packets])


def packets_of(content: memoryview) -> list[memoryview]:
    """Returns the packets of the pieces of a record; raises ValueError or struct.error if they do not fill it."""
    found = []
    at = 0
    while at < len(content):
        (count,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size + 4 * count
        if at > len(content):
            raise ValueError(f"{count} packets in {len(content)} bytes")
        for length in np.frombuffer(content[at - 4 * count : at], "<u4").tolist():
            found.append(content[at : at + length])
            at += length
    if at != len(content):
        raise ValueError(f"packets end at byte {at}, there are {len(content)}")
    return found
