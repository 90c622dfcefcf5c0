"""What is known of the recordings of an object, and the records of their windows. No I/O.

    record   uint32 length of the head | head (MessagePack) | pieces
    piece    of numbers: the numbers; of packets: uint32 count | uint32 length of each | packets

A record has all that its window needs: the pieces from the one in which decoding begins to the last one that is wanted.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import DecodeError
from streamer.formats.media.entries import Codec

Integers = NDArray[np.int64]

_LENGTH = struct.Struct("<I")
# The kind of the field of a record; see `streamer.decode.media.audio`.
AUDIO = "audio"
# The codec of recordings that are numbers, of which `extradata` is the dtype, or "i3".
PCM = "pcm"


class Recording(Protocol):
    """A recording of which the index knows where its samples are."""

    @property
    def sound(self) -> Codec:
        """How it is encoded."""
        ...

    @property
    def total(self) -> int:
        """Samples of all channels."""
        ...

    @property
    def near_bytes(self) -> int:
        """Ranges of bytes with less between them are one."""
        ...

    def bounds(self, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """The bytes with which samples `[start, stop)` can be decoded: (N,) first, and behind the last."""
        ...

    def sample_at(self, byte: int) -> int:
        """The number of the first sample whose bytes begin at a place that `bounds` has returned."""
        ...


class Edge(msgspec.Struct, frozen=True):
    """Where a frame begins, and its first sample."""

    byte: int
    sample: int


class Edged(msgspec.Struct, frozen=True):
    """A recording of which the index knows where some frames or pages begin, and nothing between them.

    Attributes:
        sound: how it is encoded.
        total: samples of all channels that are played.
        edges: some beginnings: the first one, one near the beginning of each chunk, and the end.
    """

    sound: Codec
    total: int
    edges: tuple[Edge, ...]

    @property
    def near_bytes(self) -> int:
        """All ranges of a block are one: what begins in it is not known."""
        return self.edges[-1].byte

    def sample_at(self, byte: int) -> int:
        """The number of the first sample of an edge; below 0: it is decoded, but not played."""
        return self.edges[bisect_left(self.edges, byte, key=lambda edge: edge.byte)].sample


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The head of a record.

    Attributes:
        path: of the object below the dataset's url.
        sound: how it is encoded.
        first: the number of the first sample that the pieces decode to.
        start: the first sample of the window, or of the places where it may begin.
        stop: the sample behind.
        length: samples of a window.
    """

    path: str
    sound: Codec
    first: int
    start: int
    stop: int
    length: int


_HEAD = msgspec.msgpack.Decoder(Head)


def encode_head(head: Head) -> bytes:
    """Returns the beginning of a record."""
    content = msgspec.msgpack.encode(head)
    return _LENGTH.pack(len(content)) + content


def split_record(content: memoryview) -> tuple[Head, memoryview]:
    """Returns head and pieces of a record; raises DecodeError."""
    try:
        (length,) = _LENGTH.unpack_from(content)
        head = _HEAD.decode(content[_LENGTH.size : _LENGTH.size + length])
    except (struct.error, msgspec.MsgspecError) as error:
        raise DecodeError(f"{len(content)} bytes are not a window of sound: {error}", offset=0) from error
    return head, content[_LENGTH.size + length :]


def encode_piece(packets: Sequence[memoryview | bytes]) -> bytes:
    """Returns a piece of packets."""
    lengths = np.fromiter(map(len, packets), "<u4", len(packets)).tobytes()
    return b"".join([_LENGTH.pack(len(packets)), lengths, *packets])


def packets_of(content: memoryview) -> list[memoryview]:
    """Returns the packets of the pieces of a record; raises ValueError if they do not fill it."""
    found, at = [], 0
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
