"""Fields whose format states their kind, such as columns of tables: decoded by kind, not by name."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.decode.dispatch import ELSEWHERE, SampleDecoder, find_decoder_of_kind
from streamer.errors import ConfigError, DecodeError
from streamer.formats.base import Field
from streamer.tables.foreign import decode_pixels


def decoded(content: bytes, kind: str, rule: object = "auto", name: str = "x", **options: bool) -> object:
    return SampleDecoder(rule, **options)("key", [Field(name, memoryview(content), kind)])[name]


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        ("<i8", (5).to_bytes(8, "little"), 5),
        ("<f4", np.float32(0.5).tobytes(), 0.5),
        ("?", b"\1", True),
        ("null", b"", None),
        ("bytes", b"abc", b"abc"),
        ("txt", b"abc", "abc"),
        ("json", b"[1]", [1]),
    ],
)
def test_values(kind, content, expected):
    """The kind of a field decides its decoder, whatever its name is."""
    found = decoded(content, kind)
    assert found == expected
    assert type(found) is type(expected)
    assert decoded(content, kind, name="x.txt.json") == expected


@pytest.mark.parametrize(("kind", "shape"), [("<f4[2,3]", (2, 3)), ("<f4[]", (6,)), ("<f4[-1,2]", (3, 2))])
def test_arrays(kind, shape):
    """A kind with a shape decodes numbers of that shape, of which one length may be open."""
    numbers = np.arange(6, dtype=np.float32)
    found = decoded(numbers.tobytes(), kind)
    assert (found.dtype, found.shape) == (np.float32, shape)
    assert found.ravel().tolist() == numbers.tolist()


def test_an_array_may_be_read_into_its_row():
    """A field of an array kind can be read into its row without decoding, like a `.npy` field."""
    field = Field("x", memoryview(bytes(24)), "<f4[2,3]")
    plain = SampleDecoder().plain_array(field)
    assert (plain.head, plain.dtype, plain.shape) == (b"", np.float32, (2, 3))


def test_the_users_rule_goes_first():
    """A user's rule for the field's name precedes its kind; None returns its bytes."""
    assert decoded(b"12345678", "<i8", {"x": None}) == b"12345678"
    assert decoded(b"12345678", "<i8", {"x": len}) == 8
    assert decoded(b"12345678", "<i8", None) == b"12345678"
    assert decoded(b"[1]", "json", {"jpg": None}) == [1]


def test_a_wrong_length_names_the_field():
    """A field whose length or kind does not fit raises DecodeError that names it."""
    with pytest.raises(DecodeError, match=r"field 'x'.*3 bytes are not a <i8"):
        decoded(b"abc", "<i8")
    with pytest.raises(DecodeError, match="kind 'O', which has no decoder"):
        decoded(b"abc", "O")


def test_pickles_are_refused_by_kind():
    """A field of kind pickle is refused unless allow_pickle is set."""
    with pytest.raises(ConfigError, match="allow_pickle"):
        decoded(b"\x80\x04N.", "pickle")
    assert decoded(b"\x80\x04N.", "pickle", allow_pickle=True) is None


@pytest.mark.parametrize(("mode", "dtype"), [("I;16", "<u2"), ("I;16B", ">u2"), ("I", "<i4"), ("F", "<f4")])
def test_pixels_of_more_than_eight_bits_keep_their_values(mode, dtype):
    """Raw images of Pillow's modes of more than 8 bits, which MDS and LitData write, keep their values."""
    values = np.array([[0, 1, 255], [256, 300, 65535]], dtype)
    head = struct.pack("<III", 3, 2, len(mode)) + mode.encode()
    found = decode_pixels(memoryview(head + values.tobytes()))
    assert found.dtype == np.dtype(dtype).newbyteorder("=")
    assert found.tolist() == values.tolist()


@pytest.mark.parametrize("kind", ["depth:", "depth:{", "depth:[]", 'depth:{"depth_min": 3, "depth_max": 1}', "depth:3"])
def test_a_damaged_kind_has_no_decoder(kind):
    """A field whose kind begins as a known one and does not go on as one raises DecodeError that names both."""
    with pytest.raises(DecodeError, match=r"field 'x' is of kind .*, which has no decoder"):
        decoded(b"", kind)


@given(st.sampled_from(["", *ELSEWHERE, "<f4[", "<f4[2,", "mds-ndarray:", "mds-list:"]), st.text(max_size=12))
@settings(max_examples=100, deadline=None)
def test_any_kind_has_a_decoder_or_none(beginning, rest):
    """Whatever text a kind is, its decoder is found or there is none; damaged bytes of it are a DecodeError."""
    kind = beginning + rest
    find_decoder_of_kind(kind)
    with suppress(DecodeError):
        decoded(b"\xff\x00\x01", kind)
