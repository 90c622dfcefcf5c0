"""Finds decoders by the kind of a field, if its format names one; see `streamer.formats.base.Field`.

`ELSEWHERE` is the table of the kinds whose decoders are beside the formats that write them, imported at their first
use.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from struct import Struct

import numpy as np

from streamer.decode import images
from streamer.decode.arrays import ArrayDecoder
from streamer.decode.nested import decode_nested
from streamer.errors import ConfigError
from streamer.manifest.model import NESTED

# The kind of a field without a value, whatever a rule says about its name.
NULL = "null"
_MEDIA = "streamer.media.decode:find_decoder"
_FOREIGN = "streamer.tables.foreign:find_decoder"
# How kinds begin, and the function that returns the decoder of such a kind, or None.
ELSEWHERE = {
    **dict.fromkeys(["audio", "clip", "depth:"], _MEDIA),
    **dict.fromkeys(
        ["mds-", "litdata-", "tf-list:", "pil", "jpeg_array", "int-text", "float-text", "decimal-text"], _FOREIGN
    ),
}
# "<f4[3,224,224]", "<i8", "?".
_NUMBERS = re.compile(r"([<>|=]?[?a-z][0-9]*)(?:\[(-?\d*(?:,-?\d+)*)\])?")


@lru_cache(maxsize=1000)
def find_decoder_of_kind(kind: str) -> Callable[[memoryview], object] | None:
    """Returns the decoder of a kind other than an extension, or None if there is none.

    "image" returns an array as images do, "bytes" bytes, "null" None, "nested" a list or dict, a dtype a Python number,
    a dtype with a shape an array; for others see `ELSEWHERE`.
    """
    if (known := _NAMED.get(kind)) is not None:
        return known
    for beginning, place in ELSEWHERE.items():
        if kind.startswith(beginning):
            module, _, name = place.partition(":")
            found: Callable[[memoryview], object] | None = getattr(import_module(module), name)(kind)
            return found
    if (numbers := _NUMBERS.fullmatch(kind)) is None:
        return None
    try:
        if numbers[2] is not None:
            return ArrayDecoder(numbers[1], tuple(map(int, numbers[2].split(","))) if numbers[2] else (-1,))
        dtype = np.dtype(numbers[1])
        if dtype.kind not in "biufc":
            return None
        # `struct` takes a third of numpy's time for one number.
        code = _STRUCTS.get(f"{dtype.kind}{dtype.itemsize}")
        read_struct = Struct(f"{'>' if dtype.str[0] == '>' else '<'}{code}").unpack if code else None

        def decode_number(content: memoryview) -> object:
            if len(content) != dtype.itemsize:
                raise ValueError(f"{len(content)} bytes are not a {dtype.str}, which has {dtype.itemsize}")
            return read_struct(content)[0] if read_struct is not None else np.frombuffer(content, dtype)[0].item()

        return decode_number
    except (ConfigError, TypeError):
        return None


_NUMBERS_OF_STRUCT = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_STRUCTS = dict(zip(_NUMBERS_OF_STRUCT, "?bhiqBHIQefd", strict=True))


def decode_null(content: memoryview) -> None:
    """Returns None, the value of a field that has none."""


_NAMED: dict[str, Callable[[memoryview], object]] = {
    "image": images.decode_image,
    "bytes": bytes,
    NULL: decode_null,
    NESTED: decode_nested,
}
