"""One row of the catalog as bytes."""

from __future__ import annotations

import struct

import msgspec

from streamer.errors import CacheError

# version of the row, file_bytes; the rest is the dataset's id in UTF-8.
_ROW = struct.Struct("<BQ")
ROW_VERSION = 1


class ForeignRowError(CacheError):
    """The catalog holds a row that this program does not write."""


class CatalogRow(msgspec.Struct, frozen=True):
    """What the catalog says of a chunk file."""

    file_bytes: int
    dataset: str

    def encode(self) -> bytes:
        """The row's value."""
        return _ROW.pack(ROW_VERSION, self.file_bytes) + self.dataset.encode()

    @classmethod
    def decode(cls, raw: bytes) -> CatalogRow:
        """Reads a value.

        Raises:
            ForeignRowError: another version, or not ours.
        """
        if len(raw) < _ROW.size or raw[0] != ROW_VERSION:
            raise ForeignRowError(f"a catalog row of {len(raw)} bytes is not of version {ROW_VERSION}")
        _, file_bytes = _ROW.unpack_from(raw)
        return cls(file_bytes, raw[_ROW.size :].decode(errors="replace"))
