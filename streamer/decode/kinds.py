"""Finds decoders by the kind of a field, if its format names one; see `streamer.formats.base.Field`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from struct import Struct

import numpy as np

from streamer.decode import images, texts
from streamer.decode.arrays import ArrayDecoder, decode_npy
from streamer.decode.foreign import foreign_decoder
from streamer.decode.nested import decode_nested
from streamer.errors import ConfigError
from streamer.manifest.model import NESTED
from streamer.media.audio.sounds import AUDIO, START
from streamer.media.decode.audio import Sound, SoundStart
from streamer.media.lerobot.depth import DEPTH, read_kind
from streamer.tables.tfrecord.example import byte_strings

# The kind of a field without a value, whatever a rule says about its name.
NULL = "null"
# How the kinds of `streamer.media.containers` begin.
_CLIP = "clip"
# Lists of byte strings of TFRecord, and how each of them is decoded.
_STRINGS = "tf-list:"
# "<f4[3,224,224]", "<i8", "?".
_NUMBERS = re.compile(r"([<>|=]?[?a-z][0-9]*)(?:\[(-?\d*(?:,-?\d+)*)\])?")


@lru_cache(maxsize=1000)
def decoder_of(kind: str) -> Callable[[memoryview], object] | None:
    """Returns the decoder of a kind other than an extension; None if there is none.

    "image" returns an array as images do, "audio" an array of floats, "bytes" bytes, "null" None, "nested" a list or
    dict, a dtype a Python number, a dtype with a shape an array; for other libraries' layouts see `foreign`, for "clip"
    and others that begin so `media.video`.
    """
    if (known := _NAMED.get(kind) or foreign_decoder(kind)) is not None:
        return known
    if kind.startswith(_STRINGS):
        decode = _OF_STRINGS.get(kind.removeprefix(_STRINGS))
        return None if decode is None else lambda content: [decode(value) for value in byte_strings(content)]
    if kind.startswith(DEPTH):
        from streamer.media.decode.depth import DepthFrames

        return DepthFrames(depth=read_kind(kind))
    if kind.startswith(_CLIP):
        # Most workers decode none.
        from streamer.media.decode.video import CLIP_DECODERS

        return CLIP_DECODERS[kind]() if kind in CLIP_DECODERS else None
    if (found := _NUMBERS.fullmatch(kind)) is None:
        return None
    try:
        if found[2] is not None:
            return ArrayDecoder(found[1], tuple(map(int, found[2].split(","))) if found[2] else (-1,))
        return _number(np.dtype(found[1]))
    except (ConfigError, TypeError):
        return None


def _number(dtype: np.dtype[np.generic]) -> Callable[[memoryview], object] | None:
    if dtype.kind not in "biufc":
        return None
    # A third of numpy's time for one number.
    code = _STRUCTS.get(f"{dtype.kind}{dtype.itemsize}")
    unpack = Struct(f"{'>' if dtype.str[0] == '>' else '<'}{code}").unpack if code else None

    def decode_number(content: memoryview) -> object:
        if len(content) != dtype.itemsize:
            raise ValueError(f"{len(content)} bytes are not a {dtype.str}, which has {dtype.itemsize}")
        return unpack(content)[0] if unpack is not None else np.frombuffer(content, dtype)[0].item()

    return decode_number


_NUMBERS_OF_STRUCT = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_STRUCTS = dict(zip(_NUMBERS_OF_STRUCT, "?bhiqBHIQefd", strict=True))


def nothing(content: memoryview) -> None:
    """Returns None, the value of a field that has none."""


_OF_STRINGS: dict[str, Callable[[memoryview], object]] = {
    "bytes": bytes,
    "image": images.decode_image,
    "json": texts.decode_json,
    "npy": decode_npy,
    "txt": texts.decode_text,
}
_NAMED: dict[str, Callable[[memoryview], object]] = {
    "image": images.decode_image,
    "bytes": bytes,
    AUDIO: Sound(),
    START: SoundStart(),
    NULL: nothing,
    NESTED: decode_nested,
}
