"""What the chunk cache reports and counts: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from streamer.cache.catalog_row import CatalogRow


class Published(msgspec.Struct, frozen=True):
    """A chunk that is readable now.

    Attributes:
        root: the folder it lies in: the cache folder, or the fallback when the disk refused it.
        file_bytes: length of the file.
    """

    root: Path
    file_bytes: int


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Files and bytes now, and counts since the start."""

    limit_bytes: int
    charged_bytes: int
    chunks: int
    layer_chunks: int
    fallback_chunks: int
    published_chunks: int
    written_bytes: int
    unlinked_chunks: int
    dropped_at_start: int
    damaged_chunks: int
    refused_writes: int
    catalog_failures: int


class Counters(msgspec.Struct):
    """What `CacheStatistics` counts since the start."""

    published_chunks: int = 0
    written_bytes: int = 0
    unlinked_chunks: int = 0
    dropped_at_start: int = 0
    damaged_chunks: int = 0
    refused_writes: int = 0
    catalog_failures: int = 0


class Changes(msgspec.Struct):
    """Rows that the catalog does not have yet, and datasets whose last use is not worth one any more."""

    added: dict[bytes, CatalogRow]
    removed: set[bytes]
    used: set[str]
    forgotten: set[str] = msgspec.field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.used or self.forgotten)
