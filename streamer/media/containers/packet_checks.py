"""Looks into packets without decoding: whether decoding may begin there, and whether frames are shown out of order.

Recoders check records with it (`recode.py`). Workers check whole videos, and find packets that need not be decoded
(`media/decode/`). The index asks it how far a codec reorders frames (`blocks.py`).

Files without composition times (no ctts) say only when frames are decoded. If the codec shows frames in another order,
the frame at a time is not the one that a full decode shows then. The order counts in slices decide: a frame is in its
place if no frame stored before it has a higher count, and none stored after it a lower one. Of the frames after it as
many are looked at as the codec may reorder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from streamer.errors import RecodeError
from streamer.media.containers.entries import TrackCodec
from streamer.media.containers.nal_units import (
    MAX_SET_BYTES,
    H264Sets,
    HevcSets,
    ParameterSets,
    has_lengths,
    length_bytes_of,
    split_units,
)

_SETS: dict[str, type[H264Sets | HevcSets]] = {"h264": H264Sets, "hevc": HevcSets}
# Start codes of frames, and the types of B-frames in them.
_MPEG4_FRAME = b"\0\0\1\xb6"
_MPEG2_FRAME = b"\0\0\1\0"
_MPEG = frozenset(["mpeg1video", "mpeg2video"])
_MPEG4_B = 2
_MPEG2_B = 3
# Types of NAL units in H.264 (ISO/IEC 14496-10, 7.4.1) and HEVC (ISO/IEC 23008-2, 7.4.2.2), and of a SEI message.
_SLICE = 1
_IDR = 5
_SEI = 6
_RECOVERY_POINT = 6
_HEVC_FIRST_KEY = 16
_HEVC_LAST_KEY = 23
_HEVC_LAST_FRAME = 31
_SEI_BYTES = 64


@lru_cache(maxsize=64)
def max_reorder(codec: TrackCodec) -> int:
    """Returns how many frames, at most, a stream stores before a frame and shows after it; 0 if it never reorders."""
    if codec.name == "mpeg4" or codec.name in _MPEG:
        return 1
    if codec.name not in _SETS:
        return 0
    try:
        return _SETS[codec.name](codec.extradata).max_reorder()
    except (ValueError, IndexError):
        return _SETS[codec.name](b"").max_reorder()


def shows_out_of_order(packets: Iterable[memoryview], codec: TrackCodec) -> bool:
    """Returns whether a frame is shown before one that is stored before it; also True if headers cannot be read.

    Args:
        packets: packets in the order stored, without gaps. The first one is a key packet.
        codec: codec of the packets.
    """
    if codec.name == "mpeg4":
        return any(_has_type(packet, _MPEG4_FRAME, offset=4, shift=6, wanted=_MPEG4_B) for packet in packets)
    if codec.name in _MPEG:
        return any(_has_type(packet, _MPEG2_FRAME, offset=5, shift=3, wanted=_MPEG2_B) for packet in packets)
    if codec.name not in _SETS:
        return False
    try:
        return _counts_back(packets, _SETS[codec.name](codec.extradata), codec)
    except (ValueError, IndexError):
        # Headers that cannot be read prove nothing.
        return True


def check_order(packets: Sequence[memoryview], pts: Sequence[int], codec: TrackCodec, gaps: Sequence[int] = ()) -> None:
    """Refuses packets whose times only ascend although their frames are shown in another order.

    Args:
        packets: packets in the order stored.
        pts: times of the packets, ticks.
        codec: codec of the packets.
        gaps: numbers of the packets before which others are left out.

    Raises:
        RecodeError: the times are those of decoding, or the headers of frames cannot be read.
    """
    if not max_reorder(codec) or any(later < time for time, later in pairwise(pts)):
        return
    for first, stop in pairwise([0, *gaps, len(packets)]):
        if shows_out_of_order(packets[first:stop], codec):
            raise RecodeError(
                "it has B-frames, which are shown in another order than they are stored, and no times at which they "
                "are shown (no ctts): encode it anew, or decode whole videos (VideoClip)"
            )


def _has_type(packet: memoryview, start_code: bytes, offset: int, shift: int, wanted: int) -> bool:
    """Returns whether a packet has a frame of a type.

    Args:
        packet: the packet.
        start_code: bytes with which a frame begins.
        offset: bytes from there to the byte with the type.
        shift: place of the lowest bit of the type in that byte.
        wanted: the type, in the three bits from there on.
    """
    content = bytes(packet)
    at = content.find(start_code)
    while at >= 0:
        if at + offset < len(content) and content[at + offset] >> shift & 7 == wanted:
            return True
        at = content.find(start_code, at + offset)
    return False


def _counts_back(packets: Iterable[memoryview], sets: ParameterSets, codec: TrackCodec) -> bool:
    """Returns whether the order count of a frame is lower than that of the frame stored before it.

    Raises:
        ValueError, IndexError: a header cannot be read.
    """
    length_bytes = length_bytes_of(codec)
    anchor: int | None = None
    highest: int | None = None
    for packet in packets:
        for unit in split_units(packet, length_bytes):
            frame = sets.take(bytes(unit[:MAX_SET_BYTES]))
            if frame is None:
                continue
            if frame.begins or anchor is None:
                anchor = frame.count
                highest = None
            half = frame.period // 2
            count = anchor + (frame.count - anchor + half - 1) % frame.period - (half - 1)
            if highest is not None and count < highest:
                return True
            highest = count
            if frame.is_anchor:
                anchor = count
            break
    return False


def check_key(packet: memoryview, codec: TrackCodec) -> None:
    """Refuses a packet that the file calls a key although decoding cannot begin with it, as with intra refresh.

    Raises:
        RecodeError: it has no whole key frame. Only packets of H.264 and HEVC with lengths are looked at.
    """
    if not has_lengths(codec):
        return
    if codec.name == "h264":
        for unit in split_units(packet, length_bytes_of(codec)):
            kind = unit[0] & 31
            if kind == _SEI and (frames := _recovery_frames(bytes(unit[:_SEI_BYTES]))):
                raise RecodeError(
                    f"it has no whole key frames, but intra refresh over {frames} frames: encode it with key frames"
                )
            if kind in {_SLICE, _IDR}:
                return
    else:
        for unit in split_units(packet, length_bytes_of(codec)):
            kind = unit[0] >> 1 & 63
            if _HEVC_FIRST_KEY <= kind <= _HEVC_LAST_KEY:
                return
            if kind <= _HEVC_LAST_FRAME:
                raise RecodeError(f"it has no whole key frames: a frame of type {kind} is called one")


def find_droppable(packets: Sequence[memoryview], codec: TrackCodec) -> list[bool]:
    """Returns for each packet whether a decoder may be told to drop it if no other frame refers to it.

    It is True for all packets of h264, because FFmpeg finds out itself whether others refer to a frame. Of hevc it is
    True for sub-layer non-reference frames of the highest sub-layer among these packets only: frames of higher ones
    may refer to those of lower ones (ISO/IEC 23008-2, 7.4.2.2, types 0, 2, ... 14), which FFmpeg does not check. For
    other codecs, and hevc with start codes, it is False.
    """
    # Other containers than mp4 and Matroska have start codes in place of lengths, and no version before them.
    if codec.name != "hevc" or not has_lengths(codec) or codec.extradata[0] != 1:
        return [codec.name == "h264"] * len(packets)
    length_bytes = length_bytes_of(codec)
    found = []
    for packet in packets:
        units = (unit for unit in split_units(packet, length_bytes) if len(unit) > 1)
        # A packet without a frame has the type and the layer of one that is needed.
        found.append(next(((unit[0] >> 1, unit[1] & 7) for unit in units if unit[0] >> 1 <= _HEVC_LAST_FRAME), (1, 7)))
    highest = max(layer for _, layer in found)
    return [kind < _HEVC_FIRST_KEY and kind % 2 == 0 and layer == highest for kind, layer in found]


def _recovery_frames(sei: bytes) -> int:
    """Returns recovery_frame_cnt of a SEI unit: how many frames later all are whole; 0 if the unit does not say it."""
    at = 1
    while at + 2 < len(sei):
        kind, at = _read_ff_coded(sei, at)
        size, at = _read_ff_coded(sei, at)
        if kind == _RECOVERY_POINT:
            # An Exp-Golomb number: as many bits follow its first one as zeros stand before it.
            bits = int.from_bytes(sei[at : at + 8].ljust(8, b"\0"), "big")
            zeros = 64 - bits.bit_length()
            return (bits >> max(0, 63 - 2 * zeros)) - 1
        at += size
    return 0


def _read_ff_coded(content: bytes, at: int) -> tuple[int, int]:
    """Reads a number in bytes, of which all but the last are 255 (H.264, 7.3.2.3.1); returns the place after it too."""
    total = 0
    while at < len(content) and content[at] == 255:
        total = total + 255
        at = at + 1
    return total + (content[at] if at < len(content) else 0), at + 1
