"""Decodes fields of MDS, LitData and TFRecord that are written in the layouts of these libraries.

`decode/dispatch.py` imports this file in workers, and calls `find_decoder` for kinds of fields that it does not know.
Such fields are arrays with short heads, lists, pixels, and numbers in digits. For other bytes the decoders raise
ValueError, IndexError, ArithmeticError (decimals), struct.error or RecursionError (nested values), and those of images
what `decode_image` and Pillow raise, also a ConfigError if they are not installed.
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

from streamer.base.extras import require_extra
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
    """Decodes an array of MDS, a field of kind "mds-ndarray".

    The bytes are: number of the dtype (one byte), number of axes and width of lengths (together one byte), length of
    each axis, items. With `dtype`, the first byte is missing.
    """
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
    """Decodes a numpy array of LitData: uint32 number of the dtype, of axes, and length of each axis, then items."""
    return _make_array(content, "<", NUMPY_DTYPES)


def decode_litdata_tensor(content: memoryview) -> Array:
    """Decodes a tensor of LitData: as an array of LitData, but since version 0.2.70 with a big-endian head."""
    # The numbers of dtype and axes are below 256, so their zero bytes tell the order.
    return _make_array(content, "<" if not any(content[1:4]) and not any(content[5:8]) else ">", TORCH_DTYPES)


def decode_pixels(content: memoryview) -> Stored:
    """Decodes an image of Pillow's pixels: uint32 width, height and length of the mode, then mode, pixels.

    Returns:
        uint8, height x width x RGB, as `decode_image` returns encoded images. Modes with more than 8 bits per channel
        (I, F) are returned as uint16, int32 or float32, height x width, unchanged.
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
    with require_extra("decoding images", field="decode"):
        from PIL import Image
    opened = Image.frombytes(mode, (width, height), bytes(pixels))
    found = np.array(opened if mode.startswith(("I", "F")) else opened.convert("RGB"))
    return found.astype(found.dtype.newbyteorder("="), copy=False)


def decode_parts(content: memoryview, decode: Decoder, head: int) -> list[object]:
    """Decodes a list of parts.

    Args:
        content: `head` bytes that are ignored, uint32 number of parts, uint32 length of each part, the parts.
        decode: decodes one part.
        head: number of bytes to ignore.
    """
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
    """Decodes an integer that is written in digits."""
    return int(bytes(content))


def decode_float(content: Content) -> float:
    """Decodes a floating-point number that is written in digits."""
    return float(bytes(content))


def decode_decimal(content: Content) -> Decimal:
    """Decodes a decimal number that is written in digits."""
    return Decimal(str(content, "ascii"))


def decode_nested(content: memoryview) -> object:
    """Decodes a list or dict of LitData: JSON before version 0.2.70, since then values with a byte before each."""
    if not content or content[0] > _Nested.LARGEST_TAG:
        return msgspec.json.decode(content)
    nested = _Nested(content)
    value = nested.value()
    if nested.position != len(content):
        raise ValueError(f"ends at byte {nested.position}, there are {len(content)}")
    return value


def decode_value(content: memoryview) -> object:
    """Decodes a nested value of LitData's Arrow chunks, which `tables/litdata/arrow_rows.py` has encoded."""
    tag = bytes(content[:1])
    rest = content[1:]
    if tag in {b"i", b"f"}:
        numbers: list[object] = np.frombuffer(rest, f"<{tag.decode()}8").tolist()
        return numbers
    if tag != b"m":
        raise ValueError(f"tag {tag!r} has no meaning")
    return msgspec.msgpack.decode(rest)


class _Nested:
    """Decodes the values of LitData one after the other; each begins with a byte that is a key of `_TAGS`.

    Attributes:
        position: byte behind the last value that was decoded.
    """

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


# Functions that decode a value, by the byte before it. Bytes above 15 stand before the fields of rows.
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
    """Returns what decodes fields of a kind, or None if this file has no decoder for it.

    Not every kind that begins as `streamer.decode.dispatch.ELSEWHERE` says has one.
    """
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
