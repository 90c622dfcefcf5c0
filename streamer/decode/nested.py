"""Reads nested values: lists, structs and maps of Parquet and Arrow files, as `streamer.formats` writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from streamer.decode.arrays import Content, usable
from streamer.decode.images import decode_image
from streamer.decode.texts import decode_json
from streamer.formats.names import IMAGE, kind_of_bytes
from streamer.formats.table.records import ARRAY_DTYPES, Extension


@dataclass(frozen=True)
class NestedDecoder:
    """Reads nested values. Lists of numbers are arrays of one dimension, structs and maps dicts, other lists lists.

        StreamingDataset(url, decode={"images": NestedDecoder(picture=bytes)})  # lists of encoded images

    Attributes:
        picture: decodes the bytes of each image, a memoryview.
    """

    picture: Callable[[memoryview], object] = decode_image

    def __call__(self, content: Content) -> object:
        """Returns the value.

        Raises:
            ValueError, msgspec.DecodeError, RecursionError: other bytes.
        """
        return msgspec.msgpack.decode(content, ext_hook=self._extension)

    def _extension(self, code: int, content: memoryview) -> object:
        if code == Extension.IMAGE or (code == Extension.BYTES and kind_of_bytes(content) == IMAGE):
            return self.picture(content)
        if code == Extension.BYTES:
            return bytes(content)
        if code == Extension.JSON:
            return decode_json(content)
        if not 0 <= code < len(ARRAY_DTYPES):
            raise ValueError(f"extension {code} of a nested value has no meaning")
        return usable(np.frombuffer(content, ARRAY_DTYPES[code]))


decode_nested = NestedDecoder()


def encode_nested_json(content: Content) -> bytes:
    """Returns a nested value as JSON: arrays are lists, bytes Base64."""
    return msgspec.json.encode(NestedDecoder(picture=bytes)(content), enc_hook=lambda array: array.tolist())
