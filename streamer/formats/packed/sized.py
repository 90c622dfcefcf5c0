"""Unpacks a compressed shard whose length is known, so that no bytes can grow to more than that."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np

from streamer.errors import ConfigError
from streamer.formats.packed import unpack as packed

# The name in an index.json, and what unpacks it: cramjam where it is of another kind than files are.
_FILES = {"bz2": "bz2", "gz": "gz", "zstd": "zst"}
_OTHERS = {"br": ("brotli", "decompress_into"), "snappy": ("snappy", "decompress_raw_into")}
COMPRESSIONS = tuple(sorted([*_FILES, *_OTHERS]))
# Of an item that is compressed by itself.
MOST_ITEM_BYTES = 1 << 30


def unpack(compression: str, content: memoryview, length: int) -> memoryview:
    """The unpacked bytes.

    Args:
        compression: one of `COMPRESSIONS`; "": none.
        content: the compressed bytes.
        length: what they must unpack to.

    Raises:
        ValueError: damaged, or of another length.
        ConfigError: cramjam is not installed here.
    """
    if not compression:
        found = content
    elif compression in _FILES:
        found = packed.unpack(_FILES[compression], content, length)
    else:
        found = _by_cramjam(compression, content, length)
    if len(found) != length:
        raise ValueError(f"unpacks to {len(found)} bytes, expected {length}")
    return found


def unpack_item(content: memoryview) -> memoryview:
    """Unpacks Zstandard of at most `MOST_ITEM_BYTES`.

    Raises:
        ValueError: damaged, or longer.
        ConfigError: cramjam is not installed here.
    """
    return packed.unpack("zst", content, MOST_ITEM_BYTES)


def check_installed(compression: str) -> None:
    """Imports what unpacks this compression.

    Raises:
        ConfigError: cramjam is not installed here.
    """
    if compression not in {"gz", "bz2"}:
        _cramjam()


def _by_cramjam(compression: str, content: memoryview, length: int) -> memoryview:
    cramjam = _cramjam()
    module, function = _OTHERS[compression]
    place = np.empty(length, np.uint8)
    try:
        written: int = getattr(getattr(cramjam, module), function)(content, place)
    except cramjam.DecompressionError as error:
        raise ValueError(f"cannot be unpacked to {length} bytes: {error}") from error
    return place.data[:written]


def _cramjam() -> ModuleType:
    try:
        return importlib.import_module("cramjam")
    except ImportError:
        raise ConfigError(
            "compressed shards are unpacked by cramjam, which is not installed where the engine runs: "
            "pip install 'streamer-data[codecs]'",
            field="format",
        ) from None
