"""Packets that a container calls keys, though decoding may not begin with them, are refused."""

from __future__ import annotations

import struct

import pytest

from streamer.errors import RecodeError
from streamer.media.containers.entries import TrackCodec
from streamer.media.containers.packet_checks import check_key, find_droppable

HEVC = TrackCodec("hevc", b"\1" + bytes(20) + b"\x03" + bytes(10))
AVC = TrackCodec("h264", bytes(4) + b"\x03" + bytes(10))


def packet(*units: bytes) -> memoryview:
    return memoryview(b"".join(struct.pack(">I", len(unit)) + unit for unit in units))


def hevc(kind: int) -> bytes:
    return bytes([kind << 1, 1]) + bytes(10)


def test_hevc():
    """A key packet of HEVC must have a picture of type IRAP; parameter sets before it do not count."""
    for kind in (16, 19, 21):
        check_key(packet(hevc(32), hevc(kind)), HEVC)
    with pytest.raises(RecodeError, match="no whole key frames: a frame of type 1 is called one"):
        check_key(packet(hevc(32), hevc(39), hevc(1)), HEVC)


def test_h264():
    """A key packet of H.264 is an IDR picture or has a recovery point of no frames; intra refresh is refused."""
    check_key(packet(b"\x06\x06\x01\x80\x80", b"\x41rest"), AVC)
    check_key(packet(b"\x65rest"), AVC)
    with pytest.raises(RecodeError, match="no whole key frames, but intra refresh over 2 frames"):
        check_key(packet(b"\x06\x06\x01\x60\x80", b"\x41rest"), AVC)


def test_pictures_to_which_no_other_refers():
    """Droppable pictures are those of HEVC's highest sub-layer, all of H.264, as FFmpeg knows them, and no others."""

    def picture(kind: int, layer: int) -> memoryview:
        return packet(hevc(35), bytes([kind << 1, layer]) + bytes(10))

    base = [picture(*each) for each in ((19, 1), (1, 1), (0, 1), (8, 1), (14, 1), (22, 1))]
    assert find_droppable(base, HEVC) == [False, False, True, True, True, False]
    assert find_droppable([*base, picture(2, 2), picture(3, 2)], HEVC) == [False] * 6 + [True, False]
    assert find_droppable([*base, packet(hevc(35), b"\2")], HEVC) == [False] * 7
    assert find_droppable(base, AVC) == [True] * 6
    assert find_droppable(base, TrackCodec("vp9")) == [False] * 6
    assert find_droppable(base, TrackCodec("hevc", b"\0\0\0\1" + HEVC.extradata[4:])) == [False] * 6
