"""Counts of the chunk cache: plain values."""

from __future__ import annotations

import msgspec


class CacheCounters(msgspec.Struct):
    """Counts since the start."""

    published_chunks: int = 0
    written_bytes: int = 0
    damaged_chunks: int = 0
    refused_writes: int = 0
    catalog_failures: int = 0


class CacheStatistics(CacheCounters, kw_only=True):
    """Files and bytes now, and counts since the start."""

    limit_bytes: int
    charged_bytes: int
    chunks: int
    fallback_chunks: int
