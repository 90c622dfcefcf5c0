"""What NAL units say of packets, without decoding: whether decoding may begin there, whether others refer to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from streamer.errors import RecodeError
from streamer.media.containers.entries import Codec

_H264_LEAST_BYTES = 7
_HEVC_LEAST_BYTES = 23
# Types of NAL units: h264 (ISO/IEC 14496-10, 7.4.1), hevc (ISO/IEC 23008-2, 7.4.2.2), and of SEI messages.
_SLICE = 1
_IDR = 5
_SEI = 6
_RECOVERY_POINT = 6
_HEVC_FIRST_KEY = 16
_HEVC_LAST_KEY = 23
_HEVC_LAST_PICTURE = 31
_SEI_BYTES = 64
# What is before the picture in a packet of MPEG-4.
_HEAD_BYTES = 1024
# Slices of B of h264, of as many types twice; pictures of MPEG-4, whose two highest bits are 2 of B and 3 of sprites.
_SLICE_B = 1
_SLICE_TYPES = 5
_VOP = b"\0\0\1\xb6"
_VOP_S = 0xC0


def check_key(packet: memoryview, codec: Codec) -> None:
    """Refuses a key packet after which pictures are not whole at once (intra refresh), which mp4 calls a key, too.

    Raises:
        RecodeError: it is one.
    """
    setup = codec.extradata
    if codec.name == "h264" and len(setup) >= _H264_LEAST_BYTES:
        for unit in _units(packet, (setup[4] & 3) + 1):
            kind = unit[0] & 31
            if kind == _SEI and (frames := _recovery_frames(bytes(unit[:_SEI_BYTES]))):
                raise RecodeError(
                    f"it has no whole key frames, but intra refresh over {frames} frames: encode it with key frames"
                )
            if kind in {_SLICE, _IDR}:
                return
    elif codec.name == "hevc" and len(setup) >= _HEVC_LEAST_BYTES:
        for unit in _units(packet, (setup[21] & 3) + 1):
            kind = unit[0] >> 1 & 63
            if _HEVC_FIRST_KEY <= kind <= _HEVC_LAST_KEY:
                return
            if kind <= _HEVC_LAST_PICTURE:
                raise RecodeError(f"it has no whole key frames: a picture of type {kind} is called one")


def check_order(packets: Sequence[memoryview], pts: Sequence[int], codec: Codec) -> None:
    """Refuses packets with B-frames whose times only ascend: they are times of decoding, not of showing.

    Raises:
        RecodeError: they are such.
    """
    if codec.name not in {"h264", "mpeg4"} or any(later < time for time, later in pairwise(pts)):
        return
    length_bytes = (codec.extradata[4] & 3) + 1 if len(codec.extradata) >= _H264_LEAST_BYTES else 4
    if any(_is_mpeg4_b(each) if codec.name == "mpeg4" else _is_h264_b(each, length_bytes) for each in packets):
        raise RecodeError(
            "it has B-frames, which are shown in another order than they are stored, and no times at which they are "
            "shown (no ctts): encode it anew, or decode whole films (VideoClip)"
        )


def _is_mpeg4_b(packet: memoryview) -> bool:
    content = bytes(packet[:_HEAD_BYTES])
    at = content.find(_VOP)
    return at >= 0 and content[at + len(_VOP) : at + len(_VOP) + 1] >= b"\x80" and content[at + len(_VOP)] < _VOP_S


def _is_h264_b(packet: memoryview, length_bytes: int) -> bool:
    """Whether the first slice of a packet of h264 is one of B."""
    slices = (unit for unit in _units(packet, length_bytes) if unit[0] & 31 in {_SLICE, _IDR})
    if (unit := next(slices, None)) is None:
        return False
    # Behind the number of its first macroblock, Exp-Golomb both.
    bits = int.from_bytes(bytes(unit[1:9]).ljust(8, b"\0"), "big")
    kind, _ = _golomb(bits, _golomb(bits, 0)[1])
    return kind % _SLICE_TYPES == _SLICE_B


def _golomb(bits: int, at: int) -> tuple[int, int]:
    """Reads an Exp-Golomb number, as many zeros as bits follow the first one; returns it and the place behind it."""
    left = bits << at & (1 << 64) - 1
    zeros = 64 - left.bit_length()
    return (left >> max(0, 63 - 2 * zeros)) - 1, at + 2 * zeros + 1


def unreferenced(packets: Sequence[memoryview], codec: Codec) -> list[bool]:
    """Returns which packets may be ones to which no other of these refers; FFmpeg itself finds out for those of h264.

    Of hevc sub-layer non-reference pictures of the highest sub-layer: pictures of higher ones may refer to others
    (ISO/IEC 23008-2, 7.4.2.2, types 0, 2, ... 14), which FFmpeg does not check.
    """
    setup = codec.extradata
    # Other containers than mp4 and Matroska have start codes in place of lengths, and no version before them.
    if codec.name != "hevc" or len(setup) < _HEVC_LEAST_BYTES or setup[0] != 1:
        return [codec.name == "h264"] * len(packets)
    length_bytes = (setup[21] & 3) + 1
    found = [_picture(packet, length_bytes) for packet in packets]
    highest = max(layer for _, layer in found)
    return [kind < _HEVC_FIRST_KEY and kind % 2 == 0 and layer == highest for kind, layer in found]


def _picture(packet: memoryview, length_bytes: int) -> tuple[int, int]:
    """Type and temporal id plus 1 of a picture of hevc; of a packet without one, those of one that is needed."""
    units = (unit for unit in _units(packet, length_bytes) if len(unit) > 1)
    return next(((unit[0] >> 1, unit[1] & 7) for unit in units if unit[0] >> 1 <= _HEVC_LAST_PICTURE), (1, 7))


def _units(packet: memoryview, length_bytes: int) -> Iterator[memoryview]:
    at = 0
    while at + length_bytes < len(packet):
        size = int.from_bytes(packet[at : at + length_bytes], "big")
        at += length_bytes
        if size:
            yield packet[at : at + size]
        at += size


def _recovery_frames(sei: bytes) -> int:
    """recovery_frame_cnt of a SEI unit; 0 if it has none."""
    at = 1
    while at + 2 < len(sei):
        kind, at = _sum(sei, at)
        size, at = _sum(sei, at)
        if kind == _RECOVERY_POINT:
            return _golomb(int.from_bytes(sei[at : at + 8].ljust(8, b"\0"), "big"), 0)[0]
        at += size
    return 0


def _sum(content: bytes, at: int) -> tuple[int, int]:
    """A number in bytes, of which all but the last are 255; and the place behind it."""
    total = 0
    while at < len(content) and content[at] == 255:
        total = total + 255
        at = at + 1
    return total + (content[at] if at < len(content) else 0), at + 1
