"""What NAL units say of packets, without decoding: whether decoding may begin there, whether others refer to it."""

from __future__ import annotations

from collections.abc import Sequence

from streamer.errors import RecodeError
from streamer.media.containers.entries import TrackCodec
from streamer.media.containers.packets.nal_units import has_lengths, length_bytes_of, split_units

# Types of NAL units: h264 (ISO/IEC 14496-10, 7.4.1), hevc (ISO/IEC 23008-2, 7.4.2.2), and of SEI messages.
_SLICE = 1
_IDR = 5
_SEI = 6
_RECOVERY_POINT = 6
_HEVC_FIRST_KEY = 16
_HEVC_LAST_KEY = 23
_HEVC_LAST_FRAME = 31
_SEI_BYTES = 64


def check_key(packet: memoryview, codec: TrackCodec) -> None:
    """Refuses a key packet after which frames are not whole at once (intra refresh), which mp4 calls a key, too.

    Raises:
        RecodeError: it is one.
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


def _golomb(bits: int, at: int) -> tuple[int, int]:
    """Reads an Exp-Golomb number, as many zeros as bits follow the first one; returns it and the place behind it."""
    left = bits << at & (1 << 64) - 1
    zeros = 64 - left.bit_length()
    return (left >> max(0, 63 - 2 * zeros)) - 1, at + 2 * zeros + 1


def find_droppable(packets: Sequence[memoryview], codec: TrackCodec) -> list[bool]:
    """Returns which packets may be ones to which no other of these refers; FFmpeg itself finds out for those of h264.

    Of hevc sub-layer non-reference frames of the highest sub-layer: frames of higher ones may refer to others
    (ISO/IEC 23008-2, 7.4.2.2, types 0, 2, ... 14), which FFmpeg does not check.
    """
    # Other containers than mp4 and Matroska have start codes in place of lengths, and no version before them.
    if codec.name != "hevc" or not has_lengths(codec) or codec.extradata[0] != 1:
        return [codec.name == "h264"] * len(packets)
    length_bytes = length_bytes_of(codec)
    found = [_parse_frame(packet, length_bytes) for packet in packets]
    highest = max(layer for _, layer in found)
    return [kind < _HEVC_FIRST_KEY and kind % 2 == 0 and layer == highest for kind, layer in found]


def _parse_frame(packet: memoryview, length_bytes: int) -> tuple[int, int]:
    """Type and temporal id plus 1 of a frame of hevc; of a packet without one, those of one that is needed."""
    units = (unit for unit in split_units(packet, length_bytes) if len(unit) > 1)
    return next(((unit[0] >> 1, unit[1] & 7) for unit in units if unit[0] >> 1 <= _HEVC_LAST_FRAME), (1, 7))


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
