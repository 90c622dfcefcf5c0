"""Counts of the chunk cache: plain values."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


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
    """The counts of `CacheStatistics` since the start."""

    published_chunks: int = 0
    written_bytes: int = 0
    unlinked_chunks: int = 0
    dropped_at_start: int = 0
    damaged_chunks: int = 0
    refused_writes: int = 0
    catalog_failures: int = 0
