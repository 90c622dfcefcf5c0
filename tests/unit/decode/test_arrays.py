"""Decoders of arrays: npy, npz, safetensors and torch files, with values compared; pickles need permission."""

from __future__ import annotations

import io
import json
import pickle

import numpy as np
import pytest

from streamer.decode import arrays
from streamer.errors import ConfigError


def saved(array: np.ndarray, **options: object) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype="<f4").reshape(2, 3, 4),
        np.arange(6, dtype=">i8"),
        np.array(3.5),
        np.zeros((0, 5), np.uint8),
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
    ],
)
def test_npy_comes_back_as_it_was_saved(array):
    """A decoded npy file has the type, byte order, shape and values that were saved, and is writable."""
    found = arrays.decode_npy(memoryview(bytearray(saved(array))))
    assert found.dtype == array.dtype
    assert found.flags.writeable
    np.testing.assert_array_equal(found, array)


def test_npy_is_used_in_place_when_the_buffer_is_writable():
    """An npy array is a view of a writable buffer, and a copy of a read-only one."""
    held = bytearray(saved(np.arange(8.0)))
    found = arrays.decode_npy(memoryview(held))
    held[-8:] = np.float64(99).tobytes()
    assert found[-1] == 99
    assert arrays.decode_npy(bytes(held)).flags.writeable


@pytest.mark.parametrize("cut", [3, 40, 130])
def test_a_truncated_npy_is_an_error(cut):
    """An npy file that is cut off in the magic, the header or the numbers raises ValueError."""
    with pytest.raises(ValueError, match=r"\w"):
        arrays.decode_npy(saved(np.arange(8.0))[:cut])


def test_an_array_of_objects_is_refused():
    """An npy file of objects raises ValueError, since it would have to be unpickled."""
    with pytest.raises(ValueError, match="unpickled"):
        arrays.decode_npy(saved(np.array([{}], dtype=object), allow_pickle=True))


def test_npz_gives_its_arrays_by_name():
    """A decoded npz file has its arrays by name; one with objects raises ValueError."""
    stream = io.BytesIO()
    np.savez(stream, x=np.arange(3), y=np.ones((2, 2)))
    found = arrays.decode_npz(stream.getvalue())
    assert sorted(found) == ["x", "y"]
    np.testing.assert_array_equal(found["y"], np.ones((2, 2)))
    bad = io.BytesIO()
    np.savez(bad, x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        arrays.decode_npz(bad.getvalue())


def safetensors(header: dict[str, object], payload: bytes) -> bytes:
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + payload


def test_safetensors_give_their_arrays_by_name():
    """A decoded safetensors file has its arrays by name, also when their numbers are not aligned."""
    x, y = np.arange(6, dtype="<f4").reshape(2, 3), np.array([7], dtype="<i8")
    header = {
        "__metadata__": {"by": "a test"},
        "x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "y": {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]},
    }
    found = arrays.decode_safetensors(safetensors(header, x.tobytes() + y.tobytes()))
    assert sorted(found) == ["x", "y"]
    np.testing.assert_array_equal(found["x"], x)
    np.testing.assert_array_equal(found["y"], y)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}, "needs 12 bytes"),
        ({"dtype": "F32", "shape": [300], "data_offsets": [0, 1200]}, "truncated"),
        ({"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}, "BF16"),
        ({"dtype": "F32"}, "no dtype, shape"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "which cannot be"),
        ({"dtype": "F32", "shape": [None], "data_offsets": [0, 4]}, "which cannot be"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [-8, -4]}, "which cannot be"),
        ([], "no dtype, shape"),
    ],
)
def test_safetensors_that_contradict_themselves_are_refused(entry, reason):
    """A safetensors file whose shape, range or type contradicts its bytes raises ValueError."""
    with pytest.raises(ValueError, match=reason):
        arrays.decode_safetensors(safetensors({"x": entry}, bytes(12)))


@pytest.mark.parametrize("header", [b"[]", b"3", b"null", b"{", b'{"\xff": 1}', b"[" * 100_000])
def test_safetensors_whose_header_is_no_object_are_refused(header):
    """A safetensors file whose header is other JSON than an object, or none, raises ValueError that says so."""
    with pytest.raises(ValueError, match=r"its header is (a \w+ of|not) JSON"):
        arrays.decode_safetensors(len(header).to_bytes(8, "little") + header)


def test_safetensors_with_a_wrong_length_are_refused():
    """A safetensors file whose header is longer than the file raises ValueError."""
    with pytest.raises(ValueError, match="the header has"):
        arrays.decode_safetensors((1 << 40).to_bytes(8, "little") + b"{}")


def test_pickles_are_refused_with_the_setting_that_allows_them():
    """The default decoder of pickles raises ConfigError that names `allow_pickle`; the other one reads them."""
    with pytest.raises(ConfigError, match=r"decode=streamer.Decode\(allow_pickle=True\)"):
        arrays.refuse_pickle(pickle.dumps([1]))
    assert arrays.decode_pickle(pickle.dumps([1])) == [1]


def test_torch_files_are_read_when_allowed():
    """The decoder of torch files returns what torch.save wrote, as tensors."""
    import torch

    stream = io.BytesIO()
    torch.save({"w": torch.ones(2)}, stream)
    loaded = arrays.decode_torch(stream.getvalue())
    assert isinstance(loaded, dict)
    assert torch.equal(loaded["w"], torch.ones(2))


def test_an_npz_that_decompresses_to_too_much_is_refused_by_its_directory(monkeypatch):
    """An npz file above the limit is refused by its directory before memory is taken; the error has the way out."""
    stream = io.BytesIO()
    np.savez_compressed(stream, a=np.zeros(1000), b=np.zeros(1000))
    assert set(arrays.decode_npz(stream.getvalue())) == {"a", "b"}
    monkeypatch.setattr(arrays, "MAX_NPZ_BYTES", 16_000)
    with pytest.raises(ValueError, match=r"2 arrays have 16,\d+ bytes, .* decode=\{'npz': your_function\}"):
        arrays.decode_npz(stream.getvalue())
