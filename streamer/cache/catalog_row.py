"""Defines a row of the catalog, how it is stored as bytes, and a set of changes of rows.

Used by `catalog.py` and `catalog_database.py`, and by `chunk_cache.py` and `reconcile.py`, where rows come from.
"""

from __future__ import annotations

import struct

import msgspec

from streamer.errors import CacheError

# The version of the row and file_bytes, which the dataset's id in UTF-8 follows.
_ROW = struct.Struct("<BQ")
ROW_VERSION = 1


class ForeignRowError(CacheError):
    """Raised for a row that this program does not write."""


class CatalogRow(msgspec.Struct, frozen=True):
    """What the catalog says of a chunk file.

    Attributes:
        file_bytes: length of the file.
        dataset: digest of the manifest of its dataset; "" if unknown.
    """

    file_bytes: int
    dataset: str

    def encode(self) -> bytes:
        """Returns the row as the bytes that are stored."""
        return _ROW.pack(ROW_VERSION, self.file_bytes) + self.dataset.encode()

    @classmethod
    def decode(cls, raw: bytes) -> CatalogRow:
        """Returns the row of stored bytes.

        Raises:
            ForeignRowError: they are too short, or of another version.
        """
        if len(raw) < _ROW.size or raw[0] != ROW_VERSION:
            raise ForeignRowError(f"a catalog row of {len(raw)} bytes is not of version {ROW_VERSION}")
        _, file_bytes = _ROW.unpack_from(raw)
        return cls(file_bytes, raw[_ROW.size :].decode(errors="replace"))


class CatalogChanges(msgspec.Struct):
    """Changes that the catalog does not have yet. It is false when there are none.

    Attributes:
        added: rows of chunks by key.
        removed: keys of chunks that are gone.
        used: digests of datasets that are used now.
        forgotten: digests of datasets whose last use is to be removed.
    """

    added: dict[bytes, CatalogRow]
    removed: set[bytes]
    used: set[str]
    forgotten: set[str] = msgspec.field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.used or self.forgotten)
