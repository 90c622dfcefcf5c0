"""Decodes texts, JSON, labels, and nested values: lists, structs and maps, as `streamer.formats` writes them.

`decode/dispatch.py` chooses among these decoders by extension and kind, and decoders of tables use some of them. Packs
write nested values as JSON with it (`streamer/shards`). Decoders raise a ValueError for other bytes, and a
RecursionError for JSON that is nested too deeply. `NestedDecoder` lists its own errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from streamer.decode.arrays import Content, usable
from streamer.decode.images import decode_image
from streamer.formats.names import IMAGE, kind_of_bytes
from streamer.formats.table.records import ARRAY_DTYPES, Extension
from streamer.removed import check_options


def decode_text(content: Content) -> str:
    """Decodes a text in UTF-8."""
    return str(content, "utf-8")


def decode_json(content: Content) -> object:
    """Decodes one JSON document."""
    try:
        document: object = json.loads(bytes(content))
    except json.JSONDecodeError as error:
        if error.msg.startswith("Extra data"):
            raise ValueError(f"{error}; JSON lines are read with format='jsonl'") from error
        raise
    return document


def decode_jsonl(content: Content) -> list[object]:
    """Decodes one JSON document per line, and skips empty lines."""
    return [json.loads(line) for line in bytes(content).splitlines() if line.strip()]


def decode_class(content: Content) -> int:
    """Decodes a class number that is written in digits, as in WebDataset's `cls` files."""
    return int(bytes(content))


@check_options
@dataclass(frozen=True)
class NestedDecoder:
    """Decodes nested values: lists of numbers to flat arrays, structs and maps to dicts, and other lists to lists.

        StreamingDataset(url, decode={"images": NestedDecoder(image=bytes)})  # lists of encoded images

    Attributes:
        image: function that decodes the bytes of each image inside of the value, which it gets as a memoryview.
    """

    image: Callable[[memoryview], object] = decode_image

    def __call__(self, content: Content) -> object:
        """Returns the value; `content` is MessagePack with the extensions of `formats/table/records.py`.

        Raises:
            ValueError, msgspec.DecodeError, RecursionError: the bytes are no such value.
            Exception: an error of `image`.
        """
        return msgspec.msgpack.decode(content, ext_hook=self._extension)

    def _extension(self, code: int, content: memoryview) -> object:
        """Decodes a value that MessagePack has no type for: an image, bytes, JSON or numbers, by its code."""
        if code == Extension.IMAGE or (code == Extension.BYTES and kind_of_bytes(content) == IMAGE):
            return self.image(content)
        if code == Extension.BYTES:
            return bytes(content)
        if code == Extension.JSON:
            return decode_json(content)
        if not 0 <= code < len(ARRAY_DTYPES):
            raise ValueError(f"extension {code} of a nested value has no meaning")
        return usable(np.frombuffer(content, ARRAY_DTYPES[code]))


decode_nested = NestedDecoder()


def encode_json_tree(content: Content) -> bytes:
    """Returns a nested value as JSON: arrays become lists, and bytes texts in Base64; errors as of `NestedDecoder`."""
    return msgspec.json.encode(NestedDecoder(image=bytes)(content), enc_hook=lambda array: array.tolist())
