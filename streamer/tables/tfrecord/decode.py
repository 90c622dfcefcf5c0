"""Decodes lists of byte strings of TFRecord."""

from __future__ import annotations

from collections.abc import Callable

from streamer.decode.arrays import decode_npy
from streamer.decode.images import decode_image
from streamer.decode.texts import decode_json, decode_text
from streamer.tables.tfrecord.example import STRINGS, byte_strings

_DECODERS: dict[str, Callable[[memoryview], object]] = {
    "bytes": bytes,
    "image": decode_image,
    "json": decode_json,
    "npy": decode_npy,
    "txt": decode_text,
}


def find_decoder(kind: str) -> Callable[[memoryview], object] | None:
    """Returns the decoder of a list of this kind; None if there is none. See `streamer.decode.kinds`."""
    decode = _DECODERS.get(kind.removeprefix(STRINGS))
    return None if decode is None else lambda content: [decode(value) for value in byte_strings(content)]
