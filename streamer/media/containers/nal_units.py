"""Reads NAL units of H.264 and HEVC in mp4 and Matroska, where each has its length before it.

`packet_checks.py` uses it to see in which order frames are shown. Parameter sets and slice headers are parsed only as
far as that order needs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from streamer.media.containers.entries import TrackCodec

# The byte of avcC and hvcC that says how many bytes the length of a unit takes, and the least length of these boxes.
_LENGTH_AT = {"h264": 4, "hevc": 21}
_MIN_BYTES = {"h264": 7, "hevc": 23}
_USUAL_LENGTH_BYTES = 4
# Bounds on the depth of reordering and on the loops of a set, which the standards have, too.
MAX_REORDER = 16
_MAX_CPBS = 32
_MAX_ORDER_BITS = 16
MAX_SET_BYTES = 4096
_MAX_CYCLE = 255
# Slice headers are read up to the order count, which is within these bytes.
_HEADER_BYTES = 64

_H264_SPS = 7
_H264_PPS = 8
_H264_SLICES = frozenset([1, 2, 5])
_H264_IDR = 5
_SLICE_B = 1
_SLICE_TYPES = 5
_WITH_CHROMA = frozenset([44, 83, 86, 100, 110, 118, 122, 128, 134, 135, 138, 139, 244])
# Profiles with intra frames alone where constraint_set3_flag is set.
_INTRA_PROFILES = frozenset([44, 86, 100, 110, 122, 244])
_CONSTRAINT_SET3 = 0x10
_EXTENDED_SAR = 255
_YUV444 = 3
_COUNTED_BY_CYCLE = 1
_COUNTED_BY_NUMBER = 2

_HEVC_SPS = 33
_HEVC_PPS = 34
_HEVC_LAST_LEADING = 9
_HEVC_LAST_SUB_LAYER = 14
_HEVC_FIRST_LEADING = 6
_HEVC_FIRST_KEY = 16
_HEVC_LAST_BLA = 18
_HEVC_IDR = frozenset([19, 20])
_HEVC_LAST_KEY = 21
_HEVC_LAST_RESERVED_KEY = 23


def has_lengths(codec: TrackCodec) -> bool:
    """Returns whether NAL units have their lengths before them, not start codes as in other containers."""
    return codec.name in _MIN_BYTES and len(codec.extradata) >= _MIN_BYTES[codec.name]


def length_bytes_of(codec: TrackCodec) -> int:
    """Returns how many bytes the length before a NAL unit takes, 1 to 4; 4 if the codec parameters do not say it."""
    return (codec.extradata[_LENGTH_AT[codec.name]] & 3) + 1 if has_lengths(codec) else _USUAL_LENGTH_BYTES


def split_units(packet: memoryview, length_bytes: int) -> Iterator[memoryview]:
    """Yields the NAL units of a packet that are not empty; the last one ends with the packet, if it is cut off."""
    at = 0
    while at + length_bytes < len(packet):
        size = int.from_bytes(packet[at : at + length_bytes], "big")
        at += length_bytes
        if size:
            yield packet[at : at + size]
        at += size


class CodedFrame(msgspec.Struct, frozen=True):
    """The facts about the order of frames that the first slice of a packet tells.

    Attributes:
        count: low bits of the order count. Frames are shown in the order of their counts.
        period: the number at which these bits begin at 0 again, a power of two.
        begins: whether order counts begin anew with the frame.
        is_anchor: whether the high bits of the next count follow from the count of this frame.
    """

    count: int
    period: int
    begins: bool
    is_anchor: bool


class ParameterSets(Protocol):
    """The parameter sets of a stream so far, of H.264 or of HEVC."""

    def take(self, unit: bytes) -> CodedFrame | None:
        """Reads a NAL unit: keeps a parameter set, returns the frame of a first slice, ignores other units.

        Raises:
            ValueError: the unit is cut off, or (HEVC) refers to a set that is not known.
        """
        ...

    def max_reorder(self) -> int:
        """Returns how many frames, at most, are stored before a frame and shown after it."""
        ...


class _Bits:
    """Reads the bits of a NAL unit one after the other. Its methods raise ValueError where the unit ends too early."""

    def __init__(self, unit: bytes) -> None:
        content = unit[:MAX_SET_BYTES].replace(b"\0\0\3", b"\0\0")
        self._bits = int.from_bytes(content, "big")
        self._left = 8 * len(content)

    def read(self, count: int) -> int:
        """Reads a number of so many bits."""
        self._left -= count
        if self._left < 0:
            raise ValueError("a NAL unit is cut off")
        return self._bits >> self._left & (1 << count) - 1

    def read_golomb(self) -> int:
        """Reads an Exp-Golomb number: as many zeros as bits follow the first one."""
        rest = self._bits & (1 << self._left) - 1
        zeros = self._left - rest.bit_length()
        return self.read(2 * zeros + 1) - 1

    def read_signed(self) -> int:
        """Reads a signed Exp-Golomb number."""
        number = self.read_golomb()
        return (number + 1) // 2 if number % 2 else -number // 2

    def read_order_bits(self) -> int:
        """Reads the number of bits of order counts."""
        count = self.read_golomb() + 4
        if count > _MAX_ORDER_BITS:
            raise ValueError(f"order counts of {count} bits")
        return count

    def skip_golombs(self, count: int) -> None:
        """Reads so many Exp-Golomb numbers."""
        for _ in range(count):
            self.read_golomb()


class _H264Sequence(msgspec.Struct, frozen=True):
    """The facts of a sequence parameter set that reading slices of H.264 needs; see ISO/IEC 14496-10, 7.3.2.1.1.

    Attributes:
        has_colour_planes, has_fields: whether slices name a colour plane, and whether they say if they are of a field.
        number_bits, order_bits: bits of the frame number and of the order count in a slice.
        order_type: way in which order counts are stored (pic_order_cnt_type).
        max_reorder: the most frames that are stored before a frame and shown after it.
    """

    has_colour_planes: bool
    number_bits: int
    order_type: int
    order_bits: int
    has_fields: bool
    max_reorder: int


class H264Sets:
    """Keeps the parameter sets of a stream of H.264.

    Args:
        extradata: body of the box avcC. There are no sets in other bytes.

    Raises:
        ValueError, IndexError: a parameter set is cut off.
    """

    def __init__(self, extradata: bytes) -> None:
        self._sequences: dict[int, _H264Sequence] = {}
        self._sequence_of: dict[int, int] = {}
        if len(extradata) < _MIN_BYTES["h264"] or extradata[0] != 1:
            return
        at = 6
        for _ in range(extradata[5] & 31):
            at = self._take_at(extradata, at)
        count = extradata[at] if at < len(extradata) else 0
        at += 1
        for _ in range(count):
            at = self._take_at(extradata, at)

    def _take_at(self, extradata: bytes, at: int) -> int:
        """Reads the parameter set at a byte of avcC; returns the byte behind it."""
        size = int.from_bytes(extradata[at : at + 2], "big")
        if size:
            self.take(extradata[at + 2 : at + 2 + size])
        return at + 2 + size

    def max_reorder(self) -> int:
        """Returns how many frames, at most, are stored before a frame and shown after it."""
        return max((each.max_reorder for each in self._sequences.values()), default=MAX_REORDER)

    def take(self, unit: bytes) -> CodedFrame | None:
        """Reads a NAL unit; see `ParameterSets`."""
        kind = unit[0] & 31
        if kind == _H264_SPS:
            self._take_sequence(_Bits(unit[1:]))
        elif kind == _H264_PPS:
            bits = _Bits(unit[1:_HEADER_BYTES])
            number = bits.read_golomb()
            self._sequence_of[number] = bits.read_golomb()
        elif kind in _H264_SLICES:
            return self._read_slice(_Bits(unit[1:_HEADER_BYTES]), kind == _H264_IDR, bool(unit[0] & 0x60))
        return None

    def _read_slice(self, bits: _Bits, is_idr: bool, is_reference: bool) -> CodedFrame:
        """Reads the header of a slice of H.264 behind the byte of its type; raises ValueError if it is cut off."""
        bits.read_golomb()
        is_b = bits.read_golomb() % _SLICE_TYPES == _SLICE_B
        sequence = self._sequences.get(self._sequence_of.get(bits.read_golomb(), -1))
        if sequence is None:
            # The type alone is known without parameters: a frame of B slices counts back.
            return CodedFrame(count=0 if is_b else 1, period=4, begins=is_idr, is_anchor=False)
        if sequence.order_type == _COUNTED_BY_NUMBER:
            return CodedFrame(count=0, period=2, begins=is_idr, is_anchor=False)
        if sequence.order_type == _COUNTED_BY_CYCLE:
            # Offsets of a cycle are not read: frames that others refer to ascend, others may be shown before them.
            return CodedFrame(count=int(is_reference), period=4, begins=is_idr, is_anchor=False)
        if sequence.has_colour_planes:
            bits.read(2)
        bits.read(sequence.number_bits)
        if sequence.has_fields and bits.read(1):
            bits.read(1)
        if is_idr:
            bits.read_golomb()
        count = bits.read(sequence.order_bits)
        return CodedFrame(count, period=1 << sequence.order_bits, begins=is_idr, is_anchor=is_reference)

    def _take_sequence(self, bits: _Bits) -> None:
        """Reads and keeps a sequence parameter set of H.264; raises ValueError if it is cut off."""
        profile = bits.read(8)
        constraints = bits.read(8)
        is_intra = profile in _INTRA_PROFILES and bool(constraints & _CONSTRAINT_SET3)
        bits.read(8)
        number = bits.read_golomb()
        has_colour_planes = False
        if profile in _WITH_CHROMA:
            chroma = bits.read_golomb()
            has_colour_planes = chroma == _YUV444 and bool(bits.read(1))
            bits.skip_golombs(2)
            bits.read(1)
            if bits.read(1):
                _skip_scaling_lists(bits, 12 if chroma == _YUV444 else 8)
        number_bits = bits.read_golomb() + 4
        order_type = bits.read_golomb()
        order_bits = 0
        if order_type == 0:
            order_bits = bits.read_order_bits()
        elif order_type == _COUNTED_BY_CYCLE:
            bits.read(1)
            bits.skip_golombs(2)
            bits.skip_golombs(min(bits.read_golomb(), _MAX_CYCLE))
        bits.read_golomb()
        bits.read(1)
        bits.skip_golombs(2)
        has_fields = not bits.read(1)
        if has_fields:
            bits.read(1)
        bits.read(1)
        if bits.read(1):
            bits.skip_golombs(4)
        max_reorder = 0 if is_intra or order_type == _COUNTED_BY_NUMBER else MAX_REORDER
        if bits.read(1):
            max_reorder = min(max_reorder, _read_usability(bits))
        self._sequences[number] = _H264Sequence(
            has_colour_planes=has_colour_planes,
            number_bits=number_bits,
            order_type=order_type,
            order_bits=order_bits,
            has_fields=has_fields,
            max_reorder=max_reorder,
        )


def _skip_scaling_lists(bits: _Bits, count: int) -> None:
    """Reads over `count` scaling lists of H.264 (7.3.2.1.1.1), which the order of frames does not need."""
    for number in range(count):
        if not bits.read(1):
            continue
        last = following = 8
        for _ in range(16 if number < 6 else 64):
            if following:
                following = (last + bits.read_signed()) & 255
            last = following or last


def _read_usability(bits: _Bits) -> int:
    """Reads the VUI of H.264; returns max_num_reorder_frames, or the most there may be where it is not said."""
    if bits.read(1) and bits.read(8) == _EXTENDED_SAR:
        bits.read(32)
    if bits.read(1):
        bits.read(1)
    if bits.read(1):
        bits.read(4)
        if bits.read(1):
            bits.read(24)
    if bits.read(1):
        bits.skip_golombs(2)
    if bits.read(1):
        bits.read(65)
    has_buffers = False
    for _ in range(2):
        if bits.read(1):
            has_buffers = True
            count = bits.read_golomb() + 1
            bits.read(8)
            for _ in range(min(count, _MAX_CPBS)):
                bits.skip_golombs(2)
                bits.read(1)
            bits.read(20)
    if has_buffers:
        bits.read(1)
    bits.read(1)
    if not bits.read(1):
        return MAX_REORDER
    bits.read(1)
    bits.skip_golombs(4)
    return bits.read_golomb()


class _HevcSequence(msgspec.Struct, frozen=True):
    """The facts of a sequence parameter set that reading slices of HEVC needs, as `_H264Sequence` has them."""

    has_colour_planes: bool
    order_bits: int
    max_reorder: int


class _HevcImages(msgspec.Struct, frozen=True):
    """The facts of a picture parameter set that reading slices of HEVC needs; see ISO/IEC 23008-2, 7.3.2.3.

    Attributes:
        sequence: number of its sequence parameter set.
        has_output_flag: whether slices have pic_output_flag.
        extra_bits: number of reserved bits in a slice.
    """

    sequence: int
    has_output_flag: bool
    extra_bits: int


class HevcSets:
    """Keeps the parameter sets of a stream of HEVC; raises ValueError if one is cut off.

    Args:
        extradata: body of the box hvcC. There are no sets in other bytes.
    """

    def __init__(self, extradata: bytes) -> None:
        self._sequences: dict[int, _HevcSequence] = {}
        self._images: dict[int, _HevcImages] = {}
        if len(extradata) < _MIN_BYTES["hevc"] or extradata[0] != 1:
            return
        # The NAL units are in the box hvcC.
        at = _MIN_BYTES["hevc"]
        for _ in range(extradata[at - 1]):
            count = int.from_bytes(extradata[at + 1 : at + 3], "big")
            at += 3
            for _ in range(count):
                size = int.from_bytes(extradata[at : at + 2], "big")
                if at + 2 + size > len(extradata):
                    return
                self.take(extradata[at + 2 : at + 2 + size])
                at += 2 + size

    def max_reorder(self) -> int:
        """Returns how many frames, at most, are stored before a frame and shown after it."""
        return max((each.max_reorder for each in self._sequences.values()), default=MAX_REORDER)

    def take(self, unit: bytes) -> CodedFrame | None:
        """Reads a NAL unit; see `ParameterSets`."""
        # Units of further layers, as those of a second eye, are no frames of their own.
        if len(unit) < 2 or unit[0] & 1 or unit[1] >> 3:
            return None
        kind = unit[0] >> 1
        if kind == _HEVC_SPS:
            self._take_sequence(_Bits(unit[2:]))
        elif kind == _HEVC_PPS:
            bits = _Bits(unit[2:_HEADER_BYTES])
            number = bits.read_golomb()
            sequence = bits.read_golomb()
            bits.read(1)
            self._images[number] = _HevcImages(sequence, has_output_flag=bool(bits.read(1)), extra_bits=bits.read(3))
        elif kind <= _HEVC_LAST_LEADING or _HEVC_FIRST_KEY <= kind <= _HEVC_LAST_KEY:
            return self._read_slice(_Bits(unit[2:_HEADER_BYTES]), kind, is_lowest=unit[1] & 7 == 1)
        return None

    def _read_slice(self, bits: _Bits, kind: int, *, is_lowest: bool) -> CodedFrame | None:
        """Reads the header of a slice of HEVC behind its type; returns None if it is not the first slice of its frame.

        Raises:
            ValueError: it is cut off, or refers to a set that is not known.
        """
        if not bits.read(1):
            return None
        if _HEVC_FIRST_KEY <= kind <= _HEVC_LAST_RESERVED_KEY:
            bits.read(1)
        images = self._images.get(bits.read_golomb())
        sequence = self._sequences.get(images.sequence) if images else None
        if images is None or sequence is None:
            raise ValueError("a slice refers to parameter sets that are not there")
        if kind in _HEVC_IDR:
            return CodedFrame(count=0, period=1 << sequence.order_bits, begins=True, is_anchor=True)
        bits.read(images.extra_bits)
        bits.read_golomb()
        if images.has_output_flag:
            bits.read(1)
        if sequence.has_colour_planes:
            bits.read(2)
        is_unused = kind <= _HEVC_LAST_SUB_LAYER and kind % 2 == 0
        is_leading = _HEVC_FIRST_LEADING <= kind <= _HEVC_LAST_LEADING
        return CodedFrame(
            count=bits.read(sequence.order_bits),
            period=1 << sequence.order_bits,
            begins=_HEVC_FIRST_KEY <= kind <= _HEVC_LAST_BLA,
            is_anchor=is_lowest and not is_unused and not is_leading,
        )

    def _take_sequence(self, bits: _Bits) -> None:
        """Reads and keeps a sequence parameter set of HEVC; raises ValueError if it is cut off."""
        bits.read(4)
        sub_layers = bits.read(3)
        bits.read(1)
        bits.read(96)
        if sub_layers:
            flags = [(bits.read(1), bits.read(1)) for _ in range(8)]
            for has_profile, has_level in flags[:sub_layers]:
                bits.read(88 * has_profile + 8 * has_level)
        number = bits.read_golomb()
        has_colour_planes = bits.read_golomb() == _YUV444 and bool(bits.read(1))
        bits.skip_golombs(2)
        if bits.read(1):
            bits.skip_golombs(4)
        bits.skip_golombs(2)
        order_bits = bits.read_order_bits()
        max_reorder = 0
        for _ in range(sub_layers + 1 if bits.read(1) else 1):
            bits.read_golomb()
            max_reorder = bits.read_golomb()
            bits.read_golomb()
        self._sequences[number] = _HevcSequence(has_colour_planes, order_bits, min(max_reorder, MAX_REORDER))
