"""Decodes the chunks of zarr arrays, in recoders."""

from __future__ import annotations

import importlib
import math
import zlib
from typing import Any

import msgspec
import numpy as np

from streamer.errors import RecodeError
from streamer.formats.failures import needing
from streamer.formats.packed.unpack import UnpackError, unpack
from streamer.tables.arrays.recode import Array
from streamer.tables.arrays.tiles import ColumnHint
from streamer.tables.zarr.metadata import Codec

_CHECKSUM_BYTES = 4
# Names of codecs, and of what unpacks them.
_UNPACKED = {"gzip": "gz", "zstd": "zst", "bz2": "bz2"}
# Bytes of the heads of what numcodecs unpacks.
_LEAST_BYTES = {"blosc": 16, "lz4": 4}
# A packed chunk may be packed again.
_SPARE_BYTES = 1 << 16


class ChunkDecoder:
    """Decodes chunks of one shape."""

    def __init__(self, dtype: np.dtype[np.generic], column: ColumnHint) -> None:
        self._dtype = dtype
        codecs = msgspec.convert(column.codecs, tuple[Codec, ...])
        self._packings = [codec.name for codec in reversed(codecs) if codec.name != "transpose"]
        axes = np.arange(len(column.tile))
        for codec in codecs:
            if codec.name == "transpose":
                axes = axes[codec.configuration["order"]]
        self._stored = tuple(column.tile[axis] for axis in axes.tolist())
        self._axes = np.argsort(axes)
        self._bytes = dtype.itemsize * math.prod(column.tile)

    def __call__(self, stored: memoryview, mask: int) -> Array:
        """Returns the items of a chunk; raises RecodeError if it cannot be unpacked, or has another length."""
        for packing in self._packings:
            try:
                stored = self._unpacked(packing, stored)
            except (UnpackError, zlib.error) as error:
                raise RecodeError(f"a chunk of {len(stored)} bytes, packed by {packing}: {error}") from error
        if len(stored) != self._bytes:
            raise RecodeError(f"a chunk has {len(stored)} bytes, its items {self._bytes}")
        return np.frombuffer(stored, self._dtype).reshape(self._stored).transpose(self._axes)

    def _unpacked(self, packing: str, stored: memoryview) -> memoryview:
        most = self._bytes + _SPARE_BYTES
        if packing in _UNPACKED:
            return unpack(_UNPACKED[packing], stored, most)
        if packing == "zlib":
            unpacker = zlib.decompressobj()
            content = unpacker.decompress(stored, most)
            if not unpacker.eof:
                raise UnpackError(f"is cut off, or has more than {most} bytes")
            return memoryview(content)
        if packing == "crc32c":
            return _verified(stored)
        return _by_numcodecs(packing, stored, most)


def _verified(stored: memoryview) -> memoryview:
    content = stored[:-_CHECKSUM_BYTES]
    checksum = stored[-_CHECKSUM_BYTES:]
    if checksum_of(content) != int.from_bytes(checksum, "little"):
        raise UnpackError("its checksum is wrong")
    return content


def checksum_of(content: memoryview) -> int:
    """Returns the CRC-32C of the content."""
    found: int = _library("google_crc32c").value(bytes(content))
    return found


def _by_numcodecs(packing: str, stored: memoryview, most: int) -> memoryview:
    # The length, and for blosc that of what is packed, are what the libraries believe.
    head = stored[4:8] if packing == "blosc" else stored[:4]
    length = int.from_bytes(head, "little")
    least = _LEAST_BYTES.get(packing, 0)
    if len(stored) < least:
        raise UnpackError(f"it is cut off: it has {len(stored)} bytes, and its head alone {least}")
    if length > most or (packing == "blosc" and stored[12:16] != len(stored).to_bytes(4, "little")):
        raise UnpackError(f"it says that it has {length} bytes, and can have up to {most}")
    place = np.empty(length, np.uint8)
    library = _library(f"numcodecs.{packing}")
    if packing == "blosc":
        # There are as many recoders as there are cores to spare.
        library.use_threads = False
    try:
        library.decompress(stored, place)
    except (RuntimeError, ValueError) as error:
        raise UnpackError(str(error)) from error
    return place.data


def _library(name: str) -> Any:  # noqa: ANN401
    with needing(f"the codecs of this zarr array need {name}", "zarr"):
        return importlib.import_module(name)
