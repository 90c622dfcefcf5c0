"""Reads fields in the layouts of other libraries: arrays with short heads, lists, pixels, numbers in digits.

Other layouts raise ValueError, ArithmeticError (decimals), struct.error or RecursionError (nested values).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.decode.arrays import Content, decode_npy, usable
from streamer.decode.images import Stored, decode_image
from streamer.decode.values import decode_json, decode_text
from streamer.tables.litdata.leaves import NUMPY_DTYPES, TORCH_DTYPES, dtype_of
from streamer.tables.tfrecord_example import STRINGS, byte_strings

Array = NDArray[Any]
Decoder = Callable[[memoryview], object]

_U32 = struct.Struct("<I")
_MDS_DTYPES = {
    **{8 * size: f"<u{size}" for size in (1, 2, 4, 8)},
    **{8 * size + 1: f"<i{size}" for size in (1, 2, 4, 8)},
    **{8 * size + 2: f"<f{size}" for size in (2, 4, 8)},
}


def decode_mds_array(content: memoryview, dtype: str = "") -> Array:
    """Reads an array of MDS: dtype (unless it is known), axes and width of lengths in a byte, lengths, numbers."""
    position = 0
    if not dtype:
        if (known := _MDS_DTYPES.get(content[0])) is None:
            raise ValueError(f"dtype {content[0]} is not one of MDS")
        dtype = known
        position = 1
    axes = content[position] >> 2
    width = 1 << (content[position] & 3)
    end = position + 1 + axes * width
    shape = np.frombuffer(content[position + 1 : end], f"<u{width}", axes)
    return _array(content[end:], dtype, shape.tolist())


def decode_litdata_array(content: memoryview) -> Array:
    """Reads a numpy array of LitData: uint32 dtype, axes and lengths, numbers."""
    return _make_array(content, "<", NUMPY_DTYPES)


def decode_litdata_tensor(content: memoryview) -> Array:
    """Reads a tensor of LitData: as its arrays; since version 0.2.70 with a big-endian head."""
    # The number of a dtype and that of axes are below 256.
    return _make_array(content, "<" if not any(content[1:4]) and not any(content[5:8]) else ">", TORCH_DTYPES)


def decode_pixels(content: memoryview) -> Stored:
    """Reads an image that Pillow gave as pixels: uint32 width, height and length of the mode, mode, pixels.

    Returns:
        uint8, height x width x RGB, as `decode_image` returns encoded images; for modes with more than 8 bits uint16,
        int32 or float32, height x width, unchanged.
    """
    width, height, length = struct.unpack_from("<III", content)
    mode = str(content[12 : 12 + length], "ascii")
    pixels = content[12 + length :]
    if mode == "RGB":
        return _array(pixels, "u1", [height, width, 3])
    if mode == "L":
        return np.repeat(_array(pixels, "u1", [height, width, 1]), 3, axis=2)
    if width * height > len(pixels) * 8:
        raise ValueError(f"{len(pixels)} bytes are too few for {width} x {height} pixels")
    from PIL import Image

    opened = Image.frombytes(mode, (width, height), bytes(pixels))
    found = np.array(opened if mode.startswith(("I", "F")) else opened.convert("RGB"))
    return found.astype(found.dtype.newbyteorder("="), copy=False)


def decode_parts(content: memoryview, decode: Decoder, head: int) -> list[object]:
    """Reads a list: `head` ignored bytes, uint32 number of parts, uint32 length of each, the parts."""
    (count,) = _U32.unpack_from(content, head)
    position = head + 4 + 4 * count
    lengths = np.frombuffer(content[head + 4 : position], "<u4", count).tolist()
    if position + sum(lengths) != len(content):
        raise ValueError(f"{count} parts end at byte {position + sum(lengths)}, there are {len(content)} bytes")
    found = []
    for length in lengths:
        found.append(decode(content[position : position + length]))
        position += length
    return found


def decode_integer(content: Content) -> int:
    """Reads an integer in digits."""
    return int(bytes(content))


def decode_float(content: Content) -> float:
    """Reads a number in digits."""
    return float(bytes(content))


def decode_decimal(content: Content) -> Decimal:
    """Reads a decimal number in digits."""
    return Decimal(str(content, "ascii"))


def decode_nested(content: memoryview) -> object:
    """Reads a list or dict of LitData's: a byte says which, numbers and texts without JSON; before 0.2.70 JSON."""
    if not content or content[0] > _Nested.LARGEST_TAG:
        return msgspec.json.decode(content)
    nested = _Nested(content)
    value = nested.value()
    if nested.position != len(content):
        raise ValueError(f"ends at byte {nested.position}, there are {len(content)}")
    return value


def decode_value(content: memoryview) -> object:
    """Reads a nested value of LitData's Arrow chunks as the recoder wrote it: a byte says how."""
    tag = bytes(content[:1])
    rest = content[1:]
    if tag in {b"i", b"f"}:
        numbers: list[object] = np.frombuffer(rest, f"<{tag.decode()}8").tolist()
        return numbers
    if tag != b"m":
        raise ValueError(f"tag {tag!r} has no meaning")
    return msgspec.msgpack.decode(rest)


class _Nested:
    """Reads one value after the other."""

    LARGEST_TAG = 0x20

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self.position = 0

    def value(self) -> object:
        tag = self._byte()
        if (read := _TAGS.get(tag)) is None:
            raise ValueError(f"tag {tag} at byte {self.position - 1} has no meaning")
        return read(self)

    def json(self) -> object:
        return msgspec.json.decode(self._take(self._count()))

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self._count())]

    def numbers(self, dtype: str) -> list[object]:
        found: list[object] = np.frombuffer(self._take(8 * self._count()), dtype).tolist()
        return found

    def flags(self) -> list[bool]:
        return [byte != 0 for byte in self._take(self._count())]

    def mapping(self) -> dict[str, object]:
        return {self.text(): self.value() for _ in range(self._count())}

    def rows(self) -> list[dict[str, object]]:
        rows = self._count()
        count = self._count()
        names = [self.text() for _ in range(count)]
        # A value takes at least one byte; rows without columns take none, and are never written.
        if rows > len(self._content):
            raise ValueError(f"{rows} rows in {len(self._content)} bytes")
        return [{name: self.value() for name in names} for _ in range(rows)]

    def text(self) -> str:
        return str(self._take(self._count()), "utf-8")

    def number(self, layout: str) -> object:
        return struct.unpack(layout, self._take(8))[0]

    def flag(self) -> bool:
        return self._byte() != 0

    def _count(self) -> int:
        count: int = _U32.unpack(self._take(4))[0]
        return count

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, count: int) -> memoryview:
        taken = self._content[self.position : self.position + count]
        if len(taken) != count:
            raise ValueError(f"{count} bytes from byte {self.position}, there are {len(self._content)}")
        self.position += count
        return taken


# Codes above 15 belong to the fields of rows.
_TAGS: dict[int, Callable[[_Nested], object]] = {
    0: _Nested.json,
    1: _Nested.texts,
    2: partial(_Nested.numbers, dtype="<i8"),
    3: partial(_Nested.numbers, dtype="<f8"),
    4: _Nested.flags,
    5: _Nested.mapping,
    6: _Nested.rows,
    **dict.fromkeys([7, 0x11], _Nested.text),
    **dict.fromkeys([8, 0x12], partial(_Nested.number, layout="<q")),
    **dict.fromkeys([9, 0x13], partial(_Nested.number, layout="<d")),
    **dict.fromkeys([10, 0x14], _Nested.flag),
    **dict.fromkeys([11, 0x10], lambda nested: None),
}


def find_decoder(kind: str) -> Decoder | None:
    """Returns the decoder of a kind of another library, or None; see `streamer.decode.dispatch.ELSEWHERE`."""
    name, _, inner = kind.partition(":")
    if name == "mds-ndarray":
        return partial(decode_mds_array, dtype=inner)
    if name == "mds-list" and inner in _PICTURES:
        return partial(decode_parts, decode=_PICTURES[inner], head=4)
    if kind.startswith(STRINGS):
        decode = _TFRECORD_VALUES.get(inner)
        return None if decode is None else lambda content: [decode(value) for value in byte_strings(content)]
    return _NAMED.get(kind)


_PICTURES: dict[str, Decoder] = {"jpg": decode_image, "png": decode_image, "pil": decode_pixels}
_TFRECORD_VALUES: dict[str, Decoder] = {
    "bytes": bytes,
    "image": decode_image,
    "json": decode_json,
    "npy": decode_npy,
    "txt": decode_text,
}
_NAMED: dict[str, Decoder] = {
    "pil": decode_pixels,
    "jpeg_array": partial(decode_parts, decode=decode_image, head=0),
    "int-text": decode_integer,
    "float-text": decode_float,
    "decimal-text": decode_decimal,
    "litdata-numpy": decode_litdata_array,
    "litdata-tensor": decode_litdata_tensor,
    "litdata-json": decode_nested,
    "litdata-value": decode_value,
}


def _make_array(content: memoryview, order: str, dtypes: tuple[str | None, ...]) -> Array:
    number, axes = struct.unpack_from(f"{order}II", content)
    dtype = dtype_of(dtypes, number)
    shape = np.frombuffer(content[8 : 8 + 4 * axes], f"{order}u4", axes)
    return _array(content[8 + 4 * axes :], dtype, shape.tolist())


def _array(content: memoryview, dtype: str, shape: list[int]) -> Array:
    kind = np.dtype(dtype)
    if math.prod(shape) * kind.itemsize != len(content):
        raise ValueError(f"{len(content)} bytes are not a {dtype} of shape {tuple(shape)}")
    return usable(np.frombuffer(content, kind).reshape(shape))
