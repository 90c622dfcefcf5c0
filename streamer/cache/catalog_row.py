"""One row of the catalog as bytes, and changes that are not written yet."""

from __future__ import annotations

import struct

import msgspec

from streamer.errors import CacheError

# Version of the row, file_bytes; the rest is the dataset's id in UTF-8.
_ROW = struct.Struct("<BQ")
ROW_VERSION = 1


class ForeignRowError(CacheError):
    """Raised for a row that this program does not write."""


class CatalogRow(msgspec.Struct, frozen=True):
    """The catalog's entry of a chunk file."""

    file_bytes: int
    dataset: str

    def encode(self) -> bytes:
        """Returns the row's value."""
        return _ROW.pack(ROW_VERSION, self.file_bytes) + self.dataset.encode()

    @classmethod
    def decode(cls, raw: bytes) -> CatalogRow:
        """Parses a value.

        Raises:
            ForeignRowError: it has another version, or was written by another program.
        """
        if len(raw) < _ROW.size or raw[0] != ROW_VERSION:
            raise ForeignRowError(f"a catalog row of {len(raw)} bytes is not of version {ROW_VERSION}")
        _, file_bytes = _ROW.unpack_from(raw)
        return cls(file_bytes, raw[_ROW.size :].decode(errors="replace"))


class CatalogChanges(msgspec.Struct):
    """Changes that the catalog does not have yet: rows, and datasets that are used now or to be forgotten."""

    added: dict[bytes, CatalogRow]
    removed: set[bytes]
    used: set[str]
    forgotten: set[str] = msgspec.field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.used or self.forgotten)
