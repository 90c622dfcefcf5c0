"""The values of a sample as files of a tar: names, bytes, and values that cannot be written."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from streamer.errors import PackError
from streamer.formats.base import Field
from streamer.shards.values import files_of, key_of, value_of


class Opaque:
    """Stands for a value of a type that cannot be written."""


def test_values_become_files() -> None:
    """Bytes are written as they are, texts, classes and arrays as files of their own, the rest as one json."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    files = dict(
        files_of(
            {
                "__key__": "k",
                "__url__": "left out",
                "jpg": b"J",
                "mask.PNG": bytearray(b"P"),
                "caption": "hü",
                "page.html": "<p>",
                "label": np.int64(7),
                "boxes": array,
                "score": 0.5,
                "tags": ["a", None],
                "size": (np.int32(3), 4),
            }
        )
    )
    assert np.array_equal(np.load(io.BytesIO(files.pop("boxes.npy"))), array)
    assert json.loads(files.pop("json")) == {"score": 0.5, "tags": ["a", None], "size": [3, 4]}
    assert files == {"jpg": b"J", "mask.png": b"P", "caption.txt": "hü".encode(), "page.html": b"<p>", "cls": b"7"}


def test_a_json_is_itself() -> None:
    """A dict named json, or a field named .json, is the file itself."""
    assert files_of({"json": {"a": 1}}) == [("json", b'{"a": 1}')]
    assert files_of({"meta.json": [1]}) == [("meta.json", b"[1]")]


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ({}, "no fields"),
        ({1: b""}, "named by 1"),
        ({"jpg": b"", "JPG": b""}, "both be the file 'jpg'"),
        ({"label": 1, "cls": 2}, "both be the file 'cls'"),
        ({"x": Opaque()}, "type Opaque"),
        ({"x": float("nan")}, "'json' cannot be written"),
        ({"x": np.array([None])}, "Python objects"),
        ({"a/b": b""}, "cannot be named 'a/b'"),
        ({".jpg": b""}, "cannot be named '.jpg'"),
        ({"": b""}, "cannot be named ''"),
        ({"caption": "half \ud83d"}, r"field 'caption' is not valid Unicode: character 5 is '\\ud83d'"),
        ({"json": {"text": "half \ud83d"}}, "field 'json' cannot be written"),
        ({"half \ud83d": b""}, "cannot be named"),
    ],
)
def test_what_cannot_be_written_is_said(sample: dict[str, object], said: str) -> None:
    """A value or name that cannot be written raises PackError with the field, and nothing is pickled."""
    with pytest.raises(PackError, match=said):
        files_of(sample)


def test_keys() -> None:
    """The dots of a name in a key become underscores, and a sample without a key has its number."""
    assert key_of({"__key__": "a.b/v1.5"}, 3) == "a.b/v1_5"
    assert key_of({}, 3) == "000000003"


@pytest.mark.parametrize("key", ["", "/a", "../a", "a/", "a\0", "__meta__/a", 5, "half \ud83d"])
def test_what_is_no_key_is_refused(key: object) -> None:
    """A key that cannot be the name of a file in a tar raises PackError."""
    with pytest.raises(PackError, match="__key__"):
        key_of({"__key__": key}, 0)


def test_fields_of_typed_formats() -> None:
    """Fields of typed formats become numbers and arrays by dtype, images by magic, others by their kind."""

    def of(name: str, content: bytes, kind: str) -> tuple[str, object]:
        found, value = value_of(Field(name, memoryview(content), kind))
        return found, bytes(value) if isinstance(value, memoryview) else value

    assert of("jpg", b"x", "") == ("jpg", b"x")
    assert of("label", (7).to_bytes(8, "little"), "<i8") == ("label", 7)
    assert of("image", b"\xff\xd8\xff rest", "image") == ("image.jpg", b"\xff\xd8\xff rest")
    assert of("meta", b"{}", "json") == ("meta.json", b"{}")
    assert of("meta.json", b"{}", "json") == ("meta.json", b"{}")
    assert of("parts", b"\x92\x01\xc4\x03abc", "nested") == ("parts.json", b'[1,"YWJj"]')
    assert of("blob", b"x", "bytes") == ("blob", b"x")
    assert of("gone", b"", "null") == ("gone", None)
    name, array = value_of(Field("v", memoryview(np.arange(3, dtype="<f4").tobytes()), "<f4[3]"))
    assert (name, array.tolist()) == ("v", [0.0, 1.0, 2.0])  # type: ignore[attr-defined]


def test_bytes_of_a_name_that_were_no_text_stay() -> None:
    """Bytes of names in a tar that are not UTF-8 (lone surrogates of Python) are kept in keys and names of fields."""
    assert key_of({"__key__": "caf\udce9"}, 0) == "caf\udce9"
    assert files_of({"caf\udce9": b""}) == [("caf\udce9", b"")]
