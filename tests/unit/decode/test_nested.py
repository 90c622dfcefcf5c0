"""Nested values, stored as msgpack with extensions: decoded, and refused where they are damaged."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from streamer.decode.dispatch import SampleDecoder
from streamer.decode.images import ImageDecoder
from streamer.decode.values import NestedDecoder, encode_json_tree
from streamer.errors import DecodeError
from streamer.formats.base import Field
from streamer.formats.table.records import ARRAY_DTYPES, Extension


def encoded(value: object) -> memoryview:
    return memoryview(msgspec.msgpack.encode(value))


def decoded(content: memoryview, rule: object = "auto") -> object:
    return SampleDecoder(rule)("key", [Field("x", content, "nested")])["x"]


def array(values: list[int], dtype: str = "<i2") -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(ARRAY_DTYPES.index(dtype), np.array(values, dtype).tobytes())


def extension(code: int, content: bytes) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(int(code), content)


def test_values():
    """A nested value has arrays, bytes, texts and JSON in lists and dicts, whose keys need not be texts."""
    parts = [array([1, 2, 3]), extension(Extension.BYTES, b"no image"), b"abc", "text", None]
    found = decoded(encoded({"parts": parts, 5: extension(Extension.JSON, b'{"a": [1]}')}))
    numbers, *rest = found["parts"]
    assert (numbers.dtype, numbers.tolist(), numbers.flags.writeable) == (np.int16, [1, 2, 3], True)
    assert rest == [b"no image", b"abc", "text", None]
    assert found[5] == {"a": [1]}


def test_images(encode: Callable[..., bytes], image: np.ndarray):
    """Images in a nested value are decoded if they are marked or begin as one, by the decoder that a rule names."""
    content = encode(image[:, :, 0], "PNG")
    value = encoded([extension(Extension.IMAGE, content), {"bytes": extension(Extension.BYTES, content)}])
    first, second = decoded(value)
    assert first.shape == second["bytes"].shape == image.shape
    assert decoded(value, {"x": NestedDecoder(image=bytes)}) == [content, {"bytes": content}]
    assert decoded(value, {"x": NestedDecoder(image=len)}) == [len(content), {"bytes": len(content)}]
    grey, _ = decoded(value, {"x": ImageDecoder(mode="stored")})
    assert grey.tolist() == ImageDecoder(mode="stored")(content).tolist()
    assert decoded(value, None) == bytes(value)


def test_whose_code_runs():
    """A NestedDecoder runs user code only with a user's decoder of images, and can be pickled."""
    own = [NestedDecoder(), NestedDecoder(image=bytes), NestedDecoder(ImageDecoder(mode="rgb8"))]
    assert [SampleDecoder({"x": reader}).runs_users_code for reader in own] == [False] * 3
    assert SampleDecoder({"x": NestedDecoder(image=len)}).runs_users_code
    decode = NestedDecoder(image=bytes)
    assert decode(encoded([1])) == pickle.loads(pickle.dumps(decode))(encoded([1])) == [1]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Input data was truncated"),
        (b"\xdd\xff\xff\xff\xff", "Input data was truncated"),
        (b"\xc6\x00\x00\x01\x00abc", "Input data was truncated"),
        (b"\xc9\x00\x00\x00\x08\x03ab", "Input data was truncated"),
        (b"\xc0\xc0", "trailing characters"),
        (b"\xdb\x00\x00\x00\x01\xff", "utf-8|UTF-8"),
        (b"\xdf\x00\x00\x00\x01\x91\x80\xc0", "must be hashable|unhashable"),
        (b"\x91" * 100_000, "RecursionError"),
        (encoded(extension(99, b"")), "extension 99"),
        (encoded(extension(7, b"abc")), "ValueError"),
        (encoded(extension(Extension.JSON, b"{")), "JSONDecodeError"),
        (encoded(extension(Extension.IMAGE, b"abc")), "ValueError"),
    ],
)
def test_what_is_no_nested_value(content: bytes, reason: str):
    """Lengths that lead outside, deep lists and wrong extensions raise DecodeError that names the field."""
    with pytest.raises(DecodeError, match=rf"field 'x' .*({reason})"):
        decoded(memoryview(content))


def test_as_json():
    """`encode_json_tree` writes arrays as lists and bytes as Base64."""
    assert (
        encode_json_tree(encoded({"a": array([1, 2]), "b": b"abc", "c": [None]}))
        == b'{"a":[1,2],"b":"YWJj","c":[null]}'
    )
